"""Adapting a pretrained encoder: what stays and what moves, where the head starts, and the average with the start."""

import copy
import itertools

import numpy as np
import pytest
import timm
import torch
from sklearn.decomposition import PCA
from torch import nn

import protonce
from conftest import SMALL, make_system, train_until
from processes import command, run_on_ranks
from protonce.adaptation import Start, freeze, principal_components, stages
from protonce.encoder import build
from protonce.errors import UserError
from protonce.features import extract
from steps import batch_of, fit
from test_encoder import settings, views

ADAPT = {**SMALL, "head": "linear", "lr": 0.1, "epochs": 2, "quiet": True, "warmup_epochs": 0}


def small(**values):
    return build(settings(**{"backbone": "resnet10t", "width": 4, "head": "linear", **values}))


@pytest.mark.parametrize(
    ("name", "first", "count"),
    [
        ("resnet18", "layer4.0.conv1.weight", 5),
        ("tf_efficientnet_lite0", "blocks.6.0.conv_pw.weight", 8),
        ("vit_tiny_patch16_224", "blocks.11.norm1.weight", 13),
        ("convnext_atto", "stages.3.downsample.0.weight", 5),
        ("swin_tiny_patch4_window7_224", "layers.3.downsample.norm.weight", 5),
    ],
)
def test_the_last_stage_includes_the_norm_after_it(name, first, count):
    with torch.device("meta"):
        backbone = timm.create_model(name, num_classes=0)
    found = stages(backbone)
    assert len(found) == count
    assert found[-1][0] == first
    assert [*itertools.chain(*found)] == [name for name, _ in backbone.named_parameters()], "each once, in order"


def test_a_backbone_without_stages():
    encoder = small()
    with pytest.raises(UserError, match="trained_stages is 6, but the backbone has 5"):
        freeze(encoder, 6, "batch")
    encoder.backbone = nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, 32))
    with pytest.raises(UserError, match="needs a backbone of timm"):
        freeze(encoder, 1, "batch")


def test_frozen_batch_norm_is_that_of_eval_mode_whatever_the_batch():
    encoder = small()
    for norm in (m for m in encoder.modules() if isinstance(m, nn.BatchNorm2d)):
        norm.running_mean.normal_()
        norm.running_var.uniform_(0.5, 2)
    x, expected = views(), encoder.eval()(views())
    before = copy.deepcopy(encoder.state_dict())
    freeze(encoder, 0, "frozen")
    encoder.train()
    encoder.splits = 4
    torch.testing.assert_close(encoder(x), expected)
    torch.testing.assert_close(encoder(x[:3]), expected[:3])
    assert all(torch.equal(value, before[name]) for name, value in encoder.state_dict().items())
    encoder.frozen_norms = False
    assert not torch.allclose(encoder.train()(x), expected, atol=1e-3), "else the test shows nothing"


@pytest.mark.parametrize("method", ["pcl", "moco", "simclr", "byol"])
def test_what_is_frozen_stays_and_all_else_moves(method):
    encoder = small(dim=16, image_size=16, block_init="torchvision")  # timm's zeros let little through at first
    freeze(encoder, 1, "frozen")
    fast = {} if method == "simclr" else {"twin_momentum": 0.5}  # a slow twin's steps are lost in rounding
    system = make_system(method, encoder, batch_norm="frozen", trained_stages=1, **fast)
    before = {name: value.clone() for name, value in system.query.state_dict().items()}
    fit(system, [batch_of(step=0), batch_of(step=1, seed=1)], lr=0.5)
    after = system.query.state_dict()
    moved = {name for name, value in after.items() if not torch.equal(value, before[name])}
    last = {f"backbone.{name}" for name in stages(encoder.backbone)[-1]}
    assert moved == last | {"head.weight", "head.bias"}, "neither earlier stages nor running statistics"
    if system.momentum is not None:
        twin = system.momentum.state_dict()
        followed = {name for name, value in twin.items() if not torch.equal(value, before[name])}
        assert followed == moved


def test_principal_components_are_scikit_learns():
    x = torch.randn(60, 6, generator=torch.Generator().manual_seed(0)) * torch.tensor([5.0, 4, 3, 2, 1, 0.5]) + 7
    components, mean = principal_components(x, 4)
    pca = PCA(4).fit(x.double().numpy())
    np.testing.assert_allclose(mean, pca.mean_, rtol=1e-5)
    cosines = components.numpy() @ pca.components_.T
    np.testing.assert_allclose(np.abs(cosines), np.eye(4), atol=1e-5)
    np.testing.assert_allclose(components.abs().amax(dim=1), components.amax(dim=1), err_msg="the sign is settled")


