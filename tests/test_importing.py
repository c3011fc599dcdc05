"""`protonce import`: checkpoints of other programs as run folders, and what they cannot be."""

import json

import numpy as np
import pytest
import timm
import torch
import torchvision
from safetensors.torch import load_file, save_file
from torch import nn

import protonce
from conftest import SMALL
from protonce import importing
from protonce.cli import main
from protonce.encoder import build
from protonce.errors import UserError
from protonce.evaluate.protocols import evaluate
from protonce.importing import import_encoder
from protonce.run import load

pytestmark = pytest.mark.usefixtures("few_compared")


@pytest.fixture(scope="module", autouse=True)
def architectures_once():
    """A file is compared with the tensors of sixteen architectures of timm; each is built once for all tests."""
    build_tensors, built = importing._tensors, {}

    def tensors(backbone, given):
        key = (backbone, *(given.get(name) for name in ("width", "stem", "image_size")))
        if key not in built:
            built[key] = build_tensors(backbone, given)
        return built[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(importing, "_tensors", tensors)
        yield


def resnet18(seed, **options):
    torch.manual_seed(seed)
    model = torchvision.models.resnet18(**options)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):  # statistics that say something
            module.running_mean.uniform_(-0.1, 0.1)
            module.running_var.uniform_(0.5, 1.5)
    return model.eval()


def views(n=3):
    return torch.randn(n, 3, 64, 64, generator=torch.Generator().manual_seed(5))


def pooled(model, x):
    """A ResNet's features by torchvision's own modules."""
    return nn.Sequential(*list(model.children())[:-1])(x).flatten(1)


def test_weights_that_are_not_finite_are_not_imported(tmp_path):
    state = resnet18(0).state_dict()
    state["layer2.0.conv1.weight"][3, 1, 0, 0] = torch.nan
    torch.save(state, tmp_path / "nan.pth")
    with pytest.raises(UserError, match=r"nan.pth: tensor 'layer2.0.conv1.weight' has values that are not finite"):
        import_encoder(str(tmp_path / "nan.pth"), tmp_path / "run", quiet=True)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("mlp", [False, True])
def test_the_published_checkpoints(mlp, tmp_path):
    """`module.encoder_q` and `module.encoder_k` in a .pth.tar, with the head of v1 or v2, beside a queue."""
    query, twin = (resnet18(seed, num_classes=16) for seed in (0, 1))
    if mlp:
        for model in (query, twin):
            model.fc = nn.Sequential(nn.Linear(512, 512), nn.ReLU(), model.fc)
    state = {f"module.encoder_q.{name}": value for name, value in query.state_dict().items()}
    state |= {f"module.encoder_k.{name}": value for name, value in twin.state_dict().items()}
    state |= {"module.queue": torch.randn(16, 32), "module.queue_ptr": torch.zeros(1)}
    torch.save({"epoch": 200, "arch": "resnet18", "state_dict": state}, tmp_path / "pcl.pth.tar")
    run, found = import_encoder(str(tmp_path / "pcl.pth.tar"), tmp_path / "run", quiet=True)
    assert (run.settings.backbone, run.settings.head, run.settings.dim) == ("resnet18", "mlp" if mlp else "linear", 16)
    assert found.missing == []
    assert found.left_over == ["module.queue", "module.queue_ptr"]
    assert set(found.used) == set(state) - set(found.left_over)
    assert json.loads((tmp_path / "run" / "import.json").read_text())["used"] == found.used
    for ours, theirs in zip(run.encoders, (query, twin), strict=True):
        with torch.no_grad():
            torch.testing.assert_close(ours.features(views()), pooled(theirs, views()), atol=1e-4, rtol=1e-4)
            expected = nn.functional.normalize(theirs(views()), dim=1)
            torch.testing.assert_close(ours(views()), expected, atol=1e-4, rtol=1e-4)


def test_a_classifier_of_torchvision(tmp_path):
    """It has no projection head: its features are the embedding, and its classifier is left over."""
    model = resnet18(0)
    torch.save(model.state_dict(), tmp_path / "weights.pth")
    run, found = import_encoder(str(tmp_path / "weights.pth"), tmp_path / "run", quiet=True)
    assert found.left_over == ["fc.bias", "fc.weight"]
    assert (run.settings.head, run.settings.dim) == ("none", 512)
    query, twin = run.encoders
    with torch.no_grad():
        expected = nn.functional.normalize(pooled(model, views()), dim=1)
        torch.testing.assert_close(query(views()), expected, atol=1e-4, rtol=1e-4)
        assert torch.equal(twin(views()), query(views()))


