"""Tensors on the wire: deterministic bytes that safetensors can read, and errors without allocation."""

import json
import struct
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load, save

from edgefl.base.errors import WireError
from edgefl.program.plan.spec import TensorSpec
from edgefl.protocol.wire.tensors import (
    bound_blob_size,
    decode_models,
    decode_subset,
    decode_weights,
    encode_models,
    encode_weights,
    list_specs,
)

WEIGHTS = {"conv/kernel": np.arange(6, dtype=np.float32).reshape(1, 2, 3), "conv/bias": np.float32([1, 2, 3])}
SPECS = list_specs(WEIGHTS)


def draw_weights(seed, shapes):
    rng = np.random.default_rng(seed)
    return {f"w{i}/k": rng.normal(size=shape).astype(np.float32) for i, shape in enumerate(shapes)}


@given(
    seed=st.integers(0, 1000), shapes=st.lists(st.lists(st.integers(0, 4), max_size=4).map(tuple), max_size=5)
)
@settings(deadline=None, max_examples=40)
def test_weights_round_trip_exactly_and_in_order(seed, shapes):
    weights = draw_weights(seed, shapes)
    blob = encode_weights(weights)
    assert blob == encode_weights(dict(reversed(weights.items())))
    assert len(blob) <= bound_blob_size(list_specs(weights))
    decoded = decode_weights(blob, list_specs(weights), "pi-1")
    assert list(decoded) == list(weights)
    for name, array in load(blob).items():
        assert array.tobytes() == decoded[name].tobytes() == weights[name].tobytes()
        assert decoded[name].shape == weights[name].shape


def forge_blob(header, data=b""):
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + data


def make_entry(shape, low, high, dtype="F32"):
    return {"dtype": dtype, "shape": shape, "data_offsets": [low, high]}


@pytest.mark.parametrize(
    ("blob", "message"),
    [
        (b"", "not safetensors"),
        (b"\xff" * 8, "not safetensors"),
        (struct.pack("<Q", 2**40) + b"{}", "not safetensors"),
        (forge_blob([1, 2]), "not safetensors"),
        (forge_blob({"conv/kernel": 5}), "not safetensors"),
        (
            forge_blob({"other": make_entry([1], 0, 4)}),
            "unknown tensor 'other', expected conv/kernel, conv/bias",
        ),
        (encode_weights({"conv/bias": WEIGHTS["conv/bias"]}), "no tensor 'conv/kernel', expected (1, 2, 3)"),
        (
            encode_weights({**WEIGHTS, "conv/bias": np.zeros(4, np.float32)}),
            "conv/bias of pi-3 is (4,), expected (3,)",
        ),
        (bytes(save({**WEIGHTS, "conv/bias": np.zeros(3)})), "is F64, expected F32"),
        (
            forge_blob(
                {"conv/kernel": make_entry([1, 2, 3], 0, 10**12), "conv/bias": make_entry([3], 24, 36)}
            ),
            "expected 24 bytes",
        ),
        (
            forge_blob(
                {"conv/kernel": make_entry([1, 2, 3], 0, 24), "conv/bias": make_entry([3], 0, 12)}, bytes(36)
            ),
            "overlap or leave gaps",
        ),
        (
            forge_blob(
                {"conv/kernel": make_entry([1, 2, 3], 0, 24), "conv/bias": make_entry([3], 24, 36)}, bytes(30)
            ),
            "30 bytes of tensors, expected 36",
        ),
        (
            forge_blob(
                {"conv/kernel": make_entry([1, 2, 3], 0, 24), "conv/bias": make_entry([3], 24, 36)}, bytes(99)
            ),
            "99 bytes of tensors, expected 36",
        ),
        (
            forge_blob(
                {"conv/kernel": make_entry([1, 2, 3], -24, 0), "conv/bias": make_entry([3], 0, 12)}, bytes(12)
            ),
            "overlap or leave gaps",
        ),
        (
            encode_weights({**WEIGHTS, "conv/bias": np.float32([1, np.nan, np.inf])}),
            "conv/bias of pi-3 holds 2 NaN or infinite",
        ),
    ],
)
def test_invalid_blob_error_names_received_and_expected_tensor(blob, message):
    with pytest.raises(WireError) as caught:
        decode_weights(blob, SPECS, "pi-3")
    assert message in str(caught.value)
    assert ";" in str(caught.value)


