"""PCL on vectors with missing values: views are masked and noisy; the encoder is an MLP.

The data are scikit-learn's 1,797 digits as vectors of 64 measurements, three in five of which are missing. Raw features
replace missing values by the mean. PCL applies two random masks to the remaining values, and learns which measurements
carry the same information.

python examples/vectors.py [RUN]
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

MISSING = 0.6  # fraction of the measurements that are missing from the data, in training and test
HIDDEN = 0.4  # fraction of the remaining measurements that a view masks
NOISE = 0.1


class MaskedViews:
    """Two views of a vector: each masks some measurements at random and adds noise to the rest."""

    def __init__(self, mean: Tensor) -> None:
        self.mean = mean  # (64,), over the measurements that are not missing

    def train(self, samples: Samples) -> tuple[Tensor, Tensor]:
        return self.view(samples, "query"), self.view(samples, "key")

    def view(self, samples: Samples, which: str) -> Tensor:
        x = samples.data - self.mean  # (B, 64)
        hidden = uniform(samples, f"{which} mask", x.shape[1]) < HIDDEN  # (B, 64)
        noise = NOISE * normal(samples, f"{which} noise", x.shape[1])
        return (x + noise).masked_fill(hidden | x.isnan(), 0.0)

    def plain(self, samples: Samples) -> Tensor:
        return (samples.data - self.mean).nan_to_num(0.0)  # (B, 64); missing values become the mean


def network() -> nn.Module:
    """An MLP from views (B, 64) to features (B, 256)."""
    return nn.Sequential(
        nn.Linear(64, 512), nn.BatchNorm1d(512), nn.ReLU(), nn.Linear(512, 256), nn.BatchNorm1d(256), nn.ReLU()
    )


def measurements(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Vectors (1797, 64) in [0, 1] with NaN for missing values, and their digits (1797,)."""
    digits = load_digits()
    values = (digits.data / 16).astype(np.float32)
    values[np.random.default_rng(seed).random(values.shape) < MISSING] = np.nan
    return values, digits.target


def main(out: str, epochs: int = 40, seed: int = 0) -> dict[str, Score]:
    train, test = split(*measurements(seed), seed)
    views = MaskedViews(torch.from_numpy(np.nanmean(train.values, axis=0)))
    deviation = torch.from_numpy(np.nanstd(train.values, axis=0)).clamp_min(0.01)  # some measurements are always zero

    torch.manual_seed(seed)  # for the initial weights of the encoder
    encoder = network()
    untrained = copy.deepcopy(encoder)  # `train` modifies the encoder in place
    settings = {"epochs": epochs, "batch_size": 128, "lr": 0.1, "seed": seed}  # the rest is `auto`
    machine = {"device": "cpu", "workers": 0}  # the data are in memory, and the model is small
    run = protonce.train(train, out, encoder=encoder, views=views, **settings, **machine)
    return compare(run, untrained, [nn.Identity(), lambda x: x / deviation], train, test)


if __name__ == "__main__":
    if len(sys.argv) > 2:
        sys.exit(__doc__)
    with TemporaryDirectory() as folder:
        main(*sys.argv[1:] or [folder])
