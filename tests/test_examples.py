"""The examples run as written."""

import importlib.util
import json
import math
import re
from pathlib import Path

import numpy as np
import pytest

import protonce

pytestmark = pytest.mark.usefixtures("quick_page")
ROOT = Path(__file__).resolve().parents[1]


def example(name):
    spec = importlib.util.spec_from_file_location(name, ROOT / "examples" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


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
    printed = [float(x) for x in re.search(r"uniformity: \[(.*)\]", capsys.readouterr().out)[1].split(",")]
    assert printed == pytest.approx([line["scores"]["uniformity"] for line in run.metrics], abs=0.0051)


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
