"""Read metrics from a run's evaluations/*.json, and what the paper reports for them."""

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from protonce.reported import Excerpt, Reference, describe, excerpts, find, is_same


@dataclass(frozen=True)
class Score:
    """One metric of an evaluation."""

    metric: str
    mean: float | None  # None: the value is not a number; see `text`
    std: float | None
    draws: list[float]
    text: str
    paper: str  # the paper's scores with the same data, k and protocol
    apart: Reference | None = None  # the paper's scores if one of these differs
    remark: str = ""  # what the name of the metric does not say
    chance: str = ""  # score of guessing, if it is known
    untrained: str = ""  # score of the same encoder with random weights, if it was evaluated


def scores(result: Mapping[str, Any]) -> list[Score]:
    """The metrics of an evaluation; values that are neither a number nor mean and std are kept as text."""
    metrics, remarks = result.get("metrics"), result.get("remarks")
    found = []
    for metric, value in metrics.items() if isinstance(metrics, Mapping) else ():
        spread = value if isinstance(value, Mapping) else {"mean": value}
        mean, std = (_number(spread.get(name)) for name in ("mean", "std"))
        draws = spread.get("runs")
        text = json.dumps(value, ensure_ascii=False) if mean is None else f"{mean:.3f}"
        if mean is not None and std is not None:
            text += f" ± {std:.3f}"
        reference = find(result, metric)
        same = reference is not None and is_same(result, metric)
        found.append(
            Score(
                metric=metric,
                mean=mean,
                std=std,
                draws=[d for d in map(_number, draws) if d is not None] if isinstance(draws, list) else [],
                text=text,
                paper=describe(reference) if reference and same else "",
                apart=None if same else reference,
                remark=str(remarks.get(metric, "")) if isinstance(remarks, Mapping) else "",
                chance=_reference(result, "chance", metric),
                untrained=_reference(result, "untrained", metric),
            )
        )
    return found


def _reference(result: Mapping[str, Any], name: str, metric: str) -> str:
    """The score of guessing or of random weights as text; empty: not known."""
    known = result.get(name)
    value = _number(known.get(metric)) if isinstance(known, Mapping) else None
    return "" if value is None else f"{value:.3f}"


def from_paper(found: Iterable[Score]) -> list[Excerpt]:
    """The paper's scores for what was measured otherwise, unless they stand beside another; to show under HEADING."""
    known = list(found)
    beside = {score.paper for score in known}
    return excerpts(score.apart for score in known if score.apart and describe(score.apart) not in beside)


def images_tested(result: Mapping[str, Any]) -> str:
    """Description of the test images of an evaluation, and how many classes were left out."""
    data = result.get("data")
    test = data.get("test") or data.get("train") if isinstance(data, Mapping) else None
    if not isinstance(data, Mapping) or not isinstance(test, Mapping):
        return ""
    left_out = len(data.get("left_out", ()))
    also = f", {left_out:,} {'class' if left_out == 1 else 'classes'} left out" if left_out else ""
    return describe_images(test) + also


def describe_images(about: Mapping[str, Any]) -> str:
    """How many images of which data were used, given the `train` or `test` of an evaluation's data."""
    counts = [about[name] for name in ("used", "images") if name in about]
    return f"{' of '.join(f'{n:,}' if isinstance(n, int) else str(n) for n in counts)} images of {about.get('source')}"


def _number(value: object) -> float | None:
    fine = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return float(value) if fine else None  # type: ignore[arg-type]
