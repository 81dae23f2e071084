"""Figures of rows: paths, named measures and curves, on hand-made results."""

import math
from dataclasses import replace
from typing import Any

import pytest

from edgefl.base.errors import ConfigError
from edgefl.lab.reproduce.experiment import parse_experiment
from edgefl.lab.reproduce.measures import extract_curves, measure, measure_rows
from tests.edgefl.lab.reproduce.test_experiment import TOY


def make_result(experts, truth=(0, 0, 1, 1), rounds=1):
    """Return a result with the expert of each client in every round."""
    clients = [
        {"id": f"c{i}", "truth": t, "cluster": expert, "diagnostics": {"best": float(expert)}}
        for i, (t, expert) in enumerate(zip(truth, experts, strict=True))
    ]
    updates = {
        row["id"]: {"expert": row["cluster"], **{f"q/{k}": float(k == row["cluster"]) for k in range(4)}}
        for row in clients
    }
    return {
        "clients": clients,
        "records": [{"round": i + 1, "loss": 2.0 - i, "updates": updates} for i in range(rounds)],
        "figures": {"accuracy_mixture": {"mean": 0.25, "std": 0.5}},
        "models": {"expert0": 0.8, "expert1": 0.73, "expert2": 0.71, "global": 0.9},
        "bytes_up": 1_500_000,
        "bytes_down": 500_000,
    }


@pytest.mark.parametrize(
    ("experts", "used", "exact", "homogeneity", "completeness"),
    [
        ((0, 0, 1, 1), 2, 1, 1.0, 1.0),
        ((3, 3, 3, 3), 1, math.nan, 0.0, 1.0),
        ((0, 1, 2, 2), 3, math.nan, 1.0, 2 / 3),
    ],
)
def test_experts_are_compared_with_the_true_groups(experts, used, exact, homogeneity, completeness):
    """Entropies by hand: of the truth 1 bit, of the experts (1/4, 1/4, 1/2) 1.5 bits, so 1 / 1.5 = 2 / 3."""
    result = make_result(experts)
    assert measure(result, "experts_used") == used
    assert measure(result, "exact_round") == pytest.approx(exact, nan_ok=True)
    assert measure(result, "homogeneity") == pytest.approx(homogeneity)
    assert measure(result, "completeness") == pytest.approx(completeness)


def test_exact_round_is_the_first_of_the_last_unbroken_series():
    result = make_result((0, 0, 1, 1), rounds=4)
    broken = make_result((0, 1, 1, 1))["records"][0] | {"round": 2}
    records = [result["records"][0], broken, *result["records"][2:]]
    assert measure(result | {"records": records}, "exact_round") == 3


def test_early_choices_are_those_of_the_second_round():
    """In the second round c1 prefers another expert than in the last one. In the first one all clients do."""
    rounds = [(3, 3, 3, 3), (0, 2, 1, 1), (0, 2, 2, 2), (0, 0, 1, 1)]
    records = [make_result(experts)["records"][0] for experts in rounds]
    assert measure({"records": records}, "early_choices") == 75.0
    trained = {client: records[3]["updates"][client] for client in ("c0", "c1")}
    assert measure({"records": [*records[:3], {"updates": trained}]}, "early_choices") == 50.0
    with pytest.raises(ConfigError, match=r"'early_choices'.*summary\.json"):
        measure({"records": records[:1]}, "early_choices")


def make_losses(*losses):
    """Return records of two clients with losses of .1 more and less. None is a round without evaluation."""
    return [
        {"round": number}
        | (
            {}
            if loss is None
            else {
                "measured": {
                    "clients": {
                        "a": {"accuracy_mixture": 0.5, "loss_mixture": loss + 0.1},
                        "b": {"accuracy_mixture": 0.5, "loss_mixture": loss - 0.1},
                    }
                }
            }
        )
        for number, loss in enumerate(losses, start=1)
    ]


def test_loss_of_the_last_rounds_matches_hand_calculation():
    """The last tenth of 20 rounds has .8 and .4. The last half of 8 rounds has 2, 1, 1 and 3: the second is
    .5 below the mean of its neighbours, and the third is 1 below it. A straight line does not oscillate.
    """
    assert measure({"records": make_losses(*18 * [2.0], 0.8, 0.4)}, "last_loss") == pytest.approx(0.6)
    assert measure({"records": make_losses(*19 * [2.0], None)}, "last_loss") == pytest.approx(2.0)
    assert math.isnan(measure({"records": make_losses(None)}, "last_loss"))
    records = make_losses(9.0, 9.0, 9.0, 9.0, 2.0, 1.0, 1.0, 3.0)
    assert measure({"records": records}, "loss_oscillation") == pytest.approx((0.5 + 1.0) / 2)
    assert measure({"records": make_losses(*range(10, 0, -1))}, "loss_oscillation") == pytest.approx(0)
    assert math.isnan(measure({"records": make_losses(1.0, 2.0)}, "loss_oscillation"))
    trained = [
        {"round": number, "loss": loss} for number, loss in enumerate([*18 * [3.0], 0.5, 0.1], start=1)
    ]
    assert measure({"records": trained}, "last_training_loss") == pytest.approx(0.3)
    assert math.isnan(measure({"records": [*trained[:-1], {"loss": None}]}, "last_training_loss"))


