"""Plans of other tasks than classification: their losses, labels and format."""

import json
from dataclasses import replace

import numpy as np
import pytest

from edgefl.base.config import FederationConfig, ModelConfig
from edgefl.base.errors import ConfigError, DataError, PlanError
from edgefl.base.rng import derive_rng
from edgefl.base.tasks.config import TaskConfig
from edgefl.base.tasks.scores import measure_r2, measure_sample_losses
from edgefl.base.types import Shard
from edgefl.learning.algorithms import REGISTRY, make_algorithm
from edgefl.learning.algorithms.plans import build_plan, make_keras_learner
from edgefl.program.learner.base import evaluate, predict_label_log_p
from edgefl.program.learner.litert import LiteRTLearner
from edgefl.program.plan.fill import fill_template
from edgefl.program.plan.runtime import load_interpreter
from edgefl.program.plan.spec import (
    PLAN_FORMATS,
    TASK_PLAN_FORMAT,
    decode_plan,
    encode_plan,
    parse_spec,
    read_task,
    serialize_spec,
)
from edgefl.simulation.simulate import simulate

X = np.random.default_rng(1).normal(size=(30, 4)).astype(np.float32)
Y = (X[:, :2] * 2 + X[:, 2:] + 1).astype(np.float32)
TASK = TaskConfig(kind="regression", outputs=2)
MODEL = ModelConfig(name="softmax", input_shape=(4,), num_classes=2)


def make_config(task: TaskConfig = TASK, model: ModelConfig = MODEL, **values: object) -> FederationConfig:
    return FederationConfig(task=task, model=model, rounds=3, min_clients=2, **values)


@pytest.mark.parametrize("loss", ["mse", "mae", "huber"])
def test_loss_of_the_plan_equals_numpy_in_both_learners(loss: str) -> None:
    plan, weights = build_plan(make_config(replace(TASK, loss=loss)))
    outputs = LiteRTLearner(plan).predict("predict", weights, {"x": X})
    expected = measure_sample_losses(loss, outputs, Y).mean()
    losses = {}
    for learner in (LiteRTLearner(plan), make_keras_learner(plan.spec)):
        trained, losses[learner.name] = learner.fit(
            "train", weights, {"x": X}, Y, epochs=1, rng=derive_rng(1, 0, ""), hyper={"learning_rate": 0.0}
        )
        np.testing.assert_array_equal(trained["fc/kernel"], weights["fc/kernel"])
    assert losses["litert"] == pytest.approx(expected, rel=1e-5)
    assert losses["keras"] == pytest.approx(losses["litert"], rel=1e-6)


def test_training_learns_a_linear_map() -> None:
    plan, weights = build_plan(make_config())
    learner = LiteRTLearner(plan)
    trained, loss = learner.fit(
        "train", weights, {"x": X}, Y, epochs=200, rng=derive_rng(1, 0, ""), hyper={"learning_rate": 0.1}
    )
    measured = evaluate(learner, "predict", trained, X, Y)
    assert loss < 1e-3 and measured.loss < 1e-3
    assert measured.accuracy == measure_r2(learner.predict("predict", trained, {"x": X}), Y) > 0.999
    log_p = predict_label_log_p(learner, "predict", trained, X, Y)
    assert log_p.shape == (30,) and -log_p.mean() == pytest.approx(measured.loss)


def test_labels_of_another_shape_or_value_are_refused() -> None:
    plan, weights = build_plan(make_config())
    learner = LiteRTLearner(plan)
    for labels, message in (
        (Y[:, :1], r"\(1,\) per sample, expected \(2,\)"),
        (Y * np.nan, "NaN or infinite"),
    ):
        with pytest.raises(DataError, match=message):
            learner.fit("train", weights, {"x": X}, labels, epochs=1, rng=derive_rng(1, 0, ""))


def test_plan_has_its_own_format_and_survives_the_wire() -> None:
    plan, _ = build_plan(make_config(replace(TASK, loss="huber")))
    assert plan.spec.format == TASK_PLAN_FORMAT == 3
    again = decode_plan(encode_plan(plan))
    assert again.spec == plan.spec and again.id == plan.id
    assert read_task(again.spec) == replace(TASK, loss="huber")
    label = again.spec.find_signature("train").label
    assert label is not None and label.shape[1:] == (2,)
    newest = max(PLAN_FORMATS)
    text = serialize_spec(replace(plan.spec, format=newest + 1))
    with pytest.raises(PlanError, match=f"format {newest + 1}, expected at most {newest}; update edgefl"):
        parse_spec(text)
    with pytest.raises(PlanError, match="this is not a plan: TypeError"):
        parse_spec(json.dumps(json.loads(serialize_spec(plan.spec)) | {"task": ["anomaly"]}))
    with pytest.raises(PlanError, match=r"task does not fit.*update edgefl"):
        read_task(replace(plan.spec, task={"kind": "ranking"}))


def test_plan_of_a_classification_has_no_trace_of_tasks() -> None:
    plan, _ = build_plan(FederationConfig(model=ModelConfig(name="softmax", input_shape=(4,), num_classes=3)))
    stored = json.loads(serialize_spec(plan.spec))
    assert stored["format"] == 2 and "task" not in stored
    assert not any("label" in signature for signature in stored["signatures"])


