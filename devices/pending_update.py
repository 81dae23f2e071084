"""The task of a trained update that the aggregator has not acknowledged yet. A restarted device sends it."""

from pathlib import Path

from devices.store import FinishedRound
from edgefl.errors import WireError
from edgefl.storage.device_directory import DeviceFiles
from edgefl.system.files import SECRET_MODE, write_state
from edgefl.wire.messages import Task
from edgefl.wire.strict_json import decode_json, encode_json


class PendingUpdate:
    """One file in a device's state directory. Only tasks that accept a late answer are stored."""

    def __init__(self, directory: Path) -> None:
        self._path = DeviceFiles(directory).pending_task

    def store(self, task: Task) -> None:
        """Store a task before training starts.

        Raises:
            StateError: the file cannot be written.
        """
        if task.max_staleness:
            write_state(self._path, encode_json(task), SECRET_MODE)

    def find_earlier_task(self, task: Task, progress: FinishedRound | None) -> Task | None:
        """Return the earlier task of the same session whose update was trained and not acknowledged, or
        None.
        """
        try:
            stored = decode_json(Task, self._path.read_bytes())
        except (OSError, WireError):
            # Missing, or damaged by a power cut: its round ends without this device
            return None
        done = progress is not None and (progress.session, progress.round) == (stored.session, stored.round)
        return stored if done and stored.session == task.session and stored.round < task.round else None

    def forget(self) -> None:
        """Remove the task: the aggregator accepted or rejected its update."""
        self._path.unlink(missing_ok=True)
