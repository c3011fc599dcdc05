"""What is exported: an encoder, and where asked its preprocessing and prototypes, as one module."""

import copy
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from protonce.data.crops import resize_weights
from protonce.encoder import Encoder
from protonce.run import Run

Which = Literal["query", "momentum"]
NO_NAME = ""


@dataclass(frozen=True)
class Shipment:
    """An encoder to export.

    Attributes:
        run: it is of.
        which: of the two encoders of the run.
        names: of each prototype, for each granularity, coarse to fine; None: prototypes are not exported.
        prepare: whether images are resized, cropped and normalised inside.
        example: a batch of two inputs.
    """

    run: Run
    which: Which
    names: list[list[str]] | None
    prepare: bool
    example: Tensor

    @property
    def encoder(self) -> Encoder:
        """The encoder, in eval mode."""
        return self.run.encoders[0 if self.which == "query" else 1]

    @property
    def labels(self) -> list[str]:
        """The different names of the finest prototypes, in alphabetical order; empty: they have none."""
        return sorted({*self.names[-1]} - {NO_NAME}) if self.names else []

    @property
    def outputs(self) -> list[str]:
        """Names of what the module returns."""
        levels = range(len(self.names or []))
        assigned = [name for m in levels for name in (f"prototype_{m}", f"distance_{m}")]
        return ["features", *assigned, *(["label"] if self.labels else [])]

    def module(self) -> nn.Module:
        """The module, in eval mode, with weights of its own in the usual memory format."""
        s = self.run.settings
        preparation = Preparation(s.image_size, s.plain_resize, s.mean, s.std) if self.prepare else nn.Identity()
        centroids = [c.centroids for c in self.run.prototypes] if self.names else []
        places = {name: i for i, name in enumerate(self.labels)}
        labels = [places.get(name, -1) for name in self.names[-1]] if self.names else []
        module = Shipped(
            preparation, copy.deepcopy(self.encoder), centroids, torch.tensor(labels) if self.labels else None
        )
        return module.to(memory_format=torch.contiguous_format).eval().cpu().requires_grad_(False)

    @property
    def input(self) -> str:
        """Shape and type of the input, in words."""
        sizes = ["H", "W", "3"] if self.prepare else [str(n) for n in self.example.shape[1:]]
        return f"(B, {', '.join(sizes)}), {str(self.example.dtype).removeprefix('torch.')}"

    @property
    def dynamic(self) -> dict[int, Any]:
        """Dimensions of the input that may have any size in a graph: the batch, and those of images resized inside."""
        sizes = {0: "batch", 1: "height", 2: "width"} if self.prepare else {0: "batch"}
        return {place: torch.export.Dim(name) for place, name in sizes.items()}


class Made(NamedTuple):
    """What a format makes of a shipment."""

    files: Mapping[str, bytes]  # by name
    how: str  # Python or settings that load it


class Preparation(nn.Module):
    """Pixels (B, H, W, 3) of type uint8 as the encoder takes them: shorter side resized, centre crop, normalised."""

    mean: Tensor
    std: Tensor

    def __init__(self, size: int, resize: int, mean: Sequence[float], std: Sequence[float]) -> None:
        super().__init__()
        self.size, self.share = size, min(size / resize, 1.0)
        self.register_buffer("mean", torch.tensor(mean)[:, None, None])
        self.register_buffer("std", torch.tensor(std)[:, None, None])

    def forward(self, pixels: Tensor) -> Tensor:
        """Views, (B, 3, s, s)."""
        x = pixels.permute(0, 3, 1, 2).float() / 255
        h, w = x.shape[2:]
        height, width = (torch.full((1,), n, dtype=torch.float, device=x.device) for n in (h, w))
        side = torch.minimum(height, width) * self.share
        rows = resize_weights((height - side) / 2, side, h, self.size, resize_first=True)  # (1, s, H)
        columns = resize_weights((width - side) / 2, side, w, self.size, resize_first=True)  # (1, s, W)
        return (rows[:, None] @ x @ columns[:, None].mT - self.mean) / self.std


class Shipped(nn.Module):
    """Images in; features, and the nearest prototypes with their distances, out, by name."""

    labels: Tensor | None

    def __init__(
        self, preparation: nn.Module, encoder: Encoder, centroids: Sequence[Tensor], labels: Tensor | None
    ) -> None:
        super().__init__()
        self.preparation, self.backbone = preparation, encoder.backbone
        self.head = encoder.head if centroids else nn.Identity()
        for m, c in enumerate(centroids):
            self.register_buffer(f"centroids_{m}", c)
        self.levels = len(centroids)
        self.register_buffer("labels", labels)

    def forward(self, images: Tensor) -> dict[str, Tensor]:
        """`features` (B, D); for each granularity `prototype_M` and `distance_M` (B,); `label` (B,), -1: none."""
        features = self.backbone(self.preparation(images)).float()
        found = {"features": features}
        v = F.normalize(self.head(features), dim=1) if self.levels else features  # (B, d)
        which = torch.empty(0)
        for m in range(self.levels):
            similarity, which = (v @ getattr(self, f"centroids_{m}").T).max(dim=1)
            found |= {f"prototype_{m}": which, f"distance_{m}": 1 - similarity}
        return found if self.labels is None else {**found, "label": self.labels[which]}


def name_prototypes(
    assignments: Sequence[Tensor], parents: Sequence[Tensor], labels: Mapping[int, str]
) -> list[list[str]]:
    """Name each prototype after the label that most of its labelled images have, of several the first in the alphabet.

    A prototype without labelled images has the name of its parent.

    Args:
        assignments: the prototype of each image, (n,), for each granularity, coarse to fine.
        parents: of each prototype of all granularities but the coarsest, (k,).
        labels: of some images, by their number.
    """
    names: list[list[str]] = []
    for m, assignment in enumerate(assignments):
        votes: list[Counter[str]] = [Counter() for _ in range(int(assignment.max()) + 1)]
        for image, label in labels.items():
            votes[int(assignment[image])][label] += 1
        own = [min(found, key=lambda label: (-found[label], label)) if found else NO_NAME for found in votes]
        coarser = [names[-1][parent] for parent in parents[m - 1].tolist()] if m else own
        names.append([name or inherited for name, inherited in zip(own, coarser, strict=True)])
    return names
