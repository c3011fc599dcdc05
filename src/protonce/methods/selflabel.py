"""SeLa (Asano, Rupprecht & Vedaldi, 2020): self-labelling by optimal transport, and learning these labels."""

from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from protonce.config import Resolved
from protonce.data.views import ViewSpec
from protonce.methods.base import Batch, Features, Setup, Term
from protonce.methods.options.selflabel import SelfLabelOptions
from protonce.methods.pretext import Pretext, class_term
from protonce.transport import most_likely, sinkhorn

BLOCK = 4096  # images that a head classifies at once


class SelfLabel(Pretext):
    """Several heads, linear classifiers h of pooled features Φ(x), each with labels of its own for every image."""

    Options = SelfLabelOptions
    terms: ClassVar[tuple[str, ...]] = ("cluster",)
    moving_targets: ClassVar[bool] = True
    labels: Tensor  # y of each head, (heads, n)

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        heads, k = self.options.heads, self.options.k
        self.heads = nn.Linear(self.query.feature_dim, heads * k)
        self.register_buffer("labels", torch.zeros(heads, self.n, dtype=torch.long))

    @classmethod
    def views(cls, settings: Resolved, options: Any) -> tuple[ViewSpec, ...]:  # noqa: ARG003
        """One view."""
        return (ViewSpec("view"),)

    def e_step(self, epoch: int, features: Features) -> Tensor:
        """Step 2, self-labelling: min over Q of eq. 6 for every head, in the epochs of the schedule; (heads, n)."""
        if epoch in label_epochs(self.settings.epochs, self.options.optimizations):
            pooled = features.backbone()  # Φ(x), (n, D)
            self.labels.copy_(self.context.on_first(lambda: self._assign(pooled)))
        return self.labels

    def _assign(self, pooled: Tensor) -> Tensor:
        weights, biases = (p.detach().chunk(self.options.heads) for p in (self.heads.weight, self.heads.bias))
        found = []
        for weight, bias in zip(weights, biases, strict=True):
            log_p = log_shares(pooled, weight, bias)  # (n, k)
            scaling = sinkhorn(log_p, self.options.transport_lambda, weight.device)
            found.append(most_likely(log_p, self.options.transport_lambda, scaling))
        return torch.stack(found)

    def m_step(self, batch: Batch, state: Tensor) -> tuple[Tensor, dict[str, Term]]:
        """Step 1, representation learning: cross-entropy with the labels (eq. 1), averaged over the heads."""
        (x,) = batch.views
        scores = self.heads(self.query.features(x)).view(-1, self.options.k)  # h ∘ Φ(x), (b heads, k)
        term = class_term(scores, state[:, batch.index].T.flatten())
        return term.loss, {"cluster": term}


def log_shares(pooled: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Logarithms of p(y | x_i) of a head for pooled features (n, D), computed on its device; (n, k) on the CPU."""
    log_p = torch.empty(len(pooled), len(weight))
    for start in range(0, len(pooled), BLOCK):
        rows = slice(start, start + BLOCK)
        log_p[rows] = F.linear(pooled[rows].to(weight), weight, bias).log_softmax(dim=1).cpu()
    return log_p


def label_epochs(epochs: int, optimizations: int) -> set[int]:
    """Epochs that begin with new labels: (epochs + 1.01) (i / (N - 1))² for i < N, rounded down; ever rarer.

    The published schedule, but that it has labels within an epoch too, where several fall into one.
    """
    last = max(optimizations - 1, 1)
    times = [(epochs + 1.01) * (i / last) ** 2 for i in range(optimizations)]
    return {int(time) for time in times if time < epochs}
