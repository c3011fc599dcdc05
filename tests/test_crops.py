"""Crops: torchvision's RandomResizedCrop and antialiased resize, for batches and in workers; tiles by a naive loop."""

import numpy as np
import pytest
import torch
import torchvision.transforms.functional as TF
from scipy.stats import ks_2samp
from torchvision.transforms import RandomResizedCrop

from conftest import images
from protonce.data import crops as C
from protonce.data.crops import Squares
from protonce.data.views import Samples


def crop_draws(n):
    return Samples(None, torch.arange(n), seed=0, epoch=0).uniform("query crop", 4 * C.TRIES)


@pytest.mark.parametrize("size", [8, 20, 31])
def test_crop_resize_is_torchvisions_antialiased_crop(size):
    """Larger and smaller than the box, mirrored and not: crop, resize with antialias, flip."""
    batch = images(h=26, w=20)
    rng = np.random.default_rng(0)
    boxes = np.stack(
        [(rng.integers(0, 10), rng.integers(0, 8), rng.integers(3, 17), rng.integers(3, 13)) for _ in batch]
    )
    flip = np.arange(len(batch)) % 2 == 0
    expected = []
    for image, box, mirrored in zip(batch, boxes.tolist(), flip, strict=True):
        cut = TF.resized_crop(image, *box, [size, size], antialias=True)
        expected.append(TF.hflip(cut) if mirrored else cut)
    ours = C.crop_resize(batch, boxes.astype(float), size, flip)
    torch.testing.assert_close(ours, torch.stack(expected), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("shape", [(32, 32), (40, 90), (90, 20)], ids=["square", "wide", "very tall"])
def test_boxes_have_random_resized_crops_distribution(shape):
    """The 1 in 1000 level of a two-sample test on each of top, left, height and width."""
    n = 4000
    sizes = np.tile(np.array(shape), (n, 1))
    ours = C.random_boxes(crop_draws(n), sizes, [0.2, 1.0])
    torch.manual_seed(0)
    blank = torch.zeros(3, *shape)
    theirs = np.array([RandomResizedCrop.get_params(blank, [0.2, 1.0], [3 / 4, 4 / 3]) for _ in range(n)])
    for column, name in enumerate(("top", "left", "height", "width")):
        assert ks_2samp(ours[:, column], theirs[:, column], method="asymp").pvalue > 0.001, name
    assert (ours[:, 0] + ours[:, 2] <= shape[0]).all()
    assert (ours[:, 1] + ours[:, 3] <= shape[1]).all()


def test_an_impossible_crop_falls_back_to_the_centre_as_torchvisions_does():
    for shape in ((4, 100), (100, 4)):
        ours = C.random_boxes(crop_draws(1), np.array([shape]), [1.0, 1.0])[0]
        theirs = RandomResizedCrop.get_params(torch.zeros(3, *shape), [1.0, 1.0], [3 / 4, 4 / 3])
        assert ours.tolist() == list(theirs)


@pytest.mark.parametrize("resize_first", [False, True])
@pytest.mark.parametrize("size", [9, 24, 50])
def test_a_worker_crops_as_the_batch_does(size, resize_first):
    """By torch or Pillow on bytes, against matrices on floats, for whole pixels and for parts of them."""
    array = np.random.default_rng(0).integers(0, 256, (40, 36, 3), dtype=np.uint8)
    batch = torch.from_numpy(array).permute(2, 0, 1)[None] / 255
    for box in ((0.0, 0.0, 40.0, 36.0), (3.0, 5.0, 20.0, 14.0), (2.5, 4.25, 22.5, 30.75)):
        ours = C.crop_array(array, np.array(box), size, resize_first)
        assert (ours.shape, ours.dtype) == ((3, size, size), torch.uint8)
        expected = C.crop_resize(batch, np.array([box]), size, resize_first=resize_first)[0]
        error = (ours / 255 - expected).abs()
        if not resize_first and box[0] % 1:  # Pillow gives a line that is cut its full weight
            error = error[:, 2:-2, 2:-2]
        assert error.max() < 1.5 / 255


def test_squares_are_cropped_by_boxes_in_original_pixels():
    pixels = (images(n=3, h=24, w=24) * 255).byte()
    sizes = torch.tensor([[24, 24], [12, 24], [48, 8]])
    boxes = np.array([[2, 3, 10, 12], [1, 6, 6, 12], [8, 2, 32, 4]], dtype=float)
    flip = np.array([False, True, False])
    ours = C.crop_squares(Squares(pixels, sizes), boxes, 10, flip)
    for row, (h, w) in enumerate(sizes.tolist()):
        top, left, height, width = boxes[row] * np.array([24 / h, 24 / w] * 2)
        box = [int(v) for v in (top, left, height, width)]
        expected = TF.resized_crop(pixels[row] / 255, *box, [10, 10], antialias=True)
        torch.testing.assert_close(ours[row], TF.hflip(expected) if flip[row] else expected, atol=1e-4, rtol=1e-4)


def test_an_image_is_reduced_only_as_far_as_every_crop_allows():
    boxes = np.array([[0, 0, 400, 300], [10, 10, 90, 120]], dtype=float)
    assert C.reduction(boxes, [224, 96]) == 1
    assert C.reduction(boxes, [150, 45]) == 2
    assert C.reduction(boxes, [75, 45]) == 2
    assert C.reduction(boxes, [75, 22]) == 4
    assert C.reduction(boxes[:1], [30]) == 8


@pytest.mark.parametrize(("size", "tiles", "tile_size"), [(24, 3, 5), (26, 3, 8), (20, 2, 1), (9, 1, 4)])
def test_tiles_are_squares_of_the_cells_of_a_grid(size, tiles, tile_size):
    batch, n = images(n=5, h=size, w=size), tiles * tiles
    u = np.random.default_rng(0).random((5, 2 * n))
    u[0], u[1] = 0.0, 1 - 1e-12  # the first and the last place in a cell
    ours = C.cut_tiles(batch, tiles, tile_size, u)
    assert ours.shape == (5, n, 3, tile_size, tile_size)
    cell = size // tiles
    for b in range(5):
        for row in range(tiles):
            for column in range(tiles):
                tile = row * tiles + column
                y, x = (int(u[b, 2 * tile + axis] * (cell - tile_size + 1)) for axis in (0, 1))
                inside = batch[b, :, row * cell : (row + 1) * cell, column * cell : (column + 1) * cell]
                assert torch.equal(ours[b, tile], inside[:, y : y + tile_size, x : x + tile_size])


def test_a_tile_may_be_the_whole_cell():
    batch = images(n=2, h=12, w=12)
    ours = C.cut_tiles(batch, 3, 4, np.random.default_rng(0).random((2, 18)))
    rows = [torch.cat(ours[:, 3 * row : 3 * row + 3].unbind(1), dim=3) for row in range(3)]
    assert torch.equal(torch.cat(rows, dim=2), batch)
