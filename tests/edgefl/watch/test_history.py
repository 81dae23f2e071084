"""A federation that is simulated from Python."""

import json
import re
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

import edgefl
from edgefl.base.config import FleetConfig, PersonalizationConfig, PrivacyConfig
from edgefl.base.config.toml import to_toml
from edgefl.base.errors import ConfigError, DataError, StateError
from edgefl.cli.main import run_command
from edgefl.watch.history import make_history

CONFIG = edgefl.FederationConfig(
    rounds=3,
    algorithm="fedavg",
    model=edgefl.ModelConfig(name="softmax", input_shape=(28, 28, 1), num_classes=10),
    data=edgefl.DataConfig(name="digits", num_train=200, num_test=60),
    partition=edgefl.PartitionConfig(name="iid", num_clients=3),
)


@pytest.fixture(scope="module")
def history():
    return edgefl.simulate(CONFIG, evaluate_every=2, show_progress=False)


def test_each_array_has_a_value_for_each_round(history):
    assert history.rounds.tolist() == [1, 2, 3]
    for name in ("loss", "accuracy", "accuracy_p10", "accuracy_p90", "seconds"):
        values = getattr(history, name)
        assert values.shape == (3,) and values.dtype == np.float64 and np.isfinite(values).all(), name
    assert (history.accuracy_p10 <= history.accuracy).all() and (
        history.accuracy <= history.accuracy_p90
    ).all()
    assert history.loss[-1] < history.loss[0]
    assert np.isnan(history.test_accuracy).tolist() == [True, False, False]  # the last round always counts
    assert history.bytes_up.dtype == np.int64 and (history.bytes_up > 0).all()


def test_clients_make_no_local_model_unless_asked(history):
    assert sorted(history.clients) == ["client-000", "client-001", "client-002"]
    assert "accuracy_local" not in history.clients["client-000"]
    compared = edgefl.simulate(CONFIG, compare=True, show_progress=False)
    assert {"accuracy_local", "accuracy_blend"} <= compared.clients["client-000"].keys()
    np.testing.assert_array_equal(compared.loss, history.loss)


def test_the_figures_are_those_of_the_command(history, tmp_path, capsys):
    """`edgefl simulate` with the same configuration has the same losses and accuracies."""
    settings = replace(CONFIG.personalization, select=False, baseline=False)
    file = tmp_path / "federation.toml"
    file.write_text(to_toml(replace(CONFIG, personalization=settings)))
    assert run_command(["simulate", str(file), "--out", str(tmp_path / "run"), "--json"]) == 0
    summary = json.loads(capsys.readouterr().out)
    records = [json.loads(line) for line in (tmp_path / "run" / "rounds.jsonl").read_text().splitlines()]
    assert [record["loss"] for record in records] == history.loss.tolist()
    accuracies = {row["id"]: row["accuracy_mixture"] for row in summary["clients"]}
    assert accuracies == {name: figures["accuracy_mixture"] for name, figures in history.clients.items()}


def test_a_directory_keeps_the_run_and_continues_it(history, tmp_path):
    first = edgefl.simulate(replace(CONFIG, rounds=2), out=tmp_path / "run", show_progress=False)
    again = edgefl.simulate(replace(CONFIG, rounds=3), out=tmp_path / "run", show_progress=False)
    assert len(first.rounds) == 2
    np.testing.assert_array_equal(again.loss, history.loss)
    assert run_command(["compare", str(tmp_path / "run"), str(tmp_path / "run"), "--json"]) == 0
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["rounds"] == 3 and summary["command"] == "edgefl.simulate"
    assert run_command(["report", str(tmp_path / "run"), "-o", str(tmp_path / "report.html")]) == 0
    assert "not finished" not in (tmp_path / "report.html").read_text()


def test_data_frames_have_the_values(history):
    frame = history.to_dataframe()
    assert frame.index.tolist() == [1, 2, 3] and frame.index.name == "round"
    assert frame["accuracy_p90"].tolist() == history.accuracy_p90.tolist()
    clients = history.to_client_dataframe()
    assert clients.loc["client-001", "n_train"] == history.clients["client-001"]["n_train"]


def test_a_picture_is_drawn(history, tmp_path):
    figure = history.plot(tmp_path / "figures" / "run.png")
    assert (tmp_path / "figures" / "run.png").read_bytes().startswith(b"\x89PNG")
    labels = [axes.get_ylabel() for axes in figure.axes]
    assert labels == ["training loss", "accuracy, per cent"]
    with pytest.raises(ConfigError, match=r"ends in \.gif, expected \.svg, \.png, \.pdf"):
        history.plot(tmp_path / "run.gif")


