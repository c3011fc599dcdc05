"""Tables of results, against drawings made by hand."""

import io

import pytest
from rich.console import Console

from protonce.tables import percent, print_table


def printed(*table, width=80):
    console = Console(file=io.StringIO(), width=width, highlight=False, markup=False)
    print_table(console, *table)
    return console.file.getvalue()


def test_names_to_the_left_and_numbers_to_the_right():
    rows = [("raw-pixels", "9.5"), ("pcl", "71.2")]
    assert printed("lr", ("features", "kNN %"), rows) == (
        "┏━━━━━━━━━━━━┳━━━━━━━┓\n"
        "┃ features   ┃ kNN % ┃\n"
        "┡━━━━━━━━━━━━╇━━━━━━━┩\n"
        "│ raw-pixels │   9.5 │\n"
        "│ pcl        │  71.2 │\n"
        "└────────────┴───────┘\n"
    )


def test_a_column_without_text_is_left_out():
    header = ("metric", "value", "paper")
    without = printed("lrl", header, [("top1", "0.512", ""), ("top5", "0.790", "")])
    assert without == printed("lr", header[:2], [("top1", "0.512"), ("top5", "0.790")])
    assert "paper" in printed("lrl", header, [("top1", "0.512", ""), ("top5", "0.790", "PCL 0.856")])


def test_names_of_rows_stay_on_one_line_of_a_narrow_terminal():
    shown = printed("lr", ("method", "top-1, one per cent of the labels"), [("instance + proto", "75.3")], width=36)
    assert "│ instance + proto │" in shown
    assert max(map(len, shown.splitlines())) <= 36


def test_a_table_without_rows_is_its_header():
    assert "kNN %" in printed("lr", ("features", "kNN %"), [])


@pytest.mark.parametrize(
    ("mean", "std", "text"), [(0.71249, None, "71.2"), (0.5, 0.0031, "50.0 ± 0.3"), (1, 0, "100.0 ± 0.0")]
)
def test_percent(mean, std, text):
    assert percent(mean, std) == text
