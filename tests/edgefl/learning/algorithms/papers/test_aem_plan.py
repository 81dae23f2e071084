"""Adaptive Expert Models compiled: the laws on LiteRT, TensorFlow's gradients, and the export."""

from dataclasses import replace

import numpy as np
import pytest

from edgefl.base.errors import ConfigError
from edgefl.base.rng import derive_rng
from edgefl.base.types import Shard
from edgefl.learning.algorithms import make_algorithm
from edgefl.learning.algorithms.check import check_algorithm
from edgefl.program.learner.litert import LiteRTLearner
from edgefl.program.plan.fill import fill_template

COMMON = {"num_experts": 2, "epochs": 1, "batch_size": 8, "local_epochs": 1, "gate_epochs": 1}
OPTIONS = {
    "features": {**COMMON, "gate": "features", "gate_share": 0.0},
    "models": {
        **COMMON,
        "gate": "softmax",
        "local_model": "softmax",
        "baselines": True,
        "patience": 1,
        "validation_share": 0.1,
    },
}


@pytest.fixture(scope="module", params=sorted(OPTIONS))
def built_plan(request, tiny_config):
    """Return (plan, initial weights, options) of the tiny network with this gate and local model."""
    from edgefl.learning.algorithms.plans import build_plan

    options = OPTIONS[request.param]
    return *build_plan(replace(tiny_config, algorithm="aem", options=options)), options


@pytest.fixture
def small_shards(digits):
    x, y = digits
    return {
        f"pi-{i}": Shard(
            x_train=x[i::3][:24],
            y_train=y[i::3][:24],
            x_test=x[i::3][40:50],
            y_test=y[i::3][40:50],
            num_classes=10,
        )
        for i in range(3)
    }


def test_the_laws_hold_on_litert(built_plan, small_shards):
    plan, initial, options = built_plan
    check_algorithm(
        lambda any_learner: make_algorithm("aem", any_learner, options),
        LiteRTLearner(plan),
        initial,
        small_shards,
    )


def test_gate_and_local_training_take_same_steps_as_keras(built_plan, digits):
    from edgefl.learning.algorithms.plans import make_keras_learner

    plan, initial, _ = built_plan
    x = digits[0][:40]
    y = digits[1][:40]
    pair = LiteRTLearner(plan), make_keras_learner(plan.spec)
    for name in ("train_gate", "train_local"):
        signature = plan.spec.find_signature(name)
        weights = {
            s.name: initial.get(s.name, derive_rng(1, 1, s.name).normal(0, 0.1, s.shape).astype(np.float32))
            for s in signature.trained
        }
        weights |= {
            n.removeprefix("local/"): a
            for n, a in initial.items()
            if name == "train_local" and n.startswith("local/")
        }
        data = {
            s.name: x if s.name == "x" else derive_rng(1, 1, s.name).random((40, *s.shape[1:]), np.float32)
            for s in signature.data
        }
        (first, loss), (second, other) = (
            any_learner.fit(name, weights, data, y, epochs=2, rng=derive_rng(1, 1)) for any_learner in pair
        )
        assert loss == pytest.approx(other, abs=1e-4)
        for key in first:
            assert np.abs(first[key] - weights[key]).max() > 0
            np.testing.assert_allclose(first[key], second[key], atol=1e-4, err_msg=f"{name} {key}")


def test_exported_template_returns_probabilities_of_predict_mixture(built_plan, digits):
    from edgefl.program.plan.runtime import load_interpreter

    plan, _, _ = built_plan
    frozen = plan.spec.find_signature("predict_mixture").frozen
    weights = {s.name: derive_rng(2, 1, s.name).normal(0, 0.2, s.shape).astype(np.float32) for s in frozen}
    expected = np.exp(LiteRTLearner(plan).predict("predict_mixture", weights, {"x": digits[0][:1]}))
    assert expected.sum() == pytest.approx(1, abs=1e-5)
    interpreter = load_interpreter(fill_template(plan.template, plan.spec.bindings, weights), reference=True)
    interpreter.allocate_tensors()
    interpreter.set_tensor(interpreter.get_input_details()[0]["index"], digits[0][:1])
    interpreter.invoke()
    np.testing.assert_allclose(
        interpreter.get_tensor(interpreter.get_output_details()[0]["index"]), expected, atol=1e-5
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"gate": "pixel"}, "unknown model 'pixel'"),
        ({"gate_options": {"hidden": 8}}, "gate 'pixels' has no options"),
        ({"local_model": "lenet"}, "unknown model 'lenet'"),
    ],
)
def test_unknown_gate_or_local_model_is_an_error(options, message, tiny_config):
    from edgefl.learning.algorithms import build_objectives
    from edgefl.program.compiler.build import make_network

    with pytest.raises(ConfigError, match=message):
        build_objectives("aem", make_network(tiny_config), options)


def test_layer_named_like_a_mixture_part_is_an_error():
    keras = pytest.importorskip("keras", reason="the aggregator extra is not installed")
    from edgefl.learning.algorithms import build_objectives
    from edgefl.program.compiler.network import Network

    network = Network(keras.Sequential([keras.Input((4,)), keras.layers.Dense(3, name="gate")]))
    with pytest.raises(ConfigError, match="named 'gate'"):
        build_objectives("aem", network, {})


@pytest.mark.parametrize("gate", ["pixels", "softmax"])
def test_local_model_and_gate_read_normalized_samples(gate):
    """A gate with mean and std equals the gate of the raw model on samples that were normalized before."""
    pytest.importorskip("keras", reason="the aggregator extra is not installed")
    from edgefl.base.config import FederationConfig, ModelConfig
    from edgefl.learning.algorithms.papers.aem import AemOptions, build_aem_objectives, make_gate
    from edgefl.program.compiler.build import make_network

    options = AemOptions(num_experts=2, gate=gate, local_model="softmax")
    rng = np.random.default_rng(0)
    x = rng.random((64, 2, 2, 3), np.float32)
    mean, std = (0.5, 0.1, -1.0), (0.25, 2.0, 0.5)
    scaled = ((x - np.float32(mean)) / np.float32(std)).astype(np.float32)
    outputs = []
    plain = ModelConfig(name="softmax", input_shape=(2, 2, 3), num_classes=4)
    for model, samples in ((plain, scaled), (replace(plain, mean=mean, std=std), x)):
        network = make_network(FederationConfig(model=model))
        apply_gate = make_gate(network, options).apply
        (local,) = [item for item in build_aem_objectives(network, options) if item.name == "predict_local"]
        draws = np.random.default_rng(1)
        weights = {
            spec.name: draws.normal(size=spec.shape).astype(np.float32)
            for spec in (*make_gate(network, options).specs, *local.frozen)
        }
        outputs.append(
            (
                apply_gate(weights, samples, False, None)[0],
                local.out(weights, {"x": samples[: local.batch_size]}),
            )
        )
    for raw, normalized in zip(*outputs, strict=True):
        np.testing.assert_allclose(normalized, raw, rtol=1e-4, atol=1e-4)
