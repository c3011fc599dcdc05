"""The ranked systems in one table: each tuned by six trials, then trained with five seeds in equal time.

    python -m benchmarks.table --data builtin
    python -m benchmarks.table --data /usr/share/datasets/fashion-mnist
    python -m benchmarks.table --tune moco-queue,pcl    # these alone, beside another such command

Each system is tuned by `protonce tune` on two choosing seeds, and all are compared by `protonce compare` on the test
images of five others: fresh drawings, or Fashion-MNIST's training images that no study has read. Differences are from
PCL. PCL on SimCLR and on BYOL are trained beside them, not tuned and not ranked: what was chosen for the other system,
and for PCL's prototypes. Takes four to ten core-hours for each data set; what is done is kept in
benchmarks/results/table, and the command continues from there. Writes docs/table.md.
"""

import argparse
import io
import zipfile
from pathlib import Path
from typing import Any

import yaml
from PIL import Image

from benchmarks.claim_cell import images_read
from benchmarks.data import open_parts, unread_parts
from benchmarks.table_text import ABLATION, page
from protonce.compare.comparison import compare
from protonce.config import read_config
from protonce.data.sources import Source
from protonce.files import write_whole
from protonce.tune import tune

RESULTS = Path("benchmarks") / "results" / "table"  # from the root of the project
PAGE = Path("docs") / "table.md"
OWN = Path(__file__).parent / "table_rows"
RANKED = ["instdisc", "moco-queue", "moco-in-batch", "simclr", "byol", "swav", "deepcluster", "rotation", "pcl"]
BOUNDS = ["random", "supervised"]
PROTOTYPES = ("clusters", "concentration", "prototype_weight")  # of PCL's trials, what the ablation takes
CHOOSING, FINAL = [100, 101], [30, 31, 32, 33, 34]
SETTINGS: dict[str, Any] = {
    "recipe": "small-v2",
    "backbone": "resnet10t",
    "width": 16,
    "image_size": 24,
    "jitter": [0.4, 0.4, 0.0, 0.0],
    "grey_p": 0.0,
    "tau": 0.1,
    "batch_size": 128,
    "lr": 0.12,
    "record_every": 1000,  # clusters for the record alone
}
MINUTES = 1.5  # of one core's CPU time: 25 to 70 epochs of MoCo on 3,000 images, by the core
TESTED = 10_000  # of Fashion-MNIST


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="builtin", help="builtin, or the folder of Fashion-MNIST's idx files")
    parser.add_argument("--tune", metavar="ROWS", type=lambda text: text.split(","), help="tune these rows, and stop")
    parser.add_argument("--jobs", type=int, help="trainings at a time (one a core)")
    options = parser.parse_args()
    name = Path(options.data).name
    folder = RESULTS / name
    given = {**SETTINGS, "minutes": MINUTES, "jobs": options.jobs, **_images(options.data, folder / "runs")}
    data, chosen = given.pop("data"), []
    for row in options.tune or RANKED:
        own = OWN / f"{row}.yaml"
        tune(data, folder / row, str(own) if own.exists() else row, seeds=CHOOSING, **given)
        chosen.append(str(folder / row / f"{row}.yaml"))
    if not options.tune:
        chosen += [str(_on_pcl(row, base, folder)) for row, base in ABLATION.items()]
        compare(data, folder / "final", [*chosen, *BOUNDS], FINAL, baseline="pcl", **given)
    write_whole(PAGE, page(RESULTS))
    print(PAGE)


def _on_pcl(row: str, base: str, folder: Path) -> Path:
    """A file of settings: what was chosen for the system that PCL stands on, and for PCL's prototypes."""
    prototypes = {k: v for k, v in read_config(folder / "pcl" / "pcl.yaml").items() if k in PROTOTYPES}
    path = folder / "ablation" / f"{row}.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    own = {**read_config(folder / base / f"{base}.yaml"), **prototypes, "method": row}
    write_whole(path, yaml.safe_dump(own, sort_keys=False))
    return path


def _images(data: str, folder: Path) -> dict[str, Any]:
    """What is trained and tested on; of Fashion-MNIST two archives of images, as anyone's would be."""
    if data == "builtin":
        return {"data": data}
    train, test = folder / "train.zip", folder / "test.zip"
    if not (train.exists() and test.exists()):
        source, _ = open_parts(data, seed=0)
        # The first 10,000 that were not read test fashion-mnist-in-batch.yaml and fashion-mnist-queue.yaml.
        seen, unread = unread_parts(source, images_read("fashion-mnist"), TESTED, skipped=10_000)
        folder.mkdir(parents=True, exist_ok=True)
        _write(seen, train)
        _write(unread, test)
    return {"data": str(train), "test": str(test), "limit": 3333}


def _write(source: Source, path: Path) -> None:
    """A .zip with a folder for each class."""
    assert source.labels is not None
    part = path.with_suffix(".part")
    with zipfile.ZipFile(part, "w") as archive:
        for i, label in enumerate(source.labels):
            buffer = io.BytesIO()
            Image.fromarray(source.load(i)).save(buffer, format="png")
            archive.writestr(f"{label}/{source.names[i]}.png", buffer.getvalue())
    part.replace(path)


if __name__ == "__main__":
    main()
