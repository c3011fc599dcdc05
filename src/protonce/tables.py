"""Tables of results on the terminal, the same for `demo`, `ablation` and `evaluate`."""

from collections.abc import Sequence
from typing import Literal

from rich.console import Console
from rich.table import Table

ALIGNMENT: dict[str, Literal["left", "right"]] = {"l": "left", "r": "right"}


def print_table(console: Console, align: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table whose first column names the rows. A column without any text in its cells is left out.

    Args:
        console: to print to.
        align: one letter per column, `l` or `r` as in LaTeX: "lrr".
        header: titles of the columns.
        rows: the cells, as text.
    """
    filled = [i for i in range(len(header)) if not rows or any(row[i] for row in rows)]
    table = Table()
    for i in filled:
        table.add_column(header[i], justify=ALIGNMENT[align[i]], no_wrap=i == 0)
    for row in rows:
        table.add_row(*(row[i] for i in filled))
    console.print(table)


def percent(mean: float, std: float | None = None) -> str:
    """A share as per cent with one decimal, and its standard deviation if there is one: `71.2 ± 0.3`."""
    return f"{100 * mean:.1f}" + (f" ± {100 * std:.1f}" if std is not None else "")
