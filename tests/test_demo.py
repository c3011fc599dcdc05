"""`protonce demo`, from the command to its files; short, but whole."""

import json

import numpy as np
import pytest
from PIL import Image

from protonce import config
from protonce.cli import main
from protonce.data import builtin


@pytest.fixture
def short_demo(tmp_path, monkeypatch):
    """Two epochs of a few of the images, in the processes that the demo starts too."""
    recipe = {
        **config.read_recipe("demo"),
        "epochs": 2,
        "warmup_epochs": 1,
        "width": 4,
        "limit": 300,
        "clusters": [10, 20],
    }
    site = tmp_path / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text(
        f"import protonce.config as c\nread = c.read_recipe\n"
        f"c.read_recipe = lambda name: {recipe!r} if name == 'demo' else read(name)\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(site))


def test_demo(short_demo, tmp_path, capsys):
    out = tmp_path / "demo"
    assert main(["demo", "--out", str(out), "--seed", "3"]) == 0
    shown = capsys.readouterr().out
    rows = json.loads((out / "demo.json").read_text())["rows"]
    assert [row["name"] for row in rows] == ["raw-pixels", "untrained", "moco", "pcl"]
    for row in rows:
        assert row.keys() == {"name", "knn", "ami"}
        assert f"{100 * row['knn']:.1f}" in shown
    assert 0.15 < rows[0]["knn"] < 0.35, "raw pixels do badly"
    assert "protonce train FOLDER" in shown
    picture = np.asarray(Image.open(out / "clusters.png"))
    assert picture.shape[0] == 10 * 56
    assert "epoch" in shown, "progress is shown without a terminal too"

    assert main(["demo", "--out", str(out), "--seed", "3"]) == 0  # shown again, not trained again
    assert json.loads((out / "demo.json").read_text())["rows"] == rows
    assert main(["demo", "--out", str(out), "--seed", "4"]) == 2
    assert "another seed" in capsys.readouterr().err


def test_the_demo_leaves_other_folders_alone(tmp_path, capsys):
    (tmp_path / "letter.txt").write_text("mine")
    assert main(["demo", "--out", str(tmp_path)]) == 2
    assert [p.name for p in tmp_path.iterdir()] == ["letter.txt"]


def test_the_built_in_images_are_frozen():
    """A change of a single stroke must be a new version, with new numbers in its docstring."""
    images, _ = builtin.draw("train", 0)
    assert builtin.VERSION == 1
    assert images.mean() == pytest.approx(58.184, abs=0.01)
    assert images[[0, 7, 1234]].reshape(3, -1).mean(axis=1) == pytest.approx([55.47, 68.23, 55.40], abs=0.1)
