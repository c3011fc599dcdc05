"""Objects in the layout of VOC: what is read, and what happens to annotations that are wrong."""

import os
import re

import pytest

from annotated import make_voc, save_image, voc_object, voc_xml
from protonce.data import voc_layout
from protonce.data.object_sources import open_objects
from protonce.data.paper_datasets import VOC_CLASSES
from protonce.errors import UserError

GOOD = voc_xml(voc_object())


def test_boxes_classes_and_flags(tmp_path):
    text = voc_xml(voc_object("dog", (1, 1, 5, 3)), voc_object("cat", (11, 6, 40, 30), difficult=1))
    make_voc(tmp_path / "VOCdevkit" / "VOC2007", trainval={"b": text, "a": voc_xml()}, test={"c": GOOD})
    found = open_objects(f"VOC2007:{tmp_path}", "train")
    assert found.names == ["JPEGImages/a.jpg", "JPEGImages/b.jpg"]  # an image without objects stays
    assert found.classes == VOC_CLASSES
    assert found.sizes.tolist() == [[40, 30], [40, 30]]
    assert found.objects[0].boxes.shape == (0, 4)
    there = found.objects[1]
    assert there.boxes.tolist() == [[0, 0, 5, 3], [10, 5, 40, 30]]  # inclusive pixels from 1 to continuous from 0
    assert there.areas.tolist() == [15, 750]
    assert [found.classes[code] for code in there.classes] == ["dog", "cat"]
    assert there.difficult.tolist() == [False, True]
    assert not there.crowd.any()
    assert there.masks is None
    assert not found.has_masks
    assert found.faults == []
    test = open_objects(f"VOC2007:{tmp_path}", "test")
    assert test.names == ["JPEGImages/c.jpg"]
    assert open_objects(f"VOC2007@test:{tmp_path}", "train").identity == test.identity != found.identity


@pytest.mark.parametrize(
    ("splits", "train", "test"),
    [
        (["train", "val", "trainval", "test"], "trainval", "test"),
        (["train", "val", "trainval"], "train", "val"),  # trainval contains val
        (["train", "test"], "train", "test"),
        (["trainval", "val"], "trainval", "val"),
    ],
)
def test_splits_of_other_data(tmp_path, splits, train, test):
    make_voc(tmp_path, **{split: {split: GOOD} for split in splits})
    assert open_objects(f"VOC:{tmp_path}", "train").names == [f"JPEGImages/{train}.jpg"]
    found = open_objects(f"VOC:{tmp_path}", "test")
    assert found.names == [f"JPEGImages/{test}.jpg"]


def test_voc2012_trains_on_trainval_and_tests_on_val(tmp_path):
    """VOC07+12 of the papers; the annotations of its test split were never published."""
    make_voc(tmp_path, train={"a": GOOD}, val={"b": GOOD}, trainval={"a": GOOD, "b": GOOD})
    assert len(open_objects(f"VOC2012:{tmp_path}", "train")) == 2
    test = open_objects(f"VOC2012:{tmp_path}", "test")
    assert test.names == ["JPEGImages/b.jpg"]


def test_classes_are_those_of_the_training_images(tmp_path):
    train = voc_xml(voc_object("nut"), voc_object("bolt"))
    make_voc(tmp_path, train={"a": train}, val={"b": voc_xml(voc_object("bolt"), voc_object("washer"))})
    found = open_objects(f"VOC:{tmp_path}", "train")
    assert found.classes == ["bolt", "nut"]
    assert found.objects[0].classes.tolist() == [1, 0]
    test = open_objects(f"VOC:{tmp_path}", "test", found.classes)
    assert test.classes == ["bolt", "nut"]
    assert test.objects[0].classes.tolist() == [0]
    assert test.faults == [
        "Annotations/b.xml, object 2: its class 'washer' is not one of the 2 classes, and it was left out"
    ]


def bad_box(*box):
    return voc_xml(voc_object(), voc_object("dog", box))


