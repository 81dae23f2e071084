"""The outcomes benchmark on synthetic results: columns against values computed by hand, and every claim."""

import math

import numpy as np
import pytest

from edgefl.base.errors import ConfigError
from edgefl.lab.reproduce import outcomes
from edgefl.lab.reproduce.outcomes import (
    FEDERATIONS,
    LATE_STAGE,
    PAPER_ALGORITHMS,
    PRIVATE_STAGE,
    SECURE_STAGE,
    name_stage,
)
from edgefl.lab.reproduce.report import ExperimentReport, plot_report
from edgefl.learning.algorithms.draws import with_draws
from edgefl.learning.algorithms.registry import (
    REGISTRY,
    build_objectives,
    count_further_draws,
    make_algorithm,
    resolve_algorithm_options,
)

GOOD = {
    "accuracy_local": 0.80,
    "accuracy_federated": 0.60,
    "accuracy_fine_tuned": 0.85,
    "accuracy_mixture": 0.79,
    "accuracy_shipped": 0.85,
    "accuracy_shipped_int8": 0.84,
    "shipped": 2,
    "n_test": 100,
    "test_gained": 8,
    "test_lost": 3,
}
UNTESTED = dict.fromkeys(GOOD) | {"shipped": 0, "n_test": 0, "test_gained": 0, "test_lost": 0}


def make_run(*rows, **extra):
    clients = [{"id": f"c{i}", **row} for i, row in enumerate(rows)]
    return {"clients": clients, "bytes_up": 3_000_000, "bytes_down": 5_000_000, **extra}


def drop_column(row, name):
    return {key: value for key, value in row.items() if key != name}


def make_results(seeds=3, **changes):
    """Return results of all stages and seeds in which every client has the row `GOOD`.

    changes: by stage, with "_" for "-", a function from the row to the row of the second client.
    """
    results = []
    for seed in range(1, seeds + 1):
        stages = {}
        for stage in outcomes.stages("reduced", seed):
            row = GOOD if stage.measure_int8 else drop_column(GOOD, "accuracy_shipped_int8")
            change = changes.get(stage.name.replace("-", "_"), lambda row: row)
            late = ["c1"] if stage.num_late else []
            stages[stage.name] = make_run(row, change(row), late=late, device_seconds=12.0)
        results.append(stages)
    return results


def list_failing_claims(results):
    return [verdict.line for verdict in outcomes.verdicts("reduced", results) if verdict.outcome == "FAILS"]


def test_regret_matches_hand_calculation():
    """The first client ships a model 10 points below its best model. The second client ships its best."""
    rows = GOOD | {"accuracy_shipped": 0.75}, GOOD
    assert outcomes.measure_regret(make_run(*rows)) == pytest.approx((10 + 0) / 2)
    incomplete = drop_column(GOOD, "accuracy_fine_tuned") | {"accuracy_shipped": 0.79}
    assert outcomes.measure_regret(make_run(incomplete)) == pytest.approx(1.0)
    assert outcomes.measure_regret(make_run(GOOD, UNTESTED)) == 0
    assert outcomes.measure_regret(make_run(UNTESTED)) is None


def test_comparison_with_best_kind_matches_hand_calculation():
    """Fine-tuned models are best with a mean of 80. Shipped models have 77.5. Incomplete rows are ignored."""
    other = GOOD | {"accuracy_fine_tuned": 0.75, "accuracy_mixture": 0.70, "accuracy_shipped": 0.70}
    run = make_run(GOOD, other, drop_column(GOOD, "accuracy_local") | {"accuracy_fine_tuned": 0.0}, UNTESTED)
    assert outcomes.compare_with_best_kind(run) == pytest.approx((85 + 75) / 2 - (85 + 70) / 2)
    assert outcomes.compare_with_best_kind(make_run(UNTESTED)) is None


def test_a_client_of_another_seed_is_another_client():
    """Five losses against none give p = .031 and one against none .5. Eight gains of another seed do not
    make a worse client better.
    """
    worse = GOOD | {"test_gained": 0, "test_lost": 5}
    better = GOOD | {"test_gained": 8, "test_lost": 0}
    unclear = GOOD | {"test_gained": 0, "test_lost": 1}
    runs = [make_run(worse, unclear), make_run(better, unclear, UNTESTED)]
    assert outcomes.measure_worse_share(runs[:1]) == 50
    assert outcomes.measure_worse_share(runs) == pytest.approx(100 / 4)
    assert outcomes.measure_worse_share([make_run(drop_column(GOOD, "test_gained"))]) is None


