"""The study of benchmarks/claim.py: what it trains, what it chooses and what it keeps, without hours of training."""

import dataclasses
import json
import re
import shutil
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import yaml
from sklearn.svm import LinearSVC

import protonce
from benchmarks import claim, claim_cell, data
from benchmarks.claim import Cell
from conftest import SMALL
from protonce.compare.scores import score
from protonce.data.sources import open_source
from protonce.errors import UserError
from protonce.run import read_assignments

GRID = {
    "images": 0,
    "held_out": 0,
    "choosing_seeds": [100, 101],
    "seeds": [0, 1],
    "common": {"recipe": "small-v2", "epochs": 10, "lr": 0.1},
    "trials": {"moco": [{}, {"lr": 0.2}], "pcl": [{}, {"tau": 0.3}]},
    "variations": [{"kmeans_init": "warm"}, {"method": "moco", "tau": 0.5}],
}


def study(tmp_path, **changes):
    path = tmp_path / "grid.yaml"
    path.write_text(yaml.safe_dump({**GRID, **changes}))
    return claim.read_study("builtin", path, None)


def result(cell, knn, ami=0.3, seconds=100.0):
    scores = dict.fromkeys(claim.SCORES, 0.5) | {"knn": knn, "ami": ami}
    clusters = [{"when": "at the end", "k": 30, "purity": 0.4}]
    return {
        **dataclasses.asdict(cell), "scores": scores, "seconds": seconds, "wall_seconds": 3600.0, "clusters": clusters
    }  # fmt: skip


def test_the_docs_have_the_published_numbers():
    """Every row of every published study, and no row besides."""
    root = claim.HERE.parent
    rows = set()
    second = [f"{data}-{queue}" for data in ("builtin", "fashion-mnist") for queue in ("queue", "in-batch")]
    for name in ("builtin", "fashion-mnist", "cifar10", *second):
        data = name.removesuffix("-queue").removesuffix("-in-batch")
        s = claim.read_study(data, claim.HERE / "claims" / f"{name}.yaml", None)
        done = claim.read_results(s, claim.HERE / "results" / "claim" / name)
        for baseline in claim.BASELINES:
            assert len(claim.differences(done, baseline, "knn")) == 5
            rows |= set(claim.lead_table(s, done, baseline)[2:])
    said = {
        page: {line for line in (root / page).read_text().splitlines() if line.endswith(("| yes |", "| no |"))}
        for page in ("docs/claim.md", "README.md")
    }
    assert said["docs/claim.md"] == rows
    assert said["README.md"] <= rows
    assert said["README.md"]


@pytest.mark.parametrize(
    ("name", "title"),
    [("builtin", "the built-in drawings"), ("fashion-mnist", "Fashion-MNIST"), ("cifar10", "CIFAR-10")],
)
def test_the_docs_have_every_variation(name, title):
    """The rows of one change at a time, system and three scores: those of two seeds, and those without a change."""
    s = claim.read_study(name, None, None)
    done = claim.read_results(s, claim.HERE / "results" / "claim" / name)
    assert sum(r["stage"] == "vary" for r in done.values()) == 2 * len(s.variations)
    text = (claim.HERE.parent / "docs" / "claim.md").read_text()
    (section,) = re.findall(rf"^## Results: {title}$(.*?)^## ", text, re.MULTILINE | re.DOTALL)
    said = _scored(section.split("### One change at a time")[1].split("\n- ")[0])
    parts = {part.split(",")[0]: _scored(part) for part in claim.tables(s, done).split("### ")}
    unchanged = {row[2:] for row in said if row[1].startswith("none")}
    assert len(unchanged) == 2
    assert unchanged <= {row[2:] for row in parts["Trials"]}
    varied = {row[2:] for row in parts["One change of the chosen settings"]}
    assert {row[2:] for row in said} - unchanged == varied - unchanged


def _scored(text):
    """The rows of a table of trials: system, settings, and again the system with the three scores."""
    rows = [[cell.strip() for cell in line.strip("| ").split(" | ")] for line in text.splitlines() if "%" in line]
    return [(row[0], row[1], row[0].lower(), *row[-3:]) for row in rows if row[0].lower() in ("moco", "pcl")]


