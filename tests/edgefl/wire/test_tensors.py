"""Tensors on the wire: same weights same bytes, readable by safetensors itself; what is foreign is named and
never allocated.
"""

import json
import struct
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load, save

from edgefl.errors import WireError
from edgefl.plan.spec import TensorSpec
from edgefl.wire.tensors import (
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


def drawn(seed, shapes):
    rng = np.random.default_rng(seed)
    return {f"w{i}/k": rng.normal(size=shape).astype(np.float32) for i, shape in enumerate(shapes)}


@given(
    seed=st.integers(0, 1000), shapes=st.lists(st.lists(st.integers(0, 4), max_size=4).map(tuple), max_size=5)
)
@settings(deadline=None, max_examples=40)
def test_weights_survive_bit_for_bit_and_in_order(seed, shapes):
    weights = drawn(seed, shapes)
    blob = encode_weights(weights)
    assert blob == encode_weights(dict(reversed(weights.items())))
    assert len(blob) <= bound_blob_size(list_specs(weights))
    back = decode_weights(blob, list_specs(weights), "pi-1")
    assert list(back) == list(weights)
    for name, array in load(blob).items():
        assert array.tobytes() == back[name].tobytes() == weights[name].tobytes()
        assert back[name].shape == weights[name].shape


def forged(header, data=b""):
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + data


def entry(shape, low, high, dtype="F32"):
    return {"dtype": dtype, "shape": shape, "data_offsets": [low, high]}


@pytest.mark.parametrize(
    ("blob", "says"),
    [
        (b"", "not safetensors"),
        (b"\xff" * 8, "not safetensors"),
        (struct.pack("<Q", 2**40) + b"{}", "not safetensors"),
        (forged([1, 2]), "not safetensors"),
        (forged({"conv/kernel": 5}), "not safetensors"),
        (forged({"other": entry([1], 0, 4)}), "unknown tensor 'other', expected conv/kernel, conv/bias"),
        (encode_weights({"conv/bias": WEIGHTS["conv/bias"]}), "no tensor 'conv/kernel', expected (1, 2, 3)"),
        (
            encode_weights({**WEIGHTS, "conv/bias": np.zeros(4, np.float32)}),
            "conv/bias of pi-3 is (4,), expected (3,)",
        ),
        (bytes(save({**WEIGHTS, "conv/bias": np.zeros(3)})), "is F64, expected F32"),
        (
            forged({"conv/kernel": entry([1, 2, 3], 0, 10**12), "conv/bias": entry([3], 24, 36)}),
            "expected 24 bytes",
        ),
        (
            forged({"conv/kernel": entry([1, 2, 3], 0, 24), "conv/bias": entry([3], 0, 12)}, bytes(36)),
            "overlap or leave gaps",
        ),
        (
            forged({"conv/kernel": entry([1, 2, 3], 0, 24), "conv/bias": entry([3], 24, 36)}, bytes(30)),
            "30 bytes of tensors, expected 36",
        ),
        (
            forged({"conv/kernel": entry([1, 2, 3], 0, 24), "conv/bias": entry([3], 24, 36)}, bytes(99)),
            "99 bytes of tensors, expected 36",
        ),
        (
            forged({"conv/kernel": entry([1, 2, 3], -24, 0), "conv/bias": entry([3], 0, 12)}, bytes(12)),
            "overlap or leave gaps",
        ),
        (
            encode_weights({**WEIGHTS, "conv/bias": np.float32([1, np.nan, np.inf])}),
            "conv/bias of pi-3 holds 2 NaN or infinite",
        ),
    ],
)
def test_what_is_foreign_says_tensor_received_expected(blob, says):
    with pytest.raises(WireError) as caught:
        decode_weights(blob, SPECS, "pi-3")
    assert says in str(caught.value)
    assert ";" in str(caught.value)


@given(st.data())
@settings(deadline=None, max_examples=150)
def test_a_damaged_blob_is_a_wire_error_or_the_right_shapes(data):
    blob = bytearray(encode_weights(WEIGHTS))
    for _ in range(data.draw(st.integers(1, 4))):
        blob[data.draw(st.integers(0, len(blob) - 1))] = data.draw(st.integers(0, 255))
    del blob[data.draw(st.integers(0, len(blob))) :]
    try:
        back = decode_weights(bytes(blob), SPECS, "pi-3")
    except WireError:
        return
    assert {name: array.shape for name, array in back.items()} == {spec.name: spec.shape for spec in SPECS}


def test_several_models_in_one_blob_any_of_the_expected_each_whole():
    expected = {"expert0": SPECS, "expert1": SPECS}
    back = decode_models(encode_models({"expert1": WEIGHTS}), expected, "pi-3")
    assert list(back) == ["expert1"]
    np.testing.assert_array_equal(back["expert1"]["conv/kernel"], WEIGHTS["conv/kernel"])
    assert decode_models(encode_models({}), expected, "pi-3") == {}
    with pytest.raises(WireError, match="unknown model 'local'"):
        decode_models(encode_models({"local": WEIGHTS}), expected, "pi-3")
    with pytest.raises(WireError, match="unknown model 'expert0'"):
        decode_models(encode_models({"expert0": WEIGHTS}), {}, "pi-3")
    with pytest.raises(WireError, match="no tensor 'expert0/conv/bias'"):
        decode_models(encode_models({"expert0": {"conv/kernel": WEIGHTS["conv/kernel"]}}), expected, "pi-3")


def test_a_model_may_be_a_part_of_the_plan():
    part = {"conv/kernel": WEIGHTS["conv/kernel"]}
    back = decode_subset(encode_weights(part), SPECS, "the aggregator")
    assert list(back) == ["conv/kernel"]
    np.testing.assert_array_equal(back["conv/kernel"], part["conv/kernel"])
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


def test_a_claimed_size_takes_no_memory():
    import tracemalloc

    huge = forged({"w": entry([10**6, 10**6], 0, 4 * 10**12)})
    tracemalloc.start()
    with pytest.raises(WireError):
        decode_weights(huge, (TensorSpec("w", (10**6, 10**6)),), "pi-3")
    assert tracemalloc.get_traced_memory()[1] < 1_000_000
    tracemalloc.stop()


def test_a_header_that_promises_terabytes_is_refused_before_memory_is_taken():
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
