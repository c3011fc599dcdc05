"""Fine-tuning with few labels: the paper's rates, and crops by draw and seed."""

import numpy as np
import pytest
import torch

from protonce.evaluate import regression, semisup
from protonce.evaluate.protocols import evaluate


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


@pytest.mark.parametrize(
    ("sizes", "share", "words"),
    [
        ([2000, 2500], 0.01, "45 images, 1 % of the labels"),
        ([20] * 45, 0.01, "45 images, 5.0 % of the labels instead of 1 %: at least one per class"),
        ([16] * 3, 0.1, "6 images, 12.5 % of the labels instead of 10 %: rounded in each class"),
        ([1000, 3], 0.1, "101 images, 10.1 % of the labels instead of 10 %: at least one per class"),
    ],
)
def test_the_true_share_of_the_labels_is_said(sizes, share, words):
    codes = np.repeat(np.arange(len(sizes)), sizes)
    assert semisup.labels_used(codes, share, len(semisup.part_of(codes, share, seed=0, number=0))) == words


def test_the_true_share_stands_in_the_result_and_on_the_terminal(trained, others, monkeypatch, capsys):
    monkeypatch.setattr(semisup, "fine_tune", lambda encoder, *_, **__: semisup.Classifier(encoder, 3, 0).eval())
    found = evaluate(trained, "semisup", test=str(others), draws=1)
    said = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert found["settings"]["images"] == [3, 6]
    assert found["settings"]["true_shares"] == [3 / 48, 6 / 48]
    assert found["remarks"]["top1@1%"] == "3 images, 6.2 % of the labels instead of 1 %: at least one per class"
    assert "at least one" in said
