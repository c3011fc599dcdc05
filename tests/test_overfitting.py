"""A detector end to end on a few real photos: it must be able to learn them by heart."""

from dataclasses import replace

import pytest
import timm
import torch

from protonce.data.object_sources import open_objects
from protonce.encoder import Encoder
from protonce.evaluate.objects.coco_ap import average_precision
from protonce.evaluate.objects.examples import Examples
from protonce.evaluate.objects.inference import predict
from protonce.evaluate.objects.mask_rcnn import mask_rcnn
from protonce.evaluate.objects.training import Schedule, fit
from protonce.ranks import Ranks

SIDE, LEAST = 256, 32  # pixels: the shorter side of the images, and the sides of their objects at this size
PHOTOS = 8
SCHEDULE = Schedule(steps=500, batch_size=2, lr=0.02, weight_decay=1e-4, drops=[400], warmup_steps=50)
# Seeds 0, 1 and 2 gave 0.96, 0.91 and 0.99 for boxes, 0.92, 0.92 and 0.81 for masks; other CPUs round differently.
BOXES, MASKS = 0.8, 0.7


def large_objects(images):
    """The first photos on which all objects are large, and none is a crowd."""
    found = []
    for i, (there, size) in enumerate(zip(images.objects, images.sizes, strict=True)):
        sides = (there.boxes[:, 2:] - there.boxes[:, :2]) * SIDE / size.min()
        if len(sides) and (sides > LEAST).all() and not there.crowd.any():
            found.append(i)
    few = found[:PHOTOS]
    names, files, objects = ([part[i] for i in few] for part in (images.names, images.files, images.objects))
    return replace(images, names=names, files=files, objects=objects, sizes=images.sizes[few])


@pytest.mark.slow
def test_mask_rcnn_learns_eight_photos_by_heart(shared_data):
    """AP at an overlap of 0.5 on the photos it was trained on, from random weights."""
    images = large_objects(open_objects(f"COCO:{shared_data / 'coco128'}", "train"))
    assert len(images) == PHOTOS
    torch.manual_seed(0)
    backbone = timm.create_model("resnet10t", num_classes=0, channels=(32, 64, 128, 256), stem_width=16)
    encoder = Encoder(backbone, backbone.num_features, "linear", 8)
    colours = {"mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]}
    model = mask_rcnn(encoder, len(images.classes), sizes=[SIDE], longest=400, regions=24, **colours)
    options = {"device": torch.device("cpu"), "ranks": Ranks()}
    fit(model, Examples(images, 0, masks=True), SCHEDULE, seed=0, **options)
    found = predict(model, images, **options)
    assert average_precision(found, images).ap50 > BOXES
    assert average_precision(found, images, masks=True).ap50 > MASKS
