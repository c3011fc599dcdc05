"""`protonce embed`: write features and prototypes of images to a file."""

import io
from pathlib import Path
from typing import Any

from protonce.data.sources import Data, open_source
from protonce.errors import UserError
from protonce.files import write_npz, write_whole
from protonce.run import Embedding, Run


def write_embedding(run: Run, data: Data, out: Path) -> tuple[int, int]:
    """Write features, prototypes and distances of every image to FILE.npz or FILE.parquet.

    Returns:
        the number of images, and of files that could not be read

    Raises:
        UserError: the file has another suffix, or pyarrow is not installed.
    """
    if out.suffix not in (".npz", ".parquet"):
        raise UserError(f"--out {out} must end in .npz or .parquet")
    pyarrow = _pyarrow() if out.suffix == ".parquet" else None
    if not out.parent.exists():
        raise UserError(f"--out {out}: the folder {out.parent} does not exist")
    if out.is_dir():
        raise UserError(f"--out {out} is a folder; give a file name")
    source = open_source(data, "train", run.settings.seed)
    embedding = run.embed(source)
    columns = _columns(embedding)
    if pyarrow is None:
        write_npz(out, {"names": embedding.names, "features": embedding.features, **columns})
    else:
        arrow, parquet = pyarrow
        flat = arrow.array(embedding.features.ravel())
        features = arrow.FixedSizeListArray.from_arrays(flat, embedding.features.shape[1])
        encoded = (name.encode(errors="surrogateescape") for name in embedding.names)
        names = [name.decode(errors="replace") for name in encoded]  # a column of text is UTF-8
        table = arrow.table({"name": names, "features": features, **columns})
        buffer = io.BytesIO()
        parquet.write_table(table, buffer)
        write_whole(out, buffer.getvalue())
    return len(embedding.names), len(source.skipped)


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
