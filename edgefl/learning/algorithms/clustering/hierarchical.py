"""Hierarchical clustering of clients by vectors of their weights.

This module needs scipy, which the aggregator has, and `cut_silhouette` needs scikit-learn. Average and single
linkage on cosine distance and Ward linkage on Euclidean distance give merge heights that never fall. A cut is
therefore a number of merges, counted from the lowest.

The same vectors in the same order give the same clusters, so sort clients by id. Among merges of equal
height, the merge of the earlier clients comes first. A single client is one cluster. Identical clients merge
at height 0.

Source: average linkage: Filippakopoulos et al., Personalization in Distributed tinyML Applications via
Adaptive Clustered Federated Learning. Ward linkage: Ward, JASA 58, 1963, as in Yeganeh et al.,
arXiv:2207.03448. Single linkage: Sattler et al., arXiv:1910.01991, algorithm 1.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from edgefl.base.types import Array, Labels

Matrix = NDArray[np.float64]
ROUNDING_DECIMALS = 12
HEIGHT_TOLERANCE = 1e-9
THIN_MARGIN_SHARE = 0.1
MIN_SILHOUETTE = 0.5
"""Minimum mean silhouette of two or more clusters.

Kaufman and Rousseeuw call a structure up to 0.25 not substantial, up to 0.5 weak and possibly artificial, and
above it reasonable.

Source: L. Kaufman and P. Rousseeuw, Finding Groups in Data, 1990, table 4 of chapter 2.
"""


@dataclass(frozen=True)
class Cut:
    """Clusters of n clients. Heights are in units of the distance.

    Attributes:
        labels: the cluster of each client, shape (n,), int64. Clusters count from 0 in the order of their
            first client.
        height: the height of the cut.
        last_height: the height of the last merge below the cut, 0 without such a merge.
        next_height: the height of the first merge above the cut, None without such a merge.
        merges: all merges, see `build_linkage`.
        similarity: cosine similarity of the compared vectors, shape (n, n), float64, if the caller adds it.
        centers: center of each cluster, shape (clusters, d), float64. A client that arrives later is assigned
            by them.
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
        """The distance between the last merge below the cut and the next merge, None without a next merge."""
        return None if self.next_height is None else self.next_height - self.last_height


