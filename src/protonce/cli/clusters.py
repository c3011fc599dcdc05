"""`protonce clusters`."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from protonce.cli.parser import MOVED_DATA, RUN, Commands, add_command
from protonce.cli.sort import say
from protonce.errors import OtherImagesError, UserError

if TYPE_CHECKING:
    from protonce.run import Run


def add(commands: Commands) -> None:
    """Add the command and its arguments."""
    parser = add_command(commands, "clusters", run)
    parser.add_argument("run", metavar="RUN", help=RUN)
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="new folder to write")
    parser.add_argument(
        "--data", metavar="DATA", help=f"{MOVED_DATA}; or other images, which are sorted into the clusters"
    )
    parser.add_argument("--copy", action="store_true", help="copy the images instead of linking to them")


def run(options: argparse.Namespace) -> None:
    """Write the clusters of a run as folders of links to the images, and a table of each image's clusters."""
    from protonce.label.sorting import sort_images
    from protonce.report.folders import write_folders
    from protonce.run import load

    loaded = load(options.run)
    try:
        n = write_folders(loaded, options.out, data=options.data, copy=options.copy)
    except OtherImagesError as error:
        if options.data is None or not _has_images(loaded):  # its own have changed, or have moved and changed
            raise error from None
        found = sort_images(loaded, options.data, options.out, copy=options.copy)
        print(f"{options.data} has other images than {options.run}; they are sorted into its coarsest clusters")
        say(found, options.out)
        return
    print(f"{options.out} holds {n:,} images in the folders of their clusters, and clusters.csv")


def _has_images(one: "Run") -> bool:
    """Whether the images of a run are where they were."""
    try:
        one.source()
    except UserError:
        return False
    return True
