"""Whether an encoder and its training fit into memory, estimated before anything is allocated or written.

The estimate is a lower bound: it counts what certainly exists at the same time, and leaves out what may not. So it
refuses only what cannot work.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from protonce.config import Resolved
from protonce.encoder import Encoder, build
from protonce.errors import UserError
from protonce.free_memory import host_memory

FLOAT = 4  # bytes
INDEX = 8
LOGIT = 3 * FLOAT + 1  # of a query and a key, in `losses.instance_logits`: masked, joined and divided by tau; the mask
STATES = {"sgd": 1, "lars": 1, "adamw": 2}  # tensors that an optimizer keeps for each parameter


@dataclass(frozen=True)
class Trained:
    """What is trained: n images on `ranks` processes, `local_ranks` of them on this machine."""

    n: int
    queue: int  # keys
    has_twin: bool
    every_parameter: bool  # whether the optimizer trains the whole encoder; False: not known
    own_encoder: bool
    ranks: int = 1
    local_ranks: int = 1


class Need(NamedTuple):
    """A part of the memory, and the way to make it smaller."""

    what: str
    size: int  # bytes
    advice: str


class _Size(NamedTuple):
    parameters: int
    activations: int  # numbers that backpropagation keeps for one image


def check_training(settings: Resolved, trained: Trained) -> None:
    """Refuse a training for which there is not enough memory.

    Raises:
        UserError: it says which setting to reduce.
    """
    s, t = settings, trained
    size = _Size(0, 0) if t.own_encoder else _measure(s)
    batch = s.batch_size // t.ranks
    states = STATES[s.optimizer] if s.optimizer == "adamw" or s.sgd_momentum else 0
    copies = 1 + t.has_twin + (states if t.every_parameter else 0)
    number = FLOAT if s.precision == "32" else FLOAT // 2
    kept = [
        Need("the encoder", copies * size.parameters * FLOAT, "choose a smaller backbone, width or dim"),
        Need("the queue", t.queue * (s.dim * FLOAT + INDEX + batch * LOGIT), "reduce queue"),
    ]
    features = Need("the features of all images", t.n * s.dim * FLOAT, "reduce dim, or use fewer images with limit")
    # Σ v vᵀ of the effective rank, in single and in double precision
    moment = Need("the covariance of the features", s.dim**2 * 3 * FLOAT, "reduce dim")
    passing = [features, moment]  # of what comes and goes only the largest counts
    if t.every_parameter:
        activations = batch * size.activations * number
        passing += [
            Need("a batch", activations, "reduce batch_size, image_size or width"),
            Need("the gradient", size.parameters * FLOAT, "choose a smaller backbone, width or dim"),
        ]
    if s.device == "cuda":
        _refuse(kept, passing, gpu_memory(), "the GPU's memory")
        kept, passing = [], [features]  # which are gathered on the host
    available = host_memory()
    if available is not None:
        _refuse(kept, passing, available // t.local_ranks, "the available memory")


def check_encoders(settings: Resolved) -> None:
    """Refuse an encoder that does not fit into memory together with its twin.

    Raises:
        UserError: it says which setting to reduce.
    """
    size, available = _measure(settings), host_memory()
    need = Need("the encoder", 2 * size.parameters * FLOAT, "choose a smaller backbone, width or dim")
    if available is not None:
        _refuse([need], [], available, "the available memory")


def _refuse(kept: Sequence[Need], passing: Sequence[Need], available: int, where: str) -> None:
    parts = [*kept, *sorted(passing, key=lambda need: need.size)[-1:]]
    total = sum(need.size for need in parts)
    if total > available:
        most = max(parts, key=lambda need: need.size)
        raise UserError(
            f"at least {_gigabytes(total)} are needed, more than {where} of {_gigabytes(available)}; "
            f"{most.what} takes {_gigabytes(most.size)}: {most.advice}"
        )


def _gigabytes(size: int) -> str:
    return f"{size / 1e9:,.1f} GB"


def _measure(settings: Resolved) -> _Size:
    """Parameters and activations of an encoder, on a device that allocates nothing; zeros where that is impossible."""
    try:
        with torch.random.fork_rng(devices=[]), torch.device("meta"), torch.no_grad():
            encoder = build(settings)
            return _Size(sum(p.numel() for p in encoder.parameters()), _activations(encoder, settings.image_size))
    except Exception:  # not every model can be built this way; what is wrong with it the real one will say
        return _Size(0, 0)


def _activations(encoder: Encoder, side: int) -> int:
    """Numbers of one image that backpropagation needs: what goes into convolutions, linear layers and batch norms."""
    seen: dict[int, Tensor] = {}  # by storage, since layers may share their input

    def see(module: nn.Module, inputs: tuple[Any, ...]) -> None:  # noqa: ARG001
        for x in inputs:
            if isinstance(x, Tensor):
                seen[x.untyped_storage()._cdata] = x

    for module in encoder.modules():
        if isinstance(module, nn.modules.conv._ConvNd | nn.modules.batchnorm._BatchNorm | nn.Linear):
            module.register_forward_pre_hook(see)
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            module.forward = torch.empty_like  # type: ignore[method-assign]  # the shape is known; meta kernels are slow
    encoder.train()(torch.zeros(2, 3, side, side))
    return sum(x.numel() for x in seen.values()) // 2


def gpu_memory() -> int:
    """Bytes of memory that the GPU has."""
    return int(torch.cuda.get_device_properties(0).total_memory)
