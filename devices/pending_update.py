"""Stores the task of a pending update, so that a restarted device can still send the update."""

from pathlib import Path

from devices.store import FinishedRound
from edgefl.errors import WireError
from edgefl.storage.device_directory import STATE_ACCESS_REMEDY, DeviceFiles
from edgefl.system.files import SECRET_MODE, remove_state, write_state
from edgefl.wire.messages import Task
from edgefl.wire.strict_json import decode_json, encode_json


class PendingUpdate:
    """A file with the task of a pending update. Only a task that accepts a late answer is stored.

    Args:
        directory: the state directory of the device.
    """

    def __init__(self, directory: Path) -> None:
        self._path = DeviceFiles(directory).pending_task

    def store(self, task: Task) -> None:
        """Store a task before training starts, if it accepts a late answer.

        Args:
            task: the task.

        Raises:
            StateError: the file cannot be written.
        """
        if task.max_staleness:
            write_state(self._path, encode_json(task), SECRET_MODE)

    def find_earlier_task(self, task: Task, progress: FinishedRound | None) -> Task | None:
        """Return the stored task if it is an earlier task of the same session whose update is trained.

        Args:
            task: the new task.
            progress: the last round that the device finished, or None before the first.

        Returns:
            The earlier task, or None.
        """
        try:
            stored = decode_json(Task, self._path.read_bytes())
        except (OSError, WireError):
            # Missing, or damaged by a power cut. The round of a damaged task ends without this device
            return None
        done = progress is not None and (progress.session, progress.round) == (stored.session, stored.round)
        return stored if done and stored.session == task.session and stored.round < task.round else None

    def forget(self) -> None:
        """Remove the task after the aggregator accepted or rejected its update.

        Raises:
            StateError: the file cannot be removed.
        """
        remove_state(self._path, STATE_ACCESS_REMEDY)
