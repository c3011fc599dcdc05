"""Resolve `auto` settings by the size of the data and the machine.

At ImageNet's size every choice that depends on the data is the paper's. Those that depend on the machine are not: a GPU
that has bfloat16 trains in it, and k-means is torch's on a GPU without faiss-gpu. The recipes named after the paper,
`pcl-v1` and `pcl-v2`, and MoCo's, `moco-v1` and `moco-v2`, have full precision. Loads no torch.
"""

import dataclasses
import math
import re
from dataclasses import dataclass

from protonce.config import Resolved, Settings
from protonce.errors import UserError

IMAGENET_MEAN = [0.485, 0.456, 0.406]
IMAGENET_STD = [0.229, 0.224, 0.225]
IMAGENET_SIZE = 1_281_167  # images
FEWEST_IMAGES = 8
FORWARD = 50_000  # multiplications per pixel of an encoder, roughly: 80,000 of a ResNet-50, 10,000 of `laptop-v2`
LITTLE_WORK = 1e12  # multiplications; half a minute of one core
RESNET = re.compile(r"resnet\d+[a-z]?")  # the backbones that take the small stem by themselves


@dataclass(frozen=True)
class Machine:
    """The machine: its device, whether that supports bfloat16, whether faiss is available, and the number of cores.

    `faiss_gpu`: whether faiss can use that device, a GPU.
    """

    device: str
    bfloat16: bool
    faiss: bool
    cores: int
    faiss_gpu: bool = False


@dataclass(frozen=True)
class DataSize:
    """Number of images, and their typical shorter side in pixels; 0 for other data."""

    n: int
    side: int


def choose_recipe(data: DataSize, device: str, pretrained: bool = False) -> tuple[str, str]:
    """Choose a recipe by data size and device; return its name and the reason.

    Args:
        data: to train on.
        device: to train with.
        pretrained: whether training starts from an encoder that has learnt from other images.
    """
    if pretrained:
        return "adapt", "pretrained weights"
    if device == "cpu":
        return "laptop-v2", "no GPU"
    if 0 < data.side <= 64:
        return "small-v2", f"images of {data.side} pixels"
    if data.n >= 1_000_000:
        return "pcl-v2", f"{data.n:,} images: the paper's size"
    return "photos-v2", f"{data.n:,} images of about {data.side} pixels"


