"""Graceful shutdown on SIGTERM and Ctrl-C: abandon current work, close the link, release the lock."""

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import active_children


class Stopped(BaseException):
    """A signal asked this service to end.

    It is a BaseException, so that no `except Exception` catches it.

    Args:
        number: the signal.

    Attributes:
        is_interrupt: whether the signal was SIGINT, which Ctrl-C sends.
    """

    def __init__(self, number: int = signal.SIGTERM) -> None:
        super().__init__(number)
        self.is_interrupt = number == signal.SIGINT


@contextmanager
def raise_on_signal() -> Iterator[None]:
    """Raise Stopped in the main thread at the first SIGTERM or SIGINT.

    Later signals are ignored, so that the shutdown can finish. The previous handlers return with the end of
    the context.

    Raises:
        Stopped: the process received SIGTERM or SIGINT.
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
    """Let processes that start in this context ignore Ctrl-C.

    A terminal sends Ctrl-C to all processes of a command, and each would print a traceback. The context has
    no effect outside the main thread.
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
def explain_interrupt(remedy: str) -> Iterator[None]:
    """Print how to continue if Ctrl-C ends this context.

    Args:
        remedy: how to continue.
    """
    try:
        yield
    except KeyboardInterrupt:
        print(f"stopped; {remedy}", file=sys.stderr)
        raise


@contextmanager
def terminate_children() -> Iterator[None]:
    """Terminate the `multiprocessing` children that start in this context if this process is interrupted."""
    before = active_children()
    try:
        yield
    except (KeyboardInterrupt, Stopped):
        for child in active_children():
            if child not in before:
                child.terminate()
        raise
