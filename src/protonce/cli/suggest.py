"""`protonce suggest`."""

import argparse
from pathlib import Path

from protonce.cli.parser import MOVED_DATA, RUN, Commands, add_command

STRATEGIES = ("typiclust", "maxherding")


def add(commands: Commands) -> None:
    """Add the command and its arguments."""
    parser = add_command(commands, "suggest", run)
    parser.add_argument("run", metavar="RUN", help=RUN)
    parser.add_argument("--budget", type=int, default=20, metavar="N", help="number of images to suggest (20)")
    parser.add_argument(
        "--labels", type=Path, metavar="FILE", help="labels so far: a .csv with the columns name, label"
    )
    parser.add_argument("--out", type=Path, default=Path("suggest.csv"), metavar="FILE", help="new file (suggest.csv)")
    parser.add_argument(
        "--strategy",
        choices=STRATEGIES,
        default=STRATEGIES[0],
        help="typiclust: the most typical image of each cluster; maxherding: the best coverage (typiclust)",
    )
    parser.add_argument("--no-report", action="store_true", help="do not write the page anew")
    parser.add_argument("--data", metavar="DATA", help=MOVED_DATA)


def run(options: argparse.Namespace) -> None:
    """Write which images to label first, as a table to fill in for `protonce label`, and on the run's page."""
    from protonce.label.commands import write_suggestions
    from protonce.report.page import write_report
    from protonce.run import load

    loaded = load(options.run)
    n = write_suggestions(loaded, options.out, options.budget, options.labels, options.strategy, data=options.data)
    page = None if options.no_report else write_report(loaded, data=options.data).resolve().as_uri()
    print(f"{options.out} names {n:,} images: write a label behind each, then run")
    print(f"    protonce label {options.run} {options.out} --out predictions.csv")
    if page is not None:
        print(f"or label them on the page\n    {page}#label\nand download labels.csv, then run")
        print(f"    protonce label {options.run} labels.csv --out predictions.csv")
