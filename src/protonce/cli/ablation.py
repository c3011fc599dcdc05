"""`protonce ablation`."""

import argparse
from pathlib import Path

from protonce.cli.options import add_settings, chosen_settings
from protonce.cli.parser import DATA, TEST, Commands, add_command
from protonce.config import recipes

USAGE = "protonce ablation DATA --out DIR [--test DATA] [--epochs N] [--SETTING VALUE ...]"


def add(commands: Commands) -> None:
    """Add the command and its arguments."""
    parser = add_command(commands, "ablation", run, USAGE)
    parser.add_argument("data", metavar="DATA", help=f"labelled {DATA}")
    parser.add_argument(
        "--out", type=Path, required=True, metavar="DIR", help="folder for the five runs and ablation.json"
    )
    parser.add_argument("--test", metavar="DATA", help=TEST)
    parser.add_argument(
        "--recipe", metavar="NAME", help=f"named settings: {', '.join(recipes())}; from a million images on pcl-v1"
    )
    parser.add_argument(
        "--draws", type=int, default=5, help="number of random label subsets to fine-tune on (%(default)s)"
    )
    parser.add_argument("--share", type=float, default=0.01, help="share of the labels in each subset (%(default)s)")
    add_settings(parser, "pcl", without=("method", "terms"))


def run(options: argparse.Namespace) -> None:
    """Train and compare the five rows of appendix A: each term of ProtoNCE alone, with and without warm-up."""
    from protonce.ablation import run_ablation

    given = {"recipe": options.recipe, **chosen_settings(options)}
    run_ablation(options.data, options.out, test=options.test, draws=options.draws, share=options.share, **given)
