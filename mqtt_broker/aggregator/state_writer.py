"""Writing the server state while the next round is under way."""

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from edgefl.types import ServerState
from mqtt_broker.aggregator.results import save_state

MAX_SAVE_DELAY_S = 0.05
"""So long at most it waits for that: the next round may have to wait for devices, hours long."""


class StateWriter:
    """The state of the last round on its way to the disk, on a thread of its own.

    `before`: what must be on the disk first. It begins when the next round's tasks are out, for devices wait
    for those, or soon after.
    """

    def __init__(self, sync_first: Callable[[], None]) -> None:
        self._sync_first = sync_first
        self._thread = ThreadPoolExecutor(1)
        self._tasks_sent = threading.Event()
        self._last: Future[None] | None = None

    def begin(self, state: ServerState, out: Path) -> None:
        """Begin to write the server state."""
        self._tasks_sent.clear()

        def save() -> None:
            self._tasks_sent.wait(MAX_SAVE_DELAY_S)
            self._sync_first()
            save_state(state, out)

        self._last = self._thread.submit(save)

    def release(self) -> None:
        """Note that nobody waits for this process now."""
        self._tasks_sent.set()

    def wait(self) -> None:
        """Wait until all is written.

        Raises:
            StateError: the disk did not accept it.
        """
        self._tasks_sent.set()
        if self._last:
            self._last.result()
