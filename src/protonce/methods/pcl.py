"""Prototypical Contrastive Learning: algorithm 1 of the paper, the two steps of one epoch."""

import math
from collections.abc import Callable, Sequence
from typing import ClassVar

import torch
from torch import Tensor

from protonce.losses import agreeing, prototype_term, sample_candidates, sample_with_batch
from protonce.memory import KeyAverage
from protonce.methods.base import Batch, Features, Setup, System, Term
from protonce.methods.moco import MoCo, mean_term
from protonce.methods.options.pcl import PCLOptions
from protonce.prototypes import Prototypes, cluster

COMPARED_EVERY = 10  # epochs after which the bank is compared with a pass over the images


class PrototypeTerm(System):
    """The E-step, and the second term of ProtoNCE, for any system that has embeddings v of a batch."""

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self._means: list[Tensor] = []  # of the last E-step, from which the next may start

    def e_step(self, epoch: int, features: Callable[[], Tensor]) -> list[Prototypes] | None:
        """Prototypes of V' = f_θ'(X) at each granularity; None in warm-up."""
        warming_up = epoch < self.options.warmup_epochs
        if warming_up and self.settings.kmeans_init != "warm":  # else each k-means starts from the one before
            return None
        v_ = features()  # (n, d)
        prototypes = self.context.on_first(lambda: cluster(v_, self.settings, epoch, self._means))
        self._means = [c.means for c in prototypes]
        return None if warming_up else prototypes

    def prototypes(self, state: list[Prototypes] | None) -> list[Prototypes] | None:
        """What the E-step found, without what has no images and is a negative only."""
        return None if state is None else [c.occupied for c in state]

    def prototype_term(
        self,
        v: Tensor,
        prototypes: list[Prototypes],
        index: Tensor,
        draw: torch.Generator,
        counted: list[Tensor] | None = None,
    ) -> Term:
        """Eq. 10 averaged over the granularities; its chance level is the mean of log(1 + negatives).

        Args:
            v: embeddings, (b, d).
            prototypes: what the E-step found.
            index: which images they are, (b,).
            draw: draws the negative prototypes; alike on all ranks.
            counted: 1 for the images that count, else 0, (b,) for each granularity; None: all count.
        """
        if self.options.negative_prototypes != "others":
            found = self._published_term(v, prototypes, index, draw, counted)
        else:
            drawn = [sample_candidates(len(c.centroids), self.options.negatives, draw) for c in prototypes]
            candidates = [None if c is None else c.to(index.device) for c in drawn]
            found = Term(*_term(v, prototypes, index, candidates, counted))
        return found if counted is None else found._replace(share=torch.stack(counted).mean())

    def _published_term(
        self,
        v: Tensor,
        prototypes: list[Prototypes],
        index: Tensor,
        draw: torch.Generator,
        counted: list[Tensor] | None,
    ) -> Term:
        """The term with the published candidates: one set for the batch, or for each of its parts."""
        parts = self.settings.bn_splits if self.options.negative_prototypes == "published-parts" else 1
        terms, end = [], -self.context.first_row
        for images in self.context.gather(index).tensor_split(parts):
            start, end = end, end + len(images)
            # Drawn for the parts of other ranks too, so that all ranks draw alike.
            sizes = [(c.assignment[images], len(c.centroids)) for c in prototypes]
            candidates = [sample_with_batch(own, k, self.options.negatives, draw) for own, k in sizes]
            rows = slice(max(start, 0), max(end, 0))  # of the part, those on this rank
            share = len(index[rows]) / len(index)
            if share > 0:
                own = None if counted is None else [c[rows] for c in counted]
                terms.append([share * value for value in _term(v[rows], prototypes, index[rows], candidates, own)])
        return Term(*(sum(values) for values in zip(*terms, strict=True)))

    def proto_nce(
        self,
        instance: dict[str, Term],
        embeddings: list[Tensor],
        prototypes: list[Prototypes],
        batch: Batch,
        counted: Sequence[list[Tensor] | None] | None = None,
    ) -> tuple[Tensor, dict[str, Term]]:
        """Eq. 11: the terms of the instance system, if any, and the prototype term, a mean over the embeddings v.

        Args:
            instance: terms of the instance system by name; none is appendix A, "proto only".
            embeddings: v, (b, d) each, L2-normalised.
            prototypes: what the E-step found.
            batch: of which images they are.
            counted: of each embedding, see `prototype_term`; None: all images count.
        """
        draw = self.context.generator("negatives", batch.progress)
        turns = zip(embeddings, counted or [None] * len(embeddings), strict=True)
        prototype = mean_term([self.prototype_term(v, prototypes, batch.index, draw, own) for v, own in turns])
        losses = [self.options.instance_weight * term.loss for term in instance.values()]
        loss = torch.stack([*losses, self.weight(batch.progress.epoch) * prototype.loss]).sum()
        return loss, {**instance, "prototype": prototype}

    def weight(self, epoch: int) -> float:
        """Factor of the prototype term in this epoch: it grows in equal steps over the ramp."""
        o = self.options
        grown: float = min((epoch - o.warmup_epochs + 1) / (o.ramp_epochs + 1), 1.0)
        return float(o.prototype_weight * grown)

    def get_extra_state(self) -> list[Tensor]:
        """For checkpoints: the means from which a warm k-means starts."""
        return self._means

    def set_extra_state(self, state: list[Tensor]) -> None:
        """From a checkpoint."""
        self._means = state


