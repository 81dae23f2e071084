"""Partial sharing (LG-FedAvg, biased FedAvg): a two-client round by hand, the messages, and late clients."""

import numpy as np
import pytest

from edgefl.base.errors import ConfigError
from edgefl.base.rng import derive_rng
from edgefl.base.types import Broadcast, ClientState, Update
from edgefl.learning.algorithms import PHASE_FEDERATE, PHASE_PERSONALIZE
from edgefl.learning.algorithms.names import find_output_weights
from edgefl.learning.algorithms.partial import START_MODEL, select_local_weights
from edgefl.simulation.communication_cost import CommunicationCost


def start_algorithm(one_sample, name, **options):
    algorithm = one_sample.make_algorithm(name, **options)
    return algorithm, algorithm.init(one_sample.start, derive_rng(1, 0, "init"))


def test_a_round_by_hand(one_sample):
    """The client's bias goes to (.5, -.5) and stays on the device.

    The kernel's delta (.5, -.5) is sent, and counts as 1 of 4 samples.
    """
    algorithm, state = start_algorithm(one_sample, "biased-fedavg")
    sent = algorithm.broadcast(state, "a")
    assert set(sent.models["global"]) == {"trunk/kernel", "head/kernel"}
    assert set(sent.models[START_MODEL]) == {"head/bias"}
    update, client_state = algorithm.local_update(
        sent, ClientState(), one_sample.shard, "a", derive_rng(1, 1, "a")
    )
    assert set(update.deltas) == {"global"}
    assert set(update.deltas["global"]) == {"trunk/kernel", "head/kernel"}
    np.testing.assert_allclose(update.deltas["global"]["head/kernel"], [[0.5, -0.5]], atol=1e-6)
    np.testing.assert_allclose(client_state.arrays["head/bias"], [0.5, -0.5], atol=1e-6)
    other = Update(
        client_id="b",
        round=1,
        num_samples=3,
        deltas={"global": {name: np.zeros_like(array) for name, array in update.deltas["global"].items()}},
    )
    after = algorithm.aggregate(state, [update, other])
    np.testing.assert_allclose(after.models["global"]["head/kernel"], [[0.125, -0.125]], atol=1e-6)
    np.testing.assert_array_equal(after.models[START_MODEL]["head/bias"], [0, 0])


def test_the_personal_part_continues_from_its_last_values(one_sample):
    algorithm, state = start_algorithm(one_sample, "biased-fedavg")
    before = ClientState({"head/bias": np.array([3.0, -3.0], np.float32)})
    _, client_state = algorithm.local_update(
        algorithm.broadcast(state, "a"), before, one_sample.shard, "a", derive_rng(1, 1, "a")
    )
    assert client_state.arrays["head/bias"][0] == pytest.approx(3 + 1 / (1 + np.exp(6)), abs=1e-6)


def test_start_of_personal_part_is_sent_only_once(one_sample):
    """From the second round on, only the shared part is sent down, because it moves in each round."""
    algorithm, state = start_algorithm(one_sample, "lg-fedavg", local_layers="head")
    communication_cost = CommunicationCost()
    costs = []
    for number in (1, 2, 3):
        moved = {name: array + np.float32(number) for name, array in state.models["global"].items()}
        costs.append(
            communication_cost.count_bytes_down(
                Broadcast(
                    round=number,
                    phase=PHASE_FEDERATE,
                    models={**algorithm.broadcast(state, "a").models, "global": moved},
                ),
                "a",
            )
        )
    # A task contains the time, whose number of digits varies.
    assert costs[1] == pytest.approx(costs[2], abs=10)
    assert costs[0] > costs[1] + 50


def test_mixture_combines_shared_and_personal_part(one_sample):
    algorithm, state = start_algorithm(one_sample, "lg-fedavg")
    last_broadcast = algorithm.broadcast(type(state)(2, PHASE_PERSONALIZE, state.models), "a")
    before = ClientState({"trunk/kernel": np.full((1, 1), 7, np.float32)})
    mixture, after = algorithm.personalize(last_broadcast, before, one_sample.shard, derive_rng(1, 2, "a"))
    assert mixture.weights["trunk/kernel"][0, 0] == 7
    assert mixture.peers["federated"].weights["trunk/kernel"][0, 0] == 1
    assert after == before


def test_a_late_client_trains_the_whole_model_for_a_round(one_sample):
    algorithm, state = start_algorithm(one_sample, "biased-fedavg")
    last_broadcast = algorithm.broadcast(type(state)(2, PHASE_PERSONALIZE, state.models), "late")
    mixture, client_state = algorithm.personalize(
        last_broadcast, ClientState(), one_sample.shard, derive_rng(1, 2, "late")
    )
    np.testing.assert_allclose(mixture.weights["head/bias"], [0.5, -0.5], atol=1e-6)
    np.testing.assert_allclose(mixture.weights["head/kernel"], [[0.5, -0.5]], atol=1e-6)
    assert set(client_state.arrays) == {"head/bias"}


def test_sanitization_changes_only_the_shared_part(one_sample):
    algorithm, state = start_algorithm(one_sample, "biased-fedavg", clip_update=0.1)
    update, client_state = algorithm.local_update(
        algorithm.broadcast(state, "a"), ClientState(), one_sample.shard, "a", derive_rng(1, 1, "a")
    )
    np.testing.assert_allclose(client_state.arrays["head/bias"], [0.5, -0.5], atol=1e-6)
    np.testing.assert_allclose(
        update.deltas["global"]["head/kernel"], [[0.1 / 2**0.5, -0.1 / 2**0.5]], atol=1e-6
    )


NET = {
    name: np.zeros(shape, np.float32)
    for name, shape in (
        ("stem/conv1/kernel", (3, 3, 1, 4)),
        ("stem/conv1/bias", (4,)),
        ("conv2/kernel", (3, 3, 4, 4)),
        ("fc1/kernel", (8, 6)),
        ("fc1/bias", (6,)),
        ("fc2/kernel", (6, 3)),
        ("fc2/bias", (3,)),
    )
}


def test_local_layers_are_selected_by_name():
    assert select_local_weights(NET, "") == ["stem/conv1/kernel", "stem/conv1/bias"]
    assert select_local_weights(NET, "stem, fc1") == [
        "stem/conv1/kernel",
        "stem/conv1/bias",
        "fc1/kernel",
        "fc1/bias",
    ]
    assert find_output_weights(NET) == ("fc2/kernel", "fc2/bias")


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("lg-fedavg", {"local_layers": "haed"}, "did you mean 'head'"),
        ("lg-fedavg", {"local_layers": "trunk,head"}, "not all"),
        ("biased-fedavg", {"output_bias": "head/bais"}, "did you mean 'head/bias'"),
    ],
)
def test_invalid_choice_of_local_weights_is_an_error(one_sample, name, options, message):
    with pytest.raises(ConfigError, match=message):
        start_algorithm(one_sample, name, **options)


def test_a_model_without_an_output_bias_is_an_error():
    with pytest.raises(ConfigError, match="use_bias=True"):
        find_output_weights({name: array for name, array in NET.items() if name != "fc2/bias"})
