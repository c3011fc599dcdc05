"""Features kept at each recorded epoch: of which images, how they are checked, and their information (fig. 3b)."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import protonce
from conftest import SMALL, train_until
from protonce import health, manifest
from protonce.cli import main
from protonce.encoder import build
from protonce.errors import UserError
from protonce.evaluate.information import features_over_training, ross
from protonce.evaluate.protocols import evaluate
from protonce.methods.base import System, Term
from protonce.report import charts, drawing
from protonce.run import read_assignments, read_kept
from protonce.run.checking import check_run
from protonce.run.kept_features import kept_images

KEEP = {**SMALL, "epochs": 3, "keep_features": 30, "quiet": True}
PCL = {**KEEP, "warmup_epochs": 1}


class Own(System):
    """Two views attract each other; it has neither twin nor prototypes."""

    terms = ("similarity",)

    def m_step(self, batch, state):
        loss = -F.cosine_similarity(*(self.query(view) for view in batch.views)).mean()
        return loss, {"similarity": Term(loss)}


@pytest.fixture(scope="module")
def run(photos, tmp_path_factory):
    """A run of PCL with kept features. No test writes to it."""
    return protonce.train(photos, tmp_path_factory.mktemp("kept") / "pcl", **PCL)


def kept_in(run):
    return sorted(p.name for p in (run.path / "kept_features").iterdir())


@pytest.mark.parametrize("method", ["pcl", "moco", Own])
def test_the_features_that_were_clustered_are_kept(photos, tmp_path, monkeypatch, method):
    """At each recorded epoch, of the same images; nothing that is learnt changes."""
    seen, signals = [], health.after_e_step
    monkeypatch.setattr(health, "after_e_step", lambda v_, *rest: seen.append(v_.clone()) or signals(v_, *rest))
    settings = {**KEEP, "method": method, "record_every": 2 if method == "moco" else 1}
    run = protonce.train(photos, tmp_path / "run", **settings)
    recorded = [1, 3] if method == "moco" else [1, 2, 3]
    assert run.recorded_epochs == run.kept_epochs == recorded
    assert kept_in(run) == [f"{epoch:04d}.npz" for epoch in recorded]
    chosen = kept_images(48, 30, 0)
    assert len({*chosen.tolist()}) == 30
    for epoch, v_ in zip(recorded, seen, strict=True):
        kept = read_kept(run.path, epoch)
        assert (kept.images.tolist(), kept.features.dtype) == (chosen.tolist(), np.float16)
        np.testing.assert_allclose(kept.features, v_[chosen.tolist()].numpy(), atol=5e-4)
    loader, encoder = run.loader(photos), build(run.settings).eval()
    plain = torch.cat([loader.views.plain(samples) for samples in loader.plain(48)])
    with torch.no_grad():
        first = encoder(plain)[chosen.tolist()].numpy()  # θ' = θ, before the first step
    np.testing.assert_allclose(read_kept(run.path, 1).features, first, atol=1e-3)
    assert not check_run(run.path).damaged
    without = protonce.train(photos, tmp_path / "without", **{**settings, "keep_features": 0})
    assert not (without.path / "kept_features").exists()
    for name in ("encoder.safetensors", "prototypes.npz"):
        assert (run.path / name).read_bytes() == (without.path / name).read_bytes()


def test_another_seed_keeps_other_images_and_a_large_number_keeps_all(photos, tmp_path):
    assert kept_images(48, 30, 0).tolist() != kept_images(48, 30, 1).tolist()
    run = protonce.train(photos, tmp_path / "run", **{**KEEP, "epochs": 1, "keep_features": 1000})
    assert read_kept(run.path, 1).images.tolist() == list(range(48))


@pytest.mark.parametrize("stop", [(1, 2), (1, None), (2, None)])
def test_a_resumed_run_keeps_what_an_uninterrupted_one_does(photos, run, tmp_path, monkeypatch, stop):
    train_until(stop, monkeypatch, photos, tmp_path / "run", PCL)
    resumed = protonce.train(photos, tmp_path / "run", resume=True, quiet=True)
    assert kept_in(resumed) == kept_in(run) == ["0001.npz", "0002.npz", "0003.npz"]
    for name in kept_in(run):
        ours, theirs = (path / "kept_features" / name for path in (resumed.path, run.path))
        assert ours.read_bytes() == theirs.read_bytes()
    with pytest.raises(UserError, match="was started with keep_features 30, not 10"):
        protonce.train(photos, tmp_path / "run", resume=True, quiet=True, keep_features=10)


def test_a_run_that_was_killed_before_the_file_was_written_is_intact(photos, run, tmp_path, monkeypatch):
    train_until((1, 1), monkeypatch, photos, tmp_path / "run", PCL)
    (tmp_path / "run" / "kept_features" / "0002.npz").unlink()
    assert not check_run(tmp_path / "run").damaged
    (tmp_path / "run" / "kept_features" / "0001.npz").unlink()
    assert [*check_run(tmp_path / "run").damaged] == ["kept_features/0001.npz"]


@pytest.mark.parametrize("damage", ["other", "none"])
def test_a_damaged_file_is_refused(photos, tmp_path, capsys, damage):
    run = protonce.train(photos, tmp_path / "run", **{**KEEP, "epochs": 2})
    file = run.path / "kept_features" / "0002.npz"
    if damage == "other":
        file.write_bytes(file.read_bytes()[:-1])
    else:
        file.unlink()
    words = {"other": "0002.npz is not what protonce wrote", "none": "0002.npz is missing"}[damage]
    for command in (["check"], ["evaluate"], ["report"]):
        also = ["information", "--over-training"] if command == ["evaluate"] else []
        assert main([*command, str(run.path), *also]) != 0
        shown = capsys.readouterr()
        assert words in shown.out + shown.err
        assert "Traceback" not in shown.err
    manifest.write(run.path, "kept_features/0002.npz", b"not an archive")
    with pytest.raises(UserError, match=r"0002.npz is damaged, or was not written by protonce; restore it"):
        read_kept(run.path, 2)


def expected_curve(run, labels, neighbours=3):
    """Ross's estimate at each epoch; the function itself is tested in test_information.py."""
    curve = []
    for epoch in run.recorded_epochs:
        kept = np.load(run.path / "kept_features" / f"{epoch:04d}.npz")
        known = [i for i, image in enumerate(kept["images"]) if labels[image]]
        codes = np.array([int(labels[kept["images"][i]][-1]) for i in known])
        curve.append(ross(torch.from_numpy(kept["features"][known].astype(np.float64)), codes, neighbours))
    return curve


