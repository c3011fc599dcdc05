"""The encoder: timm's backbones, the small stem, sub-batch norm, and the twin."""

import pytest
import timm
import torch
import torchvision
from torch import nn

from protonce.auto import DataSize, Machine, resolve
from protonce.config import Resolved, Settings
from protonce.devices import autocast
from protonce.encoder import Encoder, build
from protonce.errors import UserError

BLOCKS = ("timm", "torchvision")
LAST = {"resnet18": "bn2", "resnet50": "bn3"}  # norm of a block
CPU = Machine("cpu", bfloat16=False, faiss=False, cores=1)


def settings(**values):
    return resolve(Settings(**{"image_size": 32, "dim": 16, **values}), DataSize(1000, 32), CPU)


def views(n=8, size=32):
    return torch.randn(n, 3, size, size, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    ("values", "size", "width"),
    [
        ({"backbone": "resnet18", "width": 8}, 32, 64),
        ({"backbone": "resnet18", "stem": "standard", "width": 8}, 64, 64),
        ({"backbone": "resnet10t", "width": 4}, 32, 32),
        ({"backbone": "mobilenetv3_small_050"}, 64, 1024),
        ({"backbone": "vit_tiny_patch16_224", "width": 32}, 64, 192),
        ({"backbone": "resnetv2_18"}, 32, 512),
        ({"backbone": "convnext_atto"}, 64, 320),
    ],
)
def test_any_timm_backbone(values, size, width):
    encoder = build(settings(image_size=size, **values)).eval()
    v = encoder(views(size=size))
    assert v.shape == (8, 16)
    torch.testing.assert_close(v.norm(dim=1), torch.ones(8))
    assert encoder.features(views(size=size)).shape == (8, width) == (8, encoder.feature_dim)


def test_the_papers_encoder_is_timms_resnet50_and_a_head():
    """The backbone's state dict is timm's own, whatever the splits: weights travel both ways."""
    encoder = build(settings(backbone="resnet50", stem="standard", image_size=64, head="linear"))
    assert encoder.backbone.state_dict().keys() == timm.create_model("resnet50", num_classes=0).state_dict().keys()
    assert isinstance(encoder.head, nn.Linear)
    assert encoder.head.weight.shape == (16, 2048)


@pytest.mark.parametrize(("head", "hidden"), [("mlp-bn", 32), ("mlp-big", 64)])
def test_heads_with_batch_norm_see_the_sub_batches_of_the_backbone(head, hidden):
    encoder = build(settings(backbone="resnet10t", width=4, head=head)).train()
    first, norm, _, last = encoder.head
    assert (norm.num_features, last.weight.shape) == (hidden, (16, hidden))
    encoder.splits = 2
    v = encoder(views())
    encoder.splits = 1
    rows = []
    for part in views().split(4):
        h = first(encoder.features(part))
        h = ((h - h.mean(dim=0)) / (h.var(dim=0, correction=0) + norm.eps).sqrt()).relu()
        rows.append(nn.functional.normalize(last(h), dim=1))
    torch.testing.assert_close(v, torch.cat(rows), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("backbone", ["resnet18", "resnet50"])
def test_the_last_norm_of_a_block_starts_as_in_timm_or_in_torchvision(backbone):
    """All else is drawn alike; and torchvision's convolutions, norms and linear layers have the same distributions."""
    small = {"backbone": backbone, "image_size": 32, "head": "linear", "stem": "standard"}
    timms, torchvisions = (build(settings(**small, block_init=name)) for name in ("timm", "torchvision"))
    torch.manual_seed(0)
    reference = getattr(torchvision.models, backbone)(num_classes=16)
    last = {name for name, m in reference.named_modules() if "layer" in name and name.split(".")[-1] == LAST[backbone]}
    assert len(last) > 7
    theirs = reference.state_dict()
    for (name, a), b in zip(timms.backbone.named_parameters(), torchvisions.backbone.parameters(), strict=True):
        if name.removesuffix(".weight") in last:
            assert (a == 0).all()
            assert (b == 1).all()
        else:
            assert torch.equal(a, b), name
        assert b.shape == theirs[name].shape
        ours = b.detach()
        if ours.ndim > 1:
            torch.testing.assert_close(ours.std(), theirs[name].std(), rtol=0.1, atol=0)
        else:
            assert torch.equal(ours, theirs[name]), "of norms nothing is drawn"
    assert torch.equal(timms.head.weight, torchvisions.head.weight)
    largest = timms.head.weight.detach().abs().max()  # drawn uniformly
    torch.testing.assert_close(largest, theirs["fc.weight"].abs().max(), rtol=0.05, atol=0)


def test_other_backbones_ignore_how_blocks_start():
    both = [build(settings(backbone="vit_tiny_patch16_224", image_size=32, block_init=name)) for name in BLOCKS]
    assert all(torch.equal(a, b) for a, b in zip(*(e.parameters() for e in both), strict=True))


def test_small_stem_keeps_the_resolution():
    small = build(settings(backbone="resnet18", width=8)).backbone
    assert small.conv1.kernel_size == (3, 3)
    assert small.conv1.stride == (1, 1)
    seen = {}
    small.layer1.register_forward_hook(lambda module, x, y: seen.update(size=y.shape[-1]))
    small(views())
    assert seen["size"] == 32


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"backbone": "resnet81"}, "did you mean resnet18"),
        ({"backbone": "vit_tiny_patch16_224", "stem": "small"}, "stem small is only available for ResNets"),
        ({"backbone": "resnetv2_50", "stem": "small"}, "stem small is only available for ResNets"),
        ({"backbone": "inception_v3"}, "does not accept views of shape"),
        (
            {"backbone": "xcit_nano_12_p16_224", "image_size": 8, "stem": "standard"},
            "timm cannot build xcit_nano_12_p16_224 for images of 8 pixels",
        ),
        ({"backbone": "resnet18.foo"}, "timm has no weights 'foo' for resnet18; available tags: a1_in1k"),
        ({"backbone": "x" * 4000}, "timm has no backbone 'xxx"),
    ],
)
def test_an_impossible_encoder_is_explained(values, words):
    with pytest.raises(UserError, match=words):
        build(settings(**values))


