"""Options: what a user may set by name, with the defaults that say which names and types there are.

They are the keys of federation.toml, and the options of algorithms, models, data sets and partitions.
"""

import difflib
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from edgefl.base.errors import ConfigError

TYPE_NAMES: Mapping[type, str] = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "text",
    tuple: "a list",
    list: "a list",
}


def describe_type(kind: type) -> str:
    """Return the name of a type in a configuration file, such as "a whole number"."""
    return TYPE_NAMES.get(kind, "a table")


def suggest_nearest(key: str, choices: Sequence[str]) -> str:
    """Return the end of an error message: the nearest choice, or all choices without a similar one.

    Args:
        key: the unknown key or value.
        choices: the keys or values that exist.
    """
    return find_nearest(key, choices) or f"expected one of {', '.join(choices)}"


def find_nearest(key: str, choices: Sequence[str]) -> str:
    """Return the question whether the nearest choice was meant, or nothing without a similar one.

    Args:
        key: the unknown key or value.
        choices: the keys or values that exist.
    """
    close = difflib.get_close_matches(key, choices, 1) or difflib.get_close_matches(key.lower(), choices, 1)
    return f"did you mean {close[0]!r}?" if close else ""


def read_defaults(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the keyword-only parameters of a function with their defaults."""
    return {
        p.name: p.default for p in inspect.signature(function).parameters.values() if p.kind is p.KEYWORD_ONLY
    }


def check_options(
    owner: str,
    defaults: Mapping[str, Any],
    options: Mapping[str, Any],
    *,
    further_keys: Sequence[str] = (),
    remedies: Mapping[str, str] | None = None,
    noun: str = "option",
) -> dict[str, Any]:
    """Return options in the types of their defaults. A whole number becomes a float, and a list a tuple.

    Args:
        owner: what has the options, the first words of each error message, such as `[model] lenet5`.
        defaults: the default of each option.
        further_keys: further keys of the same table, which an error may suggest.
        remedies: what to do about an option that no longer exists, by its name.
        noun: what an error calls an option.

    Raises:
        ConfigError: an option is unknown, or its type differs from the type of its default.
    """
    checked = {}
    for key, value in options.items():
        if key not in defaults:
            nearest = suggest_nearest(key, [*further_keys, *defaults]) if defaults or further_keys else ""
            remedy = (remedies or {}).get(key) or nearest or "it has none; remove it"
            raise ConfigError(f"{owner} has an unknown {noun} {key!r}; {remedy}")
        label = f"{owner} {key}" if owner.endswith("]") else f"{owner}: {key}"
        checked[key] = _convert(label, value, defaults[key])
    return checked


def _convert(label: str, value: Any, default: Any) -> Any:
    kind = Mapping if isinstance(default, Mapping) else type(default)
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        try:
            return float(value)
        except OverflowError as error:
            raise ConfigError(f"{label} has {len(str(value))} digits, expected a float64") from error
    if kind is tuple and isinstance(value, list):
        return tuple(value)
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        shown = list(default) if kind is tuple else default
        example = f" such as {shown!r}" if default and kind is not bool else ""
        raise ConfigError(f"{label} is {value!r}, expected {describe_type(kind)}{example}")
    return value


def complete_options(
    owner: str,
    defaults: Mapping[str, Any],
    options: Mapping[str, Any],
    *,
    further_keys: Sequence[str] = (),
) -> dict[str, Any]:
    """Return all options of a data set or a partition, whose lists contain whole numbers.

    Args:
        owner: what has the options, the first words of each error message.
        defaults: the default of each option.
        further_keys: further keys of the same table, which an error may suggest.

    Raises:
        ConfigError: as in `check_options`, or a list contains something else.
    """
    for key, value in options.items():
        if isinstance(defaults.get(key), tuple) and not (
            isinstance(value, list | tuple) and all(type(item) is int for item in value)
        ):
            raise ConfigError(f"{owner}: {key} is {value!r}, expected a list of whole numbers such as [1, 2]")
    return {**defaults, **check_options(owner, defaults, options, further_keys=further_keys)}


def parse_options(owner: str, defaults: Mapping[str, Any], pairs: Sequence[str]) -> dict[str, Any]:
    """Parse `key=value` texts by the types of the defaults, and return all options.

    Args:
        owner: what has the options, the first words of each error message.
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
    return complete_options(owner, defaults, options)


def _parse_value(text: str, default: Any) -> Any:
    try:
        if isinstance(default, bool):
            return {"true": True, "false": False}.get(text.lower(), text)
        if isinstance(default, tuple):
            return [int(item) for item in text.split(",") if item]
        return type(default)(text) if isinstance(default, int | float) else text
    except ValueError:
        return text