BAD_OBJECTS = {  # annotation, boxes that are kept, fault
    "no width": (bad_box(9, 2, 9, 8), 1, r"object 2: its box \(9, 2, 9, 8\) has no area and was left out"),
    "negative": (bad_box(9, 2, 3, 8), 1, r"object 2: its box \(9, 2, 3, 8\) has no area and was left out"),
    "outside": (
        bad_box(51, 2, 60, 8),
        1,
        r"object 2: its box \(51, 2, 60, 8\) has no area within the image of 40 x 30",
    ),
    "beyond": (bad_box(31, 2, 60, 8), 2, r"object 2: its box \(31, 2, 60, 8\) reaches beyond .* and was clipped"),
    "not numbers": (bad_box(1, "x", 3, 4), 1, r"object 2: its bndbox has no four numbers"),
    "not finite": (bad_box(1, 1, "nan", 4), 1, r"object 2: its box \(1, 1, nan, 4\) is not finite"),
    "infinite": (bad_box(1, 1, "1e999", 4), 1, r"object 2: its box \(1, 1, inf, 4\) is not finite"),
    "no box": (
        voc_xml(voc_object(), "<object><name>cat</name></object>"),
        1,
        r"object 2: its bndbox has no four numbers",
    ),
    "no class": (voc_xml(voc_object(), voc_object("")), 1, r"object 2: its class '' is not one of the 20 classes"),
    "other class": (voc_xml(voc_object("yak"), voc_object()), 1, r"object 1: its class 'yak' is not one of the 20"),
    "size": (
        voc_xml(voc_object(), size=(500, 375)),
        1,
        r"gives 500 x 375 pixels, but the image has 40 x 30, which was",
    ),
}


@pytest.mark.parametrize(("text", "kept", "fault"), BAD_OBJECTS.values(), ids=BAD_OBJECTS.keys())
def test_bad_objects_are_listed(tmp_path, text, kept, fault):
    make_voc(tmp_path, trainval={"a": text})
    found = open_objects(f"VOC2007:{tmp_path}", "train")
    assert len(found.objects[0].boxes) == len(found.objects[0].classes) == kept
    assert found.sizes.tolist() == [[40, 30]]
    (said,) = found.faults
    assert said.startswith("Annotations/a.xml")
    assert re.search(fault, said)


def test_clipped_boxes_end_with_the_image(tmp_path):
    make_voc(tmp_path, trainval={"a": voc_xml(voc_object(box=(31, -5, 60, 99)), voc_object(box=(0, 0, 41, 31)))})
    found = open_objects(f"VOC2007:{tmp_path}", "train")
    assert found.objects[0].boxes.tolist() == [[30, 0, 40, 30], [0, 0, 40, 30]]
    assert len(found.faults) == 1  # the second counts pixels from 0, which is clipped without a word


def missing_image(root):
    (root / "JPEGImages" / "b.jpg").unlink()


def damaged_image(root):
    (root / "JPEGImages" / "b.jpg").write_bytes(b"no image")


def missing_annotation(root):
    (root / "Annotations" / "b.xml").unlink()


def no_xml(root):
    (root / "Annotations" / "b.xml").write_text("<annotation><object>")


def unknown_encoding(root):
    (root / "Annotations" / "b.xml").write_bytes(b"<?xml version='1.0' encoding='nonsense'?><annotation/>")


def pipe(root):
    (root / "Annotations" / "b.xml").unlink()
    os.mkfifo(root / "Annotations" / "b.xml")


def entities(root, encoding="utf-8"):
    text = f"<?xml version='1.0' encoding='{encoding}'?><!DOCTYPE a [<!ENTITY x 'cat'>]><annotation>&x;</annotation>"
    (root / "Annotations" / "b.xml").write_bytes(text.encode(encoding))


def entities_in_utf16(root):
    entities(root, "utf-16")


def huge(root):
    with (root / "Annotations" / "b.xml").open("wb") as file:
        file.truncate(voc_layout.MOST_BYTES + 1)


