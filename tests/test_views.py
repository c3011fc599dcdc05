"""Views, operation by operation, against torchvision's per-image recipe: the same pixels, the same distribution."""

import dataclasses
import io
import math

import numpy as np
import pytest
import torch
import torchvision.transforms.functional as TF
from PIL import Image, ImageFilter
from scipy.stats import ks_2samp
from torchvision.transforms import ColorJitter, RandomResizedCrop

from protonce.auto import DataSize, Machine, resolve
from protonce.config import Settings, read_recipe
from protonce.data import views as V
from protonce.data.pictures import decode
from protonce.data.views import ImageViews, Samples

CPU = Machine("cpu", bfloat16=False, faiss=False, cores=1)


def settings(recipe="pcl-v2", **changes):
    values = {**read_recipe(recipe), "clusters": [4], "batch_size": 16, **changes}
    return resolve(Settings.from_mapping(values, "test"), DataSize(1000, 48), CPU)


def images(n=24, h=20, w=20, seed=0):
    return torch.rand(n, 3, h, w, generator=torch.Generator().manual_seed(seed))


def each(operation, batch, factors):
    return torch.stack([operation(image, float(f)) for image, f in zip(batch, factors, strict=True)])


@pytest.mark.parametrize(
    ("ours", "theirs", "low", "high"),
    [
        (V.adjust_brightness, TF.adjust_brightness, 0.6, 1.4),
        (V.adjust_contrast, TF.adjust_contrast, 0.6, 1.4),
        (V.adjust_saturation, TF.adjust_saturation, 0.6, 1.4),
        (V.adjust_hue, TF.adjust_hue, -0.5, 0.5),
    ],
)
def test_colour_operations_are_torchvisions(ours, theirs, low, high):
    batch = images()
    batch[0] = 0.5  # grey: no hue
    batch[1] = 0.0
    batch[2, :, :, :10] = 1.0
    factors = torch.linspace(low, high, len(batch))
    torch.testing.assert_close(ours(batch, factors), each(theirs, batch, factors), atol=2e-5, rtol=1e-4)


def test_greyscale_is_torchvisions():
    batch = images()
    torch.testing.assert_close(V.greyscale(batch), TF.rgb_to_grayscale(batch, 3), atol=1e-5, rtol=1e-4)


