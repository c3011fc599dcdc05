"""Views as they are composed: chances, versions, specifications, small images and large ones."""

import dataclasses
import io
import itertools
import math
import pickle

import numpy as np
import pytest
import torch
import torchvision.transforms.functional as TF
from PIL import Image

from conftest import images
from protonce.auto import DataSize, Machine, resolve
from protonce.config import Settings, read_recipe
from protonce.data import views as V
from protonce.data.colours import ORDERS, Colours, gaussian_blur, jitter
from protonce.data.crops import TRIES, Squares, crop_resize, random_boxes
from protonce.data.loader import Loader
from protonce.data.pictures import decode
from protonce.data.sources import open_source
from protonce.data.views import TWO_VIEWS, ImageViews, Item, Samples, ViewSpec, crop_views
from protonce.methods.registry import find, part

CPU = Machine("cpu", bfloat16=False, faiss=False, cores=1)
UNCHANGED = {"jitter_p": 0.0, "grey_p": 0.0, "blur_p": 0.0, "mean": [0.0] * 3, "std": [1.0] * 3}


def settings(recipe="pcl-v2", **changes):
    common, _ = part({**read_recipe(recipe), "clusters": [4], "batch_size": 16, **changes}, find("pcl"), "test")
    return resolve(Settings(**common), DataSize(1000, 48), CPU)


def squares(n, side=16):
    """Samples of small images."""
    pixels = (images(n=n, h=side, w=side) * 255).byte()
    return Samples(Squares(pixels, torch.full((n, 2), side)), torch.arange(n), seed=0, epoch=0)


@pytest.mark.parametrize(("name", "p"), [("flip_p", 0.5), ("grey_p", 0.2), ("jitter_p", 0.8), ("blur_p", 0.5)])
def test_each_operation_is_drawn_with_its_probability(name, p, monkeypatch):
    """Everything off but one operation, and the crop the whole image; the share of images that are changed."""
    monkeypatch.setattr(V, "random_boxes", lambda u, sizes, scale: np.tile([0.0, 0.0, 8.0, 8.0], (n, 1)))
    off = {"flip_p": 0.0, "grey_p": 0.0, "jitter_p": 0.0, "blur_p": 0.0}
    n = 2000
    views = ImageViews(settings(image_size=8, plain_resize=8, **{**off, name: p}))
    pixels = (images(n=1, h=8, w=8) * 255).byte().expand(n, -1, -1, -1)
    samples = Samples(Squares(pixels, torch.full((n, 2), 8)), torch.arange(n), seed=3, epoch=0)
    plain = views.plain(samples)
    query, _ = views.train(samples)
    changed = (query - plain).abs().amax(dim=(1, 2, 3)) > 1e-3
    assert changed.float().mean().item() == pytest.approx(p, abs=0.04)


def test_versions_differ_in_order_and_blur(monkeypatch):
    """v1: grey, then jitter, never blurred. v2: jitter, then grey, then blur."""
    samples = squares(n=64)
    plain = {"image_size": 16, "mean": [0.0] * 3, "std": [1.0] * 3, "grey_p": 1.0, "jitter_p": 1.0}
    boxes = random_boxes(samples.uniform("query crop", 4 * TRIES), np.full((64, 2), 16), [0.2, 1.0])
    crops = crop_resize(samples.data.pixels / 255, boxes, 16)
    factors, order = torch.tensor([[1.3, 0.7, 1.2, 0.0]]).repeat(64, 1), ORDERS[:1].repeat(64, axis=0)
    sample = Colours.sample
    monkeypatch.setattr(
        Colours, "sample", lambda *given: dataclasses.replace(sample(*given), factors=factors, order=order)
    )
    blurred = {"blur_p": 1.0, "blur_sigma": [1.0, 1.0], "flip_p": 0.0}
    v1, _ = ImageViews(settings("pcl-v1", **plain, **blurred)).train(samples)
    v2, _ = ImageViews(settings("pcl-v2", **plain, **blurred)).train(samples)
    first = jitter(TF.rgb_to_grayscale(crops, 3), factors, order)
    second = gaussian_blur(TF.rgb_to_grayscale(jitter(crops, factors, order), 3), torch.ones(64))
    torch.testing.assert_close(v1, first, atol=1e-4, rtol=1e-3)
    torch.testing.assert_close(v2, second, atol=1e-4, rtol=1e-3)
    assert not torch.allclose(first, TF.rgb_to_grayscale(jitter(crops, factors, order), 3), atol=1e-2)


