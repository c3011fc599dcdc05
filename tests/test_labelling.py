"""All images labelled from a few: the classifiers, the choice among them, confidence, doubts and files."""

import csv
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sklearn.linear_model import LogisticRegression

from protonce.cli import main
from protonce.errors import UserError
from protonce.label import classifiers
from protonce.label.answers import several_labels
from protonce.label.classifiers import NEVER, choose, folds, linear, means, nearest, temperature
from protonce.label.commands import write_labels, write_suggestions
from protonce.label.label_folders import UNSURE, folder_names
from protonce.label.labelling import predict
from protonce.label.tidy import tidy
from test_suggestion import clumps


def data(classes=4, each=6, seed=0):
    x, which = clumps([each] * classes, seed=seed, d=8)
    return x.float(), which


def test_prototypes_and_neighbours_by_hand():
    x, y = data()
    asked = F.normalize(torch.randn(5, 8, generator=torch.Generator().manual_seed(9)), dim=1)
    by_means, by_votes = means(x, y, 4, asked), nearest(x, y, 4, asked)
    for i in range(5):
        for c in range(4):
            own = [x[j] for j in range(len(x)) if int(y[j]) == c]
            centre = F.normalize(sum(own), dim=0)
            assert float(by_means[i, c]) == pytest.approx(float(asked[i] @ centre) / 0.1, rel=1e-4, abs=1e-4)
            votes = sum(math.exp(float(asked[i] @ v) / 0.05) for v in own)
            assert float(by_votes[i, c]) == pytest.approx(math.log(votes), rel=1e-4, abs=1e-4)


@pytest.mark.parametrize("classes", [2, 5])
@pytest.mark.parametrize("strength", [1.0, 100.0])
def test_softmax_regression_is_that_of_scikit_learn(classes, strength):
    x, y = data(classes)
    asked = F.normalize(torch.randn(7, 8, generator=torch.Generator().manual_seed(9)), dim=1)
    ours = linear(x, y, classes, asked, strength).softmax(dim=1)
    # Of two classes it has one vector of weights, w, in place of w/2 and -w/2: twice the penalty.
    other = LogisticRegression(C=strength * (2 if classes == 2 else 1), max_iter=10_000, tol=1e-8)
    theirs = other.fit(x.double().numpy(), y.numpy()).predict_proba(asked.double().numpy())
    np.testing.assert_allclose(ours.numpy(), theirs, atol=1e-4)


def test_fewer_images_than_dimensions_give_the_same_scores():
    """In the span of the images that are fitted, and in all dimensions."""
    draw = torch.Generator().manual_seed(4)
    x, asked = (F.normalize(torch.randn(n, 30, generator=draw), dim=1) for n in (12, 5))
    y = torch.arange(12) % 3
    model = LogisticRegression(C=10.0, max_iter=10_000, tol=1e-8).fit(x.double().numpy(), y.numpy())
    ours = linear(x, y, 3, asked, 10.0).softmax(dim=1)
    np.testing.assert_allclose(ours.numpy(), model.predict_proba(asked.double().numpy()), atol=1e-4)


def test_whichever_fold_is_held_out_every_class_is_in_the_others():
    codes = torch.tensor([0] * 23 + [1] * 2 + [2] + [3] * 5)
    fold = folds(codes, seed=0)
    assert fold[25] == NEVER
    assert (fold != NEVER).sum() == 30
    for which in set(fold.tolist()) - {NEVER}:
        assert set(codes[fold != which].tolist()) == {0, 1, 2, 3}


def test_the_classifier_that_is_right_most_often_is_used(monkeypatch):
    x, y = data(classes=3, each=8)
    guess = lambda known, codes, classes, asked: -torch.arange(3.0).expand(len(asked), 3)  # noqa: E731
    monkeypatch.setattr(classifiers, "CLASSIFIERS", {"the first class": guess, "prototypes": means})
    name, accuracies, held_out = choose(x, y, 3, seed=0)
    assert name == "prototypes"
    assert accuracies == {"the first class": pytest.approx(1 / 3), "prototypes": 1.0}
    fold = folds(y, seed=0)
    out = torch.from_numpy(fold == 4)
    torch.testing.assert_close(held_out[out], means(x[~out], y[~out], 3, x[out]))


def test_a_few_images_held_out_choose_no_classifier(monkeypatch):
    """Of 19 images the other classifier is right about all, prototypes about none; of 20 this is reason enough."""
    wrong = lambda known, codes, classes, asked: torch.eye(2)[[1]].expand(len(asked), 2)  # noqa: E731
    right = lambda known, codes, classes, asked: torch.eye(2)[[0]].expand(len(asked), 2)  # noqa: E731
    monkeypatch.setattr(classifiers, "CLASSIFIERS", {"prototypes": wrong, "other": right})
    codes = torch.tensor([0] * 20 + [1])  # the only image of class 1 is never held out
    x = torch.ones(21, 4)
    assert choose(x, codes, 2, seed=0)[:2] == ("other", {"prototypes": 0.0, "other": 1.0})
    assert choose(x[1:], codes[1:], 2, seed=0)[:2] == ("prototypes", {"prototypes": 0.0})


