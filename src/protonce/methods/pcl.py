"""Prototypical Contrastive Learning: algorithm 1 of the paper, the two steps of one epoch."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from protonce import randomness
from protonce.config import Resolved
from protonce.encoder import Encoder, batch_norms, encode_shuffled, twin_of, update_twin
from protonce.losses import proto_nce, sample_candidates
from protonce.memory import Queue
from protonce.prototypes import Prototypes, e_step
from protonce.ranks import Ranks


@dataclass(frozen=True)
class Batch:
    """Two views of each image, which images they are, and where in the training they come.

    Of the B images of a step a rank has its part; a process by itself has all.
    """

    query: Tensor  # (B, ...)
    key: Tensor  # (B, ...)
    index: Tensor  # (B,) on the device of the views
    epoch: int
    step: int


class PCL(nn.Module):
    """The encoder, its momentum twin and the queue of keys; their tensors are the state of the training."""

    def __init__(self, settings: Resolved, encoder: Encoder, n: int) -> None:
        super().__init__()
        self.settings, self.n = settings, n
        self.query: nn.Module = encoder  # f_θ
        self.momentum = twin_of(encoder)  # f_θ', θ' = θ
        self.queue = Queue(settings.queue, settings.dim)
        self._norms = batch_norms(self.query) + batch_norms(self.momentum)
        self.ranks = Ranks()
        self.autocast: Callable[[], AbstractContextManager[object]] = nullcontext
        self._means: list[Tensor] = []  # of the last E-step, from which the next may start

    def sampler(self, epoch: int) -> Tensor:
        """A random order of all images; (n,)."""
        return torch.randperm(self.n, generator=randomness.generator(self.settings.seed, "order", epoch))

    def e_step(self, epoch: int, features: Callable[[], Tensor]) -> list[Prototypes] | None:
        """Prototypes of V' = f_θ'(X) at each granularity; None in warm-up."""
        if epoch < self.settings.warmup_epochs or self.settings.terms == "instance":
            return None
        return self.cluster(epoch, features())

    def cluster(self, epoch: int, features: Tensor) -> list[Prototypes]:
        """The E-step itself, which is also made for the record in epochs that train without prototypes."""
        s = self.settings
        device = self.queue.keys.device if s.kmeans_engine == "torch" else "cpu"
        prototypes = None
        if self.ranks.first:
            with self.ranks.while_others_wait():
                found = e_step(
                    features.to(device),
                    s.clusters,
                    tau=s.tau,
                    alpha=s.alpha,
                    estimate=s.concentration == "estimated",
                    generator=randomness.generator(s.seed, "k-means", epoch),
                    iterations=s.kmeans_iterations,
                    starts=s.kmeans_starts,
                    sample=s.kmeans_points,
                    init=self._means if s.kmeans_init == "warm" else None,
                    engine=s.kmeans_engine,
                )
            prototypes = [c.to("cpu") for c in found]
        prototypes = [c.to(device) for c in self.ranks.from_first(prototypes)]
        self._means = [c.means for c in prototypes]
        return prototypes

    def m_step(self, batch: Batch, state: list[Prototypes] | None) -> tuple[Tensor, dict[str, Tensor]]:
        """ProtoNCE (eq. 11) of a batch; InfoNCE (eq. 1) where there are no prototypes."""
        s = self.settings
        shuffle = randomness.generator(s.seed, "shuffle", batch.epoch, batch.step)
        draw = randomness.generator(s.seed, "negatives", batch.epoch, batch.step)
        turns = [(batch.query, batch.key), (batch.key, batch.query)]
        index = self.ranks.gather(batch.index, s.batch_size)  # of all ranks, (B,)
        pairs, results = [], []
        for query, key in turns if s.queries == "both" else turns[:1]:
            v = self.query(query, max(self.splits // self.ranks.size, 1))  # v = f_θ(x), (B, d)
            with torch.no_grad(), self.autocast():
                keys = encode_shuffled(self.momentum, key, self.splits, shuffle, self.ranks, s.batch_size)
            pairs.append((v, self.ranks.part(keys)))  # v and v' = f_θ'(x), (B, d) each
            # All keys join the queue before any loss: fresh negatives keep a short queue from being told apart by
            # its age, and what a loss has seen must not change before its gradient is taken.
            self.queue.push(keys, index)

        mask = self.queue.mask(batch.index)  # its own keys are no negatives
        prototypes = state or []
        for v, v_ in pairs:
            candidates = [sample_candidates(len(c.centroids), s.negatives, draw) for c in prototypes]
            result = proto_nce(
                v,
                v_,
                self.queue.keys,
                prototypes,
                batch.index,
                tau=s.tau,
                mask=mask,
                candidates=[None if c is None else c.to(v.device) for c in candidates],
                weight=self.weight(batch.epoch),
                instance_term=s.terms != "prototypes",
            )
            logs = {name: value for name, value in result._asdict().items() if value is not None}
            logs["instance_chance"] = torch.log(1 + (~mask).sum(dim=1)).mean()  # log(r + 1): InfoNCE by guessing
            results.append(logs)
        means = {name: torch.stack([r[name] for r in results]).mean() for name in results[0]}
        return means["loss"], {name: value.detach() for name, value in means.items()}

    @property
    def splits(self) -> int:
        """Sub-batches in which batch norm sees the batch of all ranks: one a rank at least."""
        return max(self.settings.bn_splits, self.ranks.size) if self._norms else 1

    def weight(self, epoch: int) -> float:
        """Of the prototype term in this epoch: it grows in equal steps over the ramp."""
        s = self.settings
        return s.prototype_weight * min((epoch - s.warmup_epochs + 1) / (s.ramp_epochs + 1), 1.0)

    def after_step(self) -> None:
        """θ' = m θ' + (1 - m) θ; and what batch norm has seen on each rank becomes one statistic, alike on all."""
        update_twin(self.query, self.momentum, self.settings.twin_momentum)
        statistics = (s for norm in self._norms for s in (norm.running_mean, norm.running_var))
        self.ranks.average(s for s in statistics if s is not None)

    def get_extra_state(self) -> list[Tensor]:
        """For checkpoints: the means from which a warm k-means starts."""
        return self._means

    def set_extra_state(self, state: list[Tensor]) -> None:
        """From a checkpoint."""
        self._means = state
