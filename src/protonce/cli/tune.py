"""`protonce tune`."""

import argparse
from pathlib import Path

from protonce.cli.compare import add_common, numbers
from protonce.cli.options import add_settings, chosen_settings
from protonce.cli.parser import DATA, TEST, Commands, add_command
from protonce.compare.names import HELD_OUT_TO_TUNE
from protonce.methods.registry import SYSTEMS

USAGE = "protonce tune DATA --system NAME --epochs N|--minutes T --out DIR [--trials N] [--seeds 100,101]"


def add(commands: Commands) -> None:
    """Add the command and its arguments."""
    parser = add_command(commands, "tune", run, USAGE)
    parser.add_argument("data", metavar="DATA", help=f"labelled {DATA}")
    parser.add_argument(
        "--out", type=Path, required=True, metavar="DIR", help="folder for the runs, tune.json and NAME.yaml"
    )
    parser.add_argument(
        "--system", required=True, metavar="NAME", help=f"a system ({', '.join(SYSTEMS)}), a recipe, or a .yaml file"
    )
    parser.add_argument("--trials", type=int, default=6, metavar="N", help="how many of its trials (%(default)s)")
    parser.add_argument(
        "--seeds",
        type=numbers,
        default=[100],
        metavar="100,101",
        help="all trials use the first, the best two all (100)",
    )
    parser.add_argument("--minutes", type=float, metavar="T", help="training time of each trial, instead of --epochs")
    parser.add_argument("--test", metavar="DATA", help=TEST)
    add_common(parser, HELD_OUT_TO_TUNE)
    add_settings(parser, "pcl", without=("method", "seed"))


def run(options: argparse.Namespace) -> None:
    """Train the trials of a system, choose the best by kNN on images held out, and write its settings as YAML."""
    from protonce.tune import tune

    names = ("seeds", "trials", "test", "minutes", "held_out", "jobs", "recipe")
    given = {**chosen_settings(options), **{name: getattr(options, name) for name in names}}
    tune(options.data, options.out, options.system, **given)
