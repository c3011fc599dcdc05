"""The evaluations on the page: the scores of a run, or of two runs side by side."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from protonce.results import Score, images_tested, scores
from protonce.run import Run

AGREEMENT = "agreement of clusters with labels"
Results = Mapping[str, Mapping[str, Any]]  # evaluations of a run by name


@dataclass(frozen=True)
class Row:
    """A metric of an evaluation."""

    metric: str
    scores: dict[str, Score | None]  # by run; None: it does not have this metric
    remark: str
    paper: str
    chance: str
    untrained: str

    @property
    def words(self) -> str:
        """The metric as the first screen calls it; empty: it is left to the others, as it says much the same."""
        if re.match(r"(nmi|ari)\b", self.metric):
            return ""
        found = re.fullmatch(r"ami(?: of the run's k = (.*)| \((.*)\))?", self.metric)
        if found is None:
            return self.metric
        if found[1]:
            return f"{AGREEMENT}, the run's {found[1]} clusters"
        return f"{AGREEMENT}, {found[2]}" if found[2] else AGREEMENT


@dataclass(frozen=True)
class Evaluation:
    """An evaluation of one run, or of several by the same name."""

    name: str
    rows: list[Row]
    tested_on: str
    features: str
    details: dict[str, str]  # settings and data as JSON, by run


def gather(runs: Mapping[str, Run]) -> list[Evaluation]:
    """The evaluations of runs, given by title, sorted by name."""
    return side_by_side({title: run.evaluations for title, run in runs.items()})


def side_by_side(results: Mapping[str, Results]) -> list[Evaluation]:
    """The evaluations of runs, by title, in one table each; a run need not have all of them."""
    names = sorted({name for found in results.values() for name in found})
    return [
        _evaluation(name, list(results), {title: found[name] for title, found in results.items() if name in found})
        for name in names
    ]


def _evaluation(name: str, titles: list[str], results: Results) -> Evaluation:
    found = {title: {score.metric: score for score in scores(result)} for title, result in results.items()}
    metrics = list(dict.fromkeys(metric for one in found.values() for metric in one))
    rows = []
    for metric in metrics:
        having = {title: one[metric] for title, one in found.items() if metric in one}
        remark = _of_each({title: score.remark for title, score in having.items()})
        paper = _of_each({title: score.paper for title, score in having.items()})
        chance = _of_each({title: score.chance for title, score in having.items()})
        untrained = _of_each({title: score.untrained for title, score in having.items()})
        rows.append(Row(metric, {title: having.get(title) for title in titles}, remark, paper, chance, untrained))
    tested = {title: images_tested(result) for title, result in results.items()}
    tested_on = _of_each(tested)
    if len({_test_fingerprint(result) for result in results.values()}) > 1 and len(set(tested.values())) == 1:
        tested_on += " (other images for each run)"
    details = {
        title: json.dumps({what: result.get(what) for what in ("settings", "data")}, indent=2, ensure_ascii=False)
        for title, result in results.items()
    }
    features = _of_each({title: str(result.get("features", "")) for title, result in results.items()})
    return Evaluation(name, rows, tested_on, features, details)


def _test_fingerprint(result: Mapping[str, Any]) -> str:
    data = result.get("data")
    test = data.get("test") or data.get("train") if isinstance(data, Mapping) else None
    return str(test.get("fingerprint")) if isinstance(test, Mapping) else ""


def _of_each(texts: Mapping[str, str]) -> str:
    """A text that is the same for all runs, or that of each."""
    if len(set(texts.values())) == 1:
        return next(iter(texts.values()))
    return "; ".join(f"{title}: {text}" for title, text in texts.items() if text)
