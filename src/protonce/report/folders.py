"""`protonce clusters`: write the clusters of a run as folders of images."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from protonce.data.placing import check_folder, put_image
from protonce.data.sources import Data
from protonce.files import csv_text, whole_folder, write_whole
from protonce.progress import Steps
from protonce.report.hierarchy import Level, levels
from protonce.run import Run


def write_folders(run: Run, out: Path, *, data: Data | None = None, copy: bool = False, quiet: bool = False) -> int:
    """Write OUT/M-kK/PROTOTYPE/RANK-NAME for each granularity M (0 the coarsest), the closest image first.

    Files are linked or copied; images that are not separate files (in a .zip, built-in) are written as PNG.
    Long names are shortened. `clusters.csv` has a line per image: its whole name, its label, and for each granularity
    its prototype and the cosine distance to it.

    Args:
        run: a finished run.
        out: a folder that does not exist yet, or is empty.
        data: the images it was trained on, if they have moved.
        copy: copy files instead of linking to them.
        quiet: print nothing.

    Returns:
        number of images

    Raises:
        UserError: the images are missing, or the folder is not empty.
    """
    out = out.resolve()
    source = run.source(data)
    check_folder(out, source)
    steps = Steps(quiet)
    hierarchy = levels(run, *run.features(source, "momentum", steps=steps))
    with whole_folder(out) as part:
        with steps.doing("folders", len(source) * len(hierarchy)) as seen:
            for m, level in enumerate(hierarchy):
                for i, folder, rank in _places(level, part / f"{m}-k{len(level.size)}"):
                    put_image(source, i, folder, rank, copy)
                    seen(1)
        write_whole(part / "clusters.csv", _table(run, hierarchy))
    return len(source)


def _places(level: Level, root: Path) -> Iterator[tuple[int, Path, str]]:
    """For each image its index, the folder of its prototype, which is created, and its rank there."""
    order, start = level.members()
    width, digits = len(str(int(level.size.max()))), len(str(len(level.size) - 1))
    for which in range(len(level.size)):
        folder = root / str(which).zfill(digits)
        folder.mkdir(parents=True)
        for rank, i in enumerate(order[start[which] : start[which + 1]].tolist()):
            yield i, folder, str(rank).zfill(width)


def _table(run: Run, hierarchy: list[Level]) -> str:
    names, labels = run.images
    header = ["name", *(["label"] if labels else [])]
    columns: list[list[Any]] = [names, *([labels] if labels else [])]
    for m, level in enumerate(hierarchy):
        assert level.distance is not None
        header += [f"prototype_{m}", f"distance_{m}"]
        columns += [level.assignment.tolist(), [f"{d:.4f}" for d in level.distance]]
    return csv_text(header, zip(*columns, strict=True))
