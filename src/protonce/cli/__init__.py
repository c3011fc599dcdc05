"""The command line, `protonce COMMAND`: each command is a module of this package, loaded when it is called."""

import argparse
import importlib
import io
import sys
from collections.abc import Callable, Sequence
from typing import TextIO

from protonce import __version__
from protonce.cli.failures import explain
from protonce.cli.parser import Parser
from protonce.errors import UserError
from protonce.free_memory import check_memory

COMMANDS = {  # what `protonce --help` says of each
    "demo": "Train MoCo and PCL on the built-in images and compare what they learnt.",
    "train": "Learn an encoder and a hierarchy of prototypes from images without labels.",
    "embed": "Write features of every image, and the nearest prototype of each granularity with its distance.",
    "evaluate": "Evaluate the encoder of a run with one of the paper's protocols.",
    "import": "Turn an encoder trained elsewhere, or an untrained one, into a run folder for the other commands.",
    "export": "Write the encoder in the format of another program, and as JSON beside it how images are prepared.",
    "compare": "Train several systems on the same images, score all by the same protocols, and write a table and page.",
    "tune": "Train the trials of a system, choose the best by kNN on images held out, and write its settings as YAML.",
    "ablation": "Train and compare the five rows of appendix A: each term of ProtoNCE alone, with and without warm-up.",
    "report": "Write RUN/report.html: clusters, map, curves and evaluations on one page that opens from the disk.",
    "clusters": "Write the clusters of a run as folders of links to the images, and a table of each image's clusters.",
    "tidy": "List copies, look-alikes and outliers among the images of a run, and images that another set shares.",
    "suggest": "Write which images to label first, as a table to fill in for `protonce label`, and on the run's page.",
    "label": "Label all images of a run from the labels of a few.",
    "search": "Find the images of a run that are most similar to photos, to a prototype, or to the images of a label.",
    "sort": "Sort new images into the labels or clusters of a run, as folders of links and a table.",
    "runs": "List all runs below a folder: what was trained, how it went, and every score.",
    "check": "Check that every file of a run folder is what was written.",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code: 0 for success, 2 for an error the user can fix, 130 if interrupted."""
    for stream in (sys.stdout, sys.stderr):
        _escape_unprintable(stream)
    try:
        words = sys.argv[1:] if arguments is None else arguments
        options = build_parser(words).parse_args(words)
        run: Callable[[argparse.Namespace], None] = options.command
        check_memory()
        run(options)
    except UserError as error:
        print(f"protonce: {error}", file=sys.stderr)
        return 2
    except (OSError, MemoryError, RuntimeError) as error:
        reason = explain(error)
        if reason is None:
            raise
        print(f"protonce: {reason}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(
            "protonce: interrupted; to continue, run the same command again (`protonce train`: with --resume)",
            file=sys.stderr,
        )
        return 130
    return 0


def build_parser(words: Sequence[str]) -> Parser:
    """Parser of the command line `words`: all commands are known, and those that it names have their arguments."""
    parser = Parser(prog="protonce", description="Prototypical Contrastive Learning: learn from images without labels.")
    parser.add_argument("--version", action="version", version=f"protonce {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND", parser_class=Parser)
    for name, text in COMMANDS.items():
        if name in words:
            module = importlib.import_module(f"protonce.cli.{'import_' if name == 'import' else name}")
            module.add(commands, words) if name == "train" else module.add(commands)  # its options depend on --method
        else:
            commands.add_parser(name, help=text)
    return parser


def _escape_unprintable(stream: TextIO) -> None:
    """Print file names that the terminal's encoding cannot represent with escapes instead of failing."""
    if isinstance(stream, io.TextIOWrapper):
        stream.reconfigure(errors="backslashreplace")
