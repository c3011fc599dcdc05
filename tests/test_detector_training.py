"""Training of a detector: examples, resuming, several processes, and what it finds."""

import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from PIL import Image

from processes import run_on_ranks
from protonce import randomness
from protonce.data.masks import pixels
from protonce.data.objects import ObjectImages, Objects
from protonce.encoder import Encoder
from protonce.errors import UserError
from protonce.evaluate.objects import training
from protonce.evaluate.objects.body import Body
from protonce.evaluate.objects.examples import Examples, collate, mirrored
from protonce.evaluate.objects.faster_rcnn import faster_rcnn
from protonce.evaluate.objects.inference import predict
from protonce.evaluate.objects.mask_rcnn import mask_rcnn
from protonce.evaluate.objects.training import Schedule, fit
from protonce.ranks import Ranks

CPU = torch.device("cpu")


def squares(folder, n=5, side=64, seed=0):
    """Noise with a bright square on each image: class 0 is red, class 1 blue."""
    rng = np.random.default_rng(seed)
    Path(folder).mkdir(exist_ok=True)
    files, objects = [], []
    for i in range(n):
        image = rng.integers(0, 60, (side, side + 8, 3), dtype=np.uint8)
        x, y = rng.integers(2, side // 2, 2)
        image[y : y + 24, x : x + 24, 2 * (i % 2)] = 250
        files.append(Path(folder) / f"{i}.png")
        Image.fromarray(image).save(files[-1])
        corners = [x, y, x + 24, y, x + 24, y + 24, x, y + 24]
        objects.append(
            Objects(
                boxes=np.array([[x, y, x + 24, y + 24]], dtype=np.float32),
                classes=np.array([i % 2]),
                difficult=np.array([False]),
                crowd=np.array([False]),
                areas=np.array([576], dtype=np.float32),
                masks=[[[float(v) for v in corners]]],
            )
        )
    sizes = np.tile([side + 8, side], (n, 1))
    return ObjectImages("squares", ["red", "blue"], [f.name for f in files], files, sizes, objects, "squares")


def detector(seed=0):
    torch.manual_seed(seed)
    backbone = timm.create_model("resnet10t", num_classes=0, channels=(8, 16, 32, 64), stem_width=8)
    body = Body(Encoder(backbone, backbone.num_features, "linear", 8), frozen=True)
    return faster_rcnn(body, 2, size=64, longest=80, regions=16, mean=[0.5] * 3, std=[0.25] * 3)


SCHEDULE = Schedule(steps=5, batch_size=2, lr=0.01, weight_decay=1e-4, drops=[4], warmup_steps=2)


def trained(examples, **options):
    return fit(detector(), examples, SCHEDULE, seed=3, device=CPU, ranks=Ranks(), **options).state_dict()


def test_an_example_is_mirrored_with_its_boxes_and_masks(tmp_path):
    examples = Examples(squares(tmp_path), seed=0, masks=True)
    flips = [bool(randomness.uniform(0, "detection flip", 0, np.array([i]), 1)[0, 0] < 0.5) for i in range(5)]
    assert True in flips
    assert False in flips
    for i, flipped in enumerate(flips):
        image, target = examples[0, i]
        x0, y0, x1, y1 = target["boxes"][0].int().tolist()
        bright = image[2 * (i % 2)] > 0.9
        assert bright[y0:y1, x0:x1].all()
        assert bright.sum() == 24 * 24
        assert torch.equal(target["masks"][0].bool(), bright)
        assert target["labels"].tolist() == [1 + i % 2]
        assert (x0 != int(examples.images.objects[i].boxes[0, 0])) == flipped


def test_difficult_objects_and_crowds_are_not_learnt(tmp_path):
    images = squares(tmp_path, n=3)
    images.objects[0].difficult[:] = True
    images.objects[1].crowd[:] = True
    assert Examples(images, 0, masks=False).used == [2]
    images.objects[2].difficult[:] = True
    with pytest.raises(UserError, match="no image of squares has an object to learn from"):
        Examples(images, 0, masks=False)


def test_a_box_that_is_too_thin_is_not_learnt(tmp_path):
    """Mirrored it would have no width in float32, which torchvision refuses."""
    images = squares(tmp_path)
    for there in images.objects[1:]:
        there.boxes[0] = [0, 5, 1e-6, 9]
    examples = Examples(images, 3, masks=False)
    assert examples.used == [0]
    thin = images.objects[1].boxes
    assert (mirrored(thin, 72)[:, 0] == mirrored(thin, 72)[:, 2]).all()
    trained(examples)


def test_a_resumed_training_ends_with_the_weights_of_an_uninterrupted_one(tmp_path, monkeypatch):
    examples = Examples(squares(tmp_path), seed=3, masks=False)
    whole = trained(examples)
    monkeypatch.setattr(training, "SAVE_EVERY", -1.0)
    kept = []
    trained(examples, keep=lambda state: kept.append({name: value.clone() for name, value in state.items()}))
    assert [int(state["done"]) for state in kept] == [1, 2, 3, 4, 5]
    counted = []
    resumed = trained(examples, state=kept[2], seen=counted.append)
    assert counted == [1, 1], "the time left is that of the steps that are left"
    assert all(torch.equal(resumed[name], value) for name, value in whole.items())


def test_batches_of_a_long_training_are_not_listed_beforehand(tmp_path):
    """Its 400,000 pairs of epoch and image take more than 40 MB."""
    examples = Examples(squares(tmp_path), seed=3, masks=False)
    tracemalloc.start()
    batches = training._batches(examples, Schedule(200_000, 2, 0.01, 0.0, [], 0), 3, 0, Ranks(), 0)
    assert len(next(batches)[0]) == 2
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4_000_000


def test_a_loss_that_is_not_finite_ends_the_training(tmp_path):
    examples = Examples(squares(tmp_path), seed=3, masks=False)
    model = detector()
    model.rpn.head.cls_logits.weight.data[:] = float("nan")
    with pytest.raises(UserError, match=r"the detector's loss became nan at step 1 of 5; lower --lr \(0.01\)"):
        fit(model, examples, SCHEDULE, seed=3, device=CPU, ranks=Ranks())


def one_step(folder):
    """A step of training on this rank, and what it finds; saved for each rank."""
    ranks = Ranks()
    ranks.init_process_group("gloo")
    images = squares(folder / f"images{ranks.rank}")  # of its own: the others write at the same time
    schedule = Schedule(1, 4, 0.01, 0.0, [], 0)
    model = fit(detector(), Examples(images, 3, masks=False), schedule, seed=3, device=CPU, ranks=ranks)
    found = predict(detector(), images, device=CPU, ranks=ranks)
    state = {"weights": model.state_dict(), "found": [torch.from_numpy(one.boxes) for one in found]}
    torch.save(state, folder / f"rank{ranks.rank}.pt")


def test_two_ranks_average_their_gradients_and_share_the_test_images(tmp_path):
    run_on_ranks(one_step, tmp_path)
    first, second = (torch.load(tmp_path / f"rank{rank}.pt") for rank in (0, 1))
    for name, value in first["weights"].items():
        assert torch.equal(value, second["weights"][name]), name
    images = squares(tmp_path)
    for one, two, alone in zip(
        first["found"], second["found"], predict(detector(), images, device=CPU, ranks=Ranks()), strict=True
    ):
        torch.testing.assert_close(one, two)
        torch.testing.assert_close(one, torch.from_numpy(alone.boxes))
    # By hand: each rank's half of the batch with its own draws, and the mean of both gradients.
    examples, model = Examples(images, 3, masks=False), detector().train()
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    order = training.order(5, 3, 0, "detection")[:4].tolist()
    gradients = []
    for rank, half in enumerate((order[:2], order[2:])):
        torch.manual_seed(randomness.key(3, f"detection {rank}", 0, 0))
        loss = sum(model(*collate([examples[0, i] for i in half])).values())
        gradients.append(torch.autograd.grad(loss, list(trained.values())))
    for (name, parameter), one, two in zip(trained.items(), *gradients, strict=True):
        expected = parameter - 0.01 * (one + two) / 2
        torch.testing.assert_close(first["weights"][name], expected, rtol=1e-4, atol=1e-6, msg=name)


def frozen_step(folder):
    """A step of training on this rank with a frozen body of which every number was drawn."""
    ranks = Ranks()
    ranks.init_process_group("gloo")
    model = detector()
    generator = torch.Generator().manual_seed(0)
    for value in model.backbone.body.state_dict().values():
        if value.is_floating_point():
            value.uniform_(0.5, 1.5, generator=generator)
    before = {name: value.clone() for name, value in model.backbone.body.state_dict().items()}
    schedule = Schedule(1, 4, 1e-4, 0.0, [], 0)
    images = squares(folder / f"images{ranks.rank}")
    fit(model, Examples(images, 3, masks=False), schedule, seed=3, device=CPU, ranks=ranks)
    for name, value in model.backbone.body.state_dict().items():
        assert torch.equal(value, before[name]), name


def test_a_frozen_body_stays_bit_identical_on_three_ranks(tmp_path):
    """The mean of three equal numbers may differ from them by rounding."""
    run_on_ranks(frozen_step, tmp_path, world_size=3)


def test_masks_of_detections_are_run_lengths_of_the_image(tmp_path):
    """What `pixels` makes of them has the size of the image."""
    backbone = timm.create_model("resnet10t", num_classes=0, channels=(8, 16, 32, 64), stem_width=8)
    encoder = Encoder(backbone, backbone.num_features, "linear", 8)
    model = mask_rcnn(encoder, 2, sizes=[64], longest=80, regions=16, mean=[0.5] * 3, std=[0.25] * 3)
    model.roi_heads.score_thresh = 0.0
    images = squares(tmp_path, n=1)
    (found,) = predict(model, images, device=CPU, ranks=Ranks())
    assert len(found.masks) == len(found.boxes) > 0
    assert pixels(found.masks[0], 72, 64).shape == (64, 72)
