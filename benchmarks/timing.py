"""What the benchmarks share: several sides timed in turn, and the file of a result."""

import argparse
import json
import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"


def parser(description: str | None, threads: int, repeats: int) -> argparse.ArgumentParser:
    """The options that every benchmark has."""
    found = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    found.add_argument("--threads", type=int, default=threads, help="of torch (%(default)s)")
    found.add_argument("--repeats", type=int, default=repeats, help="of which the median counts (%(default)s)")
    return found


def interleaved(sides: Mapping[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """Median seconds of each side. They take turns, so that whatever else the machine does meets all of them."""
    times: dict[str, list[float]] = {name: [] for name in sides}
    for turn in range(repeats + 1):
        for name, side in sides.items():
            began = time.perf_counter()
            side()
            if turn:  # the first warms up
                times[name].append(time.perf_counter() - began)
    return {name: statistics.median(values) for name, values in times.items()}


def publish(name: str, result: Mapping[str, Any]) -> None:
    """Print a result and keep it as results/NAME.json."""
    text = json.dumps({key: _short(value) for key, value in result.items()}, indent=2)
    print(text)
    (RESULTS / f"{name}.json").write_text(text + "\n")


def _short(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _short(v) for name, v in value.items()}
    return float(f"{value:.4g}") if isinstance(value, float) else value
