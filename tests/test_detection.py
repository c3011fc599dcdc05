"""`protonce evaluate RUN detection` and `segmentation`, from annotations to the page."""

import json
from xml.sax.saxutils import escape

import numpy as np
import pytest
from PIL import Image

from protonce.cli import main
from protonce.errors import UserError
from protonce.evaluate.objects import evaluation, training
from protonce.evaluate.protocols import evaluate
from protonce.importing import import_encoder
from protonce.report.detections import curve_charts, write_detections

SHORT = {"epochs": 1, "runs": 1, "size": 64, "longest": 80, "regions": 16, "batch_size": 2, "lr": 0.005}
WORDS = [f"--{name.replace('_', '-')}={value}" for name, value in SHORT.items()]
PIXELS = 64


def noise_with_square(rng, red):
    image = rng.integers(0, 60, (PIXELS, PIXELS, 3), dtype=np.uint8)
    x, y = (int(v) for v in rng.integers(2, PIXELS // 2, 2))
    image[y : y + 24, x : x + 24, 0 if red else 2] = 250
    return Image.fromarray(image), (x, y, x + 24, y + 24)


def voc(root, names=("red", "blue <b>"), counts=(("trainval", 4), ("test", 3))):
    """A data set in VOC's layout."""
    rng = np.random.default_rng(0)
    for folder in ("JPEGImages", "Annotations", "ImageSets/Main"):
        (root / folder).mkdir(parents=True)
    for split, count in counts:
        lines = [f"{split}{i}" for i in range(count)]
        (root / "ImageSets" / "Main" / f"{split}.txt").write_text("\n".join(lines) + "\n")
        for i, stem in enumerate(lines):
            image, (x0, y0, x1, y1) = noise_with_square(rng, i % 2 == 0)
            image.save(root / "JPEGImages" / f"{stem}.jpg", quality=95)
            box = f"<xmin>{x0 + 1}</xmin><ymin>{y0 + 1}</ymin><xmax>{x1}</xmax><ymax>{y1}</ymax>"
            (root / "Annotations" / f"{stem}.xml").write_text(
                f"<annotation><filename>{stem}.jpg</filename><size><width>{PIXELS}</width><height>{PIXELS}</height>"
                f"<depth>3</depth></size><object><name>{escape(names[i % 2])}</name><difficult>0</difficult>"
                f"<bndbox>{box}</bndbox></object></annotation>"
            )
    return f"VOC:{root}"


def coco(root):
    """A data set in COCO's layout, with masks."""
    rng = np.random.default_rng(0)
    (root / "annotations").mkdir(parents=True)
    for split, count in (("train", 4), ("val", 2)):
        folder = root / f"{split}2017"
        folder.mkdir()
        images, annotations = [], []
        for i in range(count):
            image, (x0, y0, x1, y1) = noise_with_square(rng, i % 2 == 0)
            image.save(folder / f"{i}.png")
            images.append({"id": i, "file_name": f"{i}.png", "width": PIXELS, "height": PIXELS})
            corners = [x0, y0, x1, y0, x1, y1, x0, y1]
            about = {"bbox": [x0, y0, 24, 24], "area": 576, "iscrowd": 0, "segmentation": [corners]}
            annotations.append({"id": i + 1, "image_id": i, "category_id": 1 + i % 2, **about})
        categories = [{"id": 1, "name": "red"}, {"id": 2, "name": "blue"}]
        content = {"images": images, "annotations": annotations, "categories": categories}
        (root / "annotations" / f"instances_{split}2017.json").write_text(json.dumps(content))
    return f"COCO:{root}"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A narrow ResNet with random weights."""
    settings = {"backbone": "resnet10t", "width": 8, "image_size": 32}
    made, _ = import_encoder("untrained", tmp_path_factory.mktemp("detection") / "run", quiet=True, **settings)
    return made


def test_detection_saves_scores_and_a_page(run, tmp_path, capsys):
    data = voc(tmp_path / "voc")
    assert main(["evaluate", str(run.path), "detection", "--train", data, "--name", "a", *WORDS]) == 0
    printed = capsys.readouterr().out
    result = json.loads((run.path / "evaluations" / "detection-a.json").read_text())
    assert result["metrics"].keys() == {"map_11", "map"}
    assert 0 <= result["metrics"]["map"]["mean"] <= 1
    assert result["data"]["train"]["images"] == 4
    assert result["data"]["test"]["images"] == 3
    assert result["settings"]["steps"] == 2
    assert "table 6" in printed, "the paper's numbers, in a table of their own"
    assert "frozen; FPN, RPN and heads trained" in printed
    page = (run.path / "evaluations" / "detection-a.html").read_text()
    assert "detection-a.html" in printed
    assert page.count("<figure>") >= 3
    assert "<b>" not in page.replace("<body>", ""), "a class stays text"
    assert not list((run.path / "evaluations").glob(".*"))
    assert "detection-a" in run.evaluations


def test_an_interrupted_detection_ends_as_an_uninterrupted_one(run, tmp_path, monkeypatch):
    data = voc(tmp_path / "voc")
    whole = evaluate(run, "detection", train=data, name="whole", quiet=True, **SHORT | {"runs": 2})
    monkeypatch.setattr(training, "SAVE_EVERY", -1.0)
    steps = []

    def fit_and_stop(*args, keep, **options):
        def keep_and_stop(state):
            keep(state)
            steps.append(int(state["done"]))
            if len(steps) == 3:  # in the second run
                raise KeyboardInterrupt

        return training.fit(*args, keep=keep_and_stop, **options)

    with monkeypatch.context() as patched:
        patched.setattr(evaluation, "fit", fit_and_stop)
        with pytest.raises(KeyboardInterrupt):
            evaluate(run, "detection", train=data, name="halves", quiet=True, **SHORT | {"runs": 2})
        halves = evaluate(run, "detection", train=data, name="halves", quiet=True, **SHORT | {"runs": 2})
    assert steps == [1, 2, 1, 2], "the first run and the first step of the second are not repeated"
    assert halves == whole


def test_segmentation_scores_boxes_and_masks(run, tmp_path):
    options = {"steps": 2, "sizes": [64, 72], "longest": 80, "regions": 16, "batch_size": 2, "lr": 0.001}
    result = evaluate(run, "segmentation", train=coco(tmp_path / "coco"), quiet=True, **options)
    assert result["metrics"].keys() == {f"{ap}_{kind}" for ap in ("ap", "ap50", "ap75") for kind in ("box", "mask")}
    assert "all layers trained" in result["features"]
    assert write_detections(run, "segmentation").exists()


def test_detection_on_coco_has_cocos_metrics_too(run, tmp_path):
    result = evaluate(run, "detection", train=coco(tmp_path / "coco"), quiet=True, **SHORT)
    assert result["metrics"].keys() == {"map_11", "map", "ap_box", "ap50_box", "ap75_box"}


def test_several_training_sets(run, tmp_path):
    data = [voc(tmp_path / "one"), voc(tmp_path / "two")]
    result = evaluate(run, "detection", train=data, quiet=True, **SHORT)
    assert result["data"]["train"]["images"] == 8
    assert result["data"]["test"]["source"] == data[0]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["detection"], "has no objects that can be read; give VOC2007:ROOT"),
        (["detection", "--train", "VOC:nowhere"], "is not a folder"),
        (["detection", "--train", "{voc}", "--test", "{trainval}"], "share 4 images, for example"),
        (["segmentation", "--train", "{voc}"], "has objects without masks; segmentation needs masks"),
        (["detection", "--train", "{voc}", "--layers", "some"], "setting layers is 'some'; it takes frozen or all"),
    ],
)
def test_mistakes_are_one_sentence_and_nothing_is_written(words, message, run, photos, tmp_path, capsys):
    data = voc(tmp_path / "voc")
    before = sorted(run.path.rglob("*"))
    filled = [word.format(voc=data, trainval=data.replace("VOC:", "VOC@trainval:")) for word in words]
    if "--train" not in words:
        filled += ["--train", str(photos)]
    assert main(["evaluate", str(run.path), *filled]) == 2
    assert message in capsys.readouterr().err
    assert sorted(run.path.rglob("*")) == before


def test_the_default_test_images_are_not_the_split_that_was_trained_on(run, tmp_path):
    data = voc(tmp_path / "voc").replace("VOC:", "VOC@trainval:")
    result = evaluate(run, "detection", train=data, quiet=True, **SHORT)
    assert result["data"]["train"]["source"] == data
    assert result["data"]["test"] | {"fingerprint": ""} == {
        "source": data.replace("@trainval", ""),
        "images": 3,
        "fingerprint": "",
    }


@pytest.mark.parametrize("data", [{}, {"train": []}, {"train": 3}, {"train": "VOC:x", "test": ["VOC:x"]}])
def test_data_without_a_name_is_refused(run, data):
    """The run was imported without any."""
    with pytest.raises(UserError, match="detection takes images with boxes by name: give --train VOC2007:ROOT"):
        evaluate(run, "detection", **data)


def test_a_custom_encoder_is_refused(run, monkeypatch):
    monkeypatch.setattr(type(run), "own", property(lambda _: True))
    with pytest.raises(UserError, match="detection is not available for runs with a custom encoder"):
        evaluate(run, "detection", train="VOC:x")


def test_curves_of_many_classes_share_charts():
    curves = {f"class {i:02d}": ([0.1, 0.2], [1.0, 0.5]) for i in range(8)} | {"never found": ([], [])}
    charts = curve_charts(curves)
    assert [len(chart.lines) for chart in charts] == [6, 2]
    assert charts[0].title == "class 00 to class 05"