def test_a_file_that_ships_a_blend_is_simulated(tmp_path):
    personalization = replace(CONFIG.personalization, ship="blend")
    file = tmp_path / "federation.toml"
    file.write_text(to_toml(replace(CONFIG, rounds=1, personalization=personalization)))
    assert len(edgefl.simulate(str(file), show_progress=False).rounds) == 1
    assert edgefl.load_config(str(file)).personalization.ship == "blend"


def test_a_shape_may_be_a_list():
    model = edgefl.ModelConfig(name="softmax", input_shape=[28, 28, 1], num_classes=10)
    assert model == CONFIG.model and model.input_shape == (28, 28, 1)


def test_figures_of_a_regression_are_r2():
    """Mean and percentiles are those of two devices, and the mean on the test samples is (.5 + .7) / 2."""
    record = {
        "round": 1,
        "loss": 0.5,
        "seconds": 1.0,
        "bytes_up": 5,
        "bytes_down": 6,
        "accuracy_mean": 0.6,
        "accuracy_p10": 0.52,
        "accuracy_p90": 0.68,
        "updates": {"a": {"r2": 0.5}, "b": {"r2": 0.7}},
        "measured": {"clients": {"a": {"r2_mixture": 0.5}, "b": {"r2_mixture": 0.7}}},
    }
    clients = {name: {"r2_shipped": 0.5, "r2_mixture": 0.5} for name in ("a", "b")}
    history = make_history(CONFIG, [record], clients)
    assert history.measure == history.test_measure == "R2"
    assert history.accuracy.tolist() == [0.6] and history.test_accuracy == pytest.approx([0.6])
    assert history.plot().axes[1].get_ylabel() == "R2, per cent"


def test_missing_figures_are_nan():
    records = [
        {"round": 1, "loss": None, "seconds": 1.0, "bytes_up": 5, "bytes_down": 6},
        {"round": 2, "loss": 0.5, "seconds": 2.0, "bytes_up": 7, "bytes_down": 8},
    ]
    history = make_history(CONFIG, records, {})
    assert np.isnan(history.loss).tolist() == [True, False] and np.isnan(history.accuracy).all()
    assert history.bytes_down.tolist() == [6, 8]


def test_what_cannot_be_simulated_is_refused(tmp_path):
    fleet = edgefl.load_config(write_fleet(tmp_path))
    with pytest.raises(ConfigError, match=r"table \[fleet\], expected none.*remove the table"):
        edgefl.simulate(fleet)
    with pytest.raises(ConfigError, match="evaluate_every is -1, expected 0 or a number of rounds"):
        edgefl.simulate(CONFIG, evaluate_every=-1)
    with pytest.raises(ConfigError, match="number of processes is 0, expected at least 1"):
        edgefl.simulate(CONFIG, processes=0, show_progress=False)
    with pytest.raises(AttributeError, match="no attribute 'simulat'; it has DataConfig"):
        _ = edgefl.simulat


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: edgefl.simulate({"rounds": 1}), "config is a dict, expected a FederationConfig or the path"),
        (lambda: edgefl.simulate(CONFIG, processes="2"), "processes is '2', expected a whole number"),
        (
            lambda: edgefl.simulate(CONFIG, evaluate_every=1.5),
            "evaluate_every is 1.5, expected a whole number",
        ),
        (lambda: replace(CONFIG, rounds="3"), r"\[federation\] rounds is '3', expected a whole"),
        (lambda: replace(CONFIG, rounds=1.5), r"\[federation\] rounds is 1.5, expected a whole number"),
        (lambda: replace(CONFIG, rounds=True), r"\[federation\] rounds is True, expected a whole number"),
        (
            lambda: replace(CONFIG, model="lenet5"),
            r"model is 'lenet5', expected a ModelConfig; write ModelConfig\(",
        ),
        (lambda: replace(CONFIG, options=None), r"\[federation\] options is None, expected a table"),
        (lambda: replace(CONFIG, algorithm=None), r"\[federation\] algorithm is None, expected text"),
        (
            lambda: edgefl.PartitionConfig(num_clients=20.0),
            r"\[partition\] num_clients is 20.0, expected a whole",
        ),
        (
            lambda: edgefl.ModelConfig(name=print),
            r"\[model\] name is <built-in function print>, expected text",
        ),
        (
            lambda: replace(CONFIG, fleet={"hours": 8}),
            r"fleet is \{'hours': 8\}, expected a FleetConfig or None",
        ),
        (
            lambda: PrivacyConfig(secure_aggregation="false"),
            r"\[privacy\] secure_aggregation is 'false', expected",
        ),
        (lambda: PrivacyConfig(clip="1"), r"\[privacy\] clip is '1', expected a number"),
        (lambda: PersonalizationConfig(select="no"), r"\[personalization\] select is 'no', expected true or"),
        (lambda: FleetConfig(samples_per_s="3"), r"\[fleet\] samples_per_s is '3', expected a number"),
        (lambda: edgefl.DataConfig(name=(1, 2)), r"\[data\] name is \(1, 2\), expected text"),
    ],
)
def test_a_value_of_another_type_is_named(make, message):
    with pytest.raises(ConfigError, match=message):
        make()