def test_every_grid_gives_both_systems_as_many_trials():
    for path in sorted((claim.HERE / "claims").glob("*.yaml")):
        claim.read_study("builtin" if path.stem.startswith("builtin") else path.stem, path, None)


def test_unequal_trials_are_refused(tmp_path):
    with pytest.raises(UserError, match="unequal numbers of trials"):
        study(tmp_path, trials={"moco": [{}], "pcl": [{}, {}]})


def test_nothing_is_trained_on_the_test_seeds_before_all_trials_are_done(tmp_path):
    s = study(tmp_path)
    first = list(claim.cells(s, {}))
    assert len(first) == 8
    assert {c.stage for c in first} == {"choose"}
    assert {c.stage for c in claim.cells(s, {c.name: result(c, 0.5) for c in first[:-1]})} == {"choose"}


def test_the_best_of_held_out_knn_and_ami_is_chosen_and_moco_gets_pcls_time(tmp_path):
    s = study(tmp_path)
    done = {}
    for cell in claim.cells(s, {}):
        # kNN alone would prefer the first, its mean with AMI the second
        second = cell.settings != s.common
        done[cell.name] = result(cell, *((0.6, 0.5) if second else (0.65, 0.3)))
    for cell in list(claim.cells(s, done)):
        if cell.stage == "final":
            done[cell.name] = result(cell, 0.5, seconds=120.0 if cell.system == "pcl" else 100.0)
    after = [c for c in claim.cells(s, done) if c.stage != "choose"]
    final = {c.system: c.settings for c in after if c.stage == "final"}
    assert final["moco"] == {**s.common, "lr": 0.2}
    assert final["pcl"] == {**s.common, "tau": 0.3}
    assert final["moco-longer"] == {**s.common, "epochs": 12, "lr": 0.2}
    assert {c.seed for c in after if c.stage == "final"} == {0, 1}
    varied = [(c.system, c.settings) for c in after if c.stage == "vary" and c.seed == 100]
    assert varied == [("pcl", {**final["pcl"], "kmeans_init": "warm"}), ("moco", {**final["moco"], "tau": 0.5})]
    text = claim.tables(s, {**done, **{c.name: result(c, 0.7) for c in after}})
    assert "| pcl | kmeans_init warm | 2 |" in text
    assert "| moco | tau 0.5 | 2 | 70.0 % | 0.300 | 50.0 % |" in text
    assert "| moco-longer | 1 | 12 |" in text


def test_differences_are_paired_by_seed(tmp_path):
    done = {}
    for system, seed, knn in (("moco", 0, 0.5), ("pcl", 0, 0.6), ("moco", 1, 0.7), ("pcl", 1, 0.6), ("pcl", 2, 0.9)):
        cell = Cell("final", system, GRID["common"], seed, 0, 0)
        done[cell.name] = result(cell, knn)
    assert claim.differences(done, "moco", "knn") == pytest.approx({0: 0.1, 1: -0.1})
    found = claim.summarise(study(tmp_path), done)
    assert found["leads"]["moco"]["knn"]["positive"] == 1
    assert found["core_hours"] == 5
    text = claim.tables(study(tmp_path), done)
    assert "| kNN | 60.0 % | 60.0 % | +0.0 ± 14.1 points | 1 of 2 | no |" in text


