"""Which clients the aggregator's operator has paused: one empty file each in DIR/paused, so that two commands
never undo each other.

A paused client finishes the task that it has, and is chosen for no other, the last phase's included, until it
is resumed.
"""

from collections.abc import Callable, Iterable
from pathlib import Path

from edgefl.errors import StateError
from edgefl.storage.aggregator_directory import AggregatorFiles
from edgefl.system.files import write_atomic
from edgefl.wire.topics import CLIENT_ID_PATTERN, check_client_id


def read_paused_clients(out: Path) -> frozenset[str]:
    """Return the ids of the paused clients. Without the directory no client is paused.

    Raises:
        StateError: the directory cannot be read.
    """
    directory = AggregatorFiles(out).paused
    try:
        return frozenset(path.name for path in directory.iterdir() if CLIENT_ID_PATTERN.fullmatch(path.name))
    except FileNotFoundError:
        return frozenset()
    except OSError as error:
        raise StateError(
            f"cannot read {directory}: {error.strerror}; let this account read it, or remove it"
        ) from error


def pause_clients(out: Path, client_ids: Iterable[str]) -> None:
    """Pause clients until they are resumed, over restarts too.

    ConfigError for what is no id, StateError for the directory.
    """
    _update_pauses(out, client_ids, lambda path: write_atomic(path, b""))


def resume_clients(out: Path, client_ids: Iterable[str]) -> None:
    """Take the pauses away, where there are any. ConfigError, StateError."""
    _update_pauses(out, client_ids, lambda path: path.unlink(missing_ok=True))


def check_directory(out: Path) -> None:
    """Raise StateError when there is no such directory."""
    if not out.is_dir():
        raise StateError(f"no directory {out}; give the --out of `edgefl aggregator start`")


def _update_pauses(out: Path, client_ids: Iterable[str], change: Callable[[Path], None]) -> None:
    files = AggregatorFiles(out)
    paths = [files.paused_client(client=check_client_id(client_id)) for client_id in client_ids]
    check_directory(out)
    for path in paths:
        try:
            change(path)
        except OSError as error:
            raise StateError(
                f"cannot change {path}: {error.strerror}; say it as the account that runs the aggregator"
            ) from error