def resolve(settings: Settings, data: DataSize, machine: Machine) -> Resolved:
    """Replace every `auto` by a value for the data and the machine.

    Raises:
        UserError: there are too few images, or the batch size does not fit them.
    """
    if data.n < FEWEST_IMAGES:
        images = "1 readable image" if data.n == 1 else f"{data.n} readable images"
        raise UserError(f"the data has {images}; training needs at least {FEWEST_IMAGES}")
    chosen: dict[str, object] = {}

    def choose(name: str, value: object) -> None:
        if getattr(settings, name) == "auto":
            chosen[name] = value

    choose("device", machine.device)
    choose("precision", "bf16" if machine.device == "cuda" and machine.bfloat16 else "32")
    faiss = machine.faiss_gpu if machine.device == "cuda" else machine.faiss and machine.device == "cpu"
    choose("kmeans_engine", "faiss" if faiss else "torch")
    choose("workers", min(machine.cores, 8))
    choose("mean", IMAGENET_MEAN)
    choose("std", IMAGENET_STD)

    # Views as large as the images, up to the paper's 224 pixels; a CPU has no time for more than 96.
    choose("image_size", _image_size(data.side, 96 if machine.device == "cpu" else 224))
    size = chosen.get("image_size", settings.image_size)
    assert isinstance(size, int)
    small = size <= 64 and RESNET.fullmatch(settings.backbone) and not settings.init
    choose("stem", "small" if small else "standard")
    # 256 before a crop of 224, as in the paper; images that are no larger than the view are not cut.
    choose("plain_resize", round(size * 256 / 224) if data.side > size else size)

    # At least 16 steps an epoch, and the paper's 256 where there are images enough.
    choose("batch_size", min(256, data.n, _power_of_two(max(data.n / 16, 16))))
    batch = chosen.get("batch_size", settings.batch_size)
    assert isinstance(batch, int)
    # 64 images a sub-batch: the paper's 256 on 4 GPUs. One sub-batch would let a view see the other's statistics.
    choose("bn_splits", max(batch // 64, 2 if batch >= 16 else 1))
    splits = chosen.get("bn_splits", settings.bn_splits)
    assert isinstance(splits, int)
    _check_batch(batch, splits, data.n)

    # The paper's 25, 50 and 100 thousand are n/51, 2n/51 and 4n/51 of ImageNet.
    choose("clusters", _clusters(data.n))
    clusters = chosen.get("clusters", settings.clusters)
    assert isinstance(clusters, list)
    # Every epoch if a pass and k-means are little work, else fewer, but at least twenty over the training.
    work = data.n * (FORWARD * size**2 + settings.kmeans_iterations * sum(clusters) * settings.dim)
    choose("record_every", min(math.ceil(work / LITTLE_WORK), math.ceil(settings.epochs / 20)))
    resolved = Resolved(**{**dataclasses.asdict(settings), **chosen})
    return dataclasses.replace(resolved, clusters=sorted(resolved.clusters))  # coarse to fine


def _check_batch(batch: int, splits: int, n: int) -> None:
    if batch > n:
        raise UserError(f"batch_size is {batch}, but there are {n} images; choose at most {n}")
    if 2 * splits > batch:
        raise UserError(
            f"bn_splits is {splits} for batches of {batch}, and batch norm needs two images in each part; "
            f"choose at most {batch // 2}"
        )


def twin_momentum(settings: Resolved, n: int) -> float:
    """Momentum of the twin: it averages over a hundredth of all steps, the paper's 0.999 from 100,000 steps on.

    In short training a slower one lags behind what is learnt (docs/claim.md: at 1,000 steps 0.9 is far ahead of 0.97,
    and that of 0.99).
    """
    return min(0.999, max(0.9, round(1 - 100 / (settings.epochs * _steps(settings, n)), 4)))


def queue_length(settings: Resolved, n: int, momentum: float) -> int:
    """Length of the queue: the paper's 16,000, but at most a quarter of the images.

    Nor may keys be told apart by their age: the paper's queue is a sixteenth as old as its twin's memory (62 steps of
    1,000).
    """
    age = math.ceil(1 / (16 * (1 - momentum))) if momentum < 1 else n
    return max(min(16000, n // 4, age * settings.batch_size), 1)


def pseudo_classes(n: int, published: int) -> int:
    """Number of clusters that serve as labels: the published one for ImageNet, fewer in proportion to n^(3/4).

    So clusters are smaller where there are fewer images, but hold about 30 of 3,000 where the published ones hold 130.
    """
    return max(round(float(f"{published * (n / IMAGENET_SIZE) ** 0.75:.2g}")), 2)


def warmup_epochs(settings: Resolved, n: int) -> int:
    """A tenth of the epochs, the paper's 20 of 200; but 500 steps, before which clusters mean little; at most half."""
    steps = round(500 / _steps(settings, n))
    return min(max(round(settings.epochs / 10), steps), settings.epochs // 2)


def _steps(settings: Resolved, n: int) -> int:
    return max(n // settings.batch_size, 1)  # of an epoch


def _image_size(side: int, most: int) -> int:
    if not 0 < side < most:
        return most
    return max(side if side <= 32 else side // 16 * 16, 8)


def _power_of_two(x: float) -> int:
    return int(2 ** math.floor(math.log2(x)))


def _clusters(n: int) -> list[int]:
    clusters: list[int] = []
    for share in (1, 2, 4):
        k = float(f"{n * share / 51.2:.2g}")
        fewest = 2 * clusters[-1] if clusters else 2
        clusters.append(min(max(round(k), fewest), n))
    return clusters
