"""`--init`: from a run, a file of this or another program, or timm; what was used is said."""

import hashlib
import os

import pytest
import timm
import torch
from safetensors.torch import save_file

import protonce
from conftest import SMALL
from protonce.errors import UserError
from protonce.preparation import Request, prepare
from protonce.progress import Reporter
from protonce.ranks import Ranks
from protonce.weights import start_from
from test_encoder import build, settings


def encoder(**values):
    return build(settings(backbone="resnet10t", width=4, **values))


def same(a, b):
    return all(torch.equal(x, y) for x, y in zip(a.state_dict().values(), b.state_dict().values(), strict=True))


def test_from_a_run_with_its_head(trained):
    new = build(trained.settings)
    loaded = start_from(str(trained.path), new)
    query, _ = trained.encoders
    assert not loaded.missing
    assert same(new.backbone, query.backbone)
    assert same(new.head, query.head)


@pytest.mark.parametrize("prefix", ["", "module.", "module.encoder_q.", "encoder_q.", "backbone.", "model."])
@pytest.mark.parametrize("nested", [False, True])
def test_from_a_checkpoint_of_another_program(tmp_path, prefix, nested):
    """DDP's and the published PCL's and MoCo's names, bare or under state_dict, beside a head of another size."""
    old, new = encoder(seed=1), encoder()
    state = {prefix + name: value for name, value in old.backbone.state_dict().items()}
    state[prefix + "fc.weight"] = torch.zeros(7, 7)
    torch.save({"epoch": 3, "state_dict": state} if nested else state, tmp_path / "old.pth.tar")
    loaded = start_from(str(tmp_path / "old.pth.tar"), new)
    assert not loaded.missing
    assert loaded.left_over == [prefix + "fc.weight"]
    assert same(new.backbone, old.backbone)
    assert "unused: " + prefix + "fc.weight" in str(loaded)


def test_tensors_that_do_not_fit_are_reported_as_randomly_initialised(tmp_path):
    old, new = encoder(), encoder()
    state = {name: value.contiguous() for name, value in old.backbone.state_dict().items()}
    state["conv1.weight"] = torch.zeros(4, 3, 7, 7)
    save_file(state, tmp_path / "old.safetensors")
    loaded = start_from(str(tmp_path / "old.safetensors"), new)
    assert loaded.missing == ["conv1.weight"]
    assert "randomly initialised: conv1.weight" in str(loaded)


class _Evil:
    def __reduce__(self):
        return (print, ("run",))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda p: p / "absent.pth", "does not exist"),
        (lambda p: p, "folder without encoder.safetensors"),
        (lambda p: _saved(p, {"other": torch.zeros(3)}), "no weights that fit the backbone"),
        (lambda p: _saved(p, [1, 2]), "contains no named tensors"),
        (lambda p: _saved(p, _Evil()), "loaded safely"),
        (lambda p: _text(p), "loaded safely"),
        (lambda p: "timm:resnet10000", "timm has no model"),
        (lambda p: "timm:resnet10t.foo", "timm has no weights 'foo' for resnet10t; available tags: c3_in1k"),
        (lambda p: _saved(p, _spoilt(torch.nan)), "tensor 'layer1.0.bn1.bias' has values that are not finite"),
        (lambda p: _saved(p, _spoilt(-torch.inf, torch.float16)), "tensor 'layer1.0.bn1.bias' has values"),
        (lambda p: _saved(p, _spoilt(1e300, torch.float64)), "tensor 'layer1.0.bn1.bias' has values"),
        (lambda p: _saved(p, {"a": torch.zeros(3).to_sparse()}), "tensor 'a' is not an array of real numbers"),
        (lambda p: _saved(p, {"a": torch.zeros(3, dtype=torch.cfloat)}), "tensor 'a' is not an array of real numbers"),
        (lambda p: _pipe(p), "is not a file"),
        (lambda p: "x" * 3000, "does not exist"),
    ],
)
def test_bad_weights_are_explained_and_nothing_runs(tmp_path, capsys, make, words):
    with pytest.raises(UserError, match=words):
        start_from(str(make(tmp_path)), encoder())
    assert "run" not in capsys.readouterr().out


def _saved(folder, content):
    torch.save(content, folder / "w.pth")
    return folder / "w.pth"


def _spoilt(value, dtype=torch.float32):
    """A state dict with one number that no training leaves behind."""
    state = {name: v.to(dtype) if v.is_floating_point() else v for name, v in encoder().backbone.state_dict().items()}
    state["layer1.0.bn1.bias"][1] = value
    return state


def _pipe(folder):
    os.mkfifo(folder / "w.pth")
    return folder / "w.pth"


def _text(folder):
    (folder / "w.pth").write_text("hello")
    return folder / "w.pth"


def test_timm_weights_come_from_the_hubs_cache(tmp_path, monkeypatch):
    """The loading code is timm's own; the file lies where the hub would have put it."""
    import huggingface_hub.constants as hub

    monkeypatch.setattr(hub, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(hub, "HF_HUB_CACHE", str(tmp_path))
    config = timm.get_pretrained_cfg("resnet10t")
    model = timm.create_model("resnet10t")
    folder = tmp_path / f"models--{config.hf_hub_id.replace('/', '--')}"
    commit = hashlib.sha1(b"").hexdigest()
    (folder / "refs").mkdir(parents=True)
    (folder / "refs" / "main").write_text(commit)
    (folder / "snapshots" / commit).mkdir(parents=True)
    save_file(model.state_dict(), folder / "snapshots" / commit / "model.safetensors")
    new = build(settings(backbone="resnet10t", image_size=64, stem="standard"))
    loaded = start_from("timm:resnet10t", new)
    assert not loaded.missing
    assert torch.equal(new.backbone.conv1[0].weight, model.conv1[0].weight)


def test_unavailable_timm_weights_are_a_one_line_error(tmp_path, monkeypatch):
    import huggingface_hub.constants as hub

    monkeypatch.setattr(hub, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(hub, "HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(UserError, match="weights of timm:resnet10t are not available") as error:
        start_from("timm:resnet10t", encoder())
    assert "\n" not in str(error.value)


def test_weights_for_a_fixed_image_size_set_it(photos, tmp_path):
    """A ViT's places are for one size; a ResNet takes the images as they come."""
    for name, size in (("vit_tiny_patch16_224", 224), ("resnet10t", 20)):
        request = Request(str(photos), tmp_path / name, settings={"init": f"timm:{name}"})
        plan = prepare(request, Reporter(quiet=True), Ranks())
        assert plan.settings.image_size == size


def test_training_starts_from_a_run_and_takes_its_architecture(trained, photos, tmp_path, capsys):
    settings = {k: SMALL[k] for k in ("image_size", "clusters", "batch_size")}
    protonce.train(photos, tmp_path / "r", init=str(trained.path), epochs=1, recipe="pcl-v1", **settings)
    assert "backbone tensors from" in capsys.readouterr().err
    begun = protonce.load(tmp_path / "r").settings
    assert (begun.backbone, begun.width, begun.stem, begun.dim, begun.tau) == ("resnet10t", 4, "small", 16, 0.1)
    fresh = protonce.train(photos, tmp_path / "f", epochs=1, quiet=True, **SMALL)
    assert (tmp_path / "r" / "encoder.safetensors").read_bytes() != (fresh.path / "encoder.safetensors").read_bytes()
