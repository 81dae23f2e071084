"""States and mixtures round-trip with arrays of any shape, and damaged files are refused."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from edgefl.base.errors import StateError
from edgefl.base.types import ClientState, Mixture, ServerState
from edgefl.learning.algorithms.papers.apfl import PersonalShare
from edgefl.learning.algorithms.server_optimizer import OptimizerSlots
from edgefl.learning.checkpoint import (
    decode_client_state,
    decode_server_state,
    decode_stored_mixture,
    encode_client_state,
    encode_mixture,
    encode_server_state,
)
from edgefl.learning.client.compression import CodecResidual
from edgefl.protocol.server.plausibility import LeftOutClients

WEIGHTS = st.dictionaries(
    st.text("abc/:_1", min_size=1, max_size=6),
    arrays(np.float32, array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3)),
    max_size=3,
)
COUNTS = st.dictionaries(st.text("xyz", min_size=1, max_size=3), st.integers(), max_size=2)


def assert_same_arrays(first, second):
    assert first.keys() == second.keys()
    for name, array in first.items():
        assert array.shape == second[name].shape
        np.testing.assert_array_equal(array, second[name])


@given(
    models=st.dictionaries(st.sampled_from(["global", "expert0"]), WEIGHTS.filter(len)),
    rounds=COUNTS,
    round=st.integers(0, 10**6),
)
def test_server_state_round_trips(models, rounds, round):
    state = ServerState(round=round, phase="federate", models=models).with_record(OptimizerSlots(models))
    state = state.with_record(LeftOutClients(rounds))
    decoded = decode_server_state(encode_server_state(state))
    assert (decoded.round, decoded.phase) == (round, "federate")
    assert decoded.read_record(LeftOutClients).rounds == rounds
    slots = decoded.read_record(OptimizerSlots).by_model
    assert decoded.models.keys() == models.keys() == slots.keys()
    for name in models:
        assert_same_arrays(models[name], decoded.models[name])
        assert_same_arrays(models[name], slots[name])
    assert encode_server_state(decoded) == encode_server_state(state)


@given(weights=WEIGHTS, alpha=st.none() | st.floats(allow_nan=False))
def test_client_state_and_mixture_round_trip(weights, alpha):
    state = ClientState(weights).with_record(PersonalShare(alpha)).with_record(CodecResidual({"m": weights}))
    decoded = decode_client_state(encode_client_state(state))
    assert_same_arrays(weights, decoded.arrays)
    assert decoded.read_record(PersonalShare).alpha == alpha
    assert_same_arrays(weights, decoded.read_record(CodecResidual).by_model["m"])
    assert_same_arrays(
        weights, decode_stored_mixture(encode_mixture(Mixture(weights=weights))).mixture.weights
    )


@given(cut=st.integers(0, 200))
def test_truncated_file_is_refused_as_truncated(cut):
    blob = encode_mixture(Mixture(weights={"w": np.ones(30, np.float32)}))
    with pytest.raises(StateError, match="truncated or foreign"):
        decode_stored_mixture(blob[: min(cut, len(blob) - 1)])


def test_mixture_is_not_decoded_as_a_client_state():
    with pytest.raises(StateError, match="contains a mixture, expected a client state"):
        decode_client_state(encode_mixture(Mixture(weights={})))


@given(st.data())
def test_any_flipped_bit_of_a_server_state_is_noticed_or_harmless(data):
    weights = {"a/kernel": np.ones((2, 3), np.float32), "a/bias": np.zeros(3, np.float32)}
    state = ServerState(round=4, phase="federate", models={"global": weights}).with_record(
        OptimizerSlots({"global": weights})
    )
    state = state.with_record(LeftOutClients({"pi-1": 2}))
    blob = bytearray(encode_server_state(state))
    blob[data.draw(st.integers(0, len(blob) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    try:
        decoded = decode_server_state(bytes(blob))
    except StateError:
        return
    assert encode_server_state(decoded) == encode_server_state(state)


def test_flipped_bit_in_the_weights_is_named():
    state = ServerState(round=4, phase="federate", models={"global": {"w": np.ones(3, np.float32)}})
    blob = bytearray(encode_server_state(state))
    blob[blob.index(np.ones(3, np.float32).tobytes())] ^= 1
    with pytest.raises(StateError, match=r"has the sha256 [0-9a-f]{64}, expected .*: the file is damaged"):
        decode_server_state(bytes(blob))
