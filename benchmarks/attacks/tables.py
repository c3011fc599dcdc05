"""Tables of paths and labels of every kind; then the commands that read back what was written."""

# ruff: noqa: SIM905 - words are easier to read without quotes

import csv
import io
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from benchmarks.attacks import mutations
from benchmarks.attacks.archives import finished
from benchmarks.attacks.results import train_arguments
from benchmarks.attacks.stage import Stage

FORMULAS = ("=", "+", "-", "@", "\t", "\r")
CELLS = [
    *"+1+1 -1 @SUM(1) =HYPERLINK(1) '=1 a,b a\"b ' <script> {{7*7}} nan None 1e5 ../.. / . .. x/y/z CON - --a".split(),
    *("=cmd|' /C calc'!A0", "\tx", "\rx", "a\nb", "a\r\nb", "\0", "a\0b", "\udcff", "", " ", "\x1b[31m", "\u2028"),
    *("\ufeff", "%s%n", "x" * 300, "é" * 200, "x" * 200_000),
]


def attack(stage: Stage) -> None:
    """Train on the images of an odd table; then report, clusters and resume work, and tables hold no formulas."""
    rng = stage.rng
    (stage.here / "images").mkdir()
    table = _table(stage)
    arguments = ["train", table, *train_arguments(stage.material, "--out", "new", "--epochs", "1")[2:]]
    outcome = stage.attempt(*arguments, right=lambda _: finished(stage.here / "new"))
    if outcome.code != 0:
        return
    then = rng.choice(["clusters", "clusters", "resume", "report", "knn", "embed", "copy"])
    if then == "resume":
        stage.attempt(*arguments, "--resume", refuse=False)
    elif then == "report":
        stage.attempt("report", "new", refuse=False)
    elif then == "knn":
        stage.attempt("evaluate", "new", "knn")
    elif then == "embed":
        stage.attempt("embed", "new", table, "--out", "x.npz", refuse=False)
    else:
        stage.attempt("clusters", "new", "--out", "clusters", *(["--copy"] if then == "copy" else []), refuse=False)
    for file in (
        stage.here / "new" / "images.csv",
        stage.here / "new" / "skipped.csv",
        stage.here / "clusters/clusters.csv",
    ):
        if file.is_file():
            _check_formulas(stage, file)
    _check_names(stage)


def _check_formulas(stage: Stage, file: Path) -> None:
    """No cell is a formula for a spreadsheet; numbers may be negative."""
    csv.field_size_limit(1 << 30)
    with file.open(newline="", encoding="utf-8", errors="surrogateescape") as opened:
        for row in csv.reader(opened):
            for cell in row:
                if cell.startswith(FORMULAS) and not _is_number(cell):
                    stage.fail("wrong", f"{file.name} has the cell {cell[:30]!r}, which a spreadsheet computes")
                    return


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return "\t" not in cell and "\r" not in cell and not cell.startswith("+")


def _check_names(stage: Stage) -> None:
    """The names that the run reads back from images.csv are those that it has features of."""
    from protonce.run import load

    try:
        names = load(stage.here / "new").images[0]
    except Exception as error:
        stage.fail("traceback", f"images.csv cannot be read back: {type(error).__name__}: {error}")
        return
    missing = [name for name in names if not _exists(stage.here, name)]
    if missing:
        stage.fail("wrong", f"images.csv reads back as {missing[0]!r}, which is no file of the table")


def _exists(here: Path, name: str) -> bool:
    try:
        return (here / name).exists()
    except (OSError, ValueError):  # a long name, a NUL
        return False


