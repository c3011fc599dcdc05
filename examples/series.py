"""PCL on time series: views are shifted, scaled, masked and noisy; the encoder is a 1-D convolutional network.

The data are scikit-learn's 1,797 digits, scanned line by line: an event of eight steps in eight channels, which starts
at an unknown time in a noisy recording of 24 steps. There are two kinds of raw features: the values themselves, which
compare two recordings time step by time step, and their spectra, which are invariant to the start time. PCL learns this
invariance from shifted views.

python examples/series.py [RUN]
"""

import copy
import sys
from tempfile import TemporaryDirectory

import numpy as np
import torch
from other_data import Score, compare, normal, split, uniform
from sklearn.datasets import load_digits
from torch import Tensor, nn

import protonce
from protonce.data.views import Samples

CHANNELS, EVENT, STEPS = 8, 8, 24
NOISE = 0.15  # standard deviation of the noise in the recordings; the signal is in [0, 1]
SCALE = 0.5  # each channel of a view is scaled by a factor in [1 - SCALE, 1 + SCALE]
GAPS = 0.1  # fraction of the steps that are masked in a view


class SeriesViews:
    """Two views of a recording, each with a random shift, gain, mask and noise."""

    def train(self, samples: Samples) -> tuple[Tensor, Tensor]:
        return self.view(samples, "query"), self.view(samples, "key")

    def view(self, samples: Samples, which: str) -> Tensor:
        x = samples.data  # (B, channels, steps)
        shift = (uniform(samples, f"{which} shift", 1, 1) * STEPS).long()  # (B, 1, 1)
        moments = (torch.arange(STEPS, device=x.device) + shift) % STEPS  # (B, 1, steps): circular shift
        x = x.gather(2, moments.expand_as(x))
        gain = 1 + SCALE * (2 * uniform(samples, f"{which} scale", CHANNELS, 1) - 1)  # (B, channels, 1)
        kept = uniform(samples, f"{which} gaps", 1, STEPS) >= GAPS  # (B, 1, steps), shared by all channels
        return x * gain * kept + 0.1 * normal(samples, f"{which} noise", CHANNELS, STEPS)

    def plain(self, samples: Samples) -> Tensor:
        return samples.data


class Convolutions(nn.Module):
    """Two convolutions and global max pooling over time, which discards the time of the event."""

    def __init__(self, width: int = 32, features: int = 128) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for before, after in ((CHANNELS, width), (width, features)):
            layers += [nn.Conv1d(before, after, 7, padding=3), nn.BatchNorm1d(after), nn.ReLU()]
        self.layers = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x).amax(dim=2)  # (B, D)


def recordings(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Recordings (1797, channels, steps) with random start times, and their digits (1797,)."""
    digits = load_digits()
    random = np.random.default_rng(seed)
    series = NOISE * random.standard_normal((len(digits.images), CHANNELS, STEPS), dtype=np.float32)
    for recording, image in zip(series, digits.images, strict=True):
        begin = random.integers(STEPS - EVENT + 1)
        recording[:, begin : begin + EVENT] += image.T / 16  # one line of the image per time step
    return series, digits.target


def spectrum(x: Tensor) -> Tensor:
    """Amplitude spectrum of each channel, invariant to circular shifts; (B, channels * frequencies)."""
    return torch.fft.rfft(x, dim=2).abs().flatten(1)


def main(out: str, epochs: int = 30, seed: int = 0) -> dict[str, Score]:
    train, test = split(*recordings(seed), seed)
    torch.manual_seed(seed)  # for the initial weights of the encoder
    encoder = Convolutions()
    untrained = copy.deepcopy(encoder)  # `train` modifies the encoder in place
    settings = {"epochs": epochs, "batch_size": 128, "lr": 0.1, "seed": seed}  # the rest is `auto`
    machine = {"device": "cpu", "workers": 0}  # the data are in memory, and the model is small
    run = protonce.train(train, out, encoder=encoder, views=SeriesViews(), **settings, **machine)
    return compare(run, untrained, [nn.Flatten(), spectrum], train, test)


if __name__ == "__main__":
    if len(sys.argv) > 2:
        sys.exit(__doc__)
    with TemporaryDirectory() as folder:
        main(*sys.argv[1:] or [folder])
