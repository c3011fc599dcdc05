"""The paper's tables as printed, its figures, and the claims of its text that have a number.

Architectures, parameters and epochs are the table's own where it has such columns, and those of its caption or of
section 4.1 where it has none; what the paper does not say is empty.
"""

from dataclasses import dataclass, field

DESCRIPTION = ("system", "architecture", "parameters", "epochs")  # columns without values


@dataclass(frozen=True)
class Value:
    """A number with the digits that the paper prints, and its mark: `*`, † or ‡."""

    text: str
    mark: str = ""

    @property
    def share(self) -> str:
        """Of per cent the share, as evaluations give it, with the same digits: 46.9 is 0.469."""
        decimals = len(self.text.partition(".")[2]) + 2
        return f"{float(self.text) / 100:.{decimals}f}"


@dataclass(frozen=True)
class Row:
    """A system of a table, and how it was pretrained; what the paper does not say is empty."""

    system: str
    values: tuple[Value | None, ...]
    architecture: str = ""
    parameters: str = ""
    epochs: str = ""

    @property
    def encoder(self) -> str:
        """The encoder, and how it was trained."""
        epochs = f"{self.epochs} epochs" if self.epochs else ""
        return ", ".join(part for part in (self.architecture, self.parameters, epochs) if part)


@dataclass(frozen=True)
class Table:
    """A table of the paper."""

    number: int
    what: str
    columns: tuple[str, ...]  # of the values
    rows: tuple[Row, ...]
    marks: dict[str, str] = field(default_factory=dict)  # what each mark says
    note: str = ""
    per_cent: bool = True

    def column(self, name: str) -> list[tuple[Row, Value]]:
        """The values of a column, and their rows; empty cells are left out."""
        i = self.columns.index(name)
        return [(row, value) for row in self.rows if (value := row.values[i]) is not None]


@dataclass(frozen=True)
class Claim:
    """A number that only the text of the paper gives."""

    where: str
    what: str
    words: str  # the paper's


def _table(
    number: int, what: str, text: str, marks: dict[str, str] | None = None, note: str = "", per_cent: bool = True
) -> Table:
    """Read a table from lines of cells parted by `|`, the header first; `-` is an empty cell."""
    header, *lines = [[cell.strip() for cell in line.split("|")] for line in text.strip().splitlines()]
    columns = tuple(name for name in header if name not in DESCRIPTION)
    rows = []
    for line in lines:
        cells = {name: "" if cell == "-" else cell for name, cell in zip(header, line, strict=True)}
        about = {name: cells[name] for name in DESCRIPTION if name in cells}
        rows.append(Row(values=tuple(_value(cells[name]) for name in columns), **about))
    return Table(number, what, columns, tuple(rows), marks or {}, note, per_cent)


def _value(cell: str) -> Value | None:
    text = cell.rstrip("*†‡")
    return Value(text, cell[len(text) :]) if text else None


