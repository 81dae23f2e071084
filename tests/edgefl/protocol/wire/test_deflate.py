"""Deflated updates: byte planes, lossless round trips, and a limit on memory."""

import tracemalloc
import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgefl.base.codecs import CODEC_EXAMPLES, check_codec
from edgefl.base.errors import ConfigError, WireError
from edgefl.protocol.wire.deflate import deflate_blob, inflate_blob
from edgefl.protocol.wire.tensors import bound_models_size, decode_models, encode_models, list_specs

RNG = np.random.default_rng(5)
DELTA = {"fc/kernel": RNG.normal(0, 0.01, (60, 50)).astype(np.float32), "fc/bias": np.zeros(50, np.float32)}
SPECS = {"global": list_specs(DELTA)}


def test_byte_planes_match_hand_calculation():
    """Two values of two bytes and one extra byte become first bytes, second bytes, and the extra byte."""
    assert zlib.decompress(deflate_blob(b"aAbB.", 2)) == b"abAB."
    assert inflate_blob(zlib.compress(b"abAB."), 2, 5, "pi-1") == b"aAbB."


@given(st.binary(max_size=300), st.sampled_from([1, 2, 4]))
def test_deflated_bytes_inflate_to_the_same_bytes(blob, itemsize):
    assert inflate_blob(deflate_blob(blob, itemsize), itemsize, len(blob), "pi-1") == blob


@pytest.mark.parametrize("codec", CODEC_EXAMPLES)
def test_deflated_update_is_identical_and_smaller(codec):
    plain, deflated = (encode_models({"global": DELTA}, each) for each in (codec, f"{codec}+deflate"))
    assert len(deflated) < len(plain)
    assert len(deflated) <= bound_models_size(SPECS, f"{codec}+deflate")
    one = decode_models(plain, SPECS, "pi-1", codec)
    two = decode_models(deflated, SPECS, "pi-1", check_codec(f"{codec}+deflate"))
    assert {name: array.tobytes() for name, array in one["global"].items()} == {
        n: a.tobytes() for n, a in two["global"].items()
    }


def test_incompressible_update_stays_within_the_limit():
    noise = {"w": np.frombuffer(np.random.default_rng(1).bytes(4_000_000), np.float32)}
    noise = {"w": np.nan_to_num(noise["w"])}
    assert len(encode_models({"global": noise}, "fp32+deflate")) <= bound_models_size(
        {"global": list_specs(noise)}, "fp32+deflate"
    )


def test_update_without_tensors_round_trips():
    assert decode_models(encode_models({}, "int8+deflate"), {}, "pi-1", "int8+deflate") == {}


def test_decompression_bomb_is_refused_before_memory_is_allocated():
    bomb = zlib.compress(bytes(100_000_000), 9)
    assert len(bomb) < 100_000
    tracemalloc.start()
    try:
        with pytest.raises(
            WireError, match=r"pi-1 sent \d+ bytes that unpack to more than \d+, the largest update"
        ):
            decode_models(bomb, SPECS, "pi-1", "int8+deflate")
        assert tracemalloc.get_traced_memory()[1] < 300_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda blob: blob[:-3], "end too early or too late"),
        (lambda blob: blob + b"more", "end too early or too late"),
        (lambda blob: b"x" + blob, "not deflated"),
        (lambda blob: zlib.compress(zlib.decompress(blob)[:-8]), "sent"),
    ],
)
def test_damaged_bytes_are_refused(change, message):
    with pytest.raises(WireError, match=message):
        decode_models(change(encode_models({"global": DELTA}, "int8+deflate")), SPECS, "pi-1", "int8+deflate")


@pytest.mark.parametrize(
    "name", ["deflate", "int8+zstd", "int8+deflate+deflate", "top-51+deflate", "+deflate"]
)
def test_other_codec_names_are_refused(name):
    with pytest.raises(ConfigError, match=r"with or without \+deflate after it"):
        check_codec(name)