def test_views_are_normalised():
    s = settings(image_size=16, plain_resize=16, mean=[0.1, 0.2, 0.3], std=[0.5, 2.0, 4.0])
    pixels = (images(n=3, h=16, w=16) * 255).byte()
    ours = ImageViews(s).plain(Samples(Squares(pixels, torch.full((3, 2), 16)), torch.arange(3), 0, 0))
    torch.testing.assert_close(ours, TF.normalize(pixels / 255, [0.1, 0.2, 0.3], [0.5, 2.0, 4.0]))


def test_views_depend_only_on_image_epoch_and_seed():
    """Not on the batch an image stands in; query and key differ; so do epochs and seeds."""
    views = ImageViews(settings(image_size=16))
    pixels = (images(n=8, h=16, w=16) * 255).byte()
    sizes = torch.full((8, 2), 16)

    def train(rows, epoch=0, seed=0):
        return views.train(Samples(Squares(pixels[rows], sizes[rows]), rows, seed, epoch))

    rows = torch.arange(8)
    query, key = train(rows)
    torch.testing.assert_close(train(torch.tensor([5, 2]))[0], query[[5, 2]])
    assert not torch.allclose(query, key)
    assert not torch.allclose(train(rows, epoch=1)[0], query)
    assert not torch.allclose(train(rows, seed=1)[0], query)


def smooth(height, width):
    """A picture of slow waves, which loses nothing when it is made smaller."""
    y, x = np.mgrid[:height, :width]
    waves = [np.sin(x / 60 + y / 90), np.cos(x / 80), np.sin(y / 70)]
    return (np.stack(waves, axis=2) * 100 + 128).astype(np.uint8)


def item(array, index=0, epoch=0, plain=False, encoded=None):
    return Item(index, seed=0, epoch=epoch, plain=plain, load=lambda: array, encoded=encoded)


def prepared(views, array, **of_item):
    """What a loader makes of one large image: a batch of each crop."""
    return [crop[None] for crop in views.prepare(item(array, **of_item))]


# Where it is turned, the crop may lie up to a reduced pixel aside, and the waves rise by 1.7 a pixel.
@pytest.mark.parametrize(("orientation", "most"), [(1, 6), (6, 6 + 8 * 1.7)])
def test_a_jpeg_that_is_decoded_smaller_gives_the_same_crops(orientation, most, monkeypatch):
    views, buffer = ImageViews(settings(image_size=24, plain_resize=27)), io.BytesIO()
    image = Image.fromarray(smooth(500, 700))
    exif = image.getexif()
    exif[0x0112] = orientation
    image.save(buffer, format="JPEG", quality=95, subsampling=0, exif=exif)
    whole, shape, _ = decode(buffer)
    assert whole.shape[:2] == shape == ((500, 700) if orientation == 1 else (700, 500))
    pictures = []
    monkeypatch.setattr(V, "decode", lambda *given: pictures.append(decode(*given)) or pictures[-1])
    for index in range(12):
        for plain in (False, True):
            loaded = item(whole, index, plain=plain)
            encoded = dataclasses.replace(loaded, encoded=lambda: io.BytesIO(buffer.getvalue()))
            boxes = views.boxes(loaded, shape)
            assert boxes.min() >= 0
            pairs = zip(views.prepare(loaded), views.prepare(encoded), strict=True)
            assert all((a.float() - b.float()).abs().max() < most for a, b in pairs)
            smaller, told, factor = pictures[-1]
            assert told == shape
            assert smaller.shape[:2] == (math.ceil(shape[0] / factor), math.ceil(shape[1] / factor))
            assert (boxes[:, 2:] / factor).min() >= 24 or factor == 1, "a crop is never enlarged for it"
    assert max(factor for *_, factor in pictures) == 8
    assert len(pictures) == 24


