"""`protonce export`."""

import argparse
from pathlib import Path

from protonce.cli.parser import RUN, Commands, add_command

FORMATS = "onnx, torch-export, timm, torchvision, safetensors, detectron2, huggingface or pcl"


def add(commands: Commands) -> None:
    """Add the command and its arguments."""
    parser = add_command(commands, "export", run)
    parser.add_argument("run", metavar="RUN", help=RUN)
    parser.add_argument("--to", required=True, metavar="FORMAT", help=FORMATS)
    parser.add_argument("--out", type=Path, required=True, metavar="PATH", help="new file, or for huggingface folder")
    parser.add_argument("--encoder", choices=("query", "momentum"), help="query unless --prototypes needs the other")
    parser.add_argument(
        "--prototypes",
        action="store_true",
        help="return nearest prototypes, distances and label too (onnx, torch-export)",
    )
    parser.add_argument(
        "--labels",
        type=Path,
        metavar="CSV",
        help="names the prototypes, of several labels the first; the labels of the run's folders unless given",
    )
    parser.add_argument(
        "--preprocess", action="store_true", help="take pixels of any size, and resize them inside (onnx, torch-export)"
    )


def run(options: argparse.Namespace) -> None:
    """Write the encoder in the format of another program, and as JSON beside it how images are prepared."""
    from protonce.front import load

    found = load(options.run).export(
        options.to,
        options.out,
        encoder=options.encoder,
        prototypes=options.prototypes,
        labels=options.labels,
        preprocess=options.preprocess,
    )
    print(f"{found.path} holds the {found.which} encoder; {found.about} says how images are prepared. To load it:\n")
    print(found.how, end="")
