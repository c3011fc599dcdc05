"""labels.csv as people write it: every mistake is named with its line, and nothing else is refused."""

import pytest

from protonce.errors import UserError
from protonce.files import csv_text
from protonce.label.labels_file import take_labels

NAMES = ["a.jpg", "b/c.jpg", "-1.jpg", "ü.jpg", "\udcff.jpg"]


def read(tmp_path, content):
    path = tmp_path / "labels.csv"
    path.write_bytes(content if isinstance(content, bytes) else content.encode("utf-8", "surrogateescape"))
    return take_labels(path, NAMES)


@pytest.mark.parametrize(
    "content",
    [
        "name,label\na.jpg,cat\nb/c.jpg,dog\n",
        "\ufeffname,label\r\na.jpg,cat\r\nb/c.jpg,dog\r\n",  # as Excel saves it
        "name;label\na.jpg;cat\nb/c.jpg;dog\n",  # as Excel saves it in many countries
        "Filename\tWhen\tClass\na.jpg\tyesterday\tcat\n\t\t\nb/c.jpg\ttoday\tdog",
        "file,name,label\n/photos/a.jpg,a.jpg,cat\n/photos/b/c.jpg,b/c.jpg,dog\n",  # as `suggest` writes it
        '"path","target"\n"a.jpg"," cat "\n"b/c.jpg","dog"\n',
    ],
)
def test_what_people_write(tmp_path, content):
    assert read(tmp_path, content) == {0: ("cat",), 1: ("dog",)}


def test_what_the_program_writes_and_several_labels(tmp_path):
    rows = [("-1.jpg", "=1+1"), ("ü.jpg", "two\nlines"), ("\udcff.jpg", "cat | dog|cat")]
    found = read(tmp_path, csv_text(("name", "label"), rows))
    assert found == {2: ("=1+1",), 3: ("two\nlines",), 4: ("cat", "dog")}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("name,label\na.jpg,cat\nb/d.jpg,dog\n", r"line 3 of .* names 'b/d.jpg', which is not an image.* 'b/c.jpg'\?"),
        ("name,label\nzzzzzzzzzzzz,dog\n", r"line 2 of .* names are those of RUN/images.csv"),
        ("name,label\na.jpg,cat\n\na.jpg,dog\n", r"line 4 of .* names 'a.jpg', which line 2 has already"),
        ("name,label\na.jpg,cat\nb/c.jpg,\n", r"line 3 of .* has no label for 'b/c.jpg'; write one, or remove"),
        ("name,label\na.jpg,cat|\n", r"line 2 of .* has no label"),
        ("name,label\na.jpg,cat,dog\n", r"line 2 of .* has 3 columns, but the first line has 2"),
        ("picture,label\na.jpg,cat\n", r"line 1 of .* names no column name, path, .* or image"),
        ("name,meaning\na.jpg,cat\n", r"line 1 of .* names no column label, class, target or category"),
        ("name,label,label\na.jpg,cat,dog\n", r"line 1 of .* has 2 columns 'label'"),
        ("name,label\na.jpg,caf\udce9\n", r"line 2 of .* is not UTF-8; save it as CSV in UTF-8"),
        ("name,label\ncaf\udce9.jpg,cat\n", r"line 2 of .* is not UTF-8"),
        ("name,label\na.jpg,cat\n".encode("utf-16"), r"line 1 of .* is not text in UTF-8"),
        ('name,label\na.jpg,"cat\n', r"line 2 of .* cannot be read: unexpected end of data"),
        ("name,label\na.jpg," + 1001 * "x" + "\n", r"line 2 of .* has a label of more than 1000 characters"),
        ("name,label\n", "has no labels below its first line"),
        ("", "is empty"),
    ],
)
def test_mistakes_have_the_number_of_their_line(tmp_path, content, words):
    with pytest.raises(UserError, match=words):
        read(tmp_path, content)


def test_a_missing_file(tmp_path):
    with pytest.raises(UserError, match="there is no file"):
        take_labels(tmp_path / "labels.csv", NAMES)
