"""Objects in the layout of COCO: what is read, and what happens to annotations that are wrong."""

import json
import re
import shutil

import pytest

from annotated import SQUARE, coco_file, coco_object, make_coco, save_image
from protonce.data.object_sources import open_objects
from protonce.errors import UserError

RUNS = {"size": [30, 40], "counts": [100, 50, 1050]}


def test_boxes_classes_masks_and_crowds(tmp_path):
    content = coco_file(
        coco_object(5, image=9, category=3, bbox=(0, 1.5, 40, 20.25)),
        coco_object(6, image=7, segmentation=RUNS, iscrowd=1),
        coco_object(7, image=9, category=17, segmentation=(SQUARE, SQUARE[:6])),
        images=(7, 9, 11),
    )
    make_coco(tmp_path, content, images=(7, 9, 11))
    found = open_objects(f"COCO:{tmp_path}", "train")
    assert found.classes == ["car", "cat", "dog"]  # by their ids 3, 17, 18
    assert found.names == ["train2017/007.jpg", "train2017/009.jpg", "train2017/011.jpg"]
    assert found.objects[1].boxes.tolist() == [[0, 1.5, 40, 21.75], [10, 5, 20, 15]]
    assert found.objects[1].classes.tolist() == [0, 1]
    assert found.objects[1].areas.tolist() == [99.5, 99.5]  # of the file
    assert found.objects[1].masks == [[SQUARE], [SQUARE, SQUARE[:6]]]
    assert found.objects[0].masks == [RUNS]
    assert [there.crowd.tolist() for there in found.objects] == [[True], [False, False], []]
    assert found.objects[2].boxes.shape == (0, 4)
    assert found.has_masks
    assert found.faults == []


def test_boxes_without_masks(tmp_path):
    plain = {key: value for key, value in coco_object().items() if key not in ("segmentation", "area", "iscrowd")}
    make_coco(tmp_path, coco_file(plain, coco_object(2, segmentation=[])))
    found = open_objects(f"COCO:{tmp_path}", "train")
    assert not found.has_masks
    assert found.objects[0].areas.tolist() == [100, 99.5]
    assert found.faults == []


def test_splits(tmp_path):
    for split, image in (("train2017", 7), ("val2017", 9), ("cells", 11)):
        make_coco(tmp_path, coco_file(coco_object(image=image), images=(image,)), split, (image,))
    for spec, part, name in (
        ("COCO", "train", "train2017/007.jpg"),
        ("COCO", "test", "val2017/009.jpg"),
        ("COCO@val", "train", "val2017/009.jpg"),
        ("COCO@val2017", "train", "val2017/009.jpg"),
        ("COCO@cells", "test", "cells/011.jpg"),
    ):
        assert open_objects(f"{spec}:{tmp_path}", part).names == [name]
    with pytest.raises(
        UserError, match=r"no instances_x2017.json or instances_x.json; choose .* cells, train2017, val"
    ):
        open_objects(f"COCO@x:{tmp_path}", "train")


@pytest.mark.parametrize("place", ["train2017", "images", ".", "images/others"])
def test_a_missing_image_folder_is_replaced_by_the_one_that_has_the_images(tmp_path, place):
    make_coco(tmp_path, coco_file(coco_object()), "val2017")
    (tmp_path / "val2017").rename(tmp_path / "moved")
    for file in list((tmp_path / "moved").iterdir()):
        (tmp_path / place).mkdir(parents=True, exist_ok=True)
        file.rename(tmp_path / place / file.name)
    found = open_objects(f"COCO:{tmp_path}", "test")
    assert [file.parent for file in found.files] == [tmp_path / place] * 2
    said = "ROOT" if place == "." else place
    assert found.faults == [
        f"instances_val2017.json: there is no folder val2017 with its images, which were read from {said}"
    ]


def test_images_below_the_folder_named_images(tmp_path):
    make_coco(tmp_path, coco_file(coco_object()))
    (tmp_path / "images").mkdir()
    (tmp_path / "train2017").rename(tmp_path / "images" / "train2017")
    found = open_objects(f"COCO:{tmp_path}", "train")
    assert found.names[0] == "images/train2017/007.jpg"
    assert found.faults == []


def test_classes_are_those_of_the_training_images(tmp_path):
    make_coco(tmp_path, coco_file(coco_object(1), coco_object(2, category=3)))
    found = open_objects(f"COCO:{tmp_path}", "train", ["zebra", "dog"])
    assert found.classes == ["zebra", "dog"]
    assert found.objects[0].classes.tolist() == [1]
    assert found.faults == [
        "instances_train2017.json, annotation 2: its category 3 is not one of the classes, and it was left out"
    ]


def second(**values):
    return coco_object(2, **values)


