"""`protonce sort`: new images into clusters and labels, and those that fit none."""

import csv
import shutil

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image

import protonce
from protonce.cli import main
from protonce.errors import UserError
from protonce.label.sorting import STRAYS, fit, sort_images


@pytest.fixture
def new(photos, tmp_path):
    """Three photos of the run under other names."""
    folder = tmp_path / "new"
    folder.mkdir()
    for i, path in enumerate(sorted(photos.rglob("*.png"))[::16]):
        Image.open(path).save(folder / f"new {i}.png")
    return folder


def rows(path):
    return list(csv.DictReader((path / "sorted.csv").open()))


def test_copies_are_sorted_like_their_originals(trained, photos, new, tmp_path, capsys):
    assert main(["sort", str(trained.path), str(new), "--out", str(tmp_path / "out"), "--granularity", "1"]) == 0
    assert "holds 3 images in" in capsys.readouterr().out
    found = rows(tmp_path / "out")
    names = trained.images[0]
    which, _ = trained.assign(str(photos))[1]
    originals = [str(path.relative_to(photos)) for path in sorted(photos.rglob("*.png"))[::16]]
    assert [row["nearest"] for row in found] == originals
    assert [int(row["group"]) for row in found] == [which[names.index(name)] for name in originals]
    for i, row in enumerate(found):
        (put,) = (tmp_path / "out" / row["group"]).glob(f"{i}-*")
        assert put.samefile(new / row["name"])


def test_clusters_of_other_images_are_those_of_sort(trained, photos, new, tmp_path, capsys):
    assert main(["clusters", str(trained.path), "--data", str(new), "--out", str(tmp_path / "out")]) == 0
    said = capsys.readouterr().out
    assert f"{new} has other images than {trained.path}" in said
    assert "holds 3 images in" in said
    names = trained.images[0]
    which = trained.prototypes[0].assignment
    found = rows(tmp_path / "out")
    originals = [str(path.relative_to(photos)) for path in sorted(photos.rglob("*.png"))[::16]]
    assert [int(row["group"]) for row in found] == [which[names.index(name)] for name in originals]
    for row in found:
        assert any(path.samefile(new / row["name"]) for path in (tmp_path / "out" / row["group"]).iterdir())


def test_moved_images_of_which_one_is_lost_are_not_taken_for_others(photos, tmp_path, capsys):
    """The run's own are not there any more, so that its clusters cannot be told from those of new images."""
    here = shutil.copytree(photos, tmp_path / "here")
    run = protonce.import_encoder(
        "untrained", tmp_path / "run", data=here, quiet=True, backbone="resnet10t", width=4, image_size=16, clusters=[2]
    )
    moved = here.rename(tmp_path / "moved")
    sorted(moved.rglob("*.png"))[0].unlink()
    assert main(["clusters", str(run.path), "--data", str(moved), "--out", str(tmp_path / "out")]) == 2
    assert "the 47 images of" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_by_label(trained, new, tmp_path):
    names, labels = trained.images
    table = tmp_path / "labels.csv"
    table.write_text("name,label\n" + "".join(f"{name},{label}\n" for name, label in zip(*trained.images, strict=True)))
    found = sort_images(trained, str(new), tmp_path / "out", labels=table, copy=True, quiet=True)
    truth = dict(zip(names, labels, strict=True))
    assert found.group == [truth[name] for name in found.nearest]
    assert found.confidence is not None
    assert not any(path.is_symlink() for path in (tmp_path / "out").rglob("*"))
    assert set(rows(tmp_path / "out")[0]) == {"name", "group", "confidence", "nearest", "similarity"}


def test_what_else_is_new_does_not_change_the_label_of_an_image(trained, new, tmp_path):
    """The run's labels, as `label` gives them, and those of new images depend on the run alone."""
    labels = {name: label for i, (name, label) in enumerate(zip(*trained.images, strict=True)) if i % 4 == 1}
    together = sort_images(trained, str(new), tmp_path / "all", labels=labels, quiet=True)
    alone = tmp_path / "alone"
    alone.mkdir()
    (new / together.names[1]).rename(alone / together.names[1])
    single = sort_images(trained, str(alone), tmp_path / "one", labels=labels, quiet=True)
    assert single.group == together.group[1:2]
    assert single.confidence == pytest.approx(together.confidence[1:2], abs=1e-4)
    own = dict(zip(trained.images[0], trained.label(labels).confidence, strict=True))
    assert single.nearest[0] not in labels  # it is a copy of this image
    assert single.confidence[0] == pytest.approx(own[single.nearest[0]], abs=1e-3)


def test_what_is_like_no_image_fits_none():
    draw = torch.Generator().manual_seed(0)
    known = torch.randn(200, 6, generator=draw) * 0.1
    known[:, 0] += 1 - 2 * (torch.arange(200) % 2)  # two groups
    asked = torch.stack([known[5] + 0.01, torch.tensor([0.0, 9.0, 0, 0, 0, 0])])
    similarity, nearest, threshold = fit(known, asked)
    x = F.normalize(known - known.mean(dim=0), dim=1)
    own = (x @ x.T).fill_diagonal_(-2).max(dim=1).values
    assert np.isclose(threshold, float(own.double().quantile(0.01)), atol=1e-5)
    assert nearest[0] == 5
    assert similarity[0] > threshold > similarity[1]
    assert fit(known[:1], asked)[2] == -1.0


def test_strays_have_a_folder(trained, new, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("protonce.label.sorting.fit", lambda known, asked: (np.zeros(3), np.zeros(3, dtype=int), 0.5))
    assert main(["sort", str(trained.path), str(new), "--out", str(tmp_path / "out")]) == 0
    assert "3 fit none" in capsys.readouterr().out
    assert len(list((tmp_path / "out" / STRAYS).iterdir())) == 3


def test_mistakes(trained, new, tmp_path):
    with pytest.raises(UserError, match="--granularity is 2; it must be 0, the coarsest, to 1"):
        sort_images(trained, str(new), tmp_path / "out", granularity=2)
    with pytest.raises(UserError, match="is inside the image folder"):
        sort_images(trained, str(new), new / "out")
    with pytest.raises(UserError, match="is not empty; give a new folder"):
        sort_images(trained, str(new), new.parent)
    with pytest.raises(UserError, match="--min-confidence is -1"):
        sort_images(trained, str(new), tmp_path / "out", min_confidence=-1)
    assert not (tmp_path / "out").exists()