def test_workers_cut_the_crops_that_the_map_path_cuts():
    """A large image cropped by Pillow in a worker is the small image cropped by matrices, to a byte's rounding."""
    s = settings(image_size=16, flip_p=0.5, **UNCHANGED)
    views = ImageViews(s)
    array = np.random.default_rng(0).integers(0, 256, (30, 30, 3), dtype=np.uint8)
    index, whole = torch.tensor([7]), Squares(torch.tensor(array).permute(2, 0, 1)[None], torch.tensor([[30, 30]]))
    streamed = views.train(Samples(prepared(views, array, index=7, epoch=4), index, 0, 4))
    mapped = views.train(Samples(whole, index, 0, 4))
    for a, b in zip(streamed, mapped, strict=True):
        assert (a - b).abs().max() < 1.5 / 255
    a = views.plain(Samples(prepared(views, array, plain=True), index, 0, 0))
    b = views.plain(Samples(whole, index, 0, 0))
    assert (a - b).abs().max() < 1.5 / 255


def test_plain_view_is_resize_and_centre_crop():
    views = ImageViews(settings(image_size=28, plain_resize=32, mean=[0.0] * 3, std=[1.0] * 3))
    array = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    ours = views.plain(Samples(prepared(views, array, plain=True), torch.tensor([0]), 0, 0))[0]
    whole = TF.resize(torch.tensor(array).permute(2, 0, 1).float() / 255, [32, 32], antialias=True)
    assert (ours - TF.center_crop(whole, [28, 28])).abs().max() < 0.02


@pytest.mark.parametrize("version", ["pcl-v1", "pcl-v2"])
def test_large_images_one_by_one_are_the_whole_batch(monkeypatch, version):
    """On a CPU each large image takes its turn, by torch or compiled; the views are those of the batch."""
    size = V.LARGE
    crops = [(images(n=8, h=s, w=s) * 255).byte() for s in (size, size, size - 8)]
    samples = Samples(crops, torch.arange(8), seed=0, epoch=0)
    specs = (*TWO_VIEWS, ViewSpec("small", size=size - 8, solarise_p=0.5))
    views = ImageViews(settings(version, image_size=size), specs)
    compiled = views.train(samples)
    monkeypatch.setattr(V, "FUSED", False)
    one_by_one = views.train(samples)
    monkeypatch.setattr(V, "LARGE", 10**6)
    whole = views.train(samples)
    for a, b, c in zip(compiled, one_by_one, whole, strict=True):
        torch.testing.assert_close(a, c, atol=1e-4, rtol=0)
        torch.testing.assert_close(b, c, atol=1e-5, rtol=1e-5)
    assert torch.equal(compiled[2], whole[2]), "by its own size it is not a large view"


MULTI_CROP = (
    *(ViewSpec(f"large {i}", crop_scale=(0.14, 1.0)) for i in range(2)),
    *(ViewSpec(f"small {i}", size=10, crop_scale=(0.05, 0.14)) for i in range(6)),
)


def test_two_large_and_six_small_crops_of_small_images():
    """SwAV's multi-crop: each view is the one that its specification alone gives."""
    s, samples = settings(image_size=16), squares(n=6, side=40)
    views = ImageViews(s, MULTI_CROP).train(samples)
    assert [tuple(v.shape) for v in views] == [(6, 3, 16, 16)] * 2 + [(6, 3, 10, 10)] * 6
    for view, spec in zip(views, MULTI_CROP, strict=True):
        assert torch.equal(ImageViews(s, [spec]).train(samples)[0], view)
    for alike in (views[:2], views[2:]):
        assert not any(torch.allclose(a, b) for a, b in itertools.combinations(alike, 2))


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", ["jpg", "png"])
def test_two_large_and_six_small_crops_of_large_images(tmp_path, workers, kind):
    """Cut by workers, from an image that is decoded once; the same boxes that a batch of small images has."""
    sizes = [(200, 260), (300, 220), (240, 240)]
    for i, shape in enumerate(sizes):
        Image.fromarray(smooth(*shape)).save(tmp_path / f"{i}.{kind}", **({"quality": 95} if kind == "jpg" else {}))
    views = ImageViews(settings(image_size=24, **UNCHANGED), MULTI_CROP)
    source = open_source(tmp_path)
    (samples,) = Loader(source, views, workers=workers).samples(torch.arange(3), epoch=2, batch_size=3)
    found = views.train(samples)
    for spec, view in zip(MULTI_CROP, found, strict=True):
        for i, shape in enumerate(sizes):
            size = spec.size or 24
            u = samples.uniform(f"{spec.name} crop", 4 * TRIES)[[i]]
            box = [int(v) for v in random_boxes(u, np.array([shape]), spec.crop_scale)[0]]
            whole = torch.from_numpy(source.load(i)).permute(2, 0, 1) / 255
            expected = TF.resized_crop(whole, *box, [size, size], antialias=True)
            if samples.uniform(f"{spec.name} flip", 1)[i, 0] < 0.5:
                expected = TF.hflip(expected)
            assert (view[i] - expected).abs().max() < (10 if kind == "jpg" else 2) / 255