def _term(
    v: Tensor,
    prototypes: list[Prototypes],
    index: Tensor,
    candidates: Sequence[Tensor | None],
    counted: list[Tensor] | None,
) -> tuple[Tensor, Tensor | float, Tensor]:
    """Loss, chance level and accuracy."""
    loss, right = prototype_term(v, prototypes, index, candidates, counted)
    # A query has as many logits as there are candidates: it drops one of them, and has its own prototype.
    levels = [math.log(len(c.centroids if d is None else d)) for c, d in zip(prototypes, candidates, strict=True)]
    if counted is None:
        return loss, sum(levels) / len(levels), right
    return loss, torch.stack([level * c.mean() for level, c in zip(levels, counted, strict=True)]).mean(), right


class PCL(PrototypeTerm, MoCo):
    """MoCo, and the prototype term."""

    Options = PCLOptions
    terms: ClassVar[tuple[str, ...]] = ("instance", "prototype")

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self.bank = KeyAverage(self.n, self.query.dim) if self.options.e_step_features == "bank" else None

    def e_step(self, epoch: int, features: Callable[[], Tensor]) -> list[Prototypes] | None:
        """Prototypes of V', or of the bank; None in warm-up, and until the bank has all images.

        After the last epoch they are those of V' in any case, because new images are assigned to the run's prototypes.
        """
        bank = self.bank
        if bank is None or epoch == self.settings.epochs:
            return super().e_step(epoch, features)
        bank.grow_older()
        return super().e_step(epoch, lambda: bank.features) if bank.complete else None

    def clustered(self, features: Features) -> Tensor:
        """V' = f_θ'(X), or the bank once it has all images, (n, d)."""
        return features() if self.bank is None or not self.bank.complete else self.bank.features

    def signals(self, epoch: int, features: Features) -> dict[str, float]:
        """Of the bank: the mean age of its images, and every ten epochs its mean cosine with V', which takes a pass."""
        if self.bank is None or not self.bank.complete:
            return {}
        found = {"bank_age": float(self.bank.age.double().mean())}
        if epoch % COMPARED_EVERY == 0 or epoch == self.settings.epochs - 1:
            found["bank_cosine"] = float((self.bank.features * features()).sum(dim=1).mean())
        return found

    def _push(self) -> None:
        if self.bank is not None:
            for keys, index in self._fresh:
                self.bank.update(index, keys, self.options.bank_momentum)
        super()._push()

    def m_step(self, batch: Batch, state: list[Prototypes] | None) -> tuple[Tensor, dict[str, Term]]:
        """ProtoNCE (eq. 11) of a batch; InfoNCE (eq. 1) where there are no prototypes."""
        if state is None:
            return super().m_step(batch, state)
        pairs = self.pairs(batch)
        if self.options.cluster_keys == "masked":  # false negatives, by the finest prototypes
            kin = self.queue.of_cluster(batch.index, state[-1].assignment)  # (b, r)
            pairs = [pair._replace(mask=pair.mask | kin) for pair in pairs]
        proto_only = self.options.terms == "prototypes"
        instance = {} if proto_only else {"instance": mean_term([self.instance_term(pair) for pair in pairs])}
        counted = [self._counted(pair.v_, state, batch) for pair in pairs]
        return self.proto_nce(instance, [pair.v for pair in pairs], state, batch, counted)

    def _counted(self, v_: Tensor, prototypes: list[Prototypes], batch: Batch) -> list[Tensor] | None:
        """1 for the images that count in the prototype term, else 0, (b,) for each granularity; None: all count.

        Keys decide, never queries: a query would leave out what it has yet to learn.
        """
        if self.options.gate == "all":
            return None
        found = [agreeing(v_, batch.index, c) for c in prototypes]
        if self.options.gate == "agreeing":
            return found
        draw = self.context.generator("gate", batch.progress)
        order = torch.randperm(self.settings.batch_size, generator=draw).to(v_.device)
        return [self.context.part(self.context.gather(own)[order]) for own in found]
