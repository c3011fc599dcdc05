"""The command line, `protonce COMMAND`: each command is a module of this package. `--help` loads no torch."""

import argparse
import io
import sys
from collections.abc import Callable, Sequence
from typing import TextIO

from protonce import __version__
from protonce.cli import (
    ablation,
    check,
    clusters,
    compare,
    demo,
    embed,
    evaluate,
    export,
    import_,
    label,
    report,
    runs,
    search,
    sort,
    suggest,
    tidy,
    train,
    tune,
)
from protonce.cli.failures import explain
from protonce.cli.options import scan_method
from protonce.cli.parser import Parser
from protonce.errors import UserError
from protonce.free_memory import check_memory


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code: 0 for success, 2 for an error the user can fix, 130 if interrupted."""
    for stream in (sys.stdout, sys.stderr):
        _escape_unprintable(stream)
    try:
        options = build_parser(scan_method(arguments)).parse_args(arguments)
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


def build_parser(method: str) -> Parser:
    """Parser of the whole command line; `method` is the system whose options `protonce train --help` shows."""
    parser = Parser(prog="protonce", description="Prototypical Contrastive Learning: learn from images without labels.")
    parser.add_argument("--version", action="version", version=f"protonce {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND", parser_class=Parser)
    demo.add(commands)
    train.add(commands, method)
    embed.add(commands)
    evaluate.add(commands)
    import_.add(commands)
    export.add(commands)
    compare.add(commands)
    tune.add(commands)
    ablation.add(commands)
    report.add(commands)
    clusters.add(commands)
    tidy.add(commands)
    suggest.add(commands)
    label.add(commands)
    search.add(commands)
    sort.add(commands)
    runs.add(commands)
    check.add(commands)
    return parser


def _escape_unprintable(stream: TextIO) -> None:
    """Print file names that the terminal's encoding cannot represent with escapes instead of failing."""
    if isinstance(stream, io.TextIOWrapper):
        stream.reconfigure(errors="backslashreplace")
