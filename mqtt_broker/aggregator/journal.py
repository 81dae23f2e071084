"""What an aggregator must still know after it was killed: its session, the open round, and the updates that
it acknowledged.

One SQLite file beside the server state. Whatever is promised on the wire is written here first: a nonce
before the task that carries it, an update before its receipt.
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
"""How long a commit waits for a checkpoint of another thread."""


@dataclass(frozen=True)
class FederationStart:
    """The start of a federation.

    Attributes:
        settings: settings that must be the same to resume it.
        started: time of the start in seconds since 1970.
    """

    session: str
    settings: str
    started: float
    is_done: bool = False


def make_private_directory(directory: Path) -> None:
    """Make a directory that only its owner can read, unless it is there: an aggregator keeps each client's
    figures in it.

    They have no noise, also where `[privacy]` hides them from everybody else. Raises StateError.
    """
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise StateError(f"cannot make {directory}: {error.strerror}; choose another --out") from error


class Journal:
    """The file in a directory, for one process at a time.

    StateError when it is in use, or cannot be read or written.
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
                f"another aggregator uses {directory}; give each federation an --out of its own"
            ) from error
        with self._translate_errors():
            # SQLite gives its other files the same mode
            os.close(os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600))
            self._path.chmod(0o600)
            self._database = self._connect()
            self._database.execute(f"pragma page_size={PAGE_BYTES}")
            self._database.execute("pragma journal_mode=wal")
            self._database.execute(f"pragma wal_autocheckpoint={WAL_PAGES}")
            self._database.execute("pragma cache_size=-128")  # KiB; what is written is hardly ever read
            # Some builds of SQLite write zeros over each removed update. `remove_tensors` does it once.
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
        """Return when all that was committed would survive a power cut, and is moved out of the write-ahead
        log.

        Any thread may call it: it uses a connection of its own.
        """
        with self._translate_errors(), closing(self._connect()) as database:
            database.execute("pragma synchronous=full")
            # It waits for no reader and no writer
            is_busy, *_ = database.execute("pragma wal_checkpoint(passive)").fetchone()
            if is_busy:  # A commit with a long log does a checkpoint at this moment
                database.execute("pragma wal_checkpoint(full)")

    def __enter__(self) -> "Journal":
        return self

    def __exit__(self, *error: object) -> None:
        self._database.close()
        self._lock.close()

    def read_start(self) -> FederationStart | None:
        """Return the start that this file tells of, None in a new one."""
        with self._translate_errors():
            row = self._database.execute("select id, settings, started, done from session").fetchone()
        return None if row is None else FederationStart(row[0], row[1], row[2], bool(row[3]))

    def start(self, started: FederationStart) -> None:
        """Forget everything and begin with this."""
        with self._begin_transaction() as database:
            for table in ("session", "round", "accepted", "tensors"):
                database.execute(f"delete from {table}")
            database.execute(
                "insert into session (id, settings, started) values (?, ?, ?)",
                (started.session, started.settings, started.started),
            )

    def begin_run(self, now_ms: int) -> int:
        """Return when this run of the aggregator began, in milliseconds since 1970: later than each run
        before it, whatever the clock says.

        Devices order tasks by it. It is on the disk when this returns, and `start` does not forget it.
        """
        with self._begin_transaction() as database:
            (last,) = database.execute("select max(started) from run").fetchone()
            started = now_ms if last is None else max(now_ms, last + 1)
            database.execute("delete from run")
            database.execute("insert into run (started) values (?)", (started,))
        return int(started)

    def finish(self) -> None:
        """Note that the federation came to its end."""
        with self._begin_transaction() as database:
            database.execute("update session set done = 1")

    def read_round(self, number: int, phase: str) -> OpenedRound | None:
        """Return a round that was opened, None when it was not."""
        with self._translate_errors():
            row = self._database.execute(
                "select nonce, cohort, closed from round where number = ? and phase = ?", (number, phase)
            ).fetchone()
            if row is None:
                return None
            return OpenedRound(number, phase, row[0], tuple(json.loads(row[1])), bool(row[2]))

    def read_next_round(self, number: int) -> OpenedRound | None:
        """Return the round that was opened after this round, or None."""
        with self._translate_errors():
            row = self._database.execute("select phase from round where number = ?", (number + 1,)).fetchone()
        return None if row is None else self.read_round(number + 1, row[0])

    def open_round(self, opened: OpenedRound) -> OpenedRound:
        """Keep a round before its tasks go out."""
        with self._begin_transaction() as database:
            database.execute(
                "insert into round (number, phase, nonce, cohort) values (?, ?, ?, ?)",
                (opened.number, opened.phase, opened.nonce, json.dumps(opened.cohort)),
            )
        return opened

    def forget_round(self, opened: OpenedRound) -> None:
        """Forget a round that accepted nothing, so that it can be opened with another cohort."""
        with self._begin_transaction() as database:
            database.execute(
                "delete from round where number = ? and phase = ? and closed = 0 and not exists (select 1 "
                "from accepted where accepted.number = round.number and accepted.phase = round.phase)",
                (opened.number, opened.phase),
            )

    def accept(self, opened: OpenedRound, updates: Iterable[StoreUpdate]) -> None:
        """Store the updates that a round accepted, all of them or none. They are on the disk when this
        returns.

        The tensors of earlier rounds are removed, and their disk space is used again. So the state after
        those rounds must be saved.
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
        """Yield the announcement of each update that a round accepted, sorted by client id and answered
        round.
        """
        with self._translate_errors():
            rows = self._database.execute(
                "select begin from accepted where number = ? and phase = ? order by client_id, answers",
                (opened.number, opened.phase),
            )
            for (begin,) in rows:
                yield decode_json(Begin, begin)

    def read_intact(self, opened: OpenedRound) -> Iterator[tuple[Begin, str]]:
        """Yield the announcement and the codec of each accepted update whose tensors are stored and
        undamaged, sorted as `accepted` does.
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
        """Return the bytes of an update that a round accepted."""
        with self._translate_errors():
            (content,) = self._database.execute(
                "select content from tensors where number = ? and phase = ? and client_id = ? and "
                "answers = ?",
                (opened.number, opened.phase, begin.client_id, begin.round),
            ).fetchone()
        tensors: bytes = content
        return tensors

    def remove_tensors(self) -> None:
        """Remove the bytes of all updates and return their disk space."""
        with self._begin_transaction() as database:
            database.execute("delete from tensors")
        with self._translate_errors():
            # Unlike `delete`, it shortens the file and leaves nothing of the updates in it
            self._database.execute("vacuum")
            self._database.execute("pragma wal_checkpoint(truncate)")

    def read_latest_updates(self, count: int, phase_without: str) -> Iterator[Begin]:
        """Yield the announcements of the updates of the last `count` rounds, except for the rounds of one
        phase.
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
        """Return the sha256 of each update that rounds before this one accepted and that answers round
        `since` or a later one.
        """
        with self._translate_errors():
            rows = self._database.execute(
                # what answers such a round was accepted in it or later: else each round would read all before
                # it
                "select begin from accepted where number between ? and ? and phase = ? and answers >= ?",
                (since, opened.number - 1, opened.phase, since),
            ).fetchall()
            begins = [decode_json(Begin, row[0]) for row in rows]
        return {(begin.round, begin.client_id): begin.sha256 for begin in begins}

    def read_nonces(self, opened: OpenedRound, since: int) -> dict[int, str]:
        """Return the nonce of this round and the nonces of earlier rounds of its phase from `since` on."""
        with self._translate_errors():
            rows = self._database.execute(
                "select number, nonce from round where number between ? and ? and phase = ?",
                (since, opened.number, opened.phase),
            ).fetchall()
        return dict(rows)

    def close_round(self, opened: OpenedRound, loss: float | None, dropped: Sequence[DroppedClient]) -> None:
        """Note that a round takes nothing any more, its loss (None when it has none), and whom it goes
        without.

        A power cut may undo it until `checkpoint`: the round is closed once more then, by the updates that
        it accepted.
        """
        with self._begin_transaction(synchronous="normal") as database:
            encoded = json.dumps([asdict(client) for client in dropped])
            database.execute(
                "update round set closed = 1, loss = ?, dropped = ? where number = ? and phase = ? and "
                "closed = 0",
                (loss, encoded, opened.number, opened.phase),
            )

    def reopen_round(self, opened: OpenedRound) -> OpenedRound:
        """Let a closed round take updates again, and return it."""
        with self._begin_transaction() as database:
            database.execute(
                "update round set closed = 0, loss = null, dropped = '[]' where number = ? and phase = ?",
                (opened.number, opened.phase),
            )
        return replace(opened, is_closed=False)

    def read_losses(self, phase_without: str) -> list[float | None]:
        """Return the losses of the closed rounds in order, except for the rounds of one phase."""
        with self._translate_errors():
            rows = self._database.execute(
                "select loss from round where closed and phase != ? order by number", (phase_without,)
            ).fetchall()
        return [row[0] for row in rows]

    def read_dropped(self) -> list[DroppedClient]:
        """Return whom the closed rounds went without, in order."""
        with self._translate_errors():
            rows = self._database.execute(
                "select dropped from round where closed order by number, phase"
            ).fetchall()
            return [DroppedClient(**fields) for row in rows for fields in json.loads(row[0])]


def has_federation(directory: Path) -> bool:
    """Whether a federation began in the directory."""
    if not AggregatorFiles(directory).journal.exists():
        return False
    with Journal(directory) as journal:
        return journal.read_start() is not None
