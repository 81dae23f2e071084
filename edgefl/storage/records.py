"""Encodes the typed records of a state as a JSON tree and a mapping of arrays.

The types of a record's fields decide how its values are stored. So a value of another type is refused, both
when it is stored and when it is read.
"""

import json
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import numpy as np

from edgefl.types import StateRecord

AnyArray = np.ndarray[Any, np.dtype[Any]]


def encode_records(records: Mapping[str, StateRecord]) -> tuple[dict[str, Any], dict[str, AnyArray]]:
    """Return the records as a JSON tree, and the arrays of all records.

    The tree holds a reference in place of an array. The reference is the name of the array.

    Args:
        records: the records by the names of their classes.

    Raises:
        ValueError: a value has another type than its field.
    """
    arrays: dict[str, AnyArray] = {}
    tree = {name: _encode_value(type(record), record, arrays, name) for name, record in records.items()}
    return tree, arrays


def decode_records(tree: Any, arrays: Mapping[str, AnyArray]) -> dict[str, StateRecord]:
    """Read records.

    Args:
        tree: the JSON tree.
        arrays: the arrays by name.

    Returns:
        The records by the names of their classes.

    Raises:
        ValueError: a record is unknown, or a value has another type than its field.
    """
    if not isinstance(tree, dict):
        raise ValueError(f"its records are {type(tree).__name__}, expected an object")
    if unknown := sorted(name for name in tree if name not in StateRecord.kinds):
        raise ValueError(f"it has the record {unknown[0][:80]!r}, which no algorithm of this version has")
    return {name: _decode_value(StateRecord.kinds[name], value, arrays, name) for name, value in tree.items()}


@cache
def _list_field_types(kind: Any) -> dict[str, Any]:
    hints = get_type_hints(kind)
    return {field.name: hints[field.name] for field in fields(kind)}


@cache
def _split_type(kind: Any) -> tuple[Any, bool, Any, tuple[Any, ...]]:
    """Return a type without None, whether it had None, its origin, and its arguments."""
    is_optional = get_origin(kind) in (Union, UnionType)
    if is_optional:
        (kind,) = (item for item in get_args(kind) if item is not NoneType)
    return kind, is_optional, get_origin(kind), get_args(kind)


def _is_dataclass_type(kind: Any) -> bool:
    return is_dataclass(kind)


def _is_number(kind: Any, value: Any) -> bool:
    if kind is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    return kind in (bool, int, str) and type(value) is kind


def _refuse(kind: Any, value: Any, path: str) -> ValueError:
    return ValueError(
        f"{path} is {str(value)[:80]!r} ({type(value).__name__}), expected {getattr(kind, '__name__', kind)}"
    )


def _encode_value(kind: Any, value: Any, arrays: dict[str, AnyArray], path: str) -> Any:
    """Return the JSON tree of a value, and add its arrays.

    Args:
        kind: type of the field.
        value: the value of the field.
        arrays: the arrays by name. It is extended.
        path: the record and the field.

    Raises:
        ValueError: the value does not have the type.
    """
    kind, is_optional, origin, inner = _split_type(kind)
    if value is None and is_optional:
        return None
    # arithmetic makes a scalar out of an array without dimensions
    if origin is np.ndarray and isinstance(value, np.ndarray | np.generic):
        arrays[path] = np.asarray(value)
        return path
    if origin is tuple and isinstance(value, tuple):
        return [_encode_value(inner[0], item, arrays, f"{path}.{index}") for index, item in enumerate(value)]
    if origin is Mapping and isinstance(value, Mapping):
        # A key may hold any character, so its JSON form keeps paths apart
        return {
            str(key): _encode_value(inner[1], item, arrays, f"{path}.{json.dumps(str(key))}")
            for key, item in value.items()
        }
    if _is_dataclass_type(kind) and isinstance(value, kind):
        return {
            name: _encode_value(item_kind, getattr(value, name), arrays, f"{path}.{name}")
            for name, item_kind in _list_field_types(kind).items()
        }
    if _is_number(kind, value):
        return value
    raise _refuse(kind, value, path)


def _decode_value(kind: Any, value: Any, arrays: Mapping[str, AnyArray], path: str) -> Any:
    """Return the value of a field.

    Args:
        kind: type of the field.
        value: the value in the JSON tree.
        arrays: the arrays by name.
        path: the record and the field, for the error.

    Raises:
        ValueError: the value does not have the type.
    """
    kind, is_optional, origin, inner = _split_type(kind)
    if value is None and is_optional:
        return None
    if origin is np.ndarray:
        (dtype,) = get_args(inner[1])
        if not isinstance(value, str) or value not in arrays or arrays[value].dtype != dtype:
            raise ValueError(f"{path} is no array of {np.dtype(dtype)}")
        return arrays[value]
    if origin is tuple and isinstance(value, list):
        return tuple(
            _decode_value(inner[0], item, arrays, f"{path}.{index}") for index, item in enumerate(value)
        )
    if origin is Mapping and isinstance(value, dict):
        return {
            inner[0](key): _decode_value(inner[1], item, arrays, f"{path}.{key}")
            for key, item in value.items()
        }
    if _is_dataclass_type(kind) and isinstance(value, dict):
        types = _list_field_types(kind)
        if types.keys() != value.keys():
            raise ValueError(f"{path} has the fields {', '.join(value)}, expected {', '.join(types)}")
        items = {
            name: _decode_value(types[name], item, arrays, f"{path}.{name}") for name, item in value.items()
        }
        return kind(**items)
    if _is_number(kind, value):
        return float(value) if kind is float else value
    raise _refuse(kind, value, path)
