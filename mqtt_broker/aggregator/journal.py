"""The journal of an aggregator: its session, the open round, and the acknowledged updates.

The journal survives a kill. It is one SQLite file next to the server state. Everything that a message promises
is written first: a nonce before the task that contains it, an update before its receipt.
"""

import fcntl
import hashlib
import json
import os
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from edgefl.errors import StateError, WireError
from edgefl.server.events import DroppedClient, OpenedRound, StoreUpdate
from edgefl.server.rounds import UpdateKey
from edgefl.storage.aggregator_directory import AggregatorFiles
from edgefl.wire.messages import Begin
from edgefl.wire.strict_json import decode_json, encode_json

SCHEMA = """
create table if not exists session (id text not null, settings text not null, started real not null, done integer not null default 0);
create table if not exists run (started integer not null);
create table if not exists round (
    number integer not null, phase text not null, nonce text not null, cohort text not null, closed integer not null default 0,
    loss real, dropped text not null default '[]', primary key (number, phase));
create table if not exists accepted (
    number integer not null, phase text not null, client_id text not null, answers integer not null, begin blob not null,
    primary key (number, phase, client_id, answers));
create table if not exists tensors (
    number integer not null, phase text not null, client_id text not null, answers integer not null, codec text not null,
    content blob not null, primary key (number, phase, client_id, answers));
"""  # noqa: E501
PAGE_BYTES = 16384
"""Page size of a new file. With the default of 4096 bytes, large updates take 1.6 times as long to store."""
WAL_PAGES = 4096
"""Size limit of the write-ahead log, in pages. A commit that exceeds it also moves the pages into the file.
Below the limit, `Journal.checkpoint` moves them on another thread.
"""
LOCK_TIMEOUT_S = 60.0
"""Longest wait of a commit for a checkpoint of another thread."""


@dataclass(frozen=True)
class FederationStart:
    """The start of a federation.

    Attributes:
        session: id of the session.
        settings: settings that must be the same to resume it, JSON.
        started: time of the start in seconds since 1970.
        is_done: whether the federation is complete.
    """

    session: str
    settings: str
    started: float
    is_done: bool = False


def make_private_directory(directory: Path) -> None:
    """Make a directory that only its owner can read, unless it exists.

    An aggregator stores figures of each client in it. They have no noise, even if `[privacy]` hides them from
    everybody else.

    Raises:
        StateError: the directory cannot be made.
    """
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise StateError(f"cannot make {directory}: {error.strerror}; choose another --out") from error


