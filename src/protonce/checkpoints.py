"""The checkpoint of a run: everything that the next epoch depends on."""

import io
from pathlib import Path
from typing import Any

import torch
from lightning_fabric.plugins import Precision

from protonce.errors import UserError
from protonce.files import write_whole

LAST = "last.pt"


def save(
    folder: Path, epoch: int, method: torch.nn.Module, optimizer: torch.optim.Optimizer, precision: Precision
) -> None:
    """Keep the state after `epoch` epochs in place of the one before it.

    Random draws are functions of seed, epoch and step, so no generator has a state to keep.
    """
    buffer = io.BytesIO()
    state = {
        "epoch": epoch,
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
    return checkpoint
