"""Hierarchical clustering of clients by vectors of their weights; for the aggregator, which has scipy.

Average linkage on cosine distance: Filippakopoulos et al., Personalization in Distributed tinyML Applications
via Adaptive Clustered Federated Learning. Ward linkage on Euclidean distance: Ward, JASA 58, 1963, as in
Yeganeh et al., arXiv:2207.03448. Both give merge heights that never fall, so a cut is a number of merges,
taken from the lowest on.

The same vectors in the same order give the same clusters: sort clients by id. Of merges of equal height the
one of the earlier clients comes first. A client alone is one cluster; identical clients merge at height 0.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from edgefl.types import Array, Labels

Matrix = NDArray[np.float64]
ROUNDING_DECIMALS = 12
HEIGHT_TOLERANCE = 1e-9
THIN_MARGIN_SHARE = 0.1


@dataclass(frozen=True)
class Cut:
    """Clusters of clients: labels int64[n] from 0 on, numbered by their first client.

    at: the height of the cut; below: that of the last merge taken, 0 when there is none; above: that of the
    next, None when no merge is left. Heights are in units of the distance. merges: all of them, see
    `linkage`; similarity: float64[n, n], the cosine of what was compared, where the one who cuts says so.
    centers: float64[clusters, d], by which a client that arrives later is placed.
    """

    labels: Labels
    height: float
    last_height: float
    next_height: float | None
    merges: Matrix
    similarity: Matrix | None = None
    centers: Matrix | None = None

    @property
    def count(self) -> int:
        """The number of clusters."""
        return int(self.labels.max(initial=-1)) + 1

    @property
    def margin(self) -> float | None:
        """What lies between the last merge taken and the next; None when no merge is left."""
        return None if self.next_height is None else self.next_height - self.last_height


def cosine_similarity(vectors: Sequence[Array]) -> Matrix:
    """Return the cosine of each two of n vectors of one length, float64[n, n].

    A vector of zeros is like others of zeros alone.
    """
    matrix = np.asarray(vectors, np.float64).reshape(len(vectors), -1)
    norms = np.linalg.norm(matrix, axis=1, keepdims=True)
    units = np.divide(matrix, norms, out=np.zeros_like(matrix), where=norms > 0)
    similarity = np.clip(units @ units.T, -1.0, 1.0)
    zero = norms[:, 0] == 0
    similarity[np.ix_(zero, zero)] = 1.0
    np.fill_diagonal(similarity, 1.0)
    return np.asarray(similarity)


def cosine_distance(vectors: Sequence[Array]) -> Matrix:
    """Return 1 - cosine of each two of n vectors, float64[n, n]."""
    return 1.0 - cosine_similarity(vectors)


def euclidean_distance(vectors: Sequence[Array]) -> Matrix:
    """Return the Euclidean distance of each two of n vectors of one length, float64[n, n]."""
    from scipy.spatial.distance import pdist, squareform

    matrix = np.asarray(vectors, np.float64).reshape(len(vectors), -1)
    return np.asarray(squareform(pdist(matrix))) if len(matrix) > 1 else np.zeros((len(matrix), len(matrix)))


def average_unit_vectors(vectors: Sequence[Array], labels: Labels) -> Matrix:
    """Return the mean of each cluster's vectors, each scaled to length 1: float64[clusters, d].

    A vector's dot product with it is the vector's length times its mean cosine similarity to the cluster's
    members: the measure of average linkage.
    """
    matrix = np.asarray(vectors, np.float64).reshape(len(vectors), -1)
    norms = np.linalg.norm(matrix, axis=1, keepdims=True)
    return average_vectors(np.divide(matrix, norms, out=np.zeros_like(matrix), where=norms > 0), labels)


def average_vectors(vectors: Sequence[Array] | Matrix, labels: Labels) -> Matrix:
    """Return the mean of each cluster's vectors: float64[clusters, d]."""
    matrix = np.asarray(vectors, np.float64).reshape(len(vectors), -1)
    return np.stack([matrix[labels == label].mean(axis=0) for label in range(int(labels.max()) + 1)])


def find_most_similar_cluster(vector: Array, centers: Matrix) -> int:
    """Return the cluster of highest mean cosine similarity, by `mean_units`; the lowest of several."""
    return int(
        np.argmax(
            np.round(
                centers @ vector.astype(np.float64) / max(float(np.linalg.norm(vector)), 1e-30),
                ROUNDING_DECIMALS,
            )
        )
    )


def find_nearest_cluster(vector: Array, centers: Matrix) -> int:
    """Return the cluster of the nearest mean, by Euclidean distance; the lowest of several."""
    return int(
        np.argmin(np.round(np.linalg.norm(centers - vector.astype(np.float64), axis=1), ROUNDING_DECIMALS))
    )


