"""Checkpoints: everything that the next step of a run depends on."""

import io
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from protonce import manifest
from protonce.errors import UserError
from protonce.prototypes import Prototypes

LAST = "checkpoints/last.pt"
RESTART = manifest.CURES["checkpoints/"]
_PROTOTYPES = "protonce.Prototypes"  # marks a dict that is one


@dataclass
class Epoch:
    """State of an epoch: the result of its E-step, and the M-steps done so far."""

    number: int  # from 0
    state: Any  # of the system, for the M-steps
    recorded: list[Prototypes] | None = None  # clusters made for the record alone
    signals: dict[str, Any] = field(default_factory=dict)  # what metrics.jsonl will say of the E-step
    step: int = 0  # M-steps that are done
    sums: dict[str, Tensor] = field(default_factory=dict)  # of what they logged
    counts: dict[str, int] = field(default_factory=dict)  # of the steps that logged it
    seconds: float = 0.0  # before the last interruption
    cpu_seconds: float = 0.0  # of this process, before the last interruption


def save(run: Path, done: int, parts: dict[str, Any], epoch: Epoch | None = None) -> None:
    """Save a checkpoint in place of the last one.

    Random numbers depend on seed, epoch and step only, so no generator state is saved.

    Args:
        run: the run folder.
        done: number of finished epochs.
        parts: objects with a `state_dict`, by name.
        epoch: state of the current epoch; None: between epochs.
    """
    begun = None if epoch is None else tree_map(vars(epoch), lambda tensor: tensor)
    states = {name: part.state_dict() for name, part in parts.items()}
    buffer = io.BytesIO()
    torch.save({"epoch": done, "begun": begun, **states}, buffer)
    manifest.write(run, LAST, buffer.getvalue())


def exists(run: Path) -> bool:
    """Whether there is a checkpoint to continue from."""
    return (run / LAST).exists()


def restore(run: Path, parts: dict[str, Any], device: torch.device) -> tuple[int, Epoch | None]:
    """Load the last checkpoint, if there is one; return the number of finished epochs and the current epoch.

    Raises:
        UserError: it is damaged, or of another training.
    """
    checkpoint = load(run)
    if checkpoint is None:
        return 0, None
    try:
        if "method" in checkpoint:
            checkpoint = _migrated(checkpoint, parts["system"].state_dict())
        for name, part in parts.items():
            part.load_state_dict(checkpoint[name])
        begun = checkpoint["begun"]
        return int(checkpoint["epoch"]), None if begun is None else Epoch(**to_device(_with_prototypes(begun), device))
    except Exception as error:  # torch, optimizers and systems each raise their own kinds
        why = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise UserError(f"{run / LAST} does not fit this run ({why[:200]}); {RESTART}") from None


def load(run: Path) -> dict[str, Any] | None:
    """Content of the last checkpoint, on the CPU, or None. Does not run code from the file.

    Raises:
        UserError: it is damaged.
    """
    if not exists(run):
        return None
    data = manifest.read(run, LAST)
    try:
        return dict(torch.load(io.BytesIO(data), map_location="cpu", weights_only=True))
    except Exception:  # the archive, the pickle and the tensors in it each have their own kinds of error
        raise UserError(f"{run / LAST} is damaged; {RESTART}") from None


def tree_map(tree: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """Apply a function to every tensor, and turn `Prototypes` into dicts that a checkpoint can contain.

    Raises:
        TypeError: the tree contains a type that cannot be saved.
    """
    if isinstance(tree, Tensor):
        return change(tree)
    if isinstance(tree, Prototypes):
        return {_PROTOTYPES: tree_map(vars(tree), change)}
    if isinstance(tree, dict):
        return {name: tree_map(value, change) for name, value in tree.items()}
    if type(tree) in (list, tuple):
        return type(tree)(tree_map(value, change) for value in tree)
    if tree is None or type(tree) in (int, float, str, bool):
        return tree
    raise TypeError(
        f"the state contains a {type(tree).__name__}; e_step may return tensors, numbers, Prototypes, and lists, "
        "tuples and dicts of them"
    )


def to_device(tree: Any, device: torch.device) -> Any:
    """Move all tensors to a device."""
    return _with_prototypes(tree_map(tree, lambda tensor: tensor.to(device)))


def _with_prototypes(tree: Any) -> Any:
    if isinstance(tree, dict):
        if set(tree) == {_PROTOTYPES}:
            return Prototypes(**tree[_PROTOTYPES])
        return {name: _with_prototypes(value) for name, value in tree.items()}
    if isinstance(tree, list | tuple):
        return type(tree)(_with_prototypes(value) for value in tree)
    return tree


def _migrated(old: dict[str, Any], known: dict[str, Any]) -> dict[str, Any]:
    """Convert a checkpoint of earlier versions, in which MoCo was a subclass of PCL."""
    system = {name: value for name, value in old.pop("method").items() if name in known or name != "_extra_state"}
    begun = old["begun"]
    if begun is not None:
        clusters = [Prototypes(**c) for c in begun.pop("clusters")]
        trains = begun.pop("prototypes")
        signals = {**begun.pop("signals"), "cluster_seconds": begun.pop("cluster_seconds")}
        phi = [c.percentiles for c in clusters] if trains else []
        signals |= {"clusters": [len(c.centroids) for c in clusters], "phi": phi}
        begun["counts"] = dict.fromkeys(begun["sums"], begun["step"])
        kinds = {"state": clusters if trains else None, "recorded": None if trains else clusters}
        old["begun"] = {**begun, **kinds, "number": old["epoch"], "signals": signals}
    return {**old, "system": system}
