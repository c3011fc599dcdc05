"""Settings that all systems share, documented field by field and checked at construction.

The options of a single system are in `methods/options/`. Loads no torch, so that `protonce --help` answers at once.
A value `auto` is replaced by `protonce.auto` once the data is known; nothing below `training` sees it.
"""

from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, Literal

from protonce import plain_yaml
from protonce.errors import UserError, shown
from protonce.fields import Checked, like, setting

Auto = Literal["auto"]
# What an encoder is, and how images are prepared for it.
ARCHITECTURE = ("backbone", "width", "stem", "head", "dim", "image_size", "plain_resize", "mean", "std")
# Bounds far beyond any use: what is above them is a slip of the keyboard, and would overflow, or end never.
MANY = 10**12  # images, or steps
LONG = 1_000_000  # epochs
LARGE_BATCH = 1_000_000  # images
HIGHEST_RATE = 10_000  # the paper's linear classifiers are trained with 5 to 30, LARS with up to 10
LARGEST_SEED = 2**63 - 1


@dataclass(frozen=True)
class Settings(Checked):
    """The settings that every system has. The defaults are those of the recipe `pcl-v2` where the paper has one."""

    # What is learnt
    method: str = setting("pcl", "system to train")

    # The clusters: those of an E-step, and those that are recorded for every system
    clusters: list[int] | Auto = setting(
        "auto", "number of prototypes at each granularity, K = {k_m}", least=1, most=MANY, longest=20
    )
    tau: float = setting(0.2, "temperature of contrastive losses, and the mean of phi", above=0, least=1e-4, most=100)
    alpha: float = setting(10.0, "smoothing of the concentration of small clusters, eq. 12", least=1, most=1_000_000)
    concentration: Literal["estimated", "fixed"] = setting(
        "estimated", "estimated: phi by eq. 12; fixed: phi = tau for every prototype (fig. 3a)"
    )
    phi_clamp: Literal["percentiles", "none"] = setting(
        "percentiles", "percentiles: phi is clamped to its 10th and 90th, as in the published code; none: eq. 12 alone"
    )
    phi_of_identical: Literal["largest", "smallest"] = setting(
        "largest", "phi of a cluster of identical images: the largest of its set, or the smallest, as in eq. 12"
    )
    kmeans_engine: Literal["auto", "faiss", "torch"] = setting(
        "auto", "faiss or torch; auto is faiss on Linux's CPUs and where faiss-gpu is installed for a GPU"
    )
    kmeans_iterations: int = setting(20, "iterations of k-means", least=1, most=10_000)
    kmeans_starts: int = setting(1, "random starts of k-means; the best is kept", least=1, most=1000)
    kmeans_init: Literal["fresh", "warm", "published"] = setting(
        "fresh",
        "where an E-step starts: fresh, from random images; warm, from the last one's centroids; published, from those "
        "images that faiss draws with one seed for each granularity, the same in every epoch and run (the torch engine "
        "draws others)",
    )
    kmeans_points: int = setting(0, "number of images to fit k-means to; 0 is all", least=0, most=MANY)
    record_every: int | Auto = setting(
        "auto",
        "cluster every n-th epoch for the record, if it has no E-step; the first and the last epoch always are",
        least=1,
        most=LONG,
    )
    keep_features: int = setting(
        0,
        "keep momentum features of this many random images at every epoch that is clustered (fig. 3b); 0 keeps none",
        least=0,
        most=MANY,
    )

    # The encoder
    backbone: str = setting("resnet50", "any timm model")
    width: int = setting(
        64, "channels of a ResNet's first stage; 64 is standard, other backbones ignore it", least=4, most=4096
    )
    stem: Literal["auto", "standard", "small"] = setting(
        "auto", "standard; or small: 3x3 first convolution without pooling, for ResNets on images up to 64 pixels"
    )
    head: Literal["linear", "mlp", "mlp-bn", "mlp-big", "none"] = setting(
        "mlp",
        "projection head: linear (v1); mlp (v2), with a hidden layer as wide as the features; mlp-bn, with batch norm, "
        "the default of SimCLR, BYOL and SwAV; mlp-big, twice as wide, as published for BYOL; none is for imported "
        "encoders without one",
    )
    dim: int = setting(128, "dimensions of the embedding", least=2, most=65_536)
    block_init: Literal["timm", "torchvision"] = setting(
        "timm",
        "last batch norm of a ResNet's blocks starts at 0 (timm) or at 1 (torchvision, as in the paper); other "
        "backbones ignore it",
    )
    bn_splits: int | Auto = setting(
        "auto", "sub-batches for batch norm, so that statistics do not leak between views", least=1, most=LARGE_BATCH
    )
    init: str = setting("", "start from a run folder, a weights file, or timm:NAME")
    trained_stages: int = setting(
        0,
        "last stages of the backbone that are trained (blocks of a ViT), the others keep their weights; 0 is all",
        least=0,
        most=1000,
    )
    batch_norm: Literal["batch", "frozen"] = setting(
        "batch",
        "batch norm of the backbone: of each batch; or frozen, by the running statistics that it starts with",
    )
    head_init: Literal["random", "pca"] = setting(
        "random", "a linear head starts from random weights, or from the principal components of the features"
    )
    start_share: float = setting(
        0.0,
        "share of the weights at the start in the encoder that a run keeps, an average with those at the end",
        least=0,
        most=1,
    )

    # The views
    image_size: int | Auto = setting("auto", "side of the views in pixels", least=8, most=4096)
    plain_resize: int | Auto = setting(
        "auto", "shorter side before the centre crop of a plain view", least=8, most=8192
    )
    views: Literal["v1", "v2"] = setting("v2", "order of operations: v1 grey, jitter; v2 jitter, grey, blur")
    crop_scale: list[float] = setting(
        [0.2, 1.0], "range of the area of a random crop, as a share of the image", above=0, most=1
    )
    flip_p: float = setting(0.5, "probability of a horizontal flip", least=0, most=1)
    jitter: list[float] = setting(
        [0.4, 0.4, 0.4, 0.1], "strength of brightness, contrast, saturation, hue", least=0, most=10, length=4
    )
    jitter_p: float = setting(0.8, "probability of colour jitter", least=0, most=1)
    grey_p: float = setting(0.2, "probability of a grey view", least=0, most=1)
    blur_p: float = setting(0.5, "probability of Gaussian blur (v2 only)", least=0, most=1)
    blur_sigma: list[float] = setting(
        [0.1, 2.0], "range of the blur's sigma in pixels", above=0, least=0.01, most=100, length=2
    )
    # Of pixels from 0 to 1; some encoders were trained with a std of 1 or 1/255, which is no statistic.
    mean: list[float] | Auto = setting("auto", "channel means for normalisation", least=0, most=1, length=3)
    std: list[float] | Auto = setting(
        "auto", "channel standard deviations for normalisation", above=0, least=0.001, most=10, length=3
    )

    # Optimisation
    epochs: int = setting(200, "passes over the training images", least=1, most=LONG)
    batch_size: int | Auto = setting("auto", "images a step", least=2, most=LARGE_BATCH)
    optimizer: Literal["sgd", "lars", "adamw"] = setting(
        "sgd", "sgd, lars or adamw; the last two do not decay biases and norms"
    )
    lr: float = setting(0.03, "learning rate at the start", above=0, most=HIGHEST_RATE)
    lr_warmup_epochs: float = setting(0.0, "epochs of linear warm-up of the learning rate", least=0, most=LONG)
    lr_final: float = setting(0.0, "final learning rate of the cosine schedules", least=0, most=HIGHEST_RATE)
    schedule: Literal["cosine", "cosine-epoch", "step"] = setting(
        "cosine",
        "learning rate schedule: cosine, which falls at every step; cosine-epoch, once an epoch, as in the published "
        "code; or step",
    )
    drops: list[float] = setting(
        [0.6, 0.8],
        "step schedule: shares of the epochs after which the learning rate is divided by 10",
        above=0,
        most=1,
        empty=True,
    )
    sgd_momentum: float = setting(0.9, "momentum of SGD and LARS", least=0, most=1)
    weight_decay: float = setting(1e-4, "weight decay", least=0, most=1000)
    clip_gradients: float = setting(0.0, "largest norm of the gradient; 0 does not clip", least=0, most=10**9)

    # The machine, and what is drawn
    seed: int = setting(0, "random seed", least=0, most=LARGEST_SEED)
    limit: int = setting(0, "train on a random subset of this many images; 0 is all", least=0, most=MANY)
    device: Literal["auto", "cpu", "cuda", "mps"] = setting("auto", "device: cpu, cuda or mps")
    precision: Literal["auto", "32", "16", "bf16"] = setting(
        "auto", "of the encoder: 32, 16 or bf16; auto is bf16 on GPUs that have it, else 32"
    )
    workers: int | Auto = setting("auto", "worker processes that load large images", least=0, most=1024)
    checkpoint_minutes: float = setting(10.0, "minutes between checkpoints within an epoch", least=0.0, most=1_000_000)
    snapshot_every: int = setting(
        0, "keep the query encoder of every n-th epoch in RUN/snapshots; 0 does not", least=0, most=LONG
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.crop_scale) != 2 or self.crop_scale[0] > self.crop_scale[1]:
            raise UserError(f"setting crop_scale is {shown(self.crop_scale)}; it takes two numbers, the smaller first")
        if self.blur_sigma[0] > self.blur_sigma[1]:
            raise UserError(f"setting blur_sigma is {shown(self.blur_sigma)}; it takes two numbers, the smaller first")
        if self.clusters != "auto" and len({*self.clusters}) < len(self.clusters):
            raise UserError(f"setting clusters is {shown(self.clusters)}; numbers must differ")
        if self.lr_final > self.lr:
            raise UserError(f"setting lr_final is {self.lr_final}, above lr {self.lr}; it must be at most lr")
        if self.jitter[3] > 0.5:
            raise UserError(f"setting jitter has hue {self.jitter[3]}; hue is at most 0.5")