def test_a_state_dict_of_timm_that_is_no_resnet(tmp_path):
    torch.manual_seed(0)
    model = timm.create_model("mobilenetv3_large_100").eval()
    save_file(model.state_dict(), tmp_path / "weights.safetensors")
    run, found = import_encoder(str(tmp_path / "weights.safetensors"), tmp_path / "run", quiet=True, image_size=64)
    assert run.settings.backbone == "mobilenetv3_large_100"
    assert found.left_over == ["classifier.bias", "classifier.weight"]
    with torch.no_grad():
        theirs = model.forward_head(model.forward_features(views()), pre_logits=True)
        torch.testing.assert_close(run.encoders[0].features(views()), theirs, atol=1e-4, rtol=1e-4)


def test_every_command_works_on_it(trained, photos, tmp_path, capsys):
    """An encoder before training, as the first row of a table: with images it has prototypes, and a page."""
    out = tmp_path / "untrained"
    like = ["--like", str(trained.path)]
    arguments = ["import", "untrained", "--out", str(out), "--data", str(photos), *like, "--clusters", "3,6"]
    assert main(arguments) == 0
    run = load(out)
    assert run.settings.backbone == trained.settings.backbone
    assert [len(c.centroids) for c in run.prototypes] == [3, 6]
    expected = build(run.settings).state_dict()
    state = load_file(out / "encoder.safetensors")
    assert all(torch.equal(value, state[f"query.{name}"]) for name, value in expected.items())
    for command in (
        ["embed", str(out), str(photos), "--out", str(tmp_path / "e.npz")],
        ["report", str(out)],
        ["report", str(trained.path), "--against", str(out)],
        ["clusters", str(out), "--out", str(tmp_path / "groups")],
        *(["evaluate", str(out), name] for name in ("knn", "linear", "clustering", "information")),
        ["evaluate", str(out), "lowshot", "--shots", "1"],
        ["evaluate", str(out), "semisup", "--draws", "1", "--epochs", "1"],
    ):
        assert main(command) == 0, command
    assert "prototype_1" in np.load(tmp_path / "e.npz")
    assert "imported from untrained" in (out / "report.html").read_text()
    capsys.readouterr()
    assert main(["train", str(photos), "--out", str(out), "--resume"]) == 2
    assert "imported" in capsys.readouterr().err


def test_images_by_seed_and_limit_are_found_again(trained, photos, tmp_path):
    run, _ = import_encoder("untrained", tmp_path / "run", data=str(photos), like=trained, quiet=True, limit=20, seed=1)
    assert len(run.source()) == 20
    assert evaluate(load(tmp_path / "run"), "clustering", quiet=True, starts=1)["data"]["train"]["images"] == 20


def test_timm_says_how_its_images_are_prepared(tmp_path, monkeypatch):
    """By name: any architecture of timm, with its own size of images, means and deviations."""
    from protonce import weights

    torch.manual_seed(0)
    model = timm.create_model("vit_tiny_patch16_384", num_classes=0)
    monkeypatch.setattr(weights, "_read_timm", lambda name: model.state_dict())
    run, found = import_encoder("timm:vit_tiny_patch16_384", tmp_path / "run", quiet=True)
    s = run.settings
    assert (s.backbone, s.image_size, s.plain_resize) == ("vit_tiny_patch16_384", 384, 384)
    assert (s.mean, s.std) == ([0.5] * 3, [0.5] * 3)
    assert found.missing == found.left_over == []
    monkeypatch.setattr(weights, "_read_timm", lambda name: resnet18(0, num_classes=10).state_dict())
    run, _ = import_encoder("timm:resnet18", tmp_path / "resnet", quiet=True, image_size=112)
    crop = timm.get_pretrained_cfg("resnet18").crop_pct
    assert (run.settings.image_size, run.settings.plain_resize) == (112, round(112 / crop))


def test_a_run_folder_is_imported_as_it_was(trained, photos, tmp_path):
    run, found = import_encoder(str(trained.path), tmp_path / "run", data=str(photos), quiet=True, clusters=[5])
    assert found.missing == found.left_over == []
    size, resize = trained.settings.image_size, trained.settings.plain_resize
    assert (run.settings.image_size, run.settings.plain_resize) == (size, resize) == (16, 18)
    ours, theirs = (r.features(str(photos), "momentum")[0].numpy() for r in (run, trained))
    np.testing.assert_allclose(ours, theirs, atol=1e-6)
    assert [len(level.centroids) for level in run.prototypes] == [5]


@pytest.mark.parametrize("head", ["linear", "mlp-bn", "mlp-big"])
def test_a_run_is_imported_with_its_head(photos, tmp_path, head):
    trained = protonce.train(photos, tmp_path / "trained", epochs=1, quiet=True, **{**SMALL, "head": head})
    run, found = import_encoder(str(trained.path), tmp_path / "run", quiet=True)
    assert (run.settings.head, run.settings.dim) == (head, 16)
    assert found.missing == found.left_over == []
    ours, theirs = (r.features(str(photos), "momentum")[0].numpy() for r in (run, trained))
    np.testing.assert_allclose(ours, theirs, atol=1e-6)


