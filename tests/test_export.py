"""Exported encoders against the programs they are for: onnxruntime, torch, timm, torchvision, and the run itself."""

import json
import math
import pickle
import sys
import zipfile
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import timm
import torch
import torchvision
from PIL import Image
from safetensors.torch import load_file

import protonce
from protonce.cli import main
from protonce.errors import UserError
from protonce.export.shipment import Preparation, name_prototypes
from protonce.export.to_detectron2 import _structure, renamed
from protonce.importing import import_encoder
from test_documentation import blocks, commands


@pytest.fixture(scope="module")
def resnet(tmp_path_factory):
    """A run with query and momentum encoder of a ResNet-18 and the head of v2, as a published checkpoint has them."""
    folder = tmp_path_factory.mktemp("published")
    state = {}
    for prefix, seed in (("module.encoder_q.", 0), ("module.encoder_k.", 1)):
        torch.manual_seed(seed)
        model = torchvision.models.resnet18()
        model.fc = torch.nn.Sequential(torch.nn.Linear(512, 512), torch.nn.ReLU(), torch.nn.Linear(512, 16))
        for norm in (m for m in model.modules() if isinstance(m, torch.nn.BatchNorm2d)):
            torch.nn.init.uniform_(norm.running_mean, -0.1, 0.1)
        state |= {prefix + name: value for name, value in model.state_dict().items()}
    torch.save({"epoch": 200, "arch": "resnet18", "state_dict": state, "optimizer": {}}, folder / "pcl.pth.tar")
    import_encoder(str(folder / "pcl.pth.tar"), folder / "run", image_size=32, quiet=True)
    return folder / "run", state


def inputs(n, size):
    return torch.randn(n, 3, size, size, generator=torch.Generator().manual_seed(n))


def loaded(how, folder, monkeypatch):
    """What the printed Python makes, in the folder of the file."""
    monkeypatch.chdir(folder)
    found = {}
    exec(how, found)
    return found


@pytest.fixture(scope="module")
def graphs(trained_once, tmp_path_factory):
    """The trained run as ONNX and as a program of torch, with prototypes, and with preprocessing too."""
    folder = tmp_path_factory.mktemp("graphs")
    run = protonce.load(trained_once)
    for to, suffix in (("onnx", ".onnx"), ("torch-export", ".pt2")):
        for name, preprocess in (("plain", False), ("pixels", True)):
            out = folder / to / f"{name}{suffix}"
            out.parent.mkdir(exist_ok=True)
            run.export(to, out, prototypes=True, preprocess=preprocess)
    return folder


def outputs(graphs, to, name, images):
    """What a graph returns, by name."""
    if to == "torch-export":
        found = torch.export.load(graphs / to / f"{name}.pt2").module()(images)
        return {key: value.numpy() for key, value in found.items()}
    session = onnxruntime.InferenceSession(graphs / to / f"{name}.onnx")
    keys = [out.name for out in session.get_outputs()]
    return dict(zip(keys, session.run(None, {"images": images.numpy()}), strict=True))


@pytest.mark.parametrize("to", ["onnx", "torch-export"])
@pytest.mark.parametrize("batch", [1, 32])
def test_graphs_return_what_the_run_does(graphs, trained, to, batch):
    x = inputs(batch, 16)
    found = outputs(graphs, to, "plain", x)
    momentum = trained.encoders[1]
    with torch.no_grad():
        features = momentum.features(x)
        v = momentum.embed(features)
    assert [*found] == ["features", "prototype_0", "distance_0", "prototype_1", "distance_1", "label"]
    np.testing.assert_allclose(found["features"], features.numpy(), atol=1e-4)
    for m, prototypes in enumerate(trained.prototypes):
        distance = 1 - v @ prototypes.centroids.T  # (B, k)
        which = torch.from_numpy(found[f"prototype_{m}"])
        np.testing.assert_allclose(found[f"distance_{m}"], distance.min(dim=1).values.numpy(), atol=1e-4)
        np.testing.assert_allclose(distance.gather(1, which[:, None])[:, 0].numpy(), found[f"distance_{m}"], atol=1e-4)
    (file,) = (graphs / to).glob("plain.*.json")
    about = json.loads(file.read_text())
    names = [about["labels"][i] for i in found["label"]]
    assert names == [about["prototype_names"][-1][i] for i in found["prototype_1"]]