@given(st.data())
@settings(deadline=None, max_examples=150)
def test_a_damaged_blob_is_a_wire_error_or_the_right_shapes(data):
    blob = bytearray(encode_weights(WEIGHTS))
    for _ in range(data.draw(st.integers(1, 4))):
        blob[data.draw(st.integers(0, len(blob) - 1))] = data.draw(st.integers(0, 255))
    del blob[data.draw(st.integers(0, len(blob))) :]
    try:
        decoded = decode_weights(bytes(blob), SPECS, "pi-3")
    except WireError:
        return
    assert {name: array.shape for name, array in decoded.items()} == {spec.name: spec.shape for spec in SPECS}


def test_blob_may_hold_any_expected_models_but_only_complete_ones():
    expected = {"expert0": SPECS, "expert1": SPECS}
    decoded = decode_models(encode_models({"expert1": WEIGHTS}), expected, "pi-3")
    assert list(decoded) == ["expert1"]
    np.testing.assert_array_equal(decoded["expert1"]["conv/kernel"], WEIGHTS["conv/kernel"])
    assert decode_models(encode_models({}), expected, "pi-3") == {}
    with pytest.raises(WireError, match="unknown model 'local'"):
        decode_models(encode_models({"local": WEIGHTS}), expected, "pi-3")
    with pytest.raises(WireError, match="unknown model 'expert0'"):
        decode_models(encode_models({"expert0": WEIGHTS}), {}, "pi-3")
    with pytest.raises(WireError, match="no tensor 'expert0/conv/bias'"):
        decode_models(encode_models({"expert0": {"conv/kernel": WEIGHTS["conv/kernel"]}}), expected, "pi-3")


def test_model_may_hold_a_subset_of_the_plan_tensors():
    part = {"conv/kernel": WEIGHTS["conv/kernel"]}
    decoded = decode_subset(encode_weights(part), SPECS, "the aggregator")
    assert list(decoded) == ["conv/kernel"]
    np.testing.assert_array_equal(decoded["conv/kernel"], part["conv/kernel"])
    assert list(decode_subset(encode_weights(WEIGHTS), SPECS, "the aggregator")) == [
        spec.name for spec in SPECS
    ]
    with pytest.raises(WireError, match="unknown tensor 'gate'"):
        decode_subset(encode_weights({**part, "gate": np.zeros(2, np.float32)}), SPECS, "the aggregator")
    with pytest.raises(WireError, match="unknown tensor 'gate'"):
        decode_subset(encode_weights({"gate": np.zeros(2, np.float32)}), SPECS, "the aggregator")
    with pytest.raises(WireError, match="no tensor"):
        decode_subset(encode_weights({}), SPECS, "the aggregator")


def test_only_float32_is_sent_and_model_names_have_no_slash():
    with pytest.raises(WireError, match="float64, expected float32"):
        encode_weights({"w": np.zeros(2)})
    with pytest.raises(WireError, match="without a slash"):
        encode_models({"a/b": WEIGHTS})


def test_claimed_tensor_size_allocates_no_memory():
    import tracemalloc

    huge = forge_blob({"w": make_entry([10**6, 10**6], 0, 4 * 10**12)})
    tracemalloc.start()
    with pytest.raises(WireError):
        decode_weights(huge, (TensorSpec("w", (10**6, 10**6)),), "pi-3")
    assert tracemalloc.get_traced_memory()[1] < 1_000_000
    tracemalloc.stop()


def test_huge_header_is_refused_before_memory_is_allocated():
    header = {"global/conv/kernel": {"dtype": "F32", "shape": [2**40, 2**20], "data_offsets": [0, 2**62]}}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    tracemalloc.start()
    try:
        with pytest.raises(WireError):
            decode_models(len(text).to_bytes(8, "little") + text, {"global": SPECS}, "pi-1")
        assert tracemalloc.get_traced_memory()[1] < 2_000_000
    finally:
        tracemalloc.stop()
