"""Converts weights to safetensors bytes and back.

The same weights always give the same bytes. Received bytes are checked before memory is allocated.

A safetensors file has three parts: the header size as u64, a JSON header (name -> dtype, shape,
data_offsets), and the bytes of the tensors.
"""

import json
import math
import struct
from collections.abc import Mapping
from typing import Any

import numpy as np
from safetensors.numpy import save as st_save

from edgefl.base.codecs import (
    DEFLATE_SUFFIX,
    PART_SEPARATOR,
    find_codec,
    list_parts,
    pack_array,
    strip_suffixes,
    unpack_array,
)
from edgefl.base.errors import WireError
from edgefl.base.system.format import shorten_names
from edgefl.base.types import Array, Weights
from edgefl.program.plan.spec import TensorSpec
from edgefl.protocol.wire.deflate import deflate_blob, inflate_blob

PLAN_REMEDY = "it runs another plan; restart it"
MAX_HEADER_BYTES = 1024 * 1024
DTYPES = {"float32": "F32", "float16": "F16", "int8": "I8", "uint32": "U32"}
"""The numpy dtypes that may be sent, with their names in a safetensors header."""


def list_specs(weights: Weights) -> tuple[TensorSpec, ...]:
    """Return the name and shape of each array, in the order of the mapping."""
    return tuple(TensorSpec(name, tuple(array.shape)) for name, array in weights.items())


def count_payload_bytes(specs: tuple[TensorSpec, ...]) -> int:
    """Return the size in bytes of the tensors' values, without a header."""
    return sum(_count_bytes(spec) for spec in specs)


def _count_bytes(spec: TensorSpec) -> int:
    return np.dtype(spec.dtype).itemsize * math.prod(spec.shape)


def bound_blob_size(specs: tuple[TensorSpec, ...]) -> int:
    """Return the maximum size in bytes of a blob of these tensors, header included."""
    header = sum(len(json.dumps(spec.name)) + 120 + 20 * len(spec.shape) for spec in specs)
    return 16 + header + count_payload_bytes(specs)


def encode_weights(weights: Weights) -> bytes:
    """Return the weights as safetensors.

    Args:
        weights: arrays by name, any shape, float32.

    Raises:
        WireError: an array is not float32.
    """
    for name, array in weights.items():
        if array.dtype != np.float32:
            raise WireError(f"{name} is {array.dtype}, expected float32; cast it before it is sent")
    return _save(weights)


def _save(weights: Mapping[str, Array]) -> bytes:
    return bytes(st_save({name: np.asarray(array, order="C") for name, array in weights.items()}))


def read_header(blob: bytes, origin: str) -> tuple[dict[str, dict[str, Any]], int]:
    """Read the header of a safetensors blob.

    Args:
        blob: the received bytes.
        origin: sender of the bytes, for errors.

    Returns:
        The header by tensor name, and the offset in bytes where the values start.

    Raises:
        WireError: the bytes are not safetensors.
    """
    try:
        if len(blob) < 8:
            raise ValueError(f"{len(blob)} bytes")
        (size,) = struct.unpack_from("<Q", blob)
        if size > min(MAX_HEADER_BYTES, len(blob) - 8) or size % 8:
            raise ValueError(f"header of {size} bytes in {len(blob)}")
        header = json.loads(blob[8 : 8 + size])
        if not isinstance(header, dict) or not all(isinstance(entry, dict) for entry in header.values()):
            raise ValueError("the header is not a table")
    except (ValueError, RecursionError) as error:
        raise WireError(
            f"{origin} sent bytes that are not safetensors: {str(error)[:200]}; send it again"
        ) from error
    return header, 8 + size


