"""Colour jitter, grey, blur and solarisation of batches, with random parameters for each image.

The operations are those of torchvision, for batches in [0, 1] on any device.
"""

import functools
import itertools
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

LUMA = (0.2989, 0.587, 0.114)
ALL = frozenset(range(4))  # operations of the jitter: brightness, contrast, saturation, hue
ORDERS = np.array(list(itertools.permutations(range(4))))  # (24, 4)


@dataclass(frozen=True)
class ColourSettings:
    """Probability and strength of each operation."""

    jitter: Sequence[float]  # strength of brightness, contrast, saturation, hue
    jitter_p: float
    grey_p: float
    blur_p: float
    blur_sigma: Sequence[float]  # smallest and largest, in pixels
    solarise_p: float
    grey_first: bool  # grey before jitter (v1), otherwise after it (v2)

    @property
    def used(self) -> frozenset[int]:
        """Jitter operations with a strength above 0."""
        return frozenset(i for i, strength in enumerate(self.jitter) if strength)


@dataclass(frozen=True)
class Colours:
    """Random colour parameters of a batch."""

    settings: ColourSettings
    jittered: NDArray[np.bool_]  # (B,)
    order: NDArray[np.int64]  # (B, 4)
    factors: Tensor  # (B, 4)
    grey: NDArray[np.bool_]  # (B,)
    blurred: NDArray[np.bool_]  # (B,)
    sigma: NDArray[np.float32]  # (B,)
    solarised: NDArray[np.bool_]  # (B,)

    @classmethod
    def sample(
        cls, uniform: Callable[[str, int], NDArray[np.float64]], settings: ColourSettings, device: torch.device
    ) -> "Colours":
        """Sample the parameters of a batch.

        Args:
            uniform: called with a purpose and n; returns random numbers in [0, 1), (B, n).
            settings: probabilities and strengths.
            device: of the images.
        """
        jitter, grey, blur, solarise = (
            uniform(purpose, n) for purpose, n in (("jitter", 6), ("grey", 1), ("blur", 2), ("solarise", 1))
        )
        strength = np.array(settings.jitter, dtype=np.float64)
        low, high = np.maximum(1 - strength, 0), 1 + strength
        low[3], high[3] = -strength[3], strength[3]
        least, most = settings.blur_sigma
        return cls(
            settings=settings,
            jittered=jitter[:, 0] < settings.jitter_p,
            order=ORDERS[(jitter[:, 1] * len(ORDERS)).astype(np.int64)],
            factors=torch.from_numpy(low + jitter[:, 2:] * (high - low)).float().to(device),
            grey=grey[:, 0] < settings.grey_p,
            blurred=blur[:, 0] < settings.blur_p,
            sigma=(least + blur[:, 1] * (most - least)).astype(np.float32),
            solarised=solarise[:, 0] < settings.solarise_p,
        )

    def of(self, rows: slice) -> "Colours":
        """The parameters of a part of the batch."""
        drawn = {name: values[rows] for name, values in vars(self).items() if name != "settings"}
        return Colours(self.settings, **drawn)

    def apply(self, images: Tensor) -> Tensor:
        """Apply jitter, grey, blur and solarisation; (B, 3, s, s) in [0, 1]."""
        operation = functools.partial(jitter, used=self.settings.used)
        if self.settings.grey_first:
            images = apply_where(images, self.grey, greyscale)
        images = apply_where(images, self.jittered, operation, self.factors, self.order)
        if not self.settings.grey_first:
            images = apply_where(images, self.grey, greyscale)
        images = apply_where(images, self.blurred, gaussian_blur, self.sigma)
        return apply_where(images, self.solarised, solarise)

    def write(
        self, images: Tensor, flip: NDArray[np.bool_], mean: Sequence[float], std: Sequence[float], views: Tensor
    ) -> None:
        """Flip, `apply` and normalise on a CPU, image by image, in compiled code: the same result, faster.

        Args:
            images: (B, 3, s, s) uint8.
            flip: whether to mirror left and right, (B,).
            mean: of each channel, which is subtracted.
            std: of each channel, by which it is divided.
            views: where to write the result, (B, 3, s, s).
        """
        from protonce.data import fused

        pixels, out, factors = images.numpy(), views.numpy(), self.factors.numpy()
        shift, scale = np.array(mean, np.float32), (1 / np.array(std)).astype(np.float32)
        sigma = np.where(self.blurred, self.sigma, np.float32(0))
        used = np.isin(self.order, list(self.settings.used)) & self.jittered[:, None]  # (B, 4)

        def some(rows: NDArray[np.int64]) -> None:
            scratch = fused.scratch_for(images.shape[-1], self.settings.blur_sigma[1])
            for i in rows:
                order = self.order[i][used[i]]
                drawn = (order, factors[i], self.grey[i], sigma[i], self.solarised[i])
                fused.view(pixels[i], flip[i], self.settings.grey_first, *drawn, shift, scale, out[i], scratch)

        threads = torch.get_num_threads()
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(some, np.array_split(np.arange(len(images)), threads)))


