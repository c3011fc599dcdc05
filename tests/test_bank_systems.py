"""The systems with a memory bank, against naive loops of their papers' equations."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from conftest import make_system
from protonce import randomness
from protonce.auto import DataSize, Machine, resolve
from protonce.config import Settings, read_recipe
from protonce.context import Progress
from protonce.data.views import ImageViews
from protonce.encoder import Encoder
from protonce.errors import UserError
from protonce.kmeans import k_means
from protonce.losses import sample_candidates
from protonce.methods import localagg
from protonce.methods.base import Batch
from protonce.methods.localagg import are_close, background_neighbours, local_aggregation
from protonce.methods.pirl import sampled_nce
from protonce.methods.registry import find, part
from protonce.noise_contrast import (
    chance_level,
    log_normaliser,
    noise_contrastive_loss,
    noise_logits,
    sample_for_each,
    similarities,
)

IMAGENET = DataSize(1_281_167, 400)
GPU = Machine("cuda", bfloat16=True, faiss=True, cores=16)
N, DIM = 40, 8


def draw(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def unit(*shape, seed=0):
    return F.normalize(draw(*shape, seed=seed), dim=-1)


def encoder():
    """A tiny encoder without batch norm, for views of any size."""
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten()]
    return Encoder(nn.Sequential(*layers), 32, "linear", DIM)


def system_of(method, **values):
    return make_system(method, encoder(), size=(N, 20), dim=DIM, clusters=[4], batch_size=10, **values).train()


def batch_of(system, step=0, epoch=0, size=10):
    """Noisy views of images of four colours each, as the system declares them; four steps show every image."""
    index = (torch.arange(size) * 4 + step) % N
    colours = draw(N, 3, 2, 2, seed=99)[index]
    views = []
    for i, spec in enumerate(type(system).views(system.settings, system.options)):
        image = F.interpolate(colours, size=spec.size or 16)
        if spec.tiles:
            side = spec.size // spec.tiles
            image = torch.stack([x for row in image.split(side, 2) for x in row.split(side, 3)], dim=1)
            image = image[..., : spec.tile_size, : spec.tile_size]
        views.append(image + 0.1 * draw(*image.shape, seed=1000 * epoch + 10 * step + i))
    return Batch(tuple(views), index, Progress(epoch, step, 4, 4))


def train(system, epochs=8, start=0, state=None, lr=0.03):
    """Mean loss of each epoch of M-steps, the bank being filled in the first."""
    optimizer = torch.optim.SGD(system.parameters(), lr=lr, momentum=0.9)
    losses = []
    for epoch in range(start, start + epochs):
        total = 0.0
        for step in range(4):
            batch = batch_of(system, step, epoch)
            loss, terms = system.m_step(batch, state)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            system.after_step(batch.progress)
            total += loss.item() / 4
            assert set(terms) <= set(system.terms)
        losses.append(total)
    return losses


def naive_nce(v, own, noise, bank, tau, z):
    """Eq. 4, 6 and 7 of Wu et al., with P_n = 1/n, image by image."""
    n, total = len(bank), 0.0
    for row, i, drawn in zip(v, own, noise, strict=True):
        m = len(drawn)

        def h(j, row=row, m=m):
            p = torch.exp(bank[j] @ row / tau) / z
            return p / (p + m / n)

        total = total - torch.log(h(i)) - sum(torch.log(1 - h(j)) for j in drawn)
    return total / len(v)


def rows_of_noise(noise, own, n):
    """The noise images of each row, as lists, from each form in which they come."""
    if noise is None:
        return [[j for j in range(n) if j != i] for i in own.tolist()]
    if noise.ndim == 2:
        return noise.tolist()
    listed = noise.tolist()
    return [[j for j in listed if j != i] if i in listed else listed[:-1] for i in own.tolist()]


@pytest.mark.parametrize("kind", ["for each", "shared", "all"])
def test_nce_is_the_papers_by_a_loop_forward_and_gradient(kind):
    own, bank, tau = torch.tensor([0, 7, 39, 12]), unit(N, DIM, seed=1), 0.2
    noise = {
        "for each": sample_for_each(N, 6, 0, 0, own),
        "shared": torch.tensor([7, 3, 25, 30, 12, 1]),
        "all": None,
    }[kind]
    v = unit(4, DIM, seed=2).double().requires_grad_()
    again = v.detach().clone().requires_grad_()
    bank = bank.double()
    logits = noise_logits(v, bank, own, noise, tau)
    rows = rows_of_noise(noise, own, N)
    m = {"for each": 6, "shared": 5, "all": N - 1}[kind]
    assert [len(row) for row in rows] == [m] * 4

    # Eq. 8, row by row
    estimates = [N / m * sum(math.exp(bank[j] @ x / tau) for j in row) for x, row in zip(v.detach(), rows, strict=True)]
    log_z = log_normaliser(logits, N).detach()
    torch.testing.assert_close(log_z.exp(), torch.tensor(estimates, dtype=torch.double))

    z = torch.tensor(estimates).mean()
    loss = noise_contrastive_loss(logits, z.log().double(), N)
    expected = naive_nce(again, own.tolist(), rows, bank, tau, z.double())
    torch.testing.assert_close(loss, expected)
    loss.backward()
    expected.backward()
    torch.testing.assert_close(v.grad, again.grad)
    alike = noise_contrastive_loss(
        torch.zeros_like(logits).masked_fill(logits == -torch.inf, -torch.inf), torch.tensor(math.log(N)), N
    )
    assert float(chance_level(logits)) == pytest.approx(float(alike), rel=1e-5)
    assert float(alike) == pytest.approx(math.log(m + 1) - m * math.log(m / (m + 1)), rel=1e-5)


def test_noise_is_uniform_and_depends_on_the_image_alone():
    index = torch.arange(200)
    drawn = sample_for_each(50, 100, 3, 1, index)
    counts = drawn.flatten().bincount(minlength=50)
    assert drawn.shape == (200, 100)
    assert counts.min() > 300
    assert counts.max() < 500  # 400 on average, a standard deviation of 20
    assert torch.equal(sample_for_each(50, 100, 3, 1, index[7:9]), drawn[7:9])
    assert not torch.equal(sample_for_each(50, 100, 3, 2, index), drawn)


def test_similarities_are_the_same_gathered_or_not():
    v, bank = unit(5, DIM), unit(N, DIM, seed=1)
    which = sample_for_each(N, 30, 0, 0, torch.arange(5))
    for k in (1, 9, 10, 11, 30):
        expected = torch.stack([bank[row] @ x for x, row in zip(v, which[:, :k], strict=True)])
        torch.testing.assert_close(similarities(v, bank, which[:, :k]), expected)


@pytest.mark.parametrize(
    "options",
    [
        {"noise": "others", "negatives": 6, "softmax": "nce"},
        {"noise": "published", "softmax": "nce"},
        {"softmax": "full"},
    ],
)
def test_instdisc_is_its_paper(options):
    """Two steps: the loss, its gradient, Z of the first batch, the proximal term, and the bank's update by hand."""
    system = system_of("instdisc", tau=0.3, proximal=2.0, **options)
    bank, tau, z = system.bank.features.clone().double(), 0.3, None
    for step in range(2):
        batch = batch_of(system, step)
        own = batch.index
        system.zero_grad()
        loss, terms = system.m_step(batch, None)
        loss.backward()
        gradient = system.query.head.weight.grad.clone()

        system.zero_grad()
        v = system.query(batch.views[0]).double()
        if options["softmax"] == "full":
            expected = F.cross_entropy(v @ bank.T / tau, own)
            assert float(terms["instance"].chance) == pytest.approx(math.log(N))
        else:
            if options["noise"] == "others":
                noise = sample_candidates(N, 6, system.context.generator("noise", batch.progress))
            else:
                noise = sample_for_each(N, N - 1, 0, 0, own)
            rows = rows_of_noise(noise, own, N)
            if z is None:
                z = torch.stack([N * (bank[row] @ x / tau).exp().mean() for x, row in zip(v, rows, strict=True)])
                z = z.mean().detach()
            expected = naive_nce(v, own.tolist(), rows, bank, tau, z)
            assert float(system.log_z) == pytest.approx(float(z.log()), rel=1e-5)
        torch.testing.assert_close(terms["instance"].loss.double(), expected, rtol=1e-4, atol=1e-5)
        distance = sum((x - bank[i]).square().sum() for x, i in zip(v, own, strict=True)) / len(v)
        expected = expected + 2.0 * distance
        torch.testing.assert_close(loss.double(), expected, rtol=1e-4, atol=1e-5)
        expected.backward()
        torch.testing.assert_close(gradient, system.query.head.weight.grad, rtol=1e-3, atol=1e-5)
        nearest = (v @ bank.T).argmax(dim=1) == own if options["softmax"] == "full" else None
        if nearest is not None:
            assert float(terms["instance"].accuracy) == pytest.approx(float(nearest.float().mean()))

        torch.testing.assert_close(system.bank.features.double(), bank, msg="it changes after the step")
        system.after_step(batch.progress)
        for x, i in zip(v.detach(), own, strict=True):
            mixed = 0.5 * bank[i] + 0.5 * x
            bank[i] = mixed / mixed.norm()
        torch.testing.assert_close(system.bank.features.double(), bank, rtol=1e-5, atol=1e-6)


