"""Mask R-CNN with a C4 backbone, the detector of appendix D: layer4 of a ResNet is the head of boxes and masks."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torchvision.models.detection.anchor_utils import AnchorGenerator
from torchvision.models.detection.faster_rcnn import FastRCNNPredictor
from torchvision.models.detection.generalized_rcnn import GeneralizedRCNN
from torchvision.models.detection.mask_rcnn import MaskRCNNPredictor
from torchvision.models.detection.roi_heads import RoIHeads, fastrcnn_loss, maskrcnn_loss
from torchvision.models.detection.rpn import RegionProposalNetwork, RPNHead
from torchvision.models.detection.transform import GeneralizedRCNNTransform
from torchvision.ops import roi_align

from protonce.encoder import Encoder
from protonce.errors import UserError
from protonce.evaluate.objects.body import with_usual_stem

STRIDE = 16  # of layer3
ROI = 14  # cells of a region that layer4 sees
ANCHORS = (32, 64, 128, 256, 512)
RATIOS = (0.5, 1.0, 2.0)
MASK_WIDTH = 256
AT_ONCE = 64  # regions that layer4 sees in a test
# Of the configuration that the paper cites: regions before and after non-maximum suppression.
PROPOSED = {"training": 12_000, "testing": 6_000}
KEPT = {"training": 2_000, "testing": 1_000}
Boxes = list[Tensor]  # of each image, (m, 4)
Shapes = list[tuple[int, int]]


class Trunk(nn.Module):
    """A ResNet up to layer3."""

    def __init__(self, backbone: Any) -> None:
        super().__init__()
        self.stem = nn.Sequential(backbone.conv1, backbone.bn1, backbone.act1, backbone.maxpool)
        self.layers = nn.Sequential(backbone.layer1, backbone.layer2, backbone.layer3)
        self.out_channels = backbone.feature_info[3]["num_chs"]

    def forward(self, x: Tensor) -> Tensor:
        """Feature map of images (B, 3, h, w); (B, C, h / 16, w / 16)."""
        features: Tensor = self.layers(self.stem(x.contiguous(memory_format=torch.channels_last)))
        return features


class Regions(nn.Module):
    """RoIAlign with regions aligned to the centres of cells."""

    def forward(self, features: dict[str, Tensor], boxes: Boxes, _: Shapes) -> Tensor:
        """Features of the regions of all images; (R, C, 14, 14)."""
        (found,) = features.values()
        pooled: Tensor = roi_align(found, boxes, ROI, 1 / STRIDE, aligned=True)
        return pooled


class Layer4(nn.Sequential):
    """The last stage of a ResNet, and after it the batch norm that MoCo's protocol adds; (R, C, 14, 14) to 7 x 7."""

    def __init__(self, backbone: Any) -> None:
        channels = backbone.feature_info[4]["num_chs"]
        super().__init__(backbone.layer4, nn.BatchNorm2d(channels))
        self.out_channels = channels

    def forward(self, x: Tensor) -> Tensor:
        """Features of regions (R, C, 14, 14); in a test a few regions at a time, which takes much less memory."""
        parts = [x] if self.training else x.split(AT_ONCE)
        return torch.cat([nn.Sequential.forward(self, part) for part in parts])  # type: ignore[no-untyped-call]


class BoxPredictor(nn.Module):
    """Scores and boxes from the mean of a region."""

    def __init__(self, channels: int, classes: int) -> None:
        super().__init__()
        self.predict = FastRCNNPredictor(channels, classes)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Scores (R, classes) and boxes (R, 4 classes) of regions (R, C, 7, 7)."""
        found: tuple[Tensor, Tensor] = self.predict(x.mean(dim=(2, 3)))
        return found


class SharedHeads(RoIHeads):  # type: ignore[misc]  # torchvision is not typed
    """Boxes and masks from the same features: in training, layer4 sees each region once."""

    def forward(
        self,
        features: dict[str, Tensor],
        proposals: Boxes,
        image_shapes: Shapes,
        targets: list[dict[str, Tensor]] | None = None,
    ) -> tuple[list[dict[str, Tensor]], dict[str, Tensor]]:
        """Predictions, and in training losses, for the proposals of all images."""
        if not self.training:
            found: tuple[list[dict[str, Tensor]], dict[str, Tensor]]
            found = super().forward(features, proposals, image_shapes, targets)
            return found
        assert targets is not None
        proposals, matched, labels, boxes = self.select_training_samples(proposals, targets)
        x = self.box_head(self.box_roi_pool(features, proposals, image_shapes))  # (R, C, 7, 7)
        classifier, box = fastrcnn_loss(*self.box_predictor(x), labels, boxes)
        positive = [own > 0 for own in labels]
        mask = maskrcnn_loss(
            self.mask_predictor(x[torch.cat(positive)]),  # (positive regions, classes, 14, 14)
            [own[rows] for own, rows in zip(proposals, positive, strict=True)],
            [target["masks"] for target in targets],
            [target["labels"] for target in targets],
            [own[rows] for own, rows in zip(matched, positive, strict=True)],
        )
        return [], {"loss_classifier": classifier, "loss_box_reg": box, "loss_mask": mask}


def mask_rcnn(
    encoder: Encoder,
    classes: int,
    *,
    sizes: Sequence[int],
    longest: int,
    regions: int,
    mean: Sequence[float],
    std: Sequence[float],
) -> nn.Module:
    """Mask R-CNN with C4; all layers are trained, batch norms included.

    Args:
        encoder: its backbone, a ResNet, is copied.
        classes: number of classes, without the background.
        sizes: shorter sides, of which one is drawn for each training image; the last is that of test images.
        longest: of the longer side.
        regions: of each training image, from which the heads learn.
        mean: of the channels, by which images are normalised.
        std: likewise.

    Raises:
        UserError: the backbone is not a ResNet.
    """
    backbone: Any = with_usual_stem(encoder).requires_grad_(True)
    if not all(hasattr(backbone, name) for name in ("conv1", "bn1", "act1", "maxpool", "layer4")):
        what = type(backbone).__name__
        raise UserError(f"segmentation uses layer4 of a ResNet as its head, which the backbone ({what}) does not have")
    trunk, head = Trunk(backbone), Layer4(backbone)
    anchors = AnchorGenerator((ANCHORS,), (RATIOS,))
    proposals = RPNHead(trunk.out_channels, anchors.num_anchors_per_location()[0])
    rpn = RegionProposalNetwork(anchors, proposals, 0.7, 0.3, 256, 0.5, PROPOSED, KEPT, 0.7)
    boxes = (Regions(), head, BoxPredictor(head.out_channels, classes + 1))
    masks = (Regions(), head, MaskRCNNPredictor(head.out_channels, MASK_WIDTH, classes + 1))
    heads = SharedHeads(*boxes, 0.5, 0.5, regions, 0.25, None, 0.05, 0.5, 100, *masks)
    transform = GeneralizedRCNNTransform(tuple(sizes), longest, list(mean), list(std))
    model: nn.Module = GeneralizedRCNN(trunk, rpn, heads, transform)
    return model