def _table(stage: Stage) -> str:
    """Write a table of the sixteen photos with one thing odd; its name."""
    rng = stage.rng
    rows = [[str(stage.material.photos / name), kind] for name, kind in _photos(stage)]
    header = ["path", "label"]
    ways = "labels labels names names cell ragged header bytes bytes rows parquet parquet".split()
    way = rng.choice(ways)
    stage.did(f"table: {way}")
    if way == "labels":
        cells = rng.sample(CELLS, 2)
        for i, row in enumerate(rows):
            row[1] = cells[i % 2]
        stage.did(f"labels {cells[0][:30]!r} and {cells[1][:30]!r}")
    elif way == "names":
        _odd_names(stage, rows)
    elif way == "cell":
        cell, i = rng.choice(CELLS), rng.randrange(len(rows))
        rows[i][0] = cell
        stage.did(f"a path {cell[:30]!r}")
    elif way == "ragged":
        rows.insert(rng.randrange(16), rng.choice([["x"], ["x", "y", "z"], [], [""], [""] * 1000]))
    elif way == "header":
        header = rng.choice(
            [
                ["path", "path"],
                ["", ""],
                ["label", "path"],
                ["PATH ", "Class"],
                ["x", "y"],
                ["path", "x" * 200_000],
                ["path", "\0"],
            ]
        )
    elif way == "rows":
        rows = rng.choice(
            [[], rows[:1], rows[:2], rows * 3, rows * 2000, [["", ""]] * 20, [[rows[0][0], str(i)] for i in range(20)]]
        )
    if way == "parquet":
        return _parquet(stage, rows)
    text = io.StringIO()
    writer = csv.writer(text, delimiter=rng.choice([",", ",", ",", ",", ";", "\t"]) if way == "header" else ",")
    try:
        writer.writerows([header, *rows])
    except csv.Error:
        text.write("\0")
    data = text.getvalue().encode("utf-8", "surrogateescape")
    if way == "bytes":
        data, what = _bytes(stage, data)
        stage.did(what)
    (stage.here / "table.csv").write_bytes(data)
    return "table.csv"


def _photos(stage: Stage) -> Iterable[tuple[str, str]]:
    photos = stage.material.photos
    return [(p.relative_to(photos).as_posix(), p.parent.name) for p in sorted(photos.rglob("*.png"))]


def _odd_names(stage: Stage, rows: list[list[str]]) -> None:
    """Copies of the images with odd names, which the table has."""
    from benchmarks.attacks.files import NAMES

    chosen = stage.rng.sample(NAMES, 3)
    for row, name in zip(rows, chosen, strict=False):
        data = Path(row[0]).read_bytes()
        stage.here.joinpath(name).write_bytes(data)
        row[0] = name
    stage.did(f"names {[name[:20] for name in chosen]}")


def _bytes(stage: Stage, data: bytes) -> tuple[bytes, str]:
    rng = stage.rng
    text = data.decode("utf-8", "surrogateescape")
    ways: list[tuple[str, bytes]] = [
        ("UTF-16", text.encode("utf-16")),
        ("UTF-16 without a mark", text.encode("utf-16-le")),
        ("a byte order mark", b"\xef\xbb\xbf" + data),
        ("Latin-1", data + b"caf\xe9.png,a\n"),
        ("NUL bytes", data.replace(b",", b"\0,", 3)),
        ("a quote that is never closed", data + b'"x,y\n'),
        ("carriage returns", data.replace(b"\r\n", b"\r")),
        ("a gigabyte of nothing", data + b"\n" * 30_000_000),
        ("a long line", data + b"x" * 5_000_000 + b",a\n"),
        ("a huge quoted cell", data + b'"' + b"x\n" * 3_000_000 + b'",a\n'),
        ("an image", stage.material.photos.joinpath("kind0/0.png").read_bytes()),
    ]
    if rng.random() < 0.5:
        text, changed = rng.choice(ways)
        return changed, text
    return mutations.damage(rng, data)


def _parquet(stage: Stage, rows: list[list[str]]) -> str:
    import pyarrow
    from pyarrow import parquet

    rng = stage.rng
    labels: list[Any] = [row[1] for row in rows]
    paths: list[Any] = [row[0] for row in rows]
    way = rng.choice(["damage", "damage", "types", "nulls", "nested", "cells", "twice", "binary"])
    if way == "types":
        labels = list(range(16))
    elif way == "nulls":
        labels = [None if rng.random() < 0.5 else label for label in labels]
        paths[rng.randrange(16)] = None
    elif way == "nested":
        labels = [[label] for label in labels]
    elif way == "cells":
        cells = [c for c in CELLS if c.isascii() or c.isprintable()]
        labels = [rng.choice(cells).replace("\udcff", "?") for _ in labels]
    elif way == "binary":
        paths = [p.encode() for p in paths]
    table = pyarrow.table({"path": paths, "label": labels})
    if way == "twice":
        table = pyarrow.Table.from_arrays([table["path"], table["path"]], names=["path", "path"])
    file = stage.here / "table.parquet"
    parquet.write_table(table, file)
    if way == "damage":
        data, way = mutations.damage(rng, file.read_bytes())
        file.write_bytes(data)
    stage.did(f"parquet: {way}")
    return "table.parquet"
