"""Encodes the typed records of a state as a JSON tree and a mapping of arrays.

The types of a record's fields decide how its values are stored. So a value of another type is refused, both
when it is stored and when it is read.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import numpy as np

from edgefl.base.types import StateRecord

AnyArray = np.ndarray[Any, np.dtype[Any]]
PLAIN_TYPES = (bool, int, float, str)
MAX_SHOWN = 80


def encode_records(records: Mapping[str, StateRecord]) -> tuple[dict[str, Any], dict[str, AnyArray]]:
    """Return the records as a JSON tree, and the arrays of all records.

    The tree holds a reference in place of an array. The reference is the name of the array.

    Args:
        records: the records by their names in a file.

    Raises:
        ValueError: a value has another type than its field.
        TypeError: a field has a type that a record cannot have.
    """
    arrays: dict[str, AnyArray] = {}
    tree = {name: _encode_value(type(record), record, arrays, name) for name, record in records.items()}
    return tree, arrays


def decode_records(tree: Any, arrays: Mapping[str, AnyArray]) -> dict[str, StateRecord]:
    """Read records.

    Args:
        tree: the JSON tree.

    Returns:
        The records by their names in a file.

    Raises:
        ValueError: a record is unknown, or a value has another type than its field.
        OverflowError: a number is too large for its field.
    """
    if not isinstance(tree, dict):
        raise ValueError(f"its records are {type(tree).__name__}, expected an object")
    if unknown := sorted(name for name in tree if name not in StateRecord.classes):
        raise ValueError(f"it has the record {unknown[0][:MAX_SHOWN]!r}, which no imported algorithm has")
    return {
        name: _decode_value(StateRecord.classes[name], value, arrays, name) for name, value in tree.items()
    }


def iterate_arrays(value: Any, path: str = "") -> Iterator[tuple[str, AnyArray]]:
    """Iterate over the arrays of numbers in nested mappings, tuples and dataclasses, each with its path.

    Args:
        value: the mapping, tuple, dataclass or array.
        path: the path of the value.
    """
    if isinstance(value, np.ndarray | np.generic):
        if value.dtype.kind in "biuf":
            yield path, np.asarray(value)
        return
    items: Any = ()
    if isinstance(value, Mapping):
        items = value.items()
    elif isinstance(value, tuple):
        items = enumerate(value)
    elif is_dataclass(value):
        items = ((field.name, getattr(value, field.name)) for field in fields(value))
    for name, item in items:
        yield from iterate_arrays(item, f"{path}/{name}" if path else str(name))


@cache
def _read_field_types(record_class: Any) -> dict[str, Any]:
    types = get_type_hints(record_class)
    return {field.name: types[field.name] for field in fields(record_class)}


@dataclass(frozen=True)
class _FieldType:
    """A type that a field of a record can have.

    Attributes:
        form: `plain`, `array`, `tuple`, `mapping` or `record`.
        bare: the type without None.
        is_optional: whether the type had None.
        item: type of the items of a tuple or mapping.
        key: type of the keys of a mapping.
        dtype: dtype of an array.
    """

    form: str
    bare: Any
    is_optional: bool
    item: Any = None
    key: Any = None
    dtype: Any = None

    @property
    def name(self) -> str:
        """The type in an error message."""
        if self.form == "array":
            return f"an array of {self.dtype}"
        return self.bare.__name__ if self.form in ("plain", "record") else str(self.bare)


@cache
def _read_type(annotation: Any) -> _FieldType:
    """Return the type of a field.

    Raises:
        TypeError: a record cannot have a field of this type.
    """
    is_optional = get_origin(annotation) in (Union, UnionType)
    (bare, *others) = (
        [item for item in get_args(annotation) if item is not NoneType] if is_optional else [annotation]
    )
    origin = get_origin(bare)
    arguments = get_args(bare)
    if not others:
        if bare in PLAIN_TYPES:
            return _FieldType(form="plain", bare=bare, is_optional=is_optional)
        if is_dataclass(bare):
            return _FieldType(form="record", bare=bare, is_optional=is_optional)
        if origin is np.ndarray:
            dtype = np.dtype(*get_args(arguments[1]))
            return _FieldType(form="array", bare=bare, is_optional=is_optional, dtype=dtype)
        if origin is tuple and arguments[1:] == (Ellipsis,):
            return _FieldType(form="tuple", bare=bare, is_optional=is_optional, item=arguments[0])
        if origin is Mapping and arguments[0] in (str, int):
            key, item = arguments
            return _FieldType(form="mapping", bare=bare, is_optional=is_optional, key=key, item=item)
    raise TypeError(
        f"a record cannot have a field of the type {annotation}, expected bool, int, float, str, an array, "
        "tuple[X, ...], Mapping[str, X], Mapping[int, X] or a frozen dataclass"
    )


def _encode_value(annotation: Any, value: Any, arrays: dict[str, AnyArray], path: str) -> Any:
    """Return the JSON tree of a value, and add its arrays.

    Args:
        annotation: type of the field.
        value: the value of the field.
        arrays: the arrays by name. It is extended.
        path: the record and the field.

    Raises:
        ValueError: the value does not have the type.
        TypeError: a record cannot have a field of this type.
    """
    field_type = _read_type(annotation)
    if value is None and field_type.is_optional:
        return None
    match field_type.form:
        # Arithmetic makes a scalar out of an array without dimensions
        case "array" if isinstance(value, np.ndarray | np.generic) and value.dtype == field_type.dtype:
            arrays[path] = np.asarray(value)
            return path
        case "tuple" if isinstance(value, tuple):
            return [
                _encode_value(field_type.item, item, arrays, f"{path}.{index}")
                for index, item in enumerate(value)
            ]
        case "mapping" if isinstance(value, Mapping) and all(type(key) is field_type.key for key in value):
            # The JSON form of a key keeps paths apart whose keys have a dot
            return {
                str(key): _encode_value(field_type.item, item, arrays, f"{path}.{json.dumps(key)}")
                for key, item in value.items()
            }
        case "record" if isinstance(value, field_type.bare):
            return {
                name: _encode_value(item_type, getattr(value, name), arrays, f"{path}.{name}")
                for name, item_type in _read_field_types(field_type.bare).items()
            }
        case "plain" if _has_type(value, field_type.bare):
            return float(value) if field_type.bare is float else value
    raise _make_error(path, value, field_type)


def _decode_value(annotation: Any, value: Any, arrays: Mapping[str, AnyArray], path: str) -> Any:
    """Return the value of a field.

    Args:
        annotation: type of the field.
        value: the value in the JSON tree.
        path: the record and the field, for the error.

    Raises:
        ValueError: the value does not have the type.
        OverflowError: a number is too large for its field.
    """
    field_type = _read_type(annotation)
    if value is None and field_type.is_optional:
        return None
    match field_type.form:
        case "array" if isinstance(value, str) and value in arrays:
            if arrays[value].dtype == field_type.dtype:
                return arrays[value]
        case "tuple" if isinstance(value, list):
            return tuple(
                _decode_value(field_type.item, item, arrays, f"{path}.{index}")
                for index, item in enumerate(value)
            )
        case "mapping" if isinstance(value, dict):
            return {
                field_type.key(key): _decode_value(field_type.item, item, arrays, f"{path}.{key}")
                for key, item in value.items()
            }
        case "record" if isinstance(value, dict):
            types = _read_field_types(field_type.bare)
            if types.keys() != value.keys():
                names = ", ".join(value)[:MAX_SHOWN]
                raise ValueError(f"{path[:MAX_SHOWN]} has the fields {names}, expected {', '.join(types)}")
            return field_type.bare(
                **{name: _decode_value(types[name], value[name], arrays, f"{path}.{name}") for name in types}
            )
        case "plain" if _has_type(value, field_type.bare):
            return float(value) if field_type.bare is float else value
    raise _make_error(path, value, field_type)


def _has_type(value: Any, plain_type: Any) -> bool:
    if plain_type is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    return type(value) is plain_type


def _make_error(path: str, value: Any, field_type: _FieldType) -> ValueError:
    return ValueError(
        f"{path[:MAX_SHOWN]} is {str(value)[:MAX_SHOWN]!r} ({type(value).__name__}), expected "
        f"{field_type.name}"
    )
