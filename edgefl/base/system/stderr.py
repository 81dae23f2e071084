"""Silences libraries that write to standard error while they load."""

import contextlib
import logging
import os
import sys
from collections.abc import Iterator


@contextlib.contextmanager
def suppress_stderr() -> Iterator[None]:
    """Discard the output of this process to standard error, including C++ code.

    Exceptions are not affected. With EDGEFL_DEBUG=1 the output is shown. Log records of other threads wait
    until the end of the context, so that they are not lost.
    """
    if os.environ.get("EDGEFL_DEBUG"):
        yield
        return
    with contextlib.ExitStack() as stack:
        for handler in (*logging.getLogger("edgefl").handlers, *logging.getLogger().handlers):
            handler.acquire()
            stack.callback(handler.release)
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
