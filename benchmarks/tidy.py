"""Planted copies: precision and recall of the look-alikes that `protonce tidy` finds at its own threshold.

    python -m benchmarks.tidy RUN DATA [DATA ...] [--seeds 0,1,2]

400 photos of DATA are drawn, and copies of 100 of them are added: 20 smaller (30 to 80 % of the sides), 20 recompressed
(quality 20 to 60), 20 brighter (by 15 to 50 %), 20 cropped by a tenth of both sides at any place, and 20 mirrored. The
encoder of RUN looks at these 500. Pairs that were not planted are named: the photos may have copies of their own.
Writes benchmarks/results/tidy.json.
"""

import argparse
import io
import json
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageEnhance

from protonce.data.sources import open_source, random_order
from protonce.files import write_whole
from protonce.importing import import_encoder
from protonce.label.tidy import tidy

RESULT = Path(__file__).parent / "results" / "tidy.json"
PHOTOS, COPIES = 400, 100
Edit = Callable[[Image.Image, np.random.Generator], Image.Image]


def smaller(image: Image.Image, rng: np.random.Generator) -> Image.Image:
    """30 to 80 % of the sides."""
    scale = rng.uniform(0.3, 0.8)
    return image.resize((round(scale * image.width), round(scale * image.height)))


def recompressed(image: Image.Image, rng: np.random.Generator) -> Image.Image:
    """A JPEG of quality 20 to 60."""
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=int(rng.integers(20, 61)))
    return Image.open(buffer).convert("RGB")


def brighter(image: Image.Image, rng: np.random.Generator) -> Image.Image:
    """By 15 to 50 %."""
    return ImageEnhance.Brightness(image).enhance(rng.uniform(1.15, 1.5))


def cropped(image: Image.Image, rng: np.random.Generator) -> Image.Image:
    """By a tenth of both sides, at any place."""
    width, height = round(0.9 * image.width), round(0.9 * image.height)
    x, y = rng.integers(0, image.width - width + 1), rng.integers(0, image.height - height + 1)
    return image.crop((x, y, x + width, y + height))


def mirrored(image: Image.Image, rng: np.random.Generator) -> Image.Image:  # noqa: ARG001
    """Left and right exchanged."""
    return image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)


EDITS: tuple[Edit, ...] = (smaller, recompressed, brighter, cropped, mirrored)


def plant(data: str, folder: Path, seed: int) -> dict[frozenset[str], str]:
    """Write photos and copies to a folder; the kind of copy by the names of both."""
    source = open_source(data, "train", 0)
    rng = np.random.default_rng(seed)
    planted = {}
    for number, i in enumerate(random_order(len(source), "tidy", seed)[:PHOTOS].tolist()):
        image = Image.fromarray(source.load(i))
        image.save(folder / f"{number:03d}.png")
        if number < COPIES:
            edit = EDITS[number % len(EDITS)]
            name = f"{number:03d} {edit.__name__}.png"
            edit(image, rng).save(folder / name)
            planted[frozenset((f"{number:03d}.png", name))] = edit.__name__
    return planted


def study(run: str, data: str, seed: int) -> dict[str, Any]:
    """One draw of photos and copies."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "photos"
        folder.mkdir()
        planted = plant(data, folder, seed)
        made, _ = import_encoder(run, Path(name) / "run", data=str(folder), quiet=True)
        found = tidy(made, quiet=True)
    names = found.source.names
    pairs = {frozenset((names[pair.first], names[pair.second])) for pair in found.pairs}
    hits = Counter(planted[pair] for pair in pairs if pair in planted)
    extra = sorted(sorted(pair) for pair in pairs if pair not in planted)
    usual = sum(count for kind, count in hits.items() if kind != "mirrored")
    return {
        "data": "/".join(Path(data).parts[-2:]),
        "seed": seed,
        "recall": {edit.__name__: hits[edit.__name__] / (COPIES // len(EDITS)) for edit in EDITS},
        "recall_without_mirrored": usual / (COPIES * 4 // 5),
        "precision": sum(hits.values()) / max(len(pairs), 1),
        "not_planted": extra,
        "correlation": found.thresholds.correlation,
    }


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", metavar="RUN")
    parser.add_argument("data", nargs="+", metavar="DATA")
    parser.add_argument("--seeds", type=lambda text: [int(s) for s in text.split(",")], default=[0, 1, 2])
    options = parser.parse_args()
    torch.set_num_threads(1)
    result = json.loads(RESULT.read_text()) if RESULT.exists() else {}
    for data in options.data:
        key = f"{Path(options.run).name}, {'/'.join(Path(data).parts[-2:])}"
        result[key] = [study(options.run, data, seed) for seed in options.seeds]
        print(key, json.dumps(result[key], indent=1), flush=True)
        write_whole(RESULT, json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
