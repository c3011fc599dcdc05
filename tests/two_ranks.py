"""One M-step on as many ranks as torchrun starts; each leaves its loss, gradients and queue in a file.

torchrun --nproc-per-node 2 tests/two_ranks.py OUT
"""

import sys
from pathlib import Path

import torch
from lightning_fabric import Fabric
from lightning_fabric.strategies.ddp import DDPStrategy
from torch import nn

from protonce import methods
from protonce.auto import DataSize, Machine, resolve
from protonce.config import Settings
from protonce.devices import OWN_BUFFERS
from protonce.encoder import build
from protonce.methods.pcl import Batch
from protonce.ranks import Ranks

CASES = [  # batch size, which 2 need not divide, norm, and which views are queries
    (16, "group", "one"),
    (15, "group", "one"),
    (16, "batch", "one"),
    (16, "batch", "both"),
]


def backbone(norm, seed):
    torch.manual_seed(seed)
    layers = [nn.Conv2d(3, 8, 3, bias=False), nn.GroupNorm(2, 8) if norm == "group" else nn.BatchNorm2d(8), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())


def m_step(out, batch_size, norm, queries):
    """The same batch and the same prototypes whatever the number of ranks; each rank takes its part."""
    sizes = {"queue": 40, "dim": 8, "batch_size": batch_size, "clusters": [4, 8]}
    asked = Settings(**sizes, bn_splits=2, negatives=3, tau=0.2, queries=queries)
    settings = resolve(asked, DataSize(48, 8), Machine("cpu", bfloat16=False, faiss=False, cores=1))
    ranks = Ranks()
    strategy = DDPStrategy(**OWN_BUFFERS) if ranks.size > 1 else "auto"
    fabric = Fabric(accelerator="cpu", devices=ranks.here, strategy=strategy)
    if ranks.size > 1:
        ranks.meet("gloo")
        fabric.launch()
    method = methods.make(settings, build(settings, backbone(norm, seed=ranks.rank), torch.zeros(2, 3, 8, 8)), n=48)
    method.ranks = ranks
    ranks.copy_first(v for v in method.state_dict().values() if isinstance(v, torch.Tensor))  # of rank 0's seed
    inner = method.query
    method.query = fabric.setup_module(inner)

    draw = torch.Generator().manual_seed(1)
    views = torch.randn(2, batch_size, 3, 8, 8, generator=draw)
    features = nn.functional.normalize(torch.randn(48, 8, generator=draw), dim=1)
    prototypes = method.cluster(0, features if ranks.first else torch.zeros(0))  # rank 0 alone clusters
    index = torch.arange(batch_size)
    batch = Batch(*(ranks.part(x) for x in (views[0], views[1], index)), epoch=0, step=0)

    loss, logs = method.m_step(batch, prototypes)
    weight = len(batch.index) * ranks.size / batch_size
    fabric.backward(loss * weight)
    method.after_step()
    ranks.average(logs.values(), weight)
    state = {
        "logs": logs,
        "gradients": {name: p.grad for name, p in inner.named_parameters()},
        "queue": method.queue.state_dict(),
        "prototypes": [c.centroids for c in prototypes],
        "statistics": [b for b in method.momentum.buffers() if b.is_floating_point()],
        "features": ranks.gather(ranks.part(torch.arange(7.0)), 7),
    }
    torch.save(state, Path(out) / f"{norm}-{queries}-{batch_size}-rank{ranks.rank}of{ranks.size}.pt")


if __name__ == "__main__":
    torch.set_num_threads(1)
    for case in CASES:
        m_step(sys.argv[1], *case)
