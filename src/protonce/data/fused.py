"""Random view of one large image on a CPU, compiled by numba: the operations of `colours`, fused.

torch takes some forty passes over an image for colours and blur; here each pixel is loaded, changed and stored once.
`colours` documents the operations, and tests compare the results of both. numba is optional: this module is imported
only if it is installed, and without it only the speed differs.
"""

import math
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

import numpy as np
from numba import njit
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Function = TypeVar("Function", bound=Callable[..., Any])


def _compiled(function: Function) -> Function:
    """Compile a function at its first call, which takes seconds, and cache it on disk."""
    compiled: Any = njit(nogil=True, error_model="numpy")(function)
    with suppress(RuntimeError):  # numba finds no writable cache folder
        compiled.enable_caching()
    return compiled  # type: ignore[no-any-return]


R, G, B = np.float32(0.2989), np.float32(0.587), np.float32(0.114)
ZERO, ONE = np.float32(0), np.float32(1)
PIECE = 4096  # values


@_compiled
def _clamped(value: np.float32) -> np.float32:
    return min(max(value, ZERO), ONE)


@_compiled
def _scale(x: Floats, factor: np.float32, other: np.float32) -> None:
    """Brightness (other: 0) and contrast (other: the mean luma): a blend with one number; x is (3, n)."""
    rest = other * (ONE - factor)
    for c in range(3):
        for i in range(x.shape[1]):
            x[c, i] = _clamped(x[c, i] * factor + rest)


@_compiled
def _mean_luma(x: Floats) -> np.float32:
    """Mean luma, in eight partial sums that can be vectorised."""
    sums = np.zeros((3, 8), dtype=np.float32)
    whole = x.shape[1] // 8 * 8
    for c in range(3):
        for i in range(0, whole, 8):
            for j in range(8):
                sums[c, j] += x[c, i + j]
        for i in range(whole, x.shape[1]):
            sums[c, 0] += x[c, i]
    n = x.shape[1]
    return np.float32((R * sums[0].sum() + G * sums[1].sum() + B * sums[2].sum()) / n)


@_compiled
def _saturate(x: Floats, factor: np.float32) -> None:
    for i in range(x.shape[1]):
        rest = (R * x[0, i] + G * x[1, i] + B * x[2, i]) * (ONE - factor)
        x[0, i] = _clamped(x[0, i] * factor + rest)
        x[1, i] = _clamped(x[1, i] * factor + rest)
        x[2, i] = _clamped(x[2, i] * factor + rest)


@_compiled
def _turn_hue(x: Floats, shift: np.float32) -> None:
    turn = np.float32(6) * shift + np.float32(5)
    for i in range(x.shape[1]):
        red, green, blue = x[0, i], x[1, i], x[2, i]
        value = max(red, max(green, blue))
        chroma = value - min(red, min(green, blue))
        hue = red - green + np.float32(4) * chroma
        if value == green:
            hue = blue - red + np.float32(2) * chroma
        if value == red:
            hue = green - blue
        hue = hue / max(chroma, np.float32(1e-12)) + turn
        hue -= np.float32(6) * np.floor(hue / np.float32(6))
        x[0, i] = value - chroma * _clamped(np.float32(2) - abs(hue - np.float32(2)))
        x[1, i] = value - chroma * _clamped(np.float32(2) - abs(hue - np.float32(4)))
        x[2, i] = value - chroma * _clamped(abs(hue - np.float32(3)) - ONE)


@_compiled
def _grey(x: Floats) -> None:
    for i in range(x.shape[1]):
        luma = R * x[0, i] + G * x[1, i] + B * x[2, i]
        x[0, i] = luma
        x[1, i] = luma
        x[2, i] = luma


@_compiled
def _solarise(x: Floats) -> None:
    for c in range(3):
        for i in range(x.shape[1]):
            x[c, i] = min(x[c, i], ONE - x[c, i])


