"""What the settings of a cell come to for its images, without training it."""

import dataclasses
from pathlib import Path
from typing import Any

from protonce.compare.cells import Cell
from protonce.data.sources import Source
from protonce.preparation import Plan, Request, prepare
from protonce.progress import Reporter
from protonce.ranks import Ranks

NOWHERE = Path("no run folder")  # nothing is written


def plan(cell: Cell, source: Source, **changes: Any) -> Plan:
    """The plan of a training of these images, with some settings changed.

    Raises:
        UserError: a setting is invalid.
    """
    given = {**cell.settings, "seed": cell.seed, **changes}
    method = given.pop("method")
    return prepare(Request(source, NOWHERE, cell.recipe, method, False, given), Reporter(quiet=True), Ranks())


def warm_up(cell: Cell, source: Source, epochs: int) -> int:
    """Epochs of warm-up in a training of so many epochs; 0 for a system without such an option."""
    options = dataclasses.asdict(plan(cell, source, epochs=epochs).options)
    return min(int(options.get("warmup_epochs", 0)), epochs)
