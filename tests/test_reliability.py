"""The promises of docs/reliability.md name tests that exist."""

import re
from pathlib import Path

TESTS = Path(__file__).parent
PAGE = TESTS.parent / "docs" / "reliability.md"


def test_each_promise_names_tests_that_exist():
    text = PAGE.read_text()
    named = re.findall(r"`(test_\w+\.py)::(test_\w+)`", text)
    assert len(named) > 40
    for file, test in named:
        assert re.search(rf"^def {test}\(", (TESTS / file).read_text(), re.M), f"{file}::{test}"
    for row in re.findall(r"^\|(?! promise|-)(.*)\|$", text, re.M):
        assert "::" in row, row
