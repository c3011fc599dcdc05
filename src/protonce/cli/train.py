"""`protonce train`."""

import argparse
import itertools
import os
import shlex
from collections.abc import Sequence
from pathlib import Path

from protonce.cli.options import add_settings, chosen_settings, scan_method
from protonce.cli.parser import DATA, Commands, add_command
from protonce.config import recipes
from protonce.errors import UserError

USAGE = "protonce train DATA [--out RUN] [--recipe NAME] [--epochs N] [--resume] [--SETTING VALUE ...]"
LONGEST = 200  # bytes of the name of a run; file systems allow 255


def add(commands: Commands, words: Sequence[str]) -> None:
    """Add the command and its arguments; the help shows the options of the system that the command line names."""
    parser = add_command(commands, "train", run, USAGE)
    parser.add_argument("data", metavar="DATA", help=DATA)
    parser.add_argument("--out", type=Path, metavar="RUN", help="run folder to write (runs/DATA-1, or the next number)")
    parser.add_argument(
        "--recipe",
        metavar="NAME",
        help=f"named settings: {', '.join(recipes())}; default: chosen by data and device",
    )
    parser.add_argument("--resume", action="store_true", help="continue the run in RUN after its last checkpoint")
    parser.add_argument("--logger", metavar="NAME[,NAME]", help="log to tensorboard, csv, wandb or mlflow too")
    parser.add_argument(
        "--watch",
        metavar="DATA",
        help="labelled images that are not trained on: record kNN and linear accuracy during training, to watch only",
    )
    parser.add_argument("--watch-every", type=int, default=10, metavar="N", help="epochs between two evaluations (10)")
    parser.add_argument("--no-report", action="store_true", help="do not write report.html after training")
    add_settings(parser, scan_method(words))


def run(options: argparse.Namespace) -> None:
    """Learn an encoder and a hierarchy of prototypes from images without labels."""
    from protonce.api import train
    from protonce.ranks import Ranks

    if options.out is None and options.resume:
        raise UserError("--resume needs --out RUN, the run to continue")
    out = options.out or _new_run(options.data)
    trained = train(
        options.data,
        out,
        recipe=options.recipe,
        resume=options.resume,
        loggers=options.logger.split(",") if options.logger else [],
        watch=options.watch,
        watch_every=options.watch_every,
        **chosen_settings(options),
    )
    if not Ranks().is_first:
        return
    embed = shlex.join(["protonce", "embed", str(trained.path), "DATA", "--out", "FILE.npz"])
    print(f"{trained.path} holds the encoder and the prototypes; next: {embed}")
    if not options.no_report:
        from protonce.report.page import write_report

        print(f"Look at what it found: {write_report(trained)}")


def _new_run(data: str) -> Path:
    """A run folder that does not exist yet, named after the data."""
    name = os.fsencode(Path(data).resolve().stem)[:LONGEST].decode(errors="ignore")
    return next(path for i in itertools.count(1) if not (path := Path("runs") / f"{name}-{i}").exists())
