"""What is settled before training: whether a run may start or go on in a folder, and on which images."""

import re
import shutil

import numpy as np
import pytest
import torch
from PIL import Image

import protonce
from conftest import SMALL, picture, stop_after_saving
from protonce import checkpoints, manifest
from protonce.errors import UserError
from protonce.preparation import Request, prepare
from protonce.progress import Reporter
from protonce.ranks import Ranks


def test_resuming_keeps_what_auto_chose_when_the_run_began(photos, tmp_path, monkeypatch):
    from protonce import auto

    kept = {k: v for k, v in SMALL.items() if k not in ("clusters", "batch_size")}
    monkeypatch.setattr(checkpoints, "save", stop_after_saving(checkpoints.save, 1))
    with pytest.raises(KeyboardInterrupt):
        protonce.train(photos, tmp_path / "r", epochs=2, quiet=True, **kept)
    monkeypatch.undo()
    monkeypatch.setattr(auto, "_clusters", lambda n: [2, 3])  # a later version
    run = protonce.train(photos, tmp_path / "r", epochs=2, quiet=True, resume=True, **kept)
    assert len(run.settings.clusters) == 3
    assert run.finished


def test_weights_to_start_from_are_the_same_by_any_name(trained, photos, tmp_path, monkeypatch):
    """Relative to the folder of the start, as runs had them once, and where they are no longer there."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(trained.path, "base")
    settings = {**SMALL, "epochs": 1}
    run = protonce.train(photos, "run", init="base", quiet=True, **settings)
    assert run.settings.init == str(tmp_path / "base")
    config = tmp_path / "run" / "config.yaml"
    older = config.read_text().replace(f"init: {tmp_path}/base", "init: base")
    manifest.write(config.parent, config.name, older)
    assert protonce.load("run").settings.init == "base"
    for there in (True, False):
        protonce.train(photos, "run", resume=True, quiet=True)
        protonce.train(photos, "run", resume=True, quiet=True, init="base")
        with pytest.raises(UserError, match="was started with init base, not"):
            protonce.train(photos, "run", resume=True, quiet=True, init=str(trained.path))
        if there:
            shutil.rmtree("base")


def test_a_finished_run_is_not_trained_again(trained, photos):
    before = (trained.path / "encoder.safetensors").stat().st_mtime_ns
    protonce.train(photos, trained.path, resume=True, quiet=True)
    assert (trained.path / "encoder.safetensors").stat().st_mtime_ns == before


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, "is not empty"),
        ({"resume": True, "tau": 0.5}, "started with tau 0.2, not 0.5"),
        (
            {"resume": True, "epochs": 8},
            "epochs 3, not 8; .* train a new run from its weights with --init",
        ),
        ({"resume": True, "recipe": "pcl-v1"}, "started with recipe small-v2"),
        ({"resume": True, "limit": 20}, "started with limit 0, not 20"),
    ],
)
def test_another_run_in_the_same_folder_is_refused(trained, photos, changes, words):
    before = sorted(p.name for p in trained.path.iterdir())
    with pytest.raises(UserError, match=words):
        protonce.train(photos, trained.path, quiet=True, **changes)
    assert sorted(p.name for p in trained.path.iterdir()) == before


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"recipe": 3}, "unknown recipe 3"),
        ({"recipe": ""}, "unknown recipe ''"),
        ({"recipe": np.array(["pcl-v1", "pcl-v2"])}, "unknown recipe array"),
        ({"method": ""}, "unknown system ''"),
        ({"method": np.array(["pcl", "moco"])}, "method is array"),
        ({"method": print}, "name a system, or pass a subclass of System"),
        ({"clusters": np.array([4, 8])}, r"setting clusters is array\(\[4, 8\]\); it takes a list"),
        ({"device": torch.device("cpu")}, "setting device is device"),
        ({"init": "x" * 3000}, "does not exist"),
    ],
)
def test_arguments_of_another_type_are_refused_in_a_sentence(photos, tmp_path, arguments, words):
    with pytest.raises(UserError, match=words):
        protonce.train(photos, tmp_path / "run", quiet=True, **{**SMALL, **arguments})
    assert not (tmp_path / "run").exists()


def test_more_epochs_for_a_run_that_has_not_ended(photos, tmp_path, monkeypatch):
    """Its weights can be started from once it has; the command can be pasted into a shell."""
    out = tmp_path / "my run"
    monkeypatch.setattr(checkpoints, "save", stop_after_saving(checkpoints.save, 1))
    with pytest.raises(KeyboardInterrupt):
        protonce.train(photos, out, epochs=2, quiet=True, **SMALL)
    monkeypatch.undo()
    with pytest.raises(UserError, match=r"once it is finished, train a new run .* --init '.*/my run'$"):
        protonce.train(photos, out, epochs=8, quiet=True, resume=True, **SMALL)


@pytest.mark.parametrize("small", [True, False], ids=["small", "large"])
def test_a_run_resumes_where_files_have_come_and_gone(photos, large_photos, tmp_path, capsys, monkeypatch, small):
    """It goes on with its own images, in their places; those that are gone are replaced by others."""
    folder = tmp_path / "changing"
    shutil.copytree(photos if small else large_photos, folder)
    settings = {**SMALL, "clusters": [3], "batch_size": 8, "workers": 0, "epochs": 3, "limit": 20}
    monkeypatch.setattr(checkpoints, "save", stop_after_saving(checkpoints.save, 1))
    with pytest.raises(KeyboardInterrupt):
        protonce.train(folder, tmp_path / "run", quiet=True, **settings)
    monkeypatch.undo()
    names = protonce.load(tmp_path / "run").images[0]
    shutil.copytree(tmp_path / "run", tmp_path / "again")

    (folder / "a_new_one.png").write_bytes(next(photos.rglob("*.png")).read_bytes())
    whole = protonce.train(folder, tmp_path / "again", resume=True, quiet=True, **settings)
    assert whole.images[0] == names

    (folder / names[3]).unlink()
    run = protonce.train(folder, tmp_path / "run", resume=True, **settings)
    assert f"note: {names[3]} can no longer be read (file not found); another" in capsys.readouterr().err
    assert run.finished
    assert run.images[0] == names
    assert (run.path / "skipped.csv").read_text().count(names[3]) == 1
    assert [len(c.assignment) for c in run.prototypes] == [20]


def test_a_run_does_not_resume_on_other_images(photos, tmp_path, monkeypatch):
    folder = tmp_path / "changing"
    shutil.copytree(photos, folder)
    monkeypatch.setattr(checkpoints, "save", stop_after_saving(checkpoints.save, 1))
    with pytest.raises(KeyboardInterrupt):
        protonce.train(folder, tmp_path / "run", epochs=2, quiet=True, **SMALL)
    monkeypatch.undo()
    files = sorted(folder.rglob("*.png"))
    Image.new("RGB", (20, 20)).save(files[0])  # of another size on the disk
    with pytest.raises(UserError, match="are not; resume it with the data it started with"):
        protonce.train(folder, tmp_path / "run", epochs=2, quiet=True, resume=True, **SMALL)
    for file in files[:30]:
        file.unlink()
    with pytest.raises(UserError, match=r"images of .* are not; resume it"):
        protonce.train(folder, tmp_path / "run", epochs=2, quiet=True, resume=True, **SMALL)


@pytest.mark.parametrize(
    ("side", "given", "named"),
    [(80, {}, True), (80, {"init": "timm:resnet10t"}, False), (64, {}, False)],
)
@pytest.mark.parametrize("listed", [False, True])
def test_with_few_photos_a_pretrained_encoder_is_named(tmp_path, capsys, side, given, named, listed):
    """In a command that can be typed: not for a list of paths."""
    folder = tmp_path / "my photos"
    folder.mkdir()
    for i in range(12):
        picture(side, seed=i).save(folder / f"{i}.png")
    settings = {"backbone": "resnet10t", "width": 4, "device": "cpu", **given}
    if "init" in given:
        settings.pop("width")
    data = sorted(folder.iterdir()) if listed else str(folder)
    prepare(Request(data, tmp_path / "run", "photos-v2", settings=settings), Reporter(), Ranks())
    said = " ".join(capsys.readouterr().err.split())
    command = f"with 12 photos, features of an encoder .* protonce import timm:resnet18 --data '{folder}' --out RUN"
    assert bool(re.search(command, said)) == (named and not listed)
    assert ("with 12 photos" in said) == (named and not listed)
