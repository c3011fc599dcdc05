"""The examples, and the commands in the README and the documentation, run as written."""

import csv
import importlib.util
import json
import math
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

import protonce
from conftest import SMALL
from protonce.cli import build_parser, main

pytestmark = pytest.mark.usefixtures("quick_page")
ROOT = Path(__file__).resolve().parents[1]


def example(name):
    spec = importlib.util.spec_from_file_location(name, ROOT / "examples" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def small_recipe(monkeypatch):
    """What `train` chooses by itself takes minutes; here it chooses what takes seconds."""
    from protonce import preparation

    values = {k: v for k, v in SMALL.items() if k != "recipe"}
    monkeypatch.setattr(preparation, "read_recipe", lambda name: values)


def test_own_images(photos, tmp_path, capsys, small_recipe):
    example("own_images").main(str(photos), str(tmp_path / "run"), epochs=1)
    out = capsys.readouterr().out
    assert sum(int(n) for n in re.findall(r": (\d+) images", out)) == 48


def test_own_encoder(photos, tmp_path, capsys, small_recipe):
    example("own_encoder").main(str(photos), str(tmp_path / "run"), epochs=1)
    assert "features (48, 128)" in capsys.readouterr().out


def test_callbacks(photos, tmp_path, capsys, small_recipe):
    module = example("callbacks")
    module.main(str(photos), str(tmp_path / "run"), epochs=2)
    status = json.loads((tmp_path / "run-status.json").read_text())
    run = protonce.load(tmp_path / "run")
    assert (status["state"], status["epoch"]) == ("done", 2)
    assert status["loss"] == pytest.approx(run.metrics[-1]["loss"], rel=1e-5)
    v = run.features(photos, "query")[0].numpy()
    pairs = [math.exp(-2 * float(np.sum((v[i] - v[j]) ** 2))) for i in range(len(v)) for j in range(i)]
    expected = math.log(sum(pairs) / len(pairs))
    assert run.metrics[-1]["scores"]["uniformity"] == pytest.approx(expected, rel=1e-3)
    assert f"uniformity: [{run.metrics[0]['scores']['uniformity']:.2f}" in capsys.readouterr().out


def test_own_loop():
    assert example("own_loop").main(epochs=8) > 0.6  # ten digits: chance is about 0.2


@pytest.mark.slow
@pytest.mark.parametrize("name", ["vectors", "series", "tokens"])
def test_other_modalities_beat_raw_features(name, tmp_path, capsys, monkeypatch):
    """On items that no training saw, by both scores, as the table of the example says."""
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    scores = example(name).main(str(tmp_path / "run"))
    raw, learnt = scores["raw features"], scores["PCL"]
    assert all(ours > theirs for ours, theirs in zip(learnt, raw, strict=True))
    assert "PCL" in capsys.readouterr().out


def blocks(language, page):
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / page).read_text(), flags=re.S)


def commands(page):
    lines = [line.split("#")[0].strip() for block in blocks("bash", page) for line in block.splitlines()]
    return [line.split()[1:] for line in lines if line.startswith("protonce ")]


PAGES = {
    "README.md": ["train", "clusters", "tidy", "suggest", "label", "embed", "export"],
    "docs/usage.md": ["train", "report", "clusters", "embed", "evaluate", "import"],
}


@pytest.mark.parametrize("page", [*PAGES, "docs/systems.md", "docs/paper.md", "docs/labels.md", "docs/export.md"])
def test_commands_in_the_documentation_are_understood(page):
    assert len(commands(page)) >= 2
    for command in commands(page):
        build_parser("pcl").parse_args(command)


def fill_in(path):
    """What a person does with the table: the label of an image is its folder."""
    rows = list(csv.DictReader(path.open()))
    path.write_text("name,label\n" + "".join(f"{row['name']},{Path(row['name']).parent}\n" for row in rows))


@pytest.mark.parametrize(("page", "expected"), PAGES.items())
def test_commands_for_own_images_run(photos, tmp_path, monkeypatch, small_recipe, page, expected):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "photos").symlink_to(photos)
    shutil.copytree(photos, tmp_path / "labelled-photos")
    lines = [c for c in commands(page) if any("runs/first" in word for word in c)]
    assert [c[0] for c in lines] == expected
    for command in lines:
        assert main([word.replace("100", "1") for word in command]) == 0
        if command[0] == "suggest":
            fill_in(tmp_path / "suggest.csv")
    assert (tmp_path / "features.npz").exists()


def test_python_in_the_documentation_runs(photos, tmp_path, monkeypatch, small_recipe):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "photos").symlink_to(photos)
    code = "\n".join(blocks("python", "docs/usage.md")).replace("epochs=100", "epochs=1")
    assert "protonce.train" in code
    exec(compile(code, "docs/usage.md", "exec"), {"__name__": "__main__"})
