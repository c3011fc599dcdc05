"""The E-step and ProtoNCE in a custom training loop: an MLP on scikit-learn's digits as plain vectors.

python examples/own_loop.py
"""

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import Tensor, nn

from protonce.losses import proto_nce
from protonce.prototypes import e_step


def main(epochs: int = 20) -> float:
    """Train, and return the purity of the coarsest clusters."""
    digits = load_digits()
    points = torch.tensor(digits.data, dtype=torch.float32) / 16  # (1797, 64)
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(0)
    encoder = nn.Sequential(nn.Linear(64, 256), nn.BatchNorm1d(256), nn.ReLU(), nn.Linear(256, 32))
    optimizer = torch.optim.SGD(encoder.parameters(), lr=0.1, momentum=0.9)

    def embed(x: Tensor) -> Tensor:
        return F.normalize(encoder(x), dim=1)

    def view(x: Tensor) -> Tensor:
        """Mask a third of the pixels and add noise."""
        kept = torch.rand(x.shape, generator=generator) > 0.33
        return x * kept + 0.1 * torch.randn(x.shape, generator=generator)

    for epoch in range(epochs):
        encoder.eval()
        with torch.no_grad():
            features = embed(points)
        prototypes = e_step(features, [20, 40, 80], tau=0.2, generator=generator)
        encoder.train()
        for index in torch.randperm(len(points), generator=generator).split(256)[:-1]:
            query = embed(view(points[index]))
            with torch.no_grad():
                key = embed(view(points[index]))
            own = torch.eye(len(index), dtype=torch.bool)  # the query's own key is not a negative
            result = proto_nce(query, key, key, prototypes, index, tau=0.2, mask=own)
            optimizer.zero_grad()
            result.loss.backward()
            optimizer.step()
        print(f"epoch {epoch + 1}  instance loss {result.instance:.3f}  prototype loss {result.prototype:.3f}")

    label, group = torch.tensor(digits.target), prototypes[0].assignment
    purity = sum(label[group == g].bincount().max().item() for g in group.unique()) / len(label)
    print(f"purity of {len(group.unique())} prototypes: {purity:.2f}")
    return purity


if __name__ == "__main__":
    main()
