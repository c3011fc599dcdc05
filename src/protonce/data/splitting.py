"""Split a source into training and test images, and check that two sources have no image in common."""

import numpy as np

from protonce.data.identity import evenly_spaced
from protonce.data.sources import Source, random_order
from protonce.errors import UserError


def split(source: Source, seed: int, share: float = 0.2) -> tuple[Source, Source]:
    """Split a source at random into training and test images.

    Every label of the test images occurs in the training images, and no file is in both, even if links list it twice.
    """
    order = random_order(len(source), "split", seed)
    n_test = max(round(share * len(source)), 1)
    tested, trained = order[:n_test], order[n_test:]
    apart = np.ones(len(tested), dtype=bool)
    if source.labels is not None:
        labels = np.array(source.labels)
        apart &= np.isin(labels[tested], labels[trained])
    if source.files is not None:
        files = np.array(source.files)
        apart &= ~np.isin(files[tested], files[trained])
    tested, trained = tested[apart], np.concatenate([trained, tested[~apart]])
    return source.subset(np.sort(trained)), source.subset(np.sort(tested))


def check_apart(labelled: Source, tested: Source) -> None:
    """Check that training and test images do not overlap.

    Raises:
        UserError: they share files, or, if they are not files, a sample of both is identical.
    """
    shared = set(labelled.files or []) & set(tested.files or [])
    if shared:
        raise UserError(
            f"{len(shared)} files are in both the training and the test images, for example {min(shared)}; "
            "remove them from one of the two"
        )
    without_files = not labelled.files and not tested.files and len(labelled) == len(tested)
    if without_files and all(np.array_equal(labelled.load(i), tested.load(i)) for i in evenly_spaced(len(labelled))):
        raise UserError(f"{labelled.spec} and {tested.spec} contain the same images; test on other images")
