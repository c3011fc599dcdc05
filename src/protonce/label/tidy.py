"""`protonce tidy`: copies, look-alikes and outliers among the images of a run, and images that another set shares."""

import os
from dataclasses import dataclass, field
from pathlib import Path

from protonce.data.sources import Data, Source, open_source
from protonce.errors import UserError
from protonce.files import check_new_file, csv_text, write_whole
from protonce.label.findings import Findings, compare, look_through, read_pictures
from protonce.label.lookalikes import Pair, find_pairs
from protonce.progress import Steps
from protonce.run import Run

HEADER = ("name", "finding", "group", "keep", "like", "correlation", "distance", "file")


@dataclass(frozen=True)
class Tidied(Findings):
    """What was found among the images of a run, and between them and others."""

    against: Source | None = None
    leaks: list[Pair] = field(default_factory=list)  # of an image of the run and one of `against`


def tidy(
    run: Run,
    *,
    against: Data | None = None,
    threshold: float | None = None,
    data: Data | None = None,
    quiet: bool = False,
) -> Tidied:
    """Find look-alikes and outliers among the images of a run.

    Args:
        run: with an encoder.
        against: other images; those that look like one of the run are leaks. Of a named data set the test part.
        threshold: the smallest correlation of look-alikes; None: chosen from edited copies of some images.
        data: the images of the run, if they have moved.
        quiet: print nothing.

    Raises:
        UserError: an argument is invalid, or the items are not images.
    """
    if threshold is not None and not 0 < threshold <= 1:
        raise UserError(f"--threshold is {threshold}; it must be above 0 and at most 1")
    source = run.source(data)
    other = None if against is None else open_source(against, "test", run.settings.seed)
    for images in (source, other):
        if images is not None and images.sizes is None:
            raise UserError(f"{images.spec} does not consist of images, so that look-alikes cannot be found")
    steps = Steps(quiet)
    (features,) = run.features(source, "momentum", steps=steps)
    if other is None and threshold is None:
        return Tidied(**vars(look_through(run, source, features, steps)))
    pictures = read_pictures(source, features, steps)
    found = vars(compare(run, source, pictures, steps, threshold))
    if other is None:
        return Tidied(**found)
    (theirs,) = run.features(other, "momentum", steps=steps)
    leaks = find_pairs(pictures, found["thresholds"], read_pictures(other, theirs, steps))
    return Tidied(**found, against=other, leaks=leaks)


def write_tidy(
    run: Run,
    out: Path,
    *,
    against: Data | None = None,
    threshold: float | None = None,
    data: Data | None = None,
    quiet: bool = False,
) -> Tidied:
    """Write a table with a line for each image of a group, each outlier and each leak; for arguments see `tidy`.

    Raises:
        UserError: an argument is invalid. Nothing has been written.
    """
    check_new_file(out)
    found = tidy(run, against=against, threshold=threshold, data=data, quiet=quiet)
    write_whole(out, csv_text(HEADER, [*_group_rows(found), *_outlier_rows(found), *_leak_rows(found)]))
    return found


def _group_rows(found: Tidied) -> list[tuple[object, ...]]:
    """Lines of the groups: the image to keep, then each other one with the image it is most like."""
    like: dict[int, dict[int, Pair]] = {}
    for pair in found.pairs:
        like.setdefault(pair.first, {})[pair.second] = pair
        like.setdefault(pair.second, {})[pair.first] = pair
    rows: list[tuple[object, ...]] = []
    for number, images in enumerate(found.groups, start=1):
        kept = images[0]
        rows.append((found.source.names[kept], "original", number, "yes", "", "", "", _file(found.source, kept)))
        for image in images[1:]:
            near = like[image]
            other = kept if kept in near else max(near, key=lambda j: (round(near[j].correlation, 3), -j))
            pair = like[image][other]
            numbers = (f"{pair.correlation:.3f}", f"{pair.distance:.4f}")
            names = found.source.names[image], found.source.names[other]
            rows.append((names[0], pair.kind, number, "no", names[1], *numbers, _file(found.source, image)))
    return rows


def _outlier_rows(found: Tidied) -> list[tuple[object, ...]]:
    source, outliers = found.source, found.outliers
    return [
        (source.names[i], "outlier", "", "", "", "", f"{distance:.4f}", _file(source, i))
        for i, distance in zip(outliers.images.tolist(), outliers.distances.tolist(), strict=True)
    ]


def _leak_rows(found: Tidied) -> list[tuple[object, ...]]:
    rows: list[tuple[object, ...]] = []
    for pair in found.leaks:
        assert found.against is not None
        name, other = found.source.names[pair.first], found.against.names[pair.second]
        numbers = (f"{pair.correlation:.3f}", f"{pair.distance:.4f}")
        rows.append((name, f"leak: {pair.kind}", "", "", other, *numbers, _file(found.source, pair.first)))
    return rows


def _file(source: Source, i: int) -> str:
    return "" if source.files is None else os.fspath(source.files[i])
