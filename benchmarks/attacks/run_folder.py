"""A run folder with one damaged, swapped or missing file; every command that reads one."""

import io
import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from benchmarks.attacks import mutations
from benchmarks.attacks.process import Outcome
from benchmarks.attacks.results import COMMANDS, Command
from benchmarks.attacks.stage import Stage, files_of

IGNORED = (".lock", "report.html")


def attack(stage: Stage) -> None:
    """Damage a file of a copy of a run, and run a command on it."""
    rng, material = stage.rng, stage.material
    name = rng.choice(["trained", "trained", "trained", "interrupted", "imported"])
    commands = [c for c in COMMANDS.values() if name in c.runs]
    command = rng.choices(commands, [c.weight for c in commands])[0]
    run = material.copy(name, stage.here / "run")
    stage.did(f"run {name}")
    removed = _damage_file(stage, name, run)
    if rng.random() < 0.4 and (run / "features").is_dir():
        for file in (run / "features").iterdir():
            if file.is_file() or file.is_symlink():
                file.unlink()
        stage.did("emptied features")
    if rng.random() < 0.15:
        stage.attempt("check", "run", right=lambda o: _check_says(stage, name, o))
    expected = material.expected(name, command.name)
    if removed and removed.parent.name == "evaluations":  # that is anyone's right
        stage.attempt(*command.arguments(material))
    else:
        stage.attempt(*command.arguments(material), right=lambda o: same(stage, command, expected, o, removed))


def same(stage: Stage, command: Command, expected: Any, outcome: Outcome, damaged: Path | None = None) -> str | None:
    """What is wrong with the result of a command; what the program has said is not silent."""
    try:
        found = command.result(stage.here)
    except Exception as error:
        return f"{command.name} succeeds, but its result cannot be read: {type(error).__name__}: {error}"
    wrong = command.differs(found, expected)
    if wrong and damaged is not None and damaged.name in outcome.out + outcome.err:
        return None
    return wrong and f"{command.name}{wrong}"


def _damage_file(stage: Stage, name: str, run: Path) -> Path | None:
    """Damage one file; the file if it was removed or is no file any more."""
    rng = stage.rng
    files = sorted(p for p in run.rglob("*") if p.is_file() and p.name not in IGNORED)
    kinds = sorted({_kind(run, p) for p in files})
    kind = rng.choice(kinds)
    path = rng.choice([p for p in files if _kind(run, p) == kind])
    shown = path.relative_to(run).as_posix()
    way = rng.random()
    other = stage.material.run("second" if name != "second" else "trained") / shown
    if way < 0.15:
        stage.did(f"{shown}: {mutations.place(rng, path)}")
        return path
    if way < 0.22 and other.is_file():
        stage.did(f"{shown}: {mutations.swap(other, path)}")
    elif way < 0.6 and (editor := EDITORS.get(path.suffix)):
        data, text = editor(stage, path.read_bytes())
        path.write_bytes(data)
        stage.did(f"{shown}: {text}")
    else:
        data, text = mutations.damage(rng, path.read_bytes())
        path.write_bytes(data)
        stage.did(f"{shown}: {text}")
    return None


def _kind(run: Path, path: Path) -> str:
    """The file, or the folder that it is one of."""
    return path.relative_to(run).parts[0]


def _check_says(stage: Stage, name: str, outcome: Outcome) -> str | None:
    """`check` names each file that the manifest lists and that is not as it was."""
    whole = stage.material.run(name)
    listed = (whole / "manifest.json").read_text()
    before, now = files_of(whole), files_of(stage.here / "run")
    for file, content in before.items():
        if file in listed and now.get(file) != content and Path(file).name not in outcome.out + outcome.err:
            return f"check says nothing of {file}"
    return None


# Damage that keeps the format whole


def _yaml(stage: Stage, data: bytes) -> tuple[bytes, str]:
    tree, text = mutations.edit(stage.rng, yaml.safe_load(data))
    return yaml.safe_dump(tree, sort_keys=False).encode(), text


def _json(stage: Stage, data: bytes) -> tuple[bytes, str]:
    tree, text = mutations.edit(stage.rng, json.loads(data))
    return json.dumps(tree).encode(), text


def _jsonl(stage: Stage, data: bytes) -> tuple[bytes, str]:
    lines = data.decode().splitlines()
    i = stage.rng.randrange(len(lines))
    way = stage.rng.random()
    if way < 0.2:
        return "".join(line + "\n" for line in lines[:i] + lines[i + 1 :]).encode(), f"removed line {i + 1}"
    if way < 0.3:
        return "".join(line + "\n" for line in [*lines, lines[i]]).encode(), f"line {i + 1} once more at the end"
    tree, text = mutations.edit(stage.rng, json.loads(lines[i]))
    lines[i] = json.dumps(tree)
    return "".join(line + "\n" for line in lines).encode(), f"line {i + 1}: {text}"


def _csv(stage: Stage, data: bytes) -> tuple[bytes, str]:
    lines = data.decode().splitlines()
    i = stage.rng.randrange(len(lines))
    new = stage.rng.choice(
        ["", "0,x,y", "1", ',,,,"', "0,\0,a", f"{i},{'x' * 200_000},y", '"', lines[-1], lines[0], "x,kind0/0.png,kind1"]
    )
    lines[i] = new
    return "".join(line + "\n" for line in lines).encode(), f"line {i + 1} is {new[:30]!r}"


