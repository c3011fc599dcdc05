"""Agreement of two partitions of the same items, such as clusters and labels: AMI, NMI, ARI, purity, accuracy.

All scores are computed from the non-empty cells of the contingency table, so a million images in 25,000 clusters and
1,000 classes fit in memory.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

BLOCK = 1 << 22  # terms of the expectation held at once


@dataclass(frozen=True)
class Table:
    """Sparse contingency table of two partitions; cells are sorted by row, then by column."""

    rows: NDArray[np.int64]  # row of each non-empty cell, (cells,)
    columns: NDArray[np.int64]
    counts: NDArray[np.int64]
    row_sizes: NDArray[np.int64]  # (R,)
    column_sizes: NDArray[np.int64]  # (C,)

    @property
    def n(self) -> int:
        """Number of items."""
        return int(self.counts.sum())


def table(first: Any, second: Any) -> Table:
    """Contingency table of two partitions, each given by one label per item, (n,)."""
    rows, columns = _codes(first), _codes(second)
    if len(rows) != len(columns) or len(rows) == 0:
        raise ValueError(
            f"both partitions must be of the same items and not empty, got {len(rows)} and {len(columns)} items"
        )
    width = int(columns.max()) + 1
    cells, counts = np.unique(rows * width + columns, return_counts=True)
    return Table(cells // width, cells % width, counts, np.bincount(rows), np.bincount(columns))


def _codes(values: Any) -> NDArray[np.int64]:
    """Values encoded as integers from 0 without gaps, in sorted order; (n,)."""
    array = np.asarray(values)
    if not np.issubdtype(array.dtype, np.integer) or len(array) == 0 or array.min() < 0 or array.max() > 4 * len(array):
        return np.unique(array, return_inverse=True)[1]
    position = np.cumsum(np.bincount(array) > 0) - 1  # no sort needed
    codes: NDArray[np.int64] = position[array]
    return codes


def entropy(sizes: NDArray[Any]) -> float:
    """Entropy H of a partition into parts of these sizes, in nats."""
    share = sizes[sizes > 0] / sizes.sum()
    return float(-(share * np.log(share)).sum()) + 0.0  # 0, not -0, for a single part


def mutual_information(t: Table) -> float:
    """Mutual information I of the two partitions in nats, computed exactly from the counts."""
    n = t.n
    expected = t.row_sizes[t.rows] * (t.column_sizes[t.columns] / n)
    return max(float((t.counts / n * np.log(t.counts / expected)).sum()), 0.0)


def expected_mutual_information(t: Table) -> float:
    """E[I] of two random partitions with the same part sizes (Vinh, Epps and Bailey 2010), in nats.

    A term depends only on the sizes of its row and column, so it is computed once for each pair of sizes.
    """
    from scipy.special import gammaln

    n = t.n
    a_sizes, a_times = np.unique(t.row_sizes, return_counts=True)
    b_sizes, b_times = np.unique(t.column_sizes, return_counts=True)
    a, b = (m.ravel() for m in np.meshgrid(a_sizes, b_sizes, indexing="ij"))
    times = np.outer(a_times, b_times).ravel()
    least, most = np.maximum(1, a + b - n), np.minimum(a, b)  # range of the number of items in a cell
    lengths = most - least + 1
    log_factorial = gammaln(np.arange(n + 1) + 1.0)
    total = 0.0
    for part in _parts(lengths):
        pa, pb, span = a[part], b[part], lengths[part]
        pair = np.repeat(np.arange(len(span)), span)
        start = np.cumsum(span) - span
        k = np.arange(span.sum()) - start[pair] + least[part][pair]  # items in the cell
        pa, pb = pa[pair], pb[pair]
        log_probability = (  # of k under the hypergeometric distribution
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
    """Consecutive slices of at most BLOCK terms each; a single pair may have more."""
    ends = np.cumsum(lengths)
    slices, start = [], 0
    while start < len(lengths):
        before = ends[start - 1] if start else 0
        stop = max(int(np.searchsorted(ends, before + BLOCK, side="right")), start + 1)
        slices.append(slice(start, stop))
        start = stop
    return slices


def ami(t: Table) -> float:
    """Adjusted mutual information: 1 for identical partitions, 0 on average for independent ones."""
    if len(t.row_sizes) == len(t.column_sizes) == 1 or len(t.row_sizes) == len(t.column_sizes) == t.n:
        return 1.0  # both are one part, or both have one item per part
    expected = expected_mutual_information(t)
    most = (entropy(t.row_sizes) + entropy(t.column_sizes)) / 2
    return _ratio(mutual_information(t) - expected, most - expected)


def nmi(t: Table) -> float:
    """Normalised mutual information: I divided by the mean of both entropies."""
    if min(len(t.row_sizes), len(t.column_sizes)) == 1:
        return float(len(t.row_sizes) == len(t.column_sizes))  # a single part has no information, not even by rounding
    return mutual_information(t) / ((entropy(t.row_sizes) + entropy(t.column_sizes)) / 2)


def ari(t: Table) -> float:
    """Adjusted Rand index: share of item pairs on which both partitions agree, adjusted for chance."""
    both, rows, columns = (float((s * (s - 1.0)).sum()) for s in (t.counts, t.row_sizes, t.column_sizes))
    pairs = t.n * (t.n - 1.0)
    expected = rows * columns / pairs if pairs else 0.0
    return _ratio(both - expected, (rows + columns) / 2 - expected)


def purity(t: Table) -> float:
    """Share of items that belong to the most frequent column of their row; with clusters as rows, cluster purity."""
    return float(t.counts[largest_cells(t)].sum() / t.n)


def largest_cells(t: Table) -> NDArray[np.int64]:
    """Index of the cell with the largest count in each row, the first of several; (R,)."""
    order = np.lexsort((t.columns, -t.counts, t.rows))
    _, first = np.unique(t.rows[order], return_index=True)
    return order[first]


def hungarian_accuracy(t: Table) -> float:
    """Share of items matched by the best one-to-one assignment of rows to columns."""
    from scipy.optimize import linear_sum_assignment

    dense = np.zeros((len(t.row_sizes), len(t.column_sizes)), dtype=np.int64)
    dense[t.rows, t.columns] = t.counts
    rows, columns = linear_sum_assignment(dense, maximize=True)
    return float(dense[rows, columns].sum() / t.n)


def _ratio(value: float, most: float) -> float:
    """`value / most`; 1 if both are 0, as for two partitions of one part each."""
    tiny = np.finfo(float).eps
    if abs(most) < tiny:
        return 1.0 if abs(value) < tiny else 0.0
    return value / most
