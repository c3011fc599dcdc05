"""`protonce search`."""

import argparse
import re
from pathlib import Path

from protonce.cli.parser import MOVED_DATA, RUN, Commands, add_command
from protonce.errors import UserError

MOST = 10_000  # images for a query


def add(commands: Commands) -> None:
    """Add the command and its arguments."""
    parser = add_command(commands, "search", run)
    parser.add_argument("run", metavar="RUN", help=RUN)
    parser.add_argument("photos", type=Path, nargs="*", metavar="PHOTO", help="image files to find similar images for")
    parser.add_argument("--prototype", metavar="M:ID", help="find the images closest to prototype ID of granularity M")
    parser.add_argument("--label", metavar="TEXT", help="find other images like those with this label")
    parser.add_argument("--labels", type=Path, metavar="FILE", help="a .csv of labels (those of the images' folders)")
    parser.add_argument("--top", type=int, default=20, metavar="N", help="number of images for each query (20)")
    parser.add_argument(
        "--out", type=Path, metavar="FILE", help="also write what is found to FILE.csv, FILE.json or FILE.html"
    )
    parser.add_argument("--data", metavar="DATA", help=MOVED_DATA)


def run(options: argparse.Namespace) -> None:
    """Find the images of a run that are most similar to photos, to a prototype, or to the images of a label."""
    asked = [bool(options.photos), options.prototype is not None, options.label is not None]
    if sum(asked) != 1:
        raise UserError("give either photos, --prototype M:ID or --label TEXT to search for")
    if not 1 <= options.top <= MOST:
        raise UserError(f"--top is {options.top}; it must be 1 to {MOST:,}")
    prototype = re.fullmatch(r"(\d{1,9}):(\d{1,9})", options.prototype) if options.prototype is not None else None
    if options.prototype is not None and prototype is None:
        raise UserError(f"--prototype {options.prototype!r:.80} is not of the form M:ID, such as 0:12")
    if options.out is not None:
        if options.out.suffix not in (".csv", ".json", ".html"):
            raise UserError(f"--out {options.out} must end in .csv, .json or .html")
        if not options.out.parent.exists():
            raise UserError(f"--out {options.out}: the folder {options.out.parent} does not exist")

    from rich.console import Console

    from protonce.label.labels_file import take_labels
    from protonce.label.search import Photos, open_search, write_hits
    from protonce.report.search_page import write_search_page
    from protonce.run import load
    from protonce.tables import print_table

    loaded = load(options.run)
    labels = None if options.labels is None else take_labels(options.labels, loaded.images[0])
    images = open_search(loaded, labels, options.data)
    photos = Photos(options.photos) if options.photos else None
    if photos is not None:
        hits = images.like_photos(photos, options.top)
    elif prototype is not None:
        hits = images.like_prototype(int(prototype[1]), int(prototype[2]), options.top)
    else:
        hits = images.like_label(options.label, options.top)
    rows = [
        (hit.query if hit.rank == 1 else "", str(hit.rank), hit.name, f"{hit.similarity:.3f}", hit.label)
        for hit in hits
    ]
    print_table(Console(highlight=False, markup=False), "lrlrl", ("like", "", "image", "similarity", "label"), rows)
    if images.index_recall < 1:
        print(f"an index was searched: it finds {100 * images.index_recall:.1f} % of the ten nearest images")
    if options.out is not None and options.out.suffix == ".html":
        write_search_page(str(loaded.path), hits, images.source, photos, options.out)
    elif options.out is not None:
        write_hits(hits, options.out)
    if options.out is not None:
        print(f"{options.out} holds what was found")
