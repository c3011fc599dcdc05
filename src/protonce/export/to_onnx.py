"""ONNX, for onnxruntime and other programs without PyTorch."""

import torch

from protonce.errors import UserError
from protonce.export.shipment import Made, Shipment

SUFFIXES = (".onnx",)


def make(shipment: Shipment, name: str) -> Made:
    """A graph for batches of any size.

    Raises:
        UserError: onnx or onnxscript is not installed.
    """
    try:
        import onnx
        import onnxscript
    except ImportError:
        raise UserError("export to onnx needs onnx and onnxscript: pip install 'protonce[onnx]'") from None
    del onnx, onnxscript  # torch imports them, with a less helpful error
    program = torch.onnx.export(
        shipment.module(),
        (torch.zeros_like(shipment.example),),
        dynamo=True,
        input_names=["images"],
        output_names=shipment.outputs,
        dynamic_shapes=(shipment.dynamic,),
        verbose=False,
    )
    assert program is not None
    model = program.model_proto
    for part in (*model.graph.node, *(node for function in model.functions for node in function.node)):
        del part.metadata_props[:]  # where the code of each step is on this disk
    how = f"""import onnxruntime

session = onnxruntime.InferenceSession({name!r})
found = session.run(None, {{"images": images}})  # images {shipment.input}; {", ".join(shipment.outputs)}
"""
    return Made({name: model.SerializeToString()}, how)