TABLES = {  # by their labels in the source of the paper
    "tbl:lowshot_voc": _table(
        1,
        "low-shot classification, linear SVMs on k images per class: mAP on VOC07, accuracy on Places205, per cent",
        """
        system     | architecture  | epochs | VOC07 k=1 | VOC07 k=2 | VOC07 k=4 | VOC07 k=8 | VOC07 k=16 \
| Places205 k=1 | Places205 k=2 | Places205 k=4 | Places205 k=8 | Places205 k=16
        Random     | ResNet-50     | -      |  8.0 |  8.2 |  8.2 |  8.2 |  8.5 |  0.7 |  0.7 |  0.7 |  0.7 |  0.7
        Supervised | ResNet-50     | -      | 54.3 | 67.8 | 73.9 | 79.6 | 82.3 | 14.9 | 21.0 | 26.9 | 32.1 | 36.0
        Jigsaw     | ResNet-50     | -      | 26.5 | 31.1 | 40.0 | 46.7 | 51.8 |  4.6 |  6.4 |  9.4 | 12.9 | 17.4
        MoCo       | ResNet-50     | 200    | 31.4 | 42.0 | 49.5 | 60.0 | 65.9 |  8.8 | 13.2 | 18.2 | 23.2 | 28.0
        PCL        | ResNet-50     | 200    | 46.9 | 56.4 | 62.8 | 70.2 | 74.3 | 11.3 | 15.7 | 19.5 | 24.1 | 28.4
        SimCLR     | ResNet-50-MLP | 200    | 32.7 | 43.1 | 52.5 | 61.0 | 67.1 |  9.4 | 14.2 | 19.3 | 23.7 | 28.3
        MoCo v2    | ResNet-50-MLP | 200    | 46.3 | 58.3 | 64.9 | 72.5 | 76.1 | 10.9 | 16.3 | 20.8 | 26.0 | 30.1
        PCL v2     | ResNet-50-MLP | 200    | 47.9 | 59.6 | 66.2 | 74.5 | 78.3 | 12.5 | 17.5 | 23.2 | 28.1 | 32.3
        """,
        note="mean of 5 runs; Jigsaw was trained on ImageNet-14M, MoCo is the released model, SimCLR re-implemented",
    ),
    "tbl:semi_supervise": _table(
        2,
        "semi-supervised learning, fine-tuning on 1 % or 10 % of ImageNet's labels: top-5, per cent",
        """
        system                  | architecture      | epochs | 1%    | 10%
        Random                  | ResNet-50         | -      | 22.0  | 59.0
        Supervised baseline     | ResNet-50         | -      | 48.4  | 80.4
        Pseudolabels            | ResNet-50v2       | -      | 51.6  | 82.4
        VAT + Entropy Min.      | ResNet-50v2       | -      | 47.0  | 83.4
        S4L Rotation            | ResNet-50v2       | -      | 53.4  | 83.8
        Instance Discrimination | ResNet-50         | 200    | 39.2  | 77.4
        Jigsaw                  | ResNet-50         | 90     | 45.3  | 79.3
        SimCLR                  | ResNet-50-MLP     | 200    | 56.5  | 82.7
        MoCo                    | ResNet-50         | 200    | 56.9  | 83.0
        MoCo v2                 | ResNet-50-MLP     | 200    | 66.3  | 84.4
        PCL v2                  | ResNet-50-MLP     | 200    | 73.9  | 85.0
        PCL                     | ResNet-50         | 200    | 75.3  | 85.6
        PIRL                    | ResNet-50         | 800    | 57.2  | 83.8
        SimCLR                  | ResNet-50-MLP     | 1000   | 75.5† | 87.8†
        BYOL                    | ResNet-50-MLP_big | 1000   | 78.4† | 89.0†
        SwAV                    | ResNet-50-MLP     | 800    | 78.5‡ | 89.9‡
        """,
        {
            "†": "large batch size of 4096 (the caption prints ‡ for it)",
            "‡": "large batch size of 4096, multi-crop augmentation",
        },
    ),
    "tbl:linear": _table(
        3,
        "linear classification: top-1 on ImageNet and Places205, mAP on VOC07, per cent",
        """
        system      | architecture | parameters | epochs | ImageNet | VOC07 | Places205
        Jigsaw      | R50          | 24M        | 90     | 45.7     | 64.5  | 41.2
        Rotation    | R50          | 24M        | -      | 48.9     | 63.9  | 41.4
        DeepCluster | VGG          | 15M        | 100    | 48.4     | 71.9  | 37.9
        BigBiGAN    | R50          | 24M        | -      | 56.6     | -     | -
        InstDisc    | R50          | 24M        | 200    | 54.0     | -     | 45.5
        MoCo        | R50          | 24M        | 200    | 60.6     | 79.2* | 48.9*
        PCL         | R50          | 24M        | 200    | 61.5     | 82.3  | 49.2
        SimCLR      | R50-MLP      | 28M        | 200    | 61.9     | -     | -
        MoCo v2     | R50-MLP      | 28M        | 200    | 67.5     | 84.0* | 50.1*
        PCL v2      | R50-MLP      | 28M        | 200    | 67.6     | 85.4  | 50.3
        LocalAgg    | R50          | 24M        | 200    | 60.2†    | -     | 50.1†
        SelfLabel   | R50          | 24M        | 400    | 61.5     | -     | -
        CPC         | R101         | 28M        | -      | 48.7     | -     | -
        CMC         | R50_L+ab     | 47M        | 280    | 64.0     | -     | -
        PIRL        | R50          | 24M        | 800    | 63.6     | 81.1  | 49.8
        AMDIM       | Custom       | 626M       | 150    | 68.1†    | -     | 55.0†
        SimCLR      | R50-MLP      | 28M        | 1000   | 69.3†    | 80.5† | -
        BYOL        | R50-MLP_big  | 35M        | 1000   | 74.3†    | -     | -
        SwAV        | R50-MLP      | 28M        | 800    | 75.3†    | 88.9† | 56.7†
        """,
        {
            "*": "from the released model; others from their papers",
            "†": "LocalAgg: 10-crop evaluation; AMDIM: FastAutoAugment, supervised by ImageNet labels; "
            "SwAV: multi-crop augmentation; SimCLR, BYOL, SwAV: large batch size of 4096",
        },
    ),
    "tbl:knn": _table(
        4,
        "kNN classification on ImageNet: accuracy, per cent",
        """
        system      | architecture | epochs | accuracy
        Inst. Disc. | ResNet-50    | -      | 46.5
        MoCo        | ResNet-50    | -      | 47.1
        LA          | ResNet-50    | -      | 49.4
        PCL         | ResNet-50    | 200    | 54.5
        """,
    ),
    "tbl:ami": _table(
        5,
        "k-means clustering of ImageNet's training images, k = 25,000: AMI",
        """
        system      | architecture | epochs | AMI
        DeepCluster | -            | -      | 0.281
        MoCo        | -            | -      | 0.285
        PCL         | ResNet-50    | 200    | 0.410
        """,
        per_cent=False,
    ),
    "tbl:detection": _table(
        6,
        "object detection on VOC07 with a frozen body, Faster R-CNN trained on VOC07 or VOC07+12: mAP, per cent",
        """
        system     | architecture  | epochs | VOC07 | VOC07+12
        Supervised | Resnet-50-FPN | -      | 72.8  | 79.3
        MoCo       | Resnet-50-FPN | -      | 66.4  | 73.5
        PCL        | Resnet-50-FPN | 200    | 71.7  | 78.5
        """,
        note="mean of 3 runs; all pretrained on ImageNet-1M",
    ),
    "tbl:ablation": _table(
        7,
        "ablation of ProtoNCE: top-5 after fine-tuning on 1 % of ImageNet's labels, top-1 of a linear classifier, "
        "per cent",
        """
        system                         | architecture | epochs | 1% fine-tuning | linear classification
        instance only                  | ResNet-50    | 200    | 56.9           | 60.6
        proto only (w/o warm-up)       | ResNet-50    | 200    | 60.7           | 60.4
        proto only (w/ warm-up)        | ResNet-50    | 200    | 72.3           | 60.9
        instance + proto (w/o warm-up) | ResNet-50    | 200    | 74.6           | 61.3
        instance + proto (w/ warm-up)  | ResNet-50    | 200    | 75.3           | 61.5
        """,
        note="the first and the last row are those of MoCo and PCL in tables 2 and 3",
    ),
    "tbl:lowshot_std": _table(
        8,
        "standard deviation of table 1 over 5 runs, points",
        """
        system | architecture  | epochs | VOC07 k=1 | VOC07 k=2 | VOC07 k=4 | VOC07 k=8 | VOC07 k=16 \
| Places205 k=1 | Places205 k=2 | Places205 k=4 | Places205 k=8 | Places205 k=16
        PCL    | ResNet-50     | 200    | 4.06 | 2.65 | 2.21 | 0.49 | 0.39 | 0.24 | 0.23 | 0.13 | 0.07 | 0.05
        PCL v2 | ResNet-50-MLP | 200    | 4.12 | 2.70 | 2.17 | 0.54 | 0.38 | 0.26 | 0.23 | 0.12 | 0.08 | 0.04
        """,
    ),
    "tbl:coco": _table(
        9,
        "COCO, Mask R-CNN with a C4 backbone, all layers fine-tuned, 2x schedule: AP of boxes and masks on val2017, "
        "per cent",
        """
        system     | architecture | epochs | AP bb | AP50 bb | AP75 bb | AP mk | AP50 mk | AP75 mk
        Supervised | -            | -      | 40.0  | 59.9    | 43.1    | 34.7  | 56.5    | 36.9
        MoCo       | -            | -      | 40.7  | 60.5    | 44.1    | 35.4  | 57.3    | 37.6
        PCL        | ResNet-50    | 200    | 41.0  | 60.8    | 44.2    | 35.6  | 57.4    | 37.8
        """,
    ),
}
FIGURES = {  # by their labels: number, and what each shows
    "fig:illustration": (1, "an instance and its prototypes of different granularity"),
    "fig:framework": (2, "the training framework"),
    "fig:cluster_MI": (
        3,
        "(a) cluster sizes with fixed or estimated concentration, k = 50,000; (b) information about labels",
    ),
    "fig:tsne": (4, "t-SNE of training images of the first 40 classes, MoCo and PCL"),
    "fig:AMI": (5, "AMI of the clusters over training, k = 25,000, 50,000 and 100,000"),
    "fig:example": (6, "images of fine clusters (k = 100,000) within coarse ones (k = 50,000)"),
}
CLAIMS = (
    Claim("section 2", "accuracy of instance classification", ">90% within 10 epochs"),
    Claim("section 4.1", "cost of the training of PCL", "4 NVIDIA-V100 GPUs and approximately 5 days of training"),
    Claim("section 4.2", "standard deviation of table 2", "across 5 runs is low (<0.6 for 1% labels)"),
    Claim("section 4.5", "table 6 is an average", "the average mAP across three runs"),
)
