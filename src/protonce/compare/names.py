"""The scores that systems are compared by. Loads no torch, so that `--help` can list them."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Score:
    """A score, and the protocol of `protonce evaluate` that gives it; empty: computed directly."""

    title: str
    protocol: str = ""
    metric: str = ""
    per_cent: bool = True

    def text(self, value: float, signed: bool = False) -> str:
        """The value as in a table, without a unit."""
        scaled, digits = (100 * value, 1) if self.per_cent else (value, 3)
        rounded = round(scaled, digits) + 0.0  # no minus before a zero
        return f"{rounded:+.{digits}f}" if signed else f"{rounded:.{digits}f}"


SCORES = {
    "knn": Score("kNN"),  # finest labels, k = 20, cosine
    "ami": Score("AMI", per_cent=False),  # k-means with as many clusters as finest labels, mean of 5 starts
    "linear": Score("linear", "linear", "top1"),
    "shot_1": Score("1 image a class", "lowshot", "accuracy@1"),
    "shot_4": Score("4 images a class", "lowshot", "accuracy@4"),
    "shot_16": Score("16 images a class", "lowshot", "accuracy@16"),
    "tuned_1": Score("fine-tuned, 1 % of labels", "semisup", "top1@1%"),
    "tuned_10": Score("fine-tuned, 10 % of labels", "semisup", "top1@10%"),
}
PRIMARY = "knn"
HELD_OUT = 0.1  # share of the training images for curves over the training
HELD_OUT_TO_TUNE = 0.2  # the same for the choice among trials
USUAL = ("knn", "ami", "linear", "shot_1", "shot_4", "shot_16")
