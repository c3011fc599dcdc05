"""How far two partitions of the same items agree, clusters and labels say: AMI, NMI, ARI, purity, Hungarian accuracy.

Everything is computed from the table of counts, and only from its cells that are not empty, so that 25,000
clusters of a million images against 1,000 classes are no matter of memory.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

BLOCK = 1 << 22  # terms of the expectation at once


@dataclass(frozen=True)
class Table:
    """Counts of the items that two partitions put together."""

    rows: NDArray[np.int64]  # of each cell that is not empty, (cells,)
    columns: NDArray[np.int64]
    counts: NDArray[np.int64]
    row_sizes: NDArray[np.int64]  # (R,)
    column_sizes: NDArray[np.int64]  # (C,)

    @property
    def n(self) -> int:
        """How many items there are."""
        return int(self.counts.sum())


def table(first: Any, second: Any) -> Table:
    """The table of two partitions, each a sequence of n values that name a part."""
    rows, columns = _codes(first), _codes(second)
    if len(rows) != len(columns) or len(rows) == 0:
        raise ValueError(f"two partitions of the same items are needed, got {len(rows)} and {len(columns)} items")
    width = int(columns.max()) + 1
    cells, counts = np.unique(rows * width + columns, return_counts=True)
    return Table(cells // width, cells % width, counts, np.bincount(rows), np.bincount(columns))


def _codes(values: Any) -> NDArray[np.int64]:
    """Values as whole numbers from 0, each of which occurs; (n,)."""
    array = np.asarray(values)
    if not np.issubdtype(array.dtype, np.integer) or len(array) == 0 or array.min() < 0 or array.max() > 4 * len(array):
        return np.unique(array, return_inverse=True)[1]
    position = np.cumsum(np.bincount(array) > 0) - 1  # without sorting
    codes: NDArray[np.int64] = position[array]
    return codes


def entropy(sizes: NDArray[Any]) -> float:
    """H of a partition into parts of these sizes, in nats."""
    share = sizes[sizes > 0] / sizes.sum()
    return float(-(share * np.log(share)).sum()) + 0.0  # one part: 0, not -0


def mutual_information(t: Table) -> float:
    """I of the two partitions, in nats: the exact value for the items at hand."""
    n = t.n
    expected = t.row_sizes[t.rows] * (t.column_sizes[t.columns] / n)
    return max(float((t.counts / n * np.log(t.counts / expected)).sum()), 0.0)


def expected_mutual_information(t: Table) -> float:
    """E[I] of two random partitions with parts of these sizes (Vinh, Epps and Bailey 2010), in nats.

    A term depends on the sizes of its row and its column alone, so it is computed once for each pair of sizes.
    """
    from scipy.special import gammaln

    n = t.n
    a_sizes, a_times = np.unique(t.row_sizes, return_counts=True)
    b_sizes, b_times = np.unique(t.column_sizes, return_counts=True)
    a, b = (m.ravel() for m in np.meshgrid(a_sizes, b_sizes, indexing="ij"))
    times = np.outer(a_times, b_times).ravel()
    least, most = np.maximum(1, a + b - n), np.minimum(a, b)  # how many items a cell can have
    lengths = most - least + 1
    log_factorial = gammaln(np.arange(n + 1) + 1.0)
    total = 0.0
    for part in _parts(lengths):
        pa, pb, span = a[part], b[part], lengths[part]
        pair = np.repeat(np.arange(len(span)), span)
        start = np.cumsum(span) - span
        k = np.arange(span.sum()) - start[pair] + least[part][pair]  # items in the cell
        pa, pb = pa[pair], pb[pair]
        log_probability = (  # of k in the hypergeometric distribution
            log_factorial[pa]
            + log_factorial[pb]
            + log_factorial[n - pa]
            + log_factorial[n - pb]
            - log_factorial[n]
            - log_factorial[k]
            - log_factorial[pa - k]
            - log_factorial[pb - k]
            - log_factorial[n - pa - pb + k]
        )
        terms = k / n * (np.log(k) + np.log(n) - np.log(pa) - np.log(pb)) * np.exp(log_probability)
        total += float((times[part][pair] * terms).sum())
    return total


def _parts(lengths: NDArray[np.int64]) -> list[slice]:
    """Consecutive parts of at most BLOCK terms each, or of one pair."""
    ends = np.cumsum(lengths)
    slices, start = [], 0
    while start < len(lengths):
        before = ends[start - 1] if start else 0
        stop = max(int(np.searchsorted(ends, before + BLOCK, side="right")), start + 1)
        slices.append(slice(start, stop))
        start = stop
    return slices


def ami(t: Table) -> float:
    """Adjusted mutual information: 1 for equal partitions, 0 on average for independent ones."""
    if len(t.row_sizes) == len(t.column_sizes) == 1 or len(t.row_sizes) == len(t.column_sizes) == t.n:
        return 1.0  # both say nothing, or both tell every item apart
    expected = expected_mutual_information(t)
    most = (entropy(t.row_sizes) + entropy(t.column_sizes)) / 2
    return _ratio(mutual_information(t) - expected, most - expected)


def nmi(t: Table) -> float:
    """Normalised mutual information, by the mean of both entropies."""
    most = (entropy(t.row_sizes) + entropy(t.column_sizes)) / 2
    return 1.0 if most == 0 else mutual_information(t) / most


def ari(t: Table) -> float:
    """Adjusted Rand index: how often two items are together in both or apart in both, adjusted for chance."""
    both, rows, columns = (float((s * (s - 1.0)).sum()) for s in (t.counts, t.row_sizes, t.column_sizes))
    pairs = t.n * (t.n - 1.0)
    expected = rows * columns / pairs if pairs else 0.0
    return _ratio(both - expected, (rows + columns) / 2 - expected)


def purity(t: Table) -> float:
    """Share of items that have the most frequent column of their row: of clusters in rows, the label."""
    most = np.zeros(len(t.row_sizes), dtype=np.int64)
    np.maximum.at(most, t.rows, t.counts)
    return float(most.sum() / t.n)


def hungarian_accuracy(t: Table) -> float:
    """Share of items on the best one-to-one matching of rows and columns."""
    from scipy.optimize import linear_sum_assignment

    dense = np.zeros((len(t.row_sizes), len(t.column_sizes)), dtype=np.int64)
    dense[t.rows, t.columns] = t.counts
    rows, columns = linear_sum_assignment(dense, maximize=True)
    return float(dense[rows, columns].sum() / t.n)


def _ratio(value: float, most: float) -> float:
    """`value / most`; 1 where both are 0, as for two partitions of one part each."""
    tiny = np.finfo(float).eps
    if abs(most) < tiny:
        return 1.0 if abs(value) < tiny else 0.0
    return value / most
