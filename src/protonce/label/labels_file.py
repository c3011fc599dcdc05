"""labels.csv: what people call images. Written by hand, by a spreadsheet or by `protonce suggest`."""

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

from protonce.data.tables import LABELS, PATHS
from protonce.errors import UserError, shown
from protonce.files import unescape

NAMES = ("name", *(title for title in PATHS if title != "name"))  # columns of the names, the preferred one first
BETWEEN = "|"  # several labels of an image
SEPARATORS = ",;\t"  # spreadsheets in many countries write semicolons
LARGEST = 1 << 30  # bytes
MAX_LABEL = 1000  # characters
HINT = "save it as CSV in UTF-8"
MARKS = ("wrong", "duplicate")  # what the page may say of an image instead
Labels = dict[int, tuple[str, ...]]  # the labels of each image that has some, by its index


Given = str | Path | Mapping[str, str]  # a table, or the label of each image by its name


@dataclass(frozen=True)
class Table:
    """What a table says of images, by their index."""

    labels: Labels
    marks: dict[int, str]  # "wrong": its label is, or it does not belong here; "duplicate": of another image


def take_labels(given: Given, names: Sequence[str]) -> Labels:
    """The labels of images, without those that are marked as wrong; for arguments see `take_table`.

    Raises:
        UserError: as `take_table`, and if there are no labels.
    """
    table = take_table(given, names)
    labels = {i: found for i, found in table.labels.items() if table.marks.get(i) != "wrong"}
    if not labels:
        where = (
            f"{given} has no labels below its first line" if isinstance(given, (str, Path)) else "there are no labels"
        )
        raise UserError(f"{where}; add some")
    return labels


def take_table(given: Given, names: Sequence[str]) -> Table:
    """What is given of images, as a table or by name.

    Args:
        given: see `Given`.
        names: of the images that may be labelled.

    Raises:
        UserError: as `read_table`; or a name is not that of an image, or its label is empty.
    """
    if isinstance(given, (str, Path)):
        return read_table(Path(given), names)
    places = {name: i for i, name in enumerate(names)}
    for name, label in given.items():
        if name not in places:
            raise _unknown("labels", name, names)
        if not all(part.strip() for part in label.split(BETWEEN)):
            raise UserError(f"labels has no label for {shown(name)}; give one, or leave it out")
    return Table({places[name]: _several(label) for name, label in given.items()}, {})


def _several(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(label.strip() for label in text.split(BETWEEN)))


def read_table(path: Path, names: Sequence[str]) -> Table:
    """The labels and marks that a table gives to images.

    A column has the names of images (`name`, `path`, `file` ...) as the run has them, another their labels (`label`,
    `class` ...), several of them with | in between. A column `mark`, as the page writes it, may say `wrong` or
    `duplicate`; an image with a mark, or in a `cluster` with a name, needs no label. Other columns are ignored. Columns
    are separated by commas, semicolons or tabs.

    Args:
        path: of the table.
        names: of the images that may be labelled.

    Raises:
        UserError: the file is missing or no such table, or a line has an unknown image, an image that was there before,
            or no label; with the number of the line.
    """
    lines = _lines(path)
    (_, header), rows = lines[0], lines[1:]
    name_column, label_column = _column(path, header, NAMES), _column(path, header, LABELS)
    titles = [title.strip().lower() for title in header]
    optional = [titles.index(title) for title in ("mark", "cluster") if title in titles]
    places = {name: i for i, name in enumerate(names)}
    found, marks = dict[int, tuple[str, ...]](), dict[int, str]()
    seen: dict[int, int] = {}  # the line of each image
    for number, row in rows:
        where = f"line {number} of {path}"
        if len(row) != len(header):
            raise UserError(f"{where} has {len(row)} columns, but the first line has {len(header)}")
        name, text = row[name_column], row[label_column].strip()
        if name not in places:
            raise _unknown(where, name, names)
        image = places[name]
        if image in seen:
            raise UserError(f"{where} names {shown(name)}, which line {seen[image]} has already; remove one of them")
        seen[image] = number
        if "mark" in titles and (mark := row[titles.index("mark")].strip()) in MARKS:
            marks[image] = mark
        if not text and any(row[column].strip() for column in optional):
            continue
        labels = _several(text)
        if not all(labels):
            raise UserError(f"{where} has no label for {shown(name)}; write one, or remove the line")
        if any("\udc80" <= character <= "\udcff" for character in text):
            raise UserError(f"{where} is not UTF-8; {HINT}")
        if len(text) > MAX_LABEL:
            raise UserError(f"{where} has a label of more than {MAX_LABEL} characters; shorten it")
        found[image] = labels
    if not seen:
        raise UserError(f"{path} has no labels below its first line; add some")
    return Table(found, marks)


def _lines(path: Path) -> list[tuple[int, list[str]]]:
    """The rows that are not empty, with the numbers of their last lines."""
    if not path.is_file():
        raise UserError(f"there is no file {path}")
    if path.stat().st_size > LARGEST:
        raise UserError(f"{path} is larger than {LARGEST >> 30} GB, which is too large for a table of labels")
    data = path.read_bytes()
    if b"\0" in data:  # UTF-16, or a spreadsheet's own format
        raise UserError(f"line {data[: data.index(0)].count(10) + 1} of {path} is not text in UTF-8; {HINT}")
    text = data.decode("utf-8-sig", "surrogateescape")  # names of files need not be UTF-8
    first = text.partition("\n")[0]
    separator = max(SEPARATORS, key=first.count)  # the first of them, if there is none
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=separator, strict=True)
    try:
        rows = [(reader.line_num, [unescape(value) for value in row]) for row in reader if any(row)]
    except csv.Error as error:
        raise UserError(f"line {reader.line_num} of {path} cannot be read: {error}; {HINT}") from None
    if not rows:
        raise UserError(f"{path} is empty")
    return rows


def _column(path: Path, header: Sequence[str], names: Sequence[str]) -> int:
    """The place of the column with the first of these names that occurs."""
    titles = [title.strip().lower() for title in header]
    for name in names:
        if titles.count(name) > 1:
            raise UserError(f"line 1 of {path} has {titles.count(name)} columns {name!r}; rename or remove the others")
        if name in titles:
            return titles.index(name)
    raise UserError(f"line 1 of {path} names no column {', '.join(names[:-1])} or {names[-1]}; name one so")


def _unknown(where: str, name: str, names: Sequence[str]) -> UserError:
    if any("\udc80" <= character <= "\udcff" for character in name):
        return UserError(f"{where} is not UTF-8; {HINT}")
    close = get_close_matches(name, names[:10_000], n=1)
    hint = f"; did you mean {shown(close[0])}?" if close else "; names are those of RUN/images.csv"
    return UserError(f"{where} names {shown(name)}, which is not an image of the run{hint}")