def decode_weights(blob: bytes, specs: tuple[TensorSpec, ...], origin: str) -> dict[str, Array]:
    """Read exactly these tensors, without copying.

    Names, dtypes, shapes and sizes are checked before the values.

    Args:
        blob: the received bytes.
        specs: name, shape and dtype of each expected tensor.
        origin: sender of the bytes, for errors.

    Returns:
        Arrays by name in the order of `specs`, each with the shape and dtype of its spec. They are read-only.

    Raises:
        WireError: a tensor is missing, unknown, malformed, or contains a value that is not finite.
    """
    header, start = read_header(blob, origin)
    expected = {spec.name: spec for spec in specs}
    if unknown := [name for name in header if name not in expected]:
        raise WireError(
            f"{origin} sent the unknown tensor {unknown[0][:200]!r}, expected "
            f"{shorten_names(list(expected))}; {PLAN_REMEDY}"
        )
    spans = []
    for spec in specs:
        if spec.name not in header:
            raise WireError(f"{origin} sent no tensor {spec.name!r}, expected {spec.shape}; {PLAN_REMEDY}")
        spans.append(_check_entry(header[spec.name], spec, origin))
    position = 0
    for low, high in sorted(spans):
        if low != position:
            raise WireError(
                f"{origin} sent tensors that overlap or leave gaps at byte {min(low, position)}; send it "
                "again"
            )
        position = high
    if position != len(blob) - start:
        raise WireError(
            f"{origin} sent {len(blob) - start} bytes of tensors, expected {position}; send it again"
        )
    weights = {}
    for spec, (low, high) in zip(specs, spans, strict=True):
        dtype = np.dtype(spec.dtype).newbyteorder("<")
        array = np.frombuffer(blob, dtype, count=(high - low) // dtype.itemsize, offset=start + low).reshape(
            spec.shape
        )
        if dtype.kind == "f" and not np.isfinite(array).all():
            bad = int(np.count_nonzero(~np.isfinite(array)))
            raise WireError(
                f"{spec.name} of {origin} holds {bad} NaN or infinite values, expected none; lower its "
                "learning rate"
            )
        weights[spec.name] = array
    return weights


def decode_subset(blob: bytes, specs: tuple[TensorSpec, ...], origin: str) -> dict[str, Array]:
    """Read the tensors of a model that contains some of the plan's weights.

    Args:
        blob: the received bytes.
        specs: name, shape and dtype of each tensor that may be present.
        origin: sender of the bytes, for errors.

    Returns:
        At least one array by name, in the order of `specs`.

    Raises:
        WireError: the blob has no tensor, or `decode_weights` rejects it.
    """
    header, _ = read_header(blob, origin)
    chosen = tuple(spec for spec in specs if spec.name in header)
    if not chosen and not header:
        raise WireError(
            f"{origin} sent no tensor, expected some of {shorten_names([spec.name for spec in specs])}; "
            f"{PLAN_REMEDY}"
        )
    return decode_weights(blob, chosen or specs, origin)


def _check_entry(entry: Mapping[str, Any], spec: TensorSpec, origin: str) -> tuple[int, int]:
    if entry.get("dtype") != DTYPES[spec.dtype]:
        raise WireError(
            f"{spec.name} of {origin} is {str(entry.get('dtype'))[:20]}, expected {DTYPES[spec.dtype]}; "
            f"{PLAN_REMEDY}"
        )
    shape = entry.get("shape")
    if shape != list(spec.shape):
        received = tuple(shape) if isinstance(shape, list) else shape
        raise WireError(
            f"{spec.name} of {origin} is {str(received)[:100]}, expected {spec.shape}; {PLAN_REMEDY}"
        )
    offsets = entry.get("data_offsets")
    size = _count_bytes(spec)
    if not (
        isinstance(offsets, list)
        and len(offsets) == 2
        and all(type(o) is int for o in offsets)
        and offsets[1] - offsets[0] == size
    ):
        raise WireError(
            f"{spec.name} of {origin} has the data_offsets {str(offsets)[:100]}, expected {size} bytes; "
            f"send it again"
        )
    return offsets[0], offsets[1]


