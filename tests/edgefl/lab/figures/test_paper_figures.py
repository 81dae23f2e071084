"""The papers' figures: examples of their data, and reproducible pictures of real runs in every format."""

import json
from pathlib import Path

import numpy as np
import pytest

from edgefl.cli.main import run_command as edgefl
from edgefl.lab.figures import PAPER_FIGURES, fedmix, make_figure, pfl_moe
from edgefl.lab.figures import aem as aem_figures
from edgefl.lab.figures import clustered as clustered_figures
from edgefl.watch.report.folder import Folder, read_folder


def make_folder(name="x", algorithm="aem", options=None, partition=None, **more) -> Folder:
    config = {
        "algorithm": algorithm,
        "options": options or {},
        "partition": {"options": partition or {}},
        "data": {"name": "digits"},
    }
    return Folder(path=Path(name), kind="simulation", facts={}, config=config, **more)


def test_aem_3_and_4_average_over_runs():
    """Two seeds of p = 1 with 90 and 94 per cent have mean 92 and standard deviation 2. One lacks IFCA."""
    one = {"p": 1.0, "epsilon": 0.3, "num_experts": 2}
    two = {"p": 1.0, "epsilon": 0.3, "num_experts": 4}
    three = {"p": 0.2, "epsilon": 0.0}
    measured = (
        ({"id": "a", "accuracy_mixture": 0.9, "accuracy_federated": 0.5},),
        ({"id": "a", "accuracy_mixture": 0.96}, {"id": "b", "accuracy_mixture": 0.92}),
        ({"id": "a", "accuracy_mixture": 0.7},),
    )
    runs = [
        make_folder(
            options={k: v for k, v in settings.items() if k != "p"},
            partition={"p": settings["p"]},
            clients=rows,
        )
        for settings, rows in zip((one, two, three), measured, strict=True)
    ]
    result = {
        (line.model, line.explored): line
        for line in aem_figures.average_lines(runs, aem_figures.read_fraction)
    }
    assert result.keys() == {("MoE", True), ("MoE", False), ("IFCA", True)}
    line = result["MoE", True]
    np.testing.assert_allclose([line.x, line.mean, line.std], [[1], [92], [2]])
    np.testing.assert_allclose(result["IFCA", True].mean, [50])
    np.testing.assert_allclose(result["MoE", False].x, [0.2])
    by_models = {
        (line.model, line.explored): line
        for line in aem_figures.average_lines(runs, aem_figures.read_num_models)
    }
    np.testing.assert_allclose([by_models["MoE", True].x, by_models["MoE", True].mean], [[2, 4], [90, 94]])
    assert by_models["MoE", False].x.tolist() == [6], "num_experts has a default"


def test_aem_5_sorts_clusters_by_size():
    clients = tuple(
        {"id": str(i), "diagnostics": {"best": best}} for i, best in enumerate((2.0, 2.0, 0.0, 2.0, None, -1))
    )
    assert aem_figures.count_best_models(
        make_folder(options={"num_experts": 4}, clients=clients)
    ).tolist() == [
        3,
        1,
        0,
        0,
    ]


def test_fedmix_1_smooths_over_rounds():
    np.testing.assert_allclose(fedmix.smooth_values(np.array([4.0, 2.0, 6.0, 0.0]), 3), [4, 3, 4, 8 / 3])
    records = [
        {"round": r, "measured": {"divergence": {"expert0": r, "expert1": 3 * r}}} for r in (1, 2, 3)
    ] + [{"round": 4}]
    rounds, values = fedmix.read_divergences(records, window=2)
    assert (rounds.tolist(), values.tolist()) == ([1, 2, 3], [2, 3, 5])


