"""The numbers the paper prints, as data, to stand beside yours: ResNet-50 after 200 epochs of ImageNet."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Printed:
    """A score of the paper, by system."""

    what: str
    scores: dict[str, float]


KNN = Printed(
    "kNN accuracy on ImageNet", {"Inst. Disc.": 0.465, "MoCo": 0.471, "Local Aggregation": 0.494, "PCL": 0.545}
)
AMI = Printed("AMI of k-means, k = 25,000, on ImageNet", {"DeepCluster": 0.281, "MoCo": 0.285, "PCL": 0.410})

BESIDE = {  # by protocol and metric: what stands beside it
    ("knn", "accuracy"): KNN,
    ("comparison", "knn"): KNN,
    ("comparison", "ami"): AMI,
}
