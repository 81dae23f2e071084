"""The report of a clustering round shows similarities as the algorithm compared the clients."""

from dataclasses import replace

import numpy as np

from edgefl.base.types import ServerState, Update
from edgefl.learning.algorithms.clustering.cluster_models import start_clusters
from edgefl.learning.algorithms.clustering.cluster_report import make_cluster_report
from edgefl.learning.algorithms.papers.clustered import cut_by_similarity
from edgefl.learning.algorithms.papers.fedap import cut_by_distance
from edgefl.learning.algorithms.registry import complete_algorithm_options

START = {
    "conv/kernel": np.ones((1, 1, 1, 1), np.float32),
    "fc/bias": np.zeros(1, np.float32),
    "fc/kernel": np.zeros((1, 1), np.float32),
}
STATE = ServerState(round=1, phase="cluster", models={"global": START, "initial": START})


def make_update(client: str, x: float, y: float, trunk: float) -> Update:
    """Return an update that changes the dense layer to the vector (y, x), which is bias before kernel."""
    delta = {
        "conv/kernel": np.full((1, 1, 1, 1), trunk),
        "fc/bias": np.full(1, y),
        "fc/kernel": np.full((1, 1), x),
    }
    return Update(
        client_id=client,
        round=1,
        num_samples=10,
        deltas={"global": {name: array.astype(np.float32) for name, array in delta.items()}},
    )


def test_report_compares_dense_layers_by_cosine():
    """The vectors of the clustering oracle. Similarities: a and b .98, a and c .6, a and d 0."""
    vectors = {"a": (1, 0), "b": (0.98, 0.199), "c": (0.6, 0.8), "d": (0, 1)}
    updates = [make_update(client, *vector, trunk=9) for client, vector in vectors.items()]
    after = start_clusters(STATE, updates, cut_by_similarity(updates, START, 0.9, "threshold", "weights", ""))
    report = make_cluster_report(complete_algorithm_options("clustered", {"compare": "weights"}), after)
    assert report["clients"] == list("abcd")
    assert report["matrix"][0] == [1.0, 0.98, 0.6, 0.0]
    assert report["linkage"][0][:2] == [0, 1]
    assert report["assignment"] == {"a": 0, "b": 0, "c": 1, "d": 2}
    assert (report["round"], round(report["cut"], 9), report["layer"]) == (1, 0.1, "the weights of fc")


def test_report_compares_whole_models_by_ward_linkage():
    """Ward on (0, 0), (1, 0), (4, 0), (4, 3) merges at 1, 3 and 5.385165."""
    updates = [make_update(str(i), x, 0, y) for i, (x, y) in enumerate(((0, 0), (1, 0), (4, 0), (4, 3)))]
    after = start_clusters(STATE, updates, cut_by_distance(updates, 4.0, 0))
    report = make_cluster_report(complete_algorithm_options("fedap", {}), after)
    np.testing.assert_allclose([row[2] for row in report["linkage"]], [1, 3, 5.385165], atol=1e-4)
    assert (report["layer"], report["assignment"]) == (
        "what training changed in the whole model",
        {"0": 0, "1": 0, "2": 1, "3": 1},
    )


def test_only_the_clustering_round_has_a_report():
    updates = [make_update("a", 1, 0, 0), make_update("b", 0, 1, 0)]
    after = start_clusters(STATE, updates, cut_by_similarity(updates, START, 0.9, "threshold", "weights", ""))
    assert make_cluster_report(complete_algorithm_options("clustered", {}), after) is not None
    later = replace(after, round=3)
    assert make_cluster_report(complete_algorithm_options("clustered", {}), later) is None
    assert make_cluster_report(complete_algorithm_options("clustered", {}), STATE) is None
    assert (
        make_cluster_report(
            complete_algorithm_options("fedavg", {}),
            ServerState(round=2, phase="federate", models={"global": START}),
        )
        is None
    )
