"""Background thread that writes the server state during the next round."""

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from edgefl.base.types import ServerState
from mqtt_broker.aggregator.results import save_state

MAX_SAVE_DELAY_S = 0.05
"""Upper bound on the delay of a save. The next round may wait for devices for hours."""


class StateWriter:
    """Writes the server state of the last round on a separate thread.

    Devices wait for the tasks of the next round. A save therefore starts after those tasks are sent, or after
    a short delay.

    Args:
        sync_first: called before each save. It syncs the data that must be on the disk before the state.
    """

    def __init__(self, sync_first: Callable[[], None]) -> None:
        self._sync_first = sync_first
        self._thread = ThreadPoolExecutor(1)
        self._tasks_sent = threading.Event()
        self._last: Future[None] | None = None

    def begin(self, state: ServerState, out: Path) -> None:
        """Schedule a save of the server state into a directory. `wait` raises the error of the save.

        Args:
            state: the server state after the last aggregated round.
            out: directory of the aggregator.
        """
        self._tasks_sent.clear()

        def save() -> None:
            self._tasks_sent.wait(MAX_SAVE_DELAY_S)
            self._sync_first()
            save_state(state, out)

        self._last = self._thread.submit(save)

    def release(self) -> None:
        """Start the scheduled save now. Call this when no client waits for this process."""
        self._tasks_sent.set()

    def wait(self) -> None:
        """Wait until the last state is written.

        Raises:
            StateError: the file cannot be written.
        """
        self._tasks_sent.set()
        if self._last:
            self._last.result()
