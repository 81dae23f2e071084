"""The paused clients of an aggregator: one empty file per client in DIR/paused.

Separate files keep two concurrent commands from undoing each other. A paused client finishes its current task
and receives no other task until it is resumed, not even in the last phase.
"""

from collections.abc import Callable, Iterable
from pathlib import Path

from edgefl.base.errors import StateError
from edgefl.base.names import CLIENT_ID_PATTERN, check_client_id
from edgefl.base.storage.aggregator_directory import AggregatorFiles
from edgefl.base.system.files import write_atomic


def read_paused_clients(out: Path) -> frozenset[str]:
    """Return the ids of the paused clients.

    Raises:
        StateError: the directory of the pauses cannot be read.
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
    """Pause clients until they are resumed. Pauses survive restarts.

    Args:
        out: directory of the aggregator.

    Raises:
        ConfigError: an id is invalid.
        StateError: the directory does not exist or cannot be written.
    """
    _update_pauses(out, client_ids, lambda path: write_atomic(path, b""))


def resume_clients(out: Path, client_ids: Iterable[str]) -> None:
    """End the pauses of clients. Clients that are not paused are ignored.

    Args:
        out: directory of the aggregator.

    Raises:
        ConfigError: an id is invalid.
        StateError: the directory does not exist or cannot be written.
    """
    _update_pauses(out, client_ids, lambda path: path.unlink(missing_ok=True))


def check_directory(out: Path) -> None:
    """Check that the directory of an aggregator exists.

    Raises:
        StateError: there is no such directory.
    """
    if not out.is_dir():
        raise StateError(f"no directory {out}; pass the --out of `edgefl aggregator start`")


def _update_pauses(out: Path, client_ids: Iterable[str], change: Callable[[Path], None]) -> None:
    files = AggregatorFiles(out)
    paths = [files.paused_client(client=check_client_id(client_id)) for client_id in client_ids]
    check_directory(out)
    for path in paths:
        try:
            change(path)
        except OSError as error:
            raise StateError(
                f"cannot change {path}: {error.strerror}; run this as the account that runs the aggregator"
            ) from error
