"""MoCo (He et al., 2020): contrast each query with a queue of keys from a momentum encoder (InfoNCE, eq. 1)."""

from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from protonce import randomness
from protonce.context import Progress
from protonce.encoder import Encoder
from protonce.losses import accuracy, instance_logits, nce
from protonce.memory import Queue
from protonce.methods.base import Batch, Setup, System, Term
from protonce.methods.options.moco import MoCoOptions
from protonce.momentum import encode_keys, twin_of, update_twin


class Pair(NamedTuple):
    """Queries and keys of the same images."""

    v: Tensor  # f_θ(x), (b, d)
    v_: Tensor  # v' = f_θ'(x'), (b, d)
    mask: Tensor  # True where a key of the queue is no negative, (b, r)


class MoCo(System):
    """Twin, queue, and the pair (v, v')."""

    Options = MoCoOptions
    terms: ClassVar[tuple[str, ...]] = ("instance",)
    momentum: Encoder

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self.momentum = twin_of(self.query)  # f_θ', θ' = θ
        start = randomness.generator(self.settings.seed, "queue") if self.options.queue_start == "random" else None
        self.queue = Queue(self.options.queue, self.query.dim, start)
        self._fresh: list[tuple[Tensor, Tensor]] = []  # keys (B, d) and images (B,) that are yet to join the queue

    def m_step(self, batch: Batch, state: Any) -> tuple[Tensor, dict[str, Term]]:  # noqa: ARG002
        """InfoNCE (eq. 1) of a batch."""
        turns = [self.instance_term(pair) for pair in self.pairs(batch)]
        instance = mean_term(turns)
        return instance.loss, {"instance": instance}

    def pairs(self, batch: Batch) -> list[Pair]:
        """(v, v') of each turn: the first view is the query; with `queries` both, the second in its turn."""
        if self.options.twin_update == "next":  # in the first step θ' = θ, and stays so
            self._update_twin()
        x, x_ = batch.views
        shuffle = self.context.generator("shuffle", batch.progress)
        index = self.context.gather(batch.index)  # (B,)
        pairs, self._fresh = [], []
        for query, key in [(x, x_), (x_, x)] if self.options.queries == "both" else [(x, x_)]:
            v = self.query(query)  # v = f_θ(x), (b, d)
            keys = encode_keys(self.momentum, key, self.context, shuffle)  # v' = f_θ'(x'), (B, d)
            pairs.append((v, self.context.part(keys)))
            self._fresh.append((keys, index))
        # What a loss has seen must not change before its gradient is taken: all keys join the queue before any loss
        # of the batch, or after the step. Before it, fresh negatives keep a short queue from being told apart by age.
        if self.options.queue_push == "before":
            self._push()
        masked = self.queue.mask if self.options.own_keys == "masked" else self.queue.empty
        mask = masked(batch.index)  # (b, r)
        return [Pair(v, v_, mask) for v, v_ in pairs]

    def _push(self) -> None:
        for keys, index in self._fresh:
            self.queue.push(keys, index)
        self._fresh = []

    def instance_term(self, pair: Pair) -> Term:
        """Eq. 1; its chance level is log(r + 1)."""
        logits = instance_logits(pair.v, pair.v_, self.queue.keys, self.settings.tau, pair.mask)  # (b, 1 + r)
        chance = torch.log(1 + (~pair.mask).sum(dim=1)).mean()
        return Term(nce(logits), chance, accuracy(logits))

    def after_step(self, progress: Progress) -> None:  # noqa: ARG002
        """θ' = m θ' + (1 - m) θ; with `queue_push` after, the keys of the batch join the queue."""
        self._push()
        if self.options.twin_update == "after":
            self._update_twin()

    def _update_twin(self) -> None:
        update_twin(self.query, self.momentum, self.options.twin_momentum)


def mean_term(turns: list[Term]) -> Term:
    """The mean of a term over the turns of a batch."""
    parts = [values for values in zip(*turns, strict=True) if values[0] is not None]
    return Term(*(torch.stack([torch.as_tensor(v) for v in values]).mean() for values in parts))
