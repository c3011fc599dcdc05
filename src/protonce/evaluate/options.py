"""Options of each protocol; defaults follow the paper where it gives a value. Does not import torch."""

from dataclasses import dataclass
from typing import Literal

from protonce.config import HIGHEST_RATE, LARGE_BATCH, LARGEST_SEED, LONG, MANY, Auto
from protonce.fields import Checked, setting


@dataclass(frozen=True)
class Options(Checked):
    """Options of all protocols."""

    COMMAND = "protonce evaluate RUN PROTOCOL"
    seed: int = setting(0, "random seed", least=0, most=LARGEST_SEED)


@dataclass(frozen=True)
class KnnOptions(Options):
    """Weighted kNN classification with backbone features and with the momentum bank (sec. 4.3)."""

    neighbours: int | Auto = setting(
        "auto", "number of neighbours; auto: the best leave-one-out accuracy on the training images", least=1, most=MANY
    )
    tau: float = setting(
        0.1, "temperature of the votes, which have weight exp(v.v'/tau)", above=0, least=1e-4, most=100
    )


@dataclass(frozen=True)
class LinearOptions(Options):
    """Linear classification of frozen features with all labels; SVMs and mAP for multi-label data (table 3)."""

    views: Literal["auto", "augmented", "cached"] = setting(
        "auto",
        "augmented, as in the paper: features of new random crops and flips in each epoch; cached: features of "
        "plain views, computed once; auto: augmented for ImageNet (recognised by its 1,000 classes) and "
        "Places205, otherwise cached",
    )
    epochs: int | Auto = setting("auto", "training epochs; auto: 100, or 40 for Places205", least=1, most=LONG)
    lr: float | Auto = setting(
        "auto",
        "learning rate; auto: 10 (0.3 for Places205) for augmented views, chosen on a held-out fifth for cached ones",
        above=0,
        most=HIGHEST_RATE,
    )
    drops: list[float] = setting(
        [0.6, 0.8],
        "shares of the epochs after which the learning rate is divided by 10; default: 60 and 80 of 100 for ImageNet",
        above=0,
        most=1,
        empty=True,
    )
    batch_size: int = setting(256, "images per step", least=1, most=LARGE_BATCH)
    cells: int | Auto = setting(
        "auto",
        "pool the last feature map to N x N cells, windows at stride 1; auto: 1, or 2 for Places205: windows of 6 x 6 "
        "for a map of 7 x 7 (8192-D for a ResNet-50)",
        least=1,
        most=16,
    )
    cost: float | Literal["auto", "benchmark"] = setting(
        0.5,
        "C of the SVMs; auto: chosen for each class by 3-fold cross-validation; benchmark: the same, from the values "
        "of the benchmark that the paper follows, 2^-19 to 2^-4 and 10^-7 to 10^2",
        above=0,
        least=1e-9,
        most=1_000_000,
    )


@dataclass(frozen=True)
class LowshotOptions(Options):
    """Linear SVMs on a few images per class: accuracy, or mAP for multi-label data (table 1)."""

    shots: list[int] = setting([1, 2, 4, 8, 16], "training images per class", least=1, most=MANY)
    draws: int = setting(5, "independent draws of the training images", least=1, most=1000)
    classifier: Literal["svm", "mean"] = setting("svm", "svm, or mean: the nearest class mean (sec. 3.5)")
    cost: float | Literal["auto", "benchmark"] = setting(
        0.5,
        "C of the SVMs; auto: chosen by 3-fold cross-validation if there are at least 3 images per class; benchmark: "
        "the same, from the values of the benchmark that the paper follows, 2^-19 to 2^-4 and 10^-7 to 10^2",
        above=0,
        least=1e-9,
        most=1_000_000,
    )


@dataclass(frozen=True)
class SemisupOptions(Options):
    """Fine-tuning of all layers on a fraction of the labels (table 2)."""

    shares: list[float] = setting([0.01, 0.1], "fractions of the labelled training images", above=0, most=1)
    draws: int = setting(5, "independent draws of the training images", least=1, most=1000)
    epochs: int = setting(20, "training epochs", least=1, most=LONG)
    drops: list[float] = setting(
        [0.6, 0.8],
        "shares of the epochs after which both learning rates are divided by 5; default: 12 and 16 of 20",
        above=0,
        most=1,
        empty=True,
    )
    lr: float = setting(0.01, "learning rate of the backbone", above=0, most=HIGHEST_RATE)
    classifier_lr: float | Auto = setting(
        "auto",
        "learning rate of the classifier; auto: 1 for up to 1 % of the labels, otherwise 0.1",
        above=0,
        most=HIGHEST_RATE,
    )
    batch_size: int = setting(256, "images per step", least=2, most=LARGE_BATCH)
    weight_decay: float = setting(0.0005, "weight decay", least=0, most=1000)


