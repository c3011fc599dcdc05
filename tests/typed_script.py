"""A user's script that uses the whole public interface; `test_release.py` checks it with mypy --strict."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import protonce
from protonce.data.sources import open_source
from protonce.encoder import Encoder
from protonce.losses import proto_nce
from protonce.methods.base import Batch, Setup, System, Term
from protonce.prototypes import Prototypes, e_step
from protonce.sklearn import PCL
from protonce.sklearn import Encoder as Transformer


class Told(protonce.Callback):
    def on_epoch_end(self, epoch: int, encoder: Encoder, record: Mapping[str, Any]) -> dict[str, float]:
        return {"mine": float(record["loss"]) / epoch}


class Mine(System):
    terms = ("similarity",)

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self.predictor = nn.Linear(self.query.dim, self.query.dim)

    def m_step(self, batch: Batch, state: Any) -> tuple[Tensor, dict[str, Term]]:
        first, second = (self.query(view) for view in batch.views)
        loss: Tensor = -(self.predictor(first) * second.detach()).sum(dim=1).mean()
        return loss, {"similarity": Term(loss)}


def train(photos: Path) -> protonce.Run:
    try:
        run = protonce.train(photos, "runs/first", epochs=10, callbacks=[Told()], loggers=["csv"], watch=photos)
    except protonce.UserError as error:
        raise SystemExit(str(error)) from error
    protonce.train(photos, "runs/mine", method=Mine)
    protonce.import_encoder("timm:resnet18", "runs/imported", data=photos)
    return run


def use(run: protonce.Run, photos: Path) -> np.ndarray[Any, Any]:
    which, distance = run.assign(photos)[0]
    print(which.shape, distance.shape, run.health.words, run.settings.epochs, run.metrics[-1]["loss"])
    for prototypes in run.prototypes:
        print(len(prototypes.centroids), prototypes.concentration.mean())
    names: list[str] = run.suggest(20)
    predictions = run.label({names[0]: "cat"})
    print(predictions.label, predictions.confidence)
    print([hit.name for hit in run.search([photos / "a.jpg"], top=3)])
    print(run.tidy().groups, run.evaluate("knn")["metrics"], run.report(), run.export("onnx", "encoder.onnx").path)
    return run.embed(photos).features


def alone(features: Tensor, key: Tensor, index: Tensor) -> Tensor:
    prototypes: list[Prototypes] = e_step(features, [10, 20], tau=0.2, generator=torch.Generator())
    return proto_nce(features, key, key, prototypes, index, tau=0.2).loss


def estimate(x: np.ndarray[Any, Any]) -> None:
    model = PCL(n_clusters=[10]).fit(x)
    print(model.transform(x), model.predict(x), model.labels_, Transformer.from_run("runs/first").transform(x))


if __name__ == "__main__":
    use(train(Path("photos")), Path("photos"))
    print(protonce.load("runs/first").images, protonce.Settings(epochs=3), len(open_source("photos")))
