"""The arrays behind the charts of the page, computed by hand."""

import numpy as np
import pytest

from edgefl.base.errors import StateError
from edgefl.watch.report.clusters import (
    NO_CLUSTER,
    build_dendrogram,
    find_stretches,
    order_leaves,
    read_client_similarity,
    read_membership,
)
from edgefl.watch.report.confusion import normalize_rows, read_confusions
from edgefl.watch.report.curves import (
    accumulate_bytes,
    choose_byte_unit,
    join_accuracy_with_bytes,
    read_losses,
    read_model_curves,
    read_reported_accuracy,
    summarize_measured_accuracy,
)
from edgefl.watch.report.distribution import (
    collect_cdfs,
    describe_int8_loss,
    find_accuracy_keys,
    read_float_and_int8,
)
from edgefl.watch.report.gates import average_class_weights, label_expert, read_usage
from edgefl.watch.report.outcome import assign_lanes
from edgefl.watch.report.plots import plot_comparison, plot_run

KEY = "accuracy_mixture"
RECORDS = [
    {
        "round": 1,
        "loss": 2.0,
        "bytes_up": 10,
        "bytes_down": 30,
        "measured": {"clients": {"a": {KEY: 0.2}, "b": {KEY: 0.6}}},
    },
    {"round": 2, "loss": None, "bytes_up": 20, "bytes_down": 30},
    {
        "round": 3,
        "loss": 1.0,
        "bytes_up": 5,
        "bytes_down": 5,
        "accuracy_mean": 0.7,
        "accuracy_p10": 0.5,
        "accuracy_p90": 0.9,
    },
]


def test_losses_leave_out_missing_values():
    rounds, loss = read_losses(RECORDS)
    assert rounds.tolist() == [1, 3]
    assert loss.tolist() == [2.0, 1.0]


def test_measured_and_reported_accuracy_are_separate():
    """The mean of .2 and .6 is .4, the 10th percentile is .24, and the 90th percentile is .56."""
    band = summarize_measured_accuracy(RECORDS)
    assert band.rounds.tolist() == [1]
    np.testing.assert_allclose([*band.mean, *band.p10, *band.p90], [0.4, 0.24, 0.56])
    reported = read_reported_accuracy(RECORDS)
    assert (reported.rounds.tolist(), reported.measure) == ([3], "accuracy")
    regression = read_reported_accuracy([{**RECORDS[2], "updates": {"a": {"r2": 0.7}, "b": None}}])
    assert (regression.measure, regression.title) == ("R2", "R2")
    assert [*reported.mean, *reported.p10, *reported.p90] == [0.7, 0.5, 0.9]
    for empty in (
        summarize_measured_accuracy([{"round": 1}]),
        read_reported_accuracy([{"round": 1, "accuracy_mean": None}]),
    ):
        assert empty.mean.shape == (0,)


def test_bytes_are_summed_over_rounds():
    rounds, up, down = accumulate_bytes(RECORDS)
    assert (rounds.tolist(), up.tolist(), down.tolist()) == ([1, 2, 3], [10, 30, 35], [30, 60, 65])
    total, band = join_accuracy_with_bytes(RECORDS)
    assert total.tolist() == [40]
    np.testing.assert_allclose(band.mean, [0.4])
    total, band = join_accuracy_with_bytes(RECORDS[1:])
    assert (total.tolist(), band.mean.tolist()) == ([60], [0.7])
    assert (choose_byte_unit(2_500_000), choose_byte_unit(999), choose_byte_unit(4e9)) == (
        (1e6, "MB"),
        (1.0, "bytes"),
        (1e9, "GB"),
    )


def test_each_server_model_has_an_accuracy_curve():
    records = [
        {"round": r, "measured": {"models": {"expert1": {"accuracy": 0.1 * r}, "expert0": {"accuracy": 0.5}}}}
        for r in (1, 3)
    ]
    result = read_model_curves(records)
    assert list(result) == ["expert0", "expert1"]
    assert result["expert1"][0].tolist() == [1, 3]
    np.testing.assert_allclose(result["expert1"][1], [0.1, 0.3])


