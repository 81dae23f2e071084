"""Hierarchical clustering: examples worked by hand, then properties of random vectors."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from edgefl.learning.algorithms.clustering.hierarchical import (
    build_linkage,
    cosine_distance,
    cosine_similarity,
    cut_at,
    cut_into,
    cut_silhouette,
    cut_widest,
    euclidean_distance,
    explain_cut,
)

FOUR_VECTORS = np.array([[1, 0], [0.98, 0.199], [0.6, 0.8], [0, 1]])
POINTS = np.array([[0, 0], [1, 0], [4, 0], [4, 3]])
VECTORS = arrays(np.float64, st.tuples(st.integers(1, 9), st.just(3)), elements=st.floats(-9, 9, width=32))


def link_by_average(vectors):
    return build_linkage(cosine_distance(vectors), "average")


@pytest.mark.parametrize(("t", "labels"), [(0.9, [0, 0, 1, 2]), (0.75, [0, 0, 1, 1])])
def test_cosine_threshold_by_hand(t, labels):
    assert cut_at(link_by_average(FOUR_VECTORS), 1 - t).labels.tolist() == labels


def test_cosine_similarity_by_hand():
    similarity = cosine_similarity(FOUR_VECTORS)
    assert similarity[0, 2] == pytest.approx(0.6, abs=1e-6)
    assert similarity[2, 3] == pytest.approx(0.8, abs=1e-6)
    assert similarity[1, 2] == pytest.approx((0.98 * 0.6 + 0.199 * 0.8) / np.hypot(0.98, 0.199), abs=1e-6)


def test_average_linkage_by_hand():
    """Unit vectors at 0, 18, 40, 58 degrees: 1 - cos 18 twice, then the mean over 40, 58, 22, 40 degrees."""
    angles = np.radians([0, 18, 40, 58])
    heights = link_by_average(np.stack([np.cos(angles), np.sin(angles)], axis=1))[:, 2]
    expected = [1 - np.cos(np.radians(18))] * 2 + [1 - np.cos(np.radians([40, 58, 22, 40])).mean()]
    np.testing.assert_allclose(heights, expected, atol=1e-6)
    np.testing.assert_allclose(heights, [0.0489, 0.0489, 0.2527], atol=5e-5)


def test_ward_linkage_by_hand():
    merges = build_linkage(euclidean_distance(POINTS), "ward")
    np.testing.assert_allclose(merges[:, 2], [1, 3, 5.385165], atol=1e-6)
    cut = cut_at(merges, 5.0)
    assert cut.labels.tolist() == [0, 0, 1, 1]
    assert (cut.count, cut.height, cut.last_height) == (2, 5.0, 3.0)
    assert cut.margin == pytest.approx(2.385165, abs=1e-6)


def test_merge_at_cut_height_is_applied():
    merges = build_linkage(euclidean_distance(POINTS), "ward")
    assert cut_at(merges, 3.0).labels.tolist() == [0, 0, 1, 1]
    assert cut_at(merges, 2.999).labels.tolist() == [0, 0, 1, 2]


@pytest.mark.parametrize(("count", "clusters"), [(0, 1), (1, 1), (2, 2), (3, 3), (4, 4), (99, 4)])
def test_cluster_count_is_between_one_and_number_of_clients(count, clusters):
    assert cut_into(build_linkage(euclidean_distance(POINTS), "ward"), count).count == clusters


def test_single_client_is_one_cluster():
    merges = link_by_average(FOUR_VECTORS[:1])
    for cut in (cut_at(merges, 0.1), cut_into(merges, 3), cut_widest(merges)):
        assert (cut.labels.tolist(), cut.count, cut.margin) == ([0], 1, None)


@pytest.mark.parametrize("vector", [[3.0, -4.0, 0.1], [0.0, 0.0, 0.0]])
def test_identical_clients_are_one_cluster(vector):
    same = [np.array(vector, np.float32)] * 5
    for merges in (link_by_average(same), build_linkage(euclidean_distance(same), "ward")):
        assert merges[:, 2].tolist() == [0.0] * 4
        assert cut_at(merges, 0.0).count == cut_widest(merges).count == 1


def test_zero_vector_has_no_similarity_to_others():
    similarity = cosine_similarity([np.zeros(2), np.array([1.0, 2.0])])
    assert similarity.tolist() == [[1.0, 0.0], [0.0, 1.0]]


def test_widest_gap_separates_groups():
    points = np.array([[0.0], [0.1], [10.0], [10.2], [20.0], [20.3]])
    cut = cut_widest(build_linkage(euclidean_distance(points), "average"))
    assert cut.labels.tolist() == [0, 0, 1, 1, 2, 2]
    assert cut.last_height == pytest.approx(0.3)
    assert cut.margin == pytest.approx(10.05 - 0.3)


def test_widest_gap_ignores_gaps_between_lowest_merges():
    """Four groups of four clients, of which two pairs agree by chance.

    The pairs merge at .10 and .12, all others of a group at .60, groups at .90. The widest gap, .12 to .60,
    would leave 14 clusters. The gap from .60 to .90 leaves the four groups.
    """
    groups = np.repeat(np.arange(4), 4)
    distances = np.where(groups[:, None] == groups, 0.60, 0.90)
    for i, j, near in ((0, 1, 0.10), (4, 5, 0.12)):
        distances[i, j] = distances[j, i] = near
    np.fill_diagonal(distances, 0.0)
    cut = cut_widest(build_linkage(distances, "average"))
    assert cut.labels.tolist() == groups.tolist()
    assert (cut.last_height, cut.next_height) == (pytest.approx(0.60), pytest.approx(0.90))


def test_a_pair_and_a_single_client_are_two_clusters():
    points = np.array([[0.0], [1.0], [9.0]])
    assert cut_widest(build_linkage(euclidean_distance(points), "average")).labels.tolist() == [0, 0, 1]


def measure_best_silhouette(points, power=1):
    """Return the labels of the cut of points on a line by Ward's method."""
    distances = euclidean_distance(np.array(points, float)[:, None])
    return cut_silhouette(build_linkage(distances, "ward"), distances**power).labels.tolist()


