"""The audit of a small federation on the numpy learner, and the command on digits."""

import json
from dataclasses import replace

import numpy as np
import pytest

from edgefl.base.config import FederationConfig, ModelConfig
from edgefl.base.errors import ConfigError
from edgefl.base.rng import derive_rng
from edgefl.base.tasks.config import TaskConfig
from edgefl.base.types import Shard
from edgefl.cli.commands.audit import format_audit, to_json_report
from edgefl.cli.main import run_command
from edgefl.learning.algorithms import make_algorithm
from edgefl.program.plan.spec import Plan
from edgefl.watch.audit.labels import read_labels
from edgefl.watch.audit.plot import plot_labels
from edgefl.watch.audit.scenarios import (
    ONE_STEP_NAME,
    Leak,
    Scenario,
    Setting,
    audit_labels,
    find_read_layer,
    guess,
    list_defences,
    simulate_first_updates,
    take_one_step,
)
from tests.support.numpy_learner.softmax import SoftmaxLearner, softmax_spec

OPTIONS = {"epochs": 1, "learning_rate": 0.05, "momentum": 0.0, "batch_size": 8}


def make_setting(name="fedavg", classes=5):
    """Return six clients with skewed labels and positive features, like the input of a layer after a ReLU."""
    spec = softmax_spec(name, inputs=6, features=6, classes=classes, options=OPTIONS)
    rng = np.random.default_rng(3)
    shards = {}
    for i in range(6):
        y = rng.choice(classes, 60, p=rng.dirichlet(np.full(classes, 0.5)))
        x = np.abs(np.eye(classes, 6)[y] + rng.normal(0, 0.5, (60, 6))).astype(np.float32)
        shards[f"pi-{i}"] = Shard(
            x_train=x,
            y_train=y.astype(np.int64),
            x_test=x[:20],
            y_test=y[:20].astype(np.int64),
            num_classes=classes,
        )
    initial = {w.name: rng.normal(0, 0.05, w.shape).astype(np.float32) for w in spec.weights}
    initial["trunk/kernel"] = np.eye(6, dtype=np.float32)
    initial["head/bias"] = np.zeros(classes, np.float32)
    learner = SoftmaxLearner(spec)
    config = FederationConfig(rounds=3, algorithm=name, options=OPTIONS, seed=4)
    return Setting(
        plan=Plan(spec=learner.spec, program=b"", template=b""),
        initial=initial,
        shards=shards,
        config=config,
        learner=learner,
    )


@pytest.fixture(scope="module")
def setting():
    return make_setting()


@pytest.fixture(scope="module")
def findings(setting):
    """Return the findings of five scenarios.

    These are one step, no defence, clipping, withheld bias, and withheld output layer.
    """
    return audit_labels(setting, (), accuracy=True, show_scenario=lambda line: None)


def test_one_step_over_batches_equals_step_of_one_batch(setting):
    shard = setting.shards["pi-0"]
    small = take_one_step(setting.learner, setting.initial, shard, 0.1, derive_rng(1, 1))
    large = take_one_step(
        SoftmaxLearner(softmax_spec("fedavg", inputs=6, features=6, classes=5, batch_size=60)),
        setting.initial,
        shard,
        0.1,
        derive_rng(1, 1),
    )
    for name, array in small.items():
        np.testing.assert_allclose(array, large[name], atol=1e-6)


def test_one_step_and_a_round_reveal_the_labels(setting, findings):
    exact, plain, *_ = findings
    assert exact.distance < 0.03
    assert exact.correlation > 0.99
    assert plain.distance < guess(setting).distance / 2
    assert plain.correlation > 0.9
    assert np.isnan(exact.accuracy)
    # An output layer with small random weights does not distinguish classes
    assert plain.accuracy > findings[-1].accuracy


def list_sources(finding):
    return {leak.reading.source for leak in finding.clients.values()}


def test_clipping_or_withheld_bias_does_not_hide_labels(findings):
    _, plain, clipped, without_bias, without_layer = findings
    assert clipped.distance == pytest.approx(plain.distance, abs=1e-5)
    assert list_sources(plain) == list_sources(clipped) == {"bias"}
    assert list_sources(without_bias) == {"kernel"}
    assert without_bias.correlation > 0.7
    assert list_sources(without_layer) == {"nothing"}  # this model has no hidden dense layer with a bias


