"""Archives and tables: the same images in any container, and those that cannot be read."""

import io
import pickle
import tarfile

import numpy as np
import pyarrow.parquet
import pytest
import torch
from PIL import Image

import protonce
from conftest import SMALL, _write, image_views, picture, tar_of, zip_of
from mutants import mutate, open_damaged
from protonce.data import archives, tables
from protonce.data.loader import Loader
from protonce.data.sources import open_source
from protonce.errors import UserError
from protonce.files import csv_text


def table_of(folder, path):
    """A table beside the folder; its rows in disorder."""
    names = sorted((p.relative_to(folder).as_posix() for p in folder.rglob("*.png")), reverse=True)
    columns = {"Label": [name.split("/")[0] for name in names], "File": names}
    for name in {name.split("/")[0] for name in names}:  # paths are relative to the table
        (path.parent / name).symlink_to(folder / name)
    if path.suffix == ".csv":
        path.write_text("\ufeff" + csv_text(list(columns), zip(*columns.values(), strict=True)), encoding="utf-8")
    else:
        pyarrow.parquet.write_table(pyarrow.table(columns), path)
    return path


PLACES = {
    "photos.zip": lambda folder, path: zip_of(folder, path),
    "photos.tar": tar_of,
    "photos.tar.gz": tar_of,
    "photos.tgz": tar_of,
    "photos.tar.xz": tar_of,
    "photos.csv": table_of,
    "photos.parquet": table_of,
}


@pytest.mark.parametrize("name", PLACES)
def test_all_containers_give_the_same_source(photos, tmp_path, name):
    folder, other = open_source(photos), open_source(PLACES[name](photos, tmp_path / name))
    assert len(folder) == len(other) == 48
    assert folder.names == other.names == sorted(folder.names)
    assert folder.labels == other.labels == [f"slope{i // 16}" for i in range(48)]
    assert folder.fingerprint == other.fingerprint
    assert folder.side == other.side == 20
    for i in (0, 17, 47):
        assert np.array_equal(folder.load(i), other.load(i))
    again = pickle.loads(pickle.dumps(other.load))  # as a worker gets it that is not forked
    assert np.array_equal(folder.load(5), again(5))


@pytest.fixture(scope="module")
def large_classes(tmp_path_factory):
    """A folder of pictures too large for the memory map, which workers read in each epoch; and a run on it."""
    folder = tmp_path_factory.mktemp("large")
    for i in range(24):
        (folder / f"class{i % 2}").mkdir(exist_ok=True)
        picture(side=140, seed=i).save(folder / f"class{i % 2}" / f"{i:02d}.png")
    return folder, _identical_run(folder, tmp_path_factory.mktemp("runs") / "folder")


def _identical_run(data, out):
    settings = {**SMALL, "clusters": [3], "batch_size": 8, "workers": 2, "epochs": 2, "warmup_epochs": 1}
    run = protonce.train(data, out, quiet=True, **settings)
    return [(run.path / name).read_bytes() for name in ("encoder.safetensors", "prototypes.npz", "images.csv")]


@pytest.mark.parametrize("name", ["photos.zip", "photos.tar", "photos.tgz", "photos.csv"])
def test_all_containers_give_the_identical_run(large_classes, tmp_path, name):
    folder, expected = large_classes
    assert _identical_run(PLACES[name](folder, tmp_path / name), tmp_path / "run") == expected


def test_a_webdataset_names_its_classes(tmp_path):
    with tarfile.open(tmp_path / "shard.tar", "w") as archive:
        for i in range(4):
            buffer = io.BytesIO()
            picture(8, seed=i).save(buffer, format="PNG")
            for suffix, content in (("png", buffer.getvalue()), ("cls", f"{i % 2}\n".encode()), ("json", b"{}")):
                info = tarfile.TarInfo(f"sample{i}.{suffix}")
                info.size = len(content)
                archive.addfile(info, io.BytesIO(content))
    source = open_source(tmp_path / "shard.tar")
    assert source.names == [f"sample{i}.png" for i in range(4)]
    assert source.labels == ["0", "1", "0", "1"]
    assert np.array_equal(source.load(3), np.asarray(picture(8, seed=3)))


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.tar", b"nothing", "cannot be read as a .tar"),
        ("a.tar.gz", b"nothing", "cannot be read as a .tar"),
        ("a.csv", b"", "a.csv is empty"),
        ("a.csv", b"colour,shape\nred,round\n", "has no column of image paths"),
        ("a.csv", b"path,label\na.png,1\nb.png\n", "line 3 of .* has 1 columns, but the first row has 2"),
        ("a.csv", b"path\n", "no images found in the table"),
        (
            "a.csv",
            b"path\na\0b.png\n",
            "cannot be read as .csv: it contains NUL characters; save it as a .csv in UTF-8",
        ),
        ("a.csv", "path\na.png\n".encode("utf-16"), "cannot be read as .csv: it contains NUL characters"),
        ("a.csv", b"path\n" + b"x" * 200_000, "cannot be read as .csv: field larger than field limit"),
        ("a.csv", b"path\n" + b"x" * 100_000, "has 'xxx.* instead of a path in row 1 below its header"),
        ("a.csv", b"path,label\n,1\n", "has nothing instead of a path in row 1 below its header"),
        ("a.csv", b"path,Path \na.png,b.png\n", "has 2 columns 'path'; rename or remove the others"),
        ("a.csv", b"path,label\na.png,1\na.png,2\n", "gives 'a.png' two labels, '1' and '2'"),
        ("a.csv", b"path\ngone.png\n", "gone.png: No such file or directory"),
        ("a.parquet", b"nothing", "cannot be read as .parquet"),
    ],
)
def test_unusable_archives_and_tables(tmp_path, name, content, words):
    with pytest.raises(UserError, match=words):
        open_source(_write(tmp_path / name, content))


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"image": [{"bytes": b"x", "path": "a.png"}]}, "none of the 1 image files in .*, e.g. a.png: not a supported"),
        ({"path": ["a.png", None]}, "has nothing instead of a path in row 2 below its header"),
        ({"path": ["a\0.png"]}, r"has 'a\\x00.png' instead of a path in row 1 below its header"),
        ({"path": [1, 2]}, "has 1 instead of a path in row 1 below its header"),
        ({"other": ["a.png"]}, "has no column of image paths"),
        ({"path": []}, "no images found in the table"),
    ],
)
def test_parquet_without_paths(tmp_path, columns, words):
    pyarrow.parquet.write_table(pyarrow.table(columns), tmp_path / "a.parquet")
    with pytest.raises(UserError, match=words):
        open_source(tmp_path / "a.parquet")


