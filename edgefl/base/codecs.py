"""Packs the float32 tensors of an update into the arrays that are sent, and unpacks them.

All functions are pure. The codecs and their bytes per value:

    fp32     unchanged                                                       4
    fp16     IEEE half precision                                             2
    int8     symmetric, one scale per tensor: x = scale q, |q| <= 127        1
    top-K    the K per cent of largest magnitude, with their positions       K / 100 of 8

With `+deflate` after the name, the bytes of the whole update are deflated without loss (`wire.deflate`).

Packing unpacked arrays gives the same arrays. A delta is rounded once, by
`edgefl.learning.client.compression`, which keeps the residual for the next round. It is then sent without
further loss, and the simulator computes the same bits as a federation over MQTT.

For that, an int8 scale has 16 significant bits, so that 127 scale is exact. Values are rounded to the nearest
integer, ties to even.

Source: error feedback after Seide et al., 1-Bit Stochastic Gradient Descent, Interspeech 2014, and
Karimireddy et al., arXiv:1901.09847.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgefl.base.errors import ConfigError, WireError
from edgefl.base.types import Array, Weights

PackedArrays = Mapping[str, NDArray[Any]]
PART_SEPARATOR = "#"
"""Separates a tensor's name from the suffix of one of its packed parts."""
DEFLATE_SUFFIX = "+deflate"
"""Suffix of a codec whose bytes are deflated."""
MASKED_SUFFIX = "+masked"
"""Suffix of a codec whose values are masked (`wire.masked`).

Only a task has this suffix, never a configuration.
"""
ITEM_BYTES = {"fp16": 2, "int8": 1}
"""Bytes per packed value, by codec. Other codecs use 4 bytes."""


@dataclass(frozen=True)
class PackedPart:
    """One of the arrays that a tensor is packed into.

    Attributes:
        suffix: suffix of the part after the tensor's name. "" for the part with the tensor's own name.
        shape: shape of the part.
        dtype: numpy dtype of the part.
    """

    suffix: str
    shape: tuple[int, ...]
    dtype: str


def check_codec(name: str) -> str:
    """Return the name of the codec if it exists.

    Raises:
        ConfigError: there is no such codec.
    """
    if re.fullmatch(r"(fp32|fp16|int8|top-([1-9]|[1-4][0-9]|50))(\+deflate)?", name):
        return name
    raise ConfigError(
        f"codec {name!r}: expected fp32, fp16, int8, or top-K with K from 1 to 50 per cent, with or "
        "without +deflate after it"
    )


def strip_suffixes(codec: str) -> str:
    """Return the codec without `+deflate` and `+masked`, which do not change values."""
    return codec.removesuffix(DEFLATE_SUFFIX).removesuffix(MASKED_SUFFIX)


def list_parts(codec: str, shape: tuple[int, ...]) -> tuple[PackedPart, ...]:
    """Return the parts into which the codec packs a tensor of this shape.

    Args:
        codec: codec without suffixes.
        shape: shape of the tensor.
    """
    if codec == "fp32":
        return (PackedPart("", shape, "float32"),)
    if codec == "fp16":
        return (PackedPart("", shape, "float16"),)
    if codec == "int8":
        return (PackedPart("", shape, "int8"), PackedPart("scale", (1,), "float32"))
    count = _count_largest(codec, shape)
    return (PackedPart("", (count,), "float32"), PackedPart("place", (count,), "uint32"))


def pack_array(codec: str, array: Array) -> PackedArrays:
    """Return the packed parts of an array.

    Args:
        codec: codec without suffixes.
        array: values, any shape, float32.

    Returns:
        The parts by suffix, with the shapes and dtypes of `list_parts`.
    """
    array = np.asarray(array, np.float32)
    if codec == "fp32":
        return {"": array}
    if codec == "fp16":
        # clipped to the range of half precision: the receiver rejects an infinite value
        return {"": np.clip(array, -65504, 65504).astype(np.float16)}
    if codec == "int8":
        scale = _scale(float(np.abs(array).max(initial=0.0)))
        q = np.rint(array / np.float32(scale)) if scale else np.zeros_like(array)
        return {"": q.astype(np.int8), "scale": np.array([scale], np.float32)}
    flat = array.ravel()
    # a stable sort: among equal magnitudes the first values stay
    positions = np.sort(np.argsort(-np.abs(flat), kind="stable")[: _count_largest(codec, array.shape)])
    return {"": flat[positions], "place": positions.astype(np.uint32)}


def unpack_array(codec: str, parts: PackedArrays, shape: tuple[int, ...], origin: str) -> Array:
    """Unpack an array.

    Args:
        codec: codec without suffixes.
        parts: parts by suffix, with the shapes and dtypes of `list_parts`.
        shape: shape of the array.
        origin: sender of the parts, for errors.

    Returns:
        The values, with this shape, float32.

    Raises:
        WireError: `pack_array` cannot have made these parts.
    """
    if codec == "fp32":
        return np.asarray(parts[""], np.float32)
    if codec == "fp16":
        # -0 becomes 0, here and below, so that packing again gives the same bits
        return np.asarray(parts[""].astype(np.float32) + np.float32(0))
    if codec == "int8":
        scale = parts["scale"][0]
        q = parts[""]
        if not 0 <= scale < 1e36 or (q.size and q.min() < -127):
            raise WireError(
                f"{origin} is not an int8 tensor: scale {scale}, values from {q.min(initial=0)}; send it "
                f"again"
            )
        return np.asarray(q.astype(np.float32) * scale)
    positions = parts["place"]
    size = math.prod(shape)
    if positions.size and (positions[-1] >= size or not (positions[1:] > positions[:-1]).all()):
        raise WireError(f"{origin} has positions that do not ascend within {size}; send it again")
    flat = np.zeros(size, np.float32)
    flat[positions] = parts[""] + np.float32(0)
    return flat.reshape(shape)


def apply_codec(codec: str, weights: Weights) -> dict[str, Array]:
    """Return the weights as the receiver unpacks them.

    Args:
        codec: codec without suffixes.
        weights: arrays by name, any shape, float32.

    Returns:
        Arrays by name with the same shapes, float32.
    """
    return {
        name: unpack_array(codec, pack_array(codec, array), array.shape, name)
        for name, array in weights.items()
    }


def _count_largest(codec: str, shape: tuple[int, ...]) -> int:
    size = math.prod(shape)
    return min(size, max(1, math.ceil(size * int(codec.removeprefix("top-")) / 100)))


def _scale(largest: float) -> float:
    """Return largest / 127 rounded up to 16 significant bits, or 0 if it is not a normal float32."""
    if largest / 127 < float(np.finfo(np.float32).tiny):
        return 0.0
    mantissa, exponent = math.frexp(largest / 127)
    return math.ldexp(math.ceil(mantissa * 65536), exponent - 16)
