"""Optimal transport of all images to labels of equal shares, by Sinkhorn-Knopp (Asano et al., 2020; Cuturi, 2013).

Images are rows here, and columns in the paper.
"""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

BLOCK = 1 << 22  # entries of P^λ that exist at once
TOLERANCE = 0.1  # Σ_i |β_i / β_i' - 1| over the n images at which iterations end, as in the published code
LONGEST = 1000  # iterations
LARGE = 10.0  # logarithm of a factor


class Scaling(NamedTuple):
    """Factors of the solution Q = diag(β) P^λ diag(α), eq. 7, by their logarithms."""

    labels: Tensor  # log α, (k,)
    images: Tensor  # log β, (n,)


@torch.no_grad()
def sinkhorn(
    log_p: Tensor,
    power: float,
    device: torch.device | str = "cpu",
    tolerance: float = TOLERANCE,
    longest: int = LONGEST,
) -> Scaling:
    """Scale P^λ so that each row of Q sums to 1/n and each column to 1/k: α = 1/(β P^λ)/k, β = 1/(P^λ α)/n, eq. 7.

    P^λ is computed block by block: memory is linear in n.

    Args:
        log_p: logarithms of p(y | x_i), (n, k).
        power: λ.
        device: where blocks are computed.
        tolerance: largest Σ_i |β_i / β_i' - 1| of the iteration that is the last.
        longest: number of iterations, at least 1.
    """
    n, k = log_p.shape
    kernel = _Kernel(log_p, power, device)
    alpha, beta = torch.ones_like(kernel.labels), torch.full_like(kernel.images, 1 / n)
    for _ in range(longest):
        alpha = 1 / (k * kernel.left(beta))
        new = 1 / (n * kernel.right(alpha))
        change = (beta / new - 1).abs().sum()
        beta = new
        if change <= tolerance:
            break
        if max(alpha.log().abs().max(), (n * beta).log().abs().max()) > LARGE:
            kernel.absorb(alpha, beta)
            beta = torch.ones_like(beta)
    kernel.absorb(alpha, beta)
    return Scaling(kernel.labels, kernel.images)


@torch.no_grad()
def most_likely(log_p: Tensor, power: float, scaling: Scaling) -> Tensor:
    """The label to which most of each image is transported, argmax_y Q; (n,) on the CPU."""
    alpha = scaling.labels
    return torch.cat([(power * log_p[rows].to(alpha) + alpha).argmax(dim=1).cpu() for rows in _slices(*log_p.shape)])


class _Kernel:
    """P^λ with factors of rows and columns in it, so that it neither underflows nor overflows where it matters.

    At first they make 1 the largest entry of each row, and then of each column. The published code uses P^λ itself, of
    which double precision has nothing left where log p is below -30.
    """

    def __init__(self, log_p: Tensor, power: float, device: torch.device | str) -> None:
        precise = torch.float if torch.device(device).type == "mps" else torch.double  # Apple's GPUs have no float64
        self.log_p, self.power = log_p, power
        self.labels = torch.zeros(log_p.shape[1], dtype=precise, device=device)  # log of the factors
        self.images = torch.zeros(log_p.shape[0], dtype=precise, device=device)
        self.images = torch.cat([-block.amax(dim=1) for _, block in self._logarithms()])
        self.labels = -torch.stack([block.amax(dim=0) for _, block in self._logarithms()]).amax(dim=0)
        self._hold()

    def left(self, beta: Tensor) -> Tensor:
        """β P^λ, (k,)."""
        return torch.stack([beta[rows] @ block for rows, block in self._blocks()]).sum(dim=0)

    def right(self, alpha: Tensor) -> Tensor:
        """P^λ α, (n,)."""
        return torch.cat([block @ alpha for _, block in self._blocks()])

    def absorb(self, alpha: Tensor, beta: Tensor) -> None:
        """Multiply by diag(β) and diag(α)."""
        self.labels = self.labels + alpha.log()
        self.images = self.images + beta.log()
        self._hold()

    def _hold(self) -> None:
        """Keep a single block: it would be computed anew in each iteration."""
        self._held: list[tuple[slice, Tensor]] = []
        if len(_slices(*self.log_p.shape)) == 1:
            self._held = list(self._blocks())

    def _blocks(self) -> Iterator[tuple[slice, Tensor]]:
        yield from self._held or ((rows, block.exp()) for rows, block in self._logarithms())

    def _logarithms(self) -> Iterator[tuple[slice, Tensor]]:
        for rows in _slices(*self.log_p.shape):
            yield rows, self.power * self.log_p[rows].to(self.labels) + self.labels + self.images[rows, None]  # (b, k)


def _slices(n: int, k: int) -> list[slice]:
    size = max(BLOCK // k, 1)
    return [slice(start, start + size) for start in range(0, n, size)]
