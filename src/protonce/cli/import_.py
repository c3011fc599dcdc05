"""`protonce import`."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from protonce.cli.options import add_fields, chosen
from protonce.cli.parser import DATA, Commands, add_command
from protonce.config import ARCHITECTURE, Settings

USAGE = "protonce import FILE --out RUN [--data DATA] [--like RUN] [--backbone NAME] [--SETTING VALUE ...]"
CLUSTERING = ("clusters", "tau", "alpha", "concentration", "kmeans_engine", "kmeans_iterations", "kmeans_starts")
SETTINGS = (*ARCHITECTURE, *CLUSTERING, "kmeans_points", "seed", "limit", "device", "workers")
DEFAULTS = {  # in words, where they differ from those of training
    "backbone": "the file's; untrained: resnet50",
    "stem": "as it was trained; else standard",
    "head": "the file's; untrained: mlp",
    "dim": "the file's; untrained: 128",
    "image_size": "as it was trained; else 224",
    "plain_resize": "in proportion to image_size; 256 for 224",
}
SHOWN = 5  # names of tensors that are printed


def add(commands: Commands) -> None:
    """Add the command and its arguments."""
    parser = add_command(commands, "import", run, USAGE)
    parser.add_argument(
        "file",
        metavar="FILE",
        help="a checkpoint of the published PCL or MoCo, weights of timm or of torchvision's ResNets, timm:NAME, "
        "another run, or `untrained`",
    )
    parser.add_argument("--out", type=Path, required=True, metavar="RUN", help="new run folder to write")
    parser.add_argument("--data", metavar="DATA", help=f"{DATA}; needed for prototypes and clusters")
    parser.add_argument("--like", metavar="RUN", help="take architecture and image preprocessing from this run")
    add_fields(parser, Settings, SETTINGS, DEFAULTS)


def run(options: argparse.Namespace) -> None:
    """Turn an encoder trained elsewhere, or an untrained one, into a run folder for the other commands."""
    from protonce.importing import import_encoder
    from protonce.run import load

    like = load(options.like) if options.like else None
    given = chosen(Settings, options)
    imported, found = import_encoder(options.file, options.out, data=options.data, like=like, **given)
    s = imported.settings
    print(
        f"{imported.path} holds {s.backbone} with head {s.head}, {s.dim} dimensions, for views of {s.image_size} pixels"
    )
    if options.file == "untrained":
        return
    for what, names in (("used", found.used), ("randomly initialised", found.missing), ("not used", found.left_over)):
        print(f"{what}: {_summary(names)}")
    if len(found.used) + len(found.left_over) > SHOWN:
        print(f"all names are listed in {imported.path / 'import.json'}")


def _summary(names: Sequence[str]) -> str:
    """The number of tensors, and the first few of their names."""
    shown = ", ".join(names[:SHOWN]) + (", ..." if len(names) > SHOWN else "")
    return f"{len(names)} tensors" + (f" ({shown})" if names else "")
