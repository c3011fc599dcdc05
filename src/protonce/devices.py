"""Lightning Fabric on the devices of a run: one of this process alone, or one for each rank that torchrun started."""

import dataclasses
import inspect
from typing import Any

from lightning_fabric import Fabric
from lightning_fabric.strategies.ddp import DDPStrategy
from torch.nn.parallel import DistributedDataParallel

from protonce.preparation import FREE, Plan
from protonce.ranks import Ranks

PRECISIONS = {"32": "32-true", "16": "16-mixed", "bf16": "bf16-mixed"}
# The running statistics of the query encoder are averaged over ranks like its twin's, not overwritten by rank 0's.
# torch 2.15 has another name for that.
_NEW = "forward_sync_buffers" in inspect.signature(DistributedDataParallel).parameters
OWN_BUFFERS: dict[str, Any] = {"forward_sync_buffers" if _NEW else "broadcast_buffers": False}


def meet(plan: Plan, ranks: Ranks) -> Fabric:
    """Fabric for this process; and the process group of all ranks, once all of them are there.

    Raises:
        UserError: the ranks have not the same data and settings.
    """
    fabric = Fabric(
        accelerator=plan.resolved.device,
        devices=ranks.here,
        num_nodes=ranks.machines,
        strategy=DDPStrategy(**OWN_BUFFERS) if ranks.size > 1 else "auto",
        precision=PRECISIONS[plan.resolved.precision],  # type: ignore[arg-type]
    )
    if ranks.size > 1:
        ranks.meet("nccl" if plan.resolved.device == "cuda" else "gloo")
        fabric.launch()
        alike = {k: v for k, v in dataclasses.asdict(plan.resolved).items() if k not in FREE}
        ranks.check_alike({"the data's fingerprint": plan.source.fingerprint, "RUN": str(plan.out), **alike})
    return fabric
