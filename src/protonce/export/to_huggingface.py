"""A folder for the Hugging Face hub, which timm loads: config.json, model.safetensors and a model card."""

import json
from typing import Any

from protonce.errors import UserError
from protonce.export.model_card import model_card
from protonce.export.plain_weights import backbone_weights, library_name, model_options, safetensors_bytes
from protonce.export.shipment import Made, Shipment

SUFFIXES: tuple[str, ...] = ()  # a folder


def make(shipment: Shipment, name: str) -> Made:
    """The files of the folder.

    Raises:
        UserError: timm cannot build the backbone from a configuration.
    """
    tensors = backbone_weights(shipment)
    if shipment.run.settings.stem == "small":
        raise UserError("timm cannot build a small stem from a config.json; use --to timm, which says how to build it")
    how = f"""import timm

model = timm.create_model({f"local-dir:{name}"!r}, pretrained=True, num_classes=0)
"""
    files = {
        "config.json": (json.dumps(_config(shipment), indent=2) + "\n").encode(),
        "model.safetensors": safetensors_bytes(tensors),
        "README.md": model_card(shipment, how).encode(),
    }
    return Made(files, how)


def _config(shipment: Shipment) -> dict[str, Any]:
    """What timm needs to build the model and to prepare its images."""
    s = shipment.run.settings
    return {
        "architecture": library_name(s),
        "num_classes": 0,
        "num_features": shipment.encoder.feature_dim,
        "model_args": model_options(s),
        "pretrained_cfg": {
            "tag": "protonce",
            "num_classes": 0,
            "input_size": [3, s.image_size, s.image_size],
            "crop_pct": s.image_size / (s.plain_resize + 0.5),  # timm rounds size / crop_pct down
            "crop_mode": "center",
            "interpolation": "bilinear",
            "mean": s.mean,
            "std": s.std,
        },
    }
