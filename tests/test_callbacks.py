"""Callbacks, loggers and watching: called in order, with the numbers of metrics.jsonl, without effect on training."""

import csv
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import protonce
from conftest import SMALL, train_until
from protonce import checkpoints, loggers
from protonce.callbacks import Callback, Callbacks
from protonce.cli import main
from protonce.data.sources import random_order
from protonce.errors import UserError
from protonce.evaluate.knn import knn_accuracy
from protonce.report import charts
from protonce.watching import halves

OPTIONS = {**SMALL, "epochs": 3, "warmup_epochs": 1, "quiet": True}


class Told(Callback):
    def __init__(self):
        self.seen, self.records, self.scores = [], [], []

    def on_train_start(self, run, config, step):
        self.seen.append(("start", config["epochs"], step))

    def on_epoch_start(self, epoch):
        self.seen.append(("epoch", epoch))

    def on_step_end(self, step, logs):
        self.seen.append(("step", step))
        assert torch.isfinite(logs["loss"])

    def on_epoch_end(self, epoch, encoder, record):
        assert encoder.training
        self.seen.append(("epoch end", epoch))
        self.records.append(record)
        return {"my_score": 0.25 * epoch} if epoch == 2 else None

    def on_evaluation(self, epoch, scores):
        self.scores.append((epoch, dict(scores)))

    def on_train_end(self, run, completed):
        assert (run / "encoder.safetensors").exists() is completed
        self.seen.append(("end", completed))


def test_callbacks_are_told_what_happens_and_change_nothing(photos, trained, tmp_path):
    told = Told()
    run = protonce.train(photos, tmp_path / "run", callbacks=[told], **OPTIONS)
    steps = [("step", s) for s in range(1, 10)]
    expected = [("start", 3, 0)]
    for epoch in (1, 2, 3):
        expected += [("epoch", epoch), *steps[3 * epoch - 3 : 3 * epoch], ("epoch end", epoch)]
    assert told.seen == [*expected, ("end", True)]
    losses = [line["loss"] for line in run.metrics]
    assert [record["loss"] for record in told.records] == pytest.approx(losses, rel=1e-5)
    assert told.scores == [(2, {"my_score": 0.5})]
    assert [line.get("scores") for line in run.metrics] == [None, {"my_score": 0.5}, None]
    assert run.encoder_hash == trained.encoder_hash


def test_an_exception_ends_the_training_and_it_goes_on_from_there(photos, trained, tmp_path):
    class Stop(Callback):
        def on_epoch_start(self, epoch):
            if epoch == 3:
                raise RuntimeError("enough")

    with pytest.raises(RuntimeError, match="enough"):
        protonce.train(photos, tmp_path / "run", callbacks=[Stop()], **OPTIONS)
    told = Told()
    run = protonce.train(photos, tmp_path / "run", resume=True, callbacks=[told], **OPTIONS)
    assert told.seen[0] == ("start", 3, 6)
    assert run.encoder_hash == trained.encoder_hash


def test_watched_images_are_scored_and_change_nothing(photos, others, trained, tmp_path, capsys):
    run = protonce.train(photos, tmp_path / "run", watch=others, watch_every=2, **{**OPTIONS, "quiet": False})
    assert run.encoder_hash == trained.encoder_hash
    assert ["scores" in line for line in run.metrics] == [False, True, True]
    source = protonce.data.sources.open_source(others)
    (features,) = run.features(others, "backbone")
    labels, known, asked = np.array(source.labels), [], []
    for label in sorted({*source.labels}):  # every second image of each class, in random order
        for i in random_order(len(source), "watch", run.settings.seed):
            if labels[i] == label:
                (known if (len(known) + len(asked)) % 2 == 0 else asked).append(i)
    scores = run.metrics[-1]["scores"]
    knn = knn_accuracy(features[known], labels[known].tolist(), features[asked], labels[asked].tolist(), k=len(known))
    assert scores["knn"] == pytest.approx(knn)
    scaler = StandardScaler().fit(features[known].numpy())
    model = LogisticRegression(C=0.1, max_iter=300).fit(scaler.transform(features[known].numpy()), labels[known])
    expected = model.score(scaler.transform(features[asked].numpy()), labels[asked])
    assert scores["linear"] == pytest.approx(expected, abs=1 / len(asked) + 1e-9)
    assert f"knn {scores['knn']:.3f}  linear {scores['linear']:.3f}" in capsys.readouterr().err
    assert [c.name for c in charts.training(run, None) if c.name == "scores"] == ["scores"]


