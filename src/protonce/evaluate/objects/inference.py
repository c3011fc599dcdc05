"""What a detector finds on images."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from protonce.data.masks import encode
from protonce.data.object_sources import load_image
from protonce.data.objects import ObjectImages
from protonce.evaluate.objects.detections import Detections
from protonce.evaluate.objects.examples import to_tensor
from protonce.ranks import Ranks


@torch.no_grad()
def predict(
    model: nn.Module,
    images: ObjectImages,
    *,
    device: torch.device,
    ranks: Ranks,
    seen: Callable[[int], None] = lambda _: None,
) -> list[Detections]:
    """Detections on each image, in the order of the images; each rank looks at its share of them."""
    model.to(device).eval()
    own = ranks.part(torch.arange(len(images))).tolist()
    found = []
    for i in own:
        (output,) = model([to_tensor(load_image(images, i)).to(device)])
        found.append(_detections(output))
        seen(ranks.world_size)
    return [detections for part in ranks.gather_objects(found) for detections in part]


def _detections(output: dict[str, Tensor]) -> Detections:
    """What torchvision's detector returns for one image; masks as run lengths, a thousandth of their pixels."""
    masks: Sequence[Any] | None = None
    if "masks" in output:
        masks = [encode(mask) for mask in (output["masks"][:, 0] > 0.5).cpu().numpy()]
    return Detections(
        boxes=output["boxes"].cpu().numpy().astype(np.float32),
        classes=output["labels"].cpu().numpy() - 1,
        scores=output["scores"].cpu().numpy().astype(np.float32),
        masks=masks if masks is None else list(masks),
    )
