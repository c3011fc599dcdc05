"""The table of a comparison: means over seeds, pairs with a baseline, costs; as JSON, CSV and LaTeX. Loads no torch."""

import csv
import io
import re
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from protonce.compare.leads import holm, lead, t_test
from protonce.compare.names import PRIMARY, SCORES

Rows = Mapping[str, Sequence[Mapping[str, Any]]]  # results of the cells, by row


def summarise(results: Rows, kind: str, scores: Sequence[str], baseline: str, bounds: Sequence[str]) -> dict[str, Any]:
    """Everything that is known of each row.

    Args:
        results: results of cells, in the order of the seeds.
        kind: "test" or "held_out", the images that are scored.
        scores: names of scores.
        baseline: the row that the others are compared with, seed by seed.
        bounds: rows that are no contenders, such as an untrained encoder.
    """
    values = {row: {s: _by_seed(cells, kind, s) for s in scores} for row, cells in results.items()}
    rows = []
    for row, cells in results.items():
        pairs = {s: paired(values[row][s], values[baseline][s]) for s in scores} if row != baseline else {}
        rows.append(
            {
                "name": row,
                "system": cells[0]["system"],
                "bound": row in bounds,
                "scores": {s: over_seeds(found) for s, found in values[row].items()},
                "pairs": {s: pair for s, pair in pairs.items() if pair},
                "costs": _costs(cells),
                "curve": _curve([cell["curve"] for cell in cells]),
            }
        )
    for s in scores:
        _correct([row["pairs"][s] for row in rows if s in row["pairs"] and not row["bound"]])
    return {"scores": list(scores), "primary": PRIMARY, "baseline": baseline, "rows": rows}


def _by_seed(cells: Sequence[Mapping[str, Any]], kind: str, score: str) -> dict[int, float]:
    return {cell["seed"]: cell["scores"][kind][score] for cell in cells}


def over_seeds(values: Mapping[int, float]) -> dict[str, Any]:
    """Mean, deviation (n - 1; None for one seed) and the value of each seed."""
    deviation = statistics.stdev(values.values()) if len(values) > 1 else None
    return {"mean": statistics.fmean(values.values()), "std": deviation, "seeds": dict(values)}


def paired(ours: Mapping[int, float], theirs: Mapping[int, float]) -> dict[str, Any]:
    """Differences of one score over the seeds that both rows have, as `lead` judges them; empty with fewer than two."""
    differences = [ours[seed] - theirs[seed] for seed in ours if seed in theirs]
    if len(differences) < 2:
        return {}
    return {**vars(lead(differences)), "behind": lead([-d for d in differences]).leads, "p": t_test(differences)}


def _correct(pairs: Sequence[dict[str, Any]]) -> None:
    """Add Holm's correction over the pairs of one score."""
    corrected = holm({i: pair["p"] for i, pair in enumerate(pairs)})
    for i, pair in enumerate(pairs):
        pair["p_holm"] = corrected[i]


def _costs(cells: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Epochs; seconds of an epoch and of the training, medians over seeds; the largest memory in bytes."""
    epochs = cells[0]["costs"]["epochs"]
    middle = {key: statistics.median(cell["costs"][key] for cell in cells) for key in ("seconds", "cpu_seconds")}
    return {
        "epochs": epochs,
        **middle,
        "seconds_per_epoch": middle["seconds"] / epochs,
        "cpu_seconds_per_epoch": middle["cpu_seconds"] / epochs,
        "memory": max(cell["costs"]["memory"] for cell in cells),
    }


def _curve(curves: Sequence[Sequence[Mapping[str, float]]]) -> list[dict[str, Any]]:
    """Accuracy of kNN on images held out, mean and deviation over seeds, by epoch; with the mean time until then."""
    found = []
    for points in zip(*curves, strict=True):
        accuracies = [point["knn"] for point in points]
        found.append(
            {
                "epoch": points[0]["epoch"],
                **{key: statistics.fmean(p[key] for p in points) for key in ("seconds", "cpu_seconds")},
                "mean": statistics.fmean(accuracies),
                "std": statistics.stdev(accuracies) if len(accuracies) > 1 else None,
            }
        )
    return found


def cells_of(summary: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """The table as text, best primary score first: name, epochs, and a score a column."""
    ranked = sorted(summary["rows"], key=lambda row: (row["bound"], -row["scores"][summary["primary"]]["mean"]))
    return [
        (row["name"], str(row["costs"]["epochs"]), *(score_text(s, row["scores"][s]) for s in summary["scores"]))
        for row in ranked
    ]


def header_of(summary: Mapping[str, Any]) -> tuple[str, ...]:
    """Titles of the columns of `cells_of`."""
    return ("system", "epochs", *(SCORES[s].title for s in summary["scores"]))


def score_text(name: str, found: Mapping[str, Any]) -> str:
    """Mean and deviation: `71.2 ± 0.3`."""
    score = SCORES[name]
    return score.text(found["mean"]) + ("" if found["std"] is None else f" ± {score.text(found['std'])}")


def pair_text(name: str, pair: Mapping[str, Any]) -> str:
    """A pair in words: `+1.2 ± 0.5, ahead for 5 of 5 seeds: lead`."""
    score = SCORES[name]
    text = f"{score.text(pair['mean'], signed=True)} ± {score.text(pair['std'])}"
    word = ": lead" if pair["leads"] else ": behind" if pair["behind"] else ""
    return f"{text}, ahead for {pair['positive']} of {pair['seeds']} seeds{word}"


def to_csv(summary: Mapping[str, Any]) -> str:
    """A line for each row, score and seed."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(("system", "score", "seed", "value", "epochs", "cpu_seconds"))
    for row in summary["rows"]:
        for score, found in row["scores"].items():
            for seed, value in found["seeds"].items():
                costs = (row["costs"]["epochs"], f"{row['costs']['cpu_seconds']:.1f}")
                writer.writerow((row["name"], score, seed, f"{value:.6f}", *costs))
    return text.getvalue()


def to_latex(summary: Mapping[str, Any]) -> str:
    """A table for LaTeX's booktabs."""
    header, rows = header_of(summary), cells_of(summary)
    lines = [rf"\begin{{tabular}}{{l{'r' * (len(header) - 1)}}}", r"\toprule", _latex_row(header), r"\midrule"]
    return "\n".join([*lines, *map(_latex_row, rows), r"\bottomrule", r"\end{tabular}", ""])


def _latex_row(cells: Sequence[str]) -> str:
    escaped = (re.sub(r"([&%$#_{}])", r"\\\1", cell).replace(" ± ", r" $\pm$ ") for cell in cells)
    return " & ".join(escaped) + r" \\"
