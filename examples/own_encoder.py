"""Train PCL with a custom encoder: any module that maps images (B, 3, h, w) to features (B, D).

python examples/own_encoder.py FOLDER RUN [EPOCHS]
"""

import sys

from torch import Tensor, nn

import protonce


class Tiny(nn.Module):
    """Three convolutions and global average pooling."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for before, after in ((3, width), (width, 2 * width), (2 * width, 4 * width)):
            layers += [nn.Conv2d(before, after, 3, stride=2, padding=1), nn.BatchNorm2d(after), nn.ReLU()]
        self.layers = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x).mean(dim=(2, 3))  # (B, D)


def main(folder: str, out: str, epochs: int = 20) -> None:
    protonce.train(folder, out, encoder=Tiny(), epochs=epochs)
    run = protonce.load(out, encoder=Tiny())  # also works later, in another program
    print("features", run.embed(folder).features.shape, "prototypes", [len(c.centroids) for c in run.prototypes])


if __name__ == "__main__":
    if len(sys.argv) not in (3, 4):
        sys.exit(__doc__)
    main(sys.argv[1], sys.argv[2], *(int(n) for n in sys.argv[3:]))
