"""The checkpoint of a run: everything that its next step depends on."""

import dataclasses
import io
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from lightning_fabric.plugins import Precision
from torch import Tensor

from protonce.errors import UserError
from protonce.files import write_whole
from protonce.prototypes import Prototypes

LAST = "last.pt"


@dataclass
class Begun:
    """An epoch that has begun: its E-step has been made, and some of its M-steps."""

    clusters: list[Prototypes]
    prototypes: bool  # whether the epoch trains with them; if not, they are for the record
    signals: dict[str, Any]  # what `health` said of the E-step
    cluster_seconds: float
    step: int = 0  # M-steps that are done
    sums: dict[str, Tensor] = field(default_factory=dict)  # of what they logged
    seconds: float = 0.0  # before the last interruption


def save(
    folder: Path,
    epoch: int,
    method: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    precision: Precision,
    begun: Begun | None = None,
) -> None:
    """Keep the state after `epoch` epochs, and the steps of the one that has begun, in place of the one before.

    Random draws are functions of seed, epoch and step, so no generator has a state to keep.
    """
    buffer = io.BytesIO()
    state = {
        "epoch": epoch,
        "begun": None if begun is None else dataclasses.asdict(begun),
        "method": method.state_dict(),
        "optimizer": optimizer.state_dict(),
        "precision": precision.state_dict(),  # the scale of half-precision losses
    }
    torch.save(state, buffer)
    write_whole(folder / LAST, buffer.getvalue())


def exists(folder: Path) -> bool:
    """Whether there is a checkpoint to continue from."""
    return (folder / LAST).exists()


def load(folder: Path) -> dict[str, Any] | None:
    """The last whole checkpoint, on the CPU; None where there is none. Runs no code from the file."""
    path = folder / LAST
    if not exists(folder):
        return None
    try:
        checkpoint: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    except Exception:  # the archive, the pickle and the tensors in it each have their own kinds of error
        raise UserError(f"{path} is damaged; remove it to start the run at its beginning") from None
    begun = checkpoint.get("begun")
    if begun is not None:
        checkpoint["begun"] = Begun(**{**begun, "clusters": [Prototypes(**c) for c in begun["clusters"]]})
    return checkpoint