@pytest.mark.parametrize("sizes", [(2, 2), (9, 2), (5, 4, 3), (2, 2, 1)])
def test_both_halves_have_every_class_of_two_images(sizes):
    labels = np.repeat([f"class {i}" for i in range(len(sizes))], sizes)
    known, asked = halves(labels, seed=3)
    assert sorted([*known, *asked]) == list(range(sum(sizes)))
    for i, size in enumerate(sizes):
        counts = [int(np.sum(labels[half] == f"class {i}")) for half in (known, asked)]
        assert sum(counts) == size
        assert abs(counts[0] - counts[1]) <= 1


def test_watching_the_training_images_is_noted(photos, tmp_path, capsys):
    protonce.train(photos, tmp_path / "run", watch=photos, **{**OPTIONS, "epochs": 1, "quiet": False})
    assert "note: --watch has the images that are trained on" in capsys.readouterr().err


def test_what_cannot_be_watched(photos, tmp_path):
    bare = tmp_path / "bare"
    bare.mkdir()
    for i, path in enumerate(sorted(photos.rglob("*.png"))[:12]):
        (bare / f"{i}.png").write_bytes(path.read_bytes())
    lonely = tmp_path / "lonely"
    for i, path in enumerate(sorted(photos.rglob("*.png"))[:4]):
        (lonely / f"class {max(i - 2, 0)}").mkdir(parents=True, exist_ok=True)
        (lonely / f"class {max(i - 2, 0)}" / f"{i}.png").write_bytes(path.read_bytes())
    for data, every, words in (
        (bare, 1, "has no labels"),
        (lonely, 1, "needs at least two classes with two images each"),
        (photos, 0, "at least 1"),
    ):
        with pytest.raises(UserError, match=words):
            protonce.train(photos, tmp_path / "run", watch=data, watch_every=every, **OPTIONS)
    assert not (tmp_path / "run").exists()


def points(run):
    events = EventAccumulator(str(run.path / "logs" / "tensorboard"), size_guidance={"scalars": 0}).Reload()
    found = {tag: [(e.step, e.value) for e in events.Scalars(tag)] for tag in events.Tags()["scalars"]}
    return {tag: values for tag, values in found.items() if "seconds" not in tag}


@pytest.fixture
def every_step(monkeypatch):
    monkeypatch.setattr("protonce.loggers.EVERY", 2)


def test_tensorboard_has_the_metrics_and_after_an_interruption_those_of_an_uninterrupted_run(
    photos, tmp_path, monkeypatch, every_step
):
    whole = protonce.train(photos, tmp_path / "whole", loggers=["tensorboard"], **OPTIONS)
    expected = points(whole)
    assert [step for step, _ in expected["step/loss"]] == [2, 4, 6, 8]  # of 3 epochs of 3 steps
    assert expected["epoch/loss"] == [(3 * m["epoch"], pytest.approx(m["loss"], rel=1e-5)) for m in whole.metrics]
    assert expected["epoch/largest_cluster/1"] == [(3 * m["epoch"], m["largest_cluster"][1]) for m in whole.metrics]
    save, saved = checkpoints.save, []

    def save_once_more(folder, done, parts, epoch=None):
        if saved and saved[-1] == (1, 1):
            raise KeyboardInterrupt  # a step is logged that no checkpoint has
        saved.append((done, epoch and epoch.step))
        save(folder, done, parts, epoch)

    with monkeypatch.context() as patched:
        patched.setattr(checkpoints, "save", save_once_more)
        patched.setattr("protonce.loggers.EVERY", 1)
        with pytest.raises(KeyboardInterrupt):
            protonce.train(photos, tmp_path / "halves", checkpoint_minutes=0, loggers=["tensorboard"], **OPTIONS)
    interrupted = points(protonce.load(tmp_path / "halves"))["step/loss"]
    assert [step for step, _ in interrupted] == [1, 2, 3, 4, 5]
    halves = protonce.train(photos, tmp_path / "halves", resume=True, loggers=["tensorboard"], **OPTIONS)
    resumed = points(halves)
    assert [step for step, _ in resumed.pop("step/loss")] == [1, 2, 3, 4, 6, 8], "the fifth is hidden, and done again"
    assert {tag: resumed[tag] for tag in expected if tag.startswith("epoch/")} == {
        tag: values for tag, values in expected.items() if tag.startswith("epoch/")
    }


