"""Colours, operation by operation, against torchvision and Pillow; what is drawn; compiled against plain torch."""

import math

import numpy as np
import pytest
import torch
import torchvision.transforms.functional as TF
from PIL import Image, ImageFilter, ImageOps
from scipy.stats import ks_2samp
from torchvision.transforms import ColorJitter

from conftest import images
from protonce.data import colours as C
from protonce.data.colours import Colours, ColourSettings
from protonce.data.views import Samples


def each(operation, batch, factors):
    return torch.stack([operation(image, float(f)) for image, f in zip(batch, factors, strict=True)])


@pytest.mark.parametrize(
    ("ours", "theirs", "low", "high"),
    [
        (C.adjust_brightness, TF.adjust_brightness, 0.6, 1.4),
        (C.adjust_contrast, TF.adjust_contrast, 0.6, 1.4),
        (C.adjust_saturation, TF.adjust_saturation, 0.6, 1.4),
        (C.adjust_hue, TF.adjust_hue, -0.5, 0.5),
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
    torch.testing.assert_close(C.greyscale(batch), TF.rgb_to_grayscale(batch, 3), atol=1e-5, rtol=1e-4)


def test_jitter_applies_each_images_factors_in_its_own_order():
    batch = images()
    generator = torch.Generator().manual_seed(1)
    factors = torch.rand(len(batch), 4, generator=generator) * 0.8 + 0.6
    factors[:, 3] -= 1
    order = C.ORDERS[torch.arange(len(batch)) % 24]
    operations = (TF.adjust_brightness, TF.adjust_contrast, TF.adjust_saturation, TF.adjust_hue)
    expected = []
    for image, f, turn in zip(batch, factors, order, strict=True):
        for which in turn.tolist():
            image = operations[which](image, float(f[which]))
        expected.append(image)
    torch.testing.assert_close(C.jitter(batch, factors, order), torch.stack(expected), atol=5e-5, rtol=1e-3)


@pytest.mark.parametrize(("sigmas", "error"), [(3, 1e-5), (6, 0.25 / 255)], ids=["to three sigma", "all of it"])
def test_gaussian_blur_replicates_edges(sigmas, error):
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
    torch.testing.assert_close(C.gaussian_blur(batch, sigma), torch.stack(expected), atol=error, rtol=1e-4)


def test_gaussian_blur_is_pillows_whose_radius_is_sigma():
    """Pillow approximates the Gaussian by boxes, on bytes: a few of 255 grey levels apart."""
    smooth = torch.nn.functional.interpolate(images(n=1, h=6, w=6), size=40, mode="bicubic").clamp(0, 1)
    picture = Image.fromarray((smooth[0].permute(1, 2, 0) * 255).round().byte().numpy())
    for sigma in (0.7, 1.3, 2.0):
        theirs = torch.tensor(np.array(picture.filter(ImageFilter.GaussianBlur(sigma)))).permute(2, 0, 1) / 255
        ours = C.gaussian_blur(smooth, torch.tensor([sigma]))[0]
        assert (ours - theirs).abs().max() < 4 / 255


@pytest.mark.parametrize("size", [8, 33])
def test_solarise_is_torchvisions_and_pillows(size):
    batch = (images(n=3, h=size, w=size) * 255).byte()
    batch[0, :, 0, :4] = torch.tensor([0, 127, 128, 255])
    ours = C.solarise(batch / 255)
    torch.testing.assert_close(ours, TF.solarize(batch / 255, 0.5), atol=0, rtol=0)
    for image, solarised in zip(batch, ours, strict=True):
        theirs = ImageOps.solarize(Image.fromarray(image.permute(1, 2, 0).numpy()), 128)
        torch.testing.assert_close(solarised, TF.to_tensor(theirs), atol=1e-6, rtol=0)


PLAIN = {"jitter": [0.4, 0.4, 0.4, 0.1], "blur_sigma": [0.1, 2.0], "grey_first": False}
OFF = {"jitter_p": 0.0, "grey_p": 0.0, "blur_p": 0.0, "solarise_p": 0.0}


def sample(n=4000, **changes):
    samples = Samples(None, torch.arange(n), seed=0, epoch=0)
    return Colours.sample(samples.uniform, ColourSettings(**{**PLAIN, **OFF, **changes}), torch.device("cpu"))


def test_jitter_factors_and_orders_have_color_jitters_distribution():
    drawn = sample(jitter_p=1.0)
    theirs = ColorJitter(0.4, 0.4, 0.4, 0.1)
    torch.manual_seed(0)
    draws = [theirs.get_params(theirs.brightness, theirs.contrast, theirs.saturation, theirs.hue) for _ in range(4000)]
    for which in range(4):
        assert ks_2samp(drawn.factors[:, which].numpy(), [d[which + 1] for d in draws]).pvalue > 0.001
    _, counts = np.unique(drawn.order, axis=0, return_counts=True)
    assert len(counts) == 24
    assert counts.min() > 4000 / 24 * 0.7


@pytest.mark.parametrize("grey_first", [True, False])
def test_colours_are_changed_in_their_order(grey_first):
    """v1: grey, jitter. v2: jitter, grey. Then blur, then solarise; for each image only what was drawn for it."""
    drawn = sample(128, jitter_p=0.5, grey_p=0.5, blur_p=0.5, solarise_p=0.5, grey_first=grey_first)
    batch = images(n=128)
    seen = set()
    for i, ours in enumerate(drawn.apply(batch)):
        image = batch[i : i + 1]
        if grey_first and drawn.grey[i]:
            image = C.greyscale(image)
        if drawn.jittered[i]:
            image = C.jitter(image, drawn.factors[i : i + 1], drawn.order[i : i + 1])
        if not grey_first and drawn.grey[i]:
            image = C.greyscale(image)
        if drawn.blurred[i]:
            image = C.gaussian_blur(image, drawn.sigma[i : i + 1])
        if drawn.solarised[i]:
            image = C.solarise(image)
        torch.testing.assert_close(ours, image[0], atol=1e-5, rtol=1e-5)
        seen.add((drawn.grey[i], drawn.jittered[i], drawn.blurred[i], drawn.solarised[i]))
    assert len(seen) == 16


def test_a_part_of_a_batch_has_the_colours_of_the_batch():
    drawn, batch = sample(12, jitter_p=0.5, grey_p=0.5, blur_p=0.5, solarise_p=0.5), images(n=12)
    rows = slice(4, 9)
    torch.testing.assert_close(drawn.of(rows).apply(batch[rows]), drawn.apply(batch)[rows], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("grey_first", [True, False], ids=["v1", "v2"])
@pytest.mark.parametrize("size", [32, 129])
def test_compiled_colours_are_those_of_torch(monkeypatch, grey_first, size):
    """On one thread and on two: every operation, order, flip, grey and sigma, and all at once."""
    pytest.importorskip("numba", reason="the extra `fast` is not installed")
    batch = (images(n=24, h=size, w=size) * 255).byte()
    batch[0] = 7  # without colour, where hue has no meaning
    mean, std, flip = [0.1, 0.2, 0.3], [0.5, 2.0, 4.0], np.arange(24) % 3 == 0
    changes = {
        "as usual": {"jitter_p": 0.8, "grey_p": 0.2, "blur_p": 0.5},
        "all of it": {"jitter_p": 1.0, "grey_p": 0.5, "blur_p": 1.0, "blur_sigma": [0.1, 3.0], "solarise_p": 0.5},
        "nothing": {},
        "hue alone": {"jitter": [0.0, 0.0, 0.0, 0.5], "jitter_p": 1.0},
        "contrast alone": {"jitter": [0.0, 0.9, 0.0, 0.0], "jitter_p": 1.0},
        "solarise alone": {"solarise_p": 1.0},
    }
    for name, change in changes.items():
        drawn = sample(24, grey_first=grey_first, **change)
        flipped = torch.where(torch.from_numpy(flip)[:, None, None, None], batch.flip(3), batch)
        expected = TF.normalize(drawn.apply(flipped / 255), mean, std)
        for threads in (1, 2):
            monkeypatch.setattr(torch, "get_num_threads", lambda threads=threads: threads)
            ours = torch.empty(batch.shape)
            drawn.write(batch, flip, mean, std, ours)
            torch.testing.assert_close(ours, expected, atol=1e-4, rtol=0, msg=f"{name}, {threads} threads")
