"""The cells of a comparison: one training of one system with one seed, and its scores. Loads no torch."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from protonce.errors import UserError
from protonce.files import write_whole

CURVE = 8  # snapshots of the encoder over a training, at which kNN is measured on held-out images


@dataclass(frozen=True)
class Images:
    """Where the images of a comparison come from."""

    data: str
    test: str | None  # None: the data set's own test part, or a random fifth
    limit: int  # of the training images; 0: all
    held_out: float  # share of the training images that no system is trained on


@dataclass(frozen=True)
class Cell:
    """One training and its scores."""

    row: str  # the contender's name
    method: str
    recipe: str
    settings: dict[str, Any]
    seed: int
    images: Images
    on_test: bool  # scored on the test images; False: on the images held out

    @property
    def name(self) -> str:
        """Of its file and its run folder: the row, a digest of what is trained and on what, and the seed."""
        trained = {k: v for k, v in asdict(self).items() if k not in ("row", "seed", "on_test")}
        digest = hashlib.sha256(json.dumps(trained, sort_keys=True).encode()).hexdigest()[:8]
        return f"{self.row}-{digest}-{self.seed}"

    def result(self, folder: Path) -> Path:
        """Its file in the folder of a comparison."""
        return folder / "cells" / f"{self.name}.json"

    def run(self, folder: Path) -> Path:
        """Its run folder."""
        return folder / "runs" / self.name


def read_result(cell: Cell, folder: Path) -> dict[str, Any]:
    """What is known of a cell; empty if it is not trained yet.

    Raises:
        UserError: the file is damaged.
    """
    path = cell.result(folder)
    if not path.exists():
        return {}
    try:
        return dict(json.loads(path.read_text()))
    except (ValueError, TypeError):
        raise UserError(f"{path} is damaged; delete it, and it is made again") from None


def write_result(cell: Cell, folder: Path, result: Mapping[str, Any]) -> None:
    """Write what is known of a cell."""
    cell.result(folder).parent.mkdir(parents=True, exist_ok=True)
    write_whole(cell.result(folder), json.dumps(result, indent=1) + "\n")
