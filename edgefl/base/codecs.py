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
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
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


@dataclass(frozen=True)
class Codec:
    """How one kind of codec packs a tensor. Each function receives the codec's name first.

    Attributes:
        pattern: regular expression of its names.
        description: its names, for errors.
        examples: names that tests and measurements use.
        item_bytes: bytes of a packed value.
        list_parts: returns the parts of a tensor of a shape.
        pack: returns the packed parts of values, any shape, float32.
        unpack: returns the values of packed parts, a shape, and the origin of the parts for errors. It raises
            WireError for parts that `pack` cannot have made.
        deflate_strategy: strategy of zlib that deflates its bytes best.
    """

    pattern: str
    description: str
    examples: tuple[str, ...]
    item_bytes: int
    list_parts: Callable[[str, tuple[int, ...]], tuple[PackedPart, ...]]
    pack: Callable[[str, Array], PackedArrays]
    unpack: Callable[[str, PackedArrays, tuple[int, ...], str], Array]
    deflate_strategy: int = zlib.Z_RLE


def _pack_half(name: str, array: Array) -> PackedArrays:
    # clipped to the range of half precision: the receiver rejects an infinite value
    return {"": np.clip(array, -65504, 65504).astype(np.float16)}


def _unpack_half(name: str, parts: PackedArrays, shape: tuple[int, ...], origin: str) -> Array:
    # -0 becomes 0, here and below, so that packing again gives the same bits
    return np.asarray(parts[""].astype(np.float32) + np.float32(0))


def _pack_int8(name: str, array: Array) -> PackedArrays:
    scale = _scale(float(np.abs(array).max(initial=0.0)))
    q = np.rint(array / np.float32(scale)) if scale else np.zeros_like(array)
    return {"": q.astype(np.int8), "scale": np.array([scale], np.float32)}


def _unpack_int8(name: str, parts: PackedArrays, shape: tuple[int, ...], origin: str) -> Array:
    scale = parts["scale"][0]
    q = parts[""]
    if not 0 <= scale < 1e36 or (q.size and q.min() < -127):
        raise WireError(
            f"{origin} is not an int8 tensor: scale {scale}, values from {q.min(initial=0)}; send it again"
        )
    return np.asarray(q.astype(np.float32) * scale)


def _list_largest_parts(name: str, shape: tuple[int, ...]) -> tuple[PackedPart, ...]:
    count = _count_largest(name, shape)
    return (PackedPart("", (count,), "float32"), PackedPart("place", (count,), "uint32"))


def _pack_largest(name: str, array: Array) -> PackedArrays:
    flat = array.ravel()
    # a stable sort: among equal magnitudes the first values stay
    positions = np.sort(np.argsort(-np.abs(flat), kind="stable")[: _count_largest(name, array.shape)])
    return {"": flat[positions], "place": positions.astype(np.uint32)}


def _unpack_largest(name: str, parts: PackedArrays, shape: tuple[int, ...], origin: str) -> Array:
    positions = parts["place"]
    size = math.prod(shape)
    if positions.size and (positions[-1] >= size or not (positions[1:] > positions[:-1]).all()):
        raise WireError(f"{origin} has positions that do not ascend within {size}; send it again")
    flat = np.zeros(size, np.float32)
    flat[positions] = parts[""] + np.float32(0)
    return flat.reshape(shape)


CODECS = (
    Codec(
        pattern="fp32",
        description="fp32",
        examples=("fp32",),
        item_bytes=4,
        list_parts=lambda name, shape: (PackedPart("", shape, "float32"),),
        pack=lambda name, array: {"": array},
        unpack=lambda name, parts, shape, origin: np.asarray(parts[""], np.float32),
    ),
    Codec(
        pattern="fp16",
        description="fp16",
        examples=("fp16",),
        item_bytes=2,
        list_parts=lambda name, shape: (PackedPart("", shape, "float16"),),
        pack=_pack_half,
        unpack=_unpack_half,
    ),
    Codec(
        pattern="int8",
        description="int8",
        examples=("int8",),
        item_bytes=1,
        list_parts=lambda name, shape: (
            PackedPart("", shape, "int8"),
            PackedPart("scale", (1,), "float32"),
        ),
        pack=_pack_int8,
        unpack=_unpack_int8,
    ),
    Codec(
        pattern="top-([1-9]|[1-4][0-9]|50)",
        description="top-K with K from 1 to 50 per cent",
        examples=("top-10", "top-1"),
        item_bytes=4,
        list_parts=_list_largest_parts,
        pack=_pack_largest,
        unpack=_unpack_largest,
        deflate_strategy=zlib.Z_DEFAULT_STRATEGY,
    ),
)
"""All kinds of codecs. The first one that matches a name counts."""
CODEC_EXAMPLES = tuple(name for codec in CODECS for name in codec.examples)
"""Names of codecs without suffixes, at least one of each kind."""


@cache
def find_codec(name: str) -> Codec:
    """Return the codec of a name without suffixes.

    Raises:
        ConfigError: there is no such codec.
    """
    for codec in CODECS:
        if re.fullmatch(codec.pattern, name):
            return codec
    raise ConfigError(f"codec {name!r}: expected {_describe_codecs()}")


def check_codec(name: str) -> str:
    """Return the name of the codec if it exists, perhaps with `+deflate`.

    Raises:
        ConfigError: there is no such codec.
    """
    try:
        find_codec(name.removesuffix(DEFLATE_SUFFIX))
    except ConfigError as error:
        raise ConfigError(f"codec {name!r}: expected {_describe_codecs()}") from error
    return name


def _describe_codecs() -> str:
    names = [codec.description for codec in CODECS]
    return f"{', '.join(names[:-1])}, or {names[-1]}, with or without {DEFLATE_SUFFIX} after it"


def strip_suffixes(codec: str) -> str:
    """Return the codec without `+deflate` and `+masked`, which do not change values."""
    return codec.removesuffix(DEFLATE_SUFFIX).removesuffix(MASKED_SUFFIX)


def list_parts(codec: str, shape: tuple[int, ...]) -> tuple[PackedPart, ...]:
    """Return the parts into which the codec packs a tensor of this shape.

    Args:
        codec: codec without suffixes.
        shape: shape of the tensor.
    """
    return find_codec(codec).list_parts(codec, shape)


def pack_array(codec: str, array: Array) -> PackedArrays:
    """Return the packed parts of an array.

    Args:
        codec: codec without suffixes.
        array: values, any shape, float32.

    Returns:
        The parts by suffix, with the shapes and dtypes of `list_parts`.
    """
    return find_codec(codec).pack(codec, np.asarray(array, np.float32))


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
    return find_codec(codec).unpack(codec, parts, shape, origin)


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