@_compiled
def _blur(x: Floats, sigma: np.float32, scratch: Floats) -> None:
    """Blur rows, then columns; x is (3, h, w). Lines are stored one after the other, each with replicated edges."""
    height, width = x.shape[1], x.shape[2]
    reach = math.ceil(np.float32(3) * sigma)
    shares = np.empty(2 * reach + 1, dtype=np.float32)
    for k in range(len(shares)):
        shares[k] = math.exp(-0.5 * ((k - reach) / sigma) ** 2)
    shares /= shares.sum()
    stride, lines = width + 2 * reach, height + 2 * reach
    padded, rows, columns = (
        scratch[0, : lines * stride],
        scratch[1, : lines * stride],
        scratch[2, : lines * stride],
    )
    for c in range(3):
        for y in range(lines):
            line, into = x[c, min(max(y - reach, 0), height - 1)], padded[y * stride : (y + 1) * stride]
            into[:reach], into[reach + width :] = line[0], line[width - 1]
            into[reach : reach + width] = line
        _mix(padded, rows, shares, 1)
        _mix(rows, columns, shares, stride)
        for y in range(height):
            x[c, y] = columns[y * stride : y * stride + width]


@_compiled
def _mix(lines: Floats, mixed: Floats, shares: Floats, step: int) -> None:
    """Weighted sum of each value and those that follow it at this step, in pieces that stay in the cache."""
    n = len(lines) - step * (len(shares) - 1)
    for start in range(0, n, PIECE):
        stop = min(start + PIECE, n)
        piece, first = mixed[start:stop], lines[start:stop]
        for i in range(len(piece)):
            piece[i] = shares[0] * first[i]
        for k in range(1, len(shares)):
            _add(piece, lines[start + k * step : stop + k * step], shares[k])


@_compiled
def _add(to: Floats, line: Floats, share: np.float32) -> None:
    for i in range(len(to)):
        to[i] += share * line[i]


def scratch_for(size: int, sigma: float) -> Floats:
    """Scratch memory to blur images of this side with up to this sigma."""
    return np.empty((3, (size + 2 * math.ceil(3 * sigma)) ** 2), dtype=np.float32)


@_compiled
def view(
    pixels: NDArray[np.uint8],
    flip: bool,
    grey_first: bool,
    order: NDArray[np.int64],
    factors: Floats,
    grey: bool,
    sigma: np.float32,
    solarise: bool,
    mean: Floats,
    scale: Floats,
    out: Floats,
    scratch: Floats,
) -> None:
    """Compute one view of one image.

    Args:
        pixels: the crop, (3, h, w).
        flip: whether to mirror left and right.
        grey_first: grey before jitter (v1), otherwise after it (v2).
        order: jitter operations to apply, in this order: 0 brightness, 1 contrast, 2 saturation, 3 hue; empty: none.
        factors: of all four jitter operations.
        grey: whether to convert to grey.
        sigma: of the blur; 0: no blur.
        solarise: whether to invert the values of at least one half.
        mean: of each channel, which is subtracted.
        scale: of each channel, by which it is multiplied afterwards.
        out: the view, (3, h, w), contiguous.
        scratch: from `scratch_for`; allocating it for each image would take longer than the blur itself.
    """
    height, width = pixels.shape[1], pixels.shape[2]
    for c in range(3):
        for y in range(height):
            line, into = pixels[c, y], out[c, y]
            if flip:
                line = line[::-1]
            for i in range(width):
                into[i] = np.float32(line[i]) * np.float32(1 / 255)
    x = out.reshape(3, height * width)
    if grey and grey_first:
        _grey(x)
    for which in order:
        if which == 0:
            _scale(x, factors[0], ZERO)
        elif which == 1:
            _scale(x, factors[1], _mean_luma(x))
        elif which == 2:
            _saturate(x, factors[2])
        else:
            _turn_hue(x, factors[3])
    if grey and not grey_first:
        _grey(x)
    if sigma > 0:
        _blur(out, sigma, scratch)
    if solarise:
        _solarise(x)
    for c in range(3):
        for i in range(x.shape[1]):
            x[c, i] = (x[c, i] - mean[c]) * scale[c]
