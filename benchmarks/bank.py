"""What should an E-step cluster? AMI with the labels of plain views, and of means over random views, of one MoCo.

    python -m benchmarks.bank cifar10/ [--seeds 100,101]

MoCo is trained as in benchmarks/claims/cifar10-bank.yaml, on 5,000 training images of each choosing seed. Its momentum
encoder then embeds these images four ways: plain views, and one random view, in eval mode; the mean of eight random
views in eval mode; and of eight in training mode, as keys are computed in the M-steps. Each is clustered into as many
clusters as there are classes, and into those of an E-step; AMI is the mean of five starts. No test image is read.
Takes about ten minutes of one core. Writes benchmarks/results/bank.json.
"""

import argparse
import copy
import json
import statistics
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
import yaml
from torch import Tensor

import protonce
from benchmarks import data
from protonce import agreement
from protonce.data.sources import Source, random_order
from protonce.evaluate.clustering import clusterings
from protonce.features import BATCH_SIZE, extract
from protonce.methods.registry import owners
from protonce.run import Run

RESULT = Path(__file__).parent / "results" / "bank.json"
STUDY = "cifar10-bank"
VIEWS, STARTS = 8, 5


def train(root: str, seed: int, out: Path) -> tuple[Run, Source]:
    """MoCo by the study's common settings, and its training images."""
    study = yaml.safe_load((data.CLAIMS / f"{STUDY}.yaml").read_text())
    source, _ = data.choose(data.open_parts(root, seed)[0], seed, study["images"], study["held_out"])
    settings = {name: value for name, value in study["common"].items() if not owners(name) or "moco" in owners(name)}
    return protonce.train(source, out, method="moco", seed=seed, device="cpu", quiet=True, **settings), source


@torch.no_grad()
def embeddings(run: Run, source: Source) -> dict[str, Tensor]:
    """Four ways to embed the images, (n, d) each."""
    _, twin = run.encoders
    loader = run.loader(source)
    order = torch.from_numpy(random_order(len(source), "bank", run.settings.seed))  # as classes may be in a row

    def mean(encoder: torch.nn.Module, views: int) -> Tensor:
        """Of embeddings of random views that training has not seen."""
        total: Any = 0
        for draw in range(views):
            batches = loader.train(order, run.settings.epochs + draw, BATCH_SIZE // 2, every=True)
            total = total + torch.cat([encoder(x[0]) for x, _ in batches])
        return F.normalize(total, dim=1)[order.argsort()]

    training = copy.deepcopy(twin).train()
    training.splits = run.settings.bn_splits
    return {
        "plain view": extract(twin, loader),
        "one random view": mean(twin, 1),
        f"mean of {VIEWS} views": mean(twin, VIEWS),
        f"mean of {VIEWS} views, training mode": mean(training, VIEWS),
    }


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", metavar="DIR", help="CIFAR-10")
    parser.add_argument("--seeds", default="100,101", type=lambda text: [int(seed) for seed in text.split(",")])
    options = parser.parse_args()
    torch.set_num_threads(1)
    found: dict[str, dict[str, list[float]]] = {}
    for seed in options.seeds:
        with tempfile.TemporaryDirectory() as folder:
            run, source = train(options.data, seed, Path(folder) / "run")
            assert source.labels is not None
            for name, v in embeddings(run, source).items():
                for k in (len(set(source.labels)), *run.settings.clusters):
                    tables = [agreement.table(clusters, source.labels) for clusters in clusterings(v, k, STARTS, seed)]
                    ami = float(np.mean([agreement.ami(table) for table in tables]))
                    found.setdefault(name, {}).setdefault(str(k), []).append(ami)
    for name, by_k in found.items():
        print(f"{name:32}", "  ".join(f"k = {k}: {statistics.fmean(v):.3f} {v}" for k, v in by_k.items()))
    RESULT.write_text(json.dumps({"seeds": options.seeds, "ami": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
