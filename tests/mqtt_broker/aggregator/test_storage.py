"""The updates of a round in the journal: an acknowledged update is restored after a kill or a power cut
at any moment.
"""

import hashlib
import resource
import shutil
import sqlite3
import subprocess
import sys
import tracemalloc
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgefl.base.config import FederationConfig
from edgefl.base.errors import StateError
from edgefl.base.storage.aggregator_directory import AggregatorFiles
from edgefl.base.types import ServerState
from edgefl.learning.algorithms import PHASE_PERSONALIZE, make_algorithm
from edgefl.program.plan.spec import TensorSpec
from edgefl.protocol.server.events import (
    CloseRound,
    CommitUpdates,
    OpenedRound,
    OpenRound,
    SaveMaskedSum,
    SaveState,
    StoreUpdate,
)
from edgefl.protocol.wire.messages import Begin
from edgefl.protocol.wire.tensors import encode_models
from mqtt_broker.aggregator import journal as journal_module
from mqtt_broker.aggregator import state_writer
from mqtt_broker.aggregator import storage as storage_module
from mqtt_broker.aggregator.journal import Journal
from mqtt_broker.aggregator.results import save_state
from mqtt_broker.aggregator.storage import Storage
from tests.support.numpy_learner.softmax import softmax_spec

SIZE = 3
EXPECTED = {"global": (TensorSpec("w", (SIZE,)),)}
SPEC = softmax_spec("fedavg", inputs=4, features=4, classes=3, options={})
INITIAL = ServerState(round=1, phase="federate", models={"global": {"w": np.zeros(SIZE, np.float32)}})
WRITER_PROGRAM = """
import sys
from pathlib import Path
from tests.mqtt_broker.aggregator.test_storage import commit, make_update, open_round, open_storage

with open_storage(Path(sys.argv[1])) as storage:
    for number in range(1, 10**6):
        opened = open_round(storage, number)
        for client in range(3):
            commit(storage, opened, make_update(f"pi-{client}", client, number, size=20_000))
            print(number, client, flush=True)
"""


@contextmanager
def open_storage(directory):
    with Journal(directory) as journal:
        yield Storage(directory, journal)


def make_state_after(number):
    return ServerState(round=number + 1, phase="federate", models={})


def open_round(storage, number, phase="federate"):
    opened = OpenedRound(number=number, phase=phase, nonce=f"n{number}", cohort=("pi-0", "pi-1", "pi-2"))
    storage.apply(OpenRound(opened))
    return opened


def make_update(client_id, value, number=1, *, answers=None, size=SIZE, codec="fp32", expected=EXPECTED):
    deltas = {"global": {"w": np.full(size, value, np.float32)}}
    blob = encode_models(deltas, codec)
    sha256 = hashlib.sha256(blob).hexdigest()
    begin = Begin(
        client_id=client_id,
        session="s",
        round=answers or number,
        plan="p",
        sha256=sha256,
        size=len(blob),
        count=1,
        chunk_bytes=65536,
        num_samples=5,
        metrics={},
        nonce="n",
        ts=0.0,
    )
    return StoreUpdate(begin=begin, blob=blob, expected=expected, codec=codec, deltas=deltas)


def commit(storage, opened, *updates):
    for each in updates:
        storage.apply(each)
    storage.apply(CommitUpdates(opened, tuple(each.begin for each in updates)))


def close_round(storage, opened):
    storage.apply(CloseRound(opened=opened, closed=None, begins=(), dropped=(), loss=0.5, seconds=1.0))


def list_values(storage):
    return [
        (each.client_id, float(each.deltas["global"]["w"][0]))
        for each in storage.read_updates(storage.list_clients())
    ]


def list_intact(directory, number=1):
    with Journal(directory) as journal:
        found = journal.read_intact(OpenedRound(number=number, phase="federate", nonce="", cohort=()))
        return [begin.client_id for begin, _ in found]


def list_files(directory):
    return sorted(directory.glob("journal.sqlite*"))


def get_wal_path(directory):
    return directory / "journal.sqlite-wal"


def edit_journal(directory, statement, *values):
    """Change the journal as only a damaged disk does."""
    with closing(sqlite3.connect(AggregatorFiles(directory).journal)) as database, database:
        assert database.execute(statement, values).rowcount


def test_updates_are_sorted_and_the_latest_of_a_client_counts(tmp_path):
    with open_storage(tmp_path) as storage:
        opened = open_round(storage, 1)
        assert list(storage.read_updates(storage.list_clients())) == []
        commit(storage, opened, make_update("pi-2", 2), make_update("pi-1", 1))
        commit(storage, opened, make_update("pi-2", 3))
        assert list_values(storage) == [("pi-1", 1), ("pi-2", 3)]


