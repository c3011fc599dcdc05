"""What `protonce suggest` and `protonce label` read, write and say."""

import os
from pathlib import Path

import numpy as np
from rich.console import Console

from protonce.data.placing import check_folder
from protonce.data.sources import Data, Source
from protonce.errors import UserError
from protonce.files import check_new_file, csv_text, write_whole
from protonce.label.findings import COMPARED, look_through
from protonce.label.label_folders import write_label_folders
from protonce.label.labelling import Predictions, predict, to_csv
from protonce.label.labels_file import Given, Table, take_labels, take_table
from protonce.label.suggested import keep_suggestions
from protonce.label.suggestion import Strategy, suggest
from protonce.progress import Steps
from protonce.run import Run
from protonce.tables import percent

SHOWN = 10  # labels in doubt that are printed


def write_suggestions(
    run: Run,
    out: Path,
    budget: int = 20,
    labels: Given | None = None,
    strategy: Strategy = "typiclust",
    *,
    data: Data | None = None,
    quiet: bool = False,
) -> int:
    """Write a table of the images to label first, with an empty column for their labels.

    Args:
        run: a run with an encoder.
        out: a new .csv.
        budget: number of images.
        labels: the labels so far: a table, or the label of each image by its name.
        strategy: how images are chosen.
        data: the images of the run, if they have moved.
        quiet: print nothing.

    Returns:
        number of images, fewer than the budget if there are no more distinct ones

    Raises:
        UserError: an argument or the table of labels is invalid. Nothing has been written.
    """
    check_new_file(out)
    source = run.source(data)
    chosen = suggest_images(run, source, budget, labels, strategy, quiet=quiet)
    files = source.files or [""] * len(source)
    write_whole(out, csv_text(("name", "label", "file"), [(source.names[i], "", os.fspath(files[i])) for i in chosen]))
    keep_suggestions(run, [source.names[i] for i in chosen])
    return len(chosen)


def suggest_images(
    run: Run,
    source: Source,
    budget: int = 20,
    labels: Given | None = None,
    strategy: Strategy = "typiclust",
    *,
    quiet: bool = False,
) -> list[int]:
    """Indices of the images of `source` to label first, the most useful first; see `write_suggestions`.

    Of more than 100,000 images look-alikes are not looked for, and several of them may be named.
    """
    if budget < 1:
        raise UserError(f"--budget is {budget}; it must be 1 or more")
    table = Table({}, {}) if labels is None else take_table(labels, source.names)
    known = sorted(table.labels)
    steps = Steps(quiet)
    features, embeddings = run.features(source, "backbone", "momentum", steps=steps)
    left_out = [*table.marks]
    if source.sizes is not None and len(source) <= COMPARED:
        left_out += look_through(run, source, embeddings, steps).copies({*known})
    with steps.doing("choosing images"):
        chosen = suggest(features, budget, known, strategy, run.settings.seed, left_out)
    if not chosen:
        raise UserError(f"every image of {source.spec} that differs from the others is labelled already")
    return chosen


def write_labels(
    run: Run,
    labels: Given,
    out: Path,
    *,
    min_confidence: float = 0.0,
    folders: Path | None = None,
    copy: bool = False,
    data: Data | None = None,
    quiet: bool = False,
) -> Predictions:
    """Label all images of a run from those of a table, write a line for each, and say how.

    Args:
        run: a run with an encoder.
        labels: a table of some images and their labels, or a label by name.
        out: a new .csv.
        min_confidence: images of which the classifier is less certain get no label.
        folders: a new folder for a folder of images for each label; None: write none.
        copy: copy images into them instead of linking.
        data: the images of the run, if they have moved.
        quiet: print nothing.

    Raises:
        UserError: an argument or the table of labels is invalid. Nothing has been written.
    """
    check_new_file(out)
    source = run.source(data)
    if folders is not None:
        check_folder(folders, source)
    found = label_images(run, source, labels, min_confidence, quiet=quiet)
    if folders is not None:
        write_label_folders(source, found.label, folders, copy)
    write_whole(out, to_csv(source.names, found))
    if not quiet:
        _say(found, source.names, out, Console(highlight=False, markup=False))
    return found


def label_images(
    run: Run, source: Source, labels: Given, min_confidence: float = 0.0, *, quiet: bool = False
) -> Predictions:
    """Labels of all images of `source` from those of some; for arguments see `write_labels`."""
    if not 0 <= min_confidence <= 1:
        raise UserError(f"--min-confidence is {min_confidence}; it must be between 0 and 1")
    known = take_labels(labels, source.names)
    (features,) = run.features(source, "backbone", steps=Steps(quiet))
    return predict(features, known, run.settings.seed, min_confidence)


def _say(found: Predictions, names: list[str], out: Path, console: Console) -> None:
    """How images were labelled, and which of the given labels are in doubt."""
    told = int(found.given.sum())
    others = ~found.given
    if found.calibrated:
        accuracy = percent(found.accuracies[found.classifier])
        console.print(
            f"classifier: {found.classifier}, right for {accuracy} % of the labelled images that it had not seen",
            soft_wrap=True,
        )
        expected = f"; {percent(float(found.confidence[others].mean()))} % expected to be right" if others.any() else ""
    else:
        console.print(
            f"classifier: {found.classifier}; no class has two labels, so the confidence is not calibrated",
            soft_wrap=True,
        )
        expected = ""
    unsure = np.array([not label for label in found.label])
    console.print(
        f"{out} has the labels of {int((~unsure).sum()):,} of {len(names):,} images, {told:,} of them given{expected}",
        soft_wrap=True,
    )
    doubted = sorted(found.doubted.items(), key=lambda item: (-round(item[1][1], 3), item[0]))
    for image, (label, confidence) in doubted[:SHOWN]:
        console.print(
            f"{names[image]} is labelled {found.label[image]} and looks like {label} ({confidence:.2f})", soft_wrap=True
        )
    if len(doubted) > SHOWN:
        console.print(f"and {len(doubted) - SHOWN:,} others: column looks_like of {out}", soft_wrap=True)
