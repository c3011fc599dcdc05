"""500-pixel JPEG files to two 224-pixel v2 views, against torchvision's recipe image by image; the same crops.

    python -m benchmarks.views_jpeg

Both sides start from files and end with normalised tensors. Ours decodes once, no larger than the two crops need,
cuts both, and does the rest for the whole batch; theirs decodes once and does everything image by image with Pillow.
The files are parts of scikit-learn's two photographs, so that they are as hard to decode as photographs are.
"""

import tempfile
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from sklearn.datasets import load_sample_images
from torch import Tensor
from torchvision import transforms
from torchvision.transforms import functional

from benchmarks.baselines.pil_views import after_crop
from benchmarks.timing import interleaved, parser, publish
from protonce.auto import DataSize, Machine, resolve
from protonce.config import Settings, read_recipe
from protonce.data.loader import Loader
from protonce.data.sources import open_source
from protonce.data.views import ImageViews, Item

SIZE, BATCH = 224, 64


def main() -> None:
    options = parser(__doc__, threads=1, repeats=9).parse_args()
    torch.set_num_threads(options.threads)
    settings = Settings.from_mapping(read_recipe("pcl-v2"), "the benchmark")
    views = ImageViews(resolve(settings, DataSize(1_281_167, 500), Machine("cpu", False, True, 1)))
    rest = transforms.Compose(after_crop())

    with tempfile.TemporaryDirectory() as folder:
        write_photos(Path(folder))
        loader = Loader(open_source(folder), views)
        files = sorted(Path(folder).iterdir())
        boxes = [views.boxes(item_of(i, file), Image.open(file).size[::-1]) for i, file in enumerate(files)]

        def ours() -> tuple[Tensor, ...]:
            (samples,) = loader.samples(torch.arange(BATCH), epoch=0, batch_size=BATCH)
            return views.train(samples)

        def theirs() -> list[Tensor]:
            pictures = [Image.open(file).convert("RGB") for file in files]
            return [torch.stack([rest(cut(p, b[i])) for p, b in zip(pictures, boxes, strict=True)]) for i in (0, 1)]

        def decoding() -> None:
            for file in files:
                Image.open(file).convert("RGB")

        seconds = interleaved({"protonce": ours, "torchvision": theirs, "decoding alone": decoding}, options.repeats)
    publish(
        "views_jpeg",
        {
            "ratio": seconds["torchvision"] / seconds["protonce"],
            "goal": 2.5,
            "better": "higher",
            "timed": f"{BATCH} JPEG files of 500 x 375 pixels to two v2 views of {SIZE} pixels each, the same crops",
            "images_a_second": {name: BATCH / s for name, s in seconds.items()},
            "threads": options.threads,
            "repeats": options.repeats,
        },
    )


def write_photos(folder: Path) -> None:
    """Parts of photographs, 500 x 375 pixels, of ImageNet's usual quality."""
    rng = np.random.default_rng(0)
    photos = load_sample_images().images  # two of 427 x 640
    for i in range(BATCH):
        photo = photos[i % 2]
        top, left = rng.integers(photo.shape[0] - 375), rng.integers(photo.shape[1] - 500)
        Image.fromarray(photo[top : top + 375, left : left + 500]).save(folder / f"{i:03d}.jpg", quality=92)


def item_of(i: int, file: Path) -> Item:
    return Item(i, seed=0, epoch=0, plain=False, load=lambda: np.array(Image.open(file).convert("RGB")))


def cut(picture: Image.Image, box: np.ndarray) -> Image.Image:
    top, left, height, width = (int(value) for value in box)
    return functional.resized_crop(picture, top, left, height, width, [SIZE, SIZE])


if __name__ == "__main__":
    main()