FEW = [1.0, 2.0, 3.0, 4.0]
BAD_OBJECTS = {  # annotation, whether it is kept, faults
    "no width": (second(bbox=(5, 5, 0, 9)), False, [r"its box \(5, 5, 0, 9\) has no area and was left out"]),
    "negative": (second(bbox=(5, 5, -3, 9)), False, [r"its box \(5, 5, -3, 9\) has no area and was left out"]),
    "outside": (
        second(bbox=(50, 5, 3, 9)),
        False,
        [r"its box \(50, 5, 3, 9\) has no area within the image of 40 x 30"],
    ),
    "beyond": (second(bbox=(30, 5, 30, 9)), True, [r"its box \(30, 5, 30, 9\) reaches beyond .* and was clipped"]),
    "too narrow": (second(bbox=(30, 5, 1e-9, 9)), False, [r"its box .* has no area within the image"]),
    "three numbers": (second(bbox=(5, 5, 3)), False, ["its bbox is not x, y, width and height, and it was left out"]),
    "text": (second(bbox=(5, 5, "3", 9)), False, ["its bbox is not x, y, width and height"]),
    "not finite": (second(bbox=(5, 5, float("nan"), 9)), False, ["its bbox is not x, y, width and height"]),
    "huge": (second(bbox=(5, 5, 10**400, 9)), False, ["its bbox is not x, y, width and height"]),
    "no box": (second(bbox=()), False, ["its bbox is not x, y, width and height"]),
    "unknown class": (second(category=99), False, ["its category 99 is not one of the classes, and it was left out"]),
    "no class": (second(category=None), False, ["its category None is not one of the classes"]),
    "list as class": (second(category=[1]), False, [r"its category \[1\] is not one of the classes"]),
    "unknown image": (second(image=99), False, ["it is for image 99, which is not listed, and was left out"]),
    "list as image": (second(image=[9]), False, [r"it is for image \[9\], which is not listed"]),
    "two points": (second(segmentation=(FEW,)), False, ["a polygon has 2 points, fewer than 3, and it was left out"]),
    "one of two": (second(segmentation=(FEW, SQUARE)), True, ["a polygon has 2 points, fewer than 3, and was dropped"]),
    "odd": (second(segmentation=(SQUARE[:7],)), False, ["a polygon is not a list of x, y, x, y, ..., and it was left"]),
    "far": (second(segmentation=([0, 0, 9, 9, 1e6, 0],)), False, ["a polygon has a corner more than 100,000 pixels"]),
    "huge corner": (second(segmentation=([0, 0, 9, 9, 10**400, 0],)), False, ["a polygon is not a list of x, y"]),
    "no polygon": (second(segmentation=(None,)), False, ["a polygon is not a list of x, y"]),
    "no mask": (second(segmentation=[]), False, ["it has no segmentation, and it was left out"]),
    "null mask": (
        second(segmentation=None),
        False,
        ["its segmentation is neither polygons nor run lengths, and it was"],
    ),
    "other size": (
        second(segmentation={**RUNS, "size": [40, 30]}),
        False,
        ["its run lengths are not for an image of 40"],
    ),
    "short": (second(segmentation={**RUNS, "counts": [9]}), False, ["its run lengths add up to 9, not to 40 x 30"]),
    "negative run": (
        second(segmentation={**RUNS, "counts": [-1, 1201]}),
        False,
        ["its run lengths are not whole numbers"],
    ),
    "bad code": (second(segmentation={**RUNS, "counts": "é"}), False, ["its run lengths are not a string in COCO's"]),
    "no area": (second(area=None), True, ["it has no area; that of its box was used"]),
    "not an object": (["x"], False, ["it is not an object of JSON and was left out"]),
}


@pytest.mark.parametrize(("annotation", "kept", "faults"), BAD_OBJECTS.values(), ids=BAD_OBJECTS.keys())
def test_bad_objects_are_listed(tmp_path, annotation, kept, faults):
    make_coco(tmp_path, coco_file(coco_object(), annotation))
    found = open_objects(f"COCO:{tmp_path}", "train")
    there = found.objects[0]
    assert len(there.boxes) == len(there.masks) == len(there.areas) == len(there.classes) == 1 + kept
    assert len(found) == 2
    assert len(found.faults) == len(faults)
    for said, fault in zip(found.faults, faults, strict=True):
        number = "number 2" if isinstance(annotation, list) else "2"
        assert re.match(f"instances_train2017.json, annotation {number}: {fault}", said), said


def test_usable_parts_of_bad_objects(tmp_path):
    bad = [second(segmentation=(FEW, SQUARE)), coco_object(3, bbox=(30, -5, 30, 9)), coco_object(4, area=-1)]
    make_coco(tmp_path, coco_file(*bad))
    there = open_objects(f"COCO:{tmp_path}", "train").objects[0]
    assert there.masks[0] == [SQUARE]
    assert there.boxes[1].tolist() == [30, 0, 40, 4]
    assert there.areas.tolist() == [99.5, 99.5, 100]


def entries(**changes):
    """Two good images, and a change to the first."""
    content = coco_file(coco_object(image=9), coco_object(2, image=7))
    content["images"][0] |= changes
    return content


