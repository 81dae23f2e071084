"""Reads samples from a function of the owner: `module:function` takes no arguments and returns `(x, y)`.

The function is the owner's code and runs on the owner's board.
"""

import sys
from importlib import import_module, invalidate_caches
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgefl.base.errors import DataError
from edgefl.data.sources import DataSource

DEBUG_HINT = "EDGEFL_DEBUG=1 shows where"


def read_function(source: DataSource) -> dict[str, NDArray[Any]]:
    """Import the module and call the function.

    The folder in which the source was named is searched last. The function is called again whenever the
    samples are read again, so it must return the same samples in the same order.

    Raises:
        DataError: the import or the call fails, or the function does not return two arrays.
    """
    module, _, name = source.data.partition(":")
    if source.folder not in sys.path:
        sys.path.append(source.folder)  # last, so that its modules cannot replace modules of edgefl
        invalidate_caches()
    try:
        function = getattr(import_module(module), name, None)
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        raise DataError(
            f"{source.data}: importing {module} failed: {reason}; run the command in the folder of "
            f"{module}.py; {DEBUG_HINT}"
        ) from error
    if not callable(function):
        raise DataError(
            f"{source.data}: {module} has no function {name!r}; define a function without arguments that "
            "returns (x, y)"
        )
    try:
        returned = function()
    except Exception as error:
        raise DataError(f"{source.data} failed: {type(error).__name__}: {error}; {DEBUG_HINT}") from error
    if not isinstance(returned, tuple) or len(returned) != 2:
        raise DataError(
            f"{source.data} returned {type(returned).__name__}, expected a tuple of two arrays: (x, y)"
        )
    try:
        x, y = (np.asarray(part) for part in returned)
    except ValueError as error:
        raise DataError(
            f"{source.data} did not return arrays: {error}; give all samples the same shape"
        ) from error
    return {"x": x, "y": y}
