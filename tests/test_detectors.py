"""Detectors on the backbone of an encoder: feature maps, frozen parts, C4's head, and the schedule."""

import pytest
import timm
import torch
from torch import nn

from protonce.encoder import Encoder
from protonce.errors import UserError
from protonce.evaluate.objects.body import Body, has_small_stem
from protonce.evaluate.objects.faster_rcnn import faster_rcnn
from protonce.evaluate.objects.mask_rcnn import mask_rcnn
from protonce.evaluate.objects.training import Schedule

COMMON = {"longest": 96, "regions": 16, "mean": [0.5] * 3, "std": [0.25] * 3}


def encoder(name="resnet10t"):
    torch.manual_seed(0)
    backbone = timm.create_model(name, num_classes=0)
    for module in backbone.modules():  # as after some training: no statistics of 0 and 1, and no weights of 0
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.uniform_(-0.1, 0.1)
            module.running_var.uniform_(0.8, 1.2)
            nn.init.ones_(module.weight)
    return Encoder(backbone, backbone.num_features, "linear", 8)


@pytest.mark.parametrize("name", ["resnet10t", "tf_efficientnet_lite0", "convnext_atto", "regnety_002"])
def test_feature_maps_have_the_strides_of_a_pyramid(name):
    body = Body(encoder(name), frozen=True)
    found = body(torch.zeros(1, 3, 96, 64))
    assert [tuple(x.shape[1:]) for x in found.values()] == [
        (channels, 96 // stride, 64 // stride) for channels, stride in zip(body.channels, (4, 8, 16, 32), strict=True)
    ]


def test_feature_maps_are_those_of_the_stages():
    """Against a plain forward through the layers."""
    made = encoder()
    x = torch.randn(1, 3, 64, 64)
    net = made.backbone.eval()
    y = net.maxpool(net.act1(net.bn1(net.conv1(x))))
    for layer, found in zip(
        (net.layer1, net.layer2, net.layer3, net.layer4), Body(made, True)(x).values(), strict=True
    ):
        y = layer(y)
        torch.testing.assert_close(found, y)


def test_a_stem_for_small_images_gets_its_stride_and_pooling_back():
    made = encoder()
    made.backbone.conv1 = nn.Conv2d(3, 64, 3, padding=1, bias=False)
    made.backbone.maxpool = nn.Identity()
    assert has_small_stem(made)
    assert not has_small_stem(encoder())
    body = Body(made, frozen=True)
    assert body(torch.zeros(1, 3, 64, 64))["0"].shape[2:] == (16, 16)
    torch.testing.assert_close(body.backbone.conv1.weight, made.backbone.conv1.weight)
    assert made.backbone.conv1.stride == (1, 1), "the encoder of the run is another's"


def test_backbones_without_such_maps_are_refused():
    with pytest.raises(UserError, match="does not take images of any size"):
        Body(encoder("vit_tiny_patch16_224"), frozen=True)
    with pytest.raises(UserError, match="has no feature maps; detection needs feature maps at strides 4, 8, 16, 32"):
        Body(Encoder(nn.Flatten(), 12, "linear", 8), frozen=True)
    with pytest.raises(
        UserError, match=r"layer4 of a ResNet as its head, which the backbone \(EfficientNet\) does not"
    ):
        mask_rcnn(encoder("tf_efficientnet_lite0"), 2, sizes=[64], **COMMON)


def batch():
    generator = torch.Generator().manual_seed(0)
    images = [torch.rand(3, 64, 80, generator=generator), torch.rand(3, 72, 64, generator=generator)]
    boxes = [torch.tensor([[8.0, 8, 40, 50], [30, 10, 70, 60]]), torch.tensor([[5.0, 5, 60, 60]])]
    labels = [torch.tensor([1, 2]), torch.tensor([2])]
    masks = [torch.zeros(2, 64, 80, dtype=torch.uint8), torch.zeros(1, 72, 64, dtype=torch.uint8)]
    for found, own in zip(masks, boxes, strict=True):
        for mask, (x0, y0, x1, y1) in zip(found, own.int().tolist(), strict=True):
            mask[y0:y1, x0:x1] = 1
    keys = ("boxes", "labels", "masks")
    return images, [dict(zip(keys, target, strict=True)) for target in zip(boxes, labels, masks, strict=True)]


def steps(model, n=3):
    """Some plain steps of SGD."""
    model.train()
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.SGD(trained, lr=0.02, momentum=0.9)
    images, targets = batch()
    for _ in range(n):
        loss = sum(model(images, targets).values())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@pytest.mark.parametrize("frozen", [True, False])
def test_a_frozen_body_stays_bit_identical_and_all_else_changes(frozen):
    body = Body(encoder(), frozen=frozen)
    model = faster_rcnn(body, 2, size=64, **COMMON)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    steps(model)
    for name, value in model.state_dict().items():
        unchanged = torch.equal(value, before[name])
        assert unchanged == (frozen and name.startswith("backbone.body.")), name


def test_all_layers_of_c4_are_trained():
    model = mask_rcnn(encoder(), 2, sizes=[64, 72], **COMMON)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    steps(model)
    assert [name for name, value in model.state_dict().items() if torch.equal(value, before[name])] == []


def test_the_head_of_c4_is_layer4():
    """A region that fills an image of 224 pixels: its features are the map, and the head gives a plain forward."""
    made = encoder()
    model = mask_rcnn(made, 2, sizes=[224], **COMMON).eval()
    x = torch.randn(1, 3, 224, 224)
    with torch.no_grad():
        features = model.backbone(x)
        region = model.roi_heads.box_roi_pool({"0": features}, [torch.tensor([[0.0, 0, 224, 224]])], [(224, 224)])
        torch.testing.assert_close(region, features)
        layer4, norm = model.roi_heads.box_head
        torch.testing.assert_close(layer4(region), made.backbone.eval().forward_features(x))
    assert isinstance(norm, nn.BatchNorm2d)
    assert model.roi_heads.mask_head is model.roi_heads.box_head


def test_a_test_sees_few_regions_at_once():
    """A thousand regions of a ResNet-50 would take gigabytes; none at all are fine too."""
    head = mask_rcnn(encoder(), 2, sizes=[64], **COMMON).eval().roi_heads.box_head
    layer4, norm = head
    seen = []
    layer4.register_forward_hook(lambda module, given, found: seen.append(len(given[0])))
    x = torch.randn(150, 256, 14, 14)
    with torch.no_grad():
        found = head(x)
        assert seen == [64, 64, 22]
        torch.testing.assert_close(found, norm(layer4(x)))
        assert head(x[:0]).shape == (0, 512, 7, 7)


def test_boxes_and_masks_share_one_pass_through_layer4():
    """The losses are those of torchvision's own heads, which pass positive regions through layer4 a second time."""
    model = mask_rcnn(encoder(), 2, sizes=[64], **COMMON)
    model.train()
    for module in model.modules():  # batch statistics of a second pass would be others
        if isinstance(module, nn.BatchNorm2d):
            module.eval()
    heads, calls = model.roi_heads, []
    heads.box_head.register_forward_hook(lambda module, given, found: calls.append(len(given[0])))
    images, targets = batch()
    torch.manual_seed(1)
    ours = model(images, targets)
    assert len(calls) == 1
    torch.manual_seed(1)
    heads.forward = super(type(heads), heads).forward
    theirs = model(images, targets)
    assert len(calls) == 3
    assert ours.keys() == theirs.keys()
    for name, loss in theirs.items():
        torch.testing.assert_close(ours[name], loss, msg=name)


def test_the_learning_rate_grows_and_drops():
    schedule = Schedule(steps=100, batch_size=8, lr=0.05, weight_decay=0, drops=[80], warmup_steps=10)
    assert schedule.rate(0) == pytest.approx(0.05 * 0.001)
    assert schedule.rate(5) == pytest.approx(0.05 * (0.001 + 0.999 / 2))
    assert [schedule.rate(step) for step in (10, 79)] == pytest.approx([0.05, 0.05])
    assert schedule.rate(80) == pytest.approx(0.005)
    without = Schedule(steps=100, batch_size=8, lr=0.05, weight_decay=0, drops=[], warmup_steps=0)
    assert [without.rate(step) for step in (0, 99)] == pytest.approx([0.05, 0.05])
