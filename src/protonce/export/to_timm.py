"""Weights for a model of timm without a classifier."""

from protonce.export.plain_weights import backbone_weights, model_options, safetensors_bytes, small_stem
from protonce.export.shipment import Made, Shipment

SUFFIXES = (".safetensors",)


def make(shipment: Shipment, name: str) -> Made:
    """The state dict of the backbone; `load_state_dict` takes it strictly.

    Raises:
        UserError: the backbone is the user's own module.
    """
    tensors = backbone_weights(shipment)
    settings = shipment.run.settings
    options = "".join(f", {key}={value!r}" for key, value in model_options(settings).items())
    stem = small_stem(settings, len(tensors["conv1.weight"])) if settings.stem == "small" else ""
    how = f"""import timm
{"import torch" + chr(10) if stem else ""}from safetensors.torch import load_file

model = timm.create_model({settings.backbone!r}, num_classes=0{options})
{stem}model.load_state_dict(load_file({name!r}))
"""
    return Made({name: safetensors_bytes(tensors)}, how)