def test_fedmix_7_uses_the_last_report_of_every_client():
    records = tuple(
        {"round": r, "updates": {c: {"q/0": q, "q/1": 1 - q}}}
        for r, c, q in ((1, "a", 0.5), (9, "a", 0.9), (10, "b", 0.2), (11, "b", 0.0))
    )
    run = make_folder(
        records=records, clients=({"id": "b", "truth": 0}, {"id": "a", "truth": 1}, {"id": "c", "truth": 0})
    )
    clients, truth, q, last = fedmix.read_truth_and_q(run)
    assert (clients, truth.tolist(), last) == (["b", "a"], [[1, 0], [0, 1]], 10)
    np.testing.assert_allclose(q, [[0.2, 0.8], [0.9, 0.1]])


def test_fedmix_14_chooses_rounds_on_a_logarithmic_scale():
    records = [{"round": r, "measured": {"q": [[0.5, 0.5]]}} for r in range(1, 65)]
    assert list(fedmix.read_q_by_round(records, max_rounds=4)) == [1, 4, 16, 64]
    assert fedmix.read_q_by_round([{"round": 1}]) == {}


def test_clustered_3_and_4_order_clients_by_their_true_cluster():
    epoch = [[1.0, 0.1, 0.9], [0.1, 1.0, 0.2], [0.9, 0.2, 1.0]]
    layers = {
        "epochs": [1],
        "clients": ["a", "b", "c"],
        "truth": [1, 0, 1],
        "dense": ["fc"],
        "compared": [epoch],
        "layers": {"fc": [epoch], "conv": [np.eye(3).tolist()]},
    }
    run = make_folder(layers=layers)
    epochs, clients, result = clustered_figures.read_layer_similarities(run)
    assert (epochs, clients, list(result)) == ([1], ["b", "a", "c"], ["other layers", "dense layers"])
    np.testing.assert_allclose(result["dense layers"][0], [[1, 0.1, 0.2], [0.1, 1, 0.9], [0.2, 0.9, 1]])
    _, names, pairs = clustered_figures.read_pair_similarities(run)
    assert names == ["b, a", "b, c", "a, c"]
    np.testing.assert_allclose(pairs, [[0.1, 0.2, 0.9]])


def test_clustered_5_and_6_average_over_clients_then_runs():
    def run(loss, clustering):
        measured = {"clients": {"a": {"loss_mixture": loss}, "b": {"loss_mixture": loss + 1}}}
        return make_folder(
            algorithm="clustered",
            options={"clustering": clustering, "mixing": 0.25},
            partition={"tasks": 2},
            records=({"round": 1, "measured": measured}, {"round": 2}),
        )

    result = clustered_figures.average_by_mixing(
        [run(1.0, True), run(3.0, True), run(5.0, False)], "loss_mixture"
    )
    assert {key: (x.tolist(), y.tolist()) for key, (x, y) in result.items()} == {
        (2, False, 0.25): ([1], [5.5]),
        (2, True, 0.25): ([1], [2.5]),
    }


def test_pfl_moe_3_is_relative_to_fedavg():
    row = {
        "expected_federated": 0.8,
        "expected_adapted": 0.85,
        "expected_mixture": 0.84,
        "global_federated": 0.7,
        "global_adapted": 0.6,
        "global_mixture": 0.65,
    }
    result = [
        pfl_moe.read_gain(make_folder(algorithm="pfl-mf", clients=({"id": "a", **row},)), test)
        for test in pfl_moe.TEST_LABELS
    ]
    np.testing.assert_allclose(
        [[g.fedavg[0], g.adapted[0], g.mixture[0]] for g in result], [[80, 5, 4], [80, -10, -5]]
    )
    assert [g.better.tolist() for g in result] == [[False], [True]]


def test_list_contains_all_figures(capsys):
    assert edgefl(["report", "--list"]) == 0
    out = capsys.readouterr().out
    assert all(f"  {name} " in out and figure.needs in out for name, figure in PAPER_FIGURES.items())
    expected = {
        "aem": (3, 4, 5, 6),
        "fedmix": (1, 7, 14),
        "clustered": (3, 4, 5, 6),
        "pfl-moe": (1, 2, 3, 4, 5),
    }
    assert set(PAPER_FIGURES) == {
        f"{paper}-{number}" for paper, numbers in expected.items() for number in numbers
    }