@pytest.mark.parametrize(
    ("damage", "fault"),
    [
        (missing_image, "JPEGImages/b.jpg cannot be read and was left out: does not exist"),
        (damaged_image, "JPEGImages/b.jpg cannot be read and was left out: not a supported image format"),
        (missing_annotation, "Annotations/b.xml cannot be read, and the image was left out: No such file"),
        (no_xml, "Annotations/b.xml cannot be read, and the image was left out: it is not valid XML (no element"),
        (unknown_encoding, "Annotations/b.xml cannot be read, and the image was left out: it is not valid XML"),
        (pipe, "Annotations/b.xml cannot be read, and the image was left out: not a regular file"),
        (entities, "Annotations/b.xml cannot be read, and the image was left out: it declares XML entities"),
        (entities_in_utf16, "Annotations/b.xml cannot be read, and the image was left out: it declares XML entities"),
        (huge, "Annotations/b.xml cannot be read, and the image was left out: it has more than 50,000,000 bytes"),
    ],
)
def test_images_that_cannot_be_used_are_left_out(tmp_path, damage, fault):
    make_voc(tmp_path, trainval={"a": GOOD, "b": GOOD, "c": GOOD})
    damage(tmp_path)
    found = open_objects(f"VOC2007:{tmp_path}", "train")
    assert found.names == ["JPEGImages/a.jpg", "JPEGImages/c.jpg"]
    assert len(found.objects) == len(found.files) == len(found.sizes) == 2
    (said,) = found.faults
    assert said.startswith(fault)


def test_other_image_formats(tmp_path):
    make_voc(tmp_path, trainval={"a": GOOD})
    (tmp_path / "JPEGImages" / "a.jpg").unlink()
    save_image(tmp_path / "JPEGImages" / "a.png")
    assert open_objects(f"VOC2007:{tmp_path}", "train").names == ["JPEGImages/a.png"]


def test_sets_that_cannot_be_used(tmp_path):
    def error(spec, part="train"):
        with pytest.raises(UserError) as raised:
            open_objects(f"{spec}:{tmp_path}", part)
        return str(raised.value)

    assert "does not have the layout of VOC: no ImageSets/Main" in error("VOC2007")
    make_voc(tmp_path, trainval={}, bytes={}, none={"a": GOOD, "b": GOOD}, own={"c": voc_xml(voc_object("yak"))})
    make_voc(tmp_path, empty={"d": voc_xml()})
    assert "trainval.txt is empty" in error("VOC2007")
    assert "has no split 'test': ImageSets/Main/test.txt does not exist" in error("VOC2007", "test")
    assert "has no split 'test'" in error("VOC", "test")
    for key in "ab":
        (tmp_path / "JPEGImages" / f"{key}.jpg").unlink()
    assert "split none: none of 2 images can be used; the first fault: JPEGImages/a.jpg cannot" in error("VOC2007@none")
    said = error("VOC2007@own")
    assert "split own: no usable object on 1 images; the first fault: Annotations/c.xml, object 1: its class" in said
    assert said.endswith("for classes of your own write VOC:ROOT")
    assert error("VOC@empty").endswith("no usable object on 1 images; their annotations are empty")
    (tmp_path / "ImageSets" / "Main" / "bytes.txt").write_bytes(b"\xff\xfe\xfa")
    assert "cannot be read" in error("VOC2007@bytes")


def test_photos_in_the_layout_of_voc2007(shared_data):
    root = shared_data / "voc_layout"
    train, test = (open_objects(f"VOC2007:{root}", part) for part in ("train", "test"))
    assert (len(train), len(test)) == (364, 167)
    assert train.faults == test.faults == []
    assert sum(len(found.boxes) for found in train.objects + test.objects) == 2916
    assert sum(found.difficult.sum() for found in train.objects + test.objects) == 45


def test_blood_cells(shared_data):
    root = shared_data / "bccd_voc" / "BCCD"
    train = open_objects(f"VOC:{root}", "train")
    test = open_objects(f"VOC:{root}", "test", train.classes)
    assert (len(train), len(test)) == (292, 72)
    assert train.classes == ["Platelets", "RBC", "WBC"]
    assert sum(len(found.boxes) for found in train.objects + test.objects) == 4888 - 2
    assert [fault.split(":")[0] for fault in train.faults] == [
        "Annotations/BloodImage_00338.xml, object 13",
        "Annotations/BloodImage_00343.xml, object 4",
    ]
    assert test.faults == []
