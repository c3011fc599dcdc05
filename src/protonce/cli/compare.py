"""`protonce compare`."""

import argparse
from pathlib import Path

from protonce.cli.options import add_settings, chosen_settings
from protonce.cli.parser import DATA, TEST, Commands, add_command
from protonce.compare.names import HELD_OUT, SCORES, USUAL
from protonce.config import recipes
from protonce.methods.registry import SYSTEMS

USAGE = (
    "protonce compare DATA --systems A,B,C --seeds 0,1,2 --epochs N|--minutes T --out DIR [--test DATA] "
    "[--SETTING VALUE ...]"
)


def add(commands: Commands) -> None:
    """Add the command and its arguments."""
    parser = add_command(commands, "compare", run, USAGE)
    parser.add_argument("data", metavar="DATA", help=f"labelled {DATA}")
    parser.add_argument(
        "--out", type=Path, required=True, metavar="DIR", help="folder for the runs and compare.json, .csv, .tex, .html"
    )
    parser.add_argument(
        "--systems",
        type=words,
        required=True,
        metavar="A,B,C",
        help=f"systems ({', '.join(SYSTEMS)}), recipes, or .yaml files of settings",
    )
    parser.add_argument(
        "--seeds", type=numbers, default=[0], metavar="0,1,2", help="each system is trained with each (0)"
    )
    parser.add_argument("--minutes", type=float, metavar="T", help="training time of each system, instead of --epochs")
    parser.add_argument("--test", metavar="DATA", help=TEST)
    parser.add_argument(
        "--scores",
        type=words,
        default=list(USUAL),
        metavar="A,B",
        help=f"of {', '.join(SCORES)} ({','.join(USUAL)})",
    )
    parser.add_argument("--baseline", metavar="NAME", help="system that the others are compared with (the first)")
    add_common(parser, HELD_OUT)
    add_settings(parser, "pcl", without=("method", "seed"))


def add_common(parser: argparse.ArgumentParser, held_out: float) -> None:
    """Add the arguments that `compare` and `tune` share."""
    parser.add_argument(
        "--held-out",
        type=float,
        default=held_out,
        metavar="SHARE",
        help="share of the training images that no system is trained on (%(default)s)",
    )
    parser.add_argument(
        "--jobs", type=int, metavar="N", help="trainings at a time (one for each GPU, or for each core)"
    )
    parser.add_argument(
        "--recipe", metavar="NAME", help=f"settings of all systems: {', '.join(recipes())} (chosen by data and device)"
    )


def words(text: str) -> list[str]:
    """A list parted by commas."""
    return [word for word in text.split(",") if word]


def numbers(text: str) -> list[int]:
    """A list of whole numbers parted by commas."""
    return [int(word) for word in text.split(",")]


def run(options: argparse.Namespace) -> None:
    """Train several systems on the same images, score all by the same protocols, and write a table and page."""
    from protonce.compare.comparison import compare

    names = ("test", "minutes", "scores", "baseline", "held_out", "jobs", "recipe")
    given = {**chosen_settings(options), **{name: getattr(options, name) for name in names}}
    compare(options.data, options.out, options.systems, options.seeds, **given)