def test_columns_of_a_stage_match_hand_calculation():
    other = GOOD | {"accuracy_local": 0.60, "accuracy_shipped": 0.55, "shipped": 0}
    columns = outcomes.measure_columns([{"s": make_run(GOOD, other, device_seconds=2.5)}], "s")
    assert {name: round(values[0], 6) for name, values in columns.items()} == {
        "local": 70.0,
        "federated": 60.0,
        "fine_tuned": 85.0,
        "mixture": 79.0,
        "shipped": 70.0,
        "int8": 84.0,
        "worst client": 55.0,
        "regret": 15.0,
        "below best kind": 15.0,
        "ships local": 50.0,
        "worse than local": 0.0,
        "MB per client": 4.0,
        "s per client": 2.5,
    }


def test_clients_without_a_model_are_counted():
    diverged = drop_column(GOOD, "accuracy_mixture") | {"accuracy_local": 0.70}
    results = [{"s": make_run(GOOD, diverged, UNTESTED)}, {"s": make_run(GOOD, GOOD, UNTESTED)}]
    columns = outcomes.measure_columns(results, "s")
    assert columns["clients without mixture"] == (1.0,)
    assert "clients without local" not in columns
    assert outcomes.measure_gains(results, "s", "mixture") == pytest.approx((-1.0, -1.0))
    row = outcomes.format_results(results).splitlines()[1]
    assert "79.0 (3 of 4)" in row
    assert row.count(" of ") == 1


def test_a_stage_without_test_samples_is_shown():
    row = outcomes.format_results([{"s": make_run(UNTESTED)}]).splitlines()[1]
    assert row.split()[:8] == ["s", *7 * "-"]
    assert outcomes.figures([{"s": make_run(UNTESTED)}])


def test_table_lists_private_and_late_stages():
    results = make_results(**{LATE_STAGE.replace("-", "_"): lambda row: row | {"accuracy_shipped": 0.5}})
    lines = outcomes.format_results(results).splitlines()
    rows = {line[:70].split("  ")[0].strip(): line for line in lines}
    assert {SECURE_STAGE, PRIVATE_STAGE, LATE_STAGE} <= rows.keys()
    assert " 67.5 " in rows[LATE_STAGE]
    assert " 50.0 " in rows[f"{LATE_STAGE}, its 1 late clients"]
    assert {stage.name for stage in outcomes.stages("reduced", 1)} <= rows.keys()
    assert rows["few"].endswith("Fashion-MNIST, 15 clients, Dirichlet(.5), 40 pictures each")


def find_table(results, heading):
    """Return the cells of a table of gains by the name of their row."""
    text = next(part for part in outcomes.format_results(results).split("\n\n") if part.startswith(heading))
    return {row.split()[0]: row.split()[1:] for row in text.splitlines()[1:]}


def test_gains_over_local_models_match_hand_calculation():
    """Local models have 80%, so `GOOD` gains -20, 5, -1, 5 and 4 points. One client of `few` has other models
    under `aem`, which gain 0 in int8 and 15 if shipped: means of the two clients are 2 and 10.
    """
    changed = {"accuracy_shipped_int8": 0.80, "accuracy_shipped": 0.95}
    results = make_results(**change_stages("aem", lambda row: row | changed, ["few"]))
    means = find_table(results, "points above local")
    assert list(means) == [name for name in outcomes.MAIN_ALGORITHMS if name != "local"]
    assert means["fedmix"] == ["-20.0", "+5.0", "-1.0", "+5.0", "+4.0", "+4.0", "+4.0"]
    # 5 + 5/14, 4 - 2/14, the lowest, and 4 - 2/9 over the nine federations that are hard alone
    assert means["aem"] == ["-20.0", "+5.0", "-1.0", "+5.4", "+3.9", "+2.0", "+3.8"]
    by_federation = find_table(results, "int8 above local")
    assert by_federation["aem"] == [*7 * ["+4.0"], "+2.0", *6 * ["+4.0"]]
    assert by_federation["ditto"] == 14 * ["+4.0"]
    shipped = find_table(results, "shipped above local, seed 1")
    assert shipped["aem"] == [*7 * ["+5.0"], "+10.0", *6 * ["+5.0"], "+5.4"]
    assert shipped.keys() == {*REGISTRY} - {"local", *outcomes.LEFT_OUT_ALGORITHMS}
    assert "standard error of int8 above local: 0.0 to 0.0 points, median 0.0" in outcomes.format_results(
        results
    )


