"""The command line: help without torch, one sentence and exit code 2 for a mistake, and files as promised."""

import csv
import dataclasses
import importlib
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Literal, get_args, get_origin

import numpy as np
import pytest

from conftest import SMALL
from processes import command, printed_by, start
from protonce import cli
from protonce.cli import main
from protonce.config import Settings
from protonce.methods.options.pcl import PCLOptions

pytestmark = pytest.mark.usefixtures("quick_page")
HEAVY = ("torch", "timm", "sklearn", "faiss", "numpy", "PIL", "rich", "matplotlib", "bokeh", "jinja2")


def python(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


def test_import_loads_nothing_heavy():
    found = python(f"import sys, protonce; print([m for m in {HEAVY} if m in sys.modules])")
    assert found.stdout.strip() == "[]", found.stderr


COMMANDS = (
    "",
    "demo",
    "train",
    "embed",
    "evaluate",
    "evaluate RUN knn",
    "import",
    "export",
    "ablation",
    "report",
    "clusters",
)


@pytest.mark.parametrize("command", COMMANDS)
def test_help_loads_nothing_heavy(command):
    code = f"""
import sys
from protonce.cli import main
try:
    main({[*command.split(), "--help"]!r})
except SystemExit:
    pass
print([m for m in {HEAVY} if m in sys.modules])
"""
    out = python(code).stdout.strip().splitlines()
    assert out[-1] == "[]"
    assert out[0].startswith("usage: protonce")


def test_the_help_of_import_names_its_own_defaults(capsys):
    with pytest.raises(SystemExit):
        main(["import", "--help"])
    words = " ".join(capsys.readouterr().out.split())
    assert "any timm model (the file's; untrained: resnet50)" in words
    assert "side of the views in pixels (as it was trained; else 224)" in words
    assert "channels of a ResNet's first stage; 64 is standard, other backbones ignore it (64)" in words


def test_every_public_name_is_there():
    import protonce

    for name in protonce.__all__:
        assert getattr(protonce, name) is not None
    assert protonce.losses.proto_nce
    assert protonce.prototypes.e_step
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = protonce.nothing


def small(*more):
    return [f"--{k.replace('_', '-')}={v}" for k, v in SMALL.items()] + list(more)


def test_every_setting_reaches_the_training(photos, tmp_path, monkeypatch):
    """Each by itself, from the command line: none is taken for an argument of `protonce.train`."""
    from protonce import api

    class Reached(Exception):
        pass

    def reached(request, *rest):
        raise Reached({**request.settings, **({"method": request.method} if request.method else {})})

    monkeypatch.setattr(api, "prepare", reached)
    fields = [*dataclasses.fields(Settings), *dataclasses.fields(PCLOptions)]
    for field in fields:
        *_, other = get_args(field.type) if get_origin(field.type) is Literal else ["1"]
        option = f"--{field.name.replace('_', '-')}"
        with pytest.raises(Reached) as found:
            main(["train", str(photos), "--out", str(tmp_path / "run"), option, other])
        (settings,) = found.value.args
        assert settings.keys() == {field.name}
        assert settings[field.name] in ((1, [1], "1") if other == "1" else (other,))


def test_train_embed_evaluate(photos, tmp_path, capsys):
    run = str(tmp_path / "my run")
    assert main(["train", str(photos), "--out", run, "--epochs", "2", *small()]) == 0
    shown = capsys.readouterr()
    assert "48 images of" in shown.err
    assert "auto chose" in shown.err
    assert "epoch 2/2  instance loss" in shown.err
    assert f"next: protonce embed '{run}' DATA --out FILE.npz" in shown.out  # as a shell takes it
    assert f"Look at what it found: {run}/report.html" in shown.out
    assert (tmp_path / "my run" / "report.html").exists()

    assert main(["embed", run, str(photos), "--out", str(tmp_path / "e.npz")]) == 0
    with np.load(tmp_path / "e.npz") as file:
        assert file["features"].shape == (48, 32)
        assert file["name"][0] == "slope0/00.png"
        assert file["prototype_1"].max() < 8
        assert (file["distance_0"] >= -1e-6).all()
    assert main(["embed", run, str(photos), "--out", str(tmp_path / "e.parquet")]) == 0
    import pyarrow.parquet

    table = pyarrow.parquet.read_table(tmp_path / "e.parquet")
    columns = ["name", "label", "features", "prototype_0", "distance_0", "prototype_1", "distance_1"]
    assert table.column_names == columns
    assert table["label"].to_pylist()[0] == "slope0"
    arrays = np.load(tmp_path / "e.npz")
    assert list(arrays) == columns
    np.testing.assert_allclose(np.stack(table["features"].to_numpy()), arrays["features"])
    assert main(["embed", run, str(photos), "--out", str(tmp_path / "e.csv")]) == 0
    rows = list(csv.DictReader((tmp_path / "e.csv").open()))
    for name in columns:
        if name == "features":
            found = [[float(row[f"feature_{i}"]) for i in range(32)] for row in rows]
        else:
            found = [row[name] if arrays[name].dtype.kind == "U" else float(row[name]) for row in rows]
        if arrays[name].dtype.kind == "U":
            assert found == arrays[name].tolist()
        else:
            np.testing.assert_allclose(found, arrays[name], rtol=1e-5, atol=1e-6)

    assert main(["evaluate", run, "knn"]) == 0
    assert (tmp_path / "my run" / "evaluations" / "knn.json").exists()


def test_a_new_run_has_a_name_that_fits(tmp_path, monkeypatch):
    from protonce.cli.train import _new_run

    monkeypatch.chdir(tmp_path)
    for data in ("x" * 255, "é" * 127, "photos.zip"):
        _new_run(data).mkdir(parents=True)
    assert _new_run("photos.zip") == Path("runs/photos-2")


def test_names_that_are_no_text(trained, photos, tmp_path):
    """In a table of text, and on a terminal that refuses what it cannot show."""
    import pyarrow.parquet

    folder = Path(os.fsdecode(os.fsencode(tmp_path) + b"/photos-\xff"))
    shutil.copytree(photos, folder)
    (folder / "slope0" / "00.png").rename(folder / "slope0" / os.fsdecode(b"\xe9.png"))
    assert main(["embed", str(trained.path), str(folder), "--out", str(tmp_path / "e.parquet")]) == 0
    assert "slope0/\ufffd.png" in pyarrow.parquet.read_table(tmp_path / "e.parquet")["name"].to_pylist()
    process = start(on_a_strict_terminal, "evaluate", trained.path, "clustering", "--test", folder)
    process.join()
    assert process.exitcode == 0
    assert "photos-\\udcff" in printed_by(process)


def on_a_strict_terminal(*words):
    """`protonce` as PYTHONIOENCODING=utf-8:strict makes it print."""
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(encoding="utf-8", errors="strict")
    command(*words)


def test_the_module_is_the_command():
    shown = subprocess.run([sys.executable, "-m", "protonce", "--help"], capture_output=True, text=True, check=True)
    assert shown.stdout.startswith("usage: protonce")


def test_options_win_over_the_file_and_the_file_over_the_recipe(photos, tmp_path):
    """Whatever their order on the line."""
    import protonce

    config = tmp_path / "mine.yaml"
    config.write_text("tau: 0.5\nepochs: 1\nlr: 0.5\n")
    run = str(tmp_path / "run")
    line = ["train", "--lr", "0.25", str(photos), "--config", str(config), "--out", run, "--no-report", *small()]
    assert main(line) == 0
    assert not (tmp_path / "run" / "report.html").exists()
    settings = protonce.load(run).settings
    assert (settings.lr, settings.tau, settings.epochs, settings.head) == (0.25, 0.5, 1, "mlp")


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (["train", "nowhere", "--out", "OUT"], "nowhere does not exist"),
        (["train"], "required: DATA"),
        (["train", "PHOTOS", "--resume"], "--resume needs --out"),
        (["train", "PHOTOS", "--out", "OUT", "--epochs", "none"], "setting epochs is 'none'"),
        (["train", "PHOTOS", "--out", "OUT", "--epocks", "3"], "unrecognized arguments: --epocks"),
        (["train", "PHOTOS", "--out", "OUT", "--recipe", "pcl-v9"], "unknown recipe 'pcl-v9'"),
        (["train", "PHOTOS", "--out", "OUT", "--recipe", ""], "unknown recipe ''"),
        (["train", "PHOTOS", "--out", "OUT", "--epochs", "1e3"], "setting epochs is '1e3'; it takes a whole number"),
        (["train", "PHOTOS", "--out", "OUT", "--epochs", ""], "setting epochs is ''"),
        (["train", "PHOTOS", "--out", "OUT", "--limit", "-1"], "setting limit is -1"),
        (["train", "PHOTOS", "--out", "OUT", "--seed", "2001-99-99"], "setting seed is '2001-99-99'"),
        (["train", "PHOTOS", "--out", "OUT", "--kmeans-starts", "9999999999"], "it must be at most 1,000"),
        (["train", "PHOTOS", "--out", "OUT", "--queue", "1000000000000"], "the queue takes"),
        (["train", "PHOTOS", "--out", "OUT", "--width", "4096"], "choose a smaller backbone, width or dim"),
        (["train", "PHOTOS", "--out", "OUT", "--backbone", "resnet18.foo"], "timm has no weights 'foo' for resnet18"),
        (["train", "PHOTOS", "--out", "OUT", "--init", "timm:resnet18.foo"], "no weights 'foo' for resnet18"),
        (["train", "PHOTOS", "--out", "OUT", "--init", "x" * 3000], "does not exist"),
        (["import", "timm:resnet18.foo", "--out", "OUT"], "no weights 'foo' for resnet18"),
        (["import", "untrained", "--out", "OUT", "--image-size", "9" * 400], "setting image_size is a whole number"),
        (["import", "untrained", "--out", "OUT", "--width", "4096"], "choose a smaller backbone, width or dim"),
        (["ablation", "PHOTOS", "--out", "OUT", "--draws", "9" * 5000], "invalid int value"),
        (["demo", "--out", "OUT", "--seed", "9" * 30], "it must be at most"),
        (["train", "PHOTOS", "--out", "OUT", "--backbone", "resnet81"], "no backbone 'resnet81'"),
        (["train", "PHOTOS", "--out", "OUT", "--init", "nowhere.pth"], "--init nowhere.pth does not exist"),
        (["train", "PHOTOS", "--out", "OUT", "--device", "cuda"], "device cuda is not available"),
        (["train", "PHOTOS", "--out", "OUT", "--precision", "16"], "precision 16 needs a GPU"),
        (["train", "PHOTOS", "--out", "OUT", "--batch-size", "4000"], "there are 48 images"),
        (["train", "PHOTOS", "--out", "OUT", "--bn-splits", "9", "--batch-size", "16"], "choose at most 8"),
        (["train", "PHOTOS", "--out", "OUT", "--clusters", "8,4,8"], "numbers must differ"),
        (["report", "RUN", "--figures", "PHOTOS"], "is inside the image folder"),
        (["train", "PHOTOS", "--out", "OUT", "--config", "nowhere.yaml"], "nowhere.yaml cannot be read"),
        (["train", "PHOTOS", "--out", "PHOTOS"], "is not empty"),
        (["train", "PHOTOS", "--out", "FILE"], "is a file"),
        (["train", "PHOTOS", "--out", "FILE/run", "--width", "4"], "Not a directory"),
        (["demo", "--out", "FILE"], "does not contain a demo"),
        (["demo", "--out", "OUT", "--seed", "-1"], "is negative"),
        (["embed", "RUN", "PHOTOS", "--out", "FOLDER.npz"], "is a folder"),
        (["embed", "OTHER", "PHOTOS", "--out", "x.npz"], "was not written by protonce"),
        (["embed", "nowhere", "PHOTOS", "--out", "x.npz"], "not a run folder"),
        (["embed", "RUN", "PHOTOS", "--out", "x.txt"], "must end in .npz, .parquet or .csv"),
        (["embed", "RUN", "PHOTOS", "--out", "no/where/x.npz"], "does not exist"),
        (["evaluate", "RUN", "quiz"], "invalid choice: 'quiz'"),
        (["fly"], "invalid choice: 'fly'"),
        ([], "required: COMMAND"),
    ],
)
def test_a_mistake_is_one_sentence_and_writes_nothing(line, words, photos, trained, tmp_path, capsys):
    import torch

    if "cuda" in line and torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    places = {"PHOTOS": str(photos), "OUT": str(tmp_path / "out"), "RUN": str(trained.path), "OTHER": str(tmp_path)}
    for name in ("FILE", "FILE/run", "FOLDER.npz"):
        places[name] = str(tmp_path / name.lower())
    (tmp_path / "file").touch()
    (tmp_path / "folder.npz").mkdir()
    (tmp_path / "config.yaml").write_text("name: something else")
    assert main([places.get(word, word) for word in line]) == 2
    shown = capsys.readouterr()
    complaint = shown.err.strip().splitlines()[-1]
    assert complaint.startswith("protonce: ")
    assert words in complaint
    assert len(complaint) <= 1000 + len("protonce: ")
    assert "Traceback" not in shown.err
    assert {p.name for p in tmp_path.iterdir()} == {"file", "folder.npz", "config.yaml"}


