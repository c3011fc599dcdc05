"""Atomic writes, and tables that spreadsheets do not run."""

import csv
import errno
import itertools

import pytest

from protonce.files import csv_text, is_empty, read_csv, whole_folder, write_whole


@pytest.mark.parametrize("error", [OSError("12 requested and 0 written"), OSError(errno.ENOSPC, "full"), ValueError()])
def test_a_failed_write_leaves_the_old_file_and_names_it(tmp_path, error):
    path = tmp_path / "file"
    write_whole(path, "old")

    def fail(file):
        file.write(b"half")
        raise error

    with pytest.raises(type(error)) as raised:
        write_whole(path, fail)
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["file"]
    if isinstance(error, OSError):
        assert (raised.value.errno, raised.value.filename) == (error.errno or errno.EIO, str(path))
        assert str(error.strerror or error) in str(raised.value)


def test_no_cell_is_a_formula_and_every_cell_is_read_back():
    starts = ["", "'", "''", " ", "a", '"', "\n", "\r"]
    texts = ["=cmd|' /C calc'!A0", "+1+1", "-1", "-x", "@SUM(A1)", "\tx", "\rx", "1,5", '"', "ü\udcff\n=", "", "-", "'"]
    cells = ["".join(pair) for pair in itertools.product(starts, texts)]
    text = csv_text(["name", "label"], zip(cells, reversed(cells), strict=True))
    rows = read_csv(text)
    assert [row["name"] for row in rows] == cells
    assert [row["label"] for row in rows] == cells[::-1]
    for cell in itertools.chain(*csv.reader(text.splitlines(keepends=True)[1:])):
        assert cell == "-1" or not cell.startswith(("=", "+", "-", "@", "\t", "\r")), cell


@pytest.mark.parametrize("text", ["a,b\n1\n", "a,b\n1,2,3\n", 'a,b\n"1,2\n', "a\n" + "x" * 200_000])
def test_a_damaged_table_is_an_error(text):
    with pytest.raises(csv.Error):
        read_csv(text)


@pytest.mark.parametrize("there", [False, True])
def test_a_folder_is_whole_or_as_it_was(tmp_path, there):
    """A folder that is there may be a mount point: it keeps its identity."""
    path = tmp_path / "out"
    if there:
        path.mkdir()
        (path / ".part").mkdir()  # of a process that was killed
        before = path.stat().st_ino

    def fill(fail):
        with whole_folder(path) as part:
            (part / "sub").mkdir(parents=True)
            (part / "config.yaml").write_text("x")
            if fail:
                raise OSError("full")

    assert is_empty(path)
    with pytest.raises(OSError, match="full"):
        fill(True)
    assert path.exists() == there
    assert not there or list(path.iterdir()) == []
    fill(False)
    assert {p.name for p in path.iterdir()} == {"sub", "config.yaml"}
    assert not is_empty(path)
    assert [p.name for p in tmp_path.iterdir()] == ["out"]
    assert not there or path.stat().st_ino == before