@dataclass(frozen=True)
class Resolved(Settings):
    """Settings without `auto`: numbers only. Made by `protonce.auto.resolve`."""

    kmeans_engine: Literal["faiss", "torch"] = like(Settings, "kmeans_engine", "torch")
    stem: Literal["standard", "small"] = like(Settings, "stem", "standard")
    device: Literal["cpu", "cuda", "mps"] = like(Settings, "device", "cpu")
    precision: Literal["32", "16", "bf16"] = like(Settings, "precision", "32")
    clusters: list[int] = like(Settings, "clusters", [100])
    record_every: int = like(Settings, "record_every", 1)
    bn_splits: int = like(Settings, "bn_splits", 1)
    image_size: int = like(Settings, "image_size", 224)
    plain_resize: int = like(Settings, "plain_resize", 256)
    mean: list[float] = like(Settings, "mean", [0.485, 0.456, 0.406])
    std: list[float] = like(Settings, "std", [0.229, 0.224, 0.225])
    batch_size: int = like(Settings, "batch_size", 256)
    workers: int = like(Settings, "workers", 0)


def recipes() -> list[str]:
    """Names of the built-in recipes."""
    folder = resources.files("protonce") / "recipes"
    return sorted(entry.name.removesuffix(".yaml") for entry in folder.iterdir() if entry.name.endswith(".yaml"))