def test_client_can_have_updates_of_two_rounds(tmp_path):
    with open_storage(tmp_path) as storage:
        opened = open_round(storage, 2)
        commit(storage, opened, make_update("pi-1", 2, 2), make_update("pi-1", 1, 2, answers=1))
        assert [
            (each.round, float(each.deltas["global"]["w"][0]))
            for each in storage.read_updates(storage.list_clients())
        ] == [
            (1, 1.0),
            (2, 2.0),
        ]


def test_journal_files_are_readable_by_the_owner_only(tmp_path):
    with open_storage(tmp_path) as storage:
        commit(storage, open_round(storage, 1), make_update("pi-1", 1))
        assert [path.name.removeprefix("journal.sqlite") for path in list_files(tmp_path)] == [
            "",
            "-shm",
            "-wal",
        ]
        assert {path.stat().st_mode & 0o777 for path in list_files(tmp_path)} == {0o600}


def test_uncommitted_update_is_not_in_the_round(tmp_path):
    with open_storage(tmp_path) as storage:
        opened = open_round(storage, 1)
        commit(storage, opened, make_update("pi-1", 1))
        storage.apply(make_update("pi-2", 2))
        assert list_values(storage) == [("pi-1", 1)]
    assert list_intact(tmp_path) == ["pi-1"]


def copy_with_log(source, target, content):
    """Copy an open journal, with this content of its write-ahead log."""
    target.mkdir()
    shutil.copy(AggregatorFiles(source).journal, target)
    get_wal_path(target).write_bytes(content)
    return target


def find_last_difference(before, after):
    """Return the end of the last differing byte."""
    before = before.ljust(len(after), b"\0")
    return max((i + 1 for i in range(len(after)) if before[i] != after[i]), default=0)


@given(batches=st.lists(st.integers(1, 3), min_size=1, max_size=3), data=st.data())
def test_committed_batches_survive_a_truncated_log(tmp_path_factory, batches, data):
    directory = tmp_path_factory.mktemp("cut")
    ends = []
    with open_storage(directory) as storage:
        opened = open_round(storage, 1)
        for i, count in enumerate(batches):
            commit(storage, opened, *(make_update(f"pi-{i}-{j}", i) for j in range(count)))
            ends.append(get_wal_path(directory).stat().st_size)
        content = get_wal_path(directory).read_bytes()
        cut = data.draw(st.integers(0, len(content)))
        again = copy_with_log(directory, directory / "again", content[:cut])
    expected = [f"pi-{i}-{j}" for i, count in enumerate(batches) if ends[i] <= cut for j in range(count)]
    assert list_intact(again) == expected
    with open_storage(again) as storage:
        commit(storage, opened, make_update("z", 9))
    assert list_intact(again) == [*expected, "z"]


@given(old=st.integers(0, 4), batches=st.lists(st.integers(1, 3), min_size=1, max_size=3), data=st.data())
def test_committed_batches_survive_a_kill_while_the_log_is_overwritten(tmp_path_factory, old, batches, data):
    directory = tmp_path_factory.mktemp("over")
    with open_storage(directory) as storage:
        first = open_round(storage, 1)
        olds = [f"pi-{i}" for i in range(old)]
        commit(storage, first, *(make_update(client_id, 7) for client_id in olds))
        close_round(storage, first)
        storage.apply(SaveState(make_state_after(1)))
        second = open_round(storage, 2)
        storage.wait()
        before = get_wal_path(directory).read_bytes()
        content = before
        ends = []
        for i, count in enumerate(batches):
            commit(storage, second, *(make_update(f"pi-{i}-{j}", i, 2) for j in range(count)))
            now = get_wal_path(directory).read_bytes()
            ends.append(find_last_difference(content, now))
            content = now
        written = data.draw(st.integers(0, max(ends)))
        again = copy_with_log(directory, directory / "again", content[:written] + before[written:])
    expected = [f"pi-{i}-{j}" for i, count in enumerate(batches) if ends[i] <= written for j in range(count)]
    assert list_intact(again, 2) == expected
    assert list_intact(again) == ([] if expected else olds), (
        "they stay until an update of the next round is stored"
    )
    with Journal(again) as journal:
        assert journal.read_round(1, "federate").is_closed
        assert journal.read_round(2, "federate") == second


