"""The client runner: a device and a simulator get the same bits, and errors name client and round."""

from dataclasses import replace

import numpy as np
import pytest

from devices.training import choose_epochs, make_work_item
from edgefl.base.errors import DataError
from edgefl.base.rng import derive_rng
from edgefl.base.types import ClientState
from edgefl.learning.algorithms import PHASE_FEDERATE, PHASE_PERSONALIZE, make_algorithm
from edgefl.learning.checkpoint import encode_mixture
from edgefl.learning.client.runner import ClientRunner, WorkItem
from edgefl.program.plan.spec import Plan
from edgefl.protocol.wire.messages import Task
from edgefl.protocol.wire.tensors import encode_models
from tests.support.numpy_learner.softmax import SoftmaxLearner, softmax_spec


@pytest.fixture
def plan():
    return Plan(
        spec=softmax_spec("pfl-mfe", inputs=4, features=4, classes=3, options={"epochs": 3}),
        program=b"",
        template=b"",
    )


@pytest.fixture
def broadcasts(plan):
    rng = np.random.default_rng(3)
    initial = {item.name: rng.normal(0, 0.3, item.shape).astype(np.float32) for item in plan.spec.weights}
    server = make_algorithm(plan.spec.algorithm, None, plan.spec.options)
    state = server.init(initial, derive_rng(5, 0, "init"))
    return {
        phase: server.broadcast(replace(state, phase=phase), "pi-3")
        for phase in (PHASE_FEDERATE, PHASE_PERSONALIZE)
    }


def make_task(broadcast, codec="fp32", budget_s=0.0):
    return Task(
        session="0" * 16,
        round=broadcast.round,
        phase=broadcast.phase,
        plan="0" * 64,
        models={},
        scalars=broadcast.scalars,
        seed=5,
        deadline_s=120.0,
        codec=codec,
        max_staleness=0,
        budget_s=budget_s,
        nonce="0" * 16,
        ts=0.0,
    )


@pytest.mark.parametrize("codec", ["fp32", "int8"])
def test_simulated_client_gets_the_same_bits_as_a_device(codec, plan, broadcasts, shards):
    simulator = ClientRunner(plan, SoftmaxLearner(plan.spec), shards, 5)
    device = ClientRunner(plan, SoftmaxLearner(plan.spec), {"pi-3": shards["pi-3"]}, 5)
    states = [ClientState(), ClientState()]
    simulator.update(
        WorkItem(broadcast=broadcasts[PHASE_FEDERATE], state=ClientState(), client_id="pi-1", codec=codec)
    )
    for _ in range(2):  # the second update carries the residual of the first
        task = make_task(broadcasts[PHASE_FEDERATE], codec)
        simulated, states[0] = simulator.update(
            WorkItem(broadcast=broadcasts[PHASE_FEDERATE], state=states[0], client_id="pi-3", codec=codec)
        )
        on_device, states[1] = device.update(
            make_work_item(task, broadcasts[PHASE_FEDERATE].models, states[1], "pi-3")
        )
        assert encode_models(simulated.deltas, codec) == encode_models(on_device.deltas, codec)
        assert (simulated.num_samples, simulated.metrics) == (on_device.num_samples, on_device.metrics)
    last = broadcasts[PHASE_PERSONALIZE]
    simulated = simulator.personalize(
        WorkItem(broadcast=last, state=states[0], client_id="pi-3", codec=codec)
    )
    on_device = device.personalize(make_work_item(make_task(last, codec), last.models, states[1], "pi-3"))
    assert encode_mixture(simulated[0]) == encode_mixture(on_device[0])
    assert simulated[2] == on_device[2]


def test_epochs_from_a_time_budget_train_like_the_epochs_option(plan, broadcasts, shards):
    """An epoch takes 8 s, so a budget of 16 s gives two epochs. The metrics of the update report them."""
    task = make_task(broadcasts[PHASE_FEDERATE], budget_s=16.0)
    assert choose_epochs(make_task(broadcasts[PHASE_FEDERATE]), plan, {}) is None
    assert choose_epochs(task, plan, {}) == 1
    epochs = choose_epochs(task, plan, {"epochs": 1.0, "seconds": 8.0})
    assert epochs == 2
    runner = ClientRunner(plan, SoftmaxLearner(plan.spec), shards, 5)
    two_epoch_plan = Plan(spec=replace(plan.spec, options={"epochs": 2}), program=b"", template=b"")
    by_option = ClientRunner(two_epoch_plan, SoftmaxLearner(two_epoch_plan.spec), shards, 5)
    update, _ = runner.update(
        make_work_item(task, broadcasts[PHASE_FEDERATE].models, ClientState(), "pi-3", epochs)
    )
    expected, _ = by_option.update(
        WorkItem(broadcast=broadcasts[PHASE_FEDERATE], state=ClientState(), client_id="pi-3")
    )
    assert encode_models(update.deltas) == encode_models(expected.deltas)
    assert update.metrics == {**expected.metrics, "epochs": 2.0}


def test_errors_name_client_and_round(plan, broadcasts, shards):
    broken = replace(shards["pi-3"], x_train=shards["pi-3"].x_train * np.float32(np.nan))
    runner = ClientRunner(plan, SoftmaxLearner(plan.spec), {"pi-3": broken}, 5)
    with pytest.raises(DataError, match=r"^pi-3, round 1: x holds NaN"):
        runner.update(WorkItem(broadcast=broadcasts[PHASE_FEDERATE], state=ClientState(), client_id="pi-3"))
    with pytest.raises(DataError, match=r"^pi-3, personalization: x holds NaN"):
        runner.personalize(
            WorkItem(broadcast=broadcasts[PHASE_PERSONALIZE], state=ClientState(), client_id="pi-3")
        )
