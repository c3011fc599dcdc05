"""Text from the user's files, shortened where it is shown."""

import pytest

from protonce.shortening import enumerate_names, shorten


@pytest.mark.parametrize("most", [5, 30, 120])
def test_long_text_keeps_its_beginning_and_its_end(most):
    text = "begin" + "x" * 200_000 + "end"
    found = shorten(text, most)
    assert len(found) == most
    before, after = found.split("…")
    assert text.startswith(before)
    assert text.endswith(after)
    assert before
    assert after
    assert shorten(text[:most], most) == text[:most]


def test_many_names():
    assert enumerate_names(["a", "b"]) == "a, b"
    assert enumerate_names(list("abcdefg"), most=3) == "a, b, c and 4 others"
    assert enumerate_names(["x" * 1000, "b"]).count("x") < 120