def test_parquet_has_a_limit_on_rows(tmp_path, monkeypatch):
    pyarrow.parquet.write_table(pyarrow.table({"path": ["a.png"] * 5000}), tmp_path / "a.parquet")
    monkeypatch.setattr(tables, "MAX_ROWS", 4999)
    with pytest.raises(UserError, match=r"cannot be read as .parquet: it has more than 4,999 rows"):
        open_source(tmp_path / "a.parquet")


@pytest.mark.parametrize("name", ["a.csv", "a.parquet"])
def test_damaged_tables(tmp_path, name):
    """Each lists files, or ends in one sentence."""
    for i in range(3):
        picture(6, seed=i).save(tmp_path / f"{i}.png")
    columns = {"path": [f"{i}.png" for i in range(3)], "label": ["cat", "dog", "cat"]}
    if name == "a.csv":
        content = csv_text(list(columns), zip(*columns.values(), strict=True)).encode()
    else:
        pyarrow.parquet.write_table(pyarrow.table(columns), tmp_path / name)
        content = (tmp_path / name).read_bytes()
    rng = np.random.default_rng(0)
    opened = 0
    for _ in range(200):
        source, refused = open_damaged(_write(tmp_path / name, mutate(rng, content)[0]))
        assert "\n" not in refused
        assert len(refused) < 500
        if source is None:
            continue
        opened += 1
        for i, found in enumerate(source.names):
            assert np.array_equal(source.load(i), np.asarray(picture(6, seed=int(found[0]))))
    assert 0 < opened < 200


def test_long_labels_of_a_table_are_refused(photos, tmp_path):
    (tmp_path / "list.csv").write_text(f"path,label\n{photos / 'slope0' / '00.png'},{'x' * 20_000}\n")
    with pytest.raises(UserError, match=r"a label of .* has 20,000 characters, but at most 1,000 are allowed"):
        open_source(tmp_path / "list.csv")


def test_empty_rows_of_a_spreadsheet_are_no_images(photos, tmp_path):
    rows = [f"{photos}/slope{s}/00.png,{s}" for s in range(3)]
    (tmp_path / "t.csv").write_text("path,label\n" + "\n,\n\n".join(rows) + "\n,\n")
    source = open_source(tmp_path / "t.csv")
    assert (source.labels, source.skipped) == (["0", "1", "2"], [])


def test_a_table_may_list_missing_files_and_duplicates(photos, tmp_path):
    file = photos / "slope0" / "00.png"
    (tmp_path / "list.csv").write_text(f"image\n{file}\n{file}\n{photos / 'slope1' / '03.png'}\nnowhere.png\n")
    source = open_source(tmp_path / "list.csv")
    assert source.names == [str(file), str(photos / "slope1" / "03.png")]
    assert [s.name for s in source.skipped] == ["nowhere.png"]


@pytest.mark.parametrize("name", ["large.zip", "large.tar", "large.tar.gz"])
def test_members_are_read_by_several_workers(tmp_path, name):
    folder = tmp_path / "large"
    folder.mkdir()
    for i in range(6):
        picture(150, seed=i).save(folder / f"{i}.png")
    views = image_views(24)
    archive = open_source(PLACES[name.replace("large", "photos")](folder, tmp_path / name))
    archive.load(0)  # the file is open here before the workers are made
    a = torch.cat([views.plain(s) for s in Loader(archive, views, workers=2).plain(2)])
    b = torch.cat([views.plain(s) for s in Loader(open_source(folder), views).plain(2)])
    assert torch.equal(a, b)


def test_a_forked_process_opens_the_zip_for_itself(photos, tmp_path, monkeypatch):
    """Or it would share the offset in the file with its parent, and read another member's bytes now and then."""
    path = zip_of(photos, tmp_path / "photos.zip")
    members = archives._Zip(path, ["slope0/00.png"])
    members(0)
    parents = members.local.file
    members(0)
    assert members.local.file is parents
    monkeypatch.setattr(archives.os, "getpid", lambda: -1)
    members(0)
    assert members.local.file is not parents


def test_real_archives(shared_data):
    cifar = open_source(shared_data / "cifar10" / "test.zip")
    assert (len(cifar), len(set(cifar.labels)), cifar.side) == (10000, 10, 32)
    nette = open_source(shared_data / "imagenette128" / "val.zip")
    assert (len(nette), len(set(nette.labels)), nette.side) == (3925, 10, 128)
    buffer = io.BytesIO()
    Image.fromarray(nette.load(0)).save(buffer, format="PNG")
    assert len(buffer.getvalue()) > 1000