def test_a_cell_that_is_done_is_not_trained_again(tmp_path, monkeypatch):
    begun = []

    class Process:
        def __init__(self, command, env):
            cell = json.loads(command[-1])
            found = Cell(**cell)
            begun.append(found.name)
            (tmp_path / f"{found.name}.json").write_text(json.dumps(result(found, 0.5)))

        def poll(self):
            return 0

    monkeypatch.setattr(claim.subprocess, "Popen", Process)
    monkeypatch.setattr(claim.time, "sleep", lambda seconds: None)
    s = study(tmp_path)
    assert claim.run(s, tmp_path, tmp_path, budget=-1, jobs=2) == ({}, set()), "no budget, no training"
    done, failed = claim.run(s, tmp_path, tmp_path, budget=60, jobs=2)
    assert not failed
    assert len(begun) == len(set(begun)) == len(done) == 8 + 6 + 4
    claim.run(s, tmp_path, tmp_path, budget=60, jobs=2)
    assert len(begun) == 18

    other = dataclasses.replace(s, images=50, held_out=20)
    assert claim.read_results(other, tmp_path) == {}, "another size of the data is another study"


def test_a_cell_that_fails_is_named_and_the_others_are_trained(tmp_path, monkeypatch):
    class Process:
        def __init__(self, command, env):
            found = Cell(**json.loads(command[-1]))
            if found.settings["lr"] != 0.2:
                (tmp_path / f"{found.name}.json").write_text(json.dumps(result(found, 0.5)))

        def poll(self):
            return 1

    monkeypatch.setattr(claim.subprocess, "Popen", Process)
    monkeypatch.setattr(claim.time, "sleep", lambda seconds: None)
    done, failed = claim.run(study(tmp_path), tmp_path, tmp_path, budget=60, jobs=2)
    assert len(done) == 6
    assert len(failed) == 2


def test_a_study_that_would_choose_by_the_test_images_is_refused(tmp_path):
    path = tmp_path / "grid.yaml"
    path.write_text(yaml.safe_dump(GRID))
    with pytest.raises(UserError, match="it would choose by the test"):
        claim.read_study("photos/", path, None)
    with pytest.raises(UserError, match="there is no grid"):
        claim.read_study("builtin", tmp_path / "absent.yaml", None)
    with pytest.raises(UserError, match=r"chosen on the seeds \[100\], which cannot test them"):
        claim.read_study("builtin", path, [5, 100])
    path.write_text(yaml.safe_dump({**GRID, "choosing_seeds": []}))
    with pytest.raises(UserError, match="several trials and no choosing_seeds"):
        claim.read_study("builtin", path, None)


def test_images_of_one_name_are_studies_of_their_own(photos, tmp_path, monkeypatch):
    monkeypatch.setattr(claim, "find_device", lambda asked: "cpu")
    shutil.copytree(photos / "slope0", tmp_path / photos.name / "slope0")
    shutil.copytree(photos / "slope1", tmp_path / photos.name / "slope1")
    found = []
    for folder in (photos, tmp_path / photos.name):
        train, _ = data.open_parts(str(folder), seed=0)
        found.append(claim.of_images(claim.read_study(str(folder), None, None), train))
    assert found[0].name != found[1].name
    assert all(s.name.startswith(f"{photos.name}-") and s.common["recipe"] == "laptop-v2" for s in found)
    own = claim.read_study("cifar10/", None, None)
    assert claim.of_images(own, train) == own


@pytest.mark.slow
def test_a_cell_from_training_to_its_scores(tmp_path, photos, monkeypatch):
    settings = {"recipe": "small-v2", "backbone": "resnet10t", "width": 4, "image_size": 16, "clusters": [3, 6]}
    settings |= {"batch_size": 16, "epochs": 2, "warmup_epochs": 1}
    cell = {"stage": "choose", "system": "pcl", "settings": settings, "seed": 0, "images": 24, "held_out": 8}
    scored = []
    monkeypatch.setattr(claim_cell, "score", lambda *given: scored.append(given) or score(*given))
    found = claim_cell.run_cell(str(photos), cell, tmp_path / "run", tmp_path)
    assert set(found["scores"]) == set(claim.SCORES)
    assert 0 < found["seconds"] < found["wall_seconds"]
    assert [c["k"] for c in found["clusters"]] == [3, 6, 3, 6, 24]
    train, test = data.open_parts(str(photos), seed=0)
    chosen, held_out = data.choose(train, 0, 24, 8)
    assert (scored[0][3].names, scored[0][4].names) == (chosen.names, held_out.names)
    final = {**cell, "stage": "final"}
    again = claim_cell.run_cell(str(photos), final, tmp_path / "run", tmp_path)
    assert again["wall_seconds"] > again["seconds"], "the training counts, though it was made before"
    assert (scored[1][3].names, scored[1][4].names) == (chosen.names, test.names)

    (tmp_path / "first.json").write_text(json.dumps(found))
    second = {**cell, "settings": {**settings, "init": "first", "warmup_epochs": 0}}
    claim_cell.run_cell(str(photos), second, tmp_path / "second", tmp_path)
    assert (tmp_path / "first" / "encoder.safetensors").read_bytes() == (
        tmp_path / "run" / "encoder.safetensors"
    ).read_bytes(), "the run to start from is the same run, trained again"


