"""`protonce label`."""

import argparse
from pathlib import Path

from protonce.cli.parser import MOVED_DATA, RUN, Commands, add_command


def add(commands: Commands) -> None:
    """Add the command and its arguments."""
    parser = add_command(commands, "label", run)
    parser.add_argument("run", metavar="RUN", help=RUN)
    parser.add_argument("labels", type=Path, metavar="LABELS", help="a .csv with the columns name and label")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="new .csv with a line for each image")
    parser.add_argument(
        "--min-confidence",
        type=float,
        default=0.0,
        metavar="P",
        help="give no label to images of which it is less certain than P (0)",
    )
    parser.add_argument("--folders", type=Path, metavar="DIR", help="also put the images into a folder for each label")
    parser.add_argument(
        "--copy", action="store_true", help="with --folders: copy the images instead of linking to them"
    )
    parser.add_argument("--data", metavar="DATA", help=MOVED_DATA)


def run(options: argparse.Namespace) -> None:
    """Label all images of a run from the labels of a few."""
    from protonce.label.commands import write_labels
    from protonce.run import load

    write_labels(
        load(options.run),
        options.labels,
        options.out,
        min_confidence=options.min_confidence,
        folders=options.folders,
        copy=options.copy,
        data=options.data,
    )
