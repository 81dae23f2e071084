"""Mean and std are set into a compiled plan, with the bits that the compiler would compute."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("keras", reason="the aggregator extra is not installed")

from edgefl.base.config import FederationConfig, ModelConfig
from edgefl.base.errors import PlanError
from edgefl.learning.algorithms.plans import build_plan
from edgefl.program.learner.litert import LiteRTLearner
from edgefl.program.models.input_normalization import normalize_input
from edgefl.program.plan.fill import fill_template, list_weight_names
from edgefl.program.plan.inspect import inspect_plan, render_plan
from edgefl.program.plan.normalization import (
    check_normalization,
    compute_constants,
    format_normalization,
    has_placeholders,
    make_placeholders,
    read_normalization,
    set_normalization,
)
from edgefl.program.plan.runtime import load_interpreter
from edgefl.simulation.clients import SimulatedFederation

MEAN = (0.5, -0.25)
STD = (0.5, 0.125)


def make_config(algorithm: str = "pfl-mfe", **model: Any) -> FederationConfig:
    small = ModelConfig(name="softmax", input_shape=(3, 2), num_classes=3)
    return FederationConfig(algorithm=algorithm, model=replace(small, **model))


@pytest.fixture(scope="module")
def unmeasured():
    return build_plan(make_config(normalize=True))


@pytest.fixture(scope="module")
def fixed():
    return build_plan(make_config(mean=MEAN, std=STD))


def test_constants_by_hand():
    scale, offset = compute_constants(MEAN, STD)
    np.testing.assert_array_equal(scale, [2, 8])
    np.testing.assert_array_equal(offset, [-1, 2])


@pytest.mark.parametrize(("mean", "std"), [((0.1307,), (0.3081,)), ((1e4, -1e-3), (7e-5, 3e6))])
def test_constants_have_the_bits_of_the_compiler(mean, std):
    import keras
    import tensorflow as tf

    from edgefl.program.compiler.layers import normalize

    channels = len(mean)
    model = keras.Sequential([keras.Input((channels,)), keras.layers.Dense(1)])
    layer = normalize_input(model, mean, std).layers[1]
    x = np.random.default_rng(0).normal(size=(50, channels)).astype(np.float32)
    scale, offset = compute_constants(mean, std)
    np.testing.assert_array_equal(np.asarray(normalize(layer, tf.constant(x))), x * scale + offset)


def test_measured_plan_is_the_plan_with_the_values_in_the_configuration(unmeasured, fixed):
    plan, weights = unmeasured
    measured = set_normalization(plan, MEAN, STD)
    assert measured.spec == fixed[0].spec and measured.id == fixed[0].id
    assert weights.keys() == fixed[1].keys()
    assert all(np.array_equal(weights[name], fixed[1][name]) for name in weights)
    assert read_normalization(measured.spec) == {"mean": [0.5, -0.25], "std": [0.5, 0.125]}


def test_program_and_templates_normalize(unmeasured):
    """Each graph computes on raw samples what the plan without normalization computes on normalized ones."""
    raw, _ = build_plan(make_config())
    plan = set_normalization(unmeasured[0], MEAN, STD)
    x = np.random.default_rng(1).normal(size=(5, 3, 2)).astype(np.float32)
    scaled = ((x - np.float32(MEAN)) / np.float32(STD)).astype(np.float32)
    rng = np.random.default_rng(2)
    specs = {spec.name: spec for each in raw.spec.signatures for spec in (*each.trained, *each.frozen)}
    drawn = {name: rng.normal(size=spec.shape).astype(np.float32) for name, spec in specs.items()}
    for signature in ("predict", "predict_mixture"):
        expected = LiteRTLearner(raw).predict(signature, drawn, {"x": scaled})
        result = LiteRTLearner(plan).predict(signature, drawn, {"x": x})
        np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-5)
        template, bindings = plan.find_template(signature)
        filled = {name: drawn[name] for name in list_weight_names(bindings)}
        interpreter = load_interpreter(fill_template(template, bindings, filled))
        interpreter.allocate_tensors()
        interpreter.set_tensor(interpreter.get_input_details()[0]["index"], x[:1])
        interpreter.invoke()
        exported = interpreter.get_tensor(interpreter.get_output_details()[0]["index"])
        np.testing.assert_allclose(exported, expected[:1], rtol=1e-4, atol=1e-5)


SLOW_PLANS = {(algorithm, "cnn1d") for algorithm in ("aem", "pfl-mf")} | {("fedmix", "mlp"), ("aem", "mlp")}


@pytest.mark.parametrize(
    ("algorithm", "name", "shape"),
    [
        pytest.param(algorithm, name, shape, marks=[pytest.mark.slow] * ((algorithm, name) in SLOW_PLANS))
        for algorithm in ("fedavg", "aem", "pfl-mf", "fedmix")
        for name, shape in (("softmax", (12,)), ("mlp", (12,)), ("cnn1d", (32, 3)))
    ],
)
def test_plans_of_vectors_and_windows_are_compiled_with_placeholders(algorithm, name, shape):
    """The converter must merge no bias of a dense layer into the constants of the normalization."""
    config = make_config(algorithm, name=name, input_shape=shape, normalize=True)
    plan, _ = build_plan(config)
    channels = shape[-1]
    mean, std = np.linspace(-1, 1, channels), np.linspace(1, 2, channels)
    assert not has_placeholders(set_normalization(plan, mean.tolist(), std.tolist()).spec)


def test_one_value_counts_for_all_channels(unmeasured):
    one = set_normalization(unmeasured[0], (0.5,), (2.0,))
    two = set_normalization(unmeasured[0], (0.5, 0.5), (2.0, 2.0))
    assert one.program == two.program and one.template == two.template


def test_model_that_scales_its_own_input_is_not_normalized(tmp_path):
    import keras

    path = tmp_path / "own.keras"
    layers = keras.layers
    keras.Sequential(
        [keras.Input((3, 2)), layers.Rescaling(1 / 255), layers.Flatten(), layers.Dense(3)]
    ).save(path)
    plan, _ = build_plan(make_config("fedavg", name=str(path), normalize=True))
    assert "mean" not in plan.spec.model_options and not has_placeholders(plan.spec)


def test_first_layer_that_absorbs_the_constants_is_refused_when_the_plan_is_built(tmp_path):
    """The converter folds x * 2 + 1 into the constants, so they cannot be found after the measurement."""
    import keras

    path = tmp_path / "own.keras"
    inputs = keras.Input((3, 2))
    outputs = keras.layers.Dense(3)(keras.layers.Flatten()(inputs + 1.0))
    keras.Model(inputs, outputs).save(path)
    with pytest.raises(PlanError, match="no constants of its input normalization"):
        build_plan(make_config("fedavg", name=str(path), normalize=True))


def test_placeholders_are_neither_trained_nor_set_twice(unmeasured, fixed):
    plan, _ = unmeasured
    with pytest.raises(PlanError, match=r"not set: .* before round 1; set both in \[model\]"):
        check_normalization(plan.spec)
    with pytest.raises(PlanError, match="not set"):
        SimulatedFederation(plan=plan, seed=0, shards={})
    with pytest.raises(PlanError, match=r"are set already; build it again with `edgefl plan build`"):
        set_normalization(fixed[0], MEAN, STD)
    assert "mean measured before round 1" in render_plan(inspect_plan(plan))
    assert f"mean {list(MEAN)}" in render_plan(inspect_plan(fixed[0]))


def test_program_without_the_constants_is_refused(unmeasured, fixed):
    other = replace(unmeasured[0], program=fixed[0].program)
    with pytest.raises(
        PlanError, match=r"program of this plan has no constants .*; write it as a Rescaling layer"
    ):
        set_normalization(other, MEAN, STD)


@pytest.mark.parametrize(
    "options", [{}, {"mean": 5, "std": 5}, {"mean": [1, 2], "std": []}, 5, [], {"mean": [[1]], "std": [{}]}]
)
def test_options_of_a_strangers_plan_are_no_placeholders(unmeasured, options):
    assert not has_placeholders(replace(unmeasured[0].spec, model_options=options))


def test_plan_without_a_shape_has_no_placeholders(unmeasured):
    assert not has_placeholders(replace(unmeasured[0].spec, input_shape=()))


def test_placeholders_of_channels_differ():
    mean, std = make_placeholders(9)
    scale, offset = compute_constants(mean, std)
    assert len({*scale.tolist(), *offset.tolist()}) == 18


def test_values_are_shown_with_four_digits():
    assert format_normalization({"mean": [1 / 3, -2.0], "std": [1e5]}) == "mean 0.3333 -2, std 1e+05"
