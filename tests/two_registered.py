"""Train registered systems for two epochs, on as many ranks as torchrun starts.

torchrun --nproc-per-node 2 tests/two_registered.py PHOTOS OUT NAME...
"""

import sys
from pathlib import Path

import torch

import protonce
from test_every_system import SETTINGS
from two_systems import network


def train(photos, out, name):
    """Batches of 15, which two ranks share as 8 and 7; without batch norm, parts of a batch change only rounding."""
    settings = {**SETTINGS, "epochs": 2, "method": name, "head": "mlp"}
    return protonce.train(photos, Path(out) / name, encoder=network(), **settings)


if __name__ == "__main__":
    torch.set_num_threads(1)
    for method in sys.argv[3:]:
        train(sys.argv[1], sys.argv[2], method)
