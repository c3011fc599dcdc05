"""Does what PCL learnt from the images help to find objects on them? Blood cells, with three frozen backbones.

    python -m benchmarks.detection VOC:bccd_voc/BCCD lite0.pth [--out runs/detection]

The same architecture, EfficientNet-Lite0, with random weights, with those that PCL learnt from the training images
without labels, and with those of lite0.pth, trained on ImageNet with labels (`benchmarks.lite0` writes it). Three
trainings of a Faster R-CNN for each, with one learning rate for all, which was not chosen by any score. Takes one to
two hours of one core; what is done is kept in --out. Writes benchmarks/results/detection.json.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import torch

import protonce
from protonce.data.object_sources import open_objects
from protonce.evaluate.protocols import evaluate
from protonce.files import write_whole
from protonce.importing import import_encoder
from protonce.run import Run

RESULT = Path(__file__).parent / "results" / "detection.json"
ENCODER = {"backbone": "tf_efficientnet_lite0", "image_size": 96, "mean": [0.5] * 3, "std": [0.5] * 3}
# With the default head and rate the loss of these photos, which are much alike, stayed at chance level for 28 epochs.
PCL: dict[str, Any] = {"recipe": "photos-v2", "epochs": 100, "batch_size": 32, "head": "mlp-bn", "lr": 0.1, **ENCODER}
DETECTOR: dict[str, Any] = {"size": 128, "longest": 200, "regions": 64, "epochs": 8, "lr": 0.005, "runs": 3}


def encoders(data: str, weights: str, out: Path) -> dict[str, Run]:
    """The runs, made once."""
    files = [str(file) for file in open_objects(data, "train").files]
    made = {}
    for name, file in (("random", "untrained"), ("pretrained", weights)):
        if not (out / name / "encoder.json").exists():
            import_encoder(file, out / name, quiet=True, **ENCODER)
        made[name] = protonce.load(out / name)
    made["pcl"] = protonce.train(files, out / "pcl", resume=True, **PCL)
    return {name: made[name] for name in ("random", "pcl", "pretrained")}


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", metavar="DATA", help="VOC:ROOT")
    parser.add_argument("weights", metavar="WEIGHTS", help="a file of EfficientNet-Lite0's weights")
    parser.add_argument("--out", type=Path, default=Path("runs") / "detection")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = {}
    for name, run in encoders(options.data, options.weights, options.out).items():
        found = evaluate(run, "detection", train=options.data, again=False, **DETECTOR)
        rows[name] = {"metrics": found["metrics"], "by_class": found["details"]["by_class"]}
        rows[name] |= {"health": run.health.words} if run.metrics else {}
        print(name, {metric: round(value["mean"], 3) for metric, value in found["metrics"].items()}, flush=True)
        write_whole(RESULT, json.dumps({"detector": DETECTOR, "pcl": PCL, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
