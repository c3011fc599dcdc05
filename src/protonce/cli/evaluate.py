"""`protonce evaluate`."""

import argparse

from protonce.cli.options import add_fields, chosen
from protonce.cli.parser import RUN, TEST, Commands, Parser, add_command
from protonce.evaluate.options import OBJECT_PROTOCOLS, PROTOCOLS

EVERY = {**PROTOCOLS, **OBJECT_PROTOCOLS}


def add(commands: Commands) -> None:
    """Add the command, and each protocol with its options.

    The options that all protocols share may precede PROTOCOL too.
    """
    parser = add_command(commands, "evaluate", run)
    parser.add_argument("run", metavar="RUN", help=RUN)
    _add_shared(parser, None)
    protocols = parser.add_subparsers(dest="protocol", required=True, metavar="PROTOCOL", parser_class=Parser)
    for name, fields in EVERY.items():
        protocol = protocols.add_parser(name, help=fields.__doc__, description=fields.__doc__)
        # SUPPRESS, or its default would replace what was given before PROTOCOL
        _add_shared(protocol, argparse.SUPPRESS, objects=name in OBJECT_PROTOCOLS)
        add_fields(protocol, fields)


def _add_shared(parser: Parser, default: str | None, objects: bool = False) -> None:
    text, tested = "labelled training images; default: the run's own data", TEST
    if objects:
        text = "images with boxes: VOC2007:ROOT, VOC2012:ROOT, VOC:ROOT or COCO:ROOT, @SPLIT after the name; repeatable"
        tested = "images with boxes to test on; default: the test part of the first DATA"
    parser.add_argument("--train", metavar="DATA", action="append", default=default, help=text)
    parser.add_argument("--test", metavar="DATA", default=default, help=tested)
    parser.add_argument("--name", default=default, help="save the result as evaluations/PROTOCOL-NAME.json")


def run(options: argparse.Namespace) -> None:
    """Evaluate the encoder of a run with one of the paper's protocols."""
    from protonce.evaluate.protocols import evaluate
    from protonce.evaluate.saving import file_stem
    from protonce.ranks import Ranks
    from protonce.report.detections import write_detections
    from protonce.run import load
    from protonce.untrained import untrained_like

    given = chosen(EVERY[options.protocol], options)
    train = options.train
    if train is not None and options.protocol not in OBJECT_PROTOCOLS:
        train = train[-1]
    loaded, parts = load(options.run), {"train": train, "test": options.test}
    with untrained_like(loaded) as untrained:
        evaluate(loaded, options.protocol, **parts, name=options.name, untrained=untrained, **given)
    if options.protocol in OBJECT_PROTOCOLS and Ranks().is_first:
        page = write_detections(loaded, file_stem(options.protocol, options.name))
        print(f"detections on test images: {page}")
