"""encoder.safetensors, the weights of query and momentum encoder, and encoder.json, which describes them.

Both files are written when training ends: a run folder with encoder.safetensors is finished. On the way there may be
snapshots/EPOCH.safetensors, the weights of the query encoder after an epoch.
"""

import copy
import json
from collections.abc import Mapping
from pathlib import Path

from safetensors.torch import load as safetensors_tensors
from safetensors.torch import load_file
from safetensors.torch import save as safetensors_bytes
from torch import Tensor, nn

from protonce import manifest
from protonce.config import ARCHITECTURE, Resolved
from protonce.encoder import Encoder, build
from protonce.errors import UserError
from protonce.manifest import explain_damage

WEIGHTS, DESCRIPTION = "encoder.safetensors", "encoder.json"


def write_encoders(path: Path, query: Encoder, momentum: Encoder, own_backbone: bool, settings: Resolved) -> None:
    """Write the encoders of a run, which marks it as finished.

    Args:
        path: the run folder.
        query: the query encoder f_θ.
        momentum: the momentum encoder f_θ'.
        own_backbone: whether the backbone is the user's own module, which reading must be given again.
        settings: of the run; those in `ARCHITECTURE` are written to encoder.json.
    """
    description = {
        "own_backbone": own_backbone,
        "feature_dim": momentum.feature_dim,
        **{name: getattr(settings, name) for name in ARCHITECTURE},
    }
    manifest.write(path, DESCRIPTION, json.dumps(description, indent=2) + "\n")
    both = {"query": query.state_dict(), "momentum": momentum.state_dict()}
    tensors = {f"{name}.{k}": v for name, state in both.items() for k, v in state.items()}
    tensors = {k: v.detach().cpu().contiguous().clone() for k, v in sorted(tensors.items())}
    manifest.write(path, WEIGHTS, safetensors_bytes(tensors))


def read_encoders(path: Path, settings: Resolved, backbone: nn.Module | None) -> tuple[Encoder, Encoder]:
    """The query encoder f_θ and the momentum encoder f_θ' of a finished run, in eval mode.

    Args:
        path: the run folder.
        settings: of the run.
        backbone: the user's own module, if the run was trained with one.

    Raises:
        UserError: the run was trained with the user's own module, and `backbone` is None.
    """
    with explain_damage(path / DESCRIPTION):
        description = json.loads(manifest.read(path, DESCRIPTION))
        feature_dim, own_backbone = int(description["feature_dim"]), bool(description["own_backbone"])
    if not own_backbone:
        query = build(settings)
    elif backbone is not None:
        query = Encoder(backbone, feature_dim, settings.head, settings.dim)
    else:
        raise UserError(f"{path} was trained with a custom encoder; pass it as encoder=")
    momentum = Encoder(copy.deepcopy(query.backbone), feature_dim, settings.head, settings.dim)
    manifest.check(path, WEIGHTS)
    with explain_damage(path / WEIGHTS):
        state = load_file(path / WEIGHTS)
        for name, encoder in (("query", query), ("momentum", momentum)):
            part = {k.removeprefix(name + "."): v for k, v in state.items() if k.startswith(name + ".")}
            encoder.load_state_dict(part)
            encoder.eval()
    _check_finite(path, state)
    return query, momentum


def _check_finite(path: Path, state: Mapping[str, Tensor]) -> None:
    wrong = next((name for name, value in state.items() if not value.isfinite().all()), None)
    if wrong is not None:
        raise UserError(f"{path / WEIGHTS}: {wrong} contains NaN or infinite weights; train or import the run again")


def snapshot_file(epoch: int) -> str:
    """Name of the file in a run folder; epochs are counted from 1."""
    return f"snapshots/{epoch:04d}.safetensors"


def write_snapshot(path: Path, epoch: int, query: Encoder) -> None:
    """Write the weights of the query encoder after epoch EPOCH, counted from 1."""
    tensors = {name: value.detach().cpu().contiguous().clone() for name, value in sorted(query.state_dict().items())}
    manifest.write(path, snapshot_file(epoch), safetensors_bytes(tensors))


def read_snapshot(path: Path, epoch: int, encoder: Encoder) -> Encoder:
    """An encoder of the run with the weights that the query encoder had after epoch EPOCH, in eval mode."""
    name = snapshot_file(epoch)
    data = manifest.read(path, name)
    with explain_damage(path / name):
        snapshot = copy.deepcopy(encoder)
        snapshot.load_state_dict(safetensors_tensors(data))
        return snapshot.eval()


def has_encoders(path: Path) -> bool:
    """Whether the run folder has encoders, so that the run is finished."""
    return (path / WEIGHTS).exists()


def check_encoders(path: Path) -> None:
    """Check both files.

    Raises:
        UserError: one is missing or damaged.
    """
    manifest.check(path, DESCRIPTION)
    manifest.check(path, WEIGHTS)


def encoder_hash(path: Path) -> str:
    """SHA-256 of the weights of a finished run, in hexadecimal."""
    return manifest.check(path, WEIGHTS)
