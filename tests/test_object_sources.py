"""Open, join and load images with objects."""

import builtins

import numpy as np
import pytest
from PIL import Image

from annotated import coco_file, coco_object, make_coco, make_voc, save_image, voc_object, voc_xml
from protonce.data.object_sources import join, load_image, open_objects, shared_files
from protonce.errors import UserError


@pytest.mark.parametrize("spec", ["photos", "CIFAR10:x", "builtin", "", "COCO:"])
def test_names_without_objects(spec):
    with pytest.raises(
        UserError, match="has no objects that can be read; give VOC2007:ROOT, VOC2012:ROOT, VOC:ROOT or"
    ):
        open_objects(spec, "train")


def test_a_missing_folder(tmp_path):
    with pytest.raises(UserError, match=r"missing is not a folder; give the folder that contains COCO"):
        open_objects(f"COCO:{tmp_path / 'missing'}", "train")


@pytest.fixture
def two(tmp_path):
    """Two sets with classes of their own."""
    make_voc(tmp_path / "one", train={"a": voc_xml(voc_object("nut"), voc_object("bolt")), "b": voc_xml()})
    make_voc(tmp_path / "two", train={"a": voc_xml(voc_object("nut"), voc_object("eye", (1, 1, 9, 99)))})
    return [open_objects(f"VOC:{tmp_path / name}", "train") for name in ("one", "two")]


def test_join(two):
    joined = join(two)
    assert joined.classes == ["bolt", "nut", "eye"]
    assert len(joined) == len(joined.files) == len(joined.objects) == len(joined.sizes) == 3
    named = [[joined.classes[code] for code in found.classes] for found in joined.objects]
    assert named == [["nut", "bolt"], [], ["nut", "eye"]]
    assert joined.faults == two[1].faults != []
    assert joined.identity not in (two[0].identity, two[1].identity, join(two[::-1]).identity)
    assert joined.spec == f"{two[0].spec}, {two[1].spec}"
    assert join(two[:1]) is two[0]
    assert np.array_equal(two[0].objects[0].classes, [1, 0])  # as before


def test_the_same_image_in_two_sets(two, tmp_path):
    assert shared_files(*two) == []
    (tmp_path / "link").symlink_to(tmp_path / "one")
    again = open_objects(f"VOC:{tmp_path / 'link'}", "train")
    assert shared_files(two[0], again) == shared_files(again, two[0]) == ["JPEGImages/a.jpg", "JPEGImages/b.jpg"]
    with pytest.raises(UserError, match=r"share 2 images, for example JPEGImages/a\.jpg"):
        join([two[1], two[0], again])


def test_pixels_stay_where_they_are_stored(tmp_path):
    """Boxes are for the stored pixels, whatever the EXIF block says."""
    exif = Image.Exif()
    exif[0x0112] = 6  # turn by 90 degrees
    make_coco(tmp_path, coco_file(coco_object(), images=(7,)), images=())
    save_image(tmp_path / "train2017" / "007.jpg", exif=exif, quality=100, subsampling=0)
    images = open_objects(f"COCO:{tmp_path}", "train")
    assert images.sizes.tolist() == [[40, 30]]
    assert images.faults == []
    found = load_image(images, 0)
    with Image.open(images.files[0]) as image:
        assert image.getexif()[0x0112] == 6
        np.testing.assert_array_equal(found, np.asarray(image))
    assert found.shape == (30, 40, 3)
    assert found.dtype == np.uint8


@pytest.mark.parametrize("mode", ["L", "P", "CMYK", "RGBA"])
def test_images_of_any_mode_are_rgb(tmp_path, mode):
    make_voc(tmp_path, train={"a": voc_xml(voc_object())})
    (tmp_path / "JPEGImages" / "a.jpg").unlink()
    suffix = "tif" if mode == "CMYK" else "png"
    Image.new("RGB", (40, 30), (255, 0, 0)).convert(mode).save(tmp_path / "JPEGImages" / f"a.{suffix}")
    found = load_image(open_objects(f"VOC:{tmp_path}", "train"), 0)
    expected = 76 if mode == "L" else (255, 0, 0)
    np.testing.assert_allclose(found, np.broadcast_to(expected, (30, 40, 3)), atol=2)


def test_files_that_changed(two):
    images = two[0]
    images.files[0].write_bytes(images.files[0].read_bytes()[:400])
    with pytest.raises(UserError, match=r"cannot read .*a\.jpg: .*; repair it or remove it from the annotations"):
        load_image(images, 0)
    Image.new("RGB", (8, 9)).save(images.files[1])
    with pytest.raises(UserError, match=r"b\.jpg has 8 x 9 pixels, but had 40 x 30 before"):
        load_image(images, 1)


def test_reading_needs_no_extra_package(tmp_path, monkeypatch):
    """Only polygons and COCO's metrics do."""
    original = builtins.__import__

    def refuse(name, *args, **kwargs):
        if name.startswith(("faster_coco_eval", "pycocotools")):
            raise ImportError(name)
        return original(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", refuse)
    make_coco(tmp_path, coco_file(coco_object()))
    assert open_objects(f"COCO:{tmp_path}", "train").has_masks
