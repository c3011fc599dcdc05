"""Restrict the map to some classes, as the paper's t-SNE figure is to the first 40 (fig. 4)."""

from collections.abc import Sequence
from difflib import get_close_matches

import numpy as np

from protonce.errors import UserError, shown
from protonce.report.hierarchy import Ints
from protonce.report.thumbnails import sample_indices


def choose_classes(asked: int | Sequence[str], labels: Sequence[str] | None, where: str) -> list[str]:
    """The classes that are asked for, in alphabetical order.

    Args:
        asked: how many of the first classes, all if there are fewer; or their names.
        labels: of the images; an empty label is no label.
        where: what an error calls the run.

    Raises:
        UserError: there are no labels, a class does not exist, or no class is asked for.
    """
    if labels is None:
        raise UserError(f"the images of {where} have no labels; leave out --classes")
    known = sorted({*labels} - {""})
    if isinstance(asked, int):
        if asked < 1:
            raise UserError(f"--classes is {asked}; give at least 1, or names of classes")
        return known[:asked]
    if not asked:
        raise UserError("--classes names no class; give a number, or names of classes separated by commas")
    for name in asked:
        if name not in known:
            close = get_close_matches(name, known, n=1)
            hint = f"did you mean {shown(close[0])}?" if close else f"they are {shown(known[0])} to {shown(known[-1])}"
            raise UserError(f"--classes has {shown(name)}, which is no class of the images of {where}; {hint}")
    return sorted({*asked})


def sample_of(n: int, labels: Sequence[str] | None, classes: Sequence[str] | None, most: int) -> Ints:
    """Sorted indices of at most `most` random images of n, or of those in `classes`; the same on every call."""
    if labels is None or classes is None:
        return sample_indices(n, most)
    chosen = {*classes}
    members = np.flatnonzero([label in chosen for label in labels])
    found: Ints = members[sample_indices(len(members), most)]
    return found