def test_more_noise_hides_more(setting):
    limit = list_defences(setting, ())[1].options["clip_update"]
    distances = []
    for noise in (0.01, 0.3, 3.0):
        scenario = Scenario("", {"clip_update": limit, "noise_multiplier": noise})
        distances.append(measure_distance(setting, scenario))
    assert distances == sorted(distances)
    assert distances[-1] > 2 * distances[0]


def measure_distance(setting, scenario):
    layer = find_read_layer(setting)
    truth = {c: leak.truth for c, leak in guess(setting).clients.items()}
    updates = simulate_first_updates(setting, scenario)
    return float(
        np.mean(
            [
                Leak(truth[c], read_labels(update.deltas["global"], layer)).distance
                for c, update in updates.items()
            ]
        )
    )


def test_kernel_reveals_labels_when_bias_is_personal():
    personal = make_setting("biased-fedavg")
    finding = audit_labels(personal, (), accuracy=False, show_scenario=lambda line: None)[1]
    assert list_sources(finding) == {"kernel"}
    assert finding.correlation > 0.7


def test_report_is_json_and_table_has_a_line_per_scenario(setting, findings):
    report = json.loads(json.dumps(to_json_report(setting.config, findings, guess(setting)), allow_nan=False))
    assert report["rows"][0]["name"] == ONE_STEP_NAME
    assert report["rows"][0]["accuracy"] is None
    assert sum(report["rows"][0]["clients"]["pi-3"]["read"]) == pytest.approx(1)
    lines = format_audit(setting.config, findings, guess(setting), True).splitlines()
    assert [line.partition("  ")[0] for line in lines[1:7]] == [
        f.scenario.name for f in (*findings, guess(setting))
    ]


def test_plot_is_written_as_png(findings, tmp_path):
    pytest.importorskip("matplotlib")
    plot_labels(findings, tmp_path / "labels.png")
    assert (tmp_path / "labels.png").read_bytes().startswith(b"\x89PNG")


def test_an_algorithm_without_defences_is_an_error(setting):
    with pytest.raises(ConfigError, match="is 'local', expected one such as fedavg"):
        Setting(
            plan=setting.plan,
            initial=setting.initial,
            shards=setting.shards,
            config=FederationConfig(algorithm="local"),
            learner=setting.learner,
        )


def test_a_task_without_classes_is_an_error(setting):
    plan = replace(setting.plan, spec=replace(setting.plan.spec, task={"kind": "anomaly"}))
    config = FederationConfig(
        task=TaskConfig(kind="anomaly"),
        model=ModelConfig(name="autoencoder", input_shape=(4,), num_classes=4),
    )
    with pytest.raises(ConfigError, match=r"task is anomaly, expected a classification: .*another --config"):
        Setting(
            plan=plan, initial=setting.initial, shards=setting.shards, config=config, learner=setting.learner
        )


def test_missing_output_layer_is_an_error(setting):
    spec = replace(setting.plan.spec, num_classes=7)
    with pytest.raises(ConfigError, match="one number per class, 7"):
        find_read_layer(replace(setting, plan=Plan(spec=spec, program=b"", template=b"")))


def test_options_include_the_defences_of_the_scenario(setting):
    assert make_algorithm("fedavg", None, setting.build_options(Scenario("", {}))).name == "fedavg"
    assert setting.build_options(Scenario("", {"withhold": "bias"}))["withhold"] == "bias"


@pytest.mark.slow
def test_audit_command_prints_all_scenarios_as_json(tmp_path, capsys):
    pytest.importorskip("tensorflow")
    pytest.importorskip("sklearn")
    config = tmp_path / "federation.toml"
    config.write_text(
        '[federation]\nname = "small"\nrounds = 1\n[model]\nname = "softmax"\n[data]\nname = '
        '"digits"\nnum_train = 200\nnum_test = 50\n[partition]\nname = "dirichlet"\nnum_clients = '
        '3\n[algorithm]\nname = "fedavg"\nepochs = 1\nmomentum = 0.0\n'
    )
    assert run_command(["audit", "labels", "--config", str(config), "--noise", "0.1", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert len(rows) == 7
    assert rows[0]["distance"] < rows[-1]["distance"] / 2
    assert rows[-1]["name"] == "a uniform guess"
    assert 0 <= rows[1]["accuracy"] <= 1
