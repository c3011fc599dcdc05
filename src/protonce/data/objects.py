"""Images with the boxes, and where there are any the masks, of the objects on them."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Objects:
    """The m objects of one image.

    Boxes are x0, y0, x1, y1 in pixels, where (0, 0) is the upper left corner of the upper left pixel and x1, y1 lie
    beyond the last pixel: VOC's inclusive pixels 1 to 5 are 0 to 5 here, so that areas are the devkit's.
    """

    boxes: NDArray[np.float32]  # (m, 4)
    classes: NDArray[np.int64]  # (m,), of ObjectImages.classes
    difficult: NDArray[np.bool_]  # (m,): neither found nor missed in VOC's evaluation
    crowd: NDArray[np.bool_]  # (m,): COCO's regions of many objects
    areas: NDArray[np.float32]  # (m,): of the mask where there is one, else of the box
    masks: list[Any] | None = None  # COCO's polygons or run lengths, as the file has them; None: boxes alone


@dataclass(frozen=True)
class ObjectImages:
    """Images, their classes and objects, and what was wrong with the annotations."""

    spec: str  # as the user named them
    classes: list[str]
    names: list[str]
    files: list[Path]
    sizes: NDArray[np.int64]  # (n, 2): width and height, of the images themselves
    objects: list[Objects]
    identity: str  # a hash of images and annotations
    faults: list[str] = field(default_factory=list)  # one sentence each: where, what, and what was done about it

    def __len__(self) -> int:
        return len(self.names)

    @property
    def has_masks(self) -> bool:
        """Whether every object has a mask."""
        return all(found.masks is not None for found in self.objects)
