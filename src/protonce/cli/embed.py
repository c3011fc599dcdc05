"""`protonce embed`."""

import argparse
from pathlib import Path

from protonce.cli.parser import DATA, RUN, Commands, add_command


def add(commands: Commands) -> None:
    """Add the command and its arguments."""
    parser = add_command(commands, "embed", run)
    parser.add_argument("run", metavar="RUN", help=RUN)
    parser.add_argument("data", metavar="DATA", help=DATA)
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="FILE.npz, FILE.parquet or FILE.csv")


def run(options: argparse.Namespace) -> None:
    """Write features of every image, and the nearest prototype of each granularity with its distance."""
    from protonce.embedding import write_embedding
    from protonce.run import load

    n, skipped = write_embedding(load(options.run), options.data, options.out)
    files = "file" if skipped == 1 else "files"
    print(f"{options.out} holds {n:,} images" + (f"; {skipped:,} {files} could not be read" if skipped else ""))
