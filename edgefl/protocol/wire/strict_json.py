"""Converts frozen dataclasses to JSON and back, strictly.

A field that is unknown, missing or of another type raises WireError. A field that a class names in `OPTIONAL`
may be missing and then has its default.
"""

import json
import math
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import fields
from functools import cache
from typing import Any, TypeGuard, TypeVar, get_args, get_origin, get_type_hints

from edgefl.base.errors import WireError
from edgefl.base.system.files import to_json_value

MAX_JSON_BYTES = 64 * 1024
MAX_TEXT = 1024
MAX_ITEMS = 1024
MAX_INTEGER = 2**63 - 1
MAX_GROWTH = 8
"""A message grows by less than this factor when it is encoded again. A raw DEL character becomes `\\u007f`,
which is six times as long, and missing optional fields are added.
"""
MAX_FLOAT = sys.float_info.max
SURROGATES = re.compile(r"[\ud800-\udfff]")

T = TypeVar("T")
Reader = Callable[[Any], Any]
# json.dumps and json.loads with options create an encoder or decoder per call
_ENCODER = json.JSONEncoder(separators=(",", ":"), allow_nan=False)


@cache
def _list_fields(cls: Any) -> tuple[str, ...]:
    return tuple(field.name for field in fields(cls))


def find_max_bytes(cls: type) -> int:
    """Return the maximum size in bytes of a message of this class: its `MAX_BYTES`, or 64 KiB."""
    return int(getattr(cls, "MAX_BYTES", MAX_JSON_BYTES))


def encode_json(message: Any) -> bytes:
    """Return a message as JSON.

    Args:
        message: instance of a dataclass of `edgefl.protocol.wire.messages`, or of one with the same field
            types.

    Raises:
        WireError: the JSON is larger than the maximum of the class.
    """
    values = {name: to_json_value(getattr(message, name)) for name in _list_fields(type(message))}  # type: ignore[arg-type]  # a class is hashable
    return check_message_size(type(message), _ENCODER.encode(values).encode())


def _list_optional(cls: type) -> frozenset[str]:
    return getattr(cls, "OPTIONAL", frozenset())


def check_message_size(cls: type, payload: bytes) -> bytes:
    """Return the JSON of a message if it is not too large.

    Raises:
        WireError: the JSON is larger than the maximum of the class.
    """
    if len(payload) > (limit := find_max_bytes(cls)):
        raise WireError(
            f"{cls.__name__} is {len(payload)} bytes, expected at most {limit}; report fewer metrics"
        )
    return payload


def _read_number(value: Any) -> float:
    if value is None:
        return math.nan
    # an integer can be too large for a float
    if isinstance(value, int | float) and not isinstance(value, bool) and -MAX_FLOAT <= value <= MAX_FLOAT:
        return float(value)
    raise ValueError("a number")


def _read_integer(value: Any) -> int:
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) <= MAX_INTEGER:
        return value
    raise ValueError("a whole number")


def _is_text(value: Any) -> TypeGuard[str]:
    # an escaped lone surrogate has no UTF-8 form: it could be neither printed nor stored
    return (
        isinstance(value, str)
        and len(value) <= MAX_TEXT
        and (value.isascii() or not SURROGATES.search(value))
    )


def _read_text(value: Any) -> str:
    if _is_text(value):
        return value
    raise ValueError(f"text of at most {MAX_TEXT} whole characters")


def _read_bool(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    raise ValueError("true or false")


_READERS: Mapping[Any, Reader] = {float: _read_number, int: _read_integer, str: _read_text, bool: _read_bool}


@cache
def _make_reader(kind: Any) -> Reader:
    """Return the function that reads a field of this type.

    It returns the value, or raises ValueError with the expected value. Readers are cached, because inspecting
    a type takes longer than reading a value.
    """
    if kind in _READERS:
        return _READERS[kind]
    origin = get_origin(kind)
    inner = get_args(kind)
    if origin is tuple:
        is_uniform = len(inner) == 2 and inner[1] is Ellipsis
        parts = tuple(_make_reader(part) for part in inner if part is not Ellipsis)

        def read_list(value: Any) -> Any:
            if not isinstance(value, list) or len(value) > MAX_ITEMS:
                raise ValueError(f"a list of at most {MAX_ITEMS}")
            if is_uniform:
                return tuple(map(parts[0], value))
            if len(value) != len(parts):
                raise ValueError(f"a list of {len(parts)}")
            return tuple(read(item) for read, item in zip(parts, value, strict=True))

        return read_list
    if origin is Mapping:
        read_item = _make_reader(inner[1])

        def read_object(value: Any) -> Any:
            if not isinstance(value, dict) or len(value) > MAX_ITEMS or not all(map(_is_text, value)):
                raise ValueError(f"an object of at most {MAX_ITEMS} fields")
            # interned, because hundreds of clients report metrics with the same names
            return {sys.intern(key): read_item(item) for key, item in value.items()}

        return read_object
    raise TypeError(f"{kind} has no JSON form")


def _reject_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    entries = dict(pairs)
    if len(entries) != len(pairs):
        raise ValueError("a field occurs twice")
    return entries


_DECODER = json.JSONDecoder(object_pairs_hook=_reject_duplicates)


@cache
def _make_readers(cls: type) -> Mapping[str, Reader]:
    return {name: _make_reader(kind) for name, kind in get_type_hints(cls).items()}


def decode_json(cls: type[T], payload: bytes) -> T:
    """Read a message.

    Args:
        cls: dataclass of the message.
        payload: JSON, UTF-8.

    Returns:
        The message. `encode_json` can encode it again, because its stored form has the same maximum size.

    Raises:
        WireError: the payload or its stored form is too large, the payload is not JSON, or it does not have
            the fields of the class. The error names message, field, received and expected value.
    """
    name = cls.__name__
    if len(payload) > (limit := find_max_bytes(cls)):
        raise WireError(f"{name} is {len(payload)} bytes, expected at most {limit}; the sender is not edgefl")
    try:
        raw = _DECODER.decode(payload.decode())
    except (ValueError, RecursionError) as error:
        raise WireError(f"{name} is not JSON: {str(error)[:200]}; the sender is not edgefl") from error
    readers = _make_readers(cls)  # type: ignore[arg-type]  # a class is hashable
    if not isinstance(raw, dict):
        raise WireError(f"{name} is {type(raw).__name__}, expected an object; the sender is not edgefl")
    remedy = "sender and receiver run different versions of edgefl; update the older one"
    if raw.keys() != readers.keys():
        if unknown := sorted(set(raw) - set(readers)):
            raise WireError(
                f"{name} has an unknown field {unknown[0][:80]!r}, expected {', '.join(readers)}; {remedy}"
            )
        if missing := [key for key in readers if key not in raw and key not in _list_optional(cls)]:
            raise WireError(f"{name} lacks the field {missing[0]!r}; {remedy}")
    values = {}
    for key, value in raw.items():
        try:
            values[key] = readers[key](value)
        except ValueError as error:
            raise WireError(f"{name}.{key} is {str(value)[:80]!r}, expected {error}; {remedy}") from error
    message = cls(**values)
    if len(payload) > limit // MAX_GROWTH:
        encode_json(message)
    return message
