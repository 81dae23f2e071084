"""FedPer: the last layers are trained with the others and stay on the device."""

import numpy as np
import pytest

from edgefl.base.errors import ConfigError
from edgefl.base.rng import derive_rng
from edgefl.base.types import ClientState
from edgefl.learning.algorithms import build_objectives
from edgefl.learning.algorithms.names import find_last_layers
from edgefl.learning.algorithms.papers.fedper import select_personal_weights
from edgefl.learning.algorithms.partial import START_MODEL

NET = {
    name: np.zeros(shape, np.float32)
    for name, shape in (
        ("conv/kernel", (3, 3, 1, 4)),
        ("norm/gamma", (4,)),
        ("fc1/kernel", (4, 6)),
        ("fc1/bias", (6,)),
        ("fc2/kernel", (6, 3)),
        ("fc2/bias", (3,)),
        ("norm/moving_mean", (4,)),
    )
}
FC1 = ["fc1/kernel", "fc1/bias"]
FC2 = ["fc2/kernel", "fc2/bias"]


def test_a_round_by_hand(one_sample):
    """Both parts take the same step as in FedAvg. The trunk's gradient is 0, because the kernel is 0."""
    algorithm = one_sample.make_algorithm("fedper", epochs=2)
    state = algorithm.init(one_sample.start, derive_rng(1, 0, "init"))
    sent = algorithm.broadcast(state, "a")
    assert set(sent.models["global"]) == {"trunk/kernel"}
    assert set(sent.models[START_MODEL]) == {"head/kernel", "head/bias"}
    update, client_state = algorithm.local_update(
        sent, ClientState(), one_sample.shard, "a", derive_rng(1, 1, "a")
    )
    # After step 1, kernel and bias are (.5, -.5) and the logits (1, -1). Step 2 moves the trunk as well.
    p = 1 / (1 + np.exp(2))
    assert {name: set(delta) for name, delta in update.deltas.items()} == {"global": {"trunk/kernel"}}
    np.testing.assert_allclose(update.deltas["global"]["trunk/kernel"], [[p]], atol=1e-6)
    np.testing.assert_allclose(client_state.arrays["head/bias"], [0.5 + p, -0.5 - p], atol=1e-6)


def test_personal_layers_count_from_the_output():
    assert select_personal_weights(NET, 1) == FC2
    assert select_personal_weights(NET, 2) == FC1 + FC2
    assert select_personal_weights(NET, 0) == FC1 + FC2
    assert select_personal_weights(NET, 3) == ["norm/gamma", "norm/moving_mean", *FC1, *FC2]
    assert set(find_last_layers(NET, 99)) == set(NET)


def test_all_layers_personal_are_an_error(one_sample, tiny_config):
    from edgefl.program.compiler.build import make_network

    with pytest.raises(ConfigError, match="3 of 3 weights would be personal"):
        one_sample.make_algorithm("fedper", personal_layers=2).init(
            one_sample.start, derive_rng(1, 0, "init")
        )
    with pytest.raises(ConfigError, match="personal_layers is 3, which makes all 6 weights"):
        build_objectives("fedper", make_network(tiny_config), {"personal_layers": 3})


def test_frozen_layers_after_the_output_are_an_error():
    """Frozen weights are last in the plan, so that they would count as the last layer."""
    import keras

    from edgefl.program.compiler.network import Network

    layers = keras.layers
    model = keras.Sequential(
        [
            keras.Input((8,)),
            layers.Dense(6, name="fc1", trainable=False),
            layers.Dense(3, name="fc2"),
            layers.Dense(2, name="fc3"),
        ]
    )
    network = Network(model)
    assert network.specs[-1].name == "fc1/bias"
    with pytest.raises(ConfigError, match=r"expected the output layer among them.*use lg-fedavg"):
        build_objectives("fedper", network, {})
