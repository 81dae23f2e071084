"""Codecs: worked cases, and properties of all codecs."""

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from edgefl.base.codecs import CODEC_EXAMPLES, apply_codec, check_codec, list_parts, pack_array, unpack_array
from edgefl.base.errors import ConfigError, WireError

CODECS = (*CODEC_EXAMPLES, "top-50")
ARRAYS = hnp.arrays(
    np.float32, hnp.array_shapes(min_dims=0, max_dims=3, max_side=7), elements=st.floats(-1e6, 1e6, width=32)
)


def test_int8_codec_matches_hand_calculation():
    """The largest value 254 gives scale 2. Values are halved and rounded to even."""
    parts = pack_array("int8", np.float32([254, -254, 3, 1, -1, 0.9]))
    assert parts["scale"].tolist() == [2.0]
    assert parts[""].tolist() == [127, -127, 2, 0, 0, 0]
    assert unpack_array("int8", parts, (6,), "x").tolist() == [254, -254, 4, 0, 0, 0]


def test_top_k_codec_matches_hand_calculation():
    """One value of three is kept for 20%, three of six for 50%. The first of equal values is kept."""
    array = np.float32([[1, -3, 2], [2, 0, 2]])
    assert unpack_array("top-20", pack_array("top-20", array[0:1]), (1, 3), "x").tolist() == [[0, -3, 0]]
    assert unpack_array("top-50", pack_array("top-50", array), (2, 3), "x").tolist() == [
        [0, -3, 2],
        [2, 0, 0],
    ]


@pytest.mark.parametrize("codec", CODECS)
@given(ARRAYS)
def test_repeated_packing_changes_no_bit(codec, array):
    once = apply_codec(codec, {"w": array})["w"]
    assert (once.dtype, once.shape) == (np.float32, array.shape)
    assert apply_codec(codec, {"w": once})["w"].tobytes() == once.tobytes()
    first = pack_array(codec, once)
    for part in list_parts(codec, array.shape):
        assert (first[part.suffix].shape, first[part.suffix].dtype) == (part.shape, np.dtype(part.dtype))


@given(ARRAYS)
@example(np.float32([7.5e-37, 1e-40]))
def test_int8_error_is_at_most_half_a_step(array):
    """A scale below the smallest normal number becomes zero, and so do the values."""
    largest = np.abs(array).max(initial=0)
    error = np.abs(apply_codec("int8", {"w": array})["w"] - array).max(initial=0)
    assert error <= (0.5001 * largest / 127 if largest / 127 >= np.finfo(np.float32).tiny else largest)


@pytest.mark.parametrize(
    ("codec", "parts"),
    [
        ("int8", {"": np.int8([-128]), "scale": np.float32([1])}),
        ("int8", {"": np.int8([1]), "scale": np.float32([-1])}),
        ("int8", {"": np.int8([1]), "scale": np.float32([np.inf])}),
        ("top-50", {"": np.float32([1, 2]), "place": np.uint32([0, 4])}),
        ("top-50", {"": np.float32([1, 2]), "place": np.uint32([1, 1])}),
        ("top-50", {"": np.float32([1, 2]), "place": np.uint32([2, 1])}),
    ],
)
def test_malformed_parts_are_refused(codec, parts):
    with pytest.raises(WireError, match="pi-3"):
        unpack_array(codec, parts, (4,) if codec == "top-50" else (1,), "pi-3")


def test_unknown_codecs_are_refused():
    for name in ("", "int4", "top-0", "top-51", "top-1.5", "top"):
        with pytest.raises(ConfigError, match="expected fp32, fp16, int8, or top-K"):
            check_codec(name)
