"""PCL on time series that begin at an unknown moment: views by shifts, scales, gaps and noise, a 1-D convolution.

scikit-learn's 1,797 digits, scanned line by line: eight channels, in which something happens for eight steps,
somewhere in a noisy recording of 24. Raw features compare what happened at the same moment of two recordings, or, as
the better of two forms, their spectra, which forget the moment. PCL learns from shifted views that the moment does not
matter.

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
NOISE = 0.15  # of the recordings, where ink is 0 to 1
SCALE = 0.5  # a channel of a view is up to this much stronger or weaker
GAPS = 0.1  # share of the steps that a view has lost


class SeriesViews:
    """Two views of a recording: each begins at another moment, has other gains, gaps and noise."""

    def train(self, samples: Samples) -> tuple[Tensor, Tensor]:
        return self.view(samples, "query"), self.view(samples, "key")

    def view(self, samples: Samples, which: str) -> Tensor:
        x = samples.data  # (B, channels, steps)
        shift = (uniform(samples, f"{which} shift", 1, 1) * STEPS).long()  # (B, 1, 1)
        moments = (torch.arange(STEPS, device=x.device) + shift) % STEPS  # (B, 1, steps): the end joins the beginning
        x = x.gather(2, moments.expand_as(x))
        gain = 1 + SCALE * (2 * uniform(samples, f"{which} scale", CHANNELS, 1) - 1)  # (B, channels, 1)
        kept = uniform(samples, f"{which} gaps", 1, STEPS) >= GAPS  # (B, 1, steps), for all channels at once
        return x * gain * kept + 0.1 * normal(samples, f"{which} noise", CHANNELS, STEPS)

    def plain(self, samples: Samples) -> Tensor:
        return samples.data


class Convolutions(nn.Module):
    """Two convolutions along time, and the strongest answer of the recording: when it came is forgotten."""

    def __init__(self, width: int = 32, features: int = 128) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for before, after in ((CHANNELS, width), (width, features)):
            layers += [nn.Conv1d(before, after, 7, padding=3), nn.BatchNorm1d(after), nn.ReLU()]
        self.layers = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x).amax(dim=2)  # (B, D)


def recordings(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Recordings (1797, channels, steps), each of which begins at its own moment, and the digit of each."""
    digits = load_digits()
    random = np.random.default_rng(seed)
    series = NOISE * random.standard_normal((len(digits.images), CHANNELS, STEPS), dtype=np.float32)
    for recording, image in zip(series, digits.images, strict=True):
        begin = random.integers(STEPS - EVENT + 1)
        recording[:, begin : begin + EVENT] += image.T / 16  # a line of the picture is a moment
    return series, digits.target


def spectrum(x: Tensor) -> Tensor:
    """How strong each frequency of each channel is, whenever it began; (B, channels * frequencies)."""
    return torch.fft.rfft(x, dim=2).abs().flatten(1)


def main(out: str, epochs: int = 30, seed: int = 0) -> dict[str, Score]:
    train, test = split(*recordings(seed), seed)
    torch.manual_seed(seed)  # a module of one's own brings its weights along
    encoder = Convolutions()
    untrained = copy.deepcopy(encoder)  # `train` works on the module it is given
    settings = {"epochs": epochs, "batch_size": 128, "lr": 0.1, "seed": seed}  # `auto` chooses the rest by the size
    machine = {"device": "cpu", "workers": 0}  # nothing is read from a disk, and no GPU is needed
    run = protonce.train(train, out, encoder=encoder, views=SeriesViews(), **settings, **machine)
    return compare(run, untrained, [nn.Flatten(), spectrum], train, test)


if __name__ == "__main__":
    if len(sys.argv) > 2:
        sys.exit(__doc__)
    with TemporaryDirectory() as folder:
        main(*sys.argv[1:] or [folder])
