"""`protonce embed`: write features and prototypes of images to a file."""

import io
from pathlib import Path
from typing import Any

from protonce.data.sources import Data, open_source
from protonce.errors import UserError
from protonce.files import csv_text, write_npz, write_whole
from protonce.run import Embedding, Run

SUFFIXES = (".npz", ".parquet", ".csv")


def write_embedding(run: Run, data: Data, out: Path) -> tuple[int, int]:
    """Write name, label, features, prototypes and distances of every image to FILE.npz, FILE.parquet or FILE.csv.

    Columns have the same names in all three: `name`, `label` if some image has one, `features` (in a .csv `feature_0`,
    `feature_1`, ...), and for each granularity M, 0 the coarsest, `prototype_M` and `distance_M`.

    Returns:
        the number of images, and of files that could not be read

    Raises:
        UserError: the file has another suffix, or pyarrow is not installed.
    """
    if out.suffix not in SUFFIXES:
        raise UserError(f"--out {out} must end in {', '.join(SUFFIXES[:-1])} or {SUFFIXES[-1]}")
    pyarrow = _pyarrow() if out.suffix == ".parquet" else None
    if not out.parent.exists():
        raise UserError(f"--out {out}: the folder {out.parent} does not exist")
    if out.is_dir():
        raise UserError(f"--out {out} is a folder; give a file name")
    source = open_source(data, "train", run.settings.seed)
    embedding = run.embed(source)
    labels = {"label": source.labels} if source.labels is not None else {}
    columns = {"name": embedding.names, **labels, "features": embedding.features, **_columns(embedding)}
    if out.suffix == ".npz":
        write_npz(out, columns)
    elif out.suffix == ".csv":
        write_whole(out, _csv(columns))
    else:
        assert pyarrow is not None
        write_whole(out, _parquet(columns, *pyarrow))
    return len(embedding.names), len(source.skipped)


def _csv(columns: dict[str, Any]) -> str:
    """A line for each image; a column for each feature."""
    features = columns["features"]
    header, values = [], []
    for name, column in columns.items():
        if name == "features":
            header += [f"feature_{i}" for i in range(features.shape[1])]
            values += [[f"{x:.7g}" for x in part] for part in features.T.tolist()]
        else:
            header.append(name)
            values.append([f"{x:.7g}" for x in column.tolist()] if name.startswith("distance_") else list(column))
    return csv_text(header, zip(*values, strict=True))


def _parquet(columns: dict[str, Any], arrow: Any, parquet: Any) -> bytes:
    features = columns["features"]
    encoded = (name.encode(errors="surrogateescape") for name in columns["name"])
    text = [name.decode(errors="replace") for name in encoded]  # a column of text is UTF-8
    rows = arrow.FixedSizeListArray.from_arrays(arrow.array(features.ravel()), features.shape[1])
    buffer = io.BytesIO()
    parquet.write_table(arrow.table({**columns, "name": text, "features": rows}), buffer)
    return buffer.getvalue()


def _columns(embedding: Embedding) -> dict[str, Any]:
    """`prototype_M` and `distance_M` for each granularity, 0 the coarsest."""
    pairs = enumerate(zip(embedding.prototypes, embedding.distances, strict=True))
    columns: dict[str, Any] = {}
    for m, (which, distance) in pairs:
        columns |= {f"prototype_{m}": which, f"distance_{m}": distance}
    return columns


def _pyarrow() -> tuple[Any, Any]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise UserError("writing .parquet needs pyarrow: pip install 'protonce[parquet]', or write a .npz") from None
    return pyarrow, pyarrow.parquet