@pytest.mark.slow
def test_autoencoders_reconstruct_their_input() -> None:
    for name, shape in (("autoencoder", (64,)), ("conv-autoencoder", (16, 2))):
        size = int(np.prod(shape))
        options = {"hidden": 16} if name == "autoencoder" else {}
        config = make_config(
            TaskConfig(kind="anomaly"),
            ModelConfig(name=name, input_shape=shape, num_classes=size, options=options),
        )
        plan, weights = build_plan(config)
        x = np.random.default_rng(1).normal(size=(20, *shape)).astype(np.float32)
        outputs = LiteRTLearner(plan).predict("predict", weights, {"x": x})
        assert outputs.shape == (20, size)


def test_models_that_do_not_fit_the_task_are_refused() -> None:
    with pytest.raises(ConfigError, match="multiple of 4"):
        build_plan(
            make_config(
                TaskConfig(kind="anomaly"),
                ModelConfig(name="conv-autoencoder", input_shape=(18, 2), num_classes=36),
            )
        )
    with pytest.raises(PlanError, match=r"train_head trains the last dense layers.*end the model with Dense"):
        build_plan(
            make_config(
                TaskConfig(kind="anomaly"),
                ModelConfig(name="conv-autoencoder", input_shape=(16, 2), num_classes=32),
                algorithm="pfl-fb",
            )
        )


def draw_shards() -> dict[str, Shard]:
    """Two clients with linear maps that differ in one number."""
    shards = {}
    for number in range(2):
        x = np.random.default_rng(number).normal(size=(60, 4)).astype(np.float32)
        y = (x[:, :2] * 2 + x[:, 2:] + number).astype(np.float32)
        zeros = np.zeros(60, np.int64)
        shards[f"client-{number}"] = Shard(
            x_train=x[:40],
            y_train=zeros[:40],
            x_test=x[40:],
            y_test=zeros[40:],
            num_classes=1,
            target_train=y[:40],
            target_test=y[40:],
        )
    return shards


@pytest.mark.parametrize(
    "name",
    [
        name if name in ("aem", "fedavg") else pytest.param(name, marks=pytest.mark.slow)
        for name, entry in sorted(REGISTRY.items())
        if not entry.needs_classes
    ],
)
def test_algorithms_personalize_a_regression(name: str) -> None:
    # Partial sharing needs a model of several layers, which learns little in three rounds.
    deep = ModelConfig(
        name="autoencoder", input_shape=(4,), num_classes=2, options={"hidden": 16, "code": 8, "depth": 1}
    )
    is_partial = name in ("fedbn", "fedper", "fedrep", "lg-fedavg")
    config = make_config(algorithm=name, model=deep if is_partial else MODEL)
    plan, initial = build_plan(config)
    result = simulate(plan, initial, draw_shards(), config)
    for client in result.results.values():
        assert (0 if is_partial else 0.5) < client.metrics["r2_shipped"] <= 1, client.metrics
        assert "accuracy_shipped" not in client.metrics
        assert client.metrics["test_gained"] + client.metrics["test_lost"] <= 20


@pytest.mark.parametrize("name", sorted(name for name, entry in REGISTRY.items() if entry.needs_classes))
def test_other_algorithms_say_why_they_need_classes(name: str) -> None:
    with pytest.raises(
        ConfigError, match=f"'{name}' with kind = 'regression'.*expected a classification"
    ) as error:
        build_plan(make_config(algorithm=name))
    assert REGISTRY[name].needs_classes in str(error.value) and "fedavg" in str(error.value)
    assert make_algorithm(name, None, {})


def test_binary_loss_trains_models_with_one_output(tmp_path) -> None:
    """The loss is the binary cross-entropy of a sigmoid, and the exported template has two logits."""
    import keras

    path = str(tmp_path / "m.keras")
    layers = keras.layers
    keras.Sequential([keras.Input((4,)), layers.Dense(1, activation="sigmoid", name="fc")]).save(path)
    config = make_config(TaskConfig(loss="binary"), ModelConfig(name=path, input_shape=(4,), num_classes=2))
    plan, weights = build_plan(config)
    assert plan.spec.is_classification and plan.spec.num_classes == 2
    learner = LiteRTLearner(plan)
    y = (X[:, 0] > 0).astype(np.int64)
    logits = learner.predict("predict", weights, {"x": X})
    np.testing.assert_allclose(logits[:, 0], 0)
    np.testing.assert_allclose(logits[:, 1], X @ weights["fc/kernel"][:, 0], rtol=1e-5, atol=1e-6)
    trained, loss = learner.fit(
        "train", weights, {"x": X}, y, epochs=1, rng=derive_rng(1, 0, ""), hyper={"learning_rate": 0.0}
    )
    chance = 1 / (1 + np.exp(-logits[:, 1].astype(np.float64)))
    assert loss == pytest.approx(-np.log(np.where(y == 1, chance, 1 - chance)).mean(), rel=1e-5)
    model = fill_template(*plan.find_template("predict"), trained)
    interpreter = load_interpreter(model)
    interpreter.allocate_tensors()
    interpreter.set_tensor(interpreter.get_input_details()[0]["index"], X[:1])
    interpreter.invoke()
    result = interpreter.get_tensor(interpreter.get_output_details()[0]["index"])
    np.testing.assert_allclose(result, logits[:1], rtol=1e-5, atol=1e-6)


def test_binary_loss_needs_one_output() -> None:
    with pytest.raises(
        ConfigError, match=r"returns \(2,\) per sample, expected one value for loss = 'binary'"
    ):
        build_plan(
            make_config(
                TaskConfig(loss="binary"), ModelConfig(name="softmax", input_shape=(4,), num_classes=2)
            )
        )
