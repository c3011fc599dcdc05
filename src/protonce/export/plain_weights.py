"""Weights of a backbone in the names of a plain model, and the Python that builds that model."""

from collections.abc import Mapping
from typing import Any

from safetensors.torch import save
from torch import Tensor, nn

from protonce.config import Resolved
from protonce.encoder import timm_options
from protonce.errors import UserError
from protonce.export.shipment import Shipment


def backbone_weights(shipment: Shipment) -> dict[str, Tensor]:
    """The tensors of the backbone by name.

    Raises:
        UserError: the backbone is the user's own module.
    """
    if shipment.run.config["data"]["own_encoder"]:
        raise UserError(
            f"{shipment.run.path} was trained with a custom encoder, which other libraries cannot build; "
            "export it to onnx, torch-export or safetensors"
        )
    return as_saved(shipment.encoder.backbone)


def as_saved(module: nn.Module) -> dict[str, Tensor]:
    """The tensors of a module, each with memory of its own."""
    return {name: value.detach().cpu().contiguous().clone() for name, value in module.state_dict().items()}


def safetensors_bytes(tensors: Mapping[str, Tensor]) -> bytes:
    """A .safetensors file, with the entry that transformers and timm look for."""
    return bytes(save(dict(tensors), metadata={"format": "pt"}))


def library_name(settings: Resolved) -> str:
    """The backbone without timm's tag of pretrained weights: resnet18 of resnet18.a1_in1k."""
    return settings.backbone.partition(".")[0]


def model_options(settings: Resolved) -> dict[str, Any]:
    """Arguments of `timm.create_model` beside the name, without those of the initial weights; as JSON has them."""
    return {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in timm_options(settings).items()
        if name != "zero_init_last"
    }


def small_stem(settings: Resolved, channels: int) -> str:
    """Lines of Python that give a `model` its small stem; empty: it has the usual one."""
    if settings.stem != "small":
        return ""
    return f"""model.conv1 = torch.nn.Conv2d(3, {channels}, kernel_size=3, stride=1, padding=1, bias=False)
model.maxpool = torch.nn.Identity()
"""
