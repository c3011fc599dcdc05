"""The devices of a run: which there are, and Lightning Fabric on one, or on one for each rank of torchrun's."""

import functools
import importlib.util
import inspect
import os
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from lightning_fabric import Fabric
from lightning_fabric.plugins import MixedPrecision, Precision
from lightning_fabric.strategies.ddp import DDPStrategy
from torch.nn.parallel import DistributedDataParallel

from protonce.auto import Machine
from protonce.config import Resolved
from protonce.errors import UserError
from protonce.kmeans import faiss_has_gpu
from protonce.ranks import Ranks

HALF = {"16": torch.float16, "bf16": torch.bfloat16}
# The running statistics of the query encoder are averaged over ranks like its twin's, not overwritten by rank 0's.
# torch 2.15 has another name for that.
_NEW = "forward_sync_buffers" in inspect.signature(DistributedDataParallel).parameters
# A loss need not use all parameters (the head, say): a static graph takes those of the first step for those of all.
DDP: dict[str, Any] = {"forward_sync_buffers" if _NEW else "broadcast_buffers": False, "static_graph": True}


class ScaledPrecision(MixedPrecision):
    """Half precision with scaled gradients, in which the encoders autocast for themselves: losses are float32."""

    def forward_context(self) -> AbstractContextManager[Any]:
        """Nothing: see `autocast`."""
        return nullcontext()

    def convert_input(self, data: Any) -> Any:
        """As it is."""
        return data

    def convert_output(self, data: Any) -> Any:
        """As it is."""
        return data


def autocast(device: str, precision: str) -> Callable[[], AbstractContextManager[object]]:
    """The context in which an encoder computes."""
    return functools.partial(torch.autocast, device, dtype=HALF[precision]) if precision in HALF else nullcontext


def find_device(asked: str) -> str:
    """The device that is asked for, or the best there is."""
    has = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if asked == "auto":
        return next(name for name in ("cuda", "mps", "cpu") if has[name])
    if not has[asked]:
        raise UserError(f"device {asked} is not available; choose cpu or auto")
    return asked


def look_at_machine(device: str, ranks: Ranks) -> Machine:
    """What this machine can do, with several processes on it for each of them."""
    faiss = sys.platform == "linux" and importlib.util.find_spec("faiss") is not None  # macOS: clashes with torch
    return Machine(
        device=device,
        bfloat16=device == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False),
        faiss=faiss,
        cores=max((os.cpu_count() or 1) // ranks.local_world_size, 1),
        faiss_gpu=faiss and device == "cuda" and faiss_has_gpu(),
    )


def launch(settings: Resolved, ranks: Ranks) -> Fabric:
    """Fabric for this process; and the process group of all ranks, once all of them are there."""
    fabric = Fabric(
        accelerator=settings.device,
        devices=ranks.local_world_size,
        num_nodes=ranks.num_nodes,
        strategy=DDPStrategy(**DDP) if ranks.world_size > 1 else "auto",
        plugins=[ScaledPrecision("16-mixed", settings.device) if settings.precision == "16" else Precision()],
    )
    if ranks.world_size > 1:
        ranks.init_process_group("nccl" if settings.device == "cuda" else "gloo")
        fabric.launch()
    return fabric