def test_csv(photos, tmp_path, every_step):
    run = protonce.train(photos, tmp_path / "run", loggers="csv", **OPTIONS)
    (file,) = (run.path / "logs" / "csv").rglob("metrics.csv")
    rows = list(csv.DictReader(file.open()))
    assert [float(row["epoch/loss"]) for row in rows if row["epoch/loss"]] == pytest.approx(
        [line["loss"] for line in run.metrics], rel=1e-5
    )


@pytest.fixture
def stores(tmp_path, monkeypatch):
    """MLflow's local store, and W&B offline."""
    import mlflow
    import wandb

    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    mlflow.set_tracking_uri(f"sqlite:///{tmp_path}/mlflow.db")
    yield mlflow
    mlflow.set_tracking_uri(None)
    wandb.teardown()


def test_mlflow_and_wandb(photos, others, tmp_path, monkeypatch, every_step, stores):
    """A resumed run is the same run there."""
    logged = {"loggers": ["mlflow", "wandb"], "watch": others}
    with monkeypatch.context() as patched:
        train_until((1, None), patched, photos, tmp_path / "run", {**OPTIONS, **logged})
    (found,) = stores.search_runs(search_all_experiments=True, output_format="list")
    assert found.info.status == "FAILED"
    run = protonce.train(photos, tmp_path / "run", resume=True, workers=0, **logged, **OPTIONS)
    (found,) = stores.search_runs(search_all_experiments=True, output_format="list")
    assert (found.info.run_name, found.info.status) == ("run", "FINISHED")
    assert found.data.metrics["epoch/loss"] == pytest.approx(run.metrics[-1]["loss"], rel=1e-5)
    assert found.data.metrics["evaluation/knn"] == pytest.approx(run.metrics[-1]["scores"]["knn"], rel=1e-5)
    assert found.data.params["epochs"] == "3"
    history = stores.MlflowClient().get_metric_history(found.info.run_id, "epoch/loss")
    assert [(point.step, pytest.approx(point.value, rel=1e-5)) for point in history] == [
        (3 * line["epoch"], line["loss"]) for line in run.metrics
    ]
    files = sorted((run.path / "logs" / "wandb").glob("offline-run-*/*.wandb"))
    assert len({file.stem for file in files}) == 1, "one run"
    points = [point for file in files for point in wandb_points(file, "epoch/loss")]
    assert points == pytest.approx([line["loss"] for line in run.metrics], rel=1e-5)


def wandb_points(file, name):
    """The values of a metric in W&B's file: a log of LevelDB, whose records are W&B's own messages."""
    from wandb.proto.wandb_internal_pb2 import Record

    data, place, parts, found = file.read_bytes(), 7, [], []  # after W&B's header
    while place + 7 <= len(data):
        if 32768 - place % 32768 < 7:  # the rest of a block is too short for a header
            place += 32768 - place % 32768
        length, kind = int.from_bytes(data[place + 4 : place + 6], "little"), data[place + 6]
        parts.append(data[place + 7 : place + 7 + length])
        place += 7 + length
        if kind in (1, 4):  # a whole record, or the last part of one
            record, parts = Record.FromString(b"".join(parts)), []
            items = [(item.key or "/".join(item.nested_key), item.value_json) for item in record.history.item]
            found += [float(value) for key, value in items if key == name]
    return found