@dataclass(frozen=True)
class ClusteringOptions(Options):
    """Agreement of labels with k-means clusters of the features (table 5), and AMI over the run's training."""

    clusters: list[int] | Auto = setting(
        "auto",
        "numbers of clusters; auto: the number of labels, or the paper's 25,000 for ImageNet's training images",
        least=1,
        most=MANY,
        longest=20,
    )
    starts: int = setting(5, "random starts of k-means over which scores are averaged", least=1, most=1000)
    features: Literal["backbone", "momentum"] = setting(
        "backbone", "backbone: pooled features of the query encoder; momentum: embeddings of the momentum encoder"
    )


@dataclass(frozen=True)
class InformationOptions(Options):
    """Mutual information between labels and momentum features, and between labels and their prototypes (fig. 3b)."""

    neighbours: int = setting(3, "number of neighbours of the estimator (Ross 2014)", least=1, most=MANY)
    most: int = setting(
        50_000, "maximum number of images; of larger data sets a random sample is used", least=10, most=MANY
    )
    over_training: bool = setting(
        False,
        "also the exact information of the prototypes at every recorded epoch, from the run's own images, and the "
        "estimate for features that were kept (`protonce train --keep-features`)",
    )


@dataclass(frozen=True)
class DetectorOptions(Options):
    """Options of all detectors."""

    weight_decay: float = setting(0.0001, "weight decay", least=0, most=1000)
    warmup_steps: int | Auto = setting(
        "auto",
        "steps over which the learning rate grows; auto: 500 for detection, as in MMDetection, and 1,000 for "
        "segmentation, as in detectron2, but at most a tenth of all steps (the paper names none)",
        least=0,
        most=MANY,
    )
    regions: int = setting(
        512,
        "regions of each training image from which the heads learn; fewer take less time and memory",
        least=4,
        most=4096,
    )


@dataclass(frozen=True)
class DetectionOptions(DetectorOptions):
    """Faster R-CNN with a feature pyramid on the frozen backbone: mAP of boxes (table 6)."""

    runs: int = setting(3, "independent trainings of the detector, over which scores are averaged", least=1, most=100)
    layers: Literal["frozen", "all"] = setting(
        "frozen",
        "frozen: convolutions and batch norms of the backbone keep their values, and FPN, RPN and heads are trained; "
        "all: the backbone is trained too",
    )
    epochs: int = setting(15, "training epochs", least=1, most=LONG)
    drops: list[float] = setting(
        [0.8],
        "shares of the epochs after which the learning rate is divided by 10; default: 12 of 15",
        above=0,
        most=1,
        empty=True,
    )
    lr: float = setting(0.05, "learning rate", above=0, most=HIGHEST_RATE)
    batch_size: int = setting(8, "images per step", least=1, most=LARGE_BATCH)
    size: int = setting(600, "shorter side of the images in pixels", least=32, most=4096)
    longest: int = setting(1000, "limit of the longer side in pixels", least=32, most=8192)


@dataclass(frozen=True)
class SegmentationOptions(DetectorOptions):
    """Mask R-CNN with a C4 backbone, all layers trained: COCO's AP of boxes and masks (appendix D)."""

    runs: int = setting(1, "independent trainings of the detector, over which scores are averaged", least=1, most=100)
    steps: int = setting(180_000, "training steps; the default is the 2x schedule of COCO", least=1, most=MANY)
    drops: list[float] = setting(
        [2 / 3, 8 / 9],
        "shares of the steps after which the learning rate is divided by 10; default: 120,000 and 160,000 of 180,000",
        above=0,
        most=1,
        empty=True,
    )
    lr: float = setting(0.02, "learning rate", above=0, most=HIGHEST_RATE)
    batch_size: int = setting(16, "images per step", least=1, most=LARGE_BATCH)
    sizes: list[int] = setting(
        [640, 672, 704, 736, 768, 800],
        "shorter sides in pixels, of which one is drawn for each training image; the last is that of test images",
        least=32,
        most=4096,
    )
    longest: int = setting(1333, "limit of the longer side in pixels", least=32, most=8192)


PROTOCOLS: dict[str, type[Options]] = {
    "knn": KnnOptions,
    "linear": LinearOptions,
    "lowshot": LowshotOptions,
    "semisup": SemisupOptions,
    "clustering": ClusteringOptions,
    "information": InformationOptions,
}
OBJECT_PROTOCOLS: dict[str, type[Options]] = {  # on images with boxes and masks
    "detection": DetectionOptions,
    "segmentation": SegmentationOptions,
}