def test_jitter_applies_each_images_factors_in_its_own_order():
    batch = images()
    generator = torch.Generator().manual_seed(1)
    factors = torch.rand(len(batch), 4, generator=generator) * 0.8 + 0.6
    factors[:, 3] -= 1
    order = V.ORDERS[torch.arange(len(batch)) % 24]
    operations = (TF.adjust_brightness, TF.adjust_contrast, TF.adjust_saturation, TF.adjust_hue)
    expected = []
    for image, f, turn in zip(batch, factors, order, strict=True):
        for which in turn.tolist():
            image = operations[which](image, float(f[which]))
        expected.append(image)
    torch.testing.assert_close(V.jitter(batch, factors, order), torch.stack(expected), atol=5e-5, rtol=1e-3)


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
    ours = V.crop_resize(batch, boxes.astype(float), size, flip)
    torch.testing.assert_close(ours, torch.stack(expected), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(("sigmas", "error"), [(3, 1e-5), (6, 0.25 / 255)], ids=["to three sigma", "all of it"])
def test_gaussian_blur_is_a_gaussian_with_edges_continued(sigmas, error):
    batch = images(n=4)
    sigma = torch.tensor([0.1, 0.5, 1.0, 2.0])
    expected = []
    for image, s in zip(batch, sigma, strict=True):
        reach = math.ceil(sigmas * s)
        offsets = torch.arange(-reach, reach + 1.0)
        kernel = torch.exp(-0.5 * (offsets / s) ** 2)
        kernel = torch.outer(kernel, kernel) / kernel.sum() ** 2
        padded = torch.nn.functional.pad(image[None], (reach,) * 4, mode="replicate")[0]
        expected.append(torch.nn.functional.conv2d(padded[:, None], kernel[None, None])[:, 0])
    torch.testing.assert_close(V.gaussian_blur(batch, sigma), torch.stack(expected), atol=error, rtol=1e-4)


def test_gaussian_blur_is_pillows_whose_radius_is_sigma():
    """Pillow approximates the Gaussian by boxes, on bytes: a few of 255 grey levels apart."""
    smooth = torch.nn.functional.interpolate(images(n=1, h=6, w=6), size=40, mode="bicubic").clamp(0, 1)
    picture = Image.fromarray((smooth[0].permute(1, 2, 0) * 255).round().byte().numpy())
    for sigma in (0.7, 1.3, 2.0):
        theirs = torch.tensor(np.array(picture.filter(ImageFilter.GaussianBlur(sigma)))).permute(2, 0, 1) / 255
        ours = V.gaussian_blur(smooth, torch.tensor([sigma]))[0]
        assert (ours - theirs).abs().max() < 4 / 255


def many(n=4000, epoch=0):
    return Samples(None, torch.arange(n), seed=0, epoch=epoch)


def crop_draws(samples):
    return samples.uniform("query crop", 4 * V.TRIES)


@pytest.mark.parametrize("shape", [(32, 32), (40, 90), (90, 20)], ids=["square", "wide", "very tall"])
def test_boxes_have_random_resized_crops_distribution(shape):
    """The 1 in 1000 level of a two-sample test on each of top, left, height and width."""
    n = 4000
    sizes = np.tile(np.array(shape), (n, 1))
    ours = V.random_boxes(crop_draws(many(n)), sizes, [0.2, 1.0])
    torch.manual_seed(0)
    blank = torch.zeros(3, *shape)
    theirs = np.array([RandomResizedCrop.get_params(blank, [0.2, 1.0], [3 / 4, 4 / 3]) for _ in range(n)])
    for column, name in enumerate(("top", "left", "height", "width")):
        assert ks_2samp(ours[:, column], theirs[:, column], method="asymp").pvalue > 0.001, name
    assert (ours[:, 0] + ours[:, 2] <= shape[0]).all()
    assert (ours[:, 1] + ours[:, 3] <= shape[1]).all()


def test_an_impossible_crop_falls_back_to_the_centre_as_torchvisions_does():
    for shape in ((4, 100), (100, 4)):
        ours = V.random_boxes(crop_draws(many(1)), np.array([shape]), [1.0, 1.0])[0]
        theirs = RandomResizedCrop.get_params(torch.zeros(3, *shape), [1.0, 1.0], [3 / 4, 4 / 3])
        assert ours.tolist() == list(theirs)


def test_jitter_factors_and_orders_have_color_jitters_distribution():
    drawn = ImageViews(settings(jitter_p=1.0))._draw_colours(many(), "query", torch.device("cpu"))
    theirs = ColorJitter(0.4, 0.4, 0.4, 0.1)
    torch.manual_seed(0)
    draws = [theirs.get_params(theirs.brightness, theirs.contrast, theirs.saturation, theirs.hue) for _ in range(4000)]
    for which in range(4):
        assert ks_2samp(drawn.factors[:, which].numpy(), [d[which + 1] for d in draws]).pvalue > 0.001
    _, counts = np.unique(drawn.order, axis=0, return_counts=True)
    assert len(counts) == 24
    assert counts.min() > 4000 / 24 * 0.7


@pytest.mark.parametrize(("name", "p"), [("flip_p", 0.5), ("grey_p", 0.2), ("jitter_p", 0.8), ("blur_p", 0.5)])
def test_each_operation_is_drawn_with_its_probability(name, p, monkeypatch):
    """Everything off but one operation, and the crop the whole image; the share of images that are changed."""
    monkeypatch.setattr(V, "random_boxes", lambda u, sizes, scale: np.tile([0.0, 0.0, 8.0, 8.0], (n, 1)))
    off = {"flip_p": 0.0, "grey_p": 0.0, "jitter_p": 0.0, "blur_p": 0.0}
    n = 2000
    views = ImageViews(settings(image_size=8, plain_resize=8, **{**off, name: p}))
    pixels = (images(n=1, h=8, w=8) * 255).byte().expand(n, -1, -1, -1)
    samples = Samples((pixels, torch.full((n, 2), 8)), torch.arange(n), seed=3, epoch=0)
    plain = views.plain(samples)
    query, _ = views.train(samples)
    changed = (query - plain).abs().amax(dim=(1, 2, 3)) > 1e-3
    assert changed.float().mean().item() == pytest.approx(p, abs=0.04)


def test_versions_differ_in_order_and_blur(monkeypatch):
    """v1: grey, then jitter, never blurred. v2: jitter, then grey, then blur."""
    pixels = (images(n=64, h=16, w=16) * 255).byte()
    samples = Samples((pixels, torch.full((64, 2), 16)), torch.arange(64), seed=0, epoch=0)
    plain = {"image_size": 16, "mean": [0.0] * 3, "std": [1.0] * 3, "grey_p": 1.0, "jitter_p": 1.0}
    crops = V.crop_resize(pixels / 255, V.random_boxes(crop_draws(samples), np.full((64, 2), 16), [0.2, 1.0]), 16)
    factors, order = torch.tensor([[1.3, 0.7, 1.2, 0.0]]).repeat(64, 1), V.ORDERS[:1].repeat(64, axis=0)
    draw = ImageViews._draw_colours
    monkeypatch.setattr(
        ImageViews, "_draw_colours", lambda *given: dataclasses.replace(draw(*given), factors=factors, order=order)
    )
    blurred = {"blur_p": 1.0, "blur_sigma": [1.0, 1.0], "flip_p": 0.0}
    v1, _ = ImageViews(settings("pcl-v1", **plain, **blurred)).train(samples)
    v2, _ = ImageViews(settings("pcl-v2", **plain, **blurred)).train(samples)
    first = V.jitter(TF.rgb_to_grayscale(crops, 3), factors, order)
    second = V.gaussian_blur(TF.rgb_to_grayscale(V.jitter(crops, factors, order), 3), torch.ones(64))
    torch.testing.assert_close(v1, first, atol=1e-4, rtol=1e-3)
    torch.testing.assert_close(v2, second, atol=1e-4, rtol=1e-3)
    assert not torch.allclose(first, TF.rgb_to_grayscale(V.jitter(crops, factors, order), 3), atol=1e-2)


def test_views_are_normalised():
    s = settings(image_size=16, plain_resize=16, mean=[0.1, 0.2, 0.3], std=[0.5, 2.0, 4.0])
    pixels = (images(n=3, h=16, w=16) * 255).byte()
    ours = ImageViews(s).plain(Samples((pixels, torch.full((3, 2), 16)), torch.arange(3), 0, 0))
    torch.testing.assert_close(ours, TF.normalize(pixels / 255, [0.1, 0.2, 0.3], [0.5, 2.0, 4.0]))


def test_draws_depend_on_image_epoch_and_seed_alone():
    """Not on the batch an image stands in; query and key differ; so do epochs and seeds."""
    views = ImageViews(settings(image_size=16))
    pixels = (images(n=8, h=16, w=16) * 255).byte()
    sizes = torch.full((8, 2), 16)

    def train(rows, epoch=0, seed=0):
        return views.train(Samples((pixels[rows], sizes[rows]), rows, seed, epoch))

    rows = torch.arange(8)
    query, key = train(rows)
    torch.testing.assert_close(train(torch.tensor([5, 2]))[0], query[[5, 2]])
    assert not torch.allclose(query, key)
    assert not torch.allclose(train(rows, epoch=1)[0], query)
    assert not torch.allclose(train(rows, seed=1)[0], query)


def plain_crop(views, array):
    return views.crop(array, views.plain_boxes(array.shape[:2]), resize_first=True)


def smooth(height, width):
    """A picture of slow waves, which loses nothing when it is made smaller."""
    y, x = np.mgrid[:height, :width]
    waves = [np.sin(x / 60 + y / 90), np.cos(x / 80), np.sin(y / 70)]
    return (np.stack(waves, axis=2) * 100 + 128).astype(np.uint8)


# Where it is turned, the crop may lie up to a reduced pixel aside, and the waves rise by 1.7 a pixel.
@pytest.mark.parametrize(("orientation", "most"), [(1, 6), (6, 6 + 8 * 1.7)])
def test_a_jpeg_that_is_decoded_smaller_gives_the_same_crops(orientation, most):
    s = settings(image_size=24, plain_resize=27)
    views, buffer = ImageViews(s), io.BytesIO()
    image = Image.fromarray(smooth(500, 700))
    exif = image.getexif()
    exif[0x0112] = orientation
    image.save(buffer, format="JPEG", quality=95, subsampling=0, exif=exif)
    whole, shape, _ = decode(buffer)
    assert whole.shape[:2] == shape == ((500, 700) if orientation == 1 else (700, 500))
    reductions = []
    for index in range(12):
        for plain in (False, True):
            boxes = views.plain_boxes(shape) if plain else views.random_boxes(shape, index, seed=0, epoch=0)
            smaller, told, factor = decode(buffer, lambda *_, b=boxes: views.reduction(b))
            assert told == shape
            assert smaller.shape[:2] == (math.ceil(shape[0] / factor), math.ceil(shape[1] / factor))
            reductions.append(factor)
            assert (boxes[:, 2:] / factor).min() >= 24 or factor == 1, "a crop is never enlarged for it"
            a = views.crop(whole, boxes, resize_first=plain).float()
            b = views.crop(smaller, boxes / factor, resize_first=plain).float()
            assert (a - b).abs().max() < most
    assert max(reductions) == 8
    assert min(boxes.min() for boxes in [views.random_boxes(shape, i, 0, 0) for i in range(12)]) >= 0


def test_workers_cut_the_crops_that_the_map_path_cuts():
    """A large image cropped by Pillow in a worker is the small image cropped by matrices, to a byte's rounding."""
    s = settings(image_size=16, flip_p=0.5, jitter_p=0.0, grey_p=0.0, blur_p=0.0, mean=[0.0] * 3, std=[1.0] * 3)
    views = ImageViews(s)
    array = np.random.default_rng(0).integers(0, 256, (30, 30, 3), dtype=np.uint8)
    index, sizes = torch.tensor([7]), torch.tensor([[30, 30]])
    crops = views.crop(array, views.random_boxes((30, 30), 7, seed=0, epoch=4), resize_first=False)[None]
    pixels = torch.tensor(array).permute(2, 0, 1)[None]
    streamed = views.train(Samples(crops, index, 0, 4))
    mapped = views.train(Samples((pixels, sizes), index, 0, 4))
    for a, b in zip(streamed, mapped, strict=True):
        assert (a - b).abs().max() < 1.5 / 255
    a = views.plain(Samples(plain_crop(views, array)[None], index, 0, 0))
    b = views.plain(Samples((pixels, sizes), index, 0, 0))
    assert (a - b).abs().max() < 1.5 / 255


def test_plain_view_is_resize_and_centre_crop():
    s = settings(image_size=28, plain_resize=32, mean=[0.0] * 3, std=[1.0] * 3)
    array = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    ours = ImageViews(s).plain(Samples(plain_crop(ImageViews(s), array)[None], torch.tensor([0]), 0, 0))[0]
    whole = TF.resize(torch.tensor(array).permute(2, 0, 1).float() / 255, [32, 32], antialias=True)
    assert (ours - TF.center_crop(whole, [28, 28])).abs().max() < 0.02


@pytest.mark.parametrize("version", ["pcl-v1", "pcl-v2"])
def test_views_in_one_go_are_those_of_torch(monkeypatch, version):
    """Numba's second way, on one thread and on two: every operation, order, flip, grey and sigma, and all at once."""
    pytest.importorskip("numba", reason="the extra `fast` is not installed")
    crops = torch.stack([(images(n=24, h=V.LARGE, w=V.LARGE) * 255).byte()] * 2, dim=1)  # (24, 2, 3, s, s)
    crops[0] = 7  # without colour, where hue has no meaning
    samples = Samples(crops, torch.arange(24), seed=0, epoch=0)
    changes = {
        "as usual": {},
        "all of it": {"jitter_p": 1.0, "grey_p": 0.5, "blur_p": 1.0, "blur_sigma": [0.1, 3.0]},
        "nothing": {"jitter_p": 0.0, "grey_p": 0.0, "blur_p": 0.0, "flip_p": 0.0},
        "hue alone": {"jitter": [0.0, 0.0, 0.0, 0.5], "jitter_p": 1.0},
        "contrast alone": {"jitter": [0.0, 0.9, 0.0, 0.0], "jitter_p": 1.0},
    }
    for name, change in changes.items():
        views = ImageViews(settings(version, image_size=V.LARGE, **change))
        monkeypatch.setattr(V, "FUSED", False)
        expected = views.train(samples)
        monkeypatch.setattr(V, "FUSED", True)
        for threads in (1, 2):
            monkeypatch.setattr(torch, "get_num_threads", lambda threads=threads: threads)
            for ours, theirs in zip(views.train(samples), expected, strict=True):
                torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=0, msg=f"{name}, {threads} threads")


@pytest.mark.parametrize("version", ["pcl-v1", "pcl-v2"])
def test_large_images_one_by_one_are_the_whole_batch(monkeypatch, version):
    """On a CPU each large image takes its turn, for the sake of the cache; the views are those of the batch."""
    crops = torch.stack([(images(n=8, h=V.LARGE, w=V.LARGE) * 255).byte()] * 2, dim=1)  # (8, 2, 3, s, s)
    samples = Samples(crops, torch.arange(8), seed=0, epoch=0)
    views = ImageViews(settings(version, image_size=V.LARGE))
    monkeypatch.setattr(V, "FUSED", False)
    one_by_one = views.train(samples)
    monkeypatch.setattr(V, "LARGE", 10**6)
    for a, b in zip(one_by_one, views.train(samples), strict=True):
        torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-5)
