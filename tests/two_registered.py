"""Train registered systems for two epochs, on as many ranks as are started."""

from pathlib import Path

import protonce
from test_every_system import SETTINGS
from two_systems import network


def train(photos, out, name):
    """Batches of 15, which two ranks share as 8 and 7; without batch norm, parts of a batch change only rounding."""
    settings = {**SETTINGS, "epochs": 2, "method": name, "head": "mlp"}
    return protonce.train(photos, Path(out) / name, encoder=network(), **settings)


def train_all(photos, out, names):
    for name in names:
        train(photos, out, name)
