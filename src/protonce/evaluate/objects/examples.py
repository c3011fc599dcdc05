"""Training examples of a detector: an image with its boxes, and masks if they are asked for."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset

from protonce import randomness
from protonce.data.masks import pixels
from protonce.data.object_sources import load_image
from protonce.data.objects import ObjectImages, Objects
from protonce.errors import UserError

THINNEST = 0.01  # pixels: the sides of a thinner box may coincide in float32 once it is mirrored or scaled
Example = tuple[Tensor, dict[str, Tensor]]  # pixels from 0 to 1, (3, h, w), and what torchvision's detectors learn


class Examples(Dataset[Any]):
    """Images with at least one object to learn from; see `learnt`.

    Args:
        images: with their objects.
        seed: of the flips.
        masks: whether masks are learnt too.

    Raises:
        UserError: no image has such an object.
    """

    def __init__(self, images: ObjectImages, seed: int, masks: bool) -> None:
        self.images, self.seed, self.masks = images, seed, masks
        self.used = [i for i, found in enumerate(images.objects) if learnt(found).any()]
        if not self.used:
            raise UserError(f"no image of {images.spec} has an object to learn from")

    def __len__(self) -> int:
        return len(self.used)

    def __getitem__(self, which: tuple[int, int]) -> Example:
        """The example of (epoch, number); half of them mirrored."""
        epoch, number = which
        i = self.used[number]
        found = self.images.objects[i]
        rows = np.flatnonzero(learnt(found))
        image = load_image(self.images, i)
        boxes = found.boxes[rows].copy()
        masks = _masks(found, rows, *image.shape[1::-1]) if self.masks else None  # (m, h, w)
        draw = randomness.uniform(self.seed, "detection flip", epoch, np.array([i]), 1)
        if draw[0, 0] < 0.5:
            image, boxes = image[:, ::-1], mirrored(boxes, image.shape[1])
            masks = None if masks is None else masks[:, :, ::-1]
        target = {"boxes": torch.from_numpy(boxes), "labels": torch.from_numpy(found.classes[rows]) + 1}
        if masks is not None:
            target["masks"] = torch.from_numpy(masks.astype(np.uint8))
        return to_tensor(image), target


def learnt(found: Objects) -> NDArray[np.bool_]:
    """Which objects are learnt: no difficult ones and no crowds, as in MMDetection and detectron2; (m,).

    Boxes thinner than `THINNEST` are not learnt either; torchvision refuses boxes without an area.
    """
    sides = found.boxes[:, 2:] - found.boxes[:, :2]
    return ~(found.difficult | found.crowd) & (sides >= THINNEST).all(axis=1)


def mirrored(boxes: NDArray[np.float32], width: int) -> NDArray[np.float32]:
    """Boxes (m, 4) of an image whose left and right are exchanged."""
    x0, y0, x1, y1 = boxes.T
    return np.stack([width - x1, y0, width - x0, y1], axis=1)


def to_tensor(image: NDArray[np.uint8]) -> Tensor:
    """Pixels from 0 to 1, (3, h, w), of an image (h, w, 3)."""
    return torch.from_numpy(np.ascontiguousarray(image)).permute(2, 0, 1).float() / 255


def _masks(found: Objects, rows: Sequence[int] | NDArray[np.int64], width: int, height: int) -> NDArray[np.bool_]:
    assert found.masks is not None
    return np.stack([pixels(found.masks[row], width, height) for row in rows])


def collate(examples: list[Example]) -> tuple[list[Tensor], list[dict[str, Tensor]]]:
    """Images of unequal sizes stay a list."""
    return [image for image, _ in examples], [target for _, target in examples]
