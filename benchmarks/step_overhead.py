"""What a training step costs beyond its encoder: query forward and backward, and key forward.

    python -m benchmarks.step_overhead [--encoder demo|resnet18]

`ratio` is the time of everything else (batch and views, losses, queue, optimizer, twin) over the encoder's. Beside it
the parts by name, and the share of an epoch that the E-step takes: features of all images, and k-means.
"""

import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import numpy as np
import torch

from benchmarks.timing import parser, publish
from protonce.auto import DataSize, Machine, resolve
from protonce.config import Settings, read_recipe
from protonce.context import Context, Progress
from protonce.data import builtin
from protonce.data.loader import Loader
from protonce.data.sources import open_source
from protonce.data.views import ImageViews
from protonce.encoder import build
from protonce.features import extract
from protonce.methods.base import Batch, Setup
from protonce.methods.registry import find, part
from protonce.momentum import encode_keys
from protonce.prototypes import cluster
from protonce.randomness import generator

T = TypeVar("T")
SIZES = {  # recipe, other settings, images, their side, goal
    "demo": ("demo", {}, 3000, 24, 0.20),
    "resnet18": ("small-v2", {"batch_size": 64}, 5000, 32, 0.05),  # CIFAR-10's size
}


def main() -> None:
    command = parser(__doc__, threads=1, repeats=9)
    command.add_argument("--encoder", choices=list(SIZES), default="demo")
    options = command.parse_args()
    torch.set_num_threads(options.threads)
    recipe, others, n, side, goal = SIZES[options.encoder]
    repeats = options.repeats

    entry = find("pcl")
    common, own = part({**read_recipe(recipe), **others, "device": "cpu"}, entry, "the benchmark")
    machine = Machine("cpu", bfloat16=False, faiss=True, cores=options.threads)
    s = resolve(Settings(**common), DataSize(n, side), machine)
    loader = Loader(open_source(images(n, side)), ImageViews(s))
    network = build(s)
    network.splits = s.bn_splits
    context = Context(s.seed, s.batch_size, s.bn_splits)
    system = entry.system(Setup(network, s, entry.options(**own).resolve(s, n), context, n))
    optimizer = torch.optim.SGD(system.query.parameters(), lr=1e-4, momentum=0.9, weight_decay=1e-4)

    features, extracting = timed(lambda: extract(system.momentum.eval(), loader))
    prototypes, clustering = timed(lambda: cluster(features, s))
    system.train()

    times: dict[str, list[float]] = defaultdict(list)

    @contextmanager
    def timing(name: str) -> Iterator[None]:
        began = time.perf_counter()
        yield
        times[name].append(time.perf_counter() - began)

    for turn in range(repeats + 2):
        if turn == 2:  # the first two warm up
            times.clear()
        order = torch.randperm(n, generator=generator(0, "order", turn))[: s.batch_size]
        with timing("step"):
            with timing("batch and views"):
                (samples,) = loader.samples(order, turn, s.batch_size)
                query, key = loader.views.train(samples)
                batch = Batch((query, key), samples.index, Progress(turn, 0, n // s.batch_size, repeats + 2))
            loss, _ = system.m_step(batch, prototypes)
            optimizer.zero_grad()
            loss.backward()
            with timing("optimizer"):
                optimizer.step()
            with timing("twin"):
                system.after_step(batch.progress)
        with timing("encoder"):
            v = system.query(query)
            encode_keys(system.momentum, key, context, generator(0, "x", turn))
            v.backward(torch.ones_like(v))

    seconds = {name: statistics.median(values) for name, values in times.items()}
    overhead = statistics.median(a - b for a, b in zip(times["step"], times["encoder"], strict=True))
    named = sum(seconds[name] for name in ("batch and views", "optimizer", "twin"))
    epoch = n // s.batch_size * seconds["step"]
    publish(
        f"step_overhead_{options.encoder}",
        {
            "ratio": overhead / seconds["encoder"],
            "goal": goal,
            "better": "lower",
            "timed": f"steps of {s.batch_size} images of {s.image_size} pixels, {s.backbone} of width {s.width}",
            "milliseconds": {name: 1000 * value for name, value in seconds.items()},
            "losses_and_queue": 1000 * (overhead - named),
            "e_step_share_of_an_epoch": (extracting + clustering) / (epoch + extracting + clustering),
            "e_step_seconds": {"features": extracting, "k-means": clustering},
            "threads": options.threads,
            "repeats": repeats,
        },
    )


def images(n: int, side: int) -> np.ndarray:
    """Drawings, cut to the side that is asked for."""
    drawn, _ = builtin.draw_images("train", 0)
    pixels = np.concatenate([drawn] * -(-n // len(drawn)))[:n]
    pad = max(side - pixels.shape[1], 0)
    return np.pad(pixels, ((0, 0), (0, pad), (0, pad), (0, 0)), mode="edge")[:, :side, :side]


def timed(work: Callable[[], T]) -> tuple[T, float]:
    began = time.perf_counter()
    result = work()
    return result, time.perf_counter() - began


if __name__ == "__main__":
    main()
