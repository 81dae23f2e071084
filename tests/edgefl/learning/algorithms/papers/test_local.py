"""Local training: no weights are sent, and the mixture equals the same number of epochs alone."""

import math
from dataclasses import replace

import numpy as np
import pytest

from edgefl.base.errors import ConfigError
from edgefl.base.rng import derive_rng
from edgefl.base.types import ClientState, ServerState, Shard
from edgefl.learning.algorithms import PHASE_PERSONALIZE


def train_and_get_bias(one_sample, rounds, **options):
    algorithm = one_sample.make_algorithm("local", **options)
    state = algorithm.init(one_sample.start, derive_rng(1, 0, "init"))
    for _ in range(rounds):
        sent = algorithm.broadcast(state, "a")
        update, _ = algorithm.local_update(
            sent, ClientState(), one_sample.shard, "a", derive_rng(1, state.round, "a")
        )
        assert not sent.models
        assert not update.deltas
        assert math.isnan(update.metrics["loss"])
        state = algorithm.aggregate(state, [update])
    last = algorithm.broadcast(
        ServerState(round=state.round, phase=PHASE_PERSONALIZE, models=state.models), "a"
    )
    return algorithm.personalize(last, ClientState(), one_sample.shard, derive_rng(1, state.round, "a"))[
        0
    ].weights["head/bias"]


def test_local_training_by_hand(one_sample):
    """After one round the bias is .5. After two, p = .880797 and the bias is .5 + .119203."""
    assert train_and_get_bias(one_sample, 0)[0] == 0.0
    assert train_and_get_bias(one_sample, 1)[0] == pytest.approx(0.5)
    assert train_and_get_bias(one_sample, 2)[0] == pytest.approx(0.619203, abs=1e-6)
    assert train_and_get_bias(one_sample, 5, max_epochs=2)[0] == pytest.approx(0.619203, abs=1e-6)


def test_round_trains_for_the_configured_epochs(one_sample):
    """Two rounds of three epochs are six epochs of training."""
    np.testing.assert_array_equal(
        train_and_get_bias(one_sample, 2, epochs=3), train_and_get_bias(one_sample, 6)
    )


def test_step_schedule_by_hand(one_sample):
    """With rate 1 and then .1, the bias is .5, and then .5 + .1 * .119203."""
    bias = train_and_get_bias(one_sample, 2, schedule="step", decay_every=1)
    assert bias[0] == pytest.approx(0.511920, abs=1e-6)


def test_momentum_runs_through_the_epochs_of_different_rates(one_sample):
    """The second step is .5 times the first, .25, plus .1 * .119203."""
    bias = train_and_get_bias(one_sample, 2, schedule="step", decay_every=1, momentum=0.5)
    assert bias[0] == pytest.approx(0.5 + 0.25 + 0.011920, abs=1e-6)


@pytest.mark.parametrize("options", [{"schedule": "constant"}, {"schedule": "step", "decay_every": 6}])
def test_equal_rates_give_the_bits_of_the_constant_schedule(one_sample, options):
    expected = train_and_get_bias(one_sample, 6, momentum=0.9)
    assert train_and_get_bias(one_sample, 6, momentum=0.9, **options).tobytes() == expected.tobytes()
    changed = train_and_get_bias(one_sample, 6, momentum=0.9, schedule="step", decay_every=5)
    assert changed.tobytes() != expected.tobytes()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"optimizer": "adamw"}, "optimizer is 'adamw', expected 'sgd' or 'adam'"),
        ({"schedule": "linear"}, "schedule is 'linear', expected"),
        ({"decay_every": 0}, "decay_every is 0, expected 1 or more"),
        ({"decay_factor": 2.0}, "decay_factor is 2.0, expected a number from 0 to 1"),
    ],
)
def test_wrong_options_are_refused(one_sample, options, message):
    with pytest.raises(ConfigError, match=message):
        one_sample.make_algorithm("local", **options)


def test_adam_and_schedule_take_the_steps_of_keras(tiny_config, digits):
    """Adam with a cosine over six epochs, on the runtime of a device, equals keras.optimizers.Adam."""
    from edgefl.learning.algorithms import make_algorithm
    from edgefl.learning.algorithms.plans import build_plan, make_keras_learner
    from edgefl.program.learner.litert import LiteRTLearner

    options = {"optimizer": "adam", "schedule": "cosine", "learning_rate": 0.01, "epochs": 3, "batch_size": 8}
    plan, initial = build_plan(replace(tiny_config, algorithm="local", options=options))
    assert any(spec.name == "step" for spec in plan.spec.find_signature("train").slots)
    shard = Shard(
        x_train=digits[0][:40],
        y_train=digits[1][:40],
        x_test=digits[0][40:60],
        y_test=digits[1][40:60],
        num_classes=10,
    )
    models = []
    for learner in (LiteRTLearner(plan), make_keras_learner(plan.spec)):
        algorithm = make_algorithm("local", learner, options)
        sent = algorithm.broadcast(
            ServerState(round=3, phase=PHASE_PERSONALIZE, models={"initial": initial}), "a"
        )
        models.append(algorithm.personalize(sent, ClientState(), shard, derive_rng(1, 3, "a"))[0].weights)
    for name, array in models[0].items():
        np.testing.assert_allclose(array, models[1][name], atol=1e-3)
        assert not np.array_equal(array, initial[name])