def _arrays(change: Callable[[Stage, dict[str, Any]], str]) -> Callable[[Stage, bytes], tuple[bytes, str]]:
    def edit(stage: Stage, data: bytes) -> tuple[bytes, str]:
        with np.load(io.BytesIO(data)) as opened:
            arrays = {name: opened[name] for name in opened.files}
        text = change(stage, arrays)
        buffer = io.BytesIO()
        np.savez_compressed(buffer, **arrays)
        return buffer.getvalue(), text

    return edit


def change_arrays(stage: Stage, arrays: dict[str, Any]) -> str:
    """Change one of several named arrays, or all, in a way that keeps the file readable."""
    rng = stage.rng
    name = rng.choice(sorted(arrays))
    array = arrays[name]
    way = rng.choice(["nan", "gone", "short", "flat", "type", "huge", "object", "extra", "negative", "empty", "bit"])
    if way == "nan":
        for key, value in arrays.items():
            if value.dtype.kind == "f":
                arrays[key] = np.full_like(value, np.nan)
        return "all numbers are NaN"
    if way == "gone":
        del arrays[name]
    elif way == "short":
        arrays[name] = array[: len(array) // 2] if array.ndim else array
    elif way == "flat":
        arrays[name] = array.ravel()[None] if array.ndim != 2 else array.T
    elif way == "type":
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            arrays[name] = array.astype(rng.choice(["int64", "float64", "float16", "bool", "U5"]))
    elif way == "huge":
        arrays[name] = np.full_like(array, 1e30 if array.dtype.kind == "f" else 10**6)
    elif way == "object":
        arrays[name] = np.array([{"a": 1}], dtype=object)
    elif way == "extra":
        arrays["unknown"] = np.zeros(3)
    elif way == "negative":
        arrays[name] = -array - 1 if array.dtype.kind in "if" else array
    elif way == "empty":
        arrays[name] = np.zeros(0, dtype=array.dtype)
    else:
        flat = np.array(array).reshape(-1).copy()
        if flat.size:
            flat[rng.randrange(flat.size)] += 1
        arrays[name] = flat.reshape(array.shape)
    return f"array {name}: {way}"


def _safetensors(stage: Stage, data: bytes) -> tuple[bytes, str]:
    from safetensors.numpy import load, save

    arrays = dict(load(data))
    text = change_arrays(stage, arrays)
    try:
        return save({name: np.array(a, order="C") for name, a in arrays.items()}), text
    except Exception:  # no such type in a .safetensors
        arrays = dict(load(data))
        return save(
            {name: np.full_like(a, np.nan if a.dtype.kind == "f" else 0) for name, a in arrays.items()}
        ), "all NaN"


def _npy(stage: Stage, data: bytes) -> tuple[bytes, str]:
    arrays = {"it": np.load(io.BytesIO(data))}
    text = change_arrays(stage, arrays)
    buffer = io.BytesIO()
    np.save(buffer, arrays.get("it", np.zeros(0)))
    return buffer.getvalue(), text


def checkpoint(stage: Stage, data: bytes) -> tuple[bytes, str]:
    """A checkpoint with other entries, types or shapes."""
    import torch

    tree = torch.load(io.BytesIO(data), weights_only=True)
    tree, text = edit_state(stage, tree)
    buffer = io.BytesIO()
    torch.save(tree, buffer)
    return buffer.getvalue(), text


def edit_state(stage: Stage, tree: Any) -> tuple[Any, str]:
    """Change one entry of the nested dicts of a checkpoint."""
    import torch

    rng = stage.rng
    part, path = tree, ""
    while True:
        keys = list(part) if isinstance(part, dict) else list(range(len(part)))
        key = rng.choice(keys)
        path = f"{path}.{key}"
        if isinstance(part[key], dict | list) and part[key] and rng.random() < 0.85:
            part = part[key]
        else:
            break
    value = part[key]
    way = rng.choice(["gone", "shape", "nan", "edge", "none", "extra"])
    if way == "gone":
        del part[key]
    elif way == "shape" and isinstance(value, torch.Tensor):
        part[key] = torch.zeros(*value.shape, 2)
    elif way == "nan" and isinstance(value, torch.Tensor) and value.is_floating_point():
        part[key] = torch.full_like(value, float("nan"))
    elif way == "extra" and isinstance(part, dict):
        part["unknown"] = torch.zeros(3)
    elif way == "edge":
        part[key] = rng.choice([e for e in mutations.EDGES if not (isinstance(e, int) and abs(e) > 2**63)])
    else:
        way, part[key] = "none", None
    return tree, f"{path[1:]}: {way}"


EDITORS: dict[str, Callable[[Stage, bytes], tuple[bytes, str]]] = {
    ".yaml": _yaml,
    ".json": _json,
    ".jsonl": _jsonl,
    ".csv": _csv,
    ".npz": _arrays(change_arrays),
    ".npy": _npy,
    ".safetensors": _safetensors,
    ".pt": checkpoint,
}