@given(count=st.integers(1, 4), share=st.floats(0, 1))
def test_updates_survive_an_interrupted_checkpoint(tmp_path_factory, count, share):
    directory = tmp_path_factory.mktemp("checkpoint")
    with Journal(directory) as journal:
        storage = Storage(directory, journal)
        commit(storage, open_round(storage, 1), *(make_update(f"pi-{i}", i) for i in range(count)))
        before = AggregatorFiles(directory).journal.read_bytes()
        log = get_wal_path(directory).read_bytes()
        journal.checkpoint()
        after = AggregatorFiles(directory).journal.read_bytes()
        written = int(share * len(after))
        again = copy_with_log(directory, directory / "again", log)
        AggregatorFiles(again).journal.write_bytes(after[:written] + before[written:])
        moved = copy_with_log(directory, directory / "moved", b"")
    assert list_intact(again) == [f"pi-{i}" for i in range(count)]
    assert list_intact(moved) == [f"pi-{i}" for i in range(count)], "the file has them without the log"


def test_journal_reader_does_not_block_a_checkpoint(tmp_path, monkeypatch):
    monkeypatch.setattr(journal_module, "LOCK_TIMEOUT_S", 1e4)
    with Journal(tmp_path) as journal, closing(sqlite3.connect(tmp_path / "journal.sqlite")) as reader:
        storage = Storage(tmp_path, journal)
        first = open_round(storage, 1)
        reader.execute("begin")
        reader.execute("select * from round").fetchall()
        commit(storage, first, make_update("pi-1", 1))
        journal.checkpoint()
        killed = copy_with_log(tmp_path, tmp_path / "killed", get_wal_path(tmp_path).read_bytes())
        reader.rollback()
        journal.checkpoint()
        moved = copy_with_log(tmp_path, tmp_path / "moved", b"")
    assert list_intact(killed) == list_intact(moved) == ["pi-1"]


@pytest.mark.parametrize("acknowledged", [1, 5, 8, 30])
def test_killed_aggregator_has_the_acknowledged_updates(tmp_path, acknowledged):
    root = Path(__file__).parents[3]
    command = [sys.executable, "-c", WRITER_PROGRAM, str(tmp_path)]
    with subprocess.Popen(command, cwd=root, stdout=subprocess.PIPE, text=True) as process:
        for _ in range(acknowledged):
            number, client = map(int, process.stdout.readline().split())
        process.kill()
        for line in process.stdout.read().splitlines():
            number, client = map(int, line.split())
    found = list_intact(tmp_path, number)
    if len(found) < client + 1:  # The first update of the next round was committed but not acknowledged
        assert list_intact(tmp_path, number + 1) == ["pi-0"]
    else:
        assert found[: client + 1] == [f"pi-{i}" for i in range(client + 1)]


def test_first_updates_stay_decoded_and_others_are_read_singly(tmp_path, monkeypatch):
    monkeypatch.setattr(storage_module, "DECODED_BYTES", 8 * SIZE)
    with open_storage(tmp_path) as storage:
        opened = open_round(storage, 1)
        for number in range(3):
            commit(storage, opened, make_update(f"pi-{number}", number, codec="top-40"))
        assert [value for _, value in list_values(storage)] == [0.0, 1.0, 2.0]
        edit_journal(tmp_path, "update tensors set content = zeroblob(10)")
        found = storage.read_updates(storage.list_clients())
        assert [float(next(found).deltas["global"]["w"][0]) for _ in range(2)] == [0.0, 1.0]
        with pytest.raises(StateError, match="is damaged"):
            next(found)


@pytest.mark.parametrize("statement", ["update tensors set content = zeroblob(8)", "delete from tensors"])
def test_tensors_that_change_on_the_disk_are_no_fault_of_the_client(statement, tmp_path, monkeypatch):
    monkeypatch.setattr(storage_module, "DECODED_BYTES", 0)
    with open_storage(tmp_path) as storage:
        commit(storage, open_round(storage, 1), make_update("pi-1", 1))
        edit_journal(tmp_path, statement)
        with pytest.raises(StateError, match=r"journal.* is damaged.* than pi-1 sent in round 1.*again"):
            list_values(storage)


def test_aggregation_holds_one_update_in_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(storage_module, "DECODED_BYTES", 0)
    size = 250_000
    expected = {"global": (TensorSpec("w", (size,)),)}
    with open_storage(tmp_path) as storage:
        opened = open_round(storage, 1)
        for number in range(12):
            commit(storage, opened, make_update(f"pi-{number:02}", number, size=size, expected=expected))
        tracemalloc.start()
        try:
            assert (
                sum(
                    float(each.deltas["global"]["w"][0])
                    for each in storage.read_updates(storage.list_clients())
                )
                == 66.0
            )
            assert tracemalloc.get_traced_memory()[1] < 3 * 4 * size
        finally:
            tracemalloc.stop()


