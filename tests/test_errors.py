"""What a message quotes is short, printable and on one line."""

import pickle

import numpy as np
import pytest

from protonce.errors import LONGEST_MESSAGE, LONGEST_VALUE, UserError, shown


class Unwritable:
    def __repr__(self):
        raise RuntimeError("no")


def nested(depth):
    value = []
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (3, "3"),
        (-0.5, "-0.5"),
        ("warm", "'warm'"),
        (None, "None"),
        ([8, 4, 8], "[8, 4, 8]"),
        ("two\nlines", r"'two\nlines'"),
        (10**400, "a whole number of about 400 digits"),
    ],
)
def test_a_value_is_shown_as_it_was_written(value, text):
    assert shown(value) == text


@pytest.mark.parametrize(
    "value",
    [
        *("x" * 10**6, "\x1b[31m" * 50, "\ud800", list(range(10**5)), {i: str(i) for i in range(10**5)}),
        *(nested(50_000), Unwritable(), np.zeros((100, 100)), b"\0" * 10**5, 10**10_000, -(10**10_000)),
    ],
    ids=lambda value: type(value).__name__,
)
def test_any_value_is_shown_in_a_few_characters(value):
    assert 0 < len(shown(value)) <= LONGEST_VALUE
    assert shown(value).isprintable()


def test_a_message_is_one_bounded_line_with_its_beginning_and_its_end():
    error = UserError("data/\x1b[2J" + "x" * 10**6 + "\n does not exist; name a folder")
    assert len(str(error)) <= LONGEST_MESSAGE
    assert str(error).isprintable()
    assert str(error).startswith(r"data/\x1b[2Jxxx")
    assert str(error).endswith("xxx does not exist; name a folder")
    assert str(pickle.loads(pickle.dumps(error))) == str(error), "as it is sent to other processes"
