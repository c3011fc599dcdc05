"""`protonce report`."""

import argparse
import csv
from pathlib import Path

from protonce.cli.parser import MOVED_DATA, RUN, Commands, add_command
from protonce.errors import UserError, shown


def add(commands: Commands) -> None:
    """Add the command and its arguments."""
    parser = add_command(commands, "report", run)
    parser.add_argument("run", metavar="RUN", help=RUN)
    parser.add_argument("--against", metavar="OTHER_RUN", help="another run folder to compare with")
    parser.add_argument("--data", metavar="DATA", help=MOVED_DATA)
    parser.add_argument(
        "--classes",
        metavar="N|LIST",
        help="classes on the map: the first N in alphabetical order, or names separated by commas; default: all",
    )
    parser.add_argument(
        "--figures", type=Path, metavar="DIR", help="also write the figures to this folder, as PNG and PDF"
    )


def run(options: argparse.Namespace) -> None:
    """Write RUN/report.html: clusters, map, curves and evaluations on one page that opens from the disk."""
    from protonce.report.page import write_report
    from protonce.run import load

    classes = None if options.classes is None else parse_classes(options.classes)
    against = load(options.against) if options.against else None
    one = load(options.run)
    print(write_report(one, data=options.data, against=against, classes=classes, figures=options.figures))


def parse_classes(text: str) -> int | list[str]:
    """N, or names separated by commas: a name with a comma in quotes, and a single name that is a number as `3,`."""
    try:
        if text.isascii() and text.removeprefix("-").isdecimal():
            return int(text)
        (names,) = csv.reader([text], skipinitialspace=True, strict=True)
    except (csv.Error, ValueError):  # a quote that is not closed, or a number of thousands of digits
        raise UserError(
            f"--classes {shown(text)} is not a number or a list; separate names of classes by commas"
        ) from None
    return [name for name in names if name]