def test_useless_models_have_less_than_nine_tenths_of_the_best_accuracy():
    """Limit .72: expert1 is useful, expert2 and expert3 are not, and the local start is no expert."""
    models = {"expert0": 0.8, "expert1": 0.73, "expert2": 0.1, "expert3": 0.7, "local": 0.0}
    losses = {"expert0": 0.5, "expert1": 0.6, "expert2": 2.3, "expert3": 0.7, "local": 9.0}
    result = {"models": models, "model_losses": losses}
    assert measure(result, "useful_models") == 2.0
    assert measure(result, "useless_loss") == pytest.approx(1.5)
    all_useful = {"models": {"expert0": 0.8}, "model_losses": {"expert0": 0.5}}
    assert math.isnan(measure(all_useful, "useless_loss"))
    assert math.isnan(measure(result | {"model_losses": losses | {"expert2": None}}, "useless_loss"))


def test_paths_and_named_measures():
    result = make_result((0, 0, 0, 1), rounds=3)
    assert measure(result, "figures.accuracy_mixture.mean") == 25.0
    assert measure(result, "models.expert1") == 73.0
    assert measure(result, "largest_share") == 75.0
    assert measure(result, "useful_models") == 2.0
    assert measure(result, "megabytes") == 2.0
    with pytest.raises(ConfigError, match=r"'accuracy_local'.*accuracy_mixture"):
        measure(result, "figures.accuracy_local.mean")
    with pytest.raises(ConfigError, match="path of a number"):
        measure(result, "figures.accuracy_mixture")


def test_the_accuracy_after_a_round_is_the_mean_over_clients():
    """Rounds 2 and 4 were evaluated, with accuracies of .5 and .7 and of .9 and .7 at two clients."""

    def make_record(number: int, *accuracies: float) -> dict[str, Any]:
        clients = {f"c{i}": {"accuracy_mixture": a, "loss_mixture": 1.0} for i, a in enumerate(accuracies)}
        return {"round": number, "measured": {"clients": clients}}

    result = {"records": [make_record(1), make_record(2, 0.5, 0.7), make_record(3), make_record(4, 0.9, 0.7)]}
    assert measure(result, "round_accuracy.2") == pytest.approx(60.0)
    assert measure(result, "round_accuracy.4") == pytest.approx(80.0)
    for number in ("3", "5", "x"):
        with pytest.raises(ConfigError, match=f"round '{number}'.*expected one of 2, 4; .*evaluate_every"):
            measure(result, f"round_accuracy.{number}")


def test_a_measure_without_its_part_of_the_result_is_an_error():
    result = make_result((0, 0, 1, 1))
    for value, part in {
        "useless_loss": "model_losses",
        "largest_gate_share": "empty",
        "last_training_loss": "data point",
    }.items():
        with pytest.raises(ConfigError, match=f"'{value}'.*{part}.*summary.json"):
            measure(result | {"diagnostics": {}, "records": []}, value)


def test_rows_average_their_stages_and_skip_missing_ones():
    toy = parse_experiment("aem.toy", TOY)
    results = {"a": make_result((0, 0, 1, 1)), "c": make_result((0, 1, 2, 3))}
    assert measure_rows(toy, results) == {"A": 25.0, "B": 3.0}
    assert measure_rows(toy, {"a": results["a"]}) == {"A": 25.0}


def test_a_model_of_the_users_may_lack_what_a_row_measures():
    text = TOY.replace('value = "experts_used"', 'value = "layer_gaps.others.2"')
    toy = parse_experiment("aem.toy", text)
    results = {"a": make_result((0, 0, 1, 1)), "c": make_result((0, 1, 2, 3))}
    assert measure_rows(replace(toy, model_file="own.keras"), results) == {"A": 25.0, "B": None}
    with pytest.raises(ConfigError, match="'layer_gaps'"):
        measure_rows(toy, results)


def test_curves_are_means_over_clients_of_evaluated_rounds():
    measured = {
        "clients": {
            "c0": {"accuracy_mixture": 0.5, "loss_mixture": 1.0},
            "c1": {"accuracy_mixture": 1.0, "loss_mixture": 2.0},
        }
    }
    records = [{"round": 1}, {"round": 2, "measured": measured}, {"round": 3, "measured": {"divergence": {}}}]
    assert extract_curves({"a": {"records": records}, "b": {"records": records[:1]}}) == {
        "a": {"rounds": [2], "accuracy_mixture": [0.75], "loss_mixture": [1.5]}
    }


def test_figure_that_is_not_finite_has_no_value_and_no_point_in_a_curve():
    toy = parse_experiment("aem.toy", TOY)
    result = make_result((0, 0, 1, 1)) | {"figures": {"accuracy_mixture": {"mean": None}}}
    assert measure_rows(toy, {"a": result}) == {"A": None}
    records = [{"round": 1, "measured": {"clients": {"c0": {}}}}]
    assert extract_curves({"a": {"records": records}}) == {}