@pytest.mark.parametrize(
    ("content", "left", "fault"),
    [
        (entries(file_name="x.jpg"), 1, "train2017/x.jpg cannot be read and was left out: does not exist"),
        (entries(file_name=None), 1, "instances_train2017.json: 1 images have no id or no file_name and were left out"),
        (entries(file_name="a\0b"), 1, r"train2017/a\x00b cannot be read and was left out: "),
        (
            entries(width=99),
            2,
            "instances_train2017.json gives 99 x 30 pixels for train2017/007.jpg, but it has 40 x 30",
        ),
        (entries(id=9), 1, "instances_train2017.json: image 9 is listed twice; the second was left out"),
    ],
    ids=["missing", "no name", "zero byte", "size", "twice"],
)
def test_bad_images_are_listed(tmp_path, content, left, fault):
    make_coco(tmp_path, content)
    found = open_objects(f"COCO:{tmp_path}", "train")
    assert len(found) == len(found.objects) == left
    assert found.sizes.tolist() == [[40, 30]] * left
    assert found.faults[0].startswith(fault)


def without(key):
    return {name: value for name, value in coco_file(coco_object()).items() if name != key}


@pytest.mark.parametrize(
    ("content", "error"),
    [
        ("{", "is not JSON: Expecting property name"),
        ("[" * 100_000, "is not JSON: "),
        ("9" * 5000, "is not JSON: "),
        ([], "is not an annotation file of COCO: it has no list of images and of annotations and of categories"),
        (without("images"), "it has no list of images"),
        (without("annotations"), "it has no list of annotations"),
        (without("categories"), "it has no list of categories"),
        (coco_file(coco_object(), images=()), "is empty: it lists no images"),
        (coco_file(coco_object(), categories=[]), "has no categories; an object detector needs at least one class"),
        (coco_file(coco_object(), categories=[{"id": 1}]), "a category needs a number as id and a name, but there is"),
        (
            coco_file(coco_object(), categories=[{"id": 1, "name": "a"}, {"id": 2, "name": "a"}]),
            "two categories have the id 2 or the name 'a'; each must be unique",
        ),
        (coco_file(), "no usable object on 2 images; it has no annotations"),
        (
            coco_file(coco_object(category=1)),
            "no usable object on 2 images; the first fault: instances_train2017.json, ",
        ),
        (coco_file(coco_object(), images=(1, 2)), "none of 2 images can be used; train2017/002.jpg cannot be read"),
        (coco_file(coco_object(), images=[]) | {"images": [3]}, "none of 1 images can be used; "),
    ],
)
def test_files_that_cannot_be_used(tmp_path, content, error):
    make_coco(tmp_path, content)
    with pytest.raises(UserError) as raised:
        open_objects(f"COCO:{tmp_path}", "train")
    assert error in str(raised.value)
    assert "\n" not in str(raised.value)


def test_folders_that_cannot_be_used(tmp_path):
    with pytest.raises(UserError, match=r"layout of COCO: there is no annotations/instances_SPLIT\.json in ROOT"):
        open_objects(f"COCO:{tmp_path}", "train")
    make_coco(tmp_path, coco_file(coco_object()))
    shutil.rmtree(tmp_path / "train2017")
    with pytest.raises(UserError, match="has no folder train2017, and no other folder there has the images"):
        open_objects(f"COCO:{tmp_path}", "train")


def test_annotations_of_images_that_are_left_out_are_not_listed_again(tmp_path):
    make_coco(tmp_path, coco_file(coco_object(1, image=9), coco_object(2), coco_object(3)))
    (tmp_path / "train2017" / "007.jpg").unlink()
    assert len(open_objects(f"COCO:{tmp_path}", "train").faults) == 1


def test_the_identity_is_that_of_images_and_annotations(tmp_path):
    def identity(content, classes=None):
        make_coco(tmp_path, content)
        return open_objects(f"COCO:{tmp_path}", "train", classes).identity

    first = identity(coco_file(coco_object()))
    assert identity(coco_file(coco_object())) == first
    assert identity(coco_file(coco_object(bbox=(10, 5, 10, 9)))) != first
    assert identity(coco_file(coco_object()), ["dog"]) != first
    save_image(tmp_path / "train2017" / "007.jpg", quality=10)
    (tmp_path / "annotations" / "instances_train2017.json").write_text(json.dumps(coco_file(coco_object())))
    assert open_objects(f"COCO:{tmp_path}", "train").identity != first


def test_coco128(shared_data):
    """The same 128 photos under both names, which lie in train2017."""
    train, test = (open_objects(f"COCO:{shared_data / 'coco128'}", part) for part in ("train", "test"))
    assert train.faults == []
    assert test.faults == [
        "instances_val2017.json: there is no folder val2017 with its images, which were read from train2017"
    ]
    for found in (train, test):
        assert (len(found), len(found.classes)) == (128, 80)
        assert found.classes[:3] == ["person", "bicycle", "car"]
        assert sum(len(there.boxes) for there in found.objects) == 939
        assert sum(there.crowd.sum() for there in found.objects) == 10
        assert sum(len(there.boxes) == 0 for there in found.objects) == 2
        assert found.has_masks
