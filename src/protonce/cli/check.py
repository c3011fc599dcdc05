"""`protonce check`."""

import argparse
from pathlib import Path

from protonce.cli.parser import RUN, Commands, add_command
from protonce.errors import UserError


def add(commands: Commands) -> None:
    """Add the command and its arguments."""
    parser = add_command(commands, "check", run)
    parser.add_argument("run", type=Path, metavar="RUN", help=RUN)


def run(options: argparse.Namespace) -> None:
    """Check that every file of a run folder is what was written."""
    from protonce.run.checking import check_run

    checked = check_run(options.run)
    for name in checked.intact:
        print(f"intact   {name}")
    for reason in checked.damaged.values():
        print(f"damaged  {reason}")
    for note in checked.notes:
        print(f"note     {note}")
    if checked.damaged:
        files = ", ".join(checked.damaged)
        raise UserError(f"{len(checked.damaged)} files of {options.run} are damaged or missing: {files}")
    print(f"{options.run}: all {len(checked.intact)} files are intact")
