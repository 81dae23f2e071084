"""Keyword options of data sets and partitions.

The defaults are in the signature of the function. The error for an unknown option names the nearest option.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from edgefl.base.config import suggest_nearest
from edgefl.base.config.schema import describe_type
from edgefl.base.errors import ConfigError


def read_defaults(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the keyword-only parameters of a function with their defaults."""
    return {
        p.name: p.default for p in inspect.signature(function).parameters.values() if p.kind is p.KEYWORD_ONLY
    }


def fill_defaults(
    owner: str, defaults: Mapping[str, Any], options: Mapping[str, Any], table: Sequence[str] = ()
) -> dict[str, Any]:
    """Return the defaults, overridden by the options.

    A whole number is accepted for a float, and a list for a tuple.

    Args:
        owner: name of the data set or partition, the first part of each error message.
        defaults: the default of each option.
        options: the options of the user.
        table: further keys of the table, which an error may suggest.

    Raises:
        ConfigError: an option is unknown, or its type differs from the type of the default.
    """
    return {
        **defaults,
        **{key: _check_option(owner, defaults, key, value, table) for key, value in options.items()},
    }


def _check_option(owner: str, defaults: Mapping[str, Any], key: str, value: Any, table: Sequence[str]) -> Any:
    if not defaults and not table:
        raise ConfigError(f"{owner} has no options, received {key!r}; remove it")
    if key not in defaults:
        raise ConfigError(f"{owner} has no option {key!r}; {suggest_nearest(key, [*table, *defaults])}")
    default = defaults[key]
    if isinstance(default, float) and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if (
        isinstance(default, tuple)
        and isinstance(value, list | tuple)
        and all(type(item) is int for item in value)
    ):
        return tuple(value)
    if type(value) is not type(default) or isinstance(default, tuple):
        is_list = isinstance(default, tuple)
        kind = "a list of whole numbers" if is_list else describe_type(type(default))
        example = list(default) or [1, 2] if is_list else default
        raise ConfigError(f"{owner}: {key} is {value!r}, expected {kind} such as {example!r}")
    return value


def parse_options(owner: str, defaults: Mapping[str, Any], pairs: tuple[str, ...]) -> dict[str, Any]:
    """Parse `key=value` texts by the types of the defaults.

    Args:
        owner: name of the data set or partition, the first part of each error message.
        defaults: the default of each option.
        pairs: texts such as `alpha=0.5`.

    Raises:
        ConfigError: a text is not `key=value`, an option is unknown, or a value has the wrong type.
    """
    options: dict[str, Any] = {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        if not equals:
            raise ConfigError(f"option {pair!r}, expected key=value such as alpha=0.5")
        options[key.strip()] = _parse_value(text.strip(), defaults.get(key.strip()))
    return fill_defaults(owner, defaults, options)


def _parse_value(text: str, default: Any) -> Any:
    try:
        if isinstance(default, bool):
            return {"true": True, "false": False}.get(text.lower(), text)
        if isinstance(default, tuple):
            return [int(item) for item in text.split(",") if item]
        return type(default)(text) if isinstance(default, int | float) else text
    except ValueError:
        return text
