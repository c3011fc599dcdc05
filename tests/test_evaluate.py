"""Evaluations against scikit-learn and loops, and `protonce evaluate` on a run."""

import json
import math
import shutil

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sklearn.cluster import KMeans
from sklearn.metrics import adjusted_mutual_info_score
from sklearn.neighbors import KNeighborsClassifier

from pages import Text
from protonce.cli import main
from protonce.compare.leads import lead
from protonce.errors import UserError
from protonce.evaluate.clustering import ami
from protonce.evaluate.knn import knn_accuracy, vote
from protonce.evaluate.protocols import evaluate
from protonce.importing import import_encoder
from protonce.run import load


def labelled(n, seed, classes=4, spread=1.2):
    centres = np.random.default_rng(0).normal(size=(classes, 8))
    rng = np.random.default_rng(seed)
    labels = np.arange(n) % classes
    points = centres[labels] + spread * rng.normal(size=(n, 8))
    return torch.tensor(points, dtype=torch.float32), [f"c{label}" for label in labels]


@pytest.mark.parametrize("k", [1, 5, 20, 500])
def test_knn_is_scikit_learns_with_the_papers_weights(k):
    train, train_labels = labelled(200, 1)
    test, test_labels = labelled(90, 2)
    theirs = KNeighborsClassifier(min(k, 200), metric="cosine", weights=lambda distance: np.exp(-distance / 0.1))
    expected = theirs.fit(train.numpy(), train_labels).score(test.numpy(), test_labels)
    assert knn_accuracy(train, train_labels, test, test_labels, k=k, tau=0.1) == pytest.approx(expected)
    assert 0.3 < expected < 0.99


def test_knn_by_hand():
    """One near neighbour outweighs two far ones where e^(cos/τ) says so, and not where τ is large."""
    train = F.normalize(torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.6, -0.8]]), dim=1)
    test = torch.tensor([[3.0, 0.0]])
    assert math.exp(1 / 0.1) > 2 * math.exp(0.6 / 0.1)
    assert knn_accuracy(train, ["a", "b", "b"], test, ["a"], k=3, tau=0.1) == 1
    assert math.exp(1 / 2.0) < 2 * math.exp(0.6 / 2.0)
    assert knn_accuracy(train, ["a", "b", "b"], test, ["a"], k=3, tau=2.0) == 0


def test_votes_of_a_small_temperature_do_not_vanish():
    """e^(-0.55 / 0.005) is 0 in float32; what counts is how votes compare."""
    similarity = torch.tensor([[0.45, 0.449, 0.448]])
    assert vote(similarity, torch.tensor([[2, 1, 1]]), 3, tau=0.0005).item() == 2
    assert vote(similarity, torch.tensor([[2, 1, 1]]), 3, tau=0.005).item() == 1


def test_a_label_without_training_images_counts_as_wrong():
    train, labels = labelled(50, 1)
    assert knn_accuracy(train, labels, train, ["new"] * 50) == 0


def test_ami_is_scikit_learns():
    points, labels = labelled(300, 1, spread=0.7)
    unit = F.normalize(points, dim=1).numpy()
    expected = np.mean(
        [adjusted_mutual_info_score(labels, KMeans(4, n_init=1, random_state=s).fit(unit).labels_) for s in range(5)]
    )
    assert ami(points, labels) == pytest.approx(expected, abs=0.08)
    shuffled = list(np.random.default_rng(0).permutation(labels))
    assert ami(points, shuffled) == pytest.approx(0, abs=0.03)


def test_evaluate_saves_its_result(trained, capsys):
    result = evaluate(trained, "knn", name="again")
    kept = json.loads((trained.path / "evaluations" / "knn-again.json").read_text())
    assert kept == result
    assert kept.keys() == {"protocol", "metrics", "settings", "features", "chance", "data", "key"}
    assert kept["data"]["test"]["images"] == 10
    assert "random fifth" in kept["data"]["split"]
    assert "accuracy" in capsys.readouterr().out


def test_evaluate_needs_labels_and_separate_test_files(trained, photos, tmp_path):
    with pytest.raises(UserError, match="no labels"):
        evaluate(trained, "knn", test=str(photos / "slope0"), train=str(photos / "slope1"))
    with pytest.raises(UserError, match="16 files are in both the training and the test images"):
        evaluate(trained, "knn", test=str(photos / "slope0"))
    other = tmp_path / "other"
    shutil.copytree(photos, other / "deeper")
    (other / "else").mkdir()
    shutil.copy(photos / "slope0" / "00.png", other / "else")
    with pytest.raises(UserError, match="have no label in common"):
        evaluate(trained, "knn", test=str(other))
    with pytest.raises(UserError, match="unknown protocol 'quiz'"):
        evaluate(trained, "quiz")
    with pytest.raises(UserError, match="not a run folder"):
        load(tmp_path)


@pytest.mark.parametrize(
    ("differences", "leads"),
    [
        ([0.02, 0.03, 0.01, 0.02, 0.02], True),
        ([0.02, 0.03, -0.001, 0.02, 0.02], True),  # four of five
        ([0.05, 0.05, -0.001, -0.001, 0.05], False),  # three of five
        ([0.01, 0.001, 0.001, 0.001, 0.001], False),  # mean 0.0028 below the deviation 0.0040
        ([0.02, 0.02, 0.02, 0.02], False),  # four seeds are too few
    ],
)
def test_lead_follows_its_definition(differences, leads):
    found = lead(differences)
    assert found.leads is leads
    assert found.mean == pytest.approx(np.mean(differences))
    assert found.std == pytest.approx(np.std(differences, ddof=1))
    assert (found.positive, found.seeds) == (sum(d > 0 for d in differences), len(differences))


def test_chance_and_random_weights_stand_beside_a_score(quick_page, trained, others, tmp_path, capsys):
    """Chance by hand; random weights by importing them and evaluating that run."""
    found = trained.evaluate("knn", test=others)
    assert found["chance"] == {"accuracy": 1 / 3, "momentum_accuracy": 1 / 3}
    untrained, _ = import_encoder("untrained", tmp_path / "untrained", like=trained, quiet=True)
    same = evaluate(untrained, "knn", train=trained.source(), test=str(others), quiet=True)["metrics"]
    assert found["untrained"] == same
    assert "untrained" not in trained.evaluate("lowshot", test=others, shots=[1], draws=2)
    assert main(["evaluate", str(trained.path), "clustering", "--test", str(others)]) == 0
    shown = capsys.readouterr().out
    assert "chance" in shown
    assert "untrained" in shown
    result = trained.evaluations["clustering"]
    assert result["chance"]["ami"] == 0
    assert result["untrained"]["ami"] == pytest.approx(
        evaluate(untrained, "clustering", test=str(others), quiet=True)["metrics"]["ami"]["mean"]
    )
    page = Text(trained.report()).text
    assert "valuechanceuntrainedtested on" in page