def test_a_large_image_is_decoded_once_for_all_views(monkeypatch):
    decoded = []
    monkeypatch.setattr(V, "decode", lambda *given: decoded.append(given) or decode(*given))
    buffer = io.BytesIO()
    Image.fromarray(smooth(500, 500)).save(buffer, format="JPEG")
    views = ImageViews(settings(image_size=24), MULTI_CROP)
    crops = views.prepare(item(None, encoded=lambda: io.BytesIO(buffer.getvalue())))
    assert [tuple(crop.shape) for crop in crops] == [(3, 24, 24)] * 2 + [(3, 10, 10)] * 6
    assert len(decoded) == 1


@pytest.mark.parametrize(
    ("override", "setting"),
    [
        ({"size": 12}, {"image_size": 12}),
        ({"crop_scale": (0.05, 0.1)}, {"crop_scale": [0.05, 0.1]}),
        ({"flip_p": 1.0}, {"flip_p": 1.0}),
        ({"jitter": (0.0, 0.9, 0.0, 0.4)}, {"jitter": [0.0, 0.9, 0.0, 0.4]}),
        ({"jitter_p": 0.0}, {"jitter_p": 0.0}),
        ({"grey_p": 1.0}, {"grey_p": 1.0}),
        ({"blur_p": 1.0}, {"blur_p": 1.0}),
        ({"blur_sigma": (3.0, 4.0)}, {"blur_sigma": [3.0, 4.0]}),
    ],
)
def test_a_specification_overrides_the_settings(override, setting):
    """As if it were the setting; the other view keeps the settings."""
    samples = squares(n=16, side=20)
    changed, key = ImageViews(settings(image_size=16), [ViewSpec("query", **override), ViewSpec("key")]).train(samples)
    default = ImageViews(settings(image_size=16)).train(samples)
    expected, _ = ImageViews(settings(**{"image_size": 16, **setting})).train(samples)
    assert torch.equal(changed, expected)
    assert changed.shape != default[0].shape or not torch.equal(changed, default[0])
    assert torch.equal(key, default[1])


def test_a_specification_may_blur_and_solarise_in_either_version():
    samples = squares(n=8)
    for version in ("pcl-v1", "pcl-v2"):
        s = settings(version, image_size=16, flip_p=0.0, jitter_p=0.0, grey_p=0.0, mean=[0.0] * 3, std=[1.0] * 3)
        never = ImageViews(s, [ViewSpec("query", blur_p=0.0)]).train(samples)[0]
        blurred = ImageViews(s, [ViewSpec("query", blur_p=1.0, blur_sigma=(1, 1))]).train(samples)[0]
        both = ImageViews(s, [ViewSpec("query", blur_p=1.0, blur_sigma=(1, 1), solarise_p=1.0)]).train(samples)[0]
        torch.testing.assert_close(blurred, gaussian_blur(never, torch.ones(8)), atol=1e-5, rtol=1e-4)
        torch.testing.assert_close(both, TF.solarize(blurred.clamp(0, 1), 0.5), atol=1e-5, rtol=1e-4)


def test_a_view_depends_on_its_name_but_not_on_its_position():
    s, samples = settings(image_size=16), squares(n=8)
    query, key = ImageViews(s).train(samples)
    views = ImageViews(s, [ViewSpec("key"), ViewSpec("third"), ViewSpec("query")]).train(samples)
    assert torch.equal(views[0], key)
    assert torch.equal(views[2], query)
    assert not torch.allclose(views[1], query)