def test_fewer_images_than_dimensions_have_fewer_components():
    x = torch.randn(5, 8, generator=torch.Generator().manual_seed(0))
    components, mean = principal_components(x, 6)
    assert (components.norm(dim=1) > 0.5).tolist() == [True] * 4 + [False] * 2
    torch.testing.assert_close(((x - mean) @ components.T).norm(dim=1), (x - mean).norm(dim=1), msg="nothing is lost")


def test_a_head_from_pca(photos, tmp_path):
    """The embeddings of the first E-step are the normalised principal components of the pooled features."""
    options = {**ADAPT, "head_init": "pca", "lr": 1e-8, "epochs": 1, "batch_norm": "frozen"}
    run = protonce.train(photos, tmp_path / "run", **options)
    query, _ = run.encoders
    features = extract(query.features, run.loader(run.source()))
    scores = torch.from_numpy(PCA(run.settings.dim).fit_transform(features.double().numpy()))
    found = extract(query, run.loader(run.source())).double()
    expected = nn.functional.normalize(scores, dim=1)
    torch.testing.assert_close((found * expected).abs(), expected.square(), atol=1e-4, rtol=0)


def test_a_head_that_pca_cannot_start(photos, tmp_path):
    with pytest.raises(UserError, match="set head to linear"):
        protonce.train(photos, tmp_path / "run", **{**ADAPT, "head": "mlp", "head_init": "pca"})
    with pytest.raises(UserError, match="head_init pca gives at most 32 dimensions here; set dim to that or less"):
        protonce.train(photos, tmp_path / "run", **{**ADAPT, "head_init": "pca", "dim": 33})
    assert not (tmp_path / "run").exists()


def test_the_average_with_the_start_is_a_straight_line(photos, tmp_path, trained):
    """Halfway between what it starts from and where training without it ends, in both encoders."""
    start = trained.encoders[0].state_dict()
    options = {**ADAPT, "head": trained.settings.head, "init": str(trained.path)}
    ended = protonce.train(photos, tmp_path / "ended", **options)
    found = protonce.train(photos, tmp_path / "found", **options, start_share=0.25)
    for ours, theirs in zip(found.encoders, ended.encoders, strict=True):
        for name, value in ours.state_dict().items():
            if value.is_floating_point():
                expected = 0.25 * start[name] + 0.75 * theirs.state_dict()[name]
                torch.testing.assert_close(value, expected, atol=1e-6, rtol=1e-5)
    assert any(not torch.equal(v, start[n]) for n, v in ended.encoders[0].state_dict().items())
    v_ = extract(found.encoders[1], found.loader(found.source()))
    c = found.prototypes[-1]
    members = torch.zeros(len(c.centroids), v_.shape[1]).index_add_(0, c.assignment.cpu(), v_)
    torch.testing.assert_close(c.centroids, nn.functional.normalize(members, dim=1), msg="those of the average")


def test_integers_of_the_start_stay():
    encoder = small()
    start = Start(encoder, 0.5)
    for norm in (m for m in encoder.modules() if isinstance(m, nn.BatchNorm2d)):
        norm.num_batches_tracked += 3
    start.average_into(encoder)
    assert encoder.backbone.bn1.num_batches_tracked == 3


@pytest.mark.parametrize("stop", [(1, 2), (2, None)])
def test_adaptation_is_resumed_to_the_byte(photos, tmp_path, monkeypatch, trained, stop):
    """In the second case all epochs are done, but not the average."""
    options = {**ADAPT, "init": str(trained.path), "head_init": "pca", "start_share": 0.5, "trained_stages": 1}
    options |= {"batch_norm": "frozen"}
    whole = protonce.train(photos, tmp_path / "whole", **options)
    train_until(stop, monkeypatch, photos, tmp_path / "run", options)
    run = protonce.train(photos, tmp_path / "run", resume=True, quiet=True)
    for name in ("encoder.safetensors", "prototypes.npz"):
        assert (run.path / name).read_bytes() == (whole.path / name).read_bytes()


def test_two_ranks_adapt_as_one_does(photos, tmp_path, trained):
    """Frozen batch norm has no statistics of its own on a rank, so nothing but rounding differs."""
    options = {**SMALL, "recipe": "adapt", "init": str(trained.path), "trained_stages": 1, "epochs": 2}
    words = [f"--{name.replace('_', '-')}={str(value).strip('[]').replace(' ', '')}" for name, value in options.items()]
    run_on_ranks(command, "train", photos, "--out", tmp_path / "two", "--no-report", *words)
    two = protonce.load(tmp_path / "two")
    one = protonce.train(photos, tmp_path / "one", quiet=True, **options)
    for ours, theirs in zip(two.encoders, one.encoders, strict=True):
        torch.testing.assert_close(ours.state_dict(), theirs.state_dict(), atol=1e-4, rtol=1e-3)
    assert any(not torch.equal(v, trained.encoders[0].state_dict()[n]) for n, v in two.encoders[0].state_dict().items())