def test_an_image_that_is_drawn_as_its_own_noise_does_not_count_against_accuracy():
    system = system_of("instdisc", softmax="nce", noise="published", negatives=200)  # each image is drawn several times
    batch = batch_of(system)
    with torch.no_grad():
        system.bank.features[batch.index] = system.query(batch.views[0])
    others = [i for i in range(N) if i not in batch.index.tolist()]
    system.bank.features[others] = -system.bank.features[batch.index[0]]
    assert len({tuple(row.tolist()) for row in system.bank.features[batch.index].round(decimals=3)}) == 10
    _, terms = system.m_step(batch, None)
    assert float(terms["instance"].accuracy) == 1


@pytest.mark.parametrize(
    "options", [{"softmax": "nce"}, {"softmax": "nce", "noise": "published"}, {"softmax": "full"}, {"proximal": 30.0}]
)
def test_instdisc_learns(options):
    losses = train(system_of("instdisc", **options))
    assert losses[-1] < 0.9 * losses[1]


def naive_sampled_nce(v, own, rows, bank, tau):
    """Eq. 4 and 5 of Misra & van der Maaten, image by image."""
    total = 0.0
    for x, i, negatives in zip(v, own, rows, strict=True):
        candidates = [i, *negatives]
        h = [torch.exp(bank[j] @ x / tau) for j in candidates]
        h = [value / sum(h) for value in h]
        total = total - torch.log(h[0]) - sum(torch.log(1 - value) for value in h[1:])
    return total / len(v)