def test_a_custom_module_must_return_rows():
    with pytest.raises(UserError, match=r"must return \(B, D\)"):
        build(settings(), nn.Conv2d(3, 4, 3), views(2))
    own = nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, 10))
    assert build(settings(), own, views(2)).feature_dim == 10


def test_a_custom_module_may_have_another_modality():
    """Volumes have no channels-last layout of images."""
    own = nn.Sequential(nn.Conv3d(1, 4, 3), nn.Flatten())
    encoder = build(settings(), own, torch.zeros(2, 1, 4, 4, 4))
    assert encoder(torch.randn(3, 1, 4, 4, 4)).shape == (3, 16)


def test_weights_depend_only_on_the_seed():
    torch.manual_seed(1)
    first = build(settings(backbone="resnet10t", width=4))
    state = torch.get_rng_state()
    again = build(settings(backbone="resnet10t", width=4))
    other = build(settings(backbone="resnet10t", width=4, seed=1))
    assert torch.equal(torch.get_rng_state(), state), "the caller's generator is left alone"
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), again.parameters(), strict=True))
    assert not torch.equal(first.head[0].weight, other.head[0].weight)


def test_splits_are_batch_norm_of_each_part():
    encoder = build(settings(backbone="resnet10t", width=4)).train()
    x = views(10)
    at_once = encoder(x)
    parts = torch.cat([encoder(part) for part in (x[:4], x[4:7], x[7:])])
    encoder.splits = 3
    torch.testing.assert_close(encoder(x), parts, atol=1e-5, rtol=1e-4)
    assert not torch.allclose(parts, at_once, atol=1e-3)


def test_lower_precision_is_limited_to_the_encoder():
    """What it returns is float32, and so is what is computed from it."""
    seen = []

    class Spy(nn.Module):  # no product in bfloat16, which some CPUs announce and do not have
        def forward(self, x):
            seen.append(torch.is_autocast_enabled("cpu"))
            return x.flatten(1)[:, :16].bfloat16()

    encoder = Encoder(Spy(), 16, "none", 16)
    encoder.autocast = autocast("cpu", "bf16")
    assert encoder(views(4)).dtype == encoder.features(views(4)).dtype == torch.float32
    assert seen == [True, True]
    assert not torch.is_autocast_enabled("cpu")
    encoder.autocast = autocast("cpu", "32")
    encoder(views(4))
    assert seen[-1] is False


@pytest.mark.parametrize(("width", "expected"), [(4, torch.contiguous_format), (8, torch.channels_last)])
def test_narrow_strided_convolutions_do_not_overflow(width, expected):
    """On CPUs with AVX2 alone, the gradient of width 4 in channels last corrupted the memory (oneDNN)."""
    settings = Resolved(backbone="resnet18", width=width, stem="small", image_size=20)
    encoder = build(settings)
    assert encoder.memory_format == expected
    assert encoder.backbone.layer2[0].conv1.weight.is_contiguous(memory_format=expected)
    formats = []
    encoder.backbone.register_forward_pre_hook(lambda module, inputs: formats.append(inputs[0]))
    x = torch.randn(8, 3, 20, 20).contiguous(memory_format=torch.channels_last)
    encoder(x).sum().backward()
    assert formats[0].is_contiguous(memory_format=expected)