class Broken:
    """A logger of Lightning that works, or not."""

    version = "1"

    def __init__(self, fails):
        self.fails = fails

    def __getattr__(self, name):
        if name in self.fails:
            raise ConnectionError(f"no server for {name}")
        return lambda *args, **kwargs: None


@pytest.mark.parametrize("fails", [("log_hyperparams", "experiment", "finalize"), ("experiment", "finalize")])
def test_a_logger_that_raises_at_the_start(photos, tmp_path, monkeypatch, fails):
    """Its first error is reported, though closing it would fail too."""
    monkeypatch.setitem(loggers.KINDS, "csv", ("csv", "broken.logger", lambda *_: {}))
    monkeypatch.setitem(sys.modules, "broken", SimpleNamespace(logger=lambda: Broken(fails)))
    with pytest.raises(UserError, match=f"--logger csv does not start: no server for {fails[0]}; mend it"):
        protonce.train(photos, tmp_path / "run", loggers=["csv"], **OPTIONS)


@pytest.mark.parametrize("fails", ["log_metrics", "save", "finalize"])
def test_training_survives_a_logger_that_fails(photos, trained, tmp_path, monkeypatch, capsys, fails):
    monkeypatch.setitem(loggers.KINDS, "csv", ("csv", "broken.logger", lambda *_: {}))
    monkeypatch.setitem(sys.modules, "broken", SimpleNamespace(logger=lambda: Broken(fails)))
    run = protonce.train(photos, tmp_path / "run", loggers=["csv"], **{**OPTIONS, "quiet": False})
    assert run.encoder_hash == trained.encoder_hash
    said = capsys.readouterr().err
    assert said.count("note: --logger csv has failed, and training continues without it: no server for") == 1


def test_only_callbacks_that_started_end_and_all_of_them():
    told = []

    class One(Callback):
        def __init__(self, name, starts=True, ends=True):
            self.name, self.starts, self.ends = name, starts, ends

        def on_train_start(self, run, config, step):
            if not self.starts:
                raise RuntimeError("cannot start")

        def on_train_end(self, run, completed):
            told.append(self.name)
            if not self.ends:
                raise RuntimeError("cannot end")

    callbacks = Callbacks([One("first", ends=False), One("second"), One("third", starts=False), One("fourth")])
    with pytest.raises(RuntimeError, match="cannot start"):
        callbacks.on_train_start(Path("run"), {}, 0)
    with pytest.raises(RuntimeError, match="cannot end"):
        callbacks.on_train_end(Path("run"), completed=False)
    assert told == ["first", "second"]


@pytest.mark.parametrize("wrong", [print, Callback, object()])
def test_what_is_no_callback_is_refused_before_anything_is_written(photos, tmp_path, wrong):
    with pytest.raises(UserError, match=r"is not an instance of a subclass of protonce\.callbacks\.Callback"):
        protonce.train(photos, tmp_path / "run", callbacks=[wrong], quiet=True, **SMALL)
    assert not (tmp_path / "run").exists()


def test_a_logger_that_does_not_start(photos, tmp_path, stores, capsys):
    stores.set_tracking_uri("nowhere://x")
    options = [
        word
        for key, value in SMALL.items()
        for word in (f"--{key.replace('_', '-')}", str(value).strip("[]").replace(" ", ""))
    ]
    assert main(["train", str(photos), "--out", str(tmp_path / "run"), "--logger", "mlflow", *options]) == 2
    assert "--logger mlflow does not start: " in capsys.readouterr().err


def test_loggers_that_are_not_there(photos, tmp_path, monkeypatch, capsys):
    assert main(["train", str(photos), "--out", str(tmp_path / "run"), "--logger", "clearml"]) == 2
    assert "there is no logger clearml; choose among tensorboard, csv, wandb, mlflow" in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    assert main(["train", str(photos), "--out", str(tmp_path / "run"), "--logger", "tensorboard"]) == 2
    assert "--logger tensorboard needs tensorboard: pip install 'protonce[tensorboard]'" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
