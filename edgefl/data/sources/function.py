"""A function of the owner's: `module:function` takes nothing and returns `(x, y)`.

It is the owner's own code, on the owner's own board.
"""

import sys
from importlib import import_module, invalidate_caches
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgefl.data.sources import DataSource
from edgefl.errors import DataError

DEBUG_HINT = "EDGEFL_DEBUG=1 shows where"


def read_function(source: DataSource) -> dict[str, NDArray[Any]]:
    """Import the module, from the folder that the source was named in if nowhere else, and call the function.

    It is called again when the data are opened again, so it must return the same samples in the same order.
    DataError for what fails.
    """
    module, _, name = source.data.partition(":")
    if source.folder not in sys.path:
        sys.path.append(source.folder)  # last, so that nothing in there replaces what edgefl imports
        invalidate_caches()
    try:
        function = getattr(import_module(module), name, None)
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        raise DataError(
            f"{source.data}: importing {module} failed: {reason}; start in the folder of {module}.py; "
            f"{DEBUG_HINT}"
        ) from error
    if not callable(function):
        raise DataError(
            f"{source.data}: {module} has no function {name!r}; define it: it takes nothing and returns (x, "
            "y)"
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
        raise DataError(f"{source.data} returned no array: {error}; make all samples of one shape") from error
    return {"x": x, "y": y}
