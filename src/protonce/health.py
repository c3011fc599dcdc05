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
    return {
        "clusters": [len(c.centroids) for c in clusters],
        "cluster_entropy": [evenness(c.assignment) for c in clusters],
        "smallest_cluster": [int(torch.bincount(c.assignment).min()) for c in clusters],
        "largest_cluster": [int(torch.bincount(c.assignment).max()) for c in clusters],
        "agreement": [
            nmi(table(old, c.assignment.cpu().numpy())) for c, old in zip(clusters, before, strict=bool(before))
        ],
        "bound_before": bound(features, clusters),
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

    state: Literal["healthy", "collapsed", "diverging", "idle"]
    words: str


COLLAPSED = 1.02  # effective rank; see EARLY for the first epochs
IDLE = 0.98  # loss as a share of its chance level
EARLY = 5  # epochs in which an encoder may look collapsed because it has not learned yet
UNEVEN = 0.8  # entropy of the cluster sizes divided by its maximum
RISEN = 0.1  # by how much the loss, as a share of its chance level, may rise above its minimum


def verdict(records: Sequence[Record], terms: Sequence[str], dim: int) -> Verdict:
    """Judge a run by its lines of metrics.jsonl, at least one of which is of a clustered epoch.

    Args:
        records: one per epoch.
        terms: names of the loss terms. The first one in the last epoch is judged.
        dim: of the embedding.
    """
    clustered = [record for record in records if "effective_rank" in record][-1]
    term = next((term for term in terms if term in records[-1]), "loss")
    # The loss as a share of its chance level, the loss of an untrained or collapsed model. There is no share for
    # warm-up epochs without the term, or if the term has no chance level.
    comparable = [record for record in records if term in record and f"{term}_chance" in record]
    shares = [record[term] / (record[f"{term}_chance"] or record[term] or 1.0) for record in comparable]
    rank = clustered["effective_rank"]
    if rank < COLLAPSED and (not shares or abs(shares[-1] - 1) < 1 - IDLE):  # at the chance level
        advice = "this may be temporary" if len(records) < EARLY else "train again with a smaller lr"
        return Verdict(
            "collapsed",
            f"collapsed: the embeddings of all images are nearly equal (effective rank {rank:.2f} of {dim}); "
            f"{advice}, unless the images themselves are nearly equal",
        )
    loss = _loss(records[-1], term)
    if shares and shares[-1] > min(shares) + RISEN:
        best = comparable[shares.index(min(shares))]["epoch"]
        return Verdict(
            "diverging",
            f"diverging: {loss}, and the loss has increased since epoch {best}; train again with a smaller lr",
        )
    if shares and shares[-1] > IDLE:
        return Verdict("idle", f"nothing learnt yet: {loss}; try more epochs, a larger lr, or weaker augmentation")
    return Verdict("healthy", f"healthy: {loss}; effective rank {rank:.0f} of {dim}; {_clusters(clustered)}")


def _loss(record: Record, term: str) -> str:
    """Describe the loss and its chance level."""
    name = term if term == "loss" else f"{term} loss"
    chance = record.get(f"{term}_chance")
    return f"{name} {record[term]:.2f}" + ("" if chance is None else f" (chance level {chance:.2f})")


def _clusters(record: Record) -> str:
    """Describe the coarsest and the finest clusters."""
    evenness, smallest, largest = (record[f] for f in ("cluster_entropy", "smallest_cluster", "largest_cluster"))
    parts = []
    for m in sorted({0, len(evenness) - 1}):
        text = f"{record['clusters'][m]} clusters of {smallest[m]:,} to {largest[m]:,} images"
        if evenness[m] < UNEVEN:
            text += ", very uneven"
        if record["agreement"]:
            text += f", NMI {record['agreement'][m]:.2f} with the previous clusters"
        parts.append(text)
    return "; ".join(parts)