def read_recipe(name: str) -> dict[str, object]:
    """The settings of a recipe.

    Raises:
        UserError: the name is unknown.
    """
    if not isinstance(name, str) or name not in recipes():
        raise UserError(f"unknown recipe {shown(name)}; available recipes: {', '.join(recipes())}")
    text = (resources.files("protonce") / "recipes" / f"{name}.yaml").read_text()
    return parse_yaml(text, f"recipe {name}")


def read_config(path: Path) -> dict[str, object]:
    """The settings in a user's YAML file.

    Raises:
        UserError: the file is missing, is not YAML, or is not a list of names and values.
    """
    try:
        if path.exists() and not path.is_file():  # reading a pipe might never end
            raise UserError(f"--config {path} is a folder or a pipe; write the settings to a file")
        with path.open("rb") as file:
            data = file.read(4 * plain_yaml.LONGEST + 1)  # bytes of a character
        if len(data) > 4 * plain_yaml.LONGEST:
            raise UserError(f"--config {path} is too long for settings")
        text = data.decode()
    except OSError as error:
        raise UserError(f"--config {path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise UserError(f"--config {path} is not a text file") from None
    return parse_yaml(text, str(path))


def parse_yaml(text: str, where: str) -> dict[str, Any]:
    """Names and values from YAML text.

    Args:
        text: of a file of settings, or of the config.yaml of a run folder.
        where: its name in error messages.

    Raises:
        UserError: it is not YAML, goes beyond what settings need (see `plain_yaml`), or does not have named values.
    """
    try:
        values = plain_yaml.parse(text)
    except ValueError as error:
        raise UserError(f"{where} {error}") from None
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise UserError(f"{where} is not a list of settings, one `name: value` a line")
    for name in values:
        if not isinstance(name, str):
            raise UserError(f"{where} has {shown(name)} where the name of a setting should be")
    return values
