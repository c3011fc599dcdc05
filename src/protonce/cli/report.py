"""`protonce report`."""

import argparse
from pathlib import Path

from protonce.cli.parser import MOVED_DATA, RUN, Commands, add_command


def add(commands: Commands) -> None:
    """Add the command and its arguments."""
    parser = add_command(commands, "report", run)
    parser.add_argument("run", metavar="RUN", help=RUN)
    parser.add_argument("--against", metavar="OTHER_RUN", help="another run folder to compare with")
    parser.add_argument("--data", metavar="DATA", help=MOVED_DATA)
    parser.add_argument(
        "--figures", type=Path, metavar="DIR", help="also write the figures to this folder, as PNG and PDF"
    )


def run(options: argparse.Namespace) -> None:
    """Write RUN/report.html: clusters, map, curves and evaluations on one page that opens from the disk."""
    from protonce.report.page import write_report
    from protonce.run import load

    against = load(options.against) if options.against else None
    print(write_report(load(options.run), data=options.data, against=against, figures=options.figures))
