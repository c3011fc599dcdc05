"""`protonce evaluate RUN PROTOCOL`: every protocol on a run, what is kept, what goes on, and what is refused."""

import json
import shutil

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.metrics import adjusted_mutual_info_score, mutual_info_score
from sklearn.svm import LinearSVC

from conftest import SMALL, stripes
from protonce.api import train
from protonce.cli import main
from protonce.data.sources import match_folder_labels, open_source, random_order
from protonce.errors import UserError
from protonce.evaluate import knn, linear, lowshot, protocols, regression, semisup, svm
from protonce.evaluate.information import ross
from protonce.evaluate.options import PROTOCOLS
from protonce.evaluate.protocols import evaluate
from protonce.importing import import_encoder
from protonce.kmeans import k_means
from protonce.randomness import generator
from protonce.run import load, read_assignments

QUICK = {
    "knn": {},
    "linear": {"epochs": 5},
    "lowshot": {"shots": [1, 4], "draws": 2},
    "semisup": {"shares": [0.1], "draws": 1, "epochs": 2},
    "clustering": {"starts": 2},
    "information": {},
}


@pytest.mark.parametrize("protocol", list(PROTOCOLS))
def test_every_protocol_saves_its_result(protocol, trained, others, capsys):
    test = {"test": str(others)}
    result = evaluate(trained, protocol, name="a", **test, **QUICK[protocol])
    kept = json.loads((trained.path / "evaluations" / f"{protocol}-a.json").read_text())
    assert kept == result
    assert kept.keys() - {"details", "key"} == {"protocol", "metrics", "settings", "features", "data"}
    assert kept["settings"]["seed"] == 0
    assert kept["data"]["train"]["images"] == (30 if protocol in protocols.ONE_SET else 48)
    printed = capsys.readouterr().out
    for metric, value in result["metrics"].items():
        number = value["mean"] if isinstance(value, dict) else value
        assert np.isfinite(number)
        assert f"{number:.3f}" in printed, metric
    assert not list((trained.path / "evaluations").glob(".*"))  # no draft is left
    assert evaluate(trained, protocol, name="a", quiet=True, **test, **QUICK[protocol]) == result
    assert capsys.readouterr().out == ""


def test_stripes_are_classified(trained, others):
    """The numbers mean something: stripes of three directions, from few images and by fine-tuning on all."""
    few = evaluate(trained, "lowshot", test=str(others), quiet=True, shots=[8], draws=3)["metrics"]["accuracy@8"]
    assert few["mean"] > 0.5
    assert few["std"] == pytest.approx(np.std(few["runs"], ddof=1))
    tuned = evaluate(trained, "semisup", test=str(others), quiet=True, shares=[1.0], draws=1, epochs=40, lr=0.05)
    assert tuned["metrics"]["top1@100%"]["mean"] > 0.8
    assert tuned["metrics"]["top5@100%"]["mean"] == 1  # there are but three


def test_few_shots_need_few_features(trained, others):
    """Of a large set only the images that were drawn are encoded; the scores are those of all features."""
    result = evaluate(trained, "lowshot", test=str(others), quiet=True, shots=[2], draws=2, name="few")
    sizes = sorted(len(np.load(file)) for file in (trained.path / "features").glob("*.npy"))
    assert sizes[0] <= 12
    assert sizes[1:] == [30]
    source, test = trained.source(), open_source(str(others))
    train_x, test_x = (svm.unit(trained.features(s, "backbone")[0].numpy()) for s in (source, test))
    marks = np.array(source.labels)[:, None] == np.array(["slope0", "slope1", "slope2"])
    members = [np.flatnonzero(column) for column in marks.T]
    for i, found in enumerate(result["metrics"]["accuracy@2"]["runs"]):
        chosen = lowshot.draw_shots(members, 2, 0, i)
        scores, _ = svm.decisions(train_x[chosen], marks[chosen], test_x)
        assert found == pytest.approx(np.mean([f"slope{c}" for c in scores.argmax(axis=1)] == np.array(test.labels)))


def test_knn_neighbours_are_chosen_without_the_test_images(trained, others):
    """By leave-one-out over the training images: a loop over them, in both spaces."""
    result = evaluate(trained, "knn", test=str(others), quiet=True)
    source = trained.source()
    backbone, query, bank = trained.features(source, "backbone", "query", "momentum")
    codes = np.array([int(label[-1]) for label in source.labels])
    for metric, known, asking in (("accuracy", backbone, backbone), ("momentum_accuracy", bank, query)):
        known, asking = (torch.nn.functional.normalize(x, dim=1).numpy() for x in (known, asking))
        right = {}
        for k in (1, 5, 10, 20):
            hits = 0
            for i in range(48):
                similarity = asking[i] @ known.T
                nearest = [j for j in np.argsort(-similarity) if j != i][:k]
                votes = np.zeros(3)
                for j in nearest:
                    votes[codes[j]] += np.exp(similarity[j] / 0.1)
                hits += votes.argmax() == codes[i]
            right[k] = hits / 48
        found = knn.choose_k(torch.from_numpy(known), torch.from_numpy(asking), source.labels, 0.1, np.arange(48))
        assert found == pytest.approx(right)
        assert result["settings"][f"neighbours of {metric}"] == knn.best_k(right)