def test_gains_on_the_class_mix_match_hand_calculation():
    """The first client ships its fine-tuned model, +10, and the second one a blend, +4. A client without a
    measurement does not count. People differ in more than their classes, so har has no column.
    """
    expected = {"expected_local": 0.7, "expected_fine_tuned": 0.8, "expected_blend": 0.74}
    rows = GOOD | expected, GOOD | expected | {"shipped": 4}, GOOD
    results = [{"few-aem": make_run(*rows), "har-aem": make_run(GOOD)}]
    assert outcomes.measure_class_mix_gains(results, "few-aem") == pytest.approx((7.0,))
    assert find_table(results, "shipped above local, class mix") == {"aem": ["+7.0"]}
    assert outcomes.measure_class_mix_gains(results, "har-aem") == ()
    without = outcomes.format_results([{"few-aem": make_run(GOOD)}])
    assert "class mix" not in without
    measured = {stage.name: stage.measure_test for stage in outcomes.stages("reduced", 1)}
    assert measured["few-aem"] and not measured["har-aem"]


def test_gains_of_some_stages_are_shown():
    runs = {"writers-aem": make_run(GOOD), "writers-local": make_run(GOOD)}
    gains = ["-20.0", "+5.0", "-1.0", "+5.0", "+4.0", "+4.0", "+4.0"]
    assert find_table([runs], "points above local") == {"aem": gains}
    missing = runs | {"few-aem": make_run(UNTESTED)}
    assert find_table([missing], "points above local") == {"aem": 7 * ["-"]}
    assert find_table([missing], "int8 above local") == {"aem": ["+4.0", "-"]}
    assert "above local" not in outcomes.format_results([{"writers-local": make_run(GOOD)}])


def test_all_claims_hold_for_good_results():
    result = outcomes.verdicts("reduced", make_results())
    assert [verdict.line for verdict in result if verdict.outcome == "FAILS"] == []
    assert len(result) == 5 * len(PAPER_ALGORITHMS) + 3
    assert outcomes.verdicts("smoke", []) == ()


def change_stages(algorithm, change, only=tuple(FEDERATIONS)):
    return {name_stage(federation, algorithm).replace("-", "_"): change for federation in only}


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        # the second client loses 10 points, so the mean gain of its federation falls from 4 to -1
        (change_stages("aem", lambda row: row | {"accuracy_shipped_int8": 0.74}, ["few"]), "aem: int8 is"),
        (change_stages("fedmix", lambda row: row | {"accuracy_mixture": 0.76}), "fedmix: the mixture"),
        (change_stages("fedap", lambda row: row | {"accuracy_mixture": 0.88}, ["har"]), "fedap: the regret"),
        (
            change_stages("clustered", lambda row: row | {"test_gained": 0, "test_lost": 5}, ["har", "few"]),
            "clustered: at most 5% of the clients",
        ),
        (
            change_stages("ditto", lambda row: row | {"accuracy_mixture": -0.60}, ["many"]),
            "each mixture is better than a uniform guess",
        ),
        (
            {SECURE_STAGE.replace("-", "_"): lambda row: row | {"accuracy_federated": 0.55}},
            "FedAvg's federated model has the same accuracy",
        ),
    ],
)
def test_every_claim_fails_separately(changes, line):
    result = list_failing_claims(make_results(**changes))
    assert len(result) == 1
    assert result[0].startswith(line)


def test_shipped_models_below_the_best_kind_also_have_a_regret():
    """The fine-tuned models of a federation have 87% in the mean, and the shipped ones 85%."""
    changes = change_stages("aem", lambda row: row | {"accuracy_fine_tuned": 0.89}, ["few"])
    regret, below = list_failing_claims(make_results(**changes))
    assert regret.startswith("aem: the regret is at most 1 point everywhere (highest: few-aem)")
    assert below.startswith("aem: the shipped models are below the best kind by at most 1 point everywhere")


def test_the_recommended_algorithm_must_gain():
    """A gain of 1.9 points everywhere is enough for all other claims."""
    change = {}
    for algorithm in ("pfl-mfe", "fedmix"):
        change |= change_stages(algorithm, lambda row: row | {"accuracy_shipped_int8": 0.798})
    (line,) = list_failing_claims(make_results(**change))
    assert line.startswith("the algorithm that is recommended is at least local + 2")


