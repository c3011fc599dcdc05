"""Local aggregation (Zhuang, Zhai & Yamins, 2019): images move towards their close neighbours, not to all near ones.

"Local Aggregation for Unsupervised Learning of Visual Embeddings". It starts from InstDisc, and clusters the memory
bank once an epoch, as the published code does; so there is no pass over the data.
"""

from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor

from protonce import randomness
from protonce.config import Resolved
from protonce.data.views import ViewSpec
from protonce.kmeans import faiss_has_gpu, k_means
from protonce.methods.bank import BankSystem
from protonce.methods.base import Batch, Term
from protonce.methods.options.localagg import LocalAggOptions
from protonce.noise_contrast import similarities
from protonce.ties import COSINE, highest_set

BLOCK = 1 << 27  # similarities held at once


class LocalAgg(BankSystem):
    """Close and background neighbours in a memory bank."""

    Options = LocalAggOptions
    terms: ClassVar[tuple[str, ...]] = ("instance", "aggregation")

    @classmethod
    def views(cls, settings: Resolved, options: Any) -> tuple[ViewSpec, ...]:  # noqa: ARG003
        """One view."""
        return (ViewSpec("query"),)

    def e_step(self, epoch: int, features: Callable[[], Tensor]) -> Tensor | None:  # noqa: ARG002
        """The cluster g^(j)(i) of each image in each clustering j of the memory bank, (H, n); None in warm-up."""
        if epoch < self.options.warmup_epochs:
            return None
        return self.context.on_first(lambda: self._cluster(epoch))

    def _cluster(self, epoch: int) -> Tensor:
        s, o, points = self.settings, self.options, self.bank.features
        if s.kmeans_engine == "faiss" and not (points.is_cuda and faiss_has_gpu()):
            points = points.cpu()
        generator = randomness.generator(s.seed, "close clusters", epoch)
        found = [
            k_means(
                points,
                o.close_clusters,
                generator=generator,
                iterations=s.kmeans_iterations,
                starts=s.kmeans_starts,
                sample=s.kmeans_points,
                engine=s.kmeans_engine,
            )
            for _ in range(o.clusterings)
        ]
        return torch.stack([clustering.assignment for clustering in found]).int().cpu()

    def m_step(self, batch: Batch, state: Tensor | None) -> tuple[Tensor, dict[str, Term]]:
        """L(C_i, B_i | θ, x_i) (eq. 3) of a batch; InstDisc where there are no clusters."""
        v = self.query(batch.views[0])  # v_i = f_θ(x_i), (b, d)
        self.remember(v, batch.index)
        if state is None:
            instance = self.instance_term(v, batch)
            return instance.loss, {"instance": instance}
        background = background_neighbours(v.detach(), self.bank.features, batch.index, self.options.background)
        close = are_close(state, batch.index, background)  # C_i ∩ B_i, (b, k)
        logits = similarities(v, self.bank.features, background) / self.settings.tau  # (b, k)
        chance = torch.log(background.shape[1] / close.sum(dim=1)).mean()
        aggregation = Term(local_aggregation(logits, close), chance)
        return aggregation.loss, {"aggregation": aggregation}


def background_neighbours(v: Tensor, bank: Tensor, index: Tensor, k: int) -> Tensor:
    """B_i: the k images whose features in the bank are nearest to v_i, the image itself among them; (b, k).

    In the paper v_i is its own nearest neighbour. Its feature in the bank is older and may not be near, so it is taken
    in any case, and C_i ∩ B_i is never empty. Of images at the same distance up to rounding the first are taken.

    Args:
        v: (b, d).
        bank: features of all images, (n, d).
        index: the image of each row, (b,).
        k: at most n are found.
    """
    found = []
    for rows, own in zip(*(x.split(max(BLOCK // len(bank), 1)) for x in (v, index)), strict=True):
        similarity = (rows @ bank.T).scatter_(1, own[:, None], torch.inf)  # (r, n)
        found.append(highest_set(similarity, min(k, len(bank)), COSINE))
    return torch.cat(found)


def are_close(clusters: Tensor, index: Tensor, others: Tensor) -> Tensor:
    """Whether images are in C_i, the union of the clusters of i in all clusterings; (b, k).

    Args:
        clusters: cluster of each image in each clustering, (H, n).
        index: i, the image of each row, (b,).
        others: images for each row, (b, k).
    """
    close = torch.zeros_like(others, dtype=torch.bool)
    for g in clusters:  # g^(j), (n,)
        close |= g[others] == g[index][:, None]
    return close


def local_aggregation(logits: Tensor, close: Tensor) -> Tensor:
    """-log P(C_i ∩ B_i | v_i) / P(B_i | v_i) (eq. 3), averaged over the batch.

    P(A | v) = Σ_{i in A} exp(v_i · v / τ) / Z (eq. 1 and 2), and Z cancels.

    Args:
        logits: v_j · v_i / τ of the background neighbours j in B_i, (b, k).
        close: which of them are in C_i, at least one of each row, (b, k).
    """
    return (logits.logsumexp(dim=1) - logits.masked_fill(~close, -torch.inf).logsumexp(dim=1)).mean()
