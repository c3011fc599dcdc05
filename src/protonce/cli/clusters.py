"""`protonce clusters`."""

import argparse
from pathlib import Path

from protonce.cli.parser import MOVED_DATA, RUN, Commands, add_command


def add(commands: Commands) -> None:
    """Add the command and its arguments."""
    parser = add_command(commands, "clusters", run)
    parser.add_argument("run", metavar="RUN", help=RUN)
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="new folder to write")
    parser.add_argument("--data", metavar="DATA", help=MOVED_DATA)
    parser.add_argument("--copy", action="store_true", help="copy the images instead of linking to them")


def run(options: argparse.Namespace) -> None:
    """Write the clusters of a run as folders of links to the images, and a table of each image's clusters."""
    from protonce.report.folders import write_folders
    from protonce.run import load

    n = write_folders(load(options.run), options.out, data=options.data, copy=options.copy)
    print(f"{options.out} holds {n:,} images in the folders of their clusters, and clusters.csv")
