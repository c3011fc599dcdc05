"""`--init`: load initial weights from a run folder, a file, or timm."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import timm
import torch
from safetensors.torch import load_file
from torch import Tensor

from protonce import manifest
from protonce.config import ARCHITECTURE
from protonce.encoder import Encoder, pretrained_config
from protonce.errors import UserError, shown

UNTRAINED = "untrained"  # in place of a file, for `protonce import`
# Prefixes of a backbone's parameter names in other programs, longest first: published PCL and MoCo, DDP, protonce.
PREFIXES = (
    "module.encoder_q.",
    "encoder_q.",
    "query.backbone.",
    "module.backbone.",
    "backbone.",
    "module.",
    "model.",
    "",
)


@dataclass(frozen=True)
class Loaded:
    """Names of the backbone tensors that were loaded or missing, and of tensors that were not used."""

    source: str
    used: list[str]
    missing: list[str]
    left_over: list[str]

    def __str__(self) -> str:
        text = f"{len(self.used)} of {len(self.used) + len(self.missing)} backbone tensors from {self.source}"
        if self.missing:
            text += f"; randomly initialised: {_some(self.missing)}"
        if self.left_over:
            text += f"; unused: {_some(self.left_over)}"
        return text


def _some(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def timm_name(init: str) -> str | None:
    """The model name in `timm:NAME`; None for anything else."""
    return init.removeprefix("timm:") if init.startswith("timm:") else None


def architecture(init: str) -> dict[str, object]:
    """Known settings of the encoder that weights belong to, and of its images; a subset of ARCHITECTURE."""
    name = timm_name(init)
    card = Path(init) / "encoder.json"
    if name is not None:
        known: dict[str, object] = {"backbone": name, "width": 64, "stem": "standard"}
        config = pretrained_config(name)
        if config is None:
            return known
        size = config.input_size[-1]
        known |= {"image_size": size, "plain_resize": round(size / config.crop_pct)}
        return {**known, "mean": list(config.mean), "std": list(config.std)}
    if init and exists(card):
        try:
            brought = json.loads(manifest.read(card.parent, card.name))
            without = ("head", "dim") if brought["head"] == "none" else ()
            return {key: brought[key] for key in ARCHITECTURE if key not in without}
        except (ValueError, KeyError, TypeError, RecursionError):
            raise UserError(f"--init {init}: encoder.json is damaged or was not written by protonce") from None
    return {}


def exists(path: Path) -> bool:
    """Whether there is a file or folder; no, also for a name that no file can have."""
    try:
        return path.exists()
    except (OSError, ValueError):
        return False


def start_from(init: str, encoder: Encoder) -> Loaded:
    """Copy weights into the encoder's backbone, and those of a run's head if it fits.

    Raises:
        UserError: the weights do not exist, or none of them fits the backbone.
    """
    state = read(init, f"--init {init}")
    own = encoder.backbone.state_dict()
    prefix = best_prefix(own, state)
    used = [name for name in own if fits(own, state, prefix, name)]
    if not any(own[name].is_floating_point() for name in used):
        raise UserError(f"{init} has no weights that fit the backbone; choose the backbone that it was trained with")
    encoder.backbone.load_state_dict({name: state[prefix + name] for name in used}, strict=False)

    head = encoder.head.state_dict()
    if head and all(fits(head, state, "query.head.", name) for name in head):
        encoder.head.load_state_dict({name: state["query.head." + name] for name in head})
        head_names = {"query.head." + name for name in head}
    else:
        head_names = set()
    return Loaded(
        source=init,
        used=used,
        missing=[name for name in own if name not in used],
        left_over=[name for name in state if name not in {prefix + u for u in used} | head_names],
    )


def fits(own: Mapping[str, Tensor], state: Mapping[str, Tensor], prefix: str, name: str) -> bool:
    """Whether `state` has a tensor with the prefixed name and the same shape as `own[name]`."""
    return prefix + name in state and state[prefix + name].shape == own[name].shape


def best_prefix(own: Mapping[str, Tensor], state: Mapping[str, Tensor]) -> str:
    """The prefix with which most tensors of `own` are in `state`."""
    return max(PREFIXES, key=lambda p: sum(fits(own, state, p, name) for name in own))


def read(place: str, where: str) -> dict[str, Tensor]:
    """Load tensors by name from a run folder, a file or timm; only safe types are unpickled.

    Args:
        place: the run folder, the file, or timm:NAME.
        where: its name in error messages.

    Raises:
        UserError: it does not exist, is not a weights file, or has weights that are not finite.
    """
    name = timm_name(place)
    if name is not None:
        return _read_timm(name)
    path = Path(place)
    if exists(path) and path.is_dir():
        path = path / "encoder.safetensors"
        if not path.exists():
            raise UserError(f"{where} is a folder without encoder.safetensors; give a finished run")
        manifest.check(path.parent, path.name)
    if not exists(path):
        raise UserError(f"{where} does not exist; give a run folder, a weights file, or timm:NAME")
    if not path.is_file():  # reading a pipe might never end
        raise UserError(f"{where} is not a file; give a run folder, a weights file, or timm:NAME")
    try:
        content: Any = (
            load_file(path)
            if path.suffix == ".safetensors"
            else torch.load(path, map_location="cpu", weights_only=True)
        )
    except UnpicklingError:
        raise UserError(
            f"{where} cannot be loaded safely: it is not a weights file, or it contains objects that could run code; "
            "save only its state_dict"
        ) from None
    except Exception as error:  # each reader raises its own kinds of errors
        raise UserError(f"{where} is not a weights file that can be loaded safely: {_first_line(error)}") from None
    for wrapper in ("state_dict", "model"):  # as published checkpoints nest them
        if isinstance(content, dict) and isinstance(content.get(wrapper), dict):
            content = content[wrapper]
    if not isinstance(content, dict) or not any(isinstance(v, Tensor) for v in content.values()):
        raise UserError(f"{where} contains no named tensors")
    state = {str(name): value for name, value in content.items() if isinstance(value, Tensor)}
    for name, value in state.items():
        _check_tensor(value, f"{where}: tensor {shown(name)}")
    return state


def _check_tensor(value: Tensor, what: str) -> None:
    """Refuse a tensor that no encoder can compute with; as float32, which is what an encoder will have."""
    if value.layout != torch.strided or value.is_quantized or value.is_complex() or value.is_meta:
        raise UserError(f"{what} is not an array of real numbers; save the weights as a plain state_dict")
    if value.is_floating_point() and not torch.isfinite(value.float()).all():
        raise UserError(f"{what} has values that are not finite, such as NaN; the training or the file is broken")


def _read_timm(name: str) -> dict[str, Tensor]:
    if not timm.is_model(name):
        raise UserError(f"timm has no model {shown(name)}; see timm.list_pretrained() for models with weights")
    pretrained_config(name)
    try:
        state: dict[str, Tensor] = timm.create_model(name, pretrained=True, num_classes=0).state_dict()
    except Exception as error:  # no weights, no network or no disk space: the hub raises many kinds of errors
        raise UserError(f"the weights of timm:{name} are not available: {_first_line(error)}") from None
    return state


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
