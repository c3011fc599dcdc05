"""M-steps of each system of `CASES` on as many ranks as are started; each leaves its losses and state in a file."""

from pathlib import Path

import torch

from conftest import make_system
from protonce.encoder import Encoder
from protonce.methods.base import Batch
from steps import batch_of
from two_ranks import backbone, launch

CASES = {  # system, norm of the encoder, options; batches of 15, which two ranks share as 8 and 7
    "simclr": ("simclr", "group", {}),
    "simclr with batch norm": ("simclr", "batch", {"bn_splits": 2, "batch_size": 16}),
    "byol": ("byol", "group", {}),
    "swav": ("swav", "group", {"prototypes": 6, "code_queue": 20, "code_queue_from": 0, "frozen_steps": 1}),
}


def m_steps(out, name):
    """Three M-steps on the same batches whatever the number of ranks; each rank takes its part."""
    ranks, fabric = launch()
    method, norm, options = CASES[name]
    settings = {"dim": 8, "batch_size": 15, **options}
    encoder = Encoder(backbone(norm, seed=0), 8, "mlp", 8)
    torch.manual_seed(0)
    system = make_system(method, encoder, ranks, (48, 8), **settings)
    wrapped = fabric.setup_module(system)
    optimizer = torch.optim.SGD([p for p in system.parameters() if p.requires_grad], lr=0.1)
    losses = []
    for step in range(3):
        whole = batch_of((8, 8), settings["batch_size"], step=step, seed=step)
        batch = Batch(tuple(map(ranks.part, whole.views)), ranks.part(whole.index), whole.progress)
        loss, _ = wrapped(batch, None)
        weight = len(batch.index) * ranks.world_size / settings["batch_size"]
        optimizer.zero_grad()
        fabric.backward(loss * weight)
        system.after_backward(batch.progress)
        optimizer.step()
        system.after_step(batch.progress)
        losses.append(ranks.sum(loss.detach() * weight) / ranks.world_size)
    own = ("running_mean", "running_var", "num_batches_tracked")  # of each rank; the training averages them
    state = {name: value for name, value in system.state_dict().items() if not name.endswith(own)}
    torch.save({"losses": losses, "state": state}, Path(out) / f"{name}-{ranks.rank}of{ranks.world_size}.pt")


def m_steps_of_all(out):
    for case in CASES:
        m_steps(out, case)
