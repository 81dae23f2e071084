"""How the tensors of an update are written: pure functions, float32 arrays <-> the arrays that travel.

    fp32     as they are                                              4 bytes a value
    fp16     IEEE half precision                                      2
    int8     symmetric, one scale a tensor: x = scale q, |q| <= 127   1
    top-K    the K per cent of largest magnitude, with their places   K / 100 of 8

Each may be followed by `+deflate`: the bytes of the whole update are deflated then (`wire.deflate`), without
loss.

Packing what was unpacked gives the same arrays: a delta that was rounded once (`compressed` in `client`, with
what was lost kept for the next round) travels without further loss, and the simulator has the bits of MQTT.
For that, a scale has 16 significant bits, so that 127 scale is exact, and int8 rounds to the nearest, ties to
even.
Error feedback: Seide et al., 1-Bit Stochastic Gradient Descent, Interspeech 2014; Karimireddy et al.,
arXiv:1901.09847.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from edgefl.errors import ConfigError, WireError
from edgefl.types import Array, Weights

PackedArrays = Mapping[str, Array]
PART_SEPARATOR = "#"
"""Between a tensor's name and the part of it that is packed on its own."""
DEFLATE_SUFFIX = "+deflate"
"""Ends the name of a codec whose bytes travel deflated."""
MASKED_SUFFIX = "+masked"
"""Ends the name of a codec whose values travel under a mask (`wire.masked`); a task says so, no
configuration.
"""
ITEM_BYTES = {"fp16": 2, "int8": 1}
"""Bytes of the values that travel, where they are not 4."""


@dataclass(frozen=True)
class PackedPart:
    """One array that a tensor is packed into; `suffix` is empty for one that bears the tensor's own name."""

    suffix: str
    shape: tuple[int, ...]
    dtype: str


def check_codec(name: str) -> str:
    """Return the name; ConfigError when there is no such codec."""
    if re.fullmatch(r"(fp32|fp16|int8|top-([1-9]|[1-4][0-9]|50))(\+deflate)?", name):
        return name
    raise ConfigError(
        f"codec {name!r}: expected fp32, fp16, int8, or top-K with K from 1 to 50 per cent, and +deflate "
        "after it or not"
    )


def strip_suffixes(codec: str) -> str:
    """Return the codec without `+deflate` or `+masked`, which change no value."""
    return codec.removesuffix(DEFLATE_SUFFIX).removesuffix(MASKED_SUFFIX)


def list_parts(codec: str, shape: tuple[int, ...]) -> tuple[PackedPart, ...]:
    """Return what a tensor of this shape is packed into."""
    if codec == "fp32":
        return (PackedPart("", shape, "float32"),)
    if codec == "fp16":
        return (PackedPart("", shape, "float16"),)
    if codec == "int8":
        return (PackedPart("", shape, "int8"), PackedPart("scale", (1,), "float32"))
    count = _count_largest(codec, shape)
    return (PackedPart("", (count,), "float32"), PackedPart("place", (count,), "uint32"))


def pack_array(codec: str, array: Array) -> PackedArrays:
    """Return the parts of a float32 array, by suffix."""
    array = np.asarray(array, np.float32)
    if codec == "fp32":
        return {"": array}
    if codec == "fp16":
        # what is too large for half precision is cut: an infinite value would be refused
        return {"": np.clip(array, -65504, 65504).astype(np.float16)}
    if codec == "int8":
        scale = _scale(float(np.abs(array).max(initial=0.0)))
        q = np.rint(array / np.float32(scale)) if scale else np.zeros_like(array)
        return {"": q.astype(np.int8), "scale": np.array([scale], np.float32)}
    flat = array.ravel()
    # stable: of equal magnitudes the first stay
    positions = np.sort(np.argsort(-np.abs(flat), kind="stable")[: _count_largest(codec, array.shape)])
    return {"": flat[positions], "place": positions.astype(np.uint32)}


def unpack_array(codec: str, parts: PackedArrays, shape: tuple[int, ...], origin: str) -> Array:
    """Return the float32 array; WireError for parts that no `pack` makes.

    `origin` says in errors who sent them.
    """
    if codec == "fp32":
        return np.asarray(parts[""], np.float32)
    if codec == "fp16":
        # -0 becomes 0, here and below: another round gives these bits
        return np.asarray(parts[""].astype(np.float32) + np.float32(0))
    if codec == "int8":
        scale = parts["scale"][0]
        q = parts[""]
        if not 0 <= scale < 1e36 or (q.size and q.min() < -127):
            raise WireError(
                f"{origin} is no int8 tensor: scale {scale}, values from {q.min(initial=0)}; send it again"
            )
        return np.asarray(q.astype(np.float32) * scale)
    positions = parts["place"]
    size = math.prod(shape)
    if positions.size and (positions[-1] >= size or not (positions[1:] > positions[:-1]).all()):
        raise WireError(f"{origin} names places that do not ascend within {size}; send it again")
    flat = np.zeros(size, np.float32)
    flat[positions] = parts[""] + np.float32(0)
    return flat.reshape(shape)


def apply_codec(codec: str, weights: Weights) -> dict[str, Array]:
    """Return what arrives of these weights."""
    return {
        name: unpack_array(codec, pack_array(codec, array), array.shape, name)
        for name, array in weights.items()
    }


def _count_largest(codec: str, shape: tuple[int, ...]) -> int:
    size = math.prod(shape)
    return min(size, max(1, math.ceil(size * int(codec.removeprefix("top-")) / 100)))


def _scale(largest: float) -> float:
    """Return largest / 127 rounded up to 16 significant bits, 0 when that is no normal float32."""
    if largest / 127 < float(np.finfo(np.float32).tiny):
        return 0.0
    mantissa, exponent = math.frexp(largest / 127)
    return math.ldexp(math.ceil(mantissa * 65536), exponent - 16)