def test_accuracy_distributions_and_int8_pairs_are_read():
    clients = [
        {"id": "a", "accuracy_shipped": 0.9, "accuracy_shipped_int8": 0.8},
        {"id": "b", "accuracy_shipped": 0.5, "accuracy_shipped_int8": None},
        {"id": "c", "accuracy_shipped": 0.7, "accuracy_shipped_int8": 0.7},
    ]
    result = collect_cdfs(clients, find_accuracy_keys(clients))
    assert list(result) == ["shipped", "int8"]
    np.testing.assert_allclose(result["shipped"][0], [0.5, 0.7, 0.9])
    np.testing.assert_allclose(result["shipped"][1], [1 / 3, 2 / 3, 1])
    ids, floats, ints = read_float_and_int8(clients)
    assert (ids, floats.tolist(), ints.tolist()) == (["a", "c"], [0.9, 0.7], [0.8, 0.7])
    detectors = [{"id": "a", "auc_shipped": 0.9, "auc_shipped_int8": 0.8, "r2_shipped": 0.1}]
    assert list(collect_cdfs(detectors, find_accuracy_keys(detectors))) == ["shipped", "int8"]
    assert read_float_and_int8(detectors)[1].tolist() == [0.9]
    earlier = [{"id": "a", "accuracy_mixture": 0.9, "accuracy_mixture_int8": 0.8}]
    ids, floats, ints = read_float_and_int8(earlier)
    assert (ids, floats.tolist(), ints.tolist()) == (["a"], [0.9], [0.8])


@pytest.mark.parametrize(
    ("lost", "sentence"),
    [
        (
            [0.5, 1.5],
            "Over 2 clients, int8 costs 1.00 points on average and at most 1.50 points. "
            "Clients that lose nothing: 0.",
        ),
        ([-0.5, -0.3], "Over 2 clients, int8 gains 0.40 points on average. Clients that lose nothing: 2."),
        (
            [-2.0, 1.0],
            "Over 2 clients, int8 gains 0.50 points on average, but one client loses 1.00. "
            "Clients that lose nothing: 1.",
        ),
        ([0.0, 0.0], "Over 2 clients, int8 changes nothing on average. Clients that lose nothing: 2."),
        ([-0.001], "Over 1 clients, int8 changes nothing on average. Clients that lose nothing: 1."),
    ],
)
def test_int8_loss_is_described_in_a_sentence(lost, sentence):
    assert describe_int8_loss(np.array(lost)) == sentence


def test_numbered_experts_have_the_same_names_as_in_a_simulation():
    assert [label_expert(expert, ["0", "1"], "pfl-mfe") for expert in ("0", "1")] == ["global", "local"]
    assert [label_expert(expert, ["0", "1", "2"], "aem") for expert in "012"] == [
        "expert0",
        "expert1",
        "local",
    ]
    assert [label_expert(expert, ["0", "1"], "fedmix") for expert in "01"] == ["expert0", "expert1"]
    assert label_expert("expert0", ["expert0", "local"], "aem") == "expert0"


def test_overlapping_marks_get_different_lanes():
    """Two marks at 90 get lanes half a step from the middle. The mark at 50 stays in the middle."""
    assert assign_lanes([90.0, 50.0, 90.5], 1.0) == [-0.5, 0.0, 0.5]
    assert assign_lanes([90.0, 90.0, 90.0], 1.0) == [-1.0, 0.0, 1.0]
    assert assign_lanes([np.nan, 90.0, 80.0], 1.0) == [0.0, 0.0, 0.0]


MERGES = [[0, 2, 0.1, 2], [1, 3, 0.4, 2], [4, 5, 0.9, 4]]
"""Clients 0 and 2 merge, then 1 and 3, then both pairs."""


def test_dendrogram_has_ordered_leaves_and_branches():
    merges = np.array(MERGES, np.float64)
    assert order_leaves(merges) == [0, 2, 1, 3]
    assert build_dendrogram(merges) == [
        ((0.0, 0.0, 1.0, 1.0), (0.0, 0.1, 0.1, 0.0)),
        ((2.0, 2.0, 3.0, 3.0), (0.0, 0.4, 0.4, 0.0)),
        ((0.5, 0.5, 2.5, 2.5), (0.1, 0.9, 0.9, 0.4)),
    ]
    assert order_leaves(np.zeros((0, 4))) == [0]


@pytest.mark.parametrize(
    "change",
    [
        {"clients": ["a"]},
        {"matrix": [[1.0]]},
        {"linkage": [[0, 2, 0.1, 2], [0, 3, 0.4, 2], [4, 5, 0.9, 4]]},
        {"linkage": 1},
        {"round": ""},
    ],
)
def test_damaged_clusters_are_rejected(change):
    whole = {
        "round": 1,
        "layer": "fc",
        "clients": list("abcd"),
        "matrix": np.eye(4).tolist(),
        "linkage": MERGES,
        "cut": 0.5,
    }
    assert read_client_similarity(whole).clients == tuple("abcd")
    with pytest.raises(StateError, match=r"clusters\.json is damaged"):
        read_client_similarity({**whole, **change})


