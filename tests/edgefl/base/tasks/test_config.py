"""The table [task]: its checks, and its part in configurations and plans."""

import pytest

from edgefl.base.config import FederationConfig, ModelConfig, parse_config
from edgefl.base.config.toml import to_toml
from edgefl.base.errors import ConfigError
from edgefl.base.tasks.config import TaskConfig


def test_default_is_a_classification_that_plans_do_not_mention() -> None:
    task = FederationConfig().task
    assert task.is_classification and task.loss_name == "cross-entropy"
    assert task.as_plan_entry() == {}
    assert "[task]" not in to_toml(FederationConfig())


def test_outputs_follow_from_the_task() -> None:
    assert TaskConfig().count_outputs((28, 28, 1), 10) == 10
    assert TaskConfig(loss="binary").count_outputs((28, 28, 1), 10) == 2
    assert TaskConfig(kind="regression", outputs=3).count_outputs((8,), 10) == 3
    assert TaskConfig(kind="anomaly").count_outputs((128, 3), 10) == 384


def test_configuration_needs_no_number_of_outputs_and_survives_toml() -> None:
    text = (
        '[task]\nkind = "anomaly"\nanomalies = [2, 3]\nfalse_alarm_rate = 0.05\n[model]\nname = "autoencoder"'
    )
    config = parse_config(text + "\ninput_shape = [32, 2]\n")
    assert config.model.num_classes == 64
    assert config.task == TaskConfig(kind="anomaly", anomalies=(2, 3), false_alarm_rate=0.05)
    assert parse_config(to_toml(config)) == config


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"kind": "clustering"}, "'clustering', expected one of classification, regression, anomaly"),
        (
            {"kind": "regression", "loss": "cross-entropy"},
            "expected mse or mae or huber for kind = 'regression'",
        ),
        ({"loss": "mse"}, "expected cross-entropy or binary for kind = 'classification'"),
        ({"outputs": 2}, "only kind = 'regression' uses it"),
        ({"kind": "regression", "outputs": 0}, "outputs is 0, expected at least 1"),
        ({"kind": "regression", "anomalies": (1,)}, "only kind = 'anomaly' uses it"),
        ({"kind": "anomaly", "anomalies": (-1,)}, r"anomalies is \[-1\]"),
        ({"kind": "anomaly", "false_alarm_rate": 1.0}, "false_alarm_rate is 1.0, expected a share"),
    ],
)
def test_wrong_values_are_refused(values: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        TaskConfig(**values)  # type: ignore[arg-type]


def test_number_of_outputs_that_contradicts_the_task_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"num_classes is 10, expected 64 .*; leave num_classes out"):
        FederationConfig(
            task=TaskConfig(kind="anomaly"),
            model=ModelConfig(name="autoencoder", input_shape=(64,), num_classes=10),
        )
    with pytest.raises(ConfigError, match=r"num_classes is 1, expected at least 2.*Dense\(2\)"):
        FederationConfig(model=ModelConfig(name="softmax", input_shape=(64,), num_classes=1))
