"""A checkpoint in the layout of the published code of PCL and MoCo; `protonce import` reads it too."""

import io

import torch
from torch import Tensor

from protonce.errors import UserError
from protonce.export.plain_weights import as_saved, backbone_weights, library_name
from protonce.export.shipment import Made, Shipment
from protonce.export.to_torchvision import check_resnet

SUFFIXES = (".tar", ".pth", ".pt")
HEADS = ("linear", "mlp")  # v1 and v2
PARTS = {"module.encoder_q.": 0, "module.encoder_k.": 1}  # query and momentum encoder


def make(shipment: Shipment, name: str) -> Made:
    """Both encoders with their heads. Queue and optimizer are left out: they are for training only.

    Raises:
        UserError: the published code cannot build the encoder.
    """
    run = shipment.run
    if run.settings.head not in HEADS:
        raise UserError(f"the published code has heads {' and '.join(HEADS)}, not {run.settings.head}; use --to timm")
    backbone_weights(shipment)  # is it one of a library
    state: dict[str, Tensor] = {}
    for prefix, which in PARTS.items():
        encoder = run.encoders[which]
        backbone = as_saved(encoder.backbone)
        check_resnet(backbone, run.settings, "pcl")
        state |= {prefix + key: value for key, value in backbone.items()}
        state |= {f"{prefix}fc.{key}": value for key, value in as_saved(encoder.head).items()}
    if run.settings.stem == "small":
        raise UserError("the published code has no small stem; use --to timm")
    buffer = io.BytesIO()
    torch.save({"epoch": len(run.metrics), "arch": library_name(run.settings), "state_dict": state}, buffer)
    how = f"""import torch

state = torch.load({name!r}, weights_only=True)["state_dict"]  # module.encoder_q.*, module.encoder_k.*
"""
    return Made({name: buffer.getvalue()}, how)
