"""Journal of an aggregator: its session, its rounds and the updates that it acknowledged.

The journal is one SQLite file next to the server state. It survives a kill of the aggregator. The aggregator
writes to the journal before it sends the corresponding message: a nonce before the task with that nonce, and
an update before its receipt.
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
from typing import Any

from edgefl.base.codecs import check_codec
from edgefl.base.errors import ConfigError, StateError, WireError
from edgefl.base.storage.aggregator_directory import AggregatorFiles
from edgefl.base.storage.directory import STATE_FORMAT, check_state_format
from edgefl.base.system.files import choose_write_remedy, open_no_link, parse_json
from edgefl.protocol.server.events import DroppedClient, OpenedRound, StoreUpdate
from edgefl.protocol.server.rounds import UpdateKey
from edgefl.protocol.wire.messages import Begin
from edgefl.protocol.wire.strict_json import decode_json, encode_json

SCHEMA = """
create table session (id text not null, settings text not null, started real not null, done integer not null default 0);
create table run (started integer not null);
create table round (
    number integer not null, phase text not null, nonce text not null, cohort text not null, closed integer not null default 0,
    loss real, dropped text not null default '[]', primary key (number, phase));
create table accepted (
    number integer not null, phase text not null, client_id text not null, answers integer not null, begin blob not null,
    primary key (number, phase, client_id, answers));
