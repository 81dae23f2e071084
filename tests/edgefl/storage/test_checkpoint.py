"""States and mixtures come back as they were, whatever their arrays' shapes; a damaged file says so."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from edgefl.errors import StateError
from edgefl.storage.checkpoint import (
    decode_client_state,
    decode_server_state,
    decode_stored_mixture,
    encode_client_state,
    encode_mixture,
    encode_server_state,
)
from edgefl.types import ClientState, Mixture, ServerState

WEIGHTS = st.dictionaries(
    st.text("abc/:_1", min_size=1, max_size=6),
    arrays(np.float32, array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3)),
    max_size=3,
)
SCALARS = st.dictionaries(st.text("xyz", min_size=1, max_size=3), st.floats(allow_nan=False), max_size=2)


def same(first, second):
    assert first.keys() == second.keys()
    for name, array in first.items():
        assert array.shape == second[name].shape
        np.testing.assert_array_equal(array, second[name])


@given(
    models=st.dictionaries(st.sampled_from(["global", "expert0"]), WEIGHTS.filter(len)),
    scalars=SCALARS,
    round=st.integers(0, 10**6),
)
def test_server_state_comes_back(models, scalars, round):
    state = ServerState(
        round, "federate", models, {"momentum": models["global"]} if "global" in models else {}, scalars
    )
    back = decode_server_state(encode_server_state(state))
    assert (back.round, back.phase, back.scalars) == (round, "federate", scalars)
    assert back.models.keys() == models.keys() and back.slots.keys() == state.slots.keys()
    for name in models:
        same(models[name], back.models[name])
    assert encode_server_state(back) == encode_server_state(state)


@given(weights=WEIGHTS, scalars=SCALARS)
def test_client_state_and_mixture_come_back(weights, scalars):
    state = decode_client_state(encode_client_state(ClientState(weights, scalars)))
    same(weights, state.arrays)
    assert state.scalars == scalars
    same(weights, decode_stored_mixture(encode_mixture(Mixture(weights))).mixture.weights)


@given(cut=st.integers(0, 200))
def test_a_truncated_file_is_an_error_that_says_so(cut):
    blob = encode_mixture(Mixture({"w": np.ones(30, np.float32)}))
    with pytest.raises(StateError, match="truncated or foreign"):
        decode_stored_mixture(blob[: min(cut, len(blob) - 1)])


def test_one_kind_is_not_read_as_another():
    with pytest.raises(StateError, match="contains a mixture, expected a client state"):
        decode_client_state(encode_mixture(Mixture({})))