def test_numbers_of_numpy_are_numbers():
    model = replace(
        CONFIG.model, input_shape=np.array([28, 28, 1]), mean=np.array([0.5]), std=np.array([2.0])
    )
    config = replace(CONFIG, rounds=np.int64(2), deadline_s=np.float32(2.5), model=model)
    assert (config.rounds, config.deadline_s, config.model.input_shape) == (2, 2.5, (28, 28, 1))
    assert config.model.mean == (0.5,)
    assert type(config.rounds) is int


def test_labels_without_an_output_are_refused_before_the_model_is_compiled():
    config = replace(CONFIG, model=replace(CONFIG.model, num_classes=5))
    with pytest.raises(DataError, match=r"label 9, expected labels from 0 to 4 .* set num_classes to 10"):
        edgefl.simulate(config, show_progress=False)


def test_negative_labels_are_refused_before_the_model_is_compiled(tmp_path):
    x = np.random.default_rng(1).normal(size=(40, 6)).astype(np.float32)
    np.savez(tmp_path / "x.npz", x=x, y=np.arange(40) % 3 - 1)
    model = edgefl.ModelConfig(name="softmax", input_shape=(6,), num_classes=3)
    config = replace(CONFIG, model=model, data=edgefl.DataConfig(name=f"npz:{tmp_path}/x.npz"))
    with pytest.raises(DataError, match="hold -1, which is not a class, expected whole numbers from 0"):
        edgefl.simulate(config, show_progress=False)


def test_what_is_not_reported_is_said_in_its_part_of_the_picture(history):
    silent = replace(history, accuracy=np.full(3, np.nan), test_accuracy=np.full(3, np.nan))
    losses, accuracies = silent.plot().axes
    assert [text.get_text() for text in losses.texts] == []
    assert [text.get_text() for text in accuracies.texts] == ["not reported in the rounds"]


def test_a_run_with_more_rounds_is_not_returned_as_one_with_fewer(tmp_path):
    edgefl.simulate(CONFIG, out=tmp_path / "run", show_progress=False)
    with pytest.raises(ConfigError, match=r"has 3 rounds, expected at most 2, .*; raise rounds"):
        edgefl.simulate(replace(CONFIG, rounds=2), out=tmp_path / "run", show_progress=False)


def test_several_federations_are_drawn_in_one_picture(history, tmp_path):
    other = replace(history, config=replace(CONFIG, algorithm="pfl-mfe"), test_accuracy=history.accuracy)
    figure = other.plot(tmp_path / "both.svg", beside={"fedavg": history})
    losses, accuracies = figure.axes
    assert [text.get_text() for text in accuracies.get_legend().get_texts()] == ["pfl-mfe", "fedavg"]
    assert "on test samples" in accuracies.get_ylabel()
    assert [list(line.get_xdata()) for line in accuracies.get_lines()] == [[1, 2, 3], [2, 3]]
    assert len(losses.get_lines()) == 2
    with pytest.raises(ConfigError, match="name 'fedavg' of this federation, expected other names"):
        history.plot(beside={"fedavg": other})
    with pytest.raises(StateError, match=r"cannot write /proc/none/a.png: .*; "):
        history.plot("/proc/none/a.png")


def test_a_history_is_shown_in_one_line(history):
    shown = repr(history)
    assert re.fullmatch(r"History\(fedavg, 3 rounds, 3 clients, accuracy_mixture 0\.\d+\)", shown)
    assert repr(make_history(CONFIG, [], {})) == "History(fedavg, 0 rounds, 0 clients)"


def write_fleet(folder):
    file = folder / "fleet.toml"
    file.write_text(to_toml(CONFIG) + "\n[fleet]\n")
    return file


def test_importing_the_package_loads_neither_numpy_nor_tensorflow():
    """A device imports `edgefl` before it knows what it needs."""
    code = "import sys, edgefl; print({'numpy', 'tensorflow', 'click'} & sys.modules.keys())"
    assert set(edgefl.__all__) <= set(dir(edgefl))
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert printed == "set()\n"
