"""Systems that classify: what all of them have in common, from the loss to a resumed run."""

import pytest
import torch
import torch.nn.functional as F

from conftest import SMALL, make_system
from protonce.auto import DataSize, Machine, resolve
from protonce.config import Settings, read_recipe
from protonce.context import Progress
from protonce.methods.base import Batch
from protonce.methods.pretext import class_term, right
from protonce.methods.registry import SYSTEMS, find, part

IMAGENET = DataSize(1_281_167, 400)
SETTINGS = {**SMALL, "epochs": 3, "batch_size": 15, "quiet": True}
OPTIONS = {
    "rotation": {},
    "deepcluster": {"k": 5, "reassign": 2},
    "supervised": {},
    "jigsaw": {"permutations": 8, "tile_dim": 6},
    "selflabel": {"k": 4, "heads": 2, "optimizations": 2},
}  # of each system
SEVEN = 7  # images of a step below


class Given:
    """Features of all images, as an E-step gets them."""

    def __init__(self, system):
        self.pooled = torch.randn(system.n, system.query.feature_dim, generator=torch.Generator().manual_seed(9))

    def backbone(self):
        return self.pooled


def unknown_views(system, seed=0):
    """Noise of the shapes that the views of a system have, (7, ...) each."""
    generator = torch.Generator().manual_seed(seed)
    specs = system.views(system.settings, system.options)
    shapes = [(s.tiles**2, 3, 8, 8) if s.tiles else (3, 16, 16) for s in specs]
    return tuple(torch.randn(SEVEN, *shape, generator=generator) for shape in shapes)


def test_the_loss_is_cross_entropy_and_ties_are_wrong():
    generator = torch.Generator().manual_seed(0)
    scores, labels = torch.randn(9, 5, generator=generator), torch.arange(9) % 5
    scores.requires_grad_()
    term = class_term(scores, labels)
    (gradient,) = torch.autograd.grad(term.loss, scores)
    shares = scores.detach().softmax(dim=1)
    by_hand = -sum(float(shares[i, labels[i]].log()) for i in range(9)) / 9
    assert term.loss.item() == pytest.approx(by_hand)
    torch.testing.assert_close(gradient, (shares - F.one_hot(labels, 5)) / 9)
    assert term.chance == pytest.approx(float(F.cross_entropy(torch.zeros(9, 5), labels)))
    assert float(term.accuracy) == pytest.approx(sum(int(scores[i].argmax()) == labels[i] for i in range(9)) / 9)
    assert not right(torch.zeros(4, 3), torch.arange(4) % 3).any(), "a guess is not right"


@pytest.mark.parametrize("method", OPTIONS)
def test_a_few_steps_lower_the_loss_and_the_head_stays(method):
    """The same seven images again and again: backbone and classifier learn them, the projection head is not touched."""
    torch.manual_seed(0)
    system = make_system(method, bn_splits=1, batch_size=SEVEN, classes=3, **OPTIONS[method]).train()
    before = {name: p.detach().clone() for name, p in system.named_parameters()}
    optimizer = torch.optim.SGD(system.parameter_groups(), lr=0.1, momentum=0.9)
    views = unknown_views(system)
    state = system.e_step(0, Given(system))
    batch = Batch(views, torch.arange(SEVEN), Progress(0, 0, 3, 3), torch.arange(SEVEN) % 3)
    losses = []
    for _ in range(16):
        loss, terms = system.m_step(batch, state)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.8 * losses[0]
    assert tuple(terms) == system.terms
    moved = {name for name, p in system.named_parameters() if not torch.equal(p, before[name])}
    assert moved == {name for name in before if not name.startswith("query.head.")}


@pytest.mark.parametrize("method", OPTIONS)
def test_auto_at_imagenets_size_is_the_recipe(method):
    """Options that a recipe leaves to `auto` do not exist, and `auto` chooses what it says."""
    recipe, entry = read_recipe(method), find(method)
    common, options = part(recipe, entry, "the test")
    settings = resolve(Settings(**common), IMAGENET, Machine("cuda", bfloat16=True, faiss=True, cores=16))
    auto = entry.options().resolve(settings, IMAGENET.n)
    assert {name: getattr(auto, name) for name in entry.options.names()} == options
    assert settings.backbone == "resnet50"


@pytest.mark.parametrize("method", OPTIONS)
@pytest.mark.parametrize("n", [500, 3000, IMAGENET.n])
def test_six_trials_to_tune_it_by(method, n):
    entry = SYSTEMS[method]
    settings = resolve(Settings(method=method), DataSize(n, 64), Machine("cpu", bfloat16=False, faiss=True, cores=1))
    options = entry.options().resolve(settings, n)
    trials = options.trials(settings, n)
    assert len(trials) == 6
    assert trials[0] == {}
    assert len({str(sorted(trial.items())) for trial in trials}) == 6
    for trial in trials:
        common, own = part(trial, entry, "the test")
        Settings(**common)
        entry.options(**own)
