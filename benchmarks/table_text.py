"""docs/table.md, the published table of systems, from what benchmarks.table has trained."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from protonce.compare.names import SCORES, USUAL
from protonce.compare.table import pair_text, paired, score_text

TRIED = ("knn", "ami", "linear")  # scores of a trial
SUMMARY = ("knn", "ami", "linear", "shot_1")
NAMES = {
    "instdisc": "InstDisc",
    "moco-queue": "MoCo (queue of earlier batches)",
    "moco-in-batch": "MoCo (in-batch)",
    "simclr": "SimCLR",
    "byol": "BYOL",
    "swav": "SwAV (2 views)",
    "deepcluster": "DeepCluster",
    "rotation": "Rotation",
    "pcl": "PCL",
    "pcl+simclr": "PCL on SimCLR (not tuned)",
    "pcl+byol": "PCL on BYOL (not tuned)",
    "random": "untrained",
    "supervised": "supervised",
}
# PCL with another system's instance term: in tables of their own.
ABLATION = {"pcl+simclr": "simclr", "pcl+byol": "byol"}
DATA = {"builtin": "Drawings (`builtin`)", "fashion-mnist": "Fashion-MNIST"}
INTRODUCTION = """# The table of systems

All systems have the same encoder (a ResNet-10 of width 16, 24 pixels), the same images, crops and colours, and the same
CPU time: 1.5 minutes of one core for a training, turned into epochs by timing an epoch of each system beforehand. Each
was tuned by its own six trials with seed 100, the best two also with seed 101, by kNN on a fifth of the training
images; then it was trained with five other seeds and scored once on images that no study had read. A chosen value is at
the edge if it is the smallest or the largest that was tried, so a better one may lie beyond. What this says, and what
it does not, is in [systems.md](systems.md#how-they-compare). `python -m benchmarks.table` trains all of it again, and
wrote this page.
"""


def page(results: Path) -> str:
    """The page: each data set of which there is something in RESULTS."""
    parts = [INTRODUCTION]
    for name, title in DATA.items():
        folder, final = results / name, results / name / "final" / "compare.json"
        if trials := read_trials(folder):
            found = tables(trials, json.loads(final.read_text()) if final.exists() else None)
            parts.append(f"## {title}\n\n{found}")
    return "\n".join(parts)


def read_trials(folder: Path) -> dict[str, dict[str, Any]]:
    """The tune.json of each row that is tuned, by name."""
    return {row: json.loads(path.read_text()) for row in NAMES if (path := folder / row / "tune.json").exists()}


def tables(trials: Mapping[str, Mapping[str, Any]], final: Mapping[str, Any] | None) -> str:
    """All of a data set: ranked table, pairs, ablation, points of each seed, what was chosen, trials.

    Args:
        trials: the tune.json of each row.
        final: compare.json; None: not yet trained.
    """
    lines: list[str] = []
    if final is not None:
        lines += ["### Test images", "", f"Trained with {final['git']}.", "", *ranking(final), ""]
        lines += [f"Each row less {NAMES[final['baseline']]}, seed by seed:", "", *pairs(final), ""]
        lines += ["### PCL on another instance term", "", *ablation(final), ""]
        lines += ["### The points of each seed", "", *points(final), ""]
    lines += ["### What was chosen, and the best of all trials by each score, on images held out", "", *chosen(trials)]
    lines += ["", "### Trials, on images held out", "", *every_trial(trials), ""]
    return "\n".join(lines)


def ranking(final: Mapping[str, Any]) -> list[str]:
    """Best kNN first, bounds last; mean and deviation over the seeds."""
    rows = sorted(_ranked(final), key=lambda row: (row["bound"], -row["scores"]["knn"]["mean"]))
    lines = _head("system", "epochs", "CPU minutes", *(SCORES[s].title for s in USUAL))
    for row in rows:
        costs = row["costs"]
        scores = [score_text(s, row["scores"][s]) for s in USUAL]
        lines.append(_row(NAMES[row["name"]], costs["epochs"], f"{costs['cpu_seconds'] / 60:.1f}", *scores))
    return lines


def summary(final: Mapping[str, Any]) -> list[str]:
    """The scores of the README, best kNN first: ranked systems and the ablation's."""
    rows = sorted(final["rows"], key=lambda row: -row["scores"]["knn"]["mean"])
    lines = _head("system", "epochs", *(SCORES[s].title for s in SUMMARY))
    for row in rows:
        if not row["bound"]:
            scores = [score_text(s, row["scores"][s]) for s in SUMMARY]
            lines.append(_row(NAMES[row["name"]], row["costs"]["epochs"], *scores))
    return lines


def pairs(final: Mapping[str, Any]) -> list[str]:
    """Differences in kNN, with Holm's correction over all rows, and the scores in which a row leads or is behind."""
    lines = _head("system", "kNN", "p (Holm)", "leads in", "behind in")
    for row in _ranked(final):
        found = row["pairs"]
        if row["bound"] or not found:
            continue
        words = [", ".join(SCORES[s].title for s in USUAL if found[s][side]) or "none" for side in ("leads", "behind")]
        text = pair_text("knn", found["knn"]).split(":")[0]
        lines.append(_row(NAMES[row["name"]], text, f"{found['knn']['p_holm']:.3f}", *words))
    return lines


def points(final: Mapping[str, Any]) -> list[str]:
    """The kNN and AMI of each seed."""
    lines = _head("system", "score", *(str(seed) for seed in final["seeds"]))
    for row in _ranked(final):
        for s in ("knn", "ami"):
            values = row["scores"][s]["seeds"]
            lines.append(_row(NAMES[row["name"]], SCORES[s].title, *(SCORES[s].text(v) for v in values.values())))
    return lines


def ablation(final: Mapping[str, Any]) -> list[str]:
    """What the prototype term adds to each system that PCL can stand on."""
    rows = {row["name"]: row for row in final["rows"]}
    lines = _head("system", "score", "alone", "with PCL", "difference")
    for name, base in ABLATION.items():
        if name not in rows:
            continue
        for s in USUAL:
            ours, theirs = (rows[row]["scores"][s] for row in (name, base))
            difference = pair_text(s, paired(ours["seeds"], theirs["seeds"]))
            lines.append(_row(NAMES[base], SCORES[s].title, score_text(s, theirs), score_text(s, ours), difference))
    return lines


def _ranked(final: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The rows without those of the ablation."""
    return [row for row in final["rows"] if row["name"] not in ABLATION]


def chosen(trials: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """What was chosen for each row, whether it is at the edge of its grid, and the best of all trials by each score."""
    lines = _head("system", "chosen", "at the edge of its grid", *(f"best {SCORES[s].title}" for s in TRIED))
    for row, found in trials.items():
        best = [max(found["trials"], key=lambda trial: trial["scores"][s]["mean"])["scores"][s]["mean"] for s in TRIED]
        texts = [SCORES[s].text(value) for s, value in zip(TRIED, best, strict=True)]
        lines.append(_row(NAMES[row], _words(found["chosen"]), _words(found["at_edges"], "no"), *texts))
    return lines


def every_trial(trials: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """A line for each trial."""
    lines = _head("system", "change", "seeds", *(SCORES[s].title for s in TRIED))
    for row, found in trials.items():
        for trial in found["trials"]:
            scores = [score_text(s, trial["scores"][s]) for s in TRIED]
            lines.append(_row(NAMES[row], _words(trial["change"]), len(trial["scores"]["knn"]["seeds"]), *scores))
    return lines


def _words(settings: Mapping[str, Any], none: str = "as it is") -> str:
    texts = {k: f"{v:.4g}" if isinstance(v, float) else str(v) for k, v in settings.items()}
    return ", ".join(f"{name} {text}" for name, text in texts.items()) or none


def _head(*cells: str) -> list[str]:
    return [_row(*cells), _row("---", *["---:"] * (len(cells) - 1))]


def _row(*cells: object) -> str:
    return f"| {' | '.join(map(str, cells))} |"