def cosine_similarity(vectors: Sequence[Array]) -> Matrix:
    """Return the cosine similarity of each pair of vectors.

    A vector of zeros is similar only to other vectors of zeros.

    Args:
        vectors: n vectors of equal length, float32.

    Returns:
        The similarities, shape (n, n), float64, from -1 to 1.
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
    """Return 1 - cosine similarity of each pair of vectors.

    Args:
        vectors: n vectors of equal length, float32.

    Returns:
        The distances, shape (n, n), float64, from 0 to 2.
    """
    return 1.0 - cosine_similarity(vectors)


def euclidean_distance(vectors: Sequence[Array]) -> Matrix:
    """Return the Euclidean distance of each pair of vectors.

    Args:
        vectors: n vectors of equal length, float32.

    Returns:
        The distances, shape (n, n), float64.
    """
    from scipy.spatial.distance import pdist, squareform

    matrix = np.asarray(vectors, np.float64).reshape(len(vectors), -1)
    return np.asarray(squareform(pdist(matrix))) if len(matrix) > 1 else np.zeros((len(matrix), len(matrix)))


def average_unit_vectors(vectors: Sequence[Array], labels: Labels) -> Matrix:
    """Return the mean of each cluster's vectors after each vector is scaled to length 1.

    The dot product of a vector with this mean is the vector's length times its mean cosine similarity to the
    cluster's members. Average linkage uses the same measure.

    Args:
        vectors: n vectors of equal length d, float32.
        labels: the cluster of each vector, shape (n,), int64.

    Returns:
        The means, shape (clusters, d), float64.
    """
    matrix = np.asarray(vectors, np.float64).reshape(len(vectors), -1)
    norms = np.linalg.norm(matrix, axis=1, keepdims=True)
    return average_vectors(np.divide(matrix, norms, out=np.zeros_like(matrix), where=norms > 0), labels)


def average_vectors(vectors: Sequence[Array] | Matrix, labels: Labels) -> Matrix:
    """Return the mean of each cluster's vectors.

    Args:
        vectors: n vectors of equal length d, float32 or float64.
        labels: the cluster of each vector, shape (n,), int64.

    Returns:
        The means, shape (clusters, d), float64.
    """
    matrix = np.asarray(vectors, np.float64).reshape(len(vectors), -1)
    return np.stack([matrix[labels == label].mean(axis=0) for label in range(int(labels.max()) + 1)])


def find_most_similar_cluster(vector: Array, centers: Matrix) -> int:
    """Return the cluster with the highest mean cosine similarity, the lowest number among equals.

    Args:
        vector: the vector of a client, shape (d,), float32.
        centers: result of `average_unit_vectors`, shape (clusters, d), float64.
    """
    return int(
        np.argmax(
            np.round(
                centers @ vector.astype(np.float64) / max(float(np.linalg.norm(vector)), 1e-30),
                ROUNDING_DECIMALS,
            )
        )
    )


def find_nearest_cluster(vector: Array, centers: Matrix) -> int:
    """Return the cluster with the nearest center by Euclidean distance, the lowest number among equals.

    Args:
        vector: the vector of a client, shape (d,), float32.
        centers: result of `average_vectors`, shape (clusters, d), float64.
    """
    return int(
        np.argmin(np.round(np.linalg.norm(centers - vector.astype(np.float64), axis=1), ROUNDING_DECIMALS))
    )


def build_linkage(distances: Matrix, method: Literal["average", "single", "ward"]) -> Matrix:
    """Return the merges of n clients from the lowest to the highest, in the form of scipy's linkage.

    Args:
        distances: the distances, shape (n, n), float64. Ward's method needs Euclidean distances.
        method: `average`, `single` or `ward`.

    Returns:
        The merges, shape (n - 1, 4), float64. A row holds the two merged clusters, the height, and the number
            of clients in the result. A merged cluster is the index of a client, or n + i for the result of
            row i.
    """
    from scipy.cluster.hierarchy import linkage as merge

    if len(distances) < 2:
        return np.zeros((0, 4))
    # Rounded, because the last bits of a sum depend on the machine and would decide between equal distances.
    return np.asarray(
        merge(np.round(distances[np.triu_indices(len(distances), 1)], ROUNDING_DECIMALS), method)
    )


def cut_at(merges: Matrix, distance: float) -> Cut:
    """Cut the merges at a height: each merge up to `distance` is applied.

    Args:
        merges: float64[n - 1, 4], see `build_linkage`.
        distance: height of the cut.
    """
    return _cut(merges, int(np.searchsorted(merges[:, 2], distance + HEIGHT_TOLERANCE, "right")), distance)


def cut_into(merges: Matrix, count: int) -> Cut:
    """Cut the merges so that `count` clusters remain.

    With fewer clients than `count`, each client is a cluster. With a `count` below 1, there is one cluster.

    Args:
        merges: float64[n - 1, 4], see `build_linkage`.
    """
    return _cut(merges, min(max(len(merges) + 1 - max(count, 1), 0), len(merges)))


def cut_widest(merges: Matrix, limit: float | None = None) -> Cut:
    """Cut in the widest gap between two successive merges in the upper half of the merges.

    The highest of equally wide gaps wins. All merges of the lower half are applied, so n clients form at most
    (n + 1) / 2 clusters. Without this bound, the gap between the two lowest merges may win, because chance
    makes two clients much more similar than all others. If there is no gap (equal heights, or fewer than
    three clients), all clients are one cluster.

    Args:
        merges: float64[n - 1, 4], see `build_linkage`.
        limit: no merge above this height is applied, even in the lower half. None means no limit.
    """
    heights = merges[:, 2]
    max_merges = (
        len(merges) if limit is None else int(np.searchsorted(heights, limit + HEIGHT_TOLERANCE, "right"))
    )
    min_merges = (len(merges) + 1) // 2
    # The first gap is above merge `min_merges`.
    gaps = np.diff(heights)[max(min_merges, 1) - 1 : max_merges]
    if max_merges <= min_merges or not len(gaps) or gaps.max() <= HEIGHT_TOLERANCE:
        return _cut(merges, max_merges)
    return _cut(merges, min_merges + len(gaps) - 1 - int(np.argmax(gaps[::-1])))


def cut_silhouette(merges: Matrix, distances: Matrix) -> Cut:
    """Cut the merges into the number of clusters with the highest mean silhouette, from 2 to n - 1.

    The silhouette of a client compares its mean distance a to its own cluster with the least mean distance b
    to another cluster: (b - a) / max(a, b). It is 0 for a cluster of one client. The lowest number of equally
    good ones wins. All clients are one cluster if the best mean is below `MIN_SILHOUETTE`, or with fewer than
    three clients.

    Pass squared distances with Ward's method, which minimizes them. For vectors of equal length they are
    twice the cosine distances, so one minimum fits both methods.

    Args:
        merges: float64[n - 1, 4], see `build_linkage`.
        distances: cosine distances or squared Euclidean distances, shape (n, n), float64.

    Source: P. Rousseeuw, Silhouettes, Journal of Computational and Applied Mathematics 20, 1987.
    """
    from sklearn.metrics import silhouette_score

    rounded = np.round(distances, ROUNDING_DECIMALS)
    np.fill_diagonal(rounded, 0.0)
    cuts = [cut_into(merges, count) for count in range(2, len(merges) + 1)]
    scores = [
        round(float(silhouette_score(rounded, cut.labels, metric="precomputed")), ROUNDING_DECIMALS)
        for cut in cuts
    ]
    if not scores or max(scores) < MIN_SILHOUETTE:
        return cut_into(merges, 1)
    return cuts[int(np.argmax(scores))]


def explain_cut(
    clients: int, clusters: int, height: float, last_height: float, next_height: float | None
) -> tuple[str, str]:
    """Return a summary of a cut, and a warning that is empty if there is no reason for one.

    The warning is given if all clients are in one cluster, or each client is a cluster of its own. It is also
    given if a cut at a height 10 % lower or higher would give other clusters.

    Args:
        height: see `Cut`.
        last_height: see `Cut`.
        next_height: see `Cut`.
    """
    following = (
        "no merge is left"
        if next_height is None
        else f"the next is at {next_height:.4g}, a margin of {next_height - last_height:.4g}"
    )
    summary = (
        f"{clusters} clusters of {clients} clients, cut at {height:.4g}: the last merge is at "
        f"{last_height:.4g}, {following}"
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
            f"next merge at {next_height:.4g}; {remedy}",
        )
    return summary, ""


def _cut(merges: Matrix, num_merges: int, height: float | None = None) -> Cut:
    last_height = float(merges[num_merges - 1, 2]) if num_merges else 0.0
    next_height = float(merges[num_merges, 2]) if num_merges < len(merges) else None
    if height is None:
        height = last_height if next_height is None else (last_height + next_height) / 2
    return Cut(
        labels=_label_clients(merges, num_merges),
        height=height,
        last_height=last_height,
        next_height=next_height,
        merges=merges,
    )


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