def test_neighbours_in_blocks_are_all_neighbours(monkeypatch):
    generator = torch.Generator().manual_seed(0)
    bank, queries = torch.randn(50, 8, generator=generator), torch.randn(17, 8, generator=generator)
    whole = knn.neighbours(bank, queries, 5)
    monkeypatch.setattr(knn, "_BLOCK", 120)
    parts = knn.neighbours(bank, queries, 5)
    torch.testing.assert_close(parts[0], whole[0])
    assert torch.equal(parts[1], whole[1])


@pytest.mark.parametrize("leave_out", [False, True])
def test_the_first_of_equally_similar_images_are_the_neighbours(leave_out, monkeypatch):
    """Copies that differ in length alone: their unit vectors differ by rounding. By a loop, for every k."""
    monkeypatch.setattr(knn, "_BLOCK", 200)
    rng = np.random.default_rng(0)
    base = rng.integers(-2, 3, (6, 33))
    bank = base[rng.integers(0, 6, 40)]
    queries = bank if leave_out else np.concatenate([base, rng.integers(-2, 3, (10, 33))])
    cosine = queries @ bank.T / np.linalg.norm(queries, axis=1)[:, None] / np.linalg.norm(bank, axis=1)
    scaled = torch.from_numpy(bank * rng.uniform(0.1, 10, (40, 1))).float()
    left_out = torch.arange(40) if leave_out else None
    for k in range(1, 40):
        similarity, found = knn.neighbours(scaled, torch.from_numpy(queries).float(), k, left_out)
        for i, positions in enumerate(found.tolist()):
            others = [j for j in range(40) if not leave_out or j != i]
            assert positions == sorted(others, key=lambda j: (-round(cosine[i, j], 9), j))[:k]
            np.testing.assert_allclose(similarity[i], cosine[i, positions], atol=1e-6)


def test_all_neighbours_of_identical_features():
    bank = torch.randn(1, 67, generator=torch.Generator().manual_seed(0)) * torch.linspace(0.1, 3, 50)[:, None]
    assert knn.neighbours(bank, bank, 7)[1].tolist() == [list(range(7))] * 50
    assert knn.neighbours(bank, bank, 50)[1].tolist() == [list(range(50))] * 50


@pytest.mark.parametrize("tau", [0.001, 0.1, 2.0])
def test_the_first_of_labels_with_equal_votes_wins(tau):
    """Three labels with the same similarities, up to noise; then one with clearly more."""
    rng = np.random.default_rng(0)
    similarity = np.repeat(rng.uniform(0.5, 0.9, (200, 5)), 3, axis=1) + rng.uniform(-2e-7, 2e-7, (200, 15))
    labels = np.stack([np.concatenate([rng.permutation([1, 2, 4]) for _ in range(5)]) for _ in range(200)])
    votes = torch.from_numpy(similarity).float(), torch.from_numpy(labels)
    assert knn.vote(*votes, 6, tau).tolist() == [1] * 200
    similarity[labels == 4] += 1e-4
    assert knn.vote(torch.from_numpy(similarity).float(), votes[1], 6, tau).tolist() == [4] * 200


def test_an_image_left_out_is_not_its_own_neighbour():
    """Labels by chance: whoever may ask itself is always right, and whoever may not is right as often as a guess."""
    draw = torch.Generator().manual_seed(0)
    points = torch.randn(300, 8, generator=draw)
    labels = [f"c{c}" for c in torch.randint(0, 3, (300,), generator=draw).tolist()]
    chosen = np.arange(0, 300, 2)
    found = knn.choose_k(points, points, labels, 0.1, chosen)
    unit = torch.nn.functional.normalize(points, dim=1)
    similarity = (unit @ unit.T).fill_diagonal_(-2)
    nearest = similarity.argmax(dim=1)
    assert found[1] == pytest.approx(np.mean([labels[nearest[i]] == labels[i] for i in chosen]))
    assert max(found.values()) < 0.6
    _, positions = knn.neighbours(points, points, 5, torch.arange(300))
    assert not (positions == torch.arange(300)[:, None]).any()


