"""How the result of an evaluation is saved and printed."""

import dataclasses
from collections.abc import Sequence
from typing import Any

from rich.console import Console

from protonce.errors import UserError
from protonce.evaluate.options import Options
from protonce.evaluate.task import Outcome
from protonce.reported import HEADING
from protonce.results import describe_images, from_paper, scores
from protonce.shortening import shorten
from protonce.tables import print_table

LONGEST = 200  # bytes of a file name without its suffix


def file_stem(protocol: str, name: str | None) -> str:
    """File name of the evaluation, without its suffix."""
    stem = f"{protocol}{f'-{name}' if name else ''}"
    if not stem.replace("-", "").replace("_", "").replace(".", "").isalnum():
        raise UserError(f"--name {shorten(str(name))!r} is not allowed in a file name; use letters, digits, . - and _")
    if len(stem.encode()) > LONGEST:  # now, and not when the result is to be saved
        raise UserError(f"--name has {len(stem.encode())} bytes; use at most {LONGEST - len(protocol) - 1}")
    return stem


def summary(outcome: Outcome, chosen: Options) -> dict[str, Any]:
    """Metrics, settings and features of an evaluation, and remarks and details if there are any."""
    settings = {**dataclasses.asdict(chosen), **outcome.settings}
    return {
        "metrics": outcome.metrics,
        "settings": {name: value for name, value in settings.items() if name not in outcome.unused},
        "features": outcome.features,
        **({"remarks": outcome.remarks} if outcome.remarks else {}),
        **({"details": outcome.details} if outcome.details else {}),
    }


def print_result(result: dict[str, Any], lines: Sequence[str], notes: Sequence[str]) -> None:
    """Print metrics and the paper's, then lines on the data, then notes."""
    console = Console(highlight=False, markup=False)
    data = result["data"]
    sides = [describe_images(data[side]) for side in ("train", "test") if side in data]
    console.print(f"{result['protocol']}, {data['classes']} classes: {', tested on '.join(sides)}", soft_wrap=True)
    found = scores(result)
    cells = [(s.metric, s.text, s.chance, s.untrained, s.remark, s.paper) for s in found]
    print_table(console, "lrrrll", ("metric", "value", "chance", "untrained", "remark", "paper"), cells)
    for excerpt in from_paper(found):
        console.print(f"{HEADING}: {excerpt.title}", soft_wrap=True)
        print_table(console, "ll" + "r" * (len(excerpt.header) - 2), excerpt.header, excerpt.rows)
        if excerpt.notes:
            console.print(excerpt.notes, soft_wrap=True)
    for line in lines:
        console.print(line, soft_wrap=True)
    console.print("; ".join(notes), soft_wrap=True)
