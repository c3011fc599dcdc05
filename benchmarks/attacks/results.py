"""Commands on a run folder `run`, and how to tell whether their result is that of the undamaged run."""

import csv
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from benchmarks.attacks.material import Material

FINISHED = ("trained", "imported")


@dataclass(frozen=True)
class Command:
    """A command, the runs of the material that it is tried with, and its result."""

    name: str
    arguments: Callable[["Material"], list[str]]
    result: Callable[..., Any]
    runs: tuple[str, ...] = FINISHED
    weight: int = 4  # how often it is drawn

    def differs(self, found: Any, expected: Any) -> str | None:
        """What is wrong with a result; None: it is the expected one."""
        return differs(found, expected)


def differs(found: Any, expected: Any, where: str = "") -> str | None:
    """The first difference of two results made of dicts, lists, arrays, bytes, texts and numbers; None: none."""
    if isinstance(expected, dict) and isinstance(found, dict):
        if found.keys() != expected.keys():
            return f"{where}: {sorted(map(str, found.keys() ^ expected.keys()))[:5]} in one only"
        return next((d for k in expected if (d := differs(found[k], expected[k], f"{where}/{k}"))), None)
    if isinstance(expected, list) and isinstance(found, list):
        if len(found) != len(expected):
            return f"{where}: {len(found)} instead of {len(expected)}"
        pairs = enumerate(zip(found, expected, strict=True))
        return next((d for i, (f, e) in pairs if (d := differs(f, e, f"{where}/{i}"))), None)
    if isinstance(expected, np.ndarray) and isinstance(found, np.ndarray):
        if found.shape != expected.shape:
            return f"{where}: shape {found.shape} instead of {expected.shape}"
        same = (
            np.allclose(found, expected, atol=1e-4) if expected.dtype.kind == "f" else np.array_equal(found, expected)
        )
        return None if same else f"{where}: other values"
    if isinstance(expected, float) and isinstance(found, float):
        return None if np.isclose(found, expected, atol=1e-4) else f"{where}: {found} instead of {expected}"
    if type(found) is not type(expected) or found != expected:
        return f"{where}: {str(found)[:60]!r} instead of {str(expected)[:60]!r}"
    return None


def read_npz(path: Path) -> dict[str, Any]:
    """Arrays of `embed`."""
    with np.load(path) as arrays:
        return {name: arrays[name] for name in arrays.files}


def _evaluation(protocol: str) -> Callable[[Path], Any]:
    def read(here: Path) -> Any:
        found = json.loads((here / "run" / "evaluations" / f"{protocol}-attack.json").read_text())
        return {part: found[part] for part in ("metrics", "settings", "data")}

    return read


def _page(here: Path) -> Any:
    """The page without what is drawn: identifiers in drawings differ from time to time."""
    text = (here / "run" / "report.html").read_text(errors="surrogateescape")
    text = re.sub(r"<svg.*?</svg>", "", text, flags=re.S)
    data = re.findall(r'<script[^>]*type="application/[^"]*"[^>]*>(.*?)</script>', text, flags=re.S)
    text = re.sub(r"<script.*?</script>|<style.*?</style>|<img[^>]*>", "", text, flags=re.S)
    words = re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", text))
    return {"words": words.split(), "data": data}


def _folders(here: Path) -> Any:
    found = sorted(p.relative_to(here / "clusters").as_posix() for p in (here / "clusters").rglob("*"))
    with (here / "clusters" / "clusters.csv").open(newline="", encoding="utf-8", errors="surrogateescape") as file:
        return {"files": found, "table": list(csv.reader(file))}


def _run(here: Path, name: str = "run") -> Any:
    """What a finished run hands on."""
    run = here / name
    logs = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return {
        "encoder": tensors(run / "encoder.safetensors"),
        "prototypes": read_npz(run / "prototypes.npz"),
        "images": list(csv.reader((run / "images.csv").read_text().splitlines())),
        "epochs": [{k: v for k, v in line.items() if "seconds" not in k} for line in logs],
        "assignments": {p.name: read_npz(p) for p in sorted((run / "assignments").glob("*.npz"))},
    }


def _new_encoder(here: Path) -> Any:
    return tensors(here / "new" / "encoder.safetensors")


def tensors(path: Path) -> dict[str, Any]:
    """The arrays of a .safetensors file."""
    from safetensors.numpy import load_file

    return dict(load_file(path))


def train_arguments(material: "Material", *more: str) -> list[str]:
    """`train` on the photos with the settings of the material's runs."""
    from benchmarks.attacks.material import SETTINGS

    return ["train", str(material.photos), *SETTINGS, *more]


COMMANDS = {
    c.name: c
    for c in (
        Command(
            "embed",
            lambda m: ["embed", "run", str(m.others), "--out", "x.npz"],
            lambda here: read_npz(here / "x.npz"),
            weight=8,
        ),
        Command(
            "embed many",
            lambda m: ["embed", "run", str(m.many), "--out", "x.npz"],
            lambda here: read_npz(here / "x.npz"),
            runs=("trained",),
            weight=1,
        ),
        Command(
            "knn",
            lambda m: ["evaluate", "run", "knn", "--test", str(m.others), "--name", "attack"],
            _evaluation("knn"),
            weight=6,
        ),
        Command(
            "clustering", lambda _: ["evaluate", "run", "clustering", "--name", "attack"], _evaluation("clustering")
        ),
        Command("report", lambda _: ["report", "run"], _page, weight=2),
        Command("clusters", lambda _: ["clusters", "run", "--out", "clusters"], _folders, weight=6),
        Command("import", lambda _: ["import", "run", "--out", "new"], _new_encoder),
        Command("init", lambda m: train_arguments(m, "--out", "new", "--epochs", "1", "--init", "run"), _new_encoder),
        Command(
            "resume finished",
            lambda m: train_arguments(m, "--out", "run", "--resume", "--epochs", "2"),
            _run,
            runs=("trained",),
        ),
        Command(
            "resume",
            lambda m: train_arguments(m, "--out", "run", "--resume", "--epochs", "3", "--checkpoint-minutes", "0"),
            _run,
            runs=("interrupted",),
            weight=20,
        ),
    )
}