@pytest.mark.parametrize("to", ["onnx", "torch-export"])
@pytest.mark.parametrize("shape", [(16, 16), (37, 24), (20, 61)])
def test_graphs_prepare_images_of_any_size(graphs, trained, to, shape, tmp_path):
    rng = np.random.default_rng(0)
    smooth = rng.integers(0, 256, (2, 5, 5, 3), dtype=np.uint8)
    pixels = np.stack([np.asarray(Image.fromarray(x).resize(shape[::-1], Image.Resampling.BICUBIC)) for x in smooth])
    for i, x in enumerate(pixels):
        Image.fromarray(x).save(tmp_path / f"{i}.png")
    (features,) = trained.features(tmp_path, "momentum")
    found = outputs(graphs, to, "pixels", torch.from_numpy(pixels))
    whole = torch.nn.functional.normalize(trained.encoders[1].project(torch.from_numpy(found["features"])), dim=1)
    # The run decodes images to whole numbers in a square first.
    assert (whole * features).sum(dim=1).min() > 0.995


@pytest.mark.parametrize("width", [36, 52])
def test_preprocessing_is_torchvisions_resize_and_centre_crop(width):
    """Of sizes at which the crop begins at a whole pixel."""
    pixels = torch.randint(0, 256, (2, 36, width, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    resized = torchvision.transforms.functional.resize(pixels.permute(0, 3, 1, 2) / 255, 18, antialias=True)
    expected = (torchvision.transforms.functional.center_crop(resized, 16) - 0.5) / 0.25
    found = Preparation(16, 18, [0.5] * 3, [0.25] * 3)(pixels)
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=0)


def test_the_query_encoder_alone(trained, tmp_path):
    found = trained.export("onnx", tmp_path / "query.onnx")
    assert found.which == "query"
    session = onnxruntime.InferenceSession(found.path)
    assert [out.name for out in session.get_outputs()] == ["features"]
    x = inputs(3, 16)
    with torch.no_grad():
        expected = trained.encoders[0].features(x).numpy()
    np.testing.assert_allclose(session.run(None, {"images": x.numpy()})[0], expected, atol=1e-4)
    about = json.loads(found.about.read_text())
    assert (about["encoder"], about["feature_dim"], about["outputs"]) == ("query", 32, ["features"])
    s = trained.settings
    assert about["preprocessing"]["centre_crop"] == s.image_size
    assert about["preprocessing"]["mean"] == s.mean


def test_graphs_say_nothing_of_this_disk(graphs):
    """Tracing writes down where each line of code is, and the example."""
    places = [Path(protonce.__file__).parents[1], Path(torch.__file__).parents[1], Path(sys.prefix)]
    for file in (graphs / "onnx" / "plain.onnx", graphs / "torch-export" / "plain.pt2"):
        content = file.read_bytes()
        if zipfile.is_zipfile(file):
            with zipfile.ZipFile(file) as archive:
                content = b"".join(archive.read(name) for name in archive.namelist())
        assert not any(str(place).encode() in content for place in places)


def test_names_of_prototypes_by_hand():
    coarse, fine = torch.tensor([0, 0, 0, 1, 1, 1]), torch.tensor([0, 0, 1, 2, 2, 3])
    parents = [torch.tensor([0, 0, 1, 1])]
    labels = {0: "dog", 1: "cat", 3: "cow"}
    # A tie goes to the first in the alphabet; prototypes 1 and 3 have no label of their own.
    assert name_prototypes([coarse, fine], parents, labels) == [["cat", "cow"], ["cat", "cat", "cow", "cow"]]
    assert name_prototypes([coarse, fine], parents, {5: "fox"}) == [["", "fox"], ["", "", "fox", "fox"]]


def test_timm_loads_the_weights_strictly(resnet, tmp_path, monkeypatch):
    run = protonce.load(resnet[0])
    for which, encoder in zip(("query", "momentum"), run.encoders, strict=True):
        how = run.export("timm", tmp_path / f"{which}.safetensors", encoder=which).how
        assert how.count("\n") == 5, "nothing special to build"
        model = loaded(how, tmp_path, monkeypatch)["model"].eval()
        with torch.no_grad():
            torch.testing.assert_close(model(inputs(2, 32)), encoder.features(inputs(2, 32)))


def test_an_unusual_model_is_built_by_the_printed_python(trained, tmp_path, monkeypatch):
    """A narrow ResNet with a small stem, of which timm has no configuration."""
    how = trained.export("timm", tmp_path / "narrow.safetensors").how
    model = loaded(how, tmp_path, monkeypatch)["model"].eval()
    with torch.no_grad():
        torch.testing.assert_close(model(inputs(2, 16)), trained.encoders[0].features(inputs(2, 16)))
    assert json.loads((tmp_path / "narrow.safetensors.json").read_text())["how_to_load"] == how


@pytest.mark.parametrize("stem", ["standard", "small"])
def test_torchvision_loads_the_weights_strictly(tmp_path, monkeypatch, stem):
    run, _ = import_encoder("untrained", tmp_path / "run", backbone="resnet18", stem=stem, image_size=32, quiet=True)
    how = protonce.load(run.path).export("torchvision", tmp_path / "weights.safetensors").how
    model = loaded(how, tmp_path, monkeypatch)["model"].eval()
    assert isinstance(model, torchvision.models.ResNet)
    with torch.no_grad():
        torch.testing.assert_close(model(inputs(2, 32)), run.encoders[0].features(inputs(2, 32)))


def test_all_weights_as_safetensors(trained, tmp_path):
    trained.export("safetensors", tmp_path / "all.safetensors", encoder="momentum")
    found = load_file(tmp_path / "all.safetensors")
    expected = trained.encoders[1].state_dict()
    assert {*found} == {*expected}
    assert all(torch.equal(found[name], value) for name, value in expected.items())


def test_detectron2_has_its_own_names(resnet, tmp_path):
    """The names that detectron2 gives to a ResNet with basic blocks, listed by its structure."""
    run, state = resnet
    protonce.load(run).export("detectron2", tmp_path / "weights.pkl")
    content = pickle.loads((tmp_path / "weights.pkl").read_bytes())
    norm = ("weight", "bias", "running_mean", "running_var")
    convolutions = ["stem.conv1"]
    for stage in range(2, 6):
        convolutions += [f"res{stage}.{block}.conv{i}" for block in range(2) for i in (1, 2)]
        convolutions += [f"res{stage}.0.shortcut"] if stage > 2 else []
    expected = {f"{c}.weight" for c in convolutions} | {f"{c}.norm.{part}" for c in convolutions for part in norm}
    assert {*content["model"]} == expected
    assert content["matching_heuristics"] is True
    shortcut = state["module.encoder_q.layer3.0.downsample.0.weight"].numpy()
    assert np.array_equal(content["model"]["res4.0.shortcut.weight"], shortcut)
    mean = state["module.encoder_q.layer2.1.bn2.running_mean"].numpy()
    assert np.array_equal(content["model"]["res3.1.conv2.norm.running_mean"], mean)
    assert renamed("layer4.2.conv3.weight") == "res5.2.conv3.weight", "as of a ResNet-50"


@pytest.mark.parametrize(
    ("backbone", "expected"),
    [
        ("resnet18", {"DEPTH": 18, "STRIDE_IN_1X1": False, "RES2_OUT_CHANNELS": 64}),
        ("resnet101", {"DEPTH": 101, "STRIDE_IN_1X1": False}),
        ("wide_resnet50_2", {"DEPTH": 50, "STRIDE_IN_1X1": False, "WIDTH_PER_GROUP": 128}),
        ("resnext101_32x8d", {"DEPTH": 101, "STRIDE_IN_1X1": False, "NUM_GROUPS": 32, "WIDTH_PER_GROUP": 8}),
    ],
)
def test_detectron2_is_told_which_resnet_it_is(backbone, expected):
    assert _structure(backbone) == expected


def test_a_published_checkpoint_goes_in_and_comes_out(resnet, tmp_path):
    run, state = resnet
    protonce.load(run).export("pcl", tmp_path / "again.pth.tar")
    content = torch.load(tmp_path / "again.pth.tar", weights_only=True)
    assert content["arch"] == "resnet18"
    assert {*content["state_dict"]} == {*state}
    for name, value in state.items():
        if not name.endswith("num_batches_tracked"):
            assert torch.equal(content["state_dict"][name], value), name
    again, found = import_encoder(str(tmp_path / "again.pth.tar"), tmp_path / "run", image_size=32, quiet=True)
    assert (found.missing, found.left_over) == ([], [])
    assert again.encoder_hash == protonce.load(run).encoder_hash


def test_a_folder_for_the_hugging_face_hub(photos, tmp_path, monkeypatch):
    """Of a narrow ResNet; trained as `trained`, with a stem that timm can build."""
    from conftest import SMALL

    run = protonce.train(photos, tmp_path / "run", epochs=1, stem="standard", quiet=True, **SMALL)
    run.evaluate("knn")
    found = run.export("huggingface", tmp_path / "hub")
    assert {file.name for file in (tmp_path / "hub").iterdir()} == {
        *("config.json", "model.safetensors", "README.md", "protonce.json")
    }
    model = loaded(found.how, tmp_path, monkeypatch)["model"].eval()
    with torch.no_grad():
        torch.testing.assert_close(model(inputs(2, 16)), run.encoders[0].features(inputs(2, 16)))
    config = timm.data.resolve_data_config({}, model=model)
    s = run.settings
    assert tuple(config["input_size"]) == (3, 16, 16)
    assert math.floor(16 / config["crop_pct"]) == s.plain_resize
    assert (list(config["mean"]), list(config["std"])) == (s.mean, s.std)
    card = (tmp_path / "hub" / "README.md").read_text()
    assert card.startswith("---\nlibrary_name: timm\n")
    accuracy = run.evaluations["knn"]["metrics"]
    for words in ("48 images of", "No labels were used", "| `epochs` | 1 |", "| knn | ", "## Limits", *accuracy):
        assert words in card, words
    assert str(photos.parent) not in card, "where images are on a disk is nobody's business"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--to", "tflite", "--out", "x.tflite"], "--to tflite is none of onnx, torch-export"),
        (["--to", "onnx", "--out", "x.pt"], "must end in .onnx"),
        (["--to", "onnx", "--out", "nowhere/x.onnx"], "the folder nowhere does not exist"),
        (["--to", "onnx", "--out", "there.onnx"], "is there already"),
        (["--to", "timm", "--out", "x.safetensors", "--prototypes"], "cannot contain prototypes; export to onnx or"),
        (["--to", "timm", "--out", "x.safetensors", "--preprocess"], "cannot contain preprocessing"),
        (["--to", "onnx", "--out", "x.onnx", "--prototypes", "--encoder", "query"], "leave --encoder query out"),
        (["--to", "torchvision", "--out", "x.safetensors"], "not for resnet10t of width 4; use --to timm"),
        (["--to", "detectron2", "--out", "x.pkl"], "not for resnet10t"),
        (["--to", "pcl", "--out", "x.pth"], "not for resnet10t"),
        (["--to", "huggingface", "--out", "x"], "timm cannot build a small stem"),
        (["--to", "onnx", "--out", "x.onnx", "--prototypes", "--labels", "none.csv"], "there is no file none.csv"),
        (["--to", "onnx", "--out", "x.onnx", "--labels", "labels.csv"], "export these too, with --prototypes"),
        (["--to", "pcl", "--out", "x.pth", "--encoder", "momentum"], "has both encoders; leave --encoder out"),
    ],
)
def test_what_cannot_be_exported_is_said_in_a_sentence(trained, tmp_path, monkeypatch, capsys, options, words):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there.onnx").write_text("mine")
    (tmp_path / "labels.csv").write_text("name,label\nslope0/00.png,flat\n")
    assert main(["export", str(trained.path), *options]) == 2
    assert words in capsys.readouterr().err
    assert sorted(file.name for file in tmp_path.iterdir()) == ["labels.csv", "there.onnx"]