@pytest.mark.parametrize("tau", [0.1, 0.2, 5.0])
def test_pirls_nce_is_the_papers_by_a_loop_forward_and_gradient(tau):
    own, bank = torch.tensor([0, 7, 39, 12]), unit(N, DIM, seed=1).double()
    noise = torch.tensor([7, 3, 25, 30, 12, 1])
    v = unit(4, DIM, seed=2).double().requires_grad_()
    again = v.detach().clone().requires_grad_()
    loss = sampled_nce(noise_logits(v, bank, own, noise, tau))
    expected = naive_sampled_nce(again, own.tolist(), rows_of_noise(noise, own, N), bank, tau)
    torch.testing.assert_close(loss, expected, rtol=1e-4, atol=1e-6)  # the loop loses digits where h is near 1
    loss.backward()
    expected.backward()
    torch.testing.assert_close(v.grad, again.grad, rtol=1e-3, atol=1e-5)


def test_pirls_nce_is_finite_where_a_negative_takes_all():
    """A logit 200 above all others: h = 1 in float32, and -log(1 - h) = 200 - log 2."""
    logits = torch.tensor([[0.0, 200.0, 0.0, -torch.inf]], requires_grad=True)
    loss = sampled_nce(logits)
    loss.backward()
    assert loss.item() == pytest.approx(200 + 200 - math.log(2))
    torch.testing.assert_close(logits.grad, torch.tensor([[-1.5, 2.0, -0.5, 0.0]]))
    alike = sampled_nce(torch.tensor([[1.0, 1.0, 1.0, -torch.inf]]))
    assert alike.item() == pytest.approx(math.log(3) + 2 * math.log(3 / 2))


