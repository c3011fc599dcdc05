"""`protonce tidy`."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from protonce.cli.parser import MOVED_DATA, RUN, Commands, add_command

if TYPE_CHECKING:
    from protonce.label.tidy import Tidied

SHOWN = 5  # groups, outliers and leaks that are printed


def add(commands: Commands) -> None:
    """Add the command and its arguments."""
    parser = add_command(commands, "tidy", run)
    parser.add_argument("run", metavar="RUN", help=RUN)
    parser.add_argument("--out", type=Path, default=Path("tidy.csv"), metavar="FILE", help="new file (tidy.csv)")
    parser.add_argument("--against", metavar="DATA", help="other images, such as a test set, to find shared ones")
    parser.add_argument(
        "--threshold",
        type=float,
        metavar="R",
        help="the smallest correlation of look-alikes (chosen from edited copies of some images)",
    )
    parser.add_argument("--data", metavar="DATA", help=MOVED_DATA)


def run(options: argparse.Namespace) -> None:
    """List copies, look-alikes and outliers among the images of a run, and images that another set shares."""
    from protonce.label.tidy import write_tidy
    from protonce.run import load

    found = write_tidy(
        load(options.run), options.out, against=options.against, threshold=options.threshold, data=options.data
    )
    for line in _summary(found):
        print(line)
    print(f"{options.out} lists them; nothing was changed or removed")


def _summary(found: "Tidied") -> list[str]:
    """What was found, and by which thresholds."""
    names, t = found.source.names, found.thresholds
    lines = [
        f"look-alikes: {len(found.groups):,} groups of {sum(map(len, found.groups)):,} images (correlation at least "
        f"{t.correlation:.2f}: {100 * t.copies:.0f} % of edited copies of some images pass, and "
        f"{100 * t.others:.1f} % of their sixth to tenth neighbours)"
    ]
    lines += _some([", ".join(names[i] for i in images) for images in found.groups])
    lines.append(
        f"outliers: {len(found.outliers.images):,} images (cosine distance to the fifth nearest image "
        f"above {found.outliers.threshold:.2f})"
    )
    lines += _some([names[i] for i in found.outliers.images])
    if found.against is not None:
        lines.append(f"leaks: {len(found.leaks):,} images shared with {found.against.spec}")
        lines += _some([f"{names[p.first]} and {found.against.names[p.second]} ({p.kind})" for p in found.leaks])
    return lines


def _some(texts: list[str]) -> list[str]:
    from protonce.errors import one_line

    more = [f"    and {len(texts) - SHOWN:,} more"] if len(texts) > SHOWN else []
    return [f"    {one_line(text, 200)}" for text in texts[:SHOWN]] + more