def apply_where(images: Tensor, where: NDArray[np.bool_], operation: Callable[..., Tensor], *arguments: Any) -> Tensor:
    """Apply the operation to the images selected by a mask (B,), with their rows of the arguments (B, ...)."""
    if where.all():
        return operation(images, *arguments)
    chosen = np.flatnonzero(where)
    if len(chosen) == 0:
        return images
    rows = torch.from_numpy(chosen).to(images.device)
    changed = operation(images[rows], *(a[rows if isinstance(a, Tensor) else chosen] for a in arguments))
    return images.index_copy(0, rows, changed)


def greyscale(images: Tensor) -> Tensor:
    """Luma in all three channels; (B, 3, h, w)."""
    return _luma(images).expand_as(images)


def _luma(images: Tensor) -> Tensor:
    red, green, blue = images.unbind(dim=1)
    luma = (red * LUMA[0]).add_(green, alpha=LUMA[1]).add_(blue, alpha=LUMA[2])
    return luma[:, None]  # (B, 1, h, w)


def jitter(images: Tensor, factors: Tensor, order: NDArray[np.int64], used: frozenset[int] = ALL) -> Tensor:
    """Brightness, contrast, saturation and hue with each image's own factors and order.

    Args:
        images: in [0, 1], (B, 3, h, w).
        factors: brightness, contrast, saturation (1: no change) and hue (0: no change), (B, 4).
        order: a permutation of 0 to 3 for each image, (B, 4).
        used: which of the four operations to apply.
    """
    operations = (adjust_brightness, adjust_contrast, adjust_saturation, adjust_hue)
    for turn in order.T:
        for which in used & set(turn.tolist()):
            images = apply_where(images, turn == which, operations[which], factors[:, which])
    return images


def _blend(images: Tensor, other: Tensor, factor: Tensor) -> Tensor:
    factor = factor[:, None, None, None]
    return (images * factor).add_(other * (1 - factor)).clamp_(0, 1)  # lerp is slower where it has to broadcast


def adjust_brightness(images: Tensor, factor: Tensor) -> Tensor:
    """Blend with black; factor is (B,)."""
    return (images * factor[:, None, None, None]).clamp_(0, 1)


def adjust_contrast(images: Tensor, factor: Tensor) -> Tensor:
    """Blend with the mean luma of each image; factor is (B,)."""
    return _blend(images, _luma(images.mean(dim=(2, 3), keepdim=True)), factor)


def adjust_saturation(images: Tensor, factor: Tensor) -> Tensor:
    """Blend with the grey image; factor is (B,)."""
    return _blend(images, _luma(images), factor)


def adjust_hue(images: Tensor, shift: Tensor) -> Tensor:
    """Shift the hue (HSV) by a share of the circle; shift is (B,) in [-0.5, 0.5].

    Written without comparisons, which are ten times slower than sums on a CPU.
    """
    red, green, blue = images.unbind(dim=1)  # (B, h, w)
    value = torch.maximum(torch.maximum(red, green), blue)
    chroma = value - torch.minimum(torch.minimum(red, green), blue)
    # The hue, times chroma, in sixths of the circle, by which channel is the largest: `sign` is 0 there, else 1.
    hue, if_green, if_red = (red - green).add_(chroma, alpha=4), (blue - red).add_(chroma, alpha=2), green - blue
    hue.sub_(if_green).mul_((value - green).sign_()).add_(if_green)
    hue.sub_(if_red).mul_((value - red).sign_()).add_(if_red)
    hue.div_(chroma.clamp_min(1e-12)).add_(6 * shift[:, None, None] + 5)
    hue.sub_((hue / 6).floor_(), alpha=6)  # modulo 6
    # Each channel falls from `value` by `chroma` along a trapezium of the hue, one third of the circle apart.
    turned = torch.empty_like(images)
    falls = ((hue - 2).abs_().neg_().add_(2), (hue - 4).abs_().neg_().add_(2), (hue - 3).abs_().sub_(1))
    for channel, fall in enumerate(falls):
        torch.addcmul(value, fall.clamp_(0, 1), chroma, value=-1, out=turned[:, channel])
    return turned


def gaussian_blur(images: Tensor, sigma: NDArray[np.float32] | Tensor) -> Tensor:
    """Blur each image with its own sigma (B,), in pixels; edges are replicated.

    Sigma is on the CPU, because the size of the filter depends on it: the host would have to wait for a GPU.
    """
    sigma = torch.as_tensor(sigma)
    reaches = (3 * sigma).ceil()  # beyond 3 sigma, weights change a pixel by less than half of 1/255
    reach = int(reaches.max())
    offset = torch.arange(-reach, reach + 1)
    shares = torch.exp(-0.5 * (offset / sigma[:, None]) ** 2) * (offset.abs() <= reaches[:, None])
    shares = (shares / shares.sum(dim=1, keepdim=True)).to(images.device)  # (B, 2 reach + 1)
    first, *others = shares.T[:, :, None, None, None].unbind()  # (B, 1, 1, 1) each
    for dim, pad in ((3, (reach, reach, 0, 0)), (2, (0, 0, reach, reach))):
        padded, n = F.pad(images, pad, mode="replicate"), images.shape[dim]
        images = padded.narrow(dim, 0, n) * first
        for i, share in enumerate(others, start=1):
            images.addcmul_(padded.narrow(dim, i, n), share)
    return images


def solarise(images: Tensor) -> Tensor:
    """Invert values of at least 0.5, as BYOL does; images are in [0, 1]."""
    return torch.minimum(images, 1 - images)