@pytest.mark.parametrize(
    "options",
    [
        {"negatives": 6},
        {"noise": "published", "negatives": 30},
        {"noise": "published", "normaliser": "constant", "negatives": 6},
    ],
)
def test_pirl_is_its_paper(options):
    """Eq. 6 by loops: both branches, the order of the patches, and the bank, which holds the image's features."""
    system = system_of("pirl", tau=0.3, jigsaw_weight=0.3, **options)
    bank, batch = system.bank.features.clone().double(), batch_of(system)
    loss, terms = system.m_step(batch, None)
    loss.backward()
    gradient = system.jigsaw_head.weight.grad.clone()
    system.zero_grad()

    own = batch.index
    image, patches = batch.views
    assert patches.shape[1:] == (9, 3, 5, 5)
    rows = []
    for i, nine in zip(own.tolist(), patches, strict=True):
        order = randomness.uniform(0, "jigsaw order", 0, np.array([i]), 9)[0].argsort()
        each = [system.patch_head(system.query.features(nine[j][None]))[0] for j in order]
        rows.append(system.jigsaw_head(torch.cat(each)))
    g = F.normalize(torch.stack(rows), dim=1).double()
    f = system.query(image).double()
    if options["negatives"] == 6 and "noise" not in options:
        noise = sample_candidates(N, 6, system.context.generator("noise", batch.progress))
    else:
        noise = sample_for_each(N, options["negatives"], 0, 0, own)
    drawn = rows_of_noise(noise, own, N)
    if "normaliser" in options:
        z = torch.stack([N * (bank[row] @ x / 0.3).exp().mean() for x, row in zip(f, drawn, strict=True)])
        z = z.mean().detach()
        of_f, of_g = (naive_nce(v, own.tolist(), drawn, bank, 0.3, z) for v in (f, g))
    else:
        drawn = [[j for j in row if j != i] for i, row in zip(own.tolist(), drawn, strict=True)]
        of_f, of_g = (naive_sampled_nce(v, own.tolist(), drawn, bank, 0.3) for v in (f, g))
    torch.testing.assert_close(terms["instance"].loss.double(), of_f, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(terms["jigsaw"].loss.double(), of_g, rtol=1e-4, atol=1e-5)
    expected = 0.3 * of_g + 0.7 * of_f
    torch.testing.assert_close(loss.double(), expected, rtol=1e-4, atol=1e-5)
    expected.backward()
    torch.testing.assert_close(gradient, system.jigsaw_head.weight.grad, rtol=1e-3, atol=1e-5)

    system.after_step(batch.progress)
    for x, i in zip(f.detach(), own, strict=True):
        mixed = 0.5 * bank[i] + 0.5 * x
        bank[i] = mixed / mixed.norm()
    torch.testing.assert_close(system.bank.features.double(), bank, rtol=1e-5, atol=1e-6)


def test_pirl_learns():
    system = system_of("pirl")
    before = [head.weight.detach().clone() for head in (system.patch_head, system.jigsaw_head)]
    losses = train(system)
    assert losses[-1] < 0.9 * losses[1]
    assert all(
        not torch.equal(w, head.weight) for w, head in zip(before, (system.patch_head, system.jigsaw_head), strict=True)
    )


def test_pirl_refuses_a_backbone_of_one_image_size():
    with pytest.raises(UserError, match="vit_tiny_patch16_224 takes images of one size only; choose a convolutional"):
        system_of("pirl", backbone="vit_tiny_patch16_224")


@pytest.mark.parametrize("size", [8, 16, 32, 96, 224])
def test_patches_fit_at_any_image_size(size):
    settings = resolve(Settings(method="pirl", image_size=size), DataSize(100, 300), GPU)
    image, jigsaw = find("pirl").system.views(settings, None)
    assert image.size is None
    assert 1 <= jigsaw.tile_size <= jigsaw.size // 3
    ImageViews(settings, (image, jigsaw))
    if size == 224:
        assert (jigsaw.size, jigsaw.tile_size) == (255, 64)


def naive_local_aggregation(v, own, bank, clusters, k, tau):
    """Eq. 1 to 3 of Zhuang et al., image by image; the image itself is its nearest neighbour."""
    total = 0.0
    for x, i in zip(v, own, strict=True):
        p = torch.stack([torch.exp(bank[j] @ x / tau) for j in range(len(bank))])
        p = p / p.sum()  # eq. 1
        order = (-p.detach()).argsort().tolist()
        background = set([i, *(j for j in order if j != i)][:k])
        close = {j for g in clusters.tolist() for j in range(len(bank)) if g[j] == g[i]}
        total = total - torch.log(sum(p[j] for j in close & background) / sum(p[j] for j in background))
    return total / len(v)


@pytest.mark.parametrize("k", [1, 7, N])
def test_local_aggregation_is_the_papers_by_a_loop_forward_and_gradient(k):
    own, bank, tau = torch.tensor([0, 7, 39, 12]), unit(N, DIM, seed=1).double(), 0.2
    clusters = torch.randint(0, 6, (3, N), generator=torch.Generator().manual_seed(0))
    v = unit(4, DIM, seed=2).double().requires_grad_()
    again = v.detach().clone().requires_grad_()
    background = background_neighbours(v.detach(), bank, own, k)
    close = are_close(clusters, own, background)
    loss = local_aggregation(similarities(v, bank, background) / tau, close)
    expected = naive_local_aggregation(again, own.tolist(), bank, clusters, k, tau)
    torch.testing.assert_close(loss, expected)
    loss.backward()
    expected.backward()
    torch.testing.assert_close(v.grad, again.grad)
    whole = torch.arange(N).expand(4, N)
    for i, row in zip(own.tolist(), are_close(clusters, own, whole).tolist(), strict=True):
        union = set().union(*({j for j in range(N) if g[j] == g[i]} for g in clusters.tolist()))
        assert {j for j in range(N) if row[j]} == union, "the union of the clusterings"


def test_background_neighbours_do_not_depend_on_rounding_nor_on_blocks(monkeypatch):
    """Directions that occur many times, in lengths that differ by rounding: the first in the bank are taken."""
    base = unit(5, DIM, seed=3)
    which = torch.randint(0, 5, (N,), generator=torch.Generator().manual_seed(1))
    bank = base[which] * (1 + 1e-7 * draw(N, 1, seed=4))
    v, own = unit(6, DIM, seed=5), torch.arange(6) * 6
    whole = {k: background_neighbours(v, bank, own, k).sort(dim=1).values for k in (1, 3, 9, 20, N - 1, N)}
    monkeypatch.setattr(localagg, "BLOCK", 2 * N)
    for k, found in whole.items():
        assert torch.equal(background_neighbours(v, bank, own, k).sort(dim=1).values, found)
        for x, i, row in zip(v, own.tolist(), found.tolist(), strict=True):
            rank = [round(float(base[c] @ x), 5) for c in which.tolist()]
            assert row == sorted(sorted(range(N), key=lambda j, rank=rank, i=i: (j != i, -rank[j], j))[:k])


@pytest.mark.parametrize("engine", ["faiss", "torch"])
def test_the_e_step_clusters_the_bank_several_times_and_reads_no_images(engine):
    system = system_of("localagg", warmup_epochs=2, clusterings=3, close_clusters=5, kmeans_engine=engine)

    def features():
        raise AssertionError("no pass over the data")

    assert system.e_step(1, features) is None
    clusters = system.e_step(2, features)
    assert clusters.shape == (3, N)
    generator = randomness.generator(0, "close clusters", 2)
    for row in clusters:
        found = k_means(system.bank.features, 5, generator=generator, engine=engine)
        assert torch.equal(row, found.assignment.int())
    assert len({tuple(row.tolist()) for row in clusters}) > 1
    assert not torch.equal(system.e_step(3, features), clusters)


def test_localagg_is_its_paper_after_warm_up_and_instdisc_in_it():
    system = system_of("localagg", tau=0.3, background=9, clusterings=2, close_clusters=6, warmup_epochs=3)
    bank, batch = system.bank.features.clone().double(), batch_of(system)
    _, terms = system.m_step(batch, None)
    v = system.query(batch.views[0]).double()
    torch.testing.assert_close(terms["instance"].loss.double(), F.cross_entropy(v @ bank.T / 0.3, batch.index))

    state = system.e_step(3, None)
    loss, terms = system.m_step(batch, state)
    loss.backward()
    gradient = system.query.head.weight.grad.clone()
    system.zero_grad()
    v = system.query(batch.views[0]).double()
    expected = naive_local_aggregation(v, batch.index.tolist(), bank, state, 9, 0.3)
    torch.testing.assert_close(loss.double(), expected, rtol=1e-4, atol=1e-5)
    expected.backward()
    torch.testing.assert_close(gradient, system.query.head.weight.grad, rtol=1e-3, atol=1e-5)
    close = are_close(state, batch.index, background_neighbours(v.float(), bank.float(), batch.index, 9)).sum(dim=1)
    assert float(terms["aggregation"].chance) == pytest.approx(sum(math.log(9 / int(c)) for c in close) / len(close))
    system.after_step(batch.progress)
    mixed = F.normalize(0.5 * bank[batch.index] + 0.5 * v.detach(), dim=1)
    torch.testing.assert_close(system.bank.features[batch.index].double(), mixed, rtol=1e-5, atol=1e-6)


def test_localagg_learns():
    system = system_of("localagg", close_clusters=8, warmup_epochs=4)
    warm = train(system, epochs=4)
    assert warm[-1] < 0.9 * warm[1]
    losses = train(system, start=4, state=system.e_step(4, None))
    assert losses[-1] < 0.9 * losses[0]


@pytest.mark.parametrize("name", ["instdisc", "localagg", "pirl"])
def test_auto_is_the_published_value_at_imagenets_size(name):
    recipe, entry = read_recipe(name), find(name)
    common, options = part(recipe, entry, name)
    settings = resolve(Settings(**common), IMAGENET, GPU)
    chosen = entry.options().resolve(settings, IMAGENET.n)
    given = entry.options(**options)
    for option, rules in (
        (field, entry.options.__dataclass_fields__[field].metadata) for field in entry.options.names()
    ):
        assert option in options, f"{option} has no published value in the recipe"
        if rules["auto"]:
            assert getattr(chosen, option) == getattr(given, option), option
    for n in (8, 20, 500, 3000):
        small = resolve(Settings(method=name, epochs=30), DataSize(n, 32), Machine("cpu", False, True, 2))
        resolved = entry.options().resolve(small, n)
        trials = resolved.trials(small, n)
        assert len(trials) == 6
        assert trials[0] == {}
        for trial in trials:
            values, own = part(trial, entry, "the trial")
            Settings(**values)
            entry.options(**own)
        assert resolved.negatives <= n - 1
