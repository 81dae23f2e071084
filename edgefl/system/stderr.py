"""Silence for libraries that write to the terminal as they load."""

import contextlib
import os
import sys
from collections.abc import Iterator


@contextlib.contextmanager
def suppress_stderr() -> Iterator[None]:
    """Drop what this process writes to standard error meanwhile, C++ included.

    EDGEFL_DEBUG=1 lets it through.

    Errors come as exceptions and are not touched.
    """
    if os.environ.get("EDGEFL_DEBUG"):
        yield
        return
    sys.stderr.flush()
    saved_descriptor = os.dup(2)
    try:
        with open(os.devnull, "wb") as nowhere:
            os.dup2(nowhere.fileno(), 2)
        yield
    finally:
        sys.stderr.flush()
        os.dup2(saved_descriptor, 2)
        os.close(saved_descriptor)
