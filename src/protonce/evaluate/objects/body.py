"""The backbone of an encoder as the body of a detector: its feature maps, not its pooled features."""

import copy
from typing import Any

import torch
from torch import Tensor, nn

from protonce.encoder import Encoder
from protonce.errors import UserError, one_line

STRIDES = (4, 8, 16, 32)
PROBE = 256  # pixels of the image by which the strides are measured


class Body(nn.Module):
    """Feature maps of a backbone at strides 4, 8, 16 and 32.

    Args:
        encoder: its backbone is copied.
        frozen: the backbone's convolutions and batch norms keep their values, and batch norm uses the statistics that
            it has seen in training.

    Raises:
        UserError: the backbone has no such feature maps.
    """

    def __init__(self, encoder: Encoder, frozen: bool) -> None:
        super().__init__()
        self.backbone: Any = with_usual_stem(encoder)
        self.memory_format = encoder.memory_format
        self.frozen = frozen
        self.stages, self.channels = _stages(self.backbone)
        self.backbone.requires_grad_(not frozen)
        self.train(self.training)

    def train(self, mode: bool = True) -> "Body":
        """Training mode, except for a frozen body."""
        super().train(mode)
        self.backbone.train(mode and not self.frozen)
        return self

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        """Feature maps of images (B, 3, h, w), fine to coarse: "0" (B, C, h / 4, w / 4) to "3"."""
        x = x.contiguous(memory_format=self.memory_format)
        found = self.backbone.forward_intermediates(x, indices=self.stages, intermediates_only=True)
        return {str(level): features for level, features in enumerate(found)}


def with_usual_stem(encoder: Encoder) -> nn.Module:
    """A copy of the backbone; the stem of a ResNet for small images gets its stride and its pooling back."""
    backbone: Any = copy.deepcopy(encoder.backbone)
    if has_small_stem(encoder):
        backbone.conv1.stride = (2, 2)
        backbone.maxpool = nn.MaxPool2d(kernel_size=3, stride=2, padding=1)
    return backbone  # type: ignore[no-any-return]


def has_small_stem(encoder: Encoder) -> bool:
    """Whether the backbone is a ResNet whose stem keeps the resolution (setting `stem: small`)."""
    backbone: Any = encoder.backbone
    return isinstance(getattr(backbone, "maxpool", None), nn.Identity) and backbone.conv1.stride == (1, 1)


def _stages(backbone: Any) -> tuple[list[int], list[int]]:
    """Which of the backbone's feature maps have the strides 4 to 32, and their channels."""
    what = type(backbone).__name__
    needed = f"detection needs feature maps at strides {', '.join(map(str, STRIDES))}, as a ResNet has them"
    if not hasattr(backbone, "forward_intermediates") or not hasattr(backbone, "feature_info"):
        raise UserError(f"the backbone ({what}) has no feature maps; {needed}")
    training = backbone.training
    everything = list(range(len(backbone.feature_info)))
    image = torch.zeros(1, 3, PROBE, PROBE)
    try:
        with torch.no_grad():
            maps = backbone.eval().forward_intermediates(image, indices=everything, intermediates_only=True)
    except Exception as error:  # each model has its own kinds of errors for sizes that it does not support
        raise UserError(
            f"the backbone ({what}) does not take images of any size: {one_line(str(error), 200)}"
        ) from None
    finally:
        backbone.train(training)
    strides = {PROBE // features.shape[-1]: stage for stage, features in enumerate(maps)}  # the last of each stride
    if not set(STRIDES) <= set(strides):
        raise UserError(f"the backbone ({what}) has feature maps at strides {sorted(strides)}; {needed}")
    stages = [strides[stride] for stride in STRIDES]
    return stages, [maps[stage].shape[1] for stage in stages]