def encode_models(models: Mapping[str, Weights], codec: str = "fp32") -> bytes:
    """Return several named models as one blob, with tensors named `{model}/{weight}`.

    Args:
        models: weights by model name, float32.
        codec: codec of the values.

    Raises:
        WireError: a model name is empty or contains a slash, or an array is not float32 with the codec fp32.
    """
    for name in models:
        if not name or "/" in name:
            raise WireError(f"model name {name!r}, expected a name without a slash")
    flat = {f"{model}/{name}": array for model, weights in models.items() for name, array in weights.items()}
    base = strip_suffixes(codec)
    if base == "fp32":
        blob = encode_weights(flat)
    else:
        blob = _save(
            {
                _name_part(name, suffix): part
                for name, array in flat.items()
                for suffix, part in pack_array(base, array).items()
            }
        )
    if not codec.endswith(DEFLATE_SUFFIX):
        return blob
    kind = find_codec(base)
    return deflate_blob(blob, kind.item_bytes, kind.deflate_strategy)


def _name_part(name: str, suffix: str) -> str:
    return f"{name}{PART_SEPARATOR}{suffix}" if suffix else name


def list_model_specs(
    models: Mapping[str, tuple[TensorSpec, ...]], codec: str = "fp32"
) -> tuple[TensorSpec, ...]:
    """Return the packed tensors of several models in one blob.

    Args:
        models: specs of the weights by model name.
        codec: codec of the values.
    """
    return tuple(
        TensorSpec(_name_part(f"{model}/{spec.name}", part.suffix), part.shape, part.dtype)
        for model, specs in models.items()
        for spec in specs
        for part in list_parts(strip_suffixes(codec), spec.shape)
    )


def bound_models_size(models: Mapping[str, tuple[TensorSpec, ...]], codec: str) -> int:
    """Return the maximum size in bytes of what `encode_models` returns for these models.

    Deflate can add a thousandth to bytes that it cannot compress.

    Args:
        models: specs of the weights by model name.
        codec: codec of the values.
    """
    limit = bound_blob_size(list_model_specs(models, codec))
    return limit if codec == strip_suffixes(codec) else limit + limit // 1000 + 64


def decode_models(
    blob: bytes, expected: Mapping[str, tuple[TensorSpec, ...]], origin: str, codec: str = "fp32"
) -> dict[str, dict[str, Array]]:
    """Read the blob of `encode_models`.

    Args:
        blob: the received bytes.
        expected: specs of the weights by model name. Each model may be missing but must be complete.
        origin: sender of the bytes, for errors.
        codec: codec of the values.

    Returns:
        Arrays by weight name, by model name, float32 with the shapes of their specs.

    Raises:
        WireError: the blob contains an unknown model, or its bytes are not valid for the codec.
    """
    base = strip_suffixes(codec)
    if base != codec:
        blob = inflate_blob(
            blob, find_codec(base).item_bytes, bound_blob_size(list_model_specs(expected, base)), origin
        )
    header, _ = read_header(blob, origin)
    sent = {name.split("/", 1)[0] for name in header}
    if unknown := sorted(sent - set(expected)):
        raise WireError(
            f"{origin} sent the unknown model {unknown[0][:100]!r}, expected "
            f"{shorten_names(list(expected))}; {PLAN_REMEDY}"
        )
    chosen = {model: specs for model, specs in expected.items() if model in sent}
    flat = decode_weights(blob, list_model_specs(chosen, base), origin)

    def unpack_tensor(model: str, spec: TensorSpec) -> Array:
        name = f"{model}/{spec.name}"
        parts = {part.suffix: flat[_name_part(name, part.suffix)] for part in list_parts(base, spec.shape)}
        return unpack_array(base, parts, spec.shape, f"{name} of {origin}")

    return {
        model: {spec.name: unpack_tensor(model, spec) for spec in specs} for model, specs in chosen.items()
    }
