"""What a detector finds on an image."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Detections:
    """The m objects that were found on one image, in pixels of the image as `Objects` has them."""

    boxes: NDArray[np.float32]  # (m, 4): x0, y0, x1, y1
    classes: NDArray[np.int64]  # (m,), of ObjectImages.classes
    scores: NDArray[np.float32]  # (m,): confidence, the higher the surer
    masks: list[Any] | None = None  # run lengths, of protonce.data.masks.encode or of COCO's code; None: boxes alone

    def __post_init__(self) -> None:
        m = len(self.boxes)
        if self.boxes.shape != (m, 4) or self.classes.shape != (m,) or self.scores.shape != (m,):
            shapes = f"{self.boxes.shape}, {self.classes.shape} and {self.scores.shape}"
            raise ValueError(f"boxes, classes and scores have the shapes {shapes}, not (m, 4), (m,) and (m,)")
        if self.masks is not None and len(self.masks) != m:
            raise ValueError(f"there are {len(self.masks)} masks for {m} boxes")
        if not (np.isfinite(self.boxes).all() and np.isfinite(self.scores).all()):
            raise ValueError("boxes and scores must be finite")
