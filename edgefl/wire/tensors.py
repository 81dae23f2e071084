"""Weights <-> safetensors bytes.

The same weights give the same bytes; foreign bytes are checked before memory is taken.

A safetensors file is: u64 header size, JSON header (name -> dtype, shape, data_offsets), the tensors' bytes.
"""

import json
import math
import struct
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np
from safetensors.numpy import save as st_save

from edgefl.errors import WireError
from edgefl.plan.spec import TensorSpec
from edgefl.system.format import shorten_names
from edgefl.types import Array, Weights
from edgefl.wire.codecs import (
    DEFLATE_SUFFIX,
    ITEM_BYTES,
    PART_SEPARATOR,
    list_parts,
    pack_array,
    strip_suffixes,
    unpack_array,
)
from edgefl.wire.deflate import deflate_blob, inflate_blob

PLAN_REMEDY = "it runs another plan; restart it"
MAX_HEADER_BYTES = 1024 * 1024
DTYPES = {"float32": "F32", "float16": "F16", "int8": "I8", "uint32": "U32"}
"""What may travel, and its name in a safetensors header."""


def list_specs(weights: Weights) -> tuple[TensorSpec, ...]:
    """Return name and shape of each array, in the mapping's order."""
    return tuple(TensorSpec(name, tuple(array.shape)) for name, array in weights.items())


def count_payload_bytes(specs: tuple[TensorSpec, ...]) -> int:
    """Return the bytes of the values themselves."""
    return sum(_count_bytes(spec) for spec in specs)


def _count_bytes(spec: TensorSpec) -> int:
    return np.dtype(spec.dtype).itemsize * math.prod(spec.shape)


def bound_blob_size(specs: tuple[TensorSpec, ...]) -> int:
    """Return the largest size in bytes that a blob of these tensors can have, header included."""
    header = sum(len(json.dumps(spec.name)) + 120 + 20 * len(spec.shape) for spec in specs)
    return 16 + header + count_payload_bytes(specs)


def encode_weights(weights: Weights) -> bytes:
    """Return the weights as safetensors; WireError for an array that is not float32."""
    for name, array in weights.items():
        if array.dtype != np.float32:
            raise WireError(f"{name} is {array.dtype}, expected float32; cast it before it is sent")
    return _save(weights)


def _save(weights: Mapping[str, Array]) -> bytes:
    return bytes(st_save({name: np.asarray(array, order="C") for name, array in weights.items()}))


def read_header(blob: bytes, origin: str) -> tuple[dict[str, dict[str, Any]], int]:
    """Return the header and where the data begin; WireError when this is not safetensors."""
    try:
        if len(blob) < 8:
            raise ValueError(f"{len(blob)} bytes")
        (size,) = struct.unpack_from("<Q", blob)
        if size > min(MAX_HEADER_BYTES, len(blob) - 8) or size % 8:
            raise ValueError(f"header of {size} bytes in {len(blob)}")
        header = json.loads(blob[8 : 8 + size])
        if not isinstance(header, dict) or not all(isinstance(entry, dict) for entry in header.values()):
            raise ValueError("header is no table")
    except (ValueError, RecursionError) as error:
        raise WireError(f"{origin} sent no safetensors: {str(error)[:200]}; send it again") from error
    return header, 8 + size


def decode_weights(blob: bytes, specs: tuple[TensorSpec, ...], origin: str) -> dict[str, Array]:
    """Read exactly these tensors, in the specs' order, without copying.

    `origin` says in errors who sent the bytes. Names, dtypes, shapes and sizes are checked first, then
    finiteness.
    Raises WireError that names tensor, received, expected, remedy.
    """
    header, start = read_header(blob, origin)
    expected = {spec.name: spec for spec in specs}
    if unknown := [name for name in header if name not in expected]:
        raise WireError(
            f"{origin} sent the unknown tensor {unknown[0][:200]!r}, expected "
            f"{shorten_names(list(expected))}; "
            f"{PLAN_REMEDY}"
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
                f"{origin} sent tensors that overlap or leave holes at byte {min(low, position)}; send it "
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
    """Read some of these tensors, at least one, in the specs' order: a model that is a part of the plan's
    weights.

    Raises WireError as `decode_weights` does.
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
            f"{spec.name} of {origin} lies at {str(offsets)[:100]}, expected {size} bytes; send it again"
        )
    return offsets[0], offsets[1]


def encode_models(models: Mapping[str, Weights], codec: str = "fp32") -> bytes:
    """Return several named models as one blob, tensors named `{model}/{weight}`.

    WireError for a model name with a slash.
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
    return deflate_blob(
        blob, ITEM_BYTES.get(base, 4), zlib.Z_DEFAULT_STRATEGY if base.startswith("top-") else zlib.Z_RLE
    )


def _name_part(name: str, suffix: str) -> str:
    return f"{name}{PART_SEPARATOR}{suffix}" if suffix else name


def list_model_specs(
    models: Mapping[str, tuple[TensorSpec, ...]], codec: str = "fp32"
) -> tuple[TensorSpec, ...]:
    """Return the tensors of several models as they are named and packed in one blob."""
    return tuple(
        TensorSpec(_name_part(f"{model}/{spec.name}", part.suffix), part.shape, part.dtype)
        for model, specs in models.items()
        for spec in specs
        for part in list_parts(strip_suffixes(codec), spec.shape)
    )


def bound_models_size(models: Mapping[str, tuple[TensorSpec, ...]], codec: str) -> int:
    """Return the largest size in bytes that `encode_models` gives of these.

    Deflating may add a thousandth to what it cannot shorten.
    """
    limit = bound_blob_size(list_model_specs(models, codec))
    return limit if codec == strip_suffixes(codec) else limit + limit // 1000 + 64


def decode_models(
    blob: bytes, expected: Mapping[str, tuple[TensorSpec, ...]], origin: str, codec: str = "fp32"
) -> dict[str, dict[str, Array]]:
    """Read what `encode_models` wrote: any of the expected models, each one whole. Raises WireError."""
    base = strip_suffixes(codec)
    if base != codec:
        blob = inflate_blob(
            blob, ITEM_BYTES.get(base, 4), bound_blob_size(list_model_specs(expected, base)), origin
        )
    header, _ = read_header(blob, origin)
    sent = {name.split("/", 1)[0] for name in header}
    if unknown := sorted(sent - set(expected)):
        raise WireError(
            f"{origin} sent the unknown model {unknown[0][:100]!r}, expected "
            f"{shorten_names(list(expected))}; "
            f"{PLAN_REMEDY}"
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
