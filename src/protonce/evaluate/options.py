"""What can be chosen for each protocol; the defaults are the paper's where it says. Loads no torch."""

from dataclasses import dataclass
from typing import Literal

from protonce.config import Auto
from protonce.fields import Checked, setting


@dataclass(frozen=True)
class Options(Checked):
    """What all protocols have."""

    COMMAND = "protonce evaluate RUN PROTOCOL"
    seed: int = setting(0, "seed of every draw", least=0)


@dataclass(frozen=True)
class KnnOptions(Options):
    """Weighted vote of the nearest training images, in the backbone's features and in the momentum bank (sec. 4.3)."""

    neighbours: int | Auto = setting(
        "auto", "nearest images that vote; auto: what does best on the training images, each left out in turn", least=1
    )
    tau: float = setting(0.1, "a vote weighs exp(v.v'/tau)", above=0)


@dataclass(frozen=True)
class LinearOptions(Options):
    """A linear classifier on frozen features, from all labels; for several labels an image SVMs and mAP (table 3)."""

    views: Literal["auto", "augmented", "cached"] = setting(
        "auto",
        "augmented, the paper's way: the backbone sees random crops and flips in each epoch; cached: features of "
        "plain views, once; auto: augmented for ImageNet and Places205",
    )
    epochs: int | Auto = setting("auto", "passes over the training images; auto: 100, for Places205 40", least=1)
    lr: float | Auto = setting(
        "auto",
        "learning rate; auto: of augmented views 10, for Places205 0.3; of cached ones by a held-out fifth",
        above=0,
    )
    drops: list[float] = setting(
        [0.6, 0.8],
        "shares of the epochs after which the rate is divided by 10: ImageNet's 60 and 80 of 100",
        above=0,
        most=1,
        empty=True,
    )
    batch_size: int = setting(256, "images a step", least=1)
    cells: int | Auto = setting(
        "auto",
        "the last feature map is pooled to N x N cells; auto: 1, for Places205 2 (8192-D of a ResNet-50)",
        least=1,
    )
    cost: float | Auto = setting(0.5, "C of the SVMs; auto: by 3-fold cross-validation, for each class", above=0)


@dataclass(frozen=True)
class LowshotOptions(Options):
    """Linear SVMs on a few images a class: accuracy, or mAP for several labels an image (table 1)."""

    shots: list[int] = setting([1, 2, 4, 8, 16], "training images a class", least=1)
    draws: int = setting(5, "independent draws of the training images", least=1)
    classifier: Literal["svm", "mean"] = setting(
        "svm", "svm; or mean: the nearest mean of a class's features (sec. 3.5)"
    )
    cost: float | Auto = setting(
        0.5, "C of the SVMs; auto: by 3-fold cross-validation within a draw of 3 images a class or more", above=0
    )


@dataclass(frozen=True)
class SemisupOptions(Options):
    """Fine-tuning of everything on a part of the labels (table 2)."""

    shares: list[float] = setting([0.01, 0.1], "parts of the labelled training images", above=0, most=1)
    draws: int = setting(5, "independent draws of the training images", least=1)
    epochs: int = setting(20, "passes over the part", least=1)
    drops: list[float] = setting(
        [0.6, 0.8],
        "shares of the epochs after which both rates fall to a fifth: 12 and 16 of 20",
        above=0,
        most=1,
        empty=True,
    )
    lr: float = setting(0.01, "learning rate of the backbone", above=0)
    classifier_lr: float | Auto = setting(
        "auto", "learning rate of the classifier; auto: 1 up to 1 % of the labels, 0.1 above", above=0
    )
    batch_size: int = setting(256, "images a step", least=2)
    weight_decay: float = setting(0.0005, "weight decay of SGD", least=0)


@dataclass(frozen=True)
class ClusteringOptions(Options):
    """k-means on the features of one set of images against its labels (table 5), and AMI over the run's training."""

    clusters: list[int] | Auto = setting("auto", "numbers of clusters; auto: as many as labels", least=1)
    starts: int = setting(5, "random starts of k-means, over which scores are averaged", least=1)
    features: Literal["backbone", "momentum"] = setting(
        "backbone", "backbone: pooled features of the query encoder; momentum: embeddings of its twin"
    )


@dataclass(frozen=True)
class InformationOptions(Options):
    """Mutual information between labels and momentum features, and between labels and their prototypes (fig. 3b)."""

    neighbours: int = setting(3, "k of the nearest-neighbour estimator (Ross 2014)", least=1)
    most: int = setting(50_000, "images; of more, this many are drawn", least=10)


PROTOCOLS: dict[str, type[Options]] = {
    "knn": KnnOptions,
    "linear": LinearOptions,
    "lowshot": LowshotOptions,
    "semisup": SemisupOptions,
    "clustering": ClusteringOptions,
    "information": InformationOptions,
}
