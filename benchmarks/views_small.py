"""Two v2 views of a batch of 32-pixel images: batched on the device, against torchvision's recipe image by image.

    python -m benchmarks.views_small

Both sides get decoded images (ours an array, theirs PIL images), on as many threads, and give normalised tensors.
"""

import numpy as np
import torch
from PIL import Image

from benchmarks.baselines.pil_views import recipe, two_views
from benchmarks.timing import interleaved, parser, publish
from protonce.auto import DataSize, Machine, resolve
from protonce.config import Settings, read_recipe
from protonce.data import builtin
from protonce.data.crops import Squares
from protonce.data.views import ImageViews, Samples

SIZE, BATCH = 32, 256


def main() -> None:
    options = parser(__doc__, threads=1, repeats=15).parse_args()
    torch.set_num_threads(options.threads)

    drawn, _ = builtin.draw_images("train", 0)
    pictures = [Image.fromarray(image).resize((SIZE, SIZE)) for image in drawn[:BATCH]]
    pixels = torch.from_numpy(np.stack([np.asarray(p) for p in pictures])).permute(0, 3, 1, 2).contiguous()
    sizes, index = torch.full((BATCH, 2), SIZE), torch.arange(BATCH)
    settings = Settings.from_mapping({**read_recipe("small-v2"), "image_size": SIZE}, "the benchmark")
    views = ImageViews(resolve(settings, DataSize(50_000, SIZE), Machine("cpu", False, True, 1)))
    view = recipe(SIZE)

    seconds = interleaved(
        {
            "protonce": lambda: views.train(Samples(Squares(pixels, sizes), index, seed=0, epoch=0)),
            "torchvision": lambda: two_views(pictures, view),
        },
        options.repeats,
    )
    publish(
        "views_small",
        {
            "ratio": seconds["torchvision"] / seconds["protonce"],
            "goal": 4.0,
            "better": "higher",
            "timed": f"two v2 views of each of {BATCH} decoded images of {SIZE} pixels",
            "images_a_second": {name: BATCH / s for name, s in seconds.items()},
            "threads": options.threads,
            "repeats": options.repeats,
        },
    )


if __name__ == "__main__":
    main()