def test_without_images_it_has_no_prototypes(trained, photos, tmp_path, capsys):
    out = tmp_path / "bare"
    assert main(["import", "untrained", "--out", str(out), "--like", str(trained.path)]) == 0
    assert main(["embed", str(out), str(photos), "--out", str(tmp_path / "e.npz")]) == 0
    assert set(np.load(tmp_path / "e.npz").files) == {"name", "label", "features"}
    assert evaluate(load(out), "knn", train=str(photos), quiet=True)["metrics"]["accuracy"] > 0.3
    information = evaluate(load(out), "information", train=str(photos), quiet=True)["metrics"]
    assert set(information) == {"entropy of the labels", "features", "features; labels shuffled"}
    capsys.readouterr()
    for command in (
        ["evaluate", str(out), "knn"],
        ["clusters", str(out), "--out", str(tmp_path / "g")],
        ["report", str(out)],
        ["report", str(out), "--figures", "figures"],
    ):
        assert main(command) == 2, command
        assert "imported without images" in capsys.readouterr().err


def test_auto_is_what_is_known_of_the_encoder(trained, tmp_path):
    torch.save(resnet18(0).state_dict(), tmp_path / "r18.pth")
    own = {"image_size": "auto", "plain_resize": "auto", "stem": "auto"}
    run, _ = import_encoder(str(tmp_path / "r18.pth"), tmp_path / "r18", quiet=True, **own)
    assert (run.settings.image_size, run.settings.plain_resize, run.settings.stem) == (224, 256, "standard")
    run, _ = import_encoder("untrained", tmp_path / "like", like=trained, quiet=True, **own)
    theirs = trained.settings
    assert (run.settings.image_size, run.settings.plain_resize) == (theirs.image_size, theirs.plain_resize)
    assert run.settings.stem == theirs.stem


class _Evil:
    def __reduce__(self):
        return exec, ("raise SystemExit('it ran')",)


@pytest.mark.parametrize(
    ("content", "options", "sentence"),
    [
        (lambda: {"state_dict": _Evil()}, {}, "objects that could run code; save only its state_dict$"),
        (lambda: resnet18(0).state_dict(), {"limit": "abc"}, "limit is 'abc'"),
        (lambda: resnet18(0).state_dict(), {"backbone": "resnet34"}, "is not a resnet34: .* resnet18"),
        (lambda: {"a": torch.zeros(3)}, {}, "does not match any of resnet18"),
        (lambda: {"a": torch.zeros(3)}, {"backbone": "resnet18"}, "is not a resnet18"),
        (lambda: [1, 2], {}, "contains no named tensors"),
        (lambda: resnet18(0).state_dict(), {"backbone": "resnet999"}, "no backbone 'resnet999'"),
        (lambda: resnet18(0).state_dict(), {"image_size": 1}, "image_size is 1"),
        (lambda: resnet18(0).state_dict(), {"speed": 1}, "no setting 'speed'"),
        (lambda: resnet18(0).state_dict(), {"data": "nowhere"}, "nowhere does not exist"),
        (lambda: resnet18(0).state_dict(), {"dim": 32}, "has no head; do not pass another --head or --dim"),
        (lambda: resnet18(0).state_dict(), {"head": "linear"}, "has no head; do not pass another --head or --dim"),
        (lambda: resnet18(0).state_dict(), {"stem": "small"}, "does not match any of resnet18"),
        (lambda: resnet18(0).state_dict(), {"stem": "small", "backbone": "resnet18"}, "is not a resnet18"),
        (
            lambda: resnet18(0).state_dict(),
            {"stem": "small", "backbone": "vit_tiny_patch16_224"},
            "only available for ResNets",
        ),
        (
            lambda: {f"module.encoder_q.{k}": v for k, v in resnet18(0, num_classes=16).state_dict().items()},
            {"head": "mlp"},
            "has a head linear of 16 dimensions; do not pass",
        ),
    ],
)
def test_what_cannot_be_imported(content, options, sentence, tmp_path):
    torch.save(content(), tmp_path / "file.pth")
    with pytest.raises(UserError, match=sentence):
        import_encoder(str(tmp_path / "file.pth"), tmp_path / "run", quiet=True, **options)
    assert not (tmp_path / "run").exists()


def test_a_folder_that_is_occupied_or_a_file_that_is_not_there(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "mine.txt").write_text("mine")
    with pytest.raises(UserError, match="not empty"):
        import_encoder("untrained", tmp_path / "run", quiet=True)
    with pytest.raises(UserError, match="does not exist"):
        import_encoder(str(tmp_path / "none.pth"), tmp_path / "new", quiet=True)
