"""The task whose answer may come late, kept until its receipt: a device that was started again sends what it
had trained and not sent.
"""

from pathlib import Path

from devices.store import Progress
from edgefl.errors import StateError, WireError
from edgefl.system.files import SECRET, write_atomic
from edgefl.wire.messages import Task
from edgefl.wire.strict_json import decode_json, encode_json

FILE = "unsent.json"


class Unsent:
    """One file in a device's state directory; tasks that take no late answer are not kept."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / FILE

    def keep(self, task: Task) -> None:
        """Keep a task before it is worked on; StateError when the disk does not take it."""
        if not task.max_staleness:
            return
        try:
            write_atomic(self._path, encode_json(task), SECRET)
        except OSError as error:
            raise StateError(f"cannot write {self._path}: {error.strerror}; free some space") from error

    def before(self, task: Task, progress: Progress | None) -> Task | None:
        """Return the earlier task of this task's session that was worked on to its end and whose receipt did
        not come; None without one.
        """
        try:
            kept = decode_json(Task, self._path.read_bytes())
        except (
            OSError,
            WireError,
        ):  # not there, or cut short by a power cut: then its round goes without this device
            return None
        done = progress is not None and (progress.session, progress.round) == (kept.session, kept.round)
        return kept if done and kept.session == task.session and kept.round < task.round else None

    def forget(self) -> None:
        """Note that the answer was received, or refused."""
        self._path.unlink(missing_ok=True)