def test_the_temperature_gives_the_smallest_cross_entropy():
    draw = torch.Generator().manual_seed(0)
    logits = 3 * torch.randn(400, 5, generator=draw)
    shares = (logits / 2.5).softmax(dim=1)
    codes = torch.multinomial(shares, 1, generator=draw)[:, 0]
    t = temperature(logits, codes)

    def loss(t):
        log_p = (logits.double() / t).log_softmax(dim=1)
        return float(-log_p[torch.arange(400), codes].sum() - log_p.mean())

    assert all(loss(t) <= loss(t * factor) for factor in (0.9, 0.99, 1.01, 1.1))
    assert t == pytest.approx(2.5, rel=0.2)
    few = temperature(torch.eye(3) * 10, torch.arange(3))
    assert (torch.eye(3) * 10 / few).softmax(dim=1).max() < 0.99, "three that are right prove no certainty"


@pytest.mark.parametrize("each", [1, 3])
def test_all_images_from_a_few_labels(each):
    x, which = data(classes=4, each=10)
    labels = {int(i): (f"class {c}",) for c in range(4) for i in (which == c).nonzero()[:each, 0]}
    found = predict(x, labels, seed=0)
    assert found.label == [f"class {c}" for c in which.tolist()]
    assert found.calibrated == (each > 1)
    assert set(np.flatnonzero(found.given)) == set(labels)
    assert all(found.confidence[i] == 1 for i in labels)
    assert (found.confidence[~found.given] < 1).all()
    x = F.normalize(x - x.mean(dim=0), dim=1)
    for i in range(len(x)):
        others = [j for j in sorted(labels) if j != i]
        best = max(float(x[i] @ x[j]) for j in others)
        assert found.similarity[i] == pytest.approx(best, abs=1e-5)
        assert float(x[i] @ x[found.nearest[i]]) == pytest.approx(best, abs=1e-5)
    unsure = predict(3 * x + 1, labels, seed=0, min_confidence=0.999999)
    assert {label for label, given in zip(unsure.label, unsure.given, strict=True) if not given} == {""}


def test_a_wrong_label_is_doubted():
    x, which = data(classes=3, each=12)
    labels = {i: (f"class {int(which[i])}",) for i in range(36) if i % 2 == 0}
    labels[14] = ("class 0",)  # one of class 1
    found = predict(x, labels, seed=0)
    assert set(found.doubted) == {14}
    assert found.doubted[14][0] == "class 1"
    assert found.label[14] == "class 0", "what a person said stays"


def test_labels_that_are_not_enough():
    x, _ = data()
    with pytest.raises(UserError, match="all labelled images are called 'cat'; label images of another class too"):
        predict(x, {0: ("cat",), 1: ("cat",)}, seed=0)
    with pytest.raises(UserError, match="all labelled images are called 'cat'"):
        predict(x, {0: ("cat", "dog"), 1: ("cat", "dog")}, seed=0)


def test_images_may_have_several_labels():
    """Four groups that are two labels, one or both: all is found from some of each."""
    which = torch.arange(48) // 12
    x = F.one_hot(which, 8) + 0.1 * torch.randn(48, 8, generator=torch.Generator().manual_seed(0))
    truth = [("cat",), ("dog",), ("cat", "dog"), ("bird",)]
    labels = {i: truth[int(which[i])] for i in range(48) if i % 3 == 0}
    found = predict(x, labels, seed=0)
    assert found.label == ["|".join(truth[c]) for c in which.tolist()]
    assert found.classifier.startswith("linear for each label, C = ")
    assert found.accuracies[found.classifier] == 1.0
    assert found.calibrated
    assert (found.confidence[~found.given] > 0.5).all()
    assert not found.doubted
    wrong = predict(x, {**labels, 0: ("dog", "cat")}, seed=0)
    assert wrong.doubted[0][0] == "cat"
    assert wrong.label[0] == "dog|cat", "as it was given"
    once = predict(x, {0: ("cat",), 12: ("dog",), 24: ("mouse", "bird")}, seed=0)
    assert not once.calibrated, "no label is there twice"


def test_the_confidence_in_several_labels_is_the_share_that_is_right():
    """Of ten groups that overlap, one with two labels: as many images are right as expected."""
    draw = torch.Generator().manual_seed(0)
    which = torch.arange(1200) % 10
    x = F.one_hot(which, 16) + 0.45 * torch.randn(1200, 16, generator=draw)
    truth = [("a", "b") if c == 0 else (f"class {c}",) for c in which.tolist()]
    found = predict(x, {i: truth[i] for i in range(60)}, seed=0)
    rest = ~found.given
    right = np.array([ours == "|".join(own) for ours, own in zip(found.label, truth, strict=True)])[rest]
    assert 0.4 < right.mean() < 0.9, "else certainty or chance would do"
    assert found.confidence[rest].mean() == pytest.approx(right.mean(), abs=0.1)
    surer = found.confidence[rest] > np.median(found.confidence[rest])
    assert right[surer].mean() > right[~surer].mean() + 0.1


