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

Parts = Mapping[str, Array]
MARK = "#"
"""Between a tensor's name and the part of it that is packed on its own."""
DEFLATE = "+deflate"
"""Ends the name of a codec whose bytes travel deflated."""
MASKED = "+masked"
"""Ends the name of a codec whose values travel under a mask (`wire.masked`); a task says so, no
configuration.
"""
ITEMSIZES = {"fp16": 2, "int8": 1}
"""Bytes of the values that travel, where they are not 4."""


@dataclass(frozen=True)
class Part:
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


def rounding(codec: str) -> str:
    """Return the codec without `+deflate` or `+masked`, which change no value."""
    return codec.removesuffix(DEFLATE).removesuffix(MASKED)


def parts_of(codec: str, shape: tuple[int, ...]) -> tuple[Part, ...]:
    """Return what a tensor of this shape is packed into."""
    if codec == "fp32":
        return (Part("", shape, "float32"),)
    if codec == "fp16":
        return (Part("", shape, "float16"),)
    if codec == "int8":
        return (Part("", shape, "int8"), Part("scale", (1,), "float32"))
    count = _kept(codec, shape)
    return (Part("", (count,), "float32"), Part("place", (count,), "uint32"))


def pack(codec: str, array: Array) -> Parts:
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
    places = np.sort(np.argsort(-np.abs(flat), kind="stable")[: _kept(codec, array.shape)])
    return {"": flat[places], "place": places.astype(np.uint32)}


def unpack(codec: str, parts: Parts, shape: tuple[int, ...], origin: str) -> Array:
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
    places = parts["place"]
    size = math.prod(shape)
    if places.size and (places[-1] >= size or not (places[1:] > places[:-1]).all()):
        raise WireError(f"{origin} names places that do not ascend within {size}; send it again")
    flat = np.zeros(size, np.float32)
    flat[places] = parts[""] + np.float32(0)
    return flat.reshape(shape)


def rounded(codec: str, weights: Weights) -> dict[str, Array]:
    """Return what arrives of these weights."""
    return {name: unpack(codec, pack(codec, array), array.shape, name) for name, array in weights.items()}


def _kept(codec: str, shape: tuple[int, ...]) -> int:
    size = math.prod(shape)
    return min(size, max(1, math.ceil(size * int(codec.removeprefix("top-")) / 100)))


def _scale(largest: float) -> float:
    """Return largest / 127 rounded up to 16 significant bits, 0 when that is no normal float32."""
    if largest / 127 < float(np.finfo(np.float32).tiny):
        return 0.0
    mantissa, exponent = math.frexp(largest / 127)
    return math.ldexp(math.ceil(mantissa * 65536), exponent - 16)
