"""The spread of a metric over clients."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgefl.base.system import format as text_format
from edgefl.protocol.server.spread import (
    MAX_SPREADS,
    Spread,
    measure_loss,
    measure_spread,
    measure_spreads,
    summarize_accuracy,
)


def test_mean_and_percentiles_match_hand_calculation():
    """The percentiles of .5, .6, ..., 1 are .55 and .95. Weights and order do not matter."""
    clients = [{"accuracy": share / 10, "num_samples": share} for share in (10, 5, 6, 9, 7, 8)]
    spread = measure_spread("accuracy", clients)
    assert [spread.mean, spread.median, spread.p10, spread.p90] == pytest.approx([0.75, 0.75, 0.55, 0.95])
    assert measure_spread("accuracy", [{"accuracy": 0.4}]) == Spread(mean=0.4, median=0.4, p10=0.4, p90=0.4)


def test_clients_without_the_metric_do_not_count():
    clients = [{"accuracy": 0.5}, {"loss": 1.0}, {"accuracy": math.nan}, {"accuracy": math.inf}]
    assert measure_spread("accuracy", clients) == Spread(mean=0.5, median=0.5, p10=0.5, p90=0.5)
    for empty in (measure_spread("accuracy", []), measure_spread("auc", clients)):
        assert math.isnan(empty.mean) and math.isnan(empty.p10) and math.isnan(empty.p90)


def test_shares_are_shown_in_per_cent_and_other_metrics_as_numbers():
    assert text_format.format_spread("accuracy", 0.875, 0.8, 0.95) == "accuracy 87.5% (p10 80.0%, p90 95.0%)"
    assert text_format.format_metric("accuracy_shipped", 1.0) == "100.0%"
    assert text_format.format_spread("loss", 0.5, 0.25, 1.0) == "loss 0.5000 (p10 0.2500, p90 1.0000)"


def test_spreads_of_all_metrics_match_hand_calculation():
    clients = [{"auc": share / 10, "loss": 1.0, "shipped": 2.0, "q/0": 0.5} for share in (10, 5, 6, 9, 7, 8)]
    clients += [{"accuracy": 0.5, "auc": math.nan}, {"mae": math.inf}]
    assert measure_spreads(clients) == pytest.approx(
        {
            "auc_mean": 0.75,
            "auc_median": 0.75,
            "auc_p10": 0.55,
            "auc_p90": 0.95,
        }
    )
    assert measure_spreads([]) == measure_spreads([{}]) == {}


def test_client_with_many_metrics_does_not_displace_common_metrics():
    hostile = {f"a{index}": 1.0 for index in range(1000)} | {"Auc": 1.0, "a b": 1.0, "x" * 41: 1.0, "": 1.0}
    spreads = measure_spreads([hostile, {"zeta": 0.5}, {"zeta": 0.5}])
    assert {name.rpartition("_")[0] for name in spreads} == {"zeta"}
    many = [hostile] * 2 + [{"zeta": 0.5}] * 3
    spreads = measure_spreads([*many, hostile])
    assert len(spreads) == 4 * MAX_SPREADS
    assert not {name.rpartition("_")[0] for name in spreads} & {"Auc", "a b", "x" * 41, ""}


@given(
    honest=st.lists(st.floats(0.0, 1.0), min_size=1, max_size=9),
    hostile=st.lists(
        st.dictionaries(
            st.sampled_from(["accuracy", "accuracy_shipped", "loss", "r2"]),
            st.floats(allow_nan=True, allow_infinity=True),
        ),
        max_size=8,
    ),
)
def test_fewer_than_half_of_the_clients_move_no_median_beyond_the_others(honest, hostile):
    hostile = hostile[: len(honest) - 1]
    clients = [{"accuracy": value, "loss": value} for value in honest] + hostile
    assert min(honest) <= measure_loss(clients) <= max(honest)
    assert min(honest) <= summarize_accuracy(clients).median <= max(honest)


def test_metric_that_few_clients_report_does_not_count():
    clients = [{"loss": 1.0, "accuracy": 0.5}, {"loss": 3.0}, {"loss": 2.0, "accuracy_shipped": 0.1}]
    assert measure_loss(clients) == 2.0
    assert math.isnan(summarize_accuracy(clients).median)
    assert summarize_accuracy(clients[:2]) == Spread(mean=0.5, median=0.5, p10=0.5, p90=0.5)
    assert math.isnan(measure_loss([{"loss": 1.0}, {}, {"loss": math.nan}]))
    assert math.isnan(measure_loss([])) and math.isnan(summarize_accuracy([]).median)
