"""The residual of a codec is added to the next update and stays on the device.

The algorithm does not see it.
"""

import numpy as np
import pytest

from edgefl.base.codecs import CODEC_EXAMPLES, apply_codec
from edgefl.base.config import FederationConfig
from edgefl.base.rng import derive_rng
from edgefl.base.types import Broadcast, ClientState
from edgefl.learning.algorithms import make_algorithm
from edgefl.learning.algorithms.check import check_algorithm
from edgefl.learning.client.compression import CodecResidual, with_compression
from edgefl.program.plan.spec import Plan
from edgefl.protocol.wire.tensors import (
    bound_blob_size,
    decode_models,
    encode_models,
    list_model_specs,
    list_specs,
)
from edgefl.simulation.simulate import simulate
from tests.support.numpy_learner.softmax import SoftmaxLearner, softmax_spec

OPTIONS = {"epochs": 1, "learning_rate": 0.3}


def make_learner_and_weights(name="fedavg"):
    spec = softmax_spec(name, inputs=4, features=3, classes=3, options={})
    rng = np.random.default_rng(7)
    return SoftmaxLearner(spec), {
        w.name: rng.normal(0, 0.5, w.shape).astype(np.float32) for w in spec.weights
    }


@pytest.mark.parametrize("codec", CODEC_EXAMPLES[1:])
def test_sent_deltas_and_the_residual_add_up_to_the_trained_deltas(codec, shards):
    """Over three rounds, the sent deltas and the residual add up to the plain deltas."""
    learner, weights = make_learner_and_weights()
    plain = make_algorithm("fedavg", learner, OPTIONS)
    wrapped = with_compression(plain, codec)
    state = ClientState()
    client_id, shard = next(iter(shards.items()))
    sent = dict.fromkeys(weights, 0.0)
    trained = dict.fromkeys(weights, 0.0)
    for round in (1, 2, 3):
        broadcast = Broadcast(round=round, phase="federate", models={"global": weights})
        update, state = wrapped.local_update(broadcast, state, shard, client_id, derive_rng(1, round))
        plain_update, _ = plain.local_update(broadcast, ClientState(), shard, client_id, derive_rng(1, round))
        for name in weights:
            sent[name] = sent[name] + update.deltas["global"][name].astype(float)
            trained[name] = trained[name] + plain_update.deltas["global"][name].astype(float)
        assert not np.array_equal(
            update.deltas["global"]["head/kernel"], plain_update.deltas["global"]["head/kernel"]
        )
        blob = encode_models(update.deltas, codec)
        expected = {"global": list_specs(update.deltas["global"])}
        assert len(blob) <= bound_blob_size(list_model_specs(expected, codec))
        for name, array in decode_models(blob, expected, "pi", codec)["global"].items():
            assert array.tobytes() == update.deltas["global"][name].tobytes()
    _, last = wrapped.personalize(broadcast, state, shard, derive_rng(1, 4))
    assert last == state.remove_record(CodecResidual), "nothing is sent after the last round"
    for name in weights:
        np.testing.assert_allclose(
            sent[name] + state.read_record(CodecResidual).by_model["global"][name], trained[name], atol=2e-6
        )


@pytest.mark.parametrize(
    "name", ["fedavg", "ditto", "apfl", "fedala", "fedrod", "fedmix", "clustered", "aem"]
)
def test_algorithms_satisfy_the_laws_with_a_codec(name, shards):
    learner, initial = make_learner_and_weights(name)
    options = {"local_epochs": 20} if name == "aem" else {}
    check_algorithm(
        lambda any_learner: with_compression(make_algorithm(name, any_learner, options), "int8"),
        learner,
        initial,
        shards,
    )


def test_fp32_does_not_wrap_the_algorithm():
    learner, weights = make_learner_and_weights()
    algorithm = make_algorithm("fedavg", learner, {})
    assert with_compression(algorithm, "fp32") is algorithm
    assert apply_codec("fp32", weights)["head/bias"].tobytes() == weights["head/bias"].tobytes()


def test_int8_reaches_the_loss_of_fp32(shards):
    losses = {}
    for codec in ("fp32", "int8"):
        learner, weights = make_learner_and_weights()
        records = []
        spec = softmax_spec("fedavg", inputs=4, features=3, classes=3, options={})
        config = FederationConfig(rounds=10, codec=codec)
        simulate(
            Plan(spec=spec, program=b"", template=b""),
            weights,
            shards,
            config,
            open_learner=lambda plan, learner=learner: learner,
            progress=lambda _, r, to=records: to.append(r),
        )
        losses[codec] = records[-1].loss
    assert losses["int8"] == pytest.approx(losses["fp32"], abs=0.02)


def test_int8_update_of_lenet_is_a_quarter_of_fp32():
    """The size includes all names and scales."""
    shapes = {
        "conv1": (5, 5, 1, 6),
        "conv2": (5, 5, 6, 16),
        "fc1": (400, 120),
        "fc2": (120, 84),
        "fc3": (84, 10),
    }
    rng = np.random.default_rng(1)
    deltas = {
        f"{layer}/{kind}": rng.normal(0, 1, shape if kind == "kernel" else shape[-1:]).astype(np.float32)
        for layer, shape in shapes.items()
        for kind in ("kernel", "bias")
    }
    sizes = {
        codec: len(encode_models({"global": deltas}, codec)) for codec in ("fp32", "fp16", "int8", "top-10")
    }
    assert sizes["int8"] <= 0.26 * sizes["fp32"]
    assert sizes["fp16"] <= 0.505 * sizes["fp32"]
    assert sizes["top-10"] <= 0.21 * sizes["fp32"]
