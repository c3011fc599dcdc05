"""Two callbacks: a status file for a dashboard, and a score of your own that needs no labels.

python examples/callbacks.py FOLDER RUN [EPOCHS]
"""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import protonce
from protonce.data.loader import Loader
from protonce.data.sources import open_source
from protonce.data.views import ImageViews
from protonce.encoder import Encoder
from protonce.features import extract


class Status(protonce.Callback):
    """Keeps a small JSON file up to date: which epoch it is, the last loss, and whether training has ended."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def on_train_start(self, run: Path, config: Mapping[str, Any], step: int) -> None:
        """Remember which run this is."""
        self.status = {"run": str(run), "epochs": config["epochs"], "step": step, "state": "training"}

    def on_epoch_end(self, epoch: int, encoder: Encoder, record: Mapping[str, Any]) -> None:
        """Write how far it is."""
        self.status |= {"epoch": epoch, "loss": record["loss"]}
        self.file.write_text(json.dumps(self.status))

    def on_train_end(self, run: Path, completed: bool) -> None:
        """Write how it ended."""
        self.file.write_text(json.dumps({**self.status, "state": "done" if completed else "interrupted"}))


class Uniformity(protonce.Callback):
    """How evenly embeddings cover the sphere: log E exp(-2 ‖v - v'‖²), lower is better (Wang and Isola, 2020)."""

    def __init__(self, data: str) -> None:
        self.source = open_source(data)

    def on_train_start(self, run: Path, config: Mapping[str, Any], step: int) -> None:
        """Prepare the images as the run does."""
        self.loader = Loader(self.source, ImageViews(protonce.load(run).settings))

    def on_epoch_end(self, epoch: int, encoder: Encoder, record: Mapping[str, Any]) -> dict[str, float]:
        """The score of this epoch; it appears in metrics.jsonl, on the page and in the loggers."""
        encoder.eval()
        v = extract(encoder, self.loader)  # (n, d), L2-normalised
        encoder.train()
        return {"uniformity": float(uniformity(v))}


def uniformity(v: Tensor) -> Tensor:
    """Of unit vectors (n, d), over all pairs."""
    return torch.pdist(v).square().mul(-2).exp().mean().log()


def main(folder: str, out: str, epochs: int = 20) -> None:
    status = Path(f"{out}-status.json")
    run = protonce.train(folder, out, epochs=epochs, callbacks=[Status(status), Uniformity(folder)])
    print("uniformity:", [round(line["scores"]["uniformity"], 2) for line in run.metrics])
    print(f"{status}: {status.read_text()}")


if __name__ == "__main__":
    if len(sys.argv) not in (3, 4):
        sys.exit(__doc__)
    main(sys.argv[1], sys.argv[2], *(int(n) for n in sys.argv[3:]))