def test_information_of_kept_features(run, capsys):
    assert main(["evaluate", str(run.path), "information", "--over-training", "--neighbours", "2"]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    found = run.evaluations["information"]["details"]["over_training"]["features"]
    expected = expected_curve(run, run.images[1], 2)
    assert (found["epochs"], found["images"]) == ([1, 2, 3], 30)
    assert found["estimate"] == pytest.approx(expected, abs=1e-9)
    assert f"features of 30 kept images from epoch 1 to 3: {expected[0]:.3f} to {expected[2]:.3f}" in printed
    assert "not kept" not in printed
    assert np.abs(found["shuffled"]).max() < max(expected)
    few = evaluate(run, "information", quiet=True, name="few", most=12, over_training=True)
    assert few["details"]["over_training"]["features"]["images"] == 12


def test_information_without_kept_features_says_how_to_get_them(trained, capsys):
    assert main(["evaluate", str(trained.path), "information", "--over-training"]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "features of earlier epochs are not kept, so theirs is that of the final encoder" in printed
    assert "`protonce train --keep-features N` keeps those of N images" in printed
    assert "features" not in trained.evaluations["information"]["details"]["over_training"]


def test_the_chart_shows_features_and_prototypes_of_both_runs(photos, run, trained, tmp_path):
    moco = protonce.train(photos, tmp_path / "moco", **{**KEEP, "method": "moco"})
    (chart,) = charts.information({"MoCo": moco, "PCL": run})
    assert [(line.name, line.of) for line in chart.lines] == [
        *((f"{what}, PCL", "") for what in ("features", "k = 4", "k = 8")),
        *((f"{what}, MoCo", f"{what}, PCL") for what in ("features", "k = 4", "k = 8")),
    ]
    for i, one in ((0, run), (3, moco)):
        assert chart.lines[i].x == [1, 2, 3]
        assert chart.lines[i].y == pytest.approx(expected_curve(one, one.images[1]), abs=1e-9)
    assert "from at most 30 kept images" in chart.caption
    assert "--keep-features" not in chart.caption
    drawing.draw_chart(chart)
    (chart,) = charts.information({"MoCo": moco, "PCL": trained})  # which has kept none
    assert ("features, MoCo", "") in [(line.name, line.of) for line in chart.lines]
    assert "features, PCL" not in [line.name for line in chart.lines]
    assert "`protonce train --keep-features N`" in chart.caption
    assert len(read_assignments(moco.path, 1)) == 2


def test_kept_images_without_a_label_are_left_out(run):
    labels = ["" if i % 3 == 0 else label for i, label in enumerate(run.images[1])]
    found = features_over_training(run, labels, run.kept_epochs)
    assert sum(i % 3 == 0 for i in kept_images(48, 30, 0).tolist()) > 0
    assert found == pytest.approx(expected_curve(run, labels), abs=1e-9)
