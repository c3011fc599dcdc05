"""`protonce runs`: all runs below a folder, as a table, a .csv and a page."""

import csv
import json
import shutil

import pytest
from rich.console import Console

from protonce import manifest
from protonce.cli import main
from protonce.errors import UserError
from protonce.importing import import_encoder
from protonce.report.overview import columns, fitting, gather_runs, sort_rows
from protonce.tables import print_table


@pytest.fixture
def folder(trained, tmp_path):
    """A trained run with an evaluation, an imported one, one that is damaged, and other folders."""
    trained.evaluate("knn")
    shutil.copytree(trained.path, tmp_path / "runs" / "photos" / "first")
    import_encoder("untrained", tmp_path / "runs" / "imported", like=trained, quiet=True)
    broken = tmp_path / "runs" / "broken"
    broken.mkdir()
    (broken / "config.yaml").write_text("format: 5\n")
    (tmp_path / "runs" / "empty").mkdir()
    return tmp_path / "runs"


def test_all_runs_below_a_folder(folder, trained, capsys):
    rows, problems = gather_runs(folder)
    assert [row.cells["run"] for row in rows] == ["imported", "photos/first"]
    assert len(problems) == 1
    first = rows[1]
    assert (first.cells["epochs"], first.values["images"], first.values["seed"]) == ("3", 48, 0)
    assert first.values["loss"] == trained.metrics[-1]["loss"]
    metrics = trained.evaluations["knn"]["metrics"]
    assert {name.removeprefix("knn "): first.values[name] for name in first.values if name.startswith("knn ")} == {
        name: value for name, value in metrics.items() if isinstance(value, float)
    }
    assert main(["runs", str(folder), "--sort", "loss"]) == 0
    out = capsys.readouterr().out
    assert "photos/first" in out
    assert "left out" in out


def test_runs_below_a_folder_of_another_program_and_the_last_watched_scores(folder, trained):
    """Its config.yaml is not a run's; and epochs without scores follow one with them."""
    (folder / "config.yaml").write_text("lr: 0.1\n")
    lines = [*trained.metrics]
    lines[1] = {**lines[1], "scores": {"knn": 0.5}}
    run = folder / "photos" / "first"
    manifest.write(run, "metrics.jsonl", "".join(json.dumps(line) + "\n" for line in lines))
    rows, problems = gather_runs(folder)
    assert [row.cells["run"] for row in rows] == ["imported", "photos/first"]
    assert len(problems) == 2
    assert rows[1].values["watch knn"] == 0.5


def test_sorting(folder):
    rows, _ = gather_runs(folder)
    assert [row.cells["run"] for row in sort_rows(rows, "loss")] == ["photos/first", "imported"], "without one: last"
    assert [row.cells["run"] for row in sort_rows(rows, "system")] == ["imported", "photos/first"], "PCL"
    with pytest.raises(UserError, match="--sort speed is none of the columns: run, system"):
        sort_rows(rows, "speed")


def test_a_narrow_terminal_has_fewer_columns(folder):
    rows, _ = gather_runs(folder)
    everything = fitting(rows, 1000, "run")
    assert {*everything} == {name for name in columns(rows) if any(row.cells.get(name) for row in rows)}
    narrow = fitting(rows, 80, "seed")
    assert {"run", "system", "state", "seed"} <= {*narrow} < {*everything}
    lines = [[row.cells.get(name, "") for name in narrow] for row in rows]
    console = Console(width=80, record=True)
    print_table(console, "l" * len(narrow), narrow, lines)
    assert "…" not in console.export_text()


def test_files(folder, tmp_path, capsys):
    assert main(["runs", str(folder), "--out", str(tmp_path / "runs.csv")]) == 0
    rows = list(csv.DictReader((tmp_path / "runs.csv").open()))
    assert [row["run"] for row in rows] == ["imported", "photos/first"]
    assert main(["runs", str(folder), "--out", str(tmp_path / "runs.html")]) == 0
    page = (tmp_path / "runs.html").read_text()
    assert page.count("<tr>") == 3
    for options, words in (
        (["--out", str(tmp_path / "runs.txt")], "must end in .csv or .html"),
        (["--out", str(tmp_path / "none" / "runs.csv")], "does not exist"),
    ):
        assert main(["runs", str(folder), *options]) == 2
        assert words in capsys.readouterr().err
    assert main(["runs", str(tmp_path / "nowhere")]) == 2
    assert "there are no runs below" in capsys.readouterr().err


@pytest.mark.slow
def test_the_columns_of_the_page_can_be_sorted(folder, open_page, tmp_path):
    assert main(["runs", str(folder), "--out", str(tmp_path / "runs.html")]) == 0
    page = open_page(tmp_path / "runs.html")

    def order():
        return [row.inner_text() for row in page.query_selector_all("tbody td:first-child")]

    assert order() == ["imported", "photos/first"]
    for column, expected in (
        ("run", ["imported", "photos/first"]),
        ("run", ["photos/first", "imported"]),
        ("loss", ["photos/first", "imported"]),
        ("loss", ["photos/first", "imported"]),  # a run without a value stays last
    ):
        page.get_by_role("button", name=column, exact=True).click()
        assert order() == expected
    assert page.get_by_role("columnheader", name="loss").get_attribute("aria-sort") == "ascending"