class Journal:
    """The journal in a directory, for one process at a time. It is a context manager.

    Every method raises StateError if the file cannot be read or written or is damaged.

    Args:
        directory: directory of the aggregator. It is created if it does not exist.

    Raises:
        StateError: another process uses the directory, or the file cannot be read or written.
    """

    def __init__(self, directory: Path) -> None:
        files = AggregatorFiles(directory)
        self._path = files.journal
        with self._translate_errors():
            make_private_directory(directory)
            self._lock = files.lock.open("a")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self._lock.close()
            raise StateError(
                f"another aggregator uses {directory}; pass a separate --out to each federation"
            ) from error
        with self._translate_errors():
            # SQLite creates its other files with the same mode
            os.close(os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600))
            self._path.chmod(0o600)
            self._database = self._connect()
            self._database.execute(f"pragma page_size={PAGE_BYTES}")
            self._database.execute("pragma journal_mode=wal")
            self._database.execute(f"pragma wal_autocheckpoint={WAL_PAGES}")
            self._database.execute(
                "pragma cache_size=-128"
            )  # KiB: small, because written rows are hardly ever read
            # Some builds of SQLite overwrite each removed update with zeros. `remove_tensors` does it once.
            self._database.execute("pragma secure_delete=off")
            self._database.executescript(SCHEMA)

    def _connect(self) -> sqlite3.Connection:
        return sqlite3.connect(self._path, timeout=LOCK_TIMEOUT_S, isolation_level=None)

    @contextmanager
    def _translate_errors(self) -> Iterator[None]:
        try:
            yield
        except (ValueError, TypeError, WireError) as error:
            # Values of another type, or texts that are not JSON
            raise StateError(f"{self._path} is damaged: {error}; start again with --fresh") from error
        except (sqlite3.Error, OSError) as error:
            raise StateError(
                f"cannot use {self._path}: {error}; free some space, or choose another --out"
            ) from error

    @contextmanager
    def _begin_transaction(self, synchronous: str = "full") -> Iterator[sqlite3.Connection]:
        with self._translate_errors():
            self._database.execute(f"pragma synchronous={synchronous}")
            self._database.execute("begin immediate")
            try:
                yield self._database
            except BaseException:
                self._database.execute("rollback")
                raise
            self._database.execute("commit")

    def checkpoint(self) -> None:
        """Write all commits to the disk and move them out of the write-ahead log.

        Afterwards they survive a power cut. Any thread may call this, because it opens another connection.

        Raises:
            StateError: the file cannot be read or written.
        """
        with self._translate_errors(), closing(self._connect()) as database:
            database.execute("pragma synchronous=full")
            # A passive checkpoint waits for no reader and no writer
            is_busy, *_ = database.execute("pragma wal_checkpoint(passive)").fetchone()
            if is_busy:  # a commit with a long log makes a checkpoint at the same time
                database.execute("pragma wal_checkpoint(full)")

    def __enter__(self) -> "Journal":
        return self

    def __exit__(self, *error: object) -> None:
        self._database.close()
        self._lock.close()

    def read_start(self) -> FederationStart | None:
        """Return the start of the federation, or None in a new journal."""
        with self._translate_errors():
            row = self._database.execute("select id, settings, started, done from session").fetchone()
        return None if row is None else FederationStart(row[0], row[1], row[2], bool(row[3]))

    def start(self, started: FederationStart) -> None:
        """Start a federation and remove the previous one. The time of the last run stays.

        Args:
            started: the start of the federation.
        """
        with self._begin_transaction() as database:
            for table in ("session", "round", "accepted", "tensors"):
                database.execute(f"delete from {table}")
            database.execute(
                "insert into session (id, settings, started) values (?, ?, ?)",
                (started.session, started.settings, started.started),
            )

    def begin_run(self, now_ms: int) -> int:
        """Store and return the start time of this run of the aggregator.

        It is later than the start of each earlier run, even if the clock was set back. Devices order tasks by
        it. It is on the disk when this returns, and `start` does not remove it.

        Args:
            now_ms: current time in milliseconds since 1970.

        Returns:
            The start time in milliseconds since 1970.
        """
        with self._begin_transaction() as database:
            (last,) = database.execute("select max(started) from run").fetchone()
            started = now_ms if last is None else max(now_ms, last + 1)
            database.execute("delete from run")
            database.execute("insert into run (started) values (?)", (started,))
        return int(started)

    def finish(self) -> None:
        """Record that the federation is complete."""
        with self._begin_transaction() as database:
            database.execute("update session set done = 1")

    def read_round(self, number: int, phase: str) -> OpenedRound | None:
        """Return an opened round, or None if it was not opened.

        Args:
            number: number of the round.
            phase: phase of the round.
        """
        with self._translate_errors():
            row = self._database.execute(
                "select nonce, cohort, closed from round where number = ? and phase = ?", (number, phase)
            ).fetchone()
            if row is None:
                return None
            return OpenedRound(number, phase, row[0], tuple(json.loads(row[1])), bool(row[2]))

    def read_next_round(self, number: int) -> OpenedRound | None:
        """Return the round that was opened after round `number`, or None."""
        with self._translate_errors():
            row = self._database.execute("select phase from round where number = ?", (number + 1,)).fetchone()
        return None if row is None else self.read_round(number + 1, row[0])

    def open_round(self, opened: OpenedRound) -> OpenedRound:
        """Store a round before its tasks are sent, and return it."""
        with self._begin_transaction() as database:
            database.execute(
                "insert into round (number, phase, nonce, cohort) values (?, ?, ?, ?)",
                (opened.number, opened.phase, opened.nonce, json.dumps(opened.cohort)),
            )
        return opened

    def forget_round(self, opened: OpenedRound) -> None:
        """Remove a round that accepted no update, so that it can be opened with another cohort."""
        with self._begin_transaction() as database:
            database.execute(
                "delete from round where number = ? and phase = ? and closed = 0 and not exists (select 1 "
                "from accepted where accepted.number = round.number and accepted.phase = round.phase)",
                (opened.number, opened.phase),
            )

    def accept(self, opened: OpenedRound, updates: Iterable[StoreUpdate]) -> None:
        """Store accepted updates of a round in one transaction. They are on the disk when this returns.

        The tensors of earlier rounds are removed, and their disk space is reused. The server state after
        those rounds must be saved before.

        Args:
            opened: the round.
            updates: the updates.
        """
        with self._begin_transaction() as database:
            database.execute("delete from tensors where number < ?", (opened.number,))
            for update in updates:
                begin = update.begin
                key = opened.number, opened.phase, begin.client_id, begin.round
                database.execute(
                    "insert or replace into accepted values (?, ?, ?, ?, ?)", (*key, encode_json(begin))
                )
                database.execute(
                    "insert or replace into tensors values (?, ?, ?, ?, ?, ?)",
                    (*key, update.codec, update.blob),
                )

    def read_accepted(self, opened: OpenedRound) -> Iterator[Begin]:
        """Yield the announcement of each accepted update of a round, sorted by client id and answered round."""
        with self._translate_errors():
            rows = self._database.execute(
                "select begin from accepted where number = ? and phase = ? order by client_id, answers",
                (opened.number, opened.phase),
            )
            for (begin,) in rows:
                yield decode_json(Begin, begin)

    def read_intact(self, opened: OpenedRound) -> Iterator[tuple[Begin, str]]:
        """Yield the announcement and codec of each accepted update whose tensors are stored and undamaged.

        The order is that of `read_accepted`.
        """
        with self._translate_errors():
            rows = self._database.execute(
                "select begin, codec, content from accepted join tensors using (number, phase, client_id, "
                "answers) where number = ? and phase = ? order by client_id, answers",
                (opened.number, opened.phase),
            )
            for encoded, codec, content in rows:
                begin = decode_json(Begin, encoded)
                if hashlib.sha256(content).hexdigest() == begin.sha256:
                    yield begin, codec

    def read_tensors(self, opened: OpenedRound, begin: Begin) -> bytes:
        """Return the encoded tensors of an accepted update.

        Args:
            opened: the round.
            begin: the announcement of the update.
        """
        with self._translate_errors():
            (content,) = self._database.execute(
                "select content from tensors where number = ? and phase = ? and client_id = ? and "
                "answers = ?",
                (opened.number, opened.phase, begin.client_id, begin.round),
            ).fetchone()
        tensors: bytes = content
        return tensors

    def remove_tensors(self) -> None:
        """Remove the tensors of all updates and free their disk space."""
        with self._begin_transaction() as database:
            database.execute("delete from tensors")
        with self._translate_errors():
            # Unlike `delete`, `vacuum` shortens the file and leaves no part of the updates in it
            self._database.execute("vacuum")
            self._database.execute("pragma wal_checkpoint(truncate)")

    def read_latest_updates(self, count: int, phase_without: str) -> Iterator[Begin]:
        """Yield the announcements of the accepted updates of the last rounds.

        Args:
            count: number of rounds.
            phase_without: phase whose rounds are left out.
        """
        with self._translate_errors():
            rows = self._database.execute(
                "select begin from accepted where phase != ? and number > (select max(number) from round "
                "where phase != ?) - ? order by number, client_id",
                (phase_without, phase_without, count),
            )
            for (begin,) in rows:
                yield decode_json(Begin, begin)

    def read_settled(self, opened: OpenedRound, since: int) -> dict[UpdateKey, str]:
        """Return the sha256 of updates that earlier rounds of the same phase accepted.

        Args:
            opened: the current round.
            since: the earliest round that the updates answer.

        Returns:
            The sha256 in hex, by answered round and client id.
        """
        with self._translate_errors():
            rows = self._database.execute(
                # An update that answers a round is accepted in this round or later. Without this condition,
                # each round would read all earlier rounds.
                "select begin from accepted where number between ? and ? and phase = ? and answers >= ?",
                (since, opened.number - 1, opened.phase, since),
            ).fetchall()
            begins = [decode_json(Begin, row[0]) for row in rows]
        return {(begin.round, begin.client_id): begin.sha256 for begin in begins}

    def read_nonces(self, opened: OpenedRound, since: int) -> dict[int, str]:
        """Return the nonces of a round and of the earlier rounds of its phase, by round.

        Args:
            opened: the current round.
            since: the earliest round.
        """
        with self._translate_errors():
            rows = self._database.execute(
                "select number, nonce from round where number between ? and ? and phase = ?",
                (since, opened.number, opened.phase),
            ).fetchall()
        return dict(rows)

    def close_round(self, opened: OpenedRound, loss: float | None, dropped: Sequence[DroppedClient]) -> None:
        """Record that a round is closed.

        A power cut before the next `checkpoint` may undo this. The round is then closed again, with the
        updates that it accepted.

        Args:
            opened: the round.
            loss: mean loss of the round, or None without a loss.
            dropped: clients of the cohort without an accepted update.
        """
        with self._begin_transaction(synchronous="normal") as database:
            encoded = json.dumps([asdict(client) for client in dropped])
            database.execute(
                "update round set closed = 1, loss = ?, dropped = ? where number = ? and phase = ? and "
                "closed = 0",
                (loss, encoded, opened.number, opened.phase),
            )

    def reopen_round(self, opened: OpenedRound) -> OpenedRound:
        """Open a closed round again, and return it."""
        with self._begin_transaction() as database:
            database.execute(
                "update round set closed = 0, loss = null, dropped = '[]' where number = ? and phase = ?",
                (opened.number, opened.phase),
            )
        return replace(opened, is_closed=False)

    def read_losses(self, phase_without: str) -> list[float | None]:
        """Return the losses of the closed rounds in order.

        Args:
            phase_without: phase whose rounds are left out.

        Returns:
            One loss per round, None for a round without a loss.
        """
        with self._translate_errors():
            rows = self._database.execute(
                "select loss from round where closed and phase != ? order by number", (phase_without,)
            ).fetchall()
        return [row[0] for row in rows]

    def read_dropped(self) -> list[DroppedClient]:
        """Return the clients that the closed rounds dropped, in order."""
        with self._translate_errors():
            rows = self._database.execute(
                "select dropped from round where closed order by number, phase"
            ).fetchall()
            return [DroppedClient(**fields) for row in rows for fields in json.loads(row[0])]


def has_federation(directory: Path) -> bool:
    """Return whether a directory contains a federation.

    Args:
        directory: directory of an aggregator.

    Raises:
        StateError: another process uses the directory, or the journal cannot be read.
    """
    if not AggregatorFiles(directory).journal.exists():
        return False
    with Journal(directory) as journal:
        return journal.read_start() is not None
