"""The parser of a command, and the descriptions of arguments that several commands take."""

import argparse
from collections.abc import Callable
from typing import NoReturn, TypeAlias

from protonce.errors import UserError, one_line

RUN = "a run folder"
DATA = (
    "images: a folder, a .zip or .tar, a .csv or .parquet of paths, `builtin`, or NAME[@SPLIT]:ROOT with ImageNet, "
    "Places205, VOC2007, VOC2012 or a data set of torchvision"
)
TEST = "labelled test images; default: the data set's own test split, or a random fifth of the training images"
MOVED_DATA = "the run's training images, if they have moved"

Commands: TypeAlias = "argparse._SubParsersAction[Parser]"


class Parser(argparse.ArgumentParser):
    """A parser that reports errors in one sentence, as `UserError`."""

    def error(self, message: str) -> NoReturn:
        """Raise a `UserError` that refers to `--help`; of a long word the message has the beginning and the end."""
        raise UserError(f"{one_line(message, 300)}; see `{self.prog} --help`")


def add_command(
    commands: Commands, name: str, run: Callable[[argparse.Namespace], None], usage: str | None = None
) -> Parser:
    """Add a command that calls `run`, whose docstring is its help, and return its parser."""
    parser = commands.add_parser(name, help=run.__doc__, description=run.__doc__, usage=usage)
    parser.set_defaults(command=run)
    return parser
