"""SIGTERM and Ctrl-C end a service in order: what is under way is left, the link closed, the lock given back."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager


class Stopped(BaseException):
    """Somebody asked this service to end, by which signal. Like KeyboardInterrupt, no `except Exception` swallows it."""

    def __init__(self, number: int = signal.SIGTERM) -> None:
        super().__init__(number)
        self.by_person = number == signal.SIGINT


@contextmanager
def stoppable() -> Iterator[None]:
    """Raise Stopped in the main thread at the first SIGTERM or SIGINT; later ones do not disturb the farewell."""

    def stop(number: int, frame: object) -> None:
        for each in (signal.SIGTERM, signal.SIGINT):
            signal.signal(each, signal.SIG_IGN)
        raise Stopped(number)

    before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)
