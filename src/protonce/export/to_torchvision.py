"""Weights for a ResNet of torchvision without a classifier."""

from typing import Any

import torch
from torch import Tensor, nn

from protonce.config import Resolved
from protonce.errors import UserError
from protonce.export.plain_weights import backbone_weights, library_name, safetensors_bytes, small_stem
from protonce.export.shipment import Made, Shipment

SUFFIXES = (".safetensors",)
RESNETS = (
    *("resnet18", "resnet34", "resnet50", "resnet101", "resnet152", "wide_resnet50_2", "wide_resnet101_2"),
    *("resnext50_32x4d", "resnext101_32x8d", "resnext101_64x4d"),
)


def make(shipment: Shipment, name: str) -> Made:
    """The state dict of the backbone; `load_state_dict` takes it strictly.

    Raises:
        UserError: torchvision has no such model, or names its weights differently.
    """
    tensors = backbone_weights(shipment)
    settings = shipment.run.settings
    check_resnet(tensors, settings, "torchvision")
    how = f"""import torch
import torchvision
from safetensors.torch import load_file

model = torchvision.models.{library_name(settings)}()
model.fc = torch.nn.Identity()
{small_stem(settings, 64)}model.load_state_dict(load_file({name!r}))
"""
    return Made({name: safetensors_bytes(tensors)}, how)


def check_resnet(tensors: dict[str, Tensor], settings: Resolved, to: str) -> None:
    """Check that tensors are those of torchvision's ResNet of the same name.

    Raises:
        UserError: they are not.
    """
    from torchvision.models import get_model

    if library_name(settings) in RESNETS:
        with torch.device("meta"):
            model: Any = get_model(library_name(settings))
        model.fc = nn.Identity()
        if settings.stem == "small":
            model.conv1 = nn.Conv2d(3, 64, kernel_size=3, bias=False)
        if {k: v.shape for k, v in model.state_dict().items()} == {k: v.shape for k, v in tensors.items()}:
            return
    narrow = "" if settings.width == 64 else f" of width {settings.width}"
    raise UserError(
        f"--to {to} is for torchvision's ResNets ({', '.join(RESNETS)}), not for {settings.backbone}{narrow}; "
        "use --to timm"
    )
