"""Cluster a folder of images: train, then print the images closest to each prototype.

python examples/own_images.py FOLDER RUN [EPOCHS]
"""

import sys
from pathlib import Path

import numpy as np

import protonce


def main(folder: str, out: str, epochs: int = 100) -> None:
    run = protonce.train(folder, out, epochs=epochs)
    names = run.embed(folder).names
    for which, distance in [run.assign(folder)[0]]:  # the coarsest granularity
        for prototype in np.unique(which):
            members = np.flatnonzero(which == prototype)
            nearest = members[np.argsort(distance[members])][:5]
            print(f"prototype {prototype}: {len(members)} images, for example", ", ".join(names[i] for i in nearest))
    print("results are in", Path(out).resolve())


if __name__ == "__main__":
    if len(sys.argv) not in (3, 4):
        sys.exit(__doc__)
    main(sys.argv[1], sys.argv[2], *(int(n) for n in sys.argv[3:]))
