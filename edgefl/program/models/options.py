"""Reads the options of the built-in models from their source files.

The files are parsed but not executed, because listing the models must not import Keras.
"""

import ast
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from edgefl.base.errors import ConfigError
from edgefl.base.options import check_options


@cache
def read_model_defaults(name: str) -> Mapping[str, Any]:
    """Return the options of a built-in model with their defaults.

    Args:
        name: a name of `list_models`.
    """
    function = name.replace("-", "_")
    module = ast.parse((Path(__file__).parent / f"{function}.py").read_text())
    (definition,) = (
        node for node in module.body if isinstance(node, ast.FunctionDef) and node.name == function
    )
    pairs = zip(definition.args.kwonlyargs, definition.args.kw_defaults, strict=True)
    return {argument.arg: ast.literal_eval(default) for argument, default in pairs if default is not None}


def check_model_options(name: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Check the options of a built-in model, and convert whole numbers to float where the default is a float.

    Args:
        name: a name of `list_models`.
        options: the options of the user.

    Raises:
        ConfigError: an option is unknown, has another type than its default, or is out of range. The shares
            `dropout` and `momentum` range from 0 to below 1, and other whole numbers start at 1.
    """
    defaults = read_model_defaults(name)
    checked = check_options(f"[model] {name}", defaults, options)
    for key, value in checked.items():
        if key in ("dropout", "momentum") and not 0 <= value < 1:
            raise ConfigError(
                f"[model] {name}: {key} is {value!r}, expected a share of at least 0 and below 1 such as "
                f"{defaults[key]!r}"
            )
        if isinstance(value, int) and value < 1:
            raise ConfigError(
                f"[model] {name}: {key} is {value!r}, expected 1 or more such as {defaults[key]!r}"
            )
    return checked