def test_tiles_are_cut_from_the_rendered_view():
    """PIRL: an image, and nine patches of another crop of it."""
    s, samples = settings(image_size=16), squares(n=5, side=40)
    specs = [ViewSpec("image"), ViewSpec("patches", size=32, tiles=3, tile_size=7)]
    image, patches = ImageViews(s, specs).train(samples)
    (rendered,) = ImageViews(s, [ViewSpec("patches", size=32)]).train(samples)
    assert torch.equal(image, ImageViews(s, specs[:1]).train(samples)[0])
    assert patches.shape == (5, 9, 3, 7, 7)
    u = samples.uniform("patches tiles", 18).reshape(5, 3, 3, 2)
    for b, row, column in itertools.product(range(5), range(3), range(3)):
        y, x = (10 * place + int(u[b, row, column, axis] * 4) for axis, place in enumerate((row, column)))
        assert torch.equal(patches[b, 3 * row + column], rendered[b, :, y : y + 7, x : x + 7])
    whole = ImageViews(s, [ViewSpec("patches", size=32, tiles=3)]).train(samples)[0]
    assert whole.shape == (5, 9, 3, 10, 10)
    assert torch.equal(whole[:, 4], rendered[:, :, 10:20, 10:20])


@pytest.mark.parametrize(
    "values",
    [
        {"name": ""},
        {"size": 0},
        {"crop_scale": (0.5, 0.2)},
        {"crop_scale": (0.5, 1.5)},
        {"crop_scale": (0.5,)},
        {"flip_p": -0.1},
        {"solarise_p": 1.1},
        {"jitter": (0.4, 0.4, 0.4)},
        {"jitter": (0.4, 0.4, 0.4, 0.6)},
        {"blur_sigma": (0.0, 1.0)},
        {"tiles": -1},
        {"tile_size": 5},
        {"tile_size": -1, "tiles": 3},
    ],
)
def test_an_invalid_specification_raises(values):
    with pytest.raises(ValueError, match=r"a view needs a name|view 'some': "):
        ViewSpec(**{"name": "some", **values})


def test_invalid_combinations_of_views_raise():
    s = settings(image_size=16)
    with pytest.raises(ValueError, match=r"names must be unique, got 'a', 'b', 'a'"):
        ImageViews(s, [ViewSpec("a"), ViewSpec("b"), ViewSpec("a")])
    with pytest.raises(ValueError, match=r"at least one view, .* got none"):
        ImageViews(s, [])
    for impossible in ({"tile_size": 6}, {"size": 8, "tile_size": 3}, {"size": 2}):
        with pytest.raises(ValueError, match="cannot be cut into 3 x 3 tiles"):
            ImageViews(s, [ViewSpec("a", tiles=3, **impossible)])


def test_views_can_be_pickled():
    """Where processes are spawned they are pickled."""
    views = pickle.loads(pickle.dumps(ImageViews(settings(image_size=24), MULTI_CROP)))
    array = smooth(200, 200)
    expected = ImageViews(settings(image_size=24), MULTI_CROP).prepare(item(array))
    assert all(torch.equal(a, b) for a, b in zip(views.prepare(item(array)), expected, strict=True))


def test_crop_views_are_one_crop_with_a_random_flip():
    s, samples = settings(image_size=16, mean=[0.0] * 3, std=[1.0] * 3), squares(n=12, side=30)
    (view,) = crop_views(s).train(samples)
    boxes = random_boxes(samples.uniform("query crop", 4 * TRIES), np.full((12, 2), 30), [0.08, 1.0])
    flip = samples.uniform("query flip", 1)[:, 0] < 0.5
    torch.testing.assert_close(view, crop_resize(samples.data.pixels / 255, boxes, 16, flip))


def test_item_and_samples_have_the_same_random_numbers():
    samples = Samples(None, torch.arange(20), seed=3, epoch=5)
    one = Item(17, seed=3, epoch=5, plain=False, load=lambda: None)
    assert np.array_equal(one.uniform("query crop", 7), samples.uniform("query crop", 7)[17])
