"""`protonce evaluate RUN PROTOCOL`: a run folder and labelled images in, a table and a JSON file out."""

import json
from typing import Any

from rich.console import Console
from rich.table import Table

from protonce.data import named
from protonce.data.sources import Source, check_apart, open_source, split
from protonce.errors import UserError
from protonce.evaluate.knn import knn_accuracy
from protonce.files import write_whole
from protonce.run import Run

PROTOCOLS = ("knn",)
K, TAU = 20, 0.1


def evaluate(
    run: Run, protocol: str, *, train: str | None = None, test: str | None = None, name: str | None = None
) -> dict[str, Any]:
    """Evaluate a run, print the result, and keep it in the run's `evaluations/`.

    Args:
        run: a finished run.
        protocol: one of PROTOCOLS.
        train: labelled images to learn from; None: the run's own data.
        test: labelled images to test on; None: the test part of the data, or a fifth of the training images.
        name: added to the file's name, so that several evaluations can stand side by side.
    """
    if protocol not in PROTOCOLS:
        raise UserError(f"there is no protocol {protocol!r}; there is {', '.join(PROTOCOLS)}")
    if name is not None and not name.replace("-", "").replace("_", "").replace(".", "").isalnum():
        raise UserError(f"--name {name!r} has signs that no file name should; use letters, digits, - and _")
    labelled, tested, how = _parts(run, train, test)
    bank, queries = run.loader(labelled), run.loader(tested)
    accuracy = knn_accuracy(run.features(bank), _labels(labelled), run.features(queries), _labels(tested), k=K, tau=TAU)
    result = {
        "protocol": protocol,
        "metrics": {"accuracy": accuracy},
        "settings": {"k": K, "tau": TAU, "similarity": "cosine", "vote": "exp(v.v'/tau)"},
        "features": "pooled backbone features of the query encoder, plain views",
        "data": {
            "train": {"source": labelled.spec, "images": len(labelled), "fingerprint": labelled.fingerprint},
            "test": {"source": tested.spec, "images": len(tested), "fingerprint": tested.fingerprint},
            "classes": len(set(_labels(labelled))),
            "split": how,
        },
    }
    path = run.path / "evaluations" / f"{protocol}{f'-{name}' if name else ''}.json"
    write_whole(path, json.dumps(result, indent=2) + "\n")

    table = Table(title=f"{protocol} on {tested.spec}", title_justify="left")
    for column in ("train images", "test images", "classes", "accuracy %"):
        table.add_column(column, justify="right")
    table.add_row(f"{len(labelled):,}", f"{len(tested):,}", str(len(set(_labels(labelled)))), f"{100 * accuracy:.1f}")
    console = Console(highlight=False, markup=False)
    console.print(table)
    for source in (labelled, tested):
        if source.skipped:
            console.print(f"{len(source.skipped)} files of {source.spec} could not be read", soft_wrap=True)
    console.print(f"{how}; features: {result['features']}; kept as {path}", soft_wrap=True)
    return result


def _parts(run: Run, train: str | None, test: str | None) -> tuple[Source, Source, str]:
    """Labelled training and test images, and how they were parted, in words."""
    data = train or run.config["data"]["source"]
    seed = run.settings.seed
    labelled = run.source() if train is None else open_source(train, "train", seed)
    if test is not None:
        tested = open_source(test, "test", seed)
        check_apart(labelled, tested)
        unknown = set(_labels(tested)) - set(_labels(labelled))
        if unknown == set(_labels(tested)):
            raise UserError(
                f"no label of {tested.spec} ({min(unknown)}, ...) is one of {labelled.spec} "
                f"({min(_labels(labelled))}, ...); the folders below both must have the same names"
            )
        also = f", {len(unknown)} of their labels unknown to the training images" if unknown else ""
        return labelled, tested, f"test images named by the user{also}"
    name = named.parse(data)
    if data == "builtin" or (name is not None and not name.split):
        return labelled, open_source(data, "test", seed), "the data set's own test part"
    labelled, tested = split(labelled, seed)
    seen = "" if train else ", all of them seen in training, without labels"
    return labelled, tested, f"test images are a random fifth of {data}{seen}"


def _labels(source: Source) -> list[str]:
    if source.labels is None:
        raise UserError(f"{source.spec} has no labels: put the images of each class into a folder of its own")
    return source.labels
