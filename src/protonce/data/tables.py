"""List the image files of a .csv or .parquet with a column of paths."""

import csv
from pathlib import Path
from typing import Any

from protonce.data.folders import of_paths
from protonce.data.listings import Listing
from protonce.errors import UserError

TABLES = (".csv", ".parquet")
PATHS = ("path", "file", "filename", "file_name", "filepath", "image", "name")  # columns of a table
LABELS = ("label", "class", "target", "category")
MAX_PATH = 4096  # characters; no system allows longer paths
MAX_ROWS = 20_000_000
Columns = list[tuple[str, list[Any]]]


def list_table(path: Path) -> Listing:
    """List the images of a table. Paths are absolute or relative to the table, whose other columns may contain labels.

    Raises:
        UserError: the table is damaged, or a row does not have a path.
    """
    columns = _parquet(path) if path.suffix.lower() == ".parquet" else _csv(path)
    paths = _column(path, columns, PATHS)
    if paths is None:
        raise UserError(f"{path} has no column of image paths; name the column {', '.join(PATHS[:-1])} or {PATHS[-1]}")
    labels = _column(path, columns, LABELS)
    texts = ["" if value is None else str(value) for value in labels] if labels is not None else [""] * len(paths)
    found: dict[str, str] = {}
    for i, (name, label) in enumerate(zip(paths, texts, strict=True)):
        if not isinstance(name, str) or not name or "\0" in name or len(name) > MAX_PATH:
            shown = "nothing" if name in (None, "") else repr(name)[:80]
            raise UserError(f"{path} has {shown} instead of a path in row {i + 1} below its header")
        if found.setdefault(name, label) != label:
            raise UserError(f"{path} gives {name!r} two labels, {found[name]!r:.80} and {label!r:.80}; remove one")
    rows = sorted(found.items())
    places = [(name, path.parent / name) for name, _ in rows]
    return of_paths(f"in the table {path}", places, None if labels is None else [label for _, label in rows])


def _column(path: Path, columns: Columns, names: tuple[str, ...]) -> list[Any] | None:
    """The column with the first of these names that occurs; None: there is none."""
    for wanted in names:
        found = [values for name, values in columns if name.strip().lower() == wanted]
        if len(found) > 1:
            raise UserError(f"{path} has {len(found)} columns {wanted!r}; rename or remove the others")
        if found:
            return found[0]
    return None


def _csv(path: Path) -> Columns:
    try:
        with path.open(newline="", encoding="utf-8-sig", errors="surrogateescape") as file:
            reader = csv.reader(file)
            lines = [(reader.line_num, row) for row in reader if any(row)]  # spreadsheets append empty rows
    except (OSError, csv.Error) as error:
        raise UserError(f"{path} cannot be read as .csv: {error}") from None
    if not lines:
        raise UserError(f"{path} is empty")
    rows = [row for _, row in lines]
    if any("\0" in text for row in rows for text in row):
        raise UserError(f"{path} cannot be read as .csv: it contains NUL characters; save it as a .csv in UTF-8")
    short = next((i for i, row in enumerate(rows) if len(row) != len(rows[0])), None)
    if short is not None:
        raise UserError(
            f"line {lines[short][0]} of {path} has {len(rows[short])} columns, but the first row has {len(rows[0])}"
        )
    return [(name, [row[i] for row in rows[1:]]) for i, name in enumerate(rows[0])]


def _parquet(path: Path) -> Columns:
    try:
        from pyarrow import parquet
    except ImportError:
        raise UserError("reading .parquet needs pyarrow: pip install 'protonce[parquet]', or use a .csv") from None
    try:
        with parquet.ParquetFile(path) as file:
            if file.metadata.num_rows > MAX_ROWS:  # a few bytes may be billions of equal rows
                raise ValueError(f"it has more than {MAX_ROWS:,} rows")
            names = file.schema_arrow.names
            wanted = [name for name in names if name.strip().lower() in (*PATHS, *LABELS)]
            table = file.read(columns=wanted)
            return [(name, table.column(i).to_pylist()) for i, name in enumerate(table.column_names)]
    except Exception as error:  # pyarrow raises many kinds of errors for a damaged file
        text = " ".join(str(error).split())
        raise UserError(f"{path} cannot be read as .parquet: {text[:200]}") from None