@pytest.mark.slow
@pytest.mark.parametrize(("data", "limit"), [("imagenette128/train.zip", 100), ("cifar10/train.zip", 300)])
def test_real_archives_train_as_they_are(shared_data, data, limit, tmp_path, monkeypatch):
    """Without --out and --recipe; then embed and evaluate work on what is left."""
    monkeypatch.chdir(tmp_path)
    path = str(shared_data / data)
    assert main(["train", path, "--limit", str(limit), "--epochs", "1"]) == 0
    assert main(["evaluate", "runs/train-1", "knn"]) == 0
    assert (
        main(["embed", "runs/train-1", path.replace("train", "val" if "nette" in path else "test"), "--out", "e.npz"])
        == 0
    )
    assert np.load("e.npz")["features"].shape[0] in (3925, 10000)


def test_skipped_files_are_counted_and_listed(photos, tmp_path, capsys):
    import shutil

    folder = tmp_path / "photos"
    shutil.copytree(photos, folder)
    (folder / "slope1" / "broken.jpg").write_text("no picture")
    assert main(["train", str(folder), "--out", str(tmp_path / "run"), "--epochs", "1", *small()]) == 0
    assert "48 images of" in (shown := capsys.readouterr().err)
    assert "1 skipped" in shown
    assert (tmp_path / "run" / "skipped.csv").read_text().splitlines()[1].startswith("slope1/broken.jpg,")


def test_the_help_says_of_each_command_what_its_module_does():
    for name, text in cli.COMMANDS.items():
        module = importlib.import_module(f"protonce.cli.{'import_' if name == 'import' else name}")
        assert module.run.__doc__ == text
    modules = {path.stem.rstrip("_") for path in Path(cli.__file__).parent.glob("*.py")}
    assert {*cli.COMMANDS} == modules - {"__init", "failures", "options", "parser"}
