"""Monitor a run without labels: metrics for `metrics.jsonl`, and a verdict in words."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from protonce.agreement import nmi, table
from protonce.losses import prototype_logits
from protonce.prototypes import Prototypes

SAMPLE = 10_000  # images over which eq. 10 is averaged; its matrix is images x prototypes
BLOCK = 1 << 24  # entries of this matrix held at once

Record = Mapping[str, Any]  # a line of metrics.jsonl


def after_e_step(features: Tensor, clusters: Sequence[Prototypes], before: Sequence[NDArray[Any]]) -> dict[str, Any]:
    """Metrics of the clusters of an epoch; lists have one entry per granularity.

    Args:
        features: V', which were clustered, (n, d).
        clusters: the resulting prototypes.
        before: assignments (n,) of the previous clustered epoch; empty in the first.
    """
    found = [c.assignment for c in clusters]
    return {**of_clusters(found, before), "bound_before": bound(features, clusters)}


def of_clusters(found: Sequence[Tensor], before: Sequence[NDArray[Any]]) -> dict[str, Any]:
    """Number, sizes and stability of clusters; lists have one entry per granularity.

    Args:
        found: assignments (n,), in which every cluster occurs.
        before: assignments (n,) of earlier clusters; empty if there are none.
    """
    sizes = [torch.bincount(assignment) for assignment in found]
    return {
        "clusters": [len(size) for size in sizes],
        "cluster_entropy": [evenness(assignment) for assignment in found],
        "smallest_cluster": [int(size.min()) for size in sizes],
        "largest_cluster": [int(size.max()) for size in sizes],
        "single_clusters": [int((size == 1).sum()) for size in sizes],
        "agreement": [nmi(table(old, new.cpu().numpy())) for new, old in zip(found, before, strict=bool(before))],
    }


def after_m_step(features: Tensor, clusters: Sequence[Prototypes]) -> dict[str, float]:
    """Metrics after the M-steps of an epoch.

    Args:
        features: V' at the end of the epoch, (n, d).
        clusters: the epoch's prototypes.
    """
    return {"bound_after": bound(features, clusters), "effective_rank": effective_rank(features)}


def information(logs: Mapping[str, float], terms: Sequence[str]) -> dict[str, float]:
    """Chance level minus loss of the first term; for InfoNCE a lower bound on the information in nats (sec. 3.4).

    Empty for a term without a chance level, or in an epoch without the term.
    """
    term = terms[0] if terms else ""
    known = term in logs and f"{term}_chance" in logs
    return {"information": logs[f"{term}_chance"] - logs[term]} if known else {}


def bound(features: Tensor, clusters: Sequence[Prototypes]) -> float:
    """Eq. 10 over all prototypes, for momentum features in place of v, averaged over images and granularities.

    It is the negative of the bound of the convergence proof, up to constants. At most SAMPLE evenly spaced images are
    used.
    """
    n = len(features)
    chosen = torch.arange(n) if n <= SAMPLE else torch.linspace(0, n - 1, SAMPLE).long()
    total = 0.0
    for c in clusters:
        for block in chosen.split(max(BLOCK // len(c.centroids), 1)):
            v = features[block].to(c.centroids.device)  # (b, d)
            logits = prototype_logits(v, c.centroids, c.concentration, c.assignment[block])  # (b, 1 + k)
            total += float(F.cross_entropy(logits, torch.zeros_like(c.assignment[block]), reduction="sum"))
    return total / (len(chosen) * len(clusters))


def evenness(assignment: Tensor) -> float:
    """Entropy of the cluster sizes divided by its maximum, log k; 1: all clusters have the same size."""
    sizes = torch.bincount(assignment).cpu().double()  # Apple's GPUs have no float64
    share = sizes / sizes.sum()
    return float(torch.special.entr(share).sum() / math.log(len(sizes))) if len(sizes) > 1 else 1.0


def effective_rank(features: Tensor) -> float:
    """Effective rank of features (n, d): exp of the entropy of the spectrum of Σ v vᵀ (Roy & Vetterli 2007).

    1: all features are equal up to their sign, the encoder has collapsed; d: they are uniform on the sphere.
    """
    moment = (features.T @ features).cpu().double()  # (d, d), not centred: a common direction counts as collapse
    spectrum = torch.linalg.eigvalsh(moment).clamp(min=0)
    return float(torch.special.entr(spectrum / spectrum.sum()).sum().exp())


class Verdict(NamedTuple):
    """Health of a run, in a word and in a sentence."""

    state: Literal["healthy", "collapsed", "diverging", "idle", "fragmented", "untrained"]
    words: str


# docs/health.md says why.
COLLAPSED = 1.02  # effective rank
LOW_RANK = 1.5  # effective rank; untrained encoders had 1.6 to 2.2
IDLE = 0.9  # loss as a share of its chance level; an untrained encoder is at 0.98
EARLY = 5  # epochs in which an encoder may look collapsed because it has not learned yet
UNEVEN = 0.8  # entropy of the cluster sizes divided by its maximum
SINGLE = 0.5  # share of the clusters that may hold a single image
RISEN = 0.1  # by how much the loss, as a share of its chance level, may rise above its minimum


def verdict(
    records: Sequence[Record],
    terms: Sequence[str],
    dim: int,
    final: Record | None = None,
    *,
    trains: bool = True,
    moving: bool = False,
) -> Verdict:
    """Judge a run by its lines of metrics.jsonl, at least one of which is of a clustered epoch.

    Args:
        records: one per epoch.
        terms: names of the loss terms. Those of the last epoch are judged, the first more strictly.
        dim: of the embedding.
        final: `of_clusters` of the run's prototypes; None: it has none yet, and the last clustered epoch is described.
        trains: whether the system learns anything.
        moving: whether the targets of the first term move too, so that its loss may rise.
    """
    clustered = [record for record in records if "effective_rank" in record][-1]
    rank = clustered["effective_rank"]
    named = [term for term in terms if term in records[-1]] or ["loss"]
    shares = {} if moving else _shares(records, named[0])
    share = shares.get(records[-1]["epoch"])
    losses = {term: _loss(records[-1], term) for term in named}
    directions = f"effective rank {rank:.{0 if rank >= 10 else 1 if rank >= 2 else 2}f} of {dim}"
    clusters = final or clustered
    if not trains:
        return Verdict("untrained", f"untrained: initial weights; {directions}; {_clusters(clusters)}")
    single = _single(clusters)
    also = f"; moreover, {single}" if single else ""
    if rank < COLLAPSED and (share is None or share > IDLE):
        advice = "this may be temporary" if len(records) < EARLY else "train again with a smaller lr"
        return Verdict(
            "collapsed",
            f"collapsed: the embeddings of all images are nearly equal ({directions}); {advice}, unless the images "
            f"themselves are nearly equal{also}",
        )
    best = min(shares, key=lambda epoch: shares[epoch], default=0)
    if share is not None and share > shares[best] + RISEN:
        increased = f"{losses[named[0]]}, and the loss has increased since epoch {best}"
        return Verdict("diverging", f"diverging: {increased}; train again with a smaller lr{also}")
    # Later terms are fitted to targets that move, such as clusters: they are wrong only if no better than chance.
    weak = [losses[term] for term in named[0 if moving else 1 :] if (_share(records[-1], term) or 0) >= 1]
    if share is not None and share > IDLE:
        weak.insert(0, losses[named[0]])
    if rank < LOW_RANK:
        weak.append(f"{directions}, so the embeddings of all images are similar")
    if weak:
        advice = "try more epochs, a larger lr, or weaker augmentation"
        return Verdict("idle", f"little learnt yet: {', '.join(weak)}; {advice}{also}")
    described = f"{', '.join(losses.values())}; {directions}"
    if single:
        return Verdict("fragmented", f"fragmented: {single}; {described}")
    return Verdict("healthy", f"healthy: {described}; {_clusters(clusters)}")


def _share(record: Record, term: str) -> float | None:
    """A loss as a share of its chance level, the loss of an encoder that tells nothing apart.

    None for warm-up epochs without the term, and for a term without a chance level.
    """
    if term not in record or f"{term}_chance" not in record:
        return None
    return float(record[term] / (record[f"{term}_chance"] or record[term] or 1.0))


def _shares(records: Sequence[Record], term: str) -> dict[int, float]:
    """The shares by epoch, of the epochs that have one."""
    found = {record["epoch"]: _share(record, term) for record in records}
    return {epoch: share for epoch, share in found.items() if share is not None}


def _loss(record: Record, term: str) -> str:
    """Describe the loss and its chance level."""
    name = term if term == "loss" else f"{term} loss"
    chance = record.get(f"{term}_chance")
    return f"{name} {record[term]:.2f}" + ("" if chance is None else f" (chance level {chance:.2f})")


def _single(record: Record) -> str:
    """Say so if most clusters of a granularity hold a single image; empty if not."""
    numbers, largest = record["clusters"], record["largest_cluster"]
    # Earlier versions did not count them.
    counts = record.get("single_clusters", [k if most == 1 else 0 for k, most in zip(numbers, largest, strict=True)])
    for k, count in zip(numbers, counts, strict=True):
        if count > SINGLE * k:
            return f"{count:,} of {k:,} clusters hold a single image; choose fewer clusters"
    return ""


def _clusters(record: Record) -> str:
    """Describe the coarsest and the finest clusters."""
    evenness, smallest, largest = (record[f] for f in ("cluster_entropy", "smallest_cluster", "largest_cluster"))
    parts = []
    for m in sorted({0, len(evenness) - 1}):
        size = f"{smallest[m]:,} to {largest[m]:,}" if smallest[m] < largest[m] else f"{largest[m]:,}"
        text = f"{record['clusters'][m]:,} clusters of {size} images"
        if evenness[m] < UNEVEN:
            text += ", very uneven"
        if record["agreement"]:
            text += f", NMI {record['agreement'][m]:.2f} with the previous clusters"
        parts.append(text)
    return "; ".join(parts)