def test_logistic_regressions_are_those_of_scikit_learn():
    x, which = data(classes=3)
    given = [(("a", "b"), ("b",), ("c",))[c] for c in which.tolist()]
    answer = several_labels(x, torch.arange(len(x)), given, seed=0)
    strength = float(answer.classifier.rpartition(" ")[2])
    shares = []
    for name in "abc":
        y = [name in own for own in given]
        other = LogisticRegression(C=strength, max_iter=10_000, tol=1e-8).fit(x.double().numpy(), y)
        shares.append(other.predict_proba(x.double().numpy())[:, 1])
    ours = [[name in text.split("|") for name in "abc"] for text in answer.label]
    assert ours == (np.stack(shares, axis=1) > 0.5).tolist()


def test_folder_names_are_valid_and_different():
    names = folder_names(["Cat", "cat", "a/b", "..", "", "what?", "x" * 300, "x" * 299, "end. "])
    assert list(names.values()) == ["Cat", "cat 2", "a_b", "_", UNSURE, "what_", "x" * 200, "x" * 200 + " 2", "end"]

    assert folder_names(["sorted.csv"], ["sorted.csv"]) == {"sorted.csv": "sorted.csv 2"}


def test_from_suggestions_to_folders(trained, photos, tmp_path, capsys):
    """The two commands, as a person would use them."""
    table, out, folders = tmp_path / "suggest.csv", tmp_path / "predictions.csv", tmp_path / "sorted"
    assert main(["suggest", str(trained.path), "--budget", "6", "--out", str(table)]) == 0
    assert capsys.readouterr().out.splitlines() == [  # a command for either way to label
        f"{table} names 6 images: write a label behind each, then run",
        f"    protonce label {trained.path} {table} --out predictions.csv",
        "or label them on the page",
        f"    {(trained.path / 'report.html').resolve().as_uri()}#label",
        "and download labels.csv, then run",
        f"    protonce label {trained.path} labels.csv --out predictions.csv",
    ]
    rows = list(csv.DictReader(table.open()))
    assert len(rows) == 6
    assert all((photos / row["name"]).samefile(row["file"]) for row in rows)
    command = ["label", str(trained.path), str(table), "--out", str(out), "--folders", str(folders)]
    assert main(command) == 2
    assert f"line 2 of {table} has no label for" in capsys.readouterr().err
    assert not out.exists()
    assert not folders.exists()
    truth = dict(zip(*trained.images, strict=True))
    table.write_text("name;label\n" + "".join(f"{r['name']};{truth[r['name']]}\n" for r in rows))
    assert main(command) == 0
    said = capsys.readouterr().out
    assert "labels of 48 of 48 images, 6 of them given" in said
    found = list(csv.DictReader(out.open()))
    assert [row["name"] for row in found] == trained.images[0]
    assert {row["label"] for row in found} <= set(truth.values())
    put = sorted(path for path in folders.rglob("*") if path.is_file())
    assert len(put) == 48
    by_number = {int(path.name.partition("-")[0]): path for path in put}
    for i, row in enumerate(found):
        assert by_number[i].parent.name == row["label"]
        assert by_number[i].samefile(photos / row["name"])
    assert main(command) == 2
    assert "is there already; give a new file" in capsys.readouterr().err
    assert main([*command[:4], str(tmp_path / "other.csv"), *command[5:]]) == 2
    assert "is not empty; give a new folder" in capsys.readouterr().err
    again = write_suggestions(trained, tmp_path / "more.csv", 50, table, quiet=True)
    known = {trained.images[0].index(row["name"]) for row in rows}
    assert again == 48 - len(known.union(tidy(trained, quiet=True).copies(known)))
    assert again > 20
    assert not {row["name"] for row in csv.DictReader((tmp_path / "more.csv").open())} & {row["name"] for row in rows}


def test_the_command_says_how_several_labels_were_given(trained, tmp_path, capsys):
    table = tmp_path / "labels.csv"
    rows = [
        (name, f"{label}|photo" if i % 2 else label)
        for i, (name, label) in enumerate(zip(*trained.images, strict=True))
    ]
    table.write_text("name,label\n" + "".join(f"{name},{label}\n" for name, label in rows[::2] + rows[1::4]))
    assert main(["label", str(trained.path), str(table), "--out", str(tmp_path / "p.csv")]) == 0
    said = capsys.readouterr().out
    assert "classifier: linear for each label, C = " in said
    assert "of the labelled images that it had not seen" in said


def test_arguments_that_are_wrong(trained, tmp_path):
    with pytest.raises(UserError, match="--budget is 0; it must be 1 or more"):
        write_suggestions(trained, tmp_path / "s.csv", 0)
    with pytest.raises(UserError, match=r"the folder .* does not exist"):
        write_suggestions(trained, tmp_path / "nowhere" / "s.csv")
    with pytest.raises(UserError, match="--min-confidence is 2"):
        write_labels(trained, tmp_path / "l.csv", tmp_path / "p.csv", min_confidence=2)
    assert not list(tmp_path.iterdir())