def build_linkage(distances: Matrix, method: Literal["average", "ward"]) -> Matrix:
    """Return the merges of n clients from the lowest to the highest, float64[n - 1, 4], in scipy's form.

    A row holds the two that merge (a client's index, or n + i for the outcome of row i), the height, and the
    number of clients in the outcome. distances: float64[n, n]; Ward's method takes Euclidean ones.
    """
    from scipy.cluster.hierarchy import linkage as merge

    if len(distances) < 2:
        return np.zeros((0, 4))
    # rounded, since the last bits of a sum depend on the machine and would decide between equal distances
    return np.asarray(
        merge(np.round(distances[np.triu_indices(len(distances), 1)], ROUNDING_DECIMALS), method)
    )


def cut_at(merges: Matrix, distance: float) -> Cut:
    """Take each merge of a height up to `distance`."""
    return _cut(merges, int(np.searchsorted(merges[:, 2], distance + HEIGHT_TOLERANCE, "right")), distance)


def cut_into(merges: Matrix, count: int) -> Cut:
    """Take as many merges as leave `count` clusters: one for each client when there are fewer clients, one
    when count is below 1.
    """
    return _cut(merges, min(max(len(merges) + 1 - max(count, 1), 0), len(merges)))


def cut_widest(merges: Matrix, limit: float | None = None) -> Cut:
    """Cut in the widest gap between one merge and the next, the highest of equals, among the upper half of
    the merges.

    The lower half is always taken, so that n clients give at most (n + 1) / 2 clusters. Without this bound
    the gap between the two lowest merges may win: chance makes two clients much more similar than all others.
    Where there is no gap (equal heights, or fewer than three clients) all clients are one cluster.

    Args:
        merges: see `linkage`.
        limit: no merge above this height is taken, also of the lower half. None: no limit.
    """
    heights = merges[:, 2]
    most = len(merges) if limit is None else int(np.searchsorted(heights, limit + HEIGHT_TOLERANCE, "right"))
    least = (len(merges) + 1) // 2
    gaps = np.diff(heights)[max(least, 1) - 1 : most]  # the first is the gap above merge `least`
    if most <= least or not len(gaps) or gaps.max() <= HEIGHT_TOLERANCE:
        return _cut(merges, most)
    return _cut(merges, least + len(gaps) - 1 - int(np.argmax(gaps[::-1])))


def explain_cut(
    clients: int, clusters: int, height: float, last_height: float, next_height: float | None
) -> tuple[str, str]:
    """Return what a cut did, in words, and a warning, empty when there is no reason for one.

    There is when the cut parts nobody or everybody, and when a cut a tenth higher or lower would give other
    clusters.
    """
    following = (
        "no merge is left"
        if next_height is None
        else f"the next is at {next_height:.4g}, a margin of {next_height - last_height:.4g}"
    )
    summary = (
        f"{clusters} clusters of {clients} clients, cut at {height:.4g}: the last merge is at "
        f"{last_height:.4g}, "
        f"{following}"
    )
    remedy = "train more epochs or at a higher learning rate before clustering, or cut elsewhere"
    if clients > 1 and clusters == 1:
        return summary, f"all {clients} clients are in one cluster; to part them, {remedy}"
    if clients > 1 and clusters == clients:
        return summary, f"each of {clients} clients is a cluster of its own; to join them, {remedy}"
    if (
        next_height is not None
        and min(height - last_height, next_height - height) < THIN_MARGIN_SHARE * height
    ):
        return (
            summary,
            f"the margin is thin: the last merge is at {last_height:.4g}, the cut at {height:.4g}, the "
            f"next merge at "
            f"{next_height:.4g}; {remedy}",
        )
    return summary, ""


def _cut(merges: Matrix, num_merges: int, height: float | None = None) -> Cut:
    last_height = float(merges[num_merges - 1, 2]) if num_merges else 0.0
    next_height = float(merges[num_merges, 2]) if num_merges < len(merges) else None
    if height is None:
        height = last_height if next_height is None else (last_height + next_height) / 2
    return Cut(_label_clients(merges, num_merges), height, last_height, next_height, merges)


def _label_clients(merges: Matrix, num_merges: int) -> Labels:
    n = len(merges) + 1
    members = {client: [client] for client in range(n)}
    for row in range(num_merges):
        left, right = merges[row, :2].astype(int)
        members[n + row] = members.pop(left) + members.pop(right)
    labels = np.empty(n, np.int64)
    for label, group in enumerate(sorted(members.values(), key=min)):
        labels[group] = label
    return labels
