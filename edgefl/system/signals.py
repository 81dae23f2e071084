"""SIGTERM and Ctrl-C end a service in order: what is under way is left, the link closed, the lock given
back.
"""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import active_children


class Stopped(BaseException):
    """Somebody asked this service to end, by which signal.

    Like KeyboardInterrupt, no `except Exception` swallows it.
    """

    def __init__(self, number: int = signal.SIGTERM) -> None:
        super().__init__(number)
        self.is_interrupt = number == signal.SIGINT


@contextmanager
def raise_on_signal() -> Iterator[None]:
    """Raise Stopped in the main thread at the first SIGTERM or SIGINT.

    Later ones do not disturb the farewell.
    """

    def stop(number: int, frame: object) -> None:
        for signum in (signal.SIGTERM, signal.SIGINT):
            signal.signal(signum, signal.SIG_IGN)
        raise Stopped(number)

    before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)


@contextmanager
def ignore_ctrl_c() -> Iterator[None]:
    """Processes that are started meanwhile do not hear Ctrl-C, which a terminal sends to all: they would
    print a traceback each.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def terminate_children() -> Iterator[None]:
    """End the processes that were started meanwhile by `multiprocessing` when this one is interrupted."""
    before = active_children()
    try:
        yield
    except (KeyboardInterrupt, Stopped):
        for child in active_children():
            if child not in before:
                child.terminate()
        raise