def test_disk_space_is_reused_and_freed_at_the_end(tmp_path):
    size = 30_000
    expected = {"global": (TensorSpec("w", (size,)),)}
    sizes = []
    with open_storage(tmp_path) as storage:
        for number in range(1, 21):
            opened = open_round(storage, number)
            storage.release()
            updates = [make_update(f"pi-{i}", 17, number, size=size, expected=expected) for i in range(5)]
            commit(storage, opened, *updates[:2])
            commit(storage, opened, *updates[2:])
            assert len(list_values(storage)) == 5
            close_round(storage, opened)
            storage.apply(SaveState(make_state_after(number)))
            # Updates are freed when the state is on the disk, which another thread writes
            storage.wait()
            sizes.append(sum(path.stat().st_size for path in list_files(tmp_path)))
        assert sizes[-1] < 1.1 * sizes[3], sizes
        assert max(sizes) < 4 * 5 * 4 * size, sizes
        storage.remove_updates()
        sample = np.full(64, 17, np.float32).tobytes()
        assert all(sample not in path.read_bytes() for path in list_files(tmp_path))
        assert sum(path.stat().st_size for path in list_files(tmp_path)) < 300_000
        assert list(storage.read_updates(storage.list_clients())) == []


def test_updates_stay_until_the_next_state_is_saved(tmp_path, monkeypatch):
    monkeypatch.setattr(state_writer, "MAX_SAVE_DELAY_S", 1e6)
    with open_storage(tmp_path) as storage:
        first = open_round(storage, 1)
        commit(storage, first, make_update("pi-1", 1))
        close_round(storage, first)
        storage.apply(SaveState(make_state_after(1)))
        second = open_round(storage, 2)
        storage.apply(make_update("pi-2", 2, 2))
        assert not AggregatorFiles(tmp_path).server_state.exists()
        killed = copy_with_log(tmp_path, tmp_path / "killed", get_wal_path(tmp_path).read_bytes())
        storage.apply(CommitUpdates(second, (make_update("pi-2", 2, 2).begin,)))
        assert AggregatorFiles(tmp_path).server_state.exists()
        assert list_values(storage) == [("pi-2", 2.0)]
    assert list_intact(killed) == ["pi-1"]
    assert (list_intact(tmp_path), list_intact(tmp_path, 2)) == ([], ["pi-2"])


def test_full_disk_is_an_error_and_stores_no_part_of_a_batch(tmp_path):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    size = 100_000
    expected = {"global": (TensorSpec("w", (size,)),)}
    with open_storage(tmp_path) as storage:
        opened = open_round(storage, 1)
        commit(storage, opened, make_update("pi-0", 0, size=size, expected=expected))
        updates = [make_update(f"pi-{i}", i, size=size, expected=expected) for i in (1, 2)]
        limit = get_wal_path(tmp_path).stat().st_size + 5 * size
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
        try:
            with pytest.raises(StateError, match=r"cannot use .*journal\.sqlite: .*free some space"):
                commit(storage, opened, *updates)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert list_values(storage) == [("pi-0", 0.0)]
        commit(storage, opened, *updates)
        assert [client_id for client_id, _ in list_values(storage)] == ["pi-0", "pi-1", "pi-2"]
    assert list_intact(tmp_path) == ["pi-0", "pi-1", "pi-2"]


@pytest.fixture
def resume(tmp_path):
    """Returns a function that restarts in the directory and returns the resumed federation and the
    updates of the open round.
    """
    config = FederationConfig(rounds=3, seed=1)
    algorithm = make_algorithm("fedavg", None, SPEC.options)

    def start(state=INITIAL):
        with open_storage(tmp_path) as storage:
            return storage.resume(config, SPEC, algorithm, state), list_values(storage)

    return start


def test_restarted_aggregator_has_the_accepted_updates(tmp_path, resume):
    with open_storage(tmp_path) as storage:
        opened = open_round(storage, 1)
        commit(storage, opened, make_update("pi-2", 2), make_update("pi-1", 1))
        # The sum of a masked round is stored as fp32 with every codec of the federation
        commit(storage, opened, make_update("", 3, codec="fp16"))
    resumed, found = resume()
    assert resumed.opened == opened
    assert [begin.client_id for begin in resumed.begins] == ["", "pi-1", "pi-2"]
    assert found == [("", 3.0), ("pi-1", 1.0), ("pi-2", 2.0)]


