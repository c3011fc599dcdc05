"""Every kind of system of test_systems.py for two epochs, on as many ranks as are started."""

from pathlib import Path

import torch
from torch import nn

import protonce
from test_systems import KINDS, SETTINGS, SimSiam


def network():
    """Any size of image, and no batch norm: a rank's part of a batch then changes nothing but rounding."""
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 16, 3, stride=2, padding=1), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())


def train(photos, out, kind):
    """Batches of 15, which two ranks share as 8 and 7."""
    settings = {**SETTINGS, **KINDS.get(kind, {}), "epochs": 2, "batch_size": 15}
    return protonce.train(photos, Path(out) / kind.__name__, method=kind, encoder=network(), **settings)


def train_all(photos, out):
    for kind in [*KINDS, SimSiam]:
        train(photos, out, kind)
