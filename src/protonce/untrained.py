"""The same encoder with random weights: what a score is worth without training."""

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from protonce.importing import import_encoder
from protonce.run import Run
from protonce.weights import UNTRAINED


@contextmanager
def untrained_like(run: Run) -> Iterator[Callable[[], Run] | None]:
    """Context that gives a function that makes an untrained run like this one; None for an encoder of the user's own.

    Args:
        run: a finished run.
    """
    if run.own:
        yield None
        return
    with tempfile.TemporaryDirectory(prefix="protonce-") as folder:
        yield lambda: import_encoder(UNTRAINED, Path(folder) / "untrained", like=run, quiet=True)[0]
