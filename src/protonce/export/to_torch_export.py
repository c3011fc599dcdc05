"""torch.export: a program for PyTorch without protonce and timm."""

import io

import torch

from protonce.export.shipment import Made, Shipment

SUFFIXES = (".pt2",)


def make(shipment: Shipment, name: str) -> Made:
    """A program for batches of any size."""
    example = torch.zeros_like(shipment.example)  # is part of the file
    program = torch.export.export(shipment.module(), (example,), dynamic_shapes=(shipment.dynamic,))
    for node in program.graph.nodes:
        node.meta.pop("stack_trace", None)  # where the code of each step is on this disk
    buffer = io.BytesIO()
    torch.export.save(program, buffer)
    how = f"""import torch

encoder = torch.export.load({name!r}).module()
found = encoder(images)  # images {shipment.input}; found by name: {", ".join(shipment.outputs)}
"""
    return Made({name: buffer.getvalue()}, how)
