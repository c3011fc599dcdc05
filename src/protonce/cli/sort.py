"""`protonce sort`."""

import argparse
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from protonce.cli.parser import DATA, MOVED_DATA, RUN, Commands, add_command

if TYPE_CHECKING:
    from protonce.label.sorting import Sorted


def add(commands: Commands) -> None:
    """Add the command and its arguments."""
    parser = add_command(commands, "sort", run)
    parser.add_argument("run", metavar="RUN", help=RUN)
    parser.add_argument("new", metavar="NEW", help=f"new {DATA}")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="new folder to write")
    parser.add_argument(
        "--labels",
        type=Path,
        metavar="FILE",
        help="a .csv of labels of the run's images; sort by label",
    )
    parser.add_argument(
        "--granularity",
        type=int,
        default=0,
        metavar="M",
        help="sort by clusters of granularity M (0, the coarsest)",
    )
    parser.add_argument(
        "--min-confidence",
        type=float,
        default=0.0,
        metavar="P",
        help="give no label to images of which it is less certain than P (0)",
    )
    parser.add_argument("--copy", action="store_true", help="copy the images instead of linking to them")
    parser.add_argument("--data", metavar="DATA", help=MOVED_DATA)


def run(options: argparse.Namespace) -> None:
    """Sort new images into the labels or clusters of a run, as folders of links and a table."""
    from protonce.label.sorting import sort_images
    from protonce.run import load

    found = sort_images(
        load(options.run),
        options.new,
        options.out,
        labels=options.labels,
        granularity=options.granularity,
        min_confidence=options.min_confidence,
        copy=options.copy,
        data=options.data,
    )
    say(found, options.out)


def say(found: "Sorted", out: Path) -> None:
    """Print where the images are, and how many fit none."""
    from protonce.label.sorting import STRAYS

    sizes = Counter(found.group)
    strays = sizes.pop(STRAYS, 0)
    print(f"{out} holds {len(found.names):,} images in {len(sizes):,} folders, and sorted.csv")
    if strays:
        print(f"{strays:,} fit none: 99 % of the run's images have one that is more similar ({found.threshold:.2f})")
