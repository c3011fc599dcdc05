"""`protonce evaluate`."""

import argparse

from protonce.cli.options import add_fields, chosen
from protonce.cli.parser import RUN, TEST, Commands, Parser, add_command
from protonce.evaluate.options import PROTOCOLS


def add(commands: Commands) -> None:
    """Add the command, and each protocol with its options.

    The options that all protocols share may precede PROTOCOL too.
    """
    parser = add_command(commands, "evaluate", run)
    parser.add_argument("run", metavar="RUN", help=RUN)
    _add_shared(parser, None)
    protocols = parser.add_subparsers(dest="protocol", required=True, metavar="PROTOCOL", parser_class=Parser)
    for name, fields in PROTOCOLS.items():
        protocol = protocols.add_parser(name, help=fields.__doc__, description=fields.__doc__)
        _add_shared(protocol, argparse.SUPPRESS)  # else its default would replace what was given before PROTOCOL
        add_fields(protocol, fields)


def _add_shared(parser: Parser, default: str | None) -> None:
    text = "labelled training images; default: the run's own data"
    parser.add_argument("--train", metavar="DATA", default=default, help=text)
    parser.add_argument("--test", metavar="DATA", default=default, help=TEST)
    parser.add_argument("--name", default=default, help="save the result as evaluations/PROTOCOL-NAME.json")


def run(options: argparse.Namespace) -> None:
    """Evaluate the encoder of a run with one of the paper's protocols."""
    from protonce.evaluate.protocols import evaluate
    from protonce.run import load
    from protonce.untrained import untrained_like

    given = chosen(PROTOCOLS[options.protocol], options)
    loaded, parts = load(options.run), {"train": options.train, "test": options.test}
    with untrained_like(loaded) as untrained:
        evaluate(loaded, options.protocol, **parts, name=options.name, untrained=untrained, **given)
