"""One M-step on as many ranks as are started; each leaves its loss, gradients and state in a file."""

from pathlib import Path

import torch
from lightning_fabric import Fabric
from lightning_fabric.strategies.ddp import DDPStrategy
from torch import nn

from conftest import make_system
from protonce.context import Context, Progress
from protonce.devices import DDP
from protonce.encoder import Encoder
from protonce.methods.base import Batch
from protonce.ranks import Ranks

PUBLISHED = {"queue_push": "after", "queue_start": "random", "negative_prototypes": "published"}
CASES = [  # batch size, which 2 need not divide, norm, and which views are queries; or as published
    (16, "group", "one"),
    (15, "group", "one"),
    (16, "batch", "one"),
    (16, "batch", "both"),
    (15, "group", "published"),
    (15, "group", "parts"),
]
PARTS = {**PUBLISHED, "negative_prototypes": "published-parts", "bn_splits": 3, "twin_update": "next"}  # 5, 3 + 2, 5


def backbone(norm, seed):
    torch.manual_seed(seed)
    layers = [nn.Conv2d(3, 8, 3, bias=False), nn.GroupNorm(2, 8) if norm == "group" else nn.BatchNorm2d(8), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())


def launch():
    ranks = Ranks()
    strategy = DDPStrategy(**DDP) if ranks.world_size > 1 else "auto"
    fabric = Fabric(accelerator="cpu", devices=ranks.local_world_size, strategy=strategy)
    if ranks.world_size > 1:
        ranks.init_process_group("gloo")
        fabric.launch()
    return ranks, fabric


def m_step(out, batch_size, norm, queries):
    """The same batch and the same prototypes whatever the number of ranks; each rank takes its part."""
    ranks, fabric = launch()
    encoder = Encoder(backbone(norm, seed=ranks.rank), 8, "mlp", 8)
    sizes = {"queue": 40, "dim": 8, "batch_size": batch_size, "clusters": [4, 8], "kmeans_engine": "torch"}
    options = {"bn_splits": 2, "negatives": 3, "tau": 0.2, "warmup_epochs": 0}
    options |= {"published": PUBLISHED, "parts": PARTS}.get(queries, {"queries": queries})
    system = make_system("pcl", encoder, ranks, (48, 8), **sizes, **options)
    ranks.broadcast_(v for v in system.state_dict().values() if isinstance(v, torch.Tensor))  # of rank 0's seed
    wrapped = fabric.setup_module(system)  # the whole system at once

    draw = torch.Generator().manual_seed(1)
    views = torch.randn(2, batch_size, 3, 8, 8, generator=draw)
    features = nn.functional.normalize(torch.randn(48, 8, generator=draw), dim=1)
    prototypes = system.e_step(0, lambda: features if ranks.is_first else torch.zeros(0))  # rank 0 alone clusters
    index, progress = torch.arange(batch_size), Progress(0, 0, 3, 1)
    batch = Batch(tuple(ranks.part(x) for x in views), ranks.part(index), progress)

    loss, terms = wrapped(batch, prototypes)
    weight = len(batch.index) * ranks.world_size / batch_size
    fabric.backward(loss * weight)
    system.after_step(progress)
    statistics = [b for b in system.buffers() if b.is_floating_point() and b.ndim == 1]
    ranks.average(statistics)
    logs = {name: torch.stack([t.loss.detach(), t.accuracy, t.chance]) for name, t in terms.items()}
    ranks.average(logs.values(), weight)
    state = {
        "logs": logs,
        "gradients": {name: p.grad for name, p in system.query.named_parameters()},
        "queue": system.queue.state_dict(),
        "prototypes": [c.centroids for c in prototypes],
        "statistics": statistics,
        "features": ranks.gather(ranks.part(torch.arange(7.0)), 7),
    }
    torch.save(state, Path(out) / f"{norm}-{queries}-{batch_size}-rank{ranks.rank}of{ranks.world_size}.pt")


def exchange(out):
    """A loss of the whole batch through `gather` and `sum`, of 7 rows, and its gradient in the rows of each rank."""
    ranks, _ = launch()
    rows = ranks.part(torch.randn(7, 3, generator=torch.Generator().manual_seed(2))).requires_grad_(True)
    context = Context(batch_size=7, ranks=ranks)
    whole = context.gather(rows)  # (7, 3)
    pairs = (whole @ whole.T).logsumexp(dim=1).sum()
    moment = context.sum(rows.T @ rows).square().sum()
    ((pairs + moment) / ranks.world_size).backward()  # each rank has the whole loss, and gradients are summed here
    found = {"loss": (pairs + moment).detach(), "gradient": ranks.gather(rows.grad, 7)}
    torch.save(found, Path(out) / f"exchange-rank{ranks.rank}of{ranks.world_size}.pt")


def m_steps_and_exchange(out):
    for case in CASES:
        m_step(out, *case)
    exchange(out)
