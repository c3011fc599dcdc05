"""Is a run going well? Signals that need no labels, in numbers for `metrics.jsonl` and in words for people."""

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

SAMPLE = 10_000  # images over which eq. 10 is averaged: its matrix is images x prototypes
BLOCK = 1 << 24  # of its entries at once

Record = Mapping[str, Any]  # a line of metrics.jsonl


def after_e_step(features: Tensor, clusters: Sequence[Prototypes], before: Sequence[NDArray[Any]]) -> dict[str, Any]:
    """The clusters of an epoch, in numbers; lists have an entry a granularity.

    Args:
        features: V' that were clustered, (n, d).
        clusters: what came of it.
        before: the assignments (n,) of the last epoch that was clustered; none in the first.
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
    """What the M-steps of an epoch did.

    Args:
        features: V' at the epoch's end, (n, d).
        clusters: the epoch's prototypes.
    """
    return {"bound_after": bound(features, clusters), "effective_rank": effective_rank(features)}


def information(logs: Mapping[str, float], terms: Sequence[str]) -> dict[str, float]:
    """What the first term has learnt, at least: of InfoNCE the nats that a view tells of the other (sec. 3.4).

    It is the chance level minus the loss. Nothing for a term without a chance level, or in an epoch without the term.
    """
    term = terms[0] if terms else ""
    known = term in logs and f"{term}_chance" in logs
    return {"information": logs[f"{term}_chance"] - logs[term]} if known else {}


def bound(features: Tensor, clusters: Sequence[Prototypes]) -> float:
    """Eq. 10 over all prototypes, for momentum features in place of v, averaged over images and granularities.

    It is the negative of the bound of the convergence proof, but for constants. Up to SAMPLE images, evenly spread
    over the data.
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
    """Entropy of the cluster sizes as a share of the most it could be, log k; 1: all are of one size."""
    sizes = torch.bincount(assignment).cpu().double()  # Apple's GPUs have no float64
    share = sizes / sizes.sum()
    return float(torch.special.entr(share).sum() / math.log(len(sizes))) if len(sizes) > 1 else 1.0


def effective_rank(features: Tensor) -> float:
    """Directions that features (n, d) really use: exp of the entropy of the spectrum of Σ v vᵀ (Roy & Vetterli 2007).

    1: all features are alike up to their sign, the encoder has collapsed; d: they fill the sphere evenly.
    """
    moment = (features.T @ features).cpu().double()  # (d, d), not centred: a common direction counts as collapse
    spectrum = torch.linalg.eigvalsh(moment).clamp(min=0)
    return float(torch.special.entr(spectrum / spectrum.sum()).sum().exp())


class Verdict(NamedTuple):
    """How a run goes, in a word and in a sentence or two."""

    state: Literal["healthy", "collapsed", "diverging", "idle"]
    words: str


COLLAPSED = 1.02  # effective rank; in the first epochs a sound encoder may be as low, see EARLY
IDLE = 0.98  # loss as a share of its chance level
EARLY = 5  # epochs in which an encoder may look collapsed because it has not learnt yet
UNEVEN = 0.8  # entropy of the cluster sizes as a share of the most
RISEN = 0.1  # by how much that share may rise above its lowest


def verdict(records: Sequence[Record], terms: Sequence[str], dim: int) -> Verdict:
    """Judge a run by its lines of metrics.jsonl, of which at least one was clustered.

    Args:
        records: one an epoch.
        terms: of the loss, as the system names them. The first that the last epoch has is judged.
        dim: of the embedding.
    """
    clustered = [record for record in records if "effective_rank" in record][-1]
    term = next((term for term in terms if term in records[-1]), "loss")
    # The loss as a share of its chance level, which an untrained and a collapsed model have. A warm-up may not have
    # the term, and a term may have no level: then there is no share.
    alike = [record for record in records if term in record and f"{term}_chance" in record]
    shares = [record[term] / (record[f"{term}_chance"] or record[term] or 1.0) for record in alike]
    rank = clustered["effective_rank"]
    if rank < COLLAPSED and (not shares or abs(shares[-1] - 1) < 1 - IDLE):  # at chance, no better and no worse
        cure = "this may pass" if len(records) < EARLY else "start again with a smaller lr"
        return Verdict(
            "collapsed",
            f"collapsed: all images look alike to the encoder (effective rank {rank:.2f} of {dim}); "
            f"{cure}, unless the images are in fact alike",
        )
    told = _told(records[-1], term)
    if shares and shares[-1] > min(shares) + RISEN:
        best = alike[shares.index(min(shares))]["epoch"]
        return Verdict(
            "diverging",
            f"diverging: {told}, and the loss has grown since epoch {best}; start again with a smaller lr",
        )
    if shares and shares[-1] > IDLE:
        return Verdict(
            "idle", f"nothing learnt yet: {told}; give it more epochs, a larger lr, or views that change less"
        )
    return Verdict("healthy", f"healthy: {told}; effective rank {rank:.0f} of {dim}; {_clusters(clustered)}")


def _told(record: Record, term: str) -> str:
    """The loss and its chance level in words."""
    name = term if term == "loss" else f"{term} loss"
    chance = record.get(f"{term}_chance")
    return f"{name} {record[term]:.2f}" + ("" if chance is None else f" (chance level {chance:.2f})")


def _clusters(record: Record) -> str:
    """The coarsest and the finest clusters in words."""
    evenness, smallest, largest = (record[f] for f in ("cluster_entropy", "smallest_cluster", "largest_cluster"))
    parts = []
    for m in sorted({0, len(evenness) - 1}):
        text = f"{record['clusters'][m]} clusters of {smallest[m]:,} to {largest[m]:,} images"
        if evenness[m] < UNEVEN:
            text += ", very uneven"
        if record["agreement"]:
            text += f", NMI {record['agreement'][m]:.2f} with those before"
        parts.append(text)
    return "; ".join(parts)
