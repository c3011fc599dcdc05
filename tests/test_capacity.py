"""Memory is estimated before anything is written: never more than is really needed, and enough to refuse."""

import dataclasses
import types

import pytest
import torch
from torch import nn

import protonce
from conftest import SMALL
from protonce import capacity
from protonce.capacity import Trained, check_encoders, check_training
from protonce.encoder import Encoder, build
from protonce.errors import UserError
from test_encoder import settings

MODELS = [
    {"backbone": "resnet10t", "width": 8},
    {"backbone": "resnet18", "width": 8, "stem": "standard"},
    {"backbone": "vit_tiny_patch16_224", "image_size": 64},
    {"backbone": "mobilenetv3_small_050", "image_size": 64},
]


def trained(**values):
    usual = {"n": 1000, "queue": 100, "has_twin": True, "every_parameter": True, "own_encoder": False}
    return Trained(**{**usual, **values})


@pytest.mark.parametrize("values", MODELS, ids=lambda values: values["backbone"])
def test_activations_are_no_more_than_autograd_keeps(values):
    """Compared with the tensors that it saves, each storage once, without those of the weights."""
    chosen = settings(**values)
    encoder, kept = build(chosen).train(), {}

    def keep(tensor):
        kept[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        encoder(torch.randn(4, 3, chosen.image_size, chosen.image_size))
    own = {t.untyped_storage().data_ptr() for t in encoder.state_dict().values()}
    saved = sum(t.untyped_storage().nbytes() for place, t in kept.items() if place not in own) / 4 / 4
    size = capacity._measure(chosen)
    assert 0.4 * saved < size.activations <= saved
    assert size.parameters == sum(p.numel() for p in encoder.parameters())


@pytest.mark.parametrize("values", MODELS, ids=lambda values: values["backbone"])
def test_activations_are_what_goes_into_the_layers(values):
    """Of a pass with real numbers, each storage once."""
    chosen = settings(**values)
    encoder, seen = build(chosen).train(), {}

    def see(module, inputs):
        seen[inputs[0].untyped_storage().data_ptr()] = inputs[0]

    for module in encoder.modules():
        if isinstance(module, nn.Conv2d | nn.Linear | nn.BatchNorm1d | nn.BatchNorm2d):
            module.register_forward_pre_hook(see)
    with torch.no_grad():
        encoder(torch.randn(2, 3, chosen.image_size, chosen.image_size))
    assert capacity._measure(chosen).activations == sum(x.numel() for x in seen.values()) // 2


def test_what_two_layers_share_counts_once():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(3 * 8 * 8, 5), nn.Linear(3 * 8 * 8, 5)

        def forward(self, x):
            flat = x.flatten(1)
            return self.first(flat) + self.second(flat[:])

    with torch.device("meta"):
        assert capacity._activations(Encoder(Two(), 5, "linear", 2), 8) == 3 * 8 * 8 + 5


def test_a_twin_and_an_optimizer_are_copies_of_the_encoder(monkeypatch):
    chosen = settings(backbone="resnet10t", width=8, batch_size=2, optimizer="adamw")
    parameters = sum(p.numel() for p in build(chosen).parameters())
    monkeypatch.setattr(capacity, "host_memory", lambda: 0)
    with pytest.raises(UserError, match=f"the encoder takes {4 * 4 * parameters / 1e9:.1f} GB"):
        check_training(chosen, trained())
    with pytest.raises(UserError, match="the encoder takes"):
        check_encoders(chosen)


@pytest.mark.parametrize(
    ("values", "parts", "words"),
    [
        ({}, {"queue": 10**9}, "the queue takes .* GB: reduce queue"),
        ({}, {"n": 10**9}, "the features of all images takes .* GB: reduce dim"),
        ({"batch_size": 1000, "image_size": 1024}, {}, "a batch takes .* GB: reduce batch_size, image_size or width"),
        ({"width": 4096, "batch_size": 2}, {}, "the encoder takes .* GB: choose a smaller backbone, width or dim"),
        ({"dim": 60_000}, {}, "the covariance of the features takes .* GB: reduce dim"),
    ],
)
def test_what_cannot_fit_is_refused_by_the_name_of_its_setting(values, parts, words, monkeypatch):
    monkeypatch.setattr(capacity, "host_memory", lambda: 20 * 10**9)
    chosen = settings(**{"backbone": "resnet18", "batch_size": 16, **values})
    with pytest.raises(UserError, match=words):
        check_training(chosen, trained(**parts))
    check_training(settings(backbone="resnet18", batch_size=16), trained())


def test_of_an_encoder_or_a_system_of_ones_own_only_what_is_known_counts(monkeypatch):
    monkeypatch.setattr(capacity, "host_memory", lambda: 10**9)
    large = settings(backbone="resnet18", batch_size=1000, image_size=512)
    check_training(large, trained(own_encoder=True))
    check_training(large, trained(queue=0, has_twin=False, every_parameter=False))
    with pytest.raises(UserError, match="a batch takes"):
        check_training(large, trained())
    check_training(large, trained(ranks=1000))
    with pytest.raises(UserError, match=r"available memory of 0\.0 GB"):
        check_training(large, trained(ranks=1000, local_ranks=1000))


def test_on_a_gpu_its_memory_counts_and_the_hosts_for_the_features(monkeypatch):
    gpu = types.SimpleNamespace(total_memory=10**9)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: gpu)
    monkeypatch.setattr(capacity, "host_memory", lambda: 10**6)
    chosen = dataclasses.replace(settings(backbone="resnet10t", batch_size=16), device="cuda")
    check_training(chosen, trained())
    with pytest.raises(UserError, match=r"the GPU's memory of 1\.0 GB; the queue"):
        check_training(chosen, trained(queue=10**7))
    with pytest.raises(UserError, match=r"the available memory of 0\.0 GB; the features"):
        check_training(chosen, trained(n=10**6))


def test_a_refused_training_leaves_no_folder(photos, tmp_path, monkeypatch):
    monkeypatch.setattr(capacity, "host_memory", lambda: 10**5)
    with pytest.raises(UserError, match="more than the available memory"):
        protonce.train(photos, tmp_path / "run", quiet=True, **SMALL)
    assert not (tmp_path / "run").exists()
