"""Weights for detectron2's ResNets, in the layout that MoCo's converter writes.

detectron2 reads it with `MODEL.WEIGHTS file.pkl`, `MODEL.PIXEL_MEAN`, `MODEL.PIXEL_STD` and `INPUT.FORMAT "RGB"`.
"""

import pickle
import re

from protonce.errors import UserError
from protonce.export.plain_weights import backbone_weights, library_name
from protonce.export.shipment import Made, Shipment
from protonce.export.to_torchvision import check_resnet

SUFFIXES = (".pkl",)
RENAMED = (  # of a stage layerN, detectron2's res(N + 1), and of the stem
    (r"^layer(\d)\.", lambda m: f"res{int(m[1]) + 1}."),
    (r"^(conv1|bn1)\.", r"stem.\1."),
    (r"\bbn(\d)\.", r"conv\1.norm."),
    (r"\bdownsample\.0\.", "shortcut."),
    (r"\bdownsample\.1\.", "shortcut.norm."),
)


def make(shipment: Shipment, name: str) -> Made:
    """A pickled dictionary of arrays.

    Raises:
        UserError: the backbone is not a ResNet of detectron2, or has a small stem.
    """
    tensors = backbone_weights(shipment)
    settings = shipment.run.settings
    check_resnet(tensors, settings, "detectron2")
    if settings.stem == "small":
        raise UserError("detectron2 has no small stem, and strides of 4 to 32 need the standard one; use --to timm")
    arrays = {renamed(key): value.numpy() for key, value in tensors.items() if not key.endswith("num_batches_tracked")}
    content = {"model": arrays, "__author__": "protonce", "matching_heuristics": True}
    mean, std = ([round(255 * x, 3) for x in values] for values in (settings.mean, settings.std))
    resnet = "".join(f"    {key}: {value}\n" for key, value in _structure(library_name(settings)).items())
    how = f"""# in a configuration of detectron2, with numpy 1.26 or newer
MODEL:
  WEIGHTS: {name}
  PIXEL_MEAN: {mean}
  PIXEL_STD: {std}
  RESNETS:
{resnet}INPUT:
  FORMAT: RGB
"""
    return Made({name: pickle.dumps(content)}, how)


def _structure(backbone: str) -> dict[str, object]:
    """detectron2's settings for a ResNet of torchvision."""
    depth = int(re.findall(r"resne[x]?t(\d+)", backbone)[0])
    found: dict[str, object] = {"DEPTH": depth, "STRIDE_IN_1X1": False}
    if depth < 50:
        found["RES2_OUT_CHANNELS"] = 64
    if groups := re.search(r"_(\d+)x(\d+)d$", backbone):
        found |= {"NUM_GROUPS": int(groups[1]), "WIDTH_PER_GROUP": int(groups[2])}
    if backbone.startswith("wide"):
        found["WIDTH_PER_GROUP"] = 128
    return found


def renamed(key: str) -> str:
    """detectron2's name of a tensor of torchvision's ResNet."""
    for pattern, name in RENAMED:
        key = re.sub(pattern, name, key)
    return key
