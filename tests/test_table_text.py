"""The published table of systems as Markdown, from results made up by hand."""

import json
from pathlib import Path

from benchmarks.table_text import page, summary, tables
from protonce.compare.names import USUAL
from protonce.compare.table import summarise


def result(row, seed, value):
    return {
        "seed": seed,
        "system": row,
        "scores": {"test": dict.fromkeys(USUAL, value)},
        "curve": [],
        "costs": {"epochs": 46, "seconds": 100.0, "cpu_seconds": 90.0, "memory": 1},
    }


def trial(change, finalist, knn, ami):
    scores = {s: {"mean": v, "std": None, "seeds": {100: v}} for s, v in (("knn", knn), ("ami", ami), ("linear", 0.5))}
    return {"change": change, "finalist": finalist, "scores": scores}


def test_every_table():
    results = {
        "simclr": [result("simclr", seed, 0.50 + 0.01 * (seed - 30)) for seed in range(30, 35)],
        "pcl+simclr": [result("pcl+simclr", seed, 0.55) for seed in range(30, 35)],
        "pcl": [result("pcl", seed, 0.60) for seed in range(30, 35)],
        "random": [result("random", seed, 0.90) for seed in range(30, 35)],
    }
    final = {**summarise(results, "test", USUAL, "pcl", ["random"]), "seeds": [*range(30, 35)], "git": "abc"}
    tried = {
        "simclr": {
            "trials": [trial({}, True, 0.51, 0.2), trial({"lr": 0.5}, False, 0.4, 0.3)],
            "chosen": {},
            "at_edges": {"lr": 0.25},
        }
    }
    lines = tables(tried, final).splitlines()
    ranked = [line.split(" | ")[0] for line in lines if " | 46 | 1.5 | " in line]
    assert ranked == ["| PCL", "| SimCLR", "| untrained"], "by kNN, bounds last"
    # 0.50 to 0.54 against 0.60: -8 points, with a deviation of sqrt(2.5) points.
    pair, *added = [line for line in lines if "ahead for" in line]
    assert pair.startswith("| SimCLR | -8.0 ± 1.6, ahead for 0 of 5 seeds | 0.000 | none | kNN, AMI, linear")
    # 0.55 less the same: 3 points, the same deviation.
    assert added[0] == "| SimCLR | kNN | 52.0 ± 1.6 | 55.0 ± 0.0 | +3.0 ± 1.6, ahead for 5 of 5 seeds: lead |"
    assert len(added) == len(USUAL), "the ablation's row, by each score, and in no other table"
    assert "| SimCLR | kNN | 50.0 | 51.0 | 52.0 | 53.0 | 54.0 |" in lines
    assert "| SimCLR | as it is | lr 0.25 | 51.0 | 0.300 | 50.0 |" in lines, "the best of each score, of any trial"
    assert "| SimCLR | lr 0.5 | 1 | 40.0 | 0.300 | 50.0 |" in lines
    assert "Trained with abc." in lines


def test_trials_alone():
    assert tables({}, None).startswith("### What was chosen")


def test_the_documents_say_what_was_measured():
    root = Path(__file__).parent.parent
    results = root / "benchmarks" / "results" / "table"
    assert (root / "docs" / "table.md").read_text() == page(results)
    lines = summary(json.loads((results / "builtin" / "final" / "compare.json").read_text()))
    assert "\n".join(lines) in (root / "docs" / "systems.md").read_text()
    readme = (root / "README.md").read_text()
    shown = [line for line in readme.splitlines() if line.startswith("| ") and line in lines]
    assert shown == [*lines[:2], *lines[2:7]], "the five best"