def test_no_claim_holds_for_a_stage_without_results():
    """A mixture that no client could make is not as good as the local model."""
    change = change_stages("fedap", lambda row: row)
    results = make_results(**change)
    for stages in results:
        for row in stages["har-fedap"]["clients"]:
            del row["accuracy_mixture"]
    assert [line.split(" (")[0] for line in list_failing_claims(results)] == [
        "fedap: the mixture is at least local - 2 on average",
        "each mixture is better than a uniform guess, points above it",
    ]


def test_claims_report_the_number_of_excluded_clients():
    results = make_results(**change_stages("aem", lambda row: drop_column(row, "accuracy_mixture"), ["har"]))
    line = next(claim for claim in outcomes.verdicts("reduced", results) if "aem: the mixture" in claim.line)
    assert line.measured.endswith("; 3 clients without mixture or local")


def test_plot_has_a_bar_per_paper_algorithm_and_federation(tmp_path):
    results = make_results(seeds=1)
    shown = outcomes.choose_plotted_figures(results)
    assert len(shown) == len(PAPER_ALGORITHMS) * len(FEDERATIONS)
    assert {round(figure.mean, 6) for figure in shown} == {4.0}
    pytest.importorskip("matplotlib")
    report = ExperimentReport(
        experiment="outcomes",
        scale="reduced",
        seeds=(1,),
        figures=shown,
        verdicts=(),
        seconds=1.0,
        note={},
    )
    plot_report(report, tmp_path / "report.png")


def test_all_figures_have_a_unique_name_and_values():
    result = outcomes.figures(make_results(seeds=2))
    names = [figure.name for figure in result]
    assert len(set(names)) == len(names)
    assert all(figure.measured for figure in result)
    assert {f"har-aem: {name}" for name in ("int8", "regret", "worse than local", "MB per client")} <= set(
        names
    )


def test_figure_that_a_seed_lacks_is_nan():
    first, second = make_run(drop_column(GOOD, "accuracy_mixture")), make_run(GOOD)
    results = [{"few-aem": first, "few-ditto": make_run(GOOD, *first["clients"])}, {"few-aem": second}]
    results[1]["few-local"] = second
    measured = {figure.name: figure.measured for figure in outcomes.figures(results)}
    assert measured["few-aem: mixture"] == pytest.approx((math.nan, 79.0), nan_ok=True)
    assert measured["few-ditto: clients without mixture"] == pytest.approx((1.0, math.nan), nan_ok=True)
    assert measured["few-local: int8"] == pytest.approx((math.nan, 84.0), nan_ok=True)
    (shown,) = outcomes.choose_plotted_figures([{}, {"few-aem": second}])
    assert shown.measured == pytest.approx((math.nan, 4.0), nan_ok=True)


@pytest.mark.slow
def test_every_algorithm_starts_with_the_model_of_its_federation():
    """The benchmark takes hours, so an algorithm must not refuse a model in the middle of it. All draws of
    initial weights have the same values here.
    """
    from edgefl.program.compiler.build import make_network

    networks = {}
    for stage in outcomes.stages("reduced", 1):
        config = stage.config
        model = (config.model.name, config.model.input_shape, config.model.num_classes)
        if model not in networks:
            networks[model] = make_network(config)
        network = networks[model]
        options = resolve_algorithm_options(config)
        initial = network.read_weights()
        for objective in build_objectives(config.algorithm, network, options):
            initial = initial | dict(objective.initial)
        draws = dict.fromkeys(range(1, count_further_draws(config.algorithm, options) + 1), initial)
        make_algorithm(config.algorithm, None, options).init(
            with_draws(initial, draws), np.random.default_rng(1)
        )


def test_some_algorithms_are_selected_without_the_extra_stages():
    selected = outcomes.select_stages("reduced", 1, ["fedavg", "fedrep"])
    assert {stage.config.algorithm for stage in selected} == {"fedavg", "fedrep"}
    assert len(selected) == 2 * len(FEDERATIONS)
    assert outcomes.select_stages("reduced", 2, []) == outcomes.stages("reduced", 2)
    with pytest.raises(ConfigError, match=r"seed 2 of --reduced does not run fedrep, expected some of .*aem"):
        outcomes.select_stages("reduced", 2, ["fedrep"])
