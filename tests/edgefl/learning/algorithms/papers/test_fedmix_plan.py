"""FedMix's objectives: equal steps on numpy, Keras and LiteRT, the laws on a plan, and an int8 mixture."""

from dataclasses import replace

import numpy as np
import pytest

from edgefl.base.errors import ConfigError
from edgefl.base.rng import derive_rng
from edgefl.base.types import ClientState, Shard
from edgefl.learning.algorithms import PHASE_PERSONALIZE, make_algorithm
from edgefl.learning.algorithms.check import check_algorithm
from edgefl.learning.algorithms.registry import build_objectives
from edgefl.program.learner.litert import LiteRTLearner
from edgefl.program.plan.fill import fill_template
from tests.edgefl.learning.algorithms.test_numpy_rules import draw_data, draw_weights


@pytest.fixture(scope="module", params=["fedmix", pytest.param("fedmix-permutation", marks=pytest.mark.slow)])
def compiled(request, tiny_config):
    """Return (algorithm, options, plan, initial weights) of the small network on digits."""
    from edgefl.learning.algorithms.plans import build_plan

    options = {"num_experts": 2, "batch_size": 8, "prune": 0.5, "epochs": 1}
    return request.param, options, *build_plan(replace(tiny_config, algorithm=request.param, options=options))


def test_laws_hold_on_the_plan(compiled, digits):
    name, options, plan, initial = compiled
    x, y = digits
    shards = {
        f"pi-{i}": Shard(
            x_train=x[i::40], y_train=y[i::40], x_test=x[i + 1 :: 40], y_test=y[i + 1 :: 40], num_classes=10
        )
        for i in range(2)
    }
    check_algorithm(
        lambda learner: make_algorithm(name, learner, options), LiteRTLearner(plan), initial, shards
    )


def test_litert_takes_the_same_steps_as_keras(compiled):
    from edgefl.learning.algorithms.plans import make_keras_learner

    name, _, plan, _ = compiled
    learners = LiteRTLearner(plan), make_keras_learner(plan.spec)
    for signature in plan.spec.signatures:
        if name == "fedmix" or signature.name == "predict_mixture":
            rng = np.random.default_rng(2)
            weights = draw_weights(signature, rng)
            data = draw_data(signature, rng, 11)
            if signature.kind == "predict":
                a, b = (item.predict(signature.name, weights, data) for item in learners)
                np.testing.assert_allclose(a, b, atol=1e-4)
                continue
            (a, first_loss), (b, second_loss) = (
                item.fit(
                    signature.name,
                    weights,
                    data,
                    rng.integers(0, 10, 11),
                    epochs=1,
                    rng=np.random.default_rng(1),
                )
                for rng, item in ((np.random.default_rng(3), learner) for learner in learners)
            )
            assert first_loss == pytest.approx(second_loss, rel=1e-4)
            assert max(np.abs(a[key] - b[key]).max() for key in a) < 1e-4


def test_exported_mixture_returns_probabilities(compiled, digits):
    """The template ends before the logarithm, which has no int8 form."""
    from edgefl.program.plan.runtime import load_interpreter

    _, _, plan, _ = compiled
    learner = LiteRTLearner(plan)
    rng = np.random.default_rng(4)
    mixture = plan.spec.find_signature("predict_mixture")
    weights = {spec.name: rng.normal(0, 0.2, spec.shape).astype(np.float32) for spec in mixture.frozen}
    weights |= {f"responsibility/{k}": np.array([0.5], np.float32) for k in range(2)}
    interpreter = load_interpreter(fill_template(plan.template, plan.spec.bindings, weights))
    interpreter.allocate_tensors()
    interpreter.set_tensor(interpreter.get_input_details()[0]["index"], digits[0][:1])
    interpreter.invoke()
    p = interpreter.get_tensor(interpreter.get_output_details()[0]["index"])
    assert p.sum() == pytest.approx(1, abs=1e-5)
    np.testing.assert_allclose(
        np.log(p + 1e-7), learner.predict("predict_mixture", weights, {"x": digits[0][:1]}), atol=1e-4
    )


def test_a_device_exports_its_mixture_in_int8(compiled, digits, tmp_path):
    from firmware_export.quantize.quantize import export_mixture

    name, options, plan, initial = compiled
    x, y = digits
    shard = Shard(x_train=x[:200], y_train=y[:200], x_test=x[200:260], y_test=y[200:260], num_classes=10)
    learner = LiteRTLearner(plan)
    algorithm = make_algorithm(
        name,
        learner,
        options | {"epochs": 8, "learning_rate": 0.2, "gate_epochs": 2}
        if name == "fedmix"
        else options | {"epochs": 8, "learning_rate": 0.4},
    )
    state = algorithm.init(initial, derive_rng(1, 0, "init"))
    broadcast = algorithm.broadcast(state, "pi-1")
    update, client_state = algorithm.local_update(broadcast, ClientState(), shard, "pi-1", derive_rng(1, 1))
    models = {
        k: {n: w + update.deltas[k][n] for n, w in model.items()} if k in update.deltas else model
        for k, model in state.models.items()
    }
    mixture, _ = algorithm.personalize(
        replace(broadcast, phase=PHASE_PERSONALIZE, models=models), client_state, shard, derive_rng(1, 2)
    )
    report = export_mixture(plan, mixture, shard, tmp_path, client_id="pi-1")
    assert report.accuracy_float > 0.7
    assert report.accuracy_int8 > report.accuracy_float - 0.05


def test_personal_bias_requires_an_output_bias(linear_network):
    keras = pytest.importorskip("keras")
    from edgefl.program.compiler.network import Network

    layers = [
        keras.Input((4,)),
        keras.layers.Dense(3, name="trunk", activation="relu"),
        keras.layers.Dense(2, use_bias=False, name="head"),
    ]
    with pytest.raises(ConfigError, match="last layer has no bias"):
        build_objectives("fedmix", Network(keras.Sequential(layers)), {"bias": True})