@pytest.mark.parametrize("damage", ["missing", "damaged"])
@pytest.mark.parametrize("is_closed", [False, True])
def test_round_reopens_for_a_missing_or_damaged_update(damage, is_closed, tmp_path, resume):
    with open_storage(tmp_path) as storage:
        opened = open_round(storage, 1)
        commit(storage, opened, make_update("pi-1", 1), make_update("pi-2", 2))
        if is_closed:
            close_round(storage, opened)
    if damage == "missing":
        edit_journal(tmp_path, "delete from tensors where client_id = 'pi-2'")
    else:
        other = make_update("pi-2", 2.5).blob
        edit_journal(tmp_path, "update tensors set content = ? where client_id = 'pi-2'", other)
    resumed, found = resume()
    assert found == [("pi-1", 1.0)]
    assert (resumed.opened, [begin.client_id for begin in resumed.begins]) == (opened, ["pi-1"])
    assert list(resumed.losses) == []
    with open_storage(tmp_path) as storage:
        commit(storage, opened, make_update("pi-2", 2))
        close_round(storage, opened)
    resumed, found = resume()
    assert (resumed.opened.is_closed, list(resumed.losses)) == (True, [0.5])
    assert found == [("pi-1", 1.0), ("pi-2", 2.0)]


@pytest.mark.parametrize("is_closed", [False, True])
@pytest.mark.parametrize("older", ["is missing", "is of round 1"])
def test_state_that_is_older_than_the_journal_is_an_error(older, is_closed, tmp_path, resume):
    """The updates of round 1 were removed when round 2 accepted its first update."""
    with open_storage(tmp_path) as storage:
        for number in (1, 2):
            opened = open_round(storage, number)
            commit(storage, opened, make_update("pi-1", 1, number))
            if number == 1 or is_closed:
                close_round(storage, opened)
            if number == 1:
                storage.apply(SaveState(replace(INITIAL, round=2)))
                storage.wait()
    assert resume()[0].opened.number == 2
    path = AggregatorFiles(tmp_path).server_state
    path.unlink()
    if older != "is missing":
        save_state(INITIAL, tmp_path)
    with pytest.raises(StateError, match=rf"{older}, but .* updates of round 2; restore both .*--fresh"):
        resume()


def test_state_may_be_missing_until_the_second_round_has_an_update(tmp_path, resume):
    with open_storage(tmp_path) as storage:
        first = open_round(storage, 1)
        commit(storage, first, make_update("pi-1", 1))
        close_round(storage, first)
        open_round(storage, 2)
    resumed, found = resume()
    assert (resumed.opened.number, resumed.following.number, found) == (1, 2, [("pi-1", 1.0)])


@pytest.mark.parametrize(
    "statement",
    [
        "update tensors set codec = 'fx32'",
        "update accepted set number = 'federate'",
        "update accepted set begin = cast(begin as text)",
    ],
)
def test_damaged_value_of_an_update_is_an_error_with_a_remedy(statement, tmp_path, resume):
    with open_storage(tmp_path) as storage:
        commit(storage, open_round(storage, 1), make_update("pi-1", 1))
    edit_journal(tmp_path, statement)
    with pytest.raises(StateError, match=r"journal\.sqlite is damaged: .*; start again with --fresh"):
        resume()


def test_personalization_needs_no_tensors_after_a_restart(tmp_path, resume):
    with open_storage(tmp_path) as storage:
        opened = open_round(storage, 4, PHASE_PERSONALIZE)
        commit(storage, opened, make_update("pi-1", 1, 4))
        close_round(storage, opened)
        storage.remove_updates()
    resumed, found = resume(ServerState(round=4, phase="federate", models={}))
    assert (resumed.opened.is_closed, [begin.client_id for begin in resumed.begins]) == (True, ["pi-1"])
    assert found == []


def test_masked_sum_is_restored_with_its_path(tmp_path, resume):
    path = AggregatorFiles(tmp_path).masked_sum
    with open_storage(tmp_path) as storage:
        storage.apply(SaveMaskedSum(b"sum"))
    resumed, _ = resume()
    assert (resumed.masked_sum, resumed.masked_sum_origin) == (b"sum", str(path))
    with open_storage(tmp_path) as storage:
        storage.apply(SaveMaskedSum(b""))
    assert not path.exists()


def test_damaged_row_error_names_the_file_and_the_fresh_option(tmp_path):
    with Journal(tmp_path) as journal:
        journal.open_round(OpenedRound(number=1, phase="federate", nonce="n", cohort=("pi-1",)))
    with closing(sqlite3.connect(tmp_path / "journal.sqlite")) as database, database:
        database.execute("update round set cohort = '[\"pi-1'")
    with Journal(tmp_path) as journal, pytest.raises(StateError, match=r"sqlite is damaged: .*--fresh"):
        journal.read_round(1, "federate")