def test_held_out_images_are_not_trained_on(photos):
    train, test = data.open_parts(str(photos), seed=3)
    chosen, held_out = data.choose(train, seed=3, n=20, held_out=10)
    assert (len(chosen), len(held_out)) == (20, 10)
    assert not set(chosen.names) & set(held_out.names)
    assert not (set(chosen.names) | set(held_out.names)) & set(test.names)
    with pytest.raises(UserError, match="are more"):
        data.choose(train, seed=3, n=len(train), held_out=1)


def test_images_that_a_study_has_read_are_not_tested_on(photos):
    source, _ = data.open_parts(str(photos), seed=3)
    read = [(0, 8), (1, 5)]
    seen, fresh = data.unread_parts(source, read, test_images=6)
    drawn = {name for seed, n in read for name in data.choose(source, seed, n, 0)[0].names}
    assert set(seen.names) == drawn
    assert len(fresh) == 6
    assert not set(fresh.names) & drawn
    assert fresh.names == data.unread_parts(source, read, test_images=6)[1].names
    later = data.unread_parts(source, read, test_images=6, skipped=6)[1]
    assert not set(later.names) & (set(fresh.names) | drawn)
    with pytest.raises(UserError, match="that were not read; 99 are more"):
        data.unread_parts(source, read, test_images=99)
    # Five final seeds of 3,000 images, two choosing seeds of 3,000 and as many held out.
    assert sorted(claim_cell.images_read("fashion-mnist")) == [(s, 3000) for s in range(5)] + [(100, 6000), (101, 6000)]


def test_pcl_shares_the_instance_term_of_the_chosen_moco(tmp_path):
    s = study(tmp_path, shared=["lr"], moco="MoCo")
    first = list(claim.cells(s, {}))
    assert {c.system for c in first} == {"moco"}, "PCL's trials are not known before MoCo's are done"
    done = {c.name: result(c, 0.9 if c.settings["lr"] == 0.2 else 0.5) for c in first}
    second = [c for c in claim.cells(s, done) if c.system == "pcl"]
    assert [c.settings["lr"] for c in second] == [0.2] * 4
    assert [c.settings.get("tau") for c in second] == [None, 0.3] * 2
    done |= {c.name: result(c, 0.5) for c in second}
    done |= {c.name: result(c, 0.5) for c in claim.cells(s, done)}
    assert "PCL minus MoCo, mean and deviation" in claim.lead_table(s, done, "moco")[0]
    with pytest.raises(UserError, match=r"tries {'tau': 0\.3} for pcl"):
        study(tmp_path, shared=["tau"])


def test_mnist_files_are_read(tmp_path):
    import gzip

    for part, n in (("train", 3), ("t10k", 2)):
        header = np.array([2051, n, 2, 4], ">u4").tobytes()
        pixels = np.arange(n * 8, dtype=np.uint8)
        (tmp_path / f"{part}-images-idx3-ubyte.gz").write_bytes(gzip.compress(header + pixels.tobytes()))
        labels = np.array([2049, n], ">u4").tobytes() + bytes(range(n))
        (tmp_path / f"{part}-labels-idx1-ubyte.gz").write_bytes(gzip.compress(labels))
    train, test = data.open_parts(str(tmp_path), seed=0)
    assert train.labels == ["0", "1", "2"]
    assert len(test) == 2
    assert train.load(1).shape == (2, 4, 3)
    assert (train.load(1)[..., 2] == np.arange(8, 16).reshape(2, 4)).all()