def test_classes_do_not_depend_on_the_depth_of_folders(trained, photos, tmp_path):
    """The test images have one of two branches of folders, or one class alone."""
    places = {"slope0": "lines/flat", "slope1": "lines/steep", "slope2": "upright/all"}
    for slope, place in places.items():
        shutil.copytree(photos / slope, tmp_path / "train" / place)
    for name, kept in (("branch", ["lines/flat", "lines/steep"]), ("alone", ["lines/flat"])):
        for place in kept:
            shutil.copytree(photos / "slope0", tmp_path / name / place)
        result = evaluate(trained, "knn", train=tmp_path / "train", test=tmp_path / name, quiet=True)
        assert result["data"]["classes"] == 3
        assert result["data"]["test"]["images"] == 16 * len(kept)


def test_the_longest_matching_folder_is_the_class():
    names = ["animal/cat/1.png", "cat/2.png", "toy/cat/3.png"]
    assert match_folder_labels(names, {"cat", "animal/cat"}) == ["animal/cat", "cat", "cat"]
    assert match_folder_labels(names, {"animal/cat", "cat", "toy/cat"}) == ["animal/cat", "cat", "toy/cat"]
    assert match_folder_labels([*names, "dog/4.png"], {"cat", "animal/cat"}) is None


def test_new_items_without_names_count_as_unseen(tmp_path):
    """Sets of a user's own, of one length: the names that they are given are the same."""

    class Own:
        def __init__(self, seed):
            rng = np.random.default_rng(seed)
            slopes = [i % 3 if seed == 0 else i // 16 for i in range(48)]
            self.images = [stripes(rng, slope) for slope in slopes]
            self.labels = list(map(str, slopes))

        def __len__(self):
            return 48

        def load(self, i):
            return self.images[i]

    run = train(Own(0), tmp_path / "run", epochs=1, quiet=True, **SMALL)
    for seed, seen in ((0, True), (1, False)):
        result = evaluate(run, "knn", train=Own(5), test=Own(seed), quiet=True)
        assert ("seen in training" in result["data"]["split"]) == seen
        result = evaluate(run, "information", test=Own(seed), quiet=True)
        assignment = run.prototypes[0].assignment if seen else run.assign(Own(seed))[0][0]
        expected = mutual_info_score(Own(seed).labels, assignment)
        assert result["metrics"]["prototypes, k = 4; exact"] == pytest.approx(expected)


@pytest.mark.parametrize(("protocol", "module"), [("lowshot", lowshot), ("semisup", semisup)])
def test_finished_draws_are_not_lost(protocol, module, trained, others, monkeypatch):
    """Interrupted in the third draw: the first two are not made again, and the result is that of one go."""
    options = {"draws": 4, **({"shots": [2]} if protocol == "lowshot" else {"shares": [0.2], "epochs": 1})}
    whole = evaluate(trained, protocol, test=str(others), quiet=True, name="whole", **options)
    score, made = module._score, []

    def until_the_third(*arguments):
        if len(made) == 2:
            raise KeyboardInterrupt
        made.append(1)
        return score(*arguments)

    monkeypatch.setattr(module, "_score", until_the_third)
    with pytest.raises(KeyboardInterrupt):
        evaluate(trained, protocol, test=str(others), quiet=True, **options)
    assert not (trained.path / "evaluations" / f"{protocol}.json").exists()
    made.clear()
    monkeypatch.setattr(module, "_score", lambda *a: (made.append(1), score(*a))[1])
    assert evaluate(trained, protocol, test=str(others), quiet=True, **options)["metrics"] == whole["metrics"]
    assert len(made) == 2
    made.clear()
    evaluate(trained, protocol, test=str(others), quiet=True, **{**options, "seed": 1})  # nothing to go on
    assert len(made) == 4


def test_drafts_need_the_same_labels_and_are_not_evaluations(trained, photos, tmp_path, monkeypatch):
    """The same files with other labels are another task; what is not finished is not on the page."""
    table = tmp_path / "table.csv"

    def write(shift):
        rows = (f"{photos}/slope{s}/{i:02d}.png,{(s + shift * i) % 3}\n" for s in range(3) for i in range(16))
        table.write_text("path,label\n" + "".join(rows))

    score, made = lowshot._score, []

    def twice(*arguments):
        if len(made) == 2:
            raise KeyboardInterrupt
        made.append(1)
        return score(*arguments)

    write(0)
    monkeypatch.setattr(lowshot, "_score", twice)
    with pytest.raises(KeyboardInterrupt):
        evaluate(trained, "lowshot", train=str(table), quiet=True, shots=[2], draws=3)
    assert trained.evaluations == {}
    made.clear()
    write(1)
    monkeypatch.setattr(lowshot, "_score", lambda *a: (made.append(1), score(*a))[1])
    evaluate(trained, "lowshot", train=str(table), quiet=True, shots=[2], draws=3)
    assert len(made) == 3
    assert evaluate(trained, "lowshot", train=str(table), quiet=True, again=False, shots=[2], draws=3)
    assert len(made) == 3  # the result that is there
    evaluate(trained, "lowshot", train=str(table), quiet=True, again=False, shots=[2], draws=4)
    assert len(made) == 7


def test_augmented_views_follow_the_paper(trained, others, monkeypatch):
    """Another crop in each epoch, a frozen backbone, and after an interruption the same classifier."""
    options = {"views": "augmented", "epochs": 4, "lr": 0.5, "batch_size": 16}
    whole = evaluate(trained, "linear", test=str(others), quiet=True, name="whole", **options)
    assert whole["settings"]["lr"] == 0.5
    step, steps = regression.Regression.step, []

    def until_the_third_epoch(self, x, codes, rates):
        if len(steps) == 7:
            raise KeyboardInterrupt
        steps.append(x.clone())
        step(self, x, codes, rates)

    monkeypatch.setattr(regression.Regression, "step", until_the_third_epoch)
    with pytest.raises(KeyboardInterrupt):
        evaluate(trained, "linear", test=str(others), quiet=True, **options)
    order = [regression.order(48, 0, epoch).tolist().index(0) for epoch in range(2)]
    first, second = (torch.cat(steps[3 * e : 3 * e + 3])[at] for e, at in enumerate(order))
    assert not torch.allclose(first, second)  # the same image in two epochs
    steps.clear()
    monkeypatch.setattr(regression.Regression, "step", lambda *a: (steps.append(1), step(*a))[1])
    assert evaluate(trained, "linear", test=str(others), quiet=True, **options) == whole
    assert len(steps) == 2 * 3


def test_the_papers_settings_are_the_defaults(trained, monkeypatch):
    """ImageNet: 100 epochs at 10; Places205: 40 at 0.3, its feature map pooled to 2 x 2."""
    seen = {}

    def note(task, schedule, rate, cells):
        seen.update(schedule=schedule, rate=rate, cells=cells)
        return torch.zeros(len(task.test), 3)

    monkeypatch.setattr(linear, "_augmented", note)
    photos = trained.source()
    for spec, epochs, rate, cells in (
        ("ImageNet:x", 100, 10.0, 1),
        ("Places205:x", 40, 0.3, 2),
        ("ImageNet@train:x", 100, 10.0, 1),
        ("Places205@train:x", 40, 0.3, 2),
    ):
        photos.spec = spec
        task = protocols.Task(trained, photos, photos, PROTOCOLS["linear"](), protocols.Steps(quiet=True), None)
        linear.protocol(task)
        assert (seen["schedule"].epochs, seen["rate"], seen["cells"]) == (epochs, rate, cells)
        assert seen["schedule"] == regression.Schedule(epochs, [0.6, 0.8], 0.1, 256)


def test_fine_tuning_has_the_papers_rates(trained, others, monkeypatch):
    """0.01 for the backbone; for the classifier 1 with 1 % of the labels and 0.1 with 10 %; each for its own part."""
    seen = []

    class Noted(torch.optim.SGD):
        def __init__(self, groups, **options):
            groups = list(groups)
            seen.append([(sum(p.numel() for p in group["params"]), group["lr"]) for group in groups] + [options])
            super().__init__(groups, **options)

    monkeypatch.setattr(torch.optim, "SGD", Noted)
    schedules = []
    tune = semisup.fine_tune
    note = lambda *a, schedule, **k: (schedules.append(schedule), tune(*a, schedule=schedule, **k))[1]  # noqa: E731
    monkeypatch.setattr(semisup, "fine_tune", note)
    evaluate(trained, "semisup", test=str(others), quiet=True, draws=1)
    backbone = sum(p.numel() for p in trained.encoders[0].backbone.parameters())
    classifier = 3 * (trained.encoders[0].feature_dim + 1)
    decay = {"momentum": 0.9, "weight_decay": 0.0005}
    assert seen == [[(backbone, 0.01), (classifier, rate), decay] for rate in (1.0, 0.1)]
    assert schedules == [regression.Schedule(20, [0.6, 0.8], 0.2, 256)] * 2


def test_draws_have_their_own_crops(trained, others, monkeypatch):
    """Of all labels, so that draws differ in nothing else."""
    crops = []

    def note(encoder, loader, codes, classes, **options):
        samples = next(iter(loader.samples(torch.arange(len(loader)), 0, len(loader))))
        crops.append(loader.views.train(samples)[0])
        return semisup.Classifier(encoder, classes, 0).eval()

    monkeypatch.setattr(semisup, "fine_tune", note)
    for seed in (0, 0, 1):
        evaluate(trained, "semisup", test=str(others), quiet=True, shares=[1.0], draws=2, seed=seed)
    assert all(torch.equal(crops[i], crops[i + 2]) for i in (0, 1))
    assert not any(torch.equal(crops[i], crops[j]) for i, j in ((0, 1), (0, 4), (0, 5), (1, 4), (1, 5), (4, 5)))


def test_crops_of_the_linear_classifier_follow_the_seed(trained, others, monkeypatch):
    seeds = []
    fit = linear._fit_augmented
    monkeypatch.setattr(
        linear,
        "_fit_augmented",
        lambda task, encode, loader, *rest: seeds.append(loader.seed) or fit(task, encode, loader, *rest),
    )
    for seed in (3, 4):
        evaluate(trained, "linear", test=str(others), quiet=True, views="augmented", epochs=1, lr=0.1, seed=seed)
    assert seeds == [3, 4]


def test_every_epoch_uses_all_labelled_images(trained, photos):
    loader = trained.loader(str(photos))
    for size, sizes in ((48, [48]), (32, [24, 24]), (15, [12, 12, 12, 12]), (47, [24, 24]), (300, [48])):
        batches = list(loader.samples(torch.arange(48), 0, size, every=True))
        assert [len(b.index) for b in batches] == sizes
        assert torch.cat([b.index for b in batches]).tolist() == list(range(48))


def test_clustering_over_training_and_on_one_data_set(trained, others):
    """AMI of kept assignments by scikit-learn; without --test the run's own images, which need no others."""
    result = evaluate(trained, "clustering", quiet=True, clusters=[2, 6], starts=2)
    _, labels = trained.images
    curves = result["details"]["ami_over_training"]
    assert curves["epochs"] == [1, 2, 3]
    for m in range(2):
        expected = [adjusted_mutual_info_score(labels, read_assignments(trained.path, e)[m]) for e in (1, 2, 3)]
        assert curves["ami"][m] == pytest.approx(expected)
        final = adjusted_mutual_info_score(labels, trained.prototypes[m].assignment)
        assert result["metrics"][f"ami of the run's k = {trained.settings.clusters[m]}"] == pytest.approx(final)
    points = torch.nn.functional.normalize(*trained.features(trained.source(), "backbone"), dim=1)
    found = result["metrics"]["ami (k = 6)"]["runs"]
    for start in range(2):
        clusters = k_means(points, 6, generator=generator(0, "ami", start), iterations=50, engine="faiss").assignment
        assert found[start] == pytest.approx(adjusted_mutual_info_score(labels, clusters))
    momentum = evaluate(trained, "clustering", test=str(others), quiet=True, features="momentum", starts=1)
    assert momentum["data"]["train"]["images"] == 30
    with pytest.raises(UserError, match="--clusters is 31, but there are only 30 images"):
        evaluate(trained, "clustering", test=str(others), quiet=True, clusters=[31])


def test_clustering_uses_only_labelled_images(trained, others):
    _, labels = trained.images
    assert labels is not None
    few = [label if i % 4 == 0 else "" for i, label in enumerate(labels)]
    text = (trained.path / "images.csv").read_text().splitlines()
    rows = [line.rpartition(",")[0] + "," + label for line, label in zip(text[1:], few, strict=True)]
    (trained.path / "images.csv").write_text("\n".join([text[0], *rows]) + "\n")
    result = evaluate(load(trained.path), "clustering", test=str(others), quiet=True, starts=1)
    expected = adjusted_mutual_info_score(labels[::4], trained.prototypes[0].assignment[::4])
    assert result["metrics"][f"ami of the run's k = {trained.settings.clusters[0]}"] == pytest.approx(expected)
    assert result["details"]["ami_over_training"]["ami"][0][-1] == pytest.approx(expected)


def test_results_state_whether_test_images_were_seen_in_training(trained, photos, others, tmp_path):
    bare, _ = import_encoder("untrained", tmp_path / "bare", data=str(photos), like=trained, quiet=True)
    seen = ", all seen in training without labels"
    for which, options, expected in (
        (trained, {}, seen),
        (trained, {"train": str(photos)}, seen),
        (trained, {"train": str(others), "test": str(photos)}, seen),
        (trained, {"train": str(others)}, ""),
        (bare, {}, ""),
    ):
        split = evaluate(which, "knn", quiet=True, **options)["data"]["split"]
        assert split.endswith(seen) == bool(expected), (options, split)


def test_information_of_a_sample(trained):
    """Estimates on the images drawn, by hand; the exact value on all, from the assignment the run has kept."""
    result = evaluate(trained, "information", quiet=True, most=30, neighbours=2)
    metrics, source = result["metrics"], trained.source()
    codes = np.array([int(label[-1]) for label in source.labels])
    chosen = np.sort(random_order(48, "information", 0)[:30])
    (embeddings,) = trained.features(source, "momentum")
    assert metrics["features"] == pytest.approx(ross(embeddings[chosen], codes[chosen], 2), abs=1e-6)
    for k, c in zip(trained.settings.clusters, trained.prototypes, strict=True):
        assert metrics[f"prototypes, k = {k}; exact"] == pytest.approx(mutual_info_score(codes, c.assignment))
        nearest = (embeddings[chosen] @ c.centroids.T).argmax(dim=1)
        expected = ross(c.centroids[nearest], codes[chosen], 2)
        assert metrics[f"prototypes, k = {k}"] == pytest.approx(expected, abs=1e-6)
    assert metrics["entropy of the labels"] == pytest.approx(np.log(3))
    assert result["settings"]["images"] == 30


def test_the_nearest_class_mean_and_chosen_costs(trained, others):
    source, test = trained.source(), open_source(str(others))
    train_x, test_x = (svm.unit(trained.features(s, "backbone")[0].numpy()) for s in (source, test))
    marks = np.array(source.labels)[:, None] == np.array(["slope0", "slope1", "slope2"])
    chosen = lowshot.draw_shots([np.flatnonzero(column) for column in marks.T], 4, 0, 0)
    mean = evaluate(trained, "lowshot", test=str(others), quiet=True, shots=[4], draws=1, classifier="mean")
    scores = lowshot.class_means(train_x[chosen], marks[chosen], test_x)
    assert mean["metrics"]["accuracy@4"]["mean"] == svm.accuracy(scores, sorted(set(test.labels)), test.labels)
    auto = evaluate(trained, "lowshot", test=str(others), quiet=True, shots=[2, 4], draws=1, cost="auto")
    scores, _ = svm.decisions(train_x[chosen], marks[chosen], test_x, None)
    assert auto["metrics"]["accuracy@4"]["mean"] == svm.accuracy(scores, sorted(set(test.labels)), test.labels)
    fixed = evaluate(trained, "lowshot", test=str(others), quiet=True, shots=[2], draws=1)
    assert auto["metrics"]["accuracy@2"] == fixed["metrics"]["accuracy@2"]  # two images a class: nothing to choose by


def test_cells_of_the_feature_map(trained, others):
    """One cell is the pooled feature; the mean of four cells is it again."""
    loader = trained.loader(open_source(str(others)))
    (samples,) = loader.plain(30)
    views, encoder = loader.views.plain(samples), trained.encoders[0]
    with torch.no_grad():
        one, four = (linear.pooled_features(encoder, views, cells) for cells in (1, 2))
    assert four.shape == (30, 4 * one.shape[1])
    torch.testing.assert_close(four.view(30, -1, 4).mean(dim=2), one, atol=1e-5, rtol=1e-4)
    evaluate(trained, "linear", test=str(others), quiet=True, views="augmented", epochs=1, cells=2)
    with pytest.raises(UserError, match="--cells 2 needs --views augmented"):
        evaluate(trained, "linear", test=str(others), quiet=True, cells=2)


# The paper's data sets, as they come


@pytest.fixture
def voc(tmp_path):
    """VOC's layout: images of one or two directions, some of which are difficult to see."""
    root = tmp_path / "VOCdevkit" / "VOC2007"
    for folder in ("JPEGImages", "Annotations", "ImageSets/Main"):
        (root / folder).mkdir(parents=True)
    rng = np.random.default_rng(0)
    for split, n in (("trainval", 24), ("test", 12)):
        keys = [f"{split[:2]}{i:03d}" for i in range(n)]
        (root / "ImageSets" / "Main" / f"{split}.txt").write_text("".join(f"{key}\n" for key in keys))
        for i, key in enumerate(keys):
            shown = {"cat": i % 2 == 0, "dog": i % 3 == 0, "sofa": i % 2 == 1}
            picture = sum(stripes(rng, s).astype(int) for s, yes in enumerate(shown.values()) if yes)
            Image.fromarray((picture // sum(shown.values())).astype(np.uint8)).save(root / "JPEGImages" / f"{key}.jpg")
            objects = "".join(
                f"<object><name>{name}</name><difficult>{int(name == 'dog' and i == 0)}</difficult></object>"
                for name, yes in shown.items()
                if yes
            )
            (root / "Annotations" / f"{key}.xml").write_text(f"<annotation>{objects}</annotation>")
    return tmp_path


def test_voc_has_several_classes_per_image(voc):
    train, test = (open_source(f"VOC2007:{voc}", part) for part in ("train", "test"))
    assert (len(train), len(test)) == (24, 12)
    assert train.labels is None
    marks = train.marks
    assert len(marks.classes) == 20
    assert marks.eleven_points
    assert marks.values[:4, marks.classes.index("dog")].tolist() == [0, -1, -1, 1]  # the first is difficult to see
    assert (marks.values[:, marks.classes.index("person")] == -1).all()
    assert train.subset(np.array([3, 0])).marks.values[:, marks.classes.index("dog")].tolist() == [1, 0]
    assert len(open_source(f"VOC2007@test:{voc}", "train")) == 12
    assert len(open_source(f"VOC2007:{voc / 'VOCdevkit' / 'VOC2007'}")) == 24


def test_voc_marks_belong_to_their_images(voc):
    """Names that sort otherwise with their ending than without, and a name that is listed twice."""
    root = voc / "VOCdevkit" / "VOC2007"
    for key, name in (("photo", "cat"), ("photo-1", "dog")):
        shutil.copy(root / "JPEGImages" / "tr000.jpg", root / "JPEGImages" / f"{key}.jpg")
        text = f"<annotation><object><name>{name}</name></object></annotation>"
        (root / "Annotations" / f"{key}.xml").write_text(text)
    (root / "ImageSets" / "Main" / "mine.txt").write_text("photo-1\nphoto\nphoto\ntr001\n")
    source = open_source(f"VOC2007@mine:{voc}")
    found = {
        name: source.marks.classes[row.argmax()] for name, row in zip(source.names, source.marks.values, strict=True)
    }
    assert found == {
        "JPEGImages/photo-1.jpg": "dog",
        "JPEGImages/photo.jpg": "cat",
        "JPEGImages/tr001.jpg": "sofa",
    }


def test_linear_and_lowshot_with_multi_label_data(trained, voc):
    """One SVM a class; AP of the scores that the same machine, trained here, gives."""
    spec = f"VOC2007:{voc}"
    with pytest.raises(UserError, match=r"class aeroplane has no images in"):
        evaluate(trained, "linear", train=spec, quiet=True)
    for name in ("cat", "dog", "sofa"):  # a data set of its own classes
        for file in (voc / "VOCdevkit" / "VOC2007" / "Annotations").iterdir():
            file.write_text(file.read_text().replace(f">{name}<", f">my {name}<"))
    result = evaluate(trained, "linear", train=spec, quiet=True)
    source, test = open_source(spec), open_source(spec, "test")
    train_x, test_x = (svm.unit(trained.features(s, "backbone")[0].numpy()) for s in (source, test))
    column = test.marks.values[:, 1]
    machine = LinearSVC(C=0.5, class_weight={True: 2, False: 1}, random_state=0, max_iter=2000)
    scores = machine.fit(train_x, source.marks.values[:, 1] == 1).decision_function(test_x)
    assert result["details"]["map"]["my dog"] == pytest.approx(svm.average_precision(scores, column == 1))
    kept = column != 0
    assert kept.sum() == 11
    ignored = svm.average_precision(scores[kept], column[kept] == 1, eleven_points=True)
    assert result["details"]["map_devkit"]["my dog"] == pytest.approx(ignored)
    few = evaluate(trained, "lowshot", train=spec, quiet=True, shots=[2], draws=2)["metrics"]
    assert few.keys() == {"map@2", "map_devkit@2"}
    for protocol in ("knn", "clustering", "semisup", "information"):
        with pytest.raises(UserError, match="may have several classes"):
            evaluate(trained, protocol, train=spec, quiet=True)


def test_places_and_imagenet_in_their_published_layouts(trained, photos, tmp_path):
    images = tmp_path / "places" / "images256"
    shutil.copytree(photos, images / "s")
    names = sorted(p.relative_to(images).as_posix() for p in images.rglob("*.png"))
    lists = tmp_path / "places" / "trainvalsplit_places205"
    lists.mkdir()
    for file, part in (("train_places205.csv", names[::2]), ("val_places205.csv", names[1::2])):
        (lists / file).write_text("".join(f"{name} {int(name[7])}\n" for name in part))
    train, test = (open_source(f"Places205:{tmp_path / 'places'}", part) for part in ("train", "test"))
    assert (len(train), len(test)) == (24, 24)
    assert set(train.labels) == {"s/slope0", "s/slope1", "s/slope2"}
    for split in ("train", "val"):
        shutil.copytree(photos, tmp_path / "imagenet" / split)
    train, test = (open_source(f"ImageNet:{tmp_path / 'imagenet'}", part) for part in ("train", "test"))
    assert set(train.labels) == set(test.labels) == {"slope0", "slope1", "slope2"}
    assert train.files[0] != test.files[0]
    result = evaluate(trained, "linear", train=f"Places205:{tmp_path / 'places'}", quiet=True, epochs=1)
    assert result["settings"]["views"] == "augmented"
    assert result["settings"]["cells"] == 2


# What is refused: one sentence, exit code 2, nothing half-written


@pytest.mark.parametrize(
    ("make", "arguments", "sentence"),
    [
        (None, ["knn", "--train", "PHOTOS/slope0"], "has no labels"),
        ("one class", ["linear", "--train", "MADE"], "has only one class, only; at least two are needed"),
        (None, ["lowshot", "--shots", "1,64"], "but --shots asks for 64; use --shots 1"),
        ("new class", ["semisup", "--test", "MADE"], "class slope9 of .* has no training images"),
        (None, ["knn", "--test", "PHOTOS"], "48 files are in both the training and the test images"),
        ("some labels", ["knn", "--train", "MADE/t.csv"], "1 images of .* have no label"),
        (None, ["knn", "--neighbours", "0"], "neighbours is 0; it must be at least 1"),
        (None, ["knn", "--neighbours", "500"], "--neighbours is 500, but there are only 38 training images"),
        (None, ["lowshot", "--shots", "[]"], "shots is empty"),
        ("ones", ["knn", "--train", "MADE"], "no class of .* has two images"),
        (None, ["linear", "--views", "upside-down"], "views is 'upside-down'; it takes auto or augmented or cached"),
        (None, ["quiz"], "invalid choice: 'quiz'"),
        (None, ["knn", "--shots", "1"], "unrecognized arguments: --shots"),
        (None, ["knn", "--train", "VOC2007:PHOTOS"], "does not have the layout of VOC"),
        (None, ["knn", "--train", "Places205:PHOTOS"], "train_places205.csv was not found in ROOT"),
        (None, ["knn", "--train", "ImageNet:PHOTOS"], "has no folder train"),
        (None, ["knn", "--name", "../x"], "is not allowed in a file name"),
    ],
)
def test_bad_input(make, arguments, sentence, trained, photos, tmp_path, capsys):
    import re

    made = tmp_path / "made"
    if make == "one class":
        shutil.copytree(photos / "slope0", made / "only")
        (made / "table.csv").write_text("path,label\n" + "".join(f"only/{i:02d}.png,only\n" for i in range(9)))
        arguments = [a.replace("MADE", "MADE/table.csv") for a in arguments]
    elif make == "ones":
        for slope in range(3):
            (made / f"slope{slope}").mkdir(parents=True)
            shutil.copy(photos / f"slope{slope}" / "00.png", made / f"slope{slope}")
    elif make == "new class":
        for slope in range(2):
            shutil.copytree(photos / f"slope{slope}", made / f"slope{slope}")
        shutil.copytree(photos / "slope2", made / "slope9")
    elif make == "some labels":
        made.mkdir()
        shutil.copytree(photos, made / "p")
        rows = [f"p/slope{s}/{i:02d}.png,slope{s}\n" for s in range(3) for i in range(8)]
        (made / "t.csv").write_text("path,label\n" + "".join(rows) + "p/slope0/09.png,\n")
    before = sorted(trained.path.rglob("*"))
    arguments = [a.replace("PHOTOS", str(photos)).replace("MADE", str(made)) for a in arguments]
    assert main(["evaluate", str(trained.path), *arguments]) == 2
    said = capsys.readouterr().err
    assert re.search(sentence, said), said
    assert said.count("\n") == 1
    assert sorted(trained.path.rglob("*")) == before


def test_an_unfinished_run_and_the_same_images_twice(trained):
    digits = np.random.default_rng(0).integers(0, 255, (30, 20, 20), dtype=np.uint8)
    one, two = open_source(digits), open_source(digits.copy())
    with pytest.raises(UserError, match="contain the same images"):
        protocols.check_apart(one, two)
    protocols.check_apart(one, open_source(255 - digits))
    (trained.path / "encoder.safetensors").unlink()
    with pytest.raises(UserError, match="is not finished; continue it with --resume"):
        evaluate(load(trained.path), "knn", quiet=True)


def test_a_log_says_how_far_it_is(monkeypatch, capsys):
    """Where there is no terminal: a line a minute, here of a clock that runs fast."""
    from protonce import progress

    clock = iter(range(0, 10_000, 25))
    monkeypatch.setattr(progress.time, "perf_counter", lambda: float(next(clock)))
    with progress.Steps().doing("encoding", 8) as seen:
        for _ in range(8):
            seen(1)
    said = capsys.readouterr().err.splitlines()
    assert said[:2] == ["encoding  37 %, about 2 min to go", "encoding  75 %, about 50 s to go"]
    assert said[-1].startswith("encoding  4 min")
