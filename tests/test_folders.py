"""Clusters as folders."""

import csv
import os
import zipfile

import numpy as np
import pytest
from PIL import Image

import protonce
from conftest import SMALL
from pages import Text, make
from protonce import manifest
from protonce.cli import main
from protonce.data.placing import file_name
from protonce.errors import UserError
from protonce.files import csv_text
from protonce.report.folders import write_folders
from protonce.report.page import write_report

pytestmark = pytest.mark.usefixtures("quick_page")


def test_clusters_become_folders_of_links(trained, photos, tmp_path):
    assert write_folders(trained, tmp_path / "out", quiet=True) == 48
    rows = list(csv.DictReader((tmp_path / "out" / "clusters.csv").open()))
    assert [row["name"] for row in rows] == trained.images[0]
    assert [row["label"] for row in rows] == trained.images[1]
    for m, (name, c) in enumerate(zip(("0-k4", "1-k8"), trained.prototypes, strict=True)):
        assert [int(row[f"prototype_{m}"]) for row in rows] == c.assignment.tolist()
        for which in range(len(c.centroids)):
            files = sorted((tmp_path / "out" / name / str(which)).iterdir())
            assert all(file.is_symlink() for file in files)
            linked = [file.resolve().relative_to(photos.resolve()).as_posix() for file in files]
            mine = [row for row in rows if int(row[f"prototype_{m}"]) == which]
            assert sorted(linked) == sorted(row["name"] for row in mine)
            distance = {row["name"]: float(row[f"distance_{m}"]) for row in mine}
            assert [distance[name] for name in linked] == sorted(distance.values())  # the closest first
    with pytest.raises(UserError, match="is not empty"):
        write_folders(trained, tmp_path / "out", quiet=True)


def test_images_of_a_zip_are_written_out(photos, tmp_path):
    with zipfile.ZipFile(tmp_path / "photos.zip", "w") as archive:
        for path in sorted(photos.rglob("*.png")):
            archive.write(path, path.relative_to(photos).as_posix())
    run = protonce.train(tmp_path / "photos.zip", tmp_path / "run", epochs=1, quiet=True, **SMALL)
    write_folders(run, tmp_path / "out", quiet=True)
    source = run.source()
    files = sorted((tmp_path / "out" / "0-k4").rglob("*.png"))
    assert len(files) == 48
    rows = list(csv.DictReader((tmp_path / "out" / "clusters.csv").open()))
    first = next(
        i
        for i, row in enumerate(rows)
        if row["prototype_0"] == files[0].parent.name
        and row["distance_0"] == min(r["distance_0"] for r in rows if r["prototype_0"] == row["prototype_0"])
    )
    assert np.array_equal(np.asarray(Image.open(files[0])), source.load(first))


def test_awkward_names_survive(tmp_path):
    photos = make(tmp_path / "photos", 24)
    names = ["line\nfeed.png", "carriage\rreturn.png", 'quote".png', "comma, .png", "x" * 240 + ".png", "b\udcff.png"]
    for old, name in zip(sorted(photos.iterdir()), names, strict=False):
        old.rename(photos / name)
    run = protonce.train(photos, tmp_path / "run", epochs=1, quiet=True, **SMALL)
    assert sorted(run.images[0]) == sorted(p.name for p in photos.iterdir())
    page = Text(write_report(run, quiet=True))
    assert page.data["names"] == run.images[0]
    write_folders(run, tmp_path / "out", quiet=True)
    linked = {file.resolve().name for file in (tmp_path / "out" / "0-k4").rglob("*.png")}
    assert linked == {p.name for p in photos.iterdir()}
    for out in (photos / "groups", photos):
        with pytest.raises(UserError, match=r"is inside the image folder|is not empty"):
            write_folders(run, out, quiet=True)


@pytest.mark.parametrize(
    "name",
    [
        "x" * 300 + ".png",
        "é" * 300 + ".jpeg",
        "a." + "é" * 300,
        "😀" * 200 + "." + "😀" * 200,
        "a\x00b\nc.png",
        'a<b>c:d"e\\f|g?h*.png',
        "b\udcff" * 200 + ".png",
        "deep/" * 900 + "CON.png",
        "..",
        ".hidden",
    ],
)
def test_names_of_files_fit_every_file_system(name, tmp_path):
    found = file_name("00123456", name)
    assert len(os.fsencode(found)) <= 255
    assert found.startswith("00123456-")
    assert not set(found) & {*'/<>:"\\|?*', *map(chr, range(32))}
    (tmp_path / found).write_bytes(b"")
    assert [path.name for path in tmp_path.iterdir()] == [found]
    assert file_name("7", "photos/cat 1.jpeg") == "7-cat 1.jpeg"


def test_overlong_names_in_an_archive_are_shortened_and_whole_in_the_table(photos, tmp_path):
    names = [f"{i:02d}{'é' * 150}.png" for i in range(24)]  # 300 bytes each
    with zipfile.ZipFile(tmp_path / "photos.zip", "w") as archive:
        for name, path in zip(names, sorted(photos.rglob("*.png")), strict=False):
            archive.write(path, f"{'long' * 80}/{name}")
    run = protonce.train(tmp_path / "photos.zip", tmp_path / "run", epochs=1, quiet=True, **SMALL)
    assert main(["clusters", str(run.path), "--out", str(tmp_path / "out")]) == 0
    rows = list(csv.DictReader((tmp_path / "out" / "clusters.csv").open()))
    assert [row["name"].rpartition("/")[2] for row in rows] == names
    assert len(list((tmp_path / "out" / "1-k8").rglob("*.png"))) == 24
    shown = Text(write_report(run, quiet=True)).data["names"]
    assert all(len(name) == 260 and name.startswith("longlong") and name.endswith("é.png") for name in shown)


def test_huge_labels_are_shortened_on_the_page(trained):
    huge = {f"slope{i}": f"{i} {'very ' * 20_000}long {i}" for i in range(3)}
    table = list(csv.DictReader((trained.path / "images.csv").open()))
    for row in table:
        row["label"] = huge[row["label"]]
    manifest.write(trained.path, "images.csv", csv_text(list(table[0]), [list(row.values()) for row in table]))
    path = write_report(protonce.load(trained.path), quiet=True)
    assert path.stat().st_size < 5_000_000
    classes = Text(path).data["classes"]
    assert [(c[0], c[-1], len(c)) for c in classes] == [(str(i), str(i), 120) for i in range(3)]
    write_folders(protonce.load(trained.path), trained.path / "out", quiet=True)
    rows = csv.DictReader((trained.path / "out" / "clusters.csv").open())
    assert {row["label"] for row in rows} == set(huge.values())