def test_server_clusters_are_valid_until_the_next_assignment():
    records = [
        {"round": 1},
        {"round": 2, "measured": {"clusters": {"b": 1, "a": 0}}},
        {"round": 3, "updates": {"a": {"loss": 1.0}}},
        {"round": 4, "measured": {"clusters": {"a": 1, "b": 1}}},
    ]
    rounds, clients, result = read_membership(records)
    assert (rounds, clients, result.tolist()) == ([2, 3, 4], ["a", "b"], [[0, 0, 1], [1, 1, 1]])


def test_clusters_chosen_by_clients_are_valid_for_one_round():
    records = [
        {"round": 1, "updates": {"a": {"expert": 2.0}, "b": {"expert": 0.0}}},
        {"round": 2, "updates": {"b": {"q/0": 0.2, "q/1": 0.8}}},
    ]
    rounds, clients, result = read_membership(records)
    assert (rounds, clients, result.tolist()) == ([1, 2], ["a", "b"], [[2, NO_CLUSTER], [0, 1]])
    assert read_membership([{"round": 1, "updates": {"a": {"loss": 1.0}}}])[0] == []


def test_stretches_of_one_cluster_are_found():
    assert find_stretches([2, 2, NO_CLUSTER, 0, 2]) == [(0, 2, 2), (3, 4, 0), (4, 5, 2)]
    assert find_stretches([NO_CLUSTER]) == find_stretches([]) == []


def test_confusion_matrices_are_read_and_normalized():
    clients = [
        {"id": "a", "confusion": [[0, 0, 3], [0, 2, 1]]},
        {"id": "b", "confusion": [[1, 1, 5]]},
        {"id": "c"},
    ]
    result = read_confusions(clients)
    assert result["a"].tolist() == [[3, 0, 1], [0, 0, 0], [0, 0, 0]]
    assert result["b"].tolist() == [[0, 0, 0], [0, 5, 0], [0, 0, 0]]
    np.testing.assert_allclose(normalize_rows(result["a"])[0], [0.75, 0, 0.25])
    assert np.isnan(normalize_rows(result["a"])[1]).all()
    for damaged in ("x", [[0, 0]], [[0, -1, 2]], [[0, 0, 0.5]], [[0, "a", 1]]):
        with pytest.raises(StateError, match="the confusion of a is not a list"):
            read_confusions([{"id": "a", "confusion": damaged}])


def test_gate_usage_is_read_from_simulations_and_devices():
    clients = [
        {"id": "a", "diagnostics": {"gate/expert0": 0.25, "gate/local": 0.75}},
        {"id": "b", "diagnostics": {"gate/local": 1.0}},
        {"id": "c"},
    ]
    experts, ids, result = read_usage(clients)
    assert (experts, ids, result.tolist()) == (["expert0", "local"], ["a", "b"], [[0.25, 0.75], [0.0, 1.0]])
    experts, ids, result = read_usage([{"id": "pi-1", "gate_1": 0.4, "gate_0": 0.6}])
    assert (experts, ids, result.tolist()) == (["0", "1"], ["pi-1"], [[0.6, 0.4]])


def test_gates_by_class_weigh_all_samples_equally():
    """Class 1: three samples with weight .8 and one with weight .4 have the mean .7."""
    clients = [
        {"id": "a", "gates": [[0, 5, 0.1, 0.9], [1, 3, 0.8, 0.2]]},
        {"id": "b", "gates": [[1, 1, 0.4, 0.6]]},
        {"id": "c"},
    ]
    classes, result = average_class_weights(clients)
    assert classes == [0, 1]
    np.testing.assert_allclose(result, [[0.1, 0.9], [0.7, 0.3]])
    assert average_class_weights([{"id": "c", "gates": []}])[0] == []


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(("key", "label"), [("r2", "R2"), ("auc", "AUC"), ("accuracy", "accuracy")])
def test_picture_of_a_run_shows_the_measure_of_its_task(tmp_path, key, label):
    summary = {
        "algorithm": "fedavg",
        "data": "machines",
        "figures": {f"{key}_local": {}, f"{key}_mixture": {}},
        "clients": [{"id": "a", f"{key}_local": 0.5, f"{key}_mixture": 0.7, f"{key}_shipped": None}],
    }
    plot_run(summary, RECORDS[:1], tmp_path / "run.svg")
    plot_comparison(("one",), (summary,), tmp_path / "comparison.svg")
    for picture in ("run.svg", "comparison.svg"):
        assert f"{label} on own held-out samples" in (tmp_path / picture).read_text()
