"""List the images of a table: a .csv or .parquet, or one in memory, with a column of paths or of encoded images."""

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from protonce.data.encoded import Values, content_of, list_encoded, numbered, path_of
from protonce.data.folders import of_paths
from protonce.data.listings import Listing
from protonce.errors import UserError

TABLES = (".csv", ".parquet")
PATHS = ("path", "file", "filename", "file_name", "filepath", "image", "name")  # columns of a table
IMAGES = ("bytes", "image_bytes", "img")  # columns of encoded images; those of paths may have them too
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
    return list_columns(str(path), columns, path.parent)


def list_columns(called: str, columns: Columns, folder: Path, in_order: bool = False) -> Listing:
    """List the images of a table: a column has their paths, or the encoded images themselves.

    Args:
        called: the table, in messages.
        columns: by name.
        folder: that paths are relative to.
        in_order: of the rows, as of encoded images; else paths are sorted, and each is there once.

    Raises:
        UserError: there is no such column, or a row is wrong.
    """
    given = _column(called, columns, LABELS)
    labels = None if given is None else label_texts(given)
    for name, values in columns:
        if name.strip().lower() in (*IMAGES, *PATHS) and any(_is_encoded(value) for value in values):
            return _list_encoded(called, columns, name, values, labels, folder)
    paths = _column(called, columns, PATHS)
    if paths is None:
        known = f"{', '.join(PATHS[:-1])} or {PATHS[-1]}"
        raise UserError(f"{called} has no column of image paths; name the column {known}")
    paths = [str(path) if isinstance(path, Path) else path for path in paths]
    for i, name in enumerate(paths):
        if not isinstance(name, str) or not name or "\0" in name or len(name) > MAX_PATH:
            shown = "nothing" if name is None or (isinstance(name, str) and not name) else repr(name)[:80]
            raise UserError(f"{called} has {shown} instead of a path in row {i + 1} below its header")
    if in_order:
        return list_encoded(called, Values(paths), paths, labels, folder)
    found: dict[str, str] = {}
    for name, label in zip(paths, labels or [""] * len(paths), strict=True):
        if found.setdefault(name, label) != label:
            raise UserError(f"{called} gives {name!r} two labels, {found[name]!r:.80} and {label!r:.80}; remove one")
    rows = sorted(found.items())
    places = [(name, folder / name) for name, _ in rows]
    return of_paths(f"in the table {called}", places, None if labels is None else [label for _, label in rows])


def label_texts(values: Sequence[Any]) -> list[str]:
    """Labels as text; empty where one is missing (None, NaN, or what pandas has for it)."""
    missing = [value is None or type(value).__name__ in ("NAType", "NaTType") or value != value for value in values]
    # Whole numbers became floats, if others of their column are missing.
    whole = any(missing) and all(
        gone or (isinstance(value, float) and value.is_integer()) for value, gone in zip(values, missing, strict=True)
    )
    return ["" if gone else str(int(value) if whole else value) for value, gone in zip(values, missing, strict=True)]


def _is_encoded(value: Any) -> bool:
    return isinstance(value, dict) or content_of(value) is not None


def _list_encoded(
    called: str, columns: Columns, column: str, values: list[Any], labels: list[str] | None, folder: Path
) -> Listing:
    """Encoded images in the order of the rows, named by the column of paths, if there is one."""
    others = [(name, found) for name, found in columns if name != column]
    named = _column(called, others, PATHS)
    if named is not None and all(isinstance(name, str) and name for name in named):
        names = named
    else:
        names = [path_of(value) or number for value, number in zip(values, numbered(len(values)), strict=True)]
    return list_encoded(called, Values(values), names, labels, folder)


def _column(called: str, columns: Columns, names: tuple[str, ...]) -> list[Any] | None:
    """The column with the first of these names that occurs; None: there is none."""
    for wanted in names:
        found = [values for name, values in columns if name.strip().lower() == wanted]
        if len(found) > 1:
            raise UserError(f"{called} has {len(found)} columns {wanted!r}; rename or remove the others")
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
            wanted = [name for name in names if name.strip().lower() in (*PATHS, *IMAGES, *LABELS)]
            table = file.read(columns=wanted)
            return [(name, table.column(i).to_pylist()) for i, name in enumerate(table.column_names)]
    except Exception as error:  # pyarrow raises many kinds of errors for a damaged file
        text = " ".join(str(error).split())
        raise UserError(f"{path} cannot be read as .parquet: {text[:200]}") from None
