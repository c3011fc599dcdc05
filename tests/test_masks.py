"""Masks as COCO writes them: against pycocotools, and by hand."""

import sys

import numpy as np
import pytest

from protonce.data.masks import encode, fault, pixels
from protonce.data.object_sources import open_objects
from protonce.errors import UserError

mask_tools = pytest.importorskip("pycocotools.mask", reason="pip install 'protonce[peers]'")


def theirs(mask, width, height):
    """The bitmap by pycocotools, as its annToMask makes it."""
    if isinstance(mask, list):
        runs = mask_tools.merge(mask_tools.frPyObjects(mask, height, width))
    else:
        runs = mask_tools.frPyObjects(mask, height, width) if isinstance(mask["counts"], list) else mask
    return mask_tools.decode(runs).astype(bool)


def bitmaps():
    rng = np.random.default_rng(0)
    yield from (rng.random((h, w)) < share for h, w, share in ((7, 5, 0.5), (1, 9, 0.3), (9, 1, 0.7), (40, 300, 0.02)))
    yield from (np.zeros((4, 6), bool), np.ones((4, 6), bool))
    y, x = np.mgrid[:300, :500]
    yield (x - 200) ** 2 + (y - 150) ** 2 < 100**2  # its run lengths need several characters, and negative differences


@pytest.mark.parametrize("bitmap", list(bitmaps()))
def test_run_lengths(bitmap):
    height, width = bitmap.shape
    plain = encode(bitmap)
    np.testing.assert_array_equal(pixels(plain, width, height), bitmap)
    np.testing.assert_array_equal(theirs(plain, width, height), bitmap)
    coded = mask_tools.encode(np.asfortranarray(bitmap.astype(np.uint8)))
    np.testing.assert_array_equal(pixels(coded | {"size": [height, width]}, width, height), bitmap)
    text = {"size": [height, width], "counts": coded["counts"].decode()}
    np.testing.assert_array_equal(pixels(text, width, height), bitmap)
    assert mask_tools.frPyObjects(plain, height, width)["counts"] == coded["counts"]


def test_run_lengths_by_hand():
    """Down the columns, outside first: three pixels outside, two inside, one outside."""
    mask = {"size": [2, 3], "counts": [3, 2, 1]}
    assert pixels(mask, 3, 2).tolist() == [[False, False, True], [False, True, False]]
    assert encode(np.array([[True, False]])) == {"size": [1, 2], "counts": [0, 1, 1]}


def test_polygons():
    pytest.importorskip("faster_coco_eval")
    square = pixels([[2, 1, 6, 1, 6, 4, 2, 4]], 8, 5)
    assert square.shape == (5, 8)
    assert square.dtype == bool
    expected = np.zeros((5, 8), bool)
    expected[1:4, 2:6] = True
    np.testing.assert_array_equal(square, expected)
    rng = np.random.default_rng(1)
    for _ in range(50):
        polygons = [rng.uniform(-10, 70, 2 * rng.integers(3, 9)).tolist() for _ in range(rng.integers(1, 4))]
        np.testing.assert_array_equal(pixels(polygons, 60, 40), theirs(polygons, 60, 40))


def test_masks_of_coco128(shared_data):
    images = open_objects(f"COCO:{shared_data / 'coco128'}", "train")
    for found, (width, height) in zip(images.objects, images.sizes.tolist(), strict=True):
        for mask in found.masks:
            np.testing.assert_array_equal(pixels(mask, width, height), theirs(mask, width, height))


@pytest.mark.parametrize(
    ("mask", "reason"),
    [
        (None, "neither polygons nor run lengths"),
        ([], "neither polygons nor run lengths"),
        ([[1, 2, 3, 4]], "2 points"),
        ([[1, 2, 3, 4, 5, True]], "not a list of x, y"),
        ({"counts": [6]}, "not for an image of 3 x 2"),
        ({"size": [3, 2], "counts": [6]}, "not for an image of 3 x 2"),
        ({"size": [2, 3]}, "not whole numbers"),
        ({"size": [2, 3], "counts": [1.5, 4.5]}, "not whole numbers"),
        ({"size": [2, 3], "counts": [7]}, "add up to 7"),
        ({"size": [2, 3], "counts": [10**4299] * 11}, "add up to"),
        ({"size": [2, 3], "counts": "6!"}, "not a string in COCO's code"),
        ({"size": [2, 3], "counts": "6" + "o" * 100}, "not a string in COCO's code"),
        ({"size": [2, 3], "counts": "Q"}, "end within a number"),
        ({"size": [2, 3], "counts": "N8"}, "not whole numbers"),
    ],
)
def test_masks_that_are_wrong(mask, reason):
    """Neither crash the process nor take its memory."""
    assert reason in fault(mask, 3, 2)
    with pytest.raises(ValueError, match=reason):
        pixels(mask, 3, 2)


def test_without_the_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "faster_coco_eval", None)
    with pytest.raises(UserError, match=r"need faster-coco-eval: pip install 'protonce\[detection\]'"):
        pixels([[0, 0, 2, 0, 2, 2]], 3, 2)
    assert pixels({"size": [2, 3], "counts": [6]}, 3, 2).sum() == 0
