"""The paper's data sets, as they come."""

import shutil
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image
from sklearn.svm import LinearSVC

from conftest import stripes
from protonce.data.paper_datasets import is_imagenet
from protonce.data.sources import open_source
from protonce.errors import UserError
from protonce.evaluate import svm
from protonce.evaluate.protocols import evaluate
from protonce.evaluate.task import Task


@pytest.fixture
def voc(tmp_path):
    """VOC's layout: images of one or two directions, some of which are difficult to see."""
    root = tmp_path / "VOCdevkit" / "VOC2007"
    for folder in ("JPEGImages", "Annotations", "ImageSets/Main"):
        (root / folder).mkdir(parents=True)
    rng = np.random.default_rng(0)
    for split, n in (("trainval", 24), ("test", 12)):
        keys = [f"{split[:2]}{i:03d}" for i in range(n)]
        (root / "ImageSets" / "Main" / f"{split}.txt").write_text("".join(f"{key}\n" for key in keys))
        for i, key in enumerate(keys):
            shown = {"cat": i % 2 == 0, "dog": i % 3 == 0, "sofa": i % 2 == 1}
            picture = sum(stripes(rng, s).astype(int) for s, yes in enumerate(shown.values()) if yes)
            Image.fromarray((picture // sum(shown.values())).astype(np.uint8)).save(root / "JPEGImages" / f"{key}.jpg")
            objects = "".join(
                f"<object><name>{name}</name><difficult>{int(name == 'dog' and i == 0)}</difficult></object>"
                for name, yes in shown.items()
                if yes
            )
            (root / "Annotations" / f"{key}.xml").write_text(f"<annotation>{objects}</annotation>")
    return tmp_path


def test_voc_has_several_classes_per_image(voc):
    train, test = (open_source(f"VOC2007:{voc}", part) for part in ("train", "test"))
    assert (len(train), len(test)) == (24, 12)
    assert train.labels is None
    marks = train.marks
    assert len(marks.classes) == 20
    assert marks.eleven_points
    assert marks.values[:4, marks.classes.index("dog")].tolist() == [0, -1, -1, 1]  # the first is difficult to see
    assert (marks.values[:, marks.classes.index("person")] == -1).all()
    assert train.subset(np.array([3, 0])).marks.values[:, marks.classes.index("dog")].tolist() == [1, 0]
    assert len(open_source(f"VOC2007@test:{voc}", "train")) == 12
    assert len(open_source(f"VOC2007:{voc / 'VOCdevkit' / 'VOC2007'}")) == 24


def test_voc_marks_belong_to_their_images(voc):
    """Names that sort otherwise with their ending than without, and a name that is listed twice."""
    root = voc / "VOCdevkit" / "VOC2007"
    for key, name in (("photo", "cat"), ("photo-1", "dog")):
        shutil.copy(root / "JPEGImages" / "tr000.jpg", root / "JPEGImages" / f"{key}.jpg")
        text = f"<annotation><object><name>{name}</name></object></annotation>"
        (root / "Annotations" / f"{key}.xml").write_text(text)
    (root / "ImageSets" / "Main" / "mine.txt").write_text("photo-1\nphoto\nphoto\ntr001\n")
    source = open_source(f"VOC2007@mine:{voc}")
    found = {
        name: source.marks.classes[row.argmax()] for name, row in zip(source.names, source.marks.values, strict=True)
    }
    assert found == {
        "JPEGImages/photo-1.jpg": "dog",
        "JPEGImages/photo.jpg": "cat",
        "JPEGImages/tr001.jpg": "sofa",
    }


def test_linear_and_lowshot_with_multi_label_data(trained, voc):
    """One SVM a class; AP of the scores that the same machine, trained here, gives."""
    spec = f"VOC2007:{voc}"
    with pytest.raises(UserError, match=r"class aeroplane has no images in"):
        evaluate(trained, "linear", train=spec, quiet=True)
    for name in ("cat", "dog", "sofa"):  # a data set of its own classes
        for file in (voc / "VOCdevkit" / "VOC2007" / "Annotations").iterdir():
            file.write_text(file.read_text().replace(f">{name}<", f">my {name}<"))
    result = evaluate(trained, "linear", train=spec, quiet=True)
    source, test = open_source(spec), open_source(spec, "test")
    train_x, test_x = (svm.unit(trained.features(s, "backbone")[0].numpy()) for s in (source, test))
    column = test.marks.values[:, 1]
    machine = LinearSVC(C=0.5, class_weight={True: 2, False: 1}, random_state=0, max_iter=2000)
    scores = machine.fit(train_x, source.marks.values[:, 1] == 1).decision_function(test_x)
    assert result["details"]["map"]["my dog"] == pytest.approx(svm.average_precision(scores, column == 1))
    kept = column != 0
    assert kept.sum() == 11
    ignored = svm.average_precision(scores[kept], column[kept] == 1, eleven_points=True)
    assert result["details"]["map_devkit"]["my dog"] == pytest.approx(ignored)
    chosen = evaluate(trained, "linear", train=spec, quiet=True, cost="benchmark")["settings"]
    candidates = svm.candidates("benchmark")
    expected = [svm.best_cost(train_x, column == 1, candidates) for column in source.marks.values.T]
    assert chosen["cost"] == "benchmark"
    assert list(chosen["costs"].values()) == expected
    few = evaluate(trained, "lowshot", train=spec, quiet=True, shots=[2], draws=2)["metrics"]
    assert few.keys() == {"map@2", "map_devkit@2"}
    for protocol in ("knn", "clustering", "semisup", "information"):
        with pytest.raises(UserError, match="may have several classes"):
            evaluate(trained, protocol, train=spec, quiet=True)


def test_places_and_imagenet_in_their_published_layouts(trained, photos, tmp_path):
    images = tmp_path / "places" / "images256"
    shutil.copytree(photos, images / "s")
    names = sorted(p.relative_to(images).as_posix() for p in images.rglob("*.png"))
    lists = tmp_path / "places" / "trainvalsplit_places205"
    lists.mkdir()
    for file, part in (("train_places205.csv", names[::2]), ("val_places205.csv", names[1::2])):
        (lists / file).write_text("".join(f"{name} {int(name[7])}\n" for name in part))
    train, test = (open_source(f"Places205:{tmp_path / 'places'}", part) for part in ("train", "test"))
    assert (len(train), len(test)) == (24, 24)
    assert set(train.labels) == {"s/slope0", "s/slope1", "s/slope2"}
    for split in ("train", "val"):
        shutil.copytree(photos, tmp_path / "imagenet" / split)
    train, test = (open_source(f"ImageNet:{tmp_path / 'imagenet'}", part) for part in ("train", "test"))
    assert set(train.labels) == set(test.labels) == {"slope0", "slope1", "slope2"}
    assert train.files[0] != test.files[0]
    result = evaluate(trained, "linear", train=f"Places205:{tmp_path / 'places'}", quiet=True, epochs=1)
    assert result["settings"]["views"] == "augmented"
    assert result["settings"]["cells"] == 2


def test_imagenet_is_recognised_by_its_classes():
    """A thousand synsets are ImageNet under any name; fewer, more or other classes are not."""
    synsets = [f"n{i:08d}" for i in range(1000)]
    assert is_imagenet(synsets)
    others = [synsets[:999], [*synsets, "n99999999"], [*synsets[:999], "dog"], [*synsets[:999], "n0000000"], []]
    assert not any(map(is_imagenet, [*others, [f"{synset}x" for synset in synsets]]))
    for spec, labels, name in (
        ("photos/train", synsets * 2, "ImageNet"),
        ("photos/train", synsets[:10], ""),
        ("ImageNet:photos", ["cat", "dog"], "ImageNet"),
        ("CIFAR10:photos", ["cat", "dog"], "CIFAR10"),
        ("STL10:photos", synsets, "ImageNet"),
    ):
        source = SimpleNamespace(spec=spec, labels=labels, marks=None)
        assert Task(None, source, source, None, None, None).dataset_name == name


def test_lists_that_are_not_text_are_refused(voc):
    root = voc / "VOCdevkit" / "VOC2007"
    key = (root / "ImageSets" / "Main" / "test.txt").read_text().split()[0]
    (root / "Annotations" / f"{key}.xml").write_bytes(b"<?xml version='1.0' encoding='nonsense'?><annotation/>")
    with pytest.raises(UserError, match=r"cannot read the annotation .*xml: .*nonsense"):
        open_source(f"VOC2007@test:{voc}")
    (root / "ImageSets" / "Main" / "test.txt").write_bytes(b"\xff\xfe\x81")
    with pytest.raises(UserError, match=r"VOC2007@test:.* cannot be read: .*decode"):
        open_source(f"VOC2007@test:{voc}")
