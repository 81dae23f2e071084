"""Writing the server state while the next round begins."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from edgefl.types import ServerState
from mqtt_broker.results import save_state


class Saving:
    """The state of the last round on its way to the disk, on a thread of its own: the next round's tasks go out meanwhile."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1)
        self._last: Future[None] | None = None

    def begin(self, state: ServerState, out: Path, then: Callable[[], None]) -> None:
        """Write the server state, then do what may be done once it is written."""

        def save() -> None:
            save_state(state, out)
            then()

        self._last = self._thread.submit(save)

    def wait(self) -> None:
        """Return when all is done; StateError when the disk did not take it."""
        if self._last:
            self._last.result()