create table tensors (
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
        session: random id of this start, in hexadecimal.
        settings: JSON text of the settings that must be the same to resume the federation.
        started: time of the start, in seconds since 1970.
        is_done: whether the federation is complete.
    """

    session: str
    settings: str
    started: float
    is_done: bool = False


def make_private_directory(directory: Path) -> None:
    """Create a directory that only its owner can read, unless it exists.

    The directory of an aggregator contains the metrics of each client. They have no noise, even if
    `[privacy]` hides them from everybody else.

    Raises:
        StateError: the directory cannot be created.
    """
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise StateError(f"cannot make {directory}: {error.strerror}; choose another --out") from error


class Journal:
    """The journal in a directory. One process at a time can use it.

    All methods raise StateError if the file is damaged, or cannot be read or written.

    Args:
        directory: directory of the aggregator. It is created if it does not exist.

    Raises:
        StateError: another aggregator uses the directory, or the file cannot be opened.
    """

    def __init__(self, directory: Path) -> None:
        files = AggregatorFiles(directory)
        self._path = files.journal
        with self._translate_errors():
            make_private_directory(directory)
            self._lock = os.fdopen(open_no_link(files.lock, os.O_WRONLY | os.O_CREAT), "wb")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self._lock.close()
            raise StateError(
                f"another aggregator uses {directory}; pass a separate --out to each federation"
            ) from error
        with self._translate_errors():
            # SQLite creates its other files with the same mode
            os.close(open_no_link(self._path, os.O_RDWR | os.O_CREAT))
            self._path.chmod(0o600)
            self._database = self._connect()
            is_new = self._check_format()
            self._database.execute(f"pragma page_size={PAGE_BYTES}")
            self._database.execute("pragma journal_mode=wal")
            self._database.execute(f"pragma wal_autocheckpoint={WAL_PAGES}")
            self._database.execute("pragma cache_size=-128")  # KiB. Written data is hardly ever read
            # Some builds of SQLite overwrite each removed update with zeros. `remove_tensors` does it once
            self._database.execute("pragma secure_delete=off")
            if is_new:  # In one transaction, so that no power cut leaves tables without the format
                script = f"begin immediate;{SCHEMA}pragma user_version={STATE_FORMAT};commit;"
                self._database.executescript(script)

    def _check_format(self) -> bool:
        """Check the format of an existing journal, and return whether the journal is new."""
        (tables,) = self._database.execute("select count(*) from sqlite_master").fetchone()
        if tables:
            (stored,) = self._database.execute("pragma user_version").fetchone()
            check_state_format(stored, self._path, "pass another --out")
        return not tables

    def _connect(self) -> sqlite3.Connection:
        return sqlite3.connect(self._path, timeout=LOCK_TIMEOUT_S, isolation_level=None)

    @contextmanager
    def _translate_errors(self) -> Iterator[None]:
        try:
            yield
        except (ValueError, TypeError, AttributeError, WireError, ConfigError) as error:
            # A value has another type, or a text is not JSON
            raise StateError(f"{self._path} is damaged: {error}; start again with --fresh") from error
        except (sqlite3.Error, OSError) as error:
            if type(error) is sqlite3.DatabaseError:  # Errors of the disk have classes of their own
                raise StateError(
                    f"{self._path} is damaged: {error}; restore it from a backup, or remove it and start "
                    "again with --fresh"
                ) from error
            remedy = "free some space, or choose another --out"
            if "readonly" in str(error):  # SQLite's error for a read-only disk or file
                remedy = "make its disk and the file writable, or choose another --out"
            elif isinstance(error, OSError):
                remedy = choose_write_remedy(error, remedy)
            raise StateError(f"cannot use {self._path}: {error}; {remedy}") from error

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
        """Sync all commits to the disk, and move them out of the write-ahead log.

        After the return, the commits survive a power cut. Any thread may call this method, because it opens a
        separate connection.

        Raises:
            StateError: the file cannot be written.
        """
        with self._translate_errors(), closing(self._connect()) as database:
            database.execute("pragma synchronous=full")
            # A passive checkpoint does not wait for readers and writers
            is_busy, *_ = database.execute("pragma wal_checkpoint(passive)").fetchone()
            if is_busy:  # A commit that exceeded the log's limit runs a checkpoint now
                database.execute("pragma wal_checkpoint(full)")

    def __enter__(self) -> "Journal":
        return self

    def __exit__(self, *error: object) -> None:
        self._database.close()
        self._lock.close()

    def read_start(self) -> FederationStart | None:
        """Return the start of the stored federation, or None in a new file."""
        with self._translate_errors():
            row = self._database.execute("select id, settings, started, done from session").fetchone()
        return (
            None
            if row is None
            else FederationStart(session=row[0], settings=row[1], started=row[2], is_done=bool(row[3]))
        )

    def parse_settings(self, started: FederationStart) -> dict[str, Any]:
        """Return the settings of the stored federation."""
        with self._translate_errors():
            settings = parse_json(started.settings)
            if not isinstance(settings, dict):
                raise ValueError("its settings are no JSON object")
            return settings

    def start(self, started: FederationStart) -> None:
        """Remove the stored federation and store a new start."""
        with self._begin_transaction() as database:
            for table in ("session", "round", "accepted", "tensors"):
                database.execute(f"delete from {table}")
            database.execute(
                "insert into session (id, settings, started) values (?, ?, ?)",
                (started.session, started.settings, started.started),
            )

    def begin_run(self, now_ms: int) -> int:
        """Store and return the start time of this run of the aggregator.

        The time is later than the start of each previous run, even if the clock was set back. Devices order
        tasks by it. The time is on the disk when this method returns, and `start` does not remove it.

        Args:
            now_ms: the clock, in milliseconds since 1970.

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
        """Mark the federation as complete."""
        with self._begin_transaction() as database:
            database.execute("update session set done = 1")

    def read_round(self, number: int, phase: str) -> OpenedRound | None:
        """Return the round with this number and phase, or None if it was not opened.

        Args:
            number: number of the round, from 1.
        """
        with self._translate_errors():
            row = self._database.execute(
                "select nonce, cohort, closed from round where number = ? and phase = ?", (number, phase)
            ).fetchone()
            if row is None:
                return None
            return OpenedRound(
                number=number,
                phase=phase,
                nonce=row[0],
                cohort=tuple(json.loads(row[1])),
                is_closed=bool(row[2]),
            )

    def read_next_round(self, number: int) -> OpenedRound | None:
        """Return the round that was opened after round `number`, or None."""
        with self._translate_errors():
            row = self._database.execute("select phase from round where number = ?", (number + 1,)).fetchone()
        return None if row is None else self.read_round(number + 1, row[0])

    def read_last_number(self) -> int:
        """Return the number of the last round that is closed or has accepted updates, 0 without such a
        round.
        """
        with self._translate_errors():
            (number,) = self._database.execute(
                "select max(number) from (select number from accepted union all select number from round "
                "where closed)"
            ).fetchone()
            return int(number or 0)

    def open_round(self, opened: OpenedRound) -> OpenedRound:
        """Store a round before its tasks are sent, and return it."""
        with self._begin_transaction() as database:
            database.execute(
                "insert into round (number, phase, nonce, cohort) values (?, ?, ?, ?)",
                (opened.number, opened.phase, opened.nonce, json.dumps(opened.cohort)),
            )
        return opened

    def forget_round(self, opened: OpenedRound) -> None:
        """Remove a round without accepted updates, so that it can be opened with another cohort."""
        with self._begin_transaction() as database:
            database.execute(
                "delete from round where number = ? and phase = ? and closed = 0 and not exists (select 1 "
                "from accepted where accepted.number = round.number and accepted.phase = round.phase)",
                (opened.number, opened.phase),
            )

    def accept(self, opened: OpenedRound, updates: Iterable[StoreUpdate]) -> None:
        """Store the updates that a round accepted, all of them or none.

        The updates are on the disk when this method returns. It removes the tensors of earlier rounds and
        reuses their disk space. The caller must therefore save the state after those rounds first.

        Args:
            updates: the updates. An update that is already stored is replaced.
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
        """Yield the announcements of the accepted updates of a round, by client id and answered round."""
        with self._translate_errors():
            rows = self._database.execute(
                "select begin from accepted where number = ? and phase = ? order by client_id, answers",
                (opened.number, opened.phase),
            )
            for (begin,) in rows:
                yield decode_json(Begin, begin)

    def read_intact(self, opened: OpenedRound) -> Iterator[tuple[Begin, str]]:
        """Yield the announcement and codec of each accepted update of a round with intact tensors.

        The tensors are intact if they are stored and match their sha256. The order is that of
        `read_accepted`.
        """
        with self._translate_errors():
            rows = self._database.execute(
                "select begin, codec, content from accepted join tensors using (number, phase, client_id, "
                "answers) where number = ? and phase = ? order by client_id, answers",
                (opened.number, opened.phase),
            )
            for encoded, codec, content in rows:
                begin = decode_json(Begin, encoded)
                check_codec(codec)
                if hashlib.sha256(content).hexdigest() == begin.sha256:
                    yield begin, codec

    def read_tensors(self, opened: OpenedRound, begin: Begin) -> bytes:
        """Return the encoded tensors of an update that a round accepted.

        Args:
            begin: announcement of the update.

        Raises:
            StateError: the tensors are not stored or have changed, or the file cannot be read.
        """
        with self._translate_errors():
            row = self._database.execute(
                "select content from tensors where number = ? and phase = ? and client_id = ? and "
                "answers = ?",
                (opened.number, opened.phase, begin.client_id, begin.round),
            ).fetchone()
            if row is None or hashlib.sha256(row[0]).hexdigest() != begin.sha256:
                raise StateError(
                    f"{self._path} is damaged: it has other tensors than {begin.client_id} sent in round "
                    f"{begin.round}; check the disk and start again, the device sends them again"
                )
            tensors: bytes = row[0]
        return tensors

    def remove_tensors(self) -> None:
        """Remove the tensors of all updates and free their disk space."""
        with self._begin_transaction() as database:
            database.execute("delete from tensors")
        with self._translate_errors():
            # Unlike `delete`, `vacuum` shortens the file and leaves no remains of the updates in it
            self._database.execute("vacuum")
            self._database.execute("pragma wal_checkpoint(truncate)")

    def read_latest_updates(self, count: int, phase_without: str) -> Iterator[Begin]:
        """Yield the announcements of the updates of the last rounds.

        Args:
            phase_without: the phase whose rounds are omitted and not counted.
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
        """Return the sha256 of the updates that earlier rounds of this phase accepted.

        Args:
            opened: the round. Only rounds before it count.
            since: the first answered round. Updates that answer an earlier round are omitted.
        """
        with self._translate_errors():
            rows = self._database.execute(
                # An update is accepted in the round that it answers or in a later one. The lower bound on
                # `number` keeps each round from reading all earlier rounds
                "select begin from accepted where number between ? and ? and phase = ? and answers >= ?",
                (since, opened.number - 1, opened.phase, since),
            ).fetchall()
            begins = [decode_json(Begin, row[0]) for row in rows]
        return {(begin.round, begin.client_id): begin.sha256 for begin in begins}

    def read_nonces(self, opened: OpenedRound, since: int) -> dict[int, str]:
        """Return the nonces of this round and of earlier rounds of its phase, by number of the round.

        Args:
            since: number of the first round.
        """
        with self._translate_errors():
            rows = self._database.execute(
                "select number, nonce from round where number between ? and ? and phase = ?",
                (since, opened.number, opened.phase),
            ).fetchall()
        return dict(rows)

    def close_round(self, opened: OpenedRound, loss: float | None, dropped: Sequence[DroppedClient]) -> None:
        """Mark a round as closed, and store its loss and its dropped clients.

        Until the next `checkpoint` a power cut may undo this. The restarted aggregator then closes the round
        again from its accepted updates.

        Args:
            loss: median training loss. None if no update reported a loss.
            dropped: clients of the cohort that the round closed without.
        """
        with self._begin_transaction(synchronous="normal") as database:
            encoded = json.dumps([asdict(client) for client in dropped])
            database.execute(
                "update round set closed = 1, loss = ?, dropped = ? where number = ? and phase = ? and "
                "closed = 0",
                (loss, encoded, opened.number, opened.phase),
            )

    def reopen_round(self, opened: OpenedRound) -> OpenedRound:
        """Let a closed round accept updates again, and return it."""
        with self._begin_transaction() as database:
            database.execute(
                "update round set closed = 0, loss = null, dropped = '[]' where number = ? and phase = ?",
                (opened.number, opened.phase),
            )
        return replace(opened, is_closed=False)

    def read_losses(self, phase_without: str) -> list[float | None]:
        """Return the losses of the closed rounds in order, without the rounds of one phase.

        A round without a loss has None.
        """
        with self._translate_errors():
            rows = self._database.execute(
                "select loss from round where closed and phase != ? order by number", (phase_without,)
            ).fetchall()
        return [row[0] for row in rows]

    def read_dropped(self) -> list[DroppedClient]:
        """Return the dropped clients of the closed rounds, in the order of the rounds."""
        with self._translate_errors():
            rows = self._database.execute(
                "select dropped from round where closed order by number, phase"
            ).fetchall()
            return [DroppedClient(**fields) for row in rows for fields in json.loads(row[0])]


def has_federation(directory: Path) -> bool:
    """Return whether a federation was started in the directory.

    Raises:
        StateError: another aggregator uses the directory, or the journal cannot be read.
    """
    if not AggregatorFiles(directory).journal.exists():
        return False
    with Journal(directory) as journal:
        return journal.read_start() is not None