def test_silhouette_by_hand():
    """Points 0 and 1 have a = 1 and b = 10.5 and 9.5, so two pairs have a mean of .90, and three parts .45.

    Points 0, 1, 2, 3 have (2.5 - 1) / 2.5 and (1.5 - 1) / 1.5, a mean of .47. With squared distances it is
    (6.5 - 1) / 6.5 and (2.5 - 1) / 2.5, a mean of .72.
    """
    pytest.importorskip("sklearn.metrics", reason="the aggregator extra is not installed")
    assert measure_best_silhouette([0, 1, 10, 11]) == [0, 0, 1, 1]
    assert measure_best_silhouette([0, 1, 2, 3]) == [0, 0, 0, 0]
    assert measure_best_silhouette([0, 1, 2, 3], 2) == [0, 0, 1, 1]
    assert measure_best_silhouette([0, 9, 1, 20, 8, 21]) == [0, 1, 0, 2, 1, 2]


def test_silhouette_needs_three_clients_and_differences():
    pytest.importorskip("sklearn.metrics", reason="the aggregator extra is not installed")
    for points in ([5], [5, 9], [5, 5, 5]):
        assert measure_best_silhouette(points) == [0] * len(points)
    assert measure_best_silhouette([5, 5, 9]) == [0, 0, 1]  # (4 - 0) / 4 twice, and 0 for a single client


def test_silhouette_of_both_methods_is_alike_for_deltas_of_equal_length():
    """Of vectors of length 1 the squared distance is twice the cosine distance."""
    pytest.importorskip("sklearn.metrics", reason="the aggregator extra is not installed")
    rng = np.random.default_rng(0)
    truth = np.arange(12) % 3
    vectors = 2 * np.eye(3, 20)[truth] + rng.normal(0, 0.2, (12, 20))
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    distances = euclidean_distance(vectors)
    np.testing.assert_allclose(distances**2, 2 * cosine_distance(vectors), atol=1e-12)
    for cut in (
        cut_silhouette(link_by_average(vectors), cosine_distance(vectors)),
        cut_silhouette(build_linkage(distances, "ward"), distances**2),
    ):
        assert cut.labels.tolist() == truth.tolist()
        assert cut.last_height < cut.height < cut.next_height


@given(VECTORS, st.floats(0.01, 20))
def test_automatic_cut_respects_its_limits(vectors, limit):
    merges = build_linkage(euclidean_distance(vectors), "average")
    assert cut_widest(merges).count <= (len(vectors) + 1) // 2 + (len(vectors) == 0)
    assert cut_widest(merges, limit).last_height <= limit + 1e-9


@pytest.mark.parametrize(
    ("clusters", "at", "below", "above", "message"),
    [
        (2, 5.0, 3.0, 5.385165, "margin is thin"),
        (2, 5.0, 3.0, 6.0, ""),
        (1, 5.0, 3.0, None, "all 4 clients are in one cluster"),
        (4, 0.5, 0.0, 1.0, "each of 4 clients"),
    ],
)
def test_cut_explanation_reports_margin_and_warns(clusters, at, below, above, message):
    summary, warning = explain_cut(4, clusters, at, below, above)
    assert f"{clusters} clusters of 4 clients" in summary
    assert message in warning
    assert bool(warning) == bool(message)


def test_cut_of_single_client_has_no_warning():
    assert explain_cut(1, 1, 0.1, 0.0, None)[1] == ""


@given(VECTORS)
def test_cosine_is_symmetric_and_bounded(vectors):
    similarity = cosine_similarity(vectors)
    np.testing.assert_array_equal(similarity, similarity.T)
    assert (np.diag(similarity) == 1).all()
    assert (np.abs(similarity) <= 1).all()


@given(VECTORS, st.integers(1, 12))
def test_cut_by_count_numbers_clusters_by_first_client(vectors, count):
    cut = cut_into(build_linkage(euclidean_distance(vectors), "ward"), count)
    assert cut.count == min(count, len(vectors))
    firsts = [int(np.argmax(cut.labels == label)) for label in range(cut.count)]
    assert firsts == sorted(firsts)


@given(VECTORS, st.floats(0.01, 20))
def test_cut_gives_same_clusters_as_scipy(vectors, at):
    from scipy.cluster.hierarchy import fcluster

    merges = build_linkage(euclidean_distance(vectors), "ward")
    cut = cut_at(merges, at)
    assert cut.last_height <= at + 1e-9
    assert cut.next_height is None or cut.next_height > at
    if len(vectors) > 1:
        oracle = fcluster(merges, at + 1e-9, "distance")
        np.testing.assert_array_equal(cut.labels[:, None] == cut.labels, oracle[:, None] == oracle)


@given(count=st.integers(1, 9), seed=st.integers(0, 999))
def test_client_order_does_not_change_clusters_without_ties(count, seed):
    rng = np.random.default_rng(seed)
    vectors = rng.normal(size=(count, 3))
    order = rng.permutation(count)
    labels, permuted_labels = (
        cut_into(link_by_average(ordered), 3).labels for ordered in (vectors, vectors[order])
    )
    np.testing.assert_array_equal(
        labels[order][:, None] == labels[order], permuted_labels[:, None] == permuted_labels
    )
