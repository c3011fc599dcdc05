"""All weights of an encoder, backbone and head."""

from protonce.export.plain_weights import as_saved, safetensors_bytes
from protonce.export.shipment import Made, Shipment

SUFFIXES = (".safetensors",)


def make(shipment: Shipment, name: str) -> Made:
    """The tensors `backbone.*` and `head.*`."""
    how = f"""from safetensors.torch import load_file

tensors = load_file({name!r})  # backbone.*, in timm's names, and head.*
"""
    return Made({name: safetensors_bytes(as_saved(shipment.encoder))}, how)
