"""Results reported in the paper, to compare with: ResNet-50 after 200 epochs on ImageNet unless stated otherwise."""

from collections.abc import Sequence
from dataclasses import dataclass

SHOTS = (1, 2, 4, 8, 16)


@dataclass(frozen=True)
class Reported:
    """A metric reported in the paper, by system."""

    what: str
    scores: dict[str, float]


KNN = Reported(  # table 4
    "kNN accuracy on ImageNet", {"Inst. Disc.": 0.465, "MoCo": 0.471, "Local Aggregation": 0.494, "PCL": 0.545}
)
AMI = Reported(  # table 5
    "AMI of k-means, k = 25,000, on ImageNet", {"DeepCluster": 0.281, "MoCo": 0.285, "PCL": 0.410}
)

LOW_SHOT_VOC07 = {  # table 1: mAP in per cent, for 1, 2, 4, 8 and 16 images per class
    "Random": (8.0, 8.2, 8.2, 8.2, 8.5),
    "Supervised": (54.3, 67.8, 73.9, 79.6, 82.3),
    "Jigsaw": (26.5, 31.1, 40.0, 46.7, 51.8),
    "MoCo": (31.4, 42.0, 49.5, 60.0, 65.9),
    "PCL": (46.9, 56.4, 62.8, 70.2, 74.3),
    "SimCLR": (32.7, 43.1, 52.5, 61.0, 67.1),
    "MoCo v2": (46.3, 58.3, 64.9, 72.5, 76.1),
    "PCL v2": (47.9, 59.6, 66.2, 74.5, 78.3),
}
LOW_SHOT_PLACES = {  # table 1: accuracy in per cent
    "Random": (0.7, 0.7, 0.7, 0.7, 0.7),
    "Supervised": (14.9, 21.0, 26.9, 32.1, 36.0),
    "Jigsaw": (4.6, 6.4, 9.4, 12.9, 17.4),
    "MoCo": (8.8, 13.2, 18.2, 23.2, 28.0),
    "PCL": (11.3, 15.7, 19.5, 24.1, 28.4),
    "SimCLR": (9.4, 14.2, 19.3, 23.7, 28.3),
    "MoCo v2": (10.9, 16.3, 20.8, 26.0, 30.1),
    "PCL v2": (12.5, 17.5, 23.2, 28.1, 32.3),
}
LOW_SHOT_DEVIATION = {  # appendix C: of 5 draws
    "VOC07": {"PCL": (4.06, 2.65, 2.21, 0.49, 0.39), "PCL v2": (4.12, 2.70, 2.17, 0.54, 0.38)},
    "Places205": {"PCL": (0.24, 0.23, 0.13, 0.07, 0.05), "PCL v2": (0.26, 0.23, 0.12, 0.08, 0.04)},
}
SEMI_SUPERVISED = {  # table 2: top-5 accuracy in per cent, from 1 % and 10 % of ImageNet's labels
    "Random": (22.0, 59.0),
    "Supervised baseline": (48.4, 80.4),
    "Pseudolabels": (51.6, 82.4),
    "VAT + Entropy Min.": (47.0, 83.4),
    "S4L Rotation": (53.4, 83.8),
    "Instance Discrimination": (39.2, 77.4),
    "Jigsaw": (45.3, 79.3),
    "SimCLR": (56.5, 82.7),
    "MoCo": (56.9, 83.0),
    "MoCo v2": (66.3, 84.4),
    "PCL v2": (73.9, 85.0),
    "PCL": (75.3, 85.6),
    "PIRL, 800 epochs": (57.2, 83.8),
    "SimCLR, 1000 epochs": (75.5, 87.8),
    "BYOL, 1000 epochs": (78.4, 89.0),
    "SwAV, 800 epochs": (78.5, 89.9),
}
LINEAR = {  # table 3, in per cent: top-1 on ImageNet, mAP on VOC07, top-1 on Places205
    "Jigsaw": (45.7, 64.5, 41.2),
    "Rotation": (48.9, 63.9, 41.4),
    "DeepCluster": (48.4, 71.9, 37.9),
    "BigBiGAN": (56.6, None, None),
    "InstDisc": (54.0, None, 45.5),
    "MoCo": (60.6, 79.2, 48.9),
    "PCL": (61.5, 82.3, 49.2),
    "SimCLR": (61.9, None, None),
    "MoCo v2": (67.5, 84.0, 50.1),
    "PCL v2": (67.6, 85.4, 50.3),
    "LocalAgg": (60.2, None, 50.1),
    "SelfLabel, 400 epochs": (61.5, None, None),
    "CPC": (48.7, None, None),
    "CMC, 280 epochs": (64.0, None, None),
    "PIRL, 800 epochs": (63.6, 81.1, 49.8),
    "AMDIM, 150 epochs": (68.1, None, 55.0),
    "SimCLR, 1000 epochs": (69.3, 80.5, None),
    "BYOL, 1000 epochs": (74.3, None, None),
    "SwAV, 800 epochs": (75.3, 88.9, 56.7),
}
ABLATION = {  # appendix A, in per cent: top-5 after fine-tuning on 1 % of the labels, top-1 of a linear classifier
    "instance only": (56.9, 60.6),
    "proto only (w/o warm-up)": (60.7, 60.4),
    "proto only (w/ warm-up)": (72.3, 60.9),
    "instance + proto (w/o warm-up)": (74.6, 61.3),
    "instance + proto (w/ warm-up)": (75.3, 61.5),
}
SHOWN = ("Random", "Supervised", "MoCo", "PCL", "MoCo v2", "PCL v2")  # the rows shown next to the user's results


def _column(what: str, rows: dict[str, Sequence[float | None]], i: int) -> Reported:
    reported = {name: row[i] for name, row in rows.items() if name in SHOWN}
    return Reported(what, {name: round(value / 100, 4) for name, value in reported.items() if value is not None})


def reported_scores(protocol: str, metric: str, places: bool = False) -> Reported | None:
    """Scores reported in the paper for a metric of a protocol; None: there are none.

    Args:
        protocol: a protocol of `protonce evaluate`, or `comparison`.
        metric: its name in the evaluation's JSON.
        places: whether the images are those of Places205, for which the paper reports separate numbers.
    """
    what, _, at = metric.partition("@")
    if (protocol, metric) in (("knn", "momentum_accuracy"), ("comparison", "knn")):
        return KNN
    if (protocol, metric) in (("clustering", "ami"), ("comparison", "ami")):
        return AMI
    if protocol == "lowshot" and at in map(str, SHOTS) and what in ("map", "accuracy"):
        table, name = (LOW_SHOT_VOC07, "mAP on VOC07") if what == "map" else (LOW_SHOT_PLACES, "accuracy on Places205")
        return _column(f"{name}, {at} per class", dict(table), SHOTS.index(int(at)))
    if protocol == "linear" and metric == "map":
        return _column("mAP on VOC07", dict(LINEAR), 1)
    if protocol == "linear" and metric == "top1":
        return _column("top-1 on Places205" if places else "top-1 on ImageNet", dict(LINEAR), 2 if places else 0)
    if protocol == "semisup" and what == "top5" and at in ("1%", "10%"):
        return _column(f"top-5 on ImageNet, {at} of the labels", dict(SEMI_SUPERVISED), ("1%", "10%").index(at))
    return None
