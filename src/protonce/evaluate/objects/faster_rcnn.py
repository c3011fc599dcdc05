"""Faster R-CNN with a feature pyramid (FPN) on the backbone of an encoder, the detector of table 6."""

from collections.abc import Sequence

from torch import Tensor, nn
from torchvision.models.detection import FasterRCNN
from torchvision.ops import FeaturePyramidNetwork
from torchvision.ops.feature_pyramid_network import LastLevelMaxPool

from protonce.evaluate.objects.body import Body

WIDTH = 256  # channels of the pyramid


class Pyramid(nn.Module):
    """FPN on the feature maps of a body."""

    def __init__(self, body: Body) -> None:
        super().__init__()
        self.body = body
        self.fpn = FeaturePyramidNetwork(body.channels, WIDTH, LastLevelMaxPool())
        self.out_channels = WIDTH  # torchvision asks for it

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        """Feature maps (B, 256, h, w) of images at strides 4, 8, 16, 32 and 64."""
        maps: dict[str, Tensor] = self.fpn(self.body(x))
        return maps


def faster_rcnn(
    body: Body, classes: int, *, size: int, longest: int, regions: int, mean: Sequence[float], std: Sequence[float]
) -> nn.Module:
    """Faster R-CNN with FPN: anchors, samples and losses are torchvision's defaults.

    Args:
        body: of the detector.
        classes: number of classes, without the background.
        size: the shorter side of an image becomes so long,
        longest: unless the longer one would exceed this.
        regions: of each training image, from which the heads learn.
        mean: of the channels, by which images are normalised.
        std: likewise.
    """
    model: nn.Module = FasterRCNN(
        Pyramid(body),
        classes + 1,
        min_size=size,
        max_size=longest,
        image_mean=list(mean),
        image_std=list(std),
        box_batch_size_per_image=regions,
    )
    return model