def get_signature(path: Path) -> bytes:
    return {".png": b"\x89PNG", ".pdf": b"%PDF", ".svg": b"<?xml"}[path.suffix]


@pytest.mark.parametrize("name", ["aem-3", "aem-4", "aem-5", "aem-6"])
def test_aem_figures_of_a_real_run_are_reproducible(name, aem, tmp_path, capsys):
    for ending in ("svg", "png", "pdf"):
        one = tmp_path / f"one.{ending}"
        two = tmp_path / f"two.{ending}"
        for path in (one, two):
            assert edgefl(["report", "--figure", name, str(aem), "-o", str(path)]) == 0
        assert one.read_bytes().startswith(get_signature(one))
        assert one.read_bytes() == two.read_bytes()
    capsys.readouterr()
    assert edgefl(["report", "--figure", name, str(aem.parent), "--json"]) == 0
    figure = json.loads(capsys.readouterr().out)
    assert figure["figure"] == name
    assert figure["rows"]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["clustered-3", "clustered-4", "clustered-5", "clustered-6"])
def test_clustered_figures_of_a_real_run_are_drawn(name, clustered, tmp_path, capsys):
    path = tmp_path / "figure.svg"
    assert edgefl(["report", "--figure", name, str(clustered), "-o", str(path)]) == 0
    assert path.read_bytes().startswith(b"<?xml")
    summary = json.loads((clustered / "summary.json").read_text())
    if name == "clustered-6":
        chart = make_figure(name, [read_folder(clustered)])
        assert chart.table.rows[-1][-1] == pytest.approx(
            100 * summary["figures"]["accuracy_mixture"]["mean"], abs=1e-3
        )


@pytest.mark.slow
def test_fedmix_and_pfl_moe_figures_of_real_runs_are_drawn(simulate_once, tmp_path):
    """The gradient divergence of FedAvg and FedMix, experts over rounds, and a client's gain over FedAvg."""
    dirichlet = 'name = "dirichlet"\nnum_clients = 4\nalpha = 0.5\nmin_samples = 60'
    short = {"epochs": 1, "gate_epochs": 1, "personal_epochs": 0}
    fedmix_run = simulate_once(
        "fedmix", "fedmix", model="lenet5", rounds=4, partition=dirichlet, num_experts=2, **short
    )
    options = {"epochs": 1, "adapt_epochs": 1, "gate_epochs": 1}
    mfe = simulate_once(
        "mfe", "pfl-mfe", "--evaluate-every", "2", model="lenet5", rounds=2, partition=dirichlet, **options
    )
    for name, run in (
        ("fedmix-1", fedmix_run),
        ("fedmix-14", fedmix_run),
        ("pfl-moe-2", mfe),
        ("pfl-moe-3", mfe),
    ):
        path = tmp_path / f"{name}.png"
        assert edgefl(["report", "--figure", name, str(run), "-o", str(path)]) == 0
        assert path.read_bytes().startswith(b"\x89PNG")
    moe = simulate_once(
        "moe",
        "fedmix",
        model="lenet5",
        partition='name = "iid"\nnum_clients = 1',
        num_experts=3,
        objective="likelihood",
        server_optimizer="none",
        **short,
    )
    chart = make_figure("fedmix-14", [read_folder(moe)])
    gates = json.loads((moe / "gates.json").read_text())["client-000"]
    for row, (label, _, *shares) in zip(chart.table.rows, gates, strict=True):
        assert list(row) == pytest.approx([label, *shares], abs=1e-4)
    assert edgefl(["report", "--figure", "fedmix-14", str(moe), "-o", str(tmp_path / "moe.svg")]) == 0
    for row in json.loads((mfe / "summary.json").read_text())["clients"]:
        assert sum(row["diagnostics"][f"gate/{part}"] for part in ("global", "local")) == pytest.approx(1)
    alone = simulate_once("alone", "local", rounds=1, partition=dirichlet, epochs=1)
    assert edgefl(["report", "--figure", "pfl-moe-1", str(alone), "-o", str(tmp_path / "alone.svg")]) == 0