def test_without_prototypes_there_are_none_to_export(resnet, tmp_path):
    with pytest.raises(UserError, match="imported without images and has no prototypes"):
        protonce.load(resnet[0]).export("onnx", tmp_path / "x.onnx", prototypes=True)


def test_the_command_names_prototypes_by_a_table(trained, tmp_path, capsys):
    labels = tmp_path / "labels.csv"
    labels.write_text("name,label\nslope0/00.png,flat\nslope2/00.png,steep\n")
    out = tmp_path / "program.pt2"
    options = ["--to", "torch-export", "--out", str(out), "--prototypes", "--labels", str(labels)]
    assert main(["export", str(trained.path), *options]) == 0
    printed = capsys.readouterr().out
    assert "program.pt2 holds the momentum encoder" in printed
    assert "torch.export.load('program.pt2')" in printed
    about = json.loads((tmp_path / "program.pt2.json").read_text())
    assert about["labels"] == ["flat", "steep"]


def test_the_documentation_runs_as_written(trained, photos, tmp_path, monkeypatch):
    """But for the folder of the Hugging Face hub, which is for models of timm."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "first").symlink_to(trained.path)
    (tmp_path / "labels.csv").write_text("name,label\nslope0/00.png,flat\nslope2/00.png,steep\n")
    Image.open(photos / "slope0" / "00.png").save(tmp_path / "photo.jpg")
    (_, shell), (_, code) = blocks("docs/export.md")
    for command in commands(shell)[:2]:
        assert main(command) == 0
    *lines, last = code.strip().splitlines()
    names = {}
    exec("\n".join([*lines, f"found = {last}"]), names)
    assert {*names["found"]} <= {"flat", "steep"}


class Rows:
    """Vectors as a data set."""

    def __init__(self, rows):
        self.rows = rows

    def __len__(self):
        return len(self.rows)

    def load(self, i):
        return self.rows[i]


class NoisyViews:
    """Two views of a vector with noise, and the vector."""

    def train(self, samples):
        noise = (torch.from_numpy(samples.uniform(name, 6)).float() for name in ("query", "key"))
        return tuple(samples.data + 0.1 * (u - 0.5) for u in noise)

    def plain(self, samples):
        return samples.data


def test_an_encoder_of_the_users_own(tmp_path):
    """Vectors and an own module: graphs and weights, but no model of a library."""
    rows = np.random.default_rng(0).normal(size=(32, 6)).astype(np.float32)
    network = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.ReLU())
    options = {"epochs": 1, "clusters": [2], "batch_size": 8, "dim": 4, "device": "cpu", "quiet": True}
    run = protonce.train(Rows(rows), tmp_path / "run", encoder=network, views=NoisyViews(), **options)
    x = torch.from_numpy(rows)
    run.export("onnx", tmp_path / "own.onnx", example=x[:2])
    session = onnxruntime.InferenceSession(tmp_path / "own.onnx")
    with torch.no_grad():
        expected = run.encoders[0].features(x).numpy()
    np.testing.assert_allclose(session.run(None, {"images": rows})[0], expected, atol=1e-4)
    with pytest.raises(UserError, match="custom views; pass a batch of two of them as example="):
        run.export("onnx", tmp_path / "again.onnx")
    run.export("safetensors", tmp_path / "own.safetensors")
    for wrong, words in (
        ({"preprocess": True}, "cannot be part of a graph"),
        ({"example": x[:1]}, "pass a batch of two"),
    ):
        with pytest.raises(UserError, match=words):
            run.export("onnx", tmp_path / "again.onnx", **{"example": x[:2], **wrong})
    with pytest.raises(UserError, match="custom encoder, which other libraries cannot build"):
        run.export("pcl", tmp_path / "own.pth")
    with pytest.raises(UserError, match="custom encoder, which other libraries cannot build"):
        run.export("timm", tmp_path / "other.safetensors", example=x[:2])
