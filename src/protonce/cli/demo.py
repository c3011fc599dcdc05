"""`protonce demo`."""

import argparse
from pathlib import Path

from protonce.cli.parser import Commands, add_command


def add(commands: Commands) -> None:
    """Add the command and its arguments."""
    parser = add_command(commands, "demo", run)
    parser.add_argument("--out", type=Path, help="folder to write to (protonce-demo, or protonce-demo-quick)")
    parser.add_argument("--quick", action="store_true", help="300 images and 3 epochs, to see that everything works")
    parser.add_argument("--seed", type=int, default=0, help="seed of every draw (%(default)s)")


def run(options: argparse.Namespace) -> None:
    """Train MoCo and PCL on the built-in images and compare what they learnt."""
    from protonce import trainings

    out = options.out or Path("protonce-demo-quick" if options.quick else "protonce-demo")
    if not out.exists():
        trainings.warm_up()  # imports torch while this process does
    from protonce.demo import run_demo

    run_demo(out, options.seed, options.quick)