def test_what_clusters_share():
    labels, assignment = np.array(["a", "a", "b", "b", "b"]), np.array([0, 0, 0, 1, 1])
    assert claim_cell.purity(assignment, labels) == pytest.approx(4 / 5)
    rng = np.random.default_rng(0)
    which = rng.integers(0, 10, 2000)
    noise = rng.normal(size=2000)
    assert abs(claim_cell.explained(noise, which)) < 0.02
    assert claim_cell.explained(which + 0.0, which) == pytest.approx(1)
    # between-cluster variance of a uniform digit is 8.25, and 1 of noise is added
    assert claim_cell.explained(which + noise, which) == pytest.approx(8.25 / 9.25, abs=0.02)


def test_nearest_images_and_their_likeness():
    v = torch.tensor([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0], [0.1, 0.9]])
    assert claim_cell.nearest_other(v).tolist() == [1, 0, 3, 2]
    values = np.random.default_rng(0).normal(size=5000)
    assert claim_cell.likeness(values, values) == 1
    assert claim_cell.likeness(values, np.roll(values, 1)) == pytest.approx(0, abs=0.05)


def test_what_images_look_like():
    low, bright = np.zeros((5, 3, 3), np.uint8), np.full((5, 3, 3), 200, np.uint8)
    low[4] = 100  # the matter lies in the last row
    looks = claim_cell.appearance(open_source(np.stack([low, bright])))
    assert looks["height"] == pytest.approx([1.0, 0.5], abs=1e-3)
    assert looks["sideways"] == pytest.approx([0.5, 0.5], abs=1e-3)
    assert looks["brightness"] == pytest.approx([20.0, 200.0])
    assert looks["contrast"] == pytest.approx([40.0, 0.0])


def test_own_seconds_leave_out_what_was_for_the_record(trained):
    took = {1: 10.0, 2: 90.0, 3: 11.0, 4: 13.0, 5: 12.0}
    run = SimpleNamespace(
        options={"warmup_epochs": 2},
        metrics=[{"epoch": e, "seconds": s, "cluster_seconds": 1.0, "features_seconds": 2.0} for e, s in took.items()],
    )
    assert claim_cell.own_seconds(run) == 2 * 47 + 3 * 12  # warm-up: 7 and 87; after it: 11, 13, 12
    run.options = {}  # MoCo's E-step is for the record in every epoch
    assert claim_cell.own_seconds(run) == 5 * 9  # the median of 7, 87, 8, 10, 9


def test_clusters_after_warm_up_are_those_of_the_next_recorded_epoch(photos, tmp_path):
    """MoCo, which has no warm-up, clustered for the record in epochs 1 and 4 of 4: the middle is epoch 3."""
    settings = {**SMALL, "method": "moco", "record_every": 3}
    run = protonce.train(photos, tmp_path / "run", epochs=4, quiet=True, **settings)
    found = claim_cell.clusters(run, run.source())
    fourth = read_assignments(run.path, 4)[0]
    labels = np.array(run.images[1])
    assert found[0]["when"] == "after warm-up"
    assert found[0]["purity"] == claim_cell.purity(fourth, labels)


def test_few_shots_use_k_images_a_class(monkeypatch):
    seen = []

    class Machine(LinearSVC):
        def fit(self, x, y):
            seen.append(sorted(y.tolist()))
            return super().fit(x, y)

    monkeypatch.setattr(claim_cell, "LinearSVC", Machine)
    train = np.concatenate([np.full((20, 2), c) + [[0, 1]] * 20 for c in (0.0, 5.0)])
    labels = np.repeat(["a", "b"], 20)
    assert claim_cell.few_shots(train, labels, train, labels, 2, seed=0) == 1
    assert seen == [["a", "a", "b", "b"]] * 5
    assert claim_cell.linear_probe(train, labels, train, labels) == 1
