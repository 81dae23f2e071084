"""The updates of a round in the journal: an acknowledged update comes back, whatever was being written when
the aggregator was killed or the power was cut.
"""

import hashlib
import resource
import shutil
import sqlite3
import subprocess
import sys
import tracemalloc
from contextlib import closing, contextmanager
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgefl.algorithms import PHASE_PERSONALIZE, make_algorithm
from edgefl.config import FederationConfig
from edgefl.errors import StateError, WireError
from edgefl.plan.spec import TensorSpec
from edgefl.server.events import (
    CloseRound,
    CommitUpdates,
    OpenedRound,
    OpenRound,
    SaveMaskedSum,
    SaveState,
    StoreUpdate,
)
from edgefl.storage.aggregator_directory import AggregatorFiles
from edgefl.types import ServerState
from edgefl.wire.messages import Begin
from edgefl.wire.tensors import encode_models
from mqtt_broker.aggregator import journal as journal_module
from mqtt_broker.aggregator import state_writer
from mqtt_broker.aggregator import storage as storage_module
from mqtt_broker.aggregator.journal import Journal
from mqtt_broker.aggregator.storage import Storage
from tests.support.numpy_learner.softmax import softmax_spec

SIZE = 3
EXPECTED = {"global": (TensorSpec("w", (SIZE,)),)}
SPEC = softmax_spec("fedavg", inputs=4, features=4, classes=3, options={})
KILLED = """
import sys
from pathlib import Path
from tests.mqtt_broker.aggregator.test_stored_updates import commit, opened_round, open_storage, update

with open_storage(Path(sys.argv[1])) as storage:
    for number in range(1, 10**6):
        opened = opened_round(storage, number)
        for client in range(3):
            commit(storage, opened, update(f"pi-{client}", client, number, size=20_000))
            print(number, client, flush=True)
"""


@contextmanager
def open_storage(directory):
    with Journal(directory) as journal:
        yield Storage(directory, journal)


def state_after(number):
    return ServerState(number + 1, "federate", {})


def opened_round(storage, number, phase="federate"):
    opened = OpenedRound(number, phase, f"n{number}", ("pi-0", "pi-1", "pi-2"))
    storage.apply(OpenRound(opened))
    return opened


def update(client_id, value, number=1, *, answers=None, size=SIZE, codec="fp32", expected=EXPECTED):
    deltas = {"global": {"w": np.full(size, value, np.float32)}}
    blob = encode_models(deltas, codec)
    sha256 = hashlib.sha256(blob).hexdigest()
    begin = Begin(client_id, "s", answers or number, "p", sha256, len(blob), 1, 65536, 5, {}, "n", 0.0)
    return StoreUpdate(begin, blob, expected, codec, deltas)


def commit(storage, opened, *updates):
    for each in updates:
        storage.apply(each)
    storage.apply(CommitUpdates(opened, tuple(each.begin for each in updates)))


def close(storage, opened):
    storage.apply(CloseRound(opened, None, (), (), 0.5, 1.0))


def values(storage):
    return [(each.client_id, float(each.deltas["global"]["w"][0])) for each in storage.read_updates()]


def intact(directory, number=1):
    with Journal(directory) as journal:
        found = journal.read_intact(OpenedRound(number, "federate", "", ()))
        return [begin.client_id for begin, _ in found]


def files(directory):
    return sorted(directory.glob("journal.sqlite*"))


def wal(directory):
    return directory / "journal.sqlite-wal"


def edit(directory, statement, *values):
    """Change the journal as nothing but a damaged disk does."""
    with closing(sqlite3.connect(AggregatorFiles(directory).journal)) as database, database:
        assert database.execute(statement, values).rowcount


def test_updates_come_sorted_and_the_last_one_of_a_client_counts(tmp_path):
    with open_storage(tmp_path) as storage:
        opened = opened_round(storage, 1)
        assert list(storage.read_updates()) == []
        commit(storage, opened, update("pi-2", 2), update("pi-1", 1))
        commit(storage, opened, update("pi-2", 3))
        assert values(storage) == [("pi-1", 1), ("pi-2", 3)]


def test_a_client_may_answer_two_rounds_at_once(tmp_path):
    with open_storage(tmp_path) as storage:
        opened = opened_round(storage, 2)
        commit(storage, opened, update("pi-1", 2, 2), update("pi-1", 1, 2, answers=1))
        assert [(each.round, float(each.deltas["global"]["w"][0])) for each in storage.read_updates()] == [
            (1, 1.0),
            (2, 2.0),
        ]


def test_all_files_are_secret(tmp_path):
    with open_storage(tmp_path) as storage:
        commit(storage, opened_round(storage, 1), update("pi-1", 1))
        assert [path.name.removeprefix("journal.sqlite") for path in files(tmp_path)] == ["", "-shm", "-wal"]
        assert {path.stat().st_mode & 0o777 for path in files(tmp_path)} == {0o600}


def test_an_update_that_is_not_committed_is_not_in_the_round(tmp_path):
    with open_storage(tmp_path) as storage:
        opened = opened_round(storage, 1)
        commit(storage, opened, update("pi-1", 1))
        storage.apply(update("pi-2", 2))
        assert values(storage) == [("pi-1", 1)]
    assert intact(tmp_path) == ["pi-1"]


def copy_cut(source, target, content):
    """Copy a journal that is in use, with this content of its write-ahead log."""
    target.mkdir()
    shutil.copy(AggregatorFiles(source).journal, target)
    wal(target).write_bytes(content)
    return target


def last_difference(before, after):
    """Return the end of the last byte that differs."""
    before = before.ljust(len(after), b"\0")
    return max((i + 1 for i in range(len(after)) if before[i] != after[i]), default=0)


@given(batches=st.lists(st.integers(1, 3), min_size=1, max_size=3), data=st.data())
def test_cut_anywhere_the_committed_batches_before_come_back_and_more_can_follow(
    tmp_path_factory, batches, data
):
    directory = tmp_path_factory.mktemp("cut")
    ends = []
    with open_storage(directory) as storage:
        opened = opened_round(storage, 1)
        for i, count in enumerate(batches):
            commit(storage, opened, *(update(f"pi-{i}-{j}", i) for j in range(count)))
            ends.append(wal(directory).stat().st_size)
        content = wal(directory).read_bytes()
        cut = data.draw(st.integers(0, len(content)))
        again = copy_cut(directory, directory / "again", content[:cut])
    whole = [f"pi-{i}-{j}" for i, count in enumerate(batches) if ends[i] <= cut for j in range(count)]
    assert intact(again) == whole
    with open_storage(again) as storage:
        commit(storage, opened, update("z", 9))
    assert intact(again) == [*whole, "z"]


@given(old=st.integers(0, 4), batches=st.lists(st.integers(1, 3), min_size=1, max_size=3), data=st.data())
def test_killed_while_a_round_is_written_over_the_one_before_its_committed_batches_come_back(
    tmp_path_factory, old, batches, data
):
    directory = tmp_path_factory.mktemp("over")
    with open_storage(directory) as storage:
        first = opened_round(storage, 1)
        olds = [f"pi-{i}" for i in range(old)]
        commit(storage, first, *(update(client_id, 7) for client_id in olds))
        close(storage, first)
        storage.apply(SaveState(state_after(1)))
        second = opened_round(storage, 2)
        storage.wait()
        before = wal(directory).read_bytes()
        content = before
        ends = []
        for i, count in enumerate(batches):
            commit(storage, second, *(update(f"pi-{i}-{j}", i, 2) for j in range(count)))
            now = wal(directory).read_bytes()
            ends.append(last_difference(content, now))
            content = now
        written = data.draw(st.integers(0, max(ends)))
        again = copy_cut(directory, directory / "again", content[:written] + before[written:])
    whole = [f"pi-{i}-{j}" for i, count in enumerate(batches) if ends[i] <= written for j in range(count)]
    assert intact(again, 2) == whole
    assert intact(again) == ([] if whole else olds), "they stay until an update of the next round is stored"
    with Journal(again) as journal:
        assert journal.read_round(1, "federate").is_closed
        assert journal.read_round(2, "federate") == second


@given(count=st.integers(1, 4), share=st.floats(0, 1))
def test_cut_while_the_log_is_moved_into_the_file_all_updates_come_back(tmp_path_factory, count, share):
    directory = tmp_path_factory.mktemp("checkpoint")
    with Journal(directory) as journal:
        storage = Storage(directory, journal)
        commit(storage, opened_round(storage, 1), *(update(f"pi-{i}", i) for i in range(count)))
        before = AggregatorFiles(directory).journal.read_bytes()
        log = wal(directory).read_bytes()
        journal.checkpoint()
        after = AggregatorFiles(directory).journal.read_bytes()
        written = int(share * len(after))
        again = copy_cut(directory, directory / "again", log)
        AggregatorFiles(again).journal.write_bytes(after[:written] + before[written:])
        moved = copy_cut(directory, directory / "moved", b"")
    assert intact(again) == [f"pi-{i}" for i in range(count)]
    assert intact(moved) == [f"pi-{i}" for i in range(count)], "the file has them without the log"


def test_a_reader_of_the_journal_does_not_stop_a_checkpoint(tmp_path, monkeypatch):
    monkeypatch.setattr(journal_module, "LOCK_TIMEOUT_S", 1e4)
    with Journal(tmp_path) as journal, closing(sqlite3.connect(tmp_path / "journal.sqlite")) as reader:
        storage = Storage(tmp_path, journal)
        first = opened_round(storage, 1)
        reader.execute("begin")
        reader.execute("select * from round").fetchall()
        commit(storage, first, update("pi-1", 1))
        journal.checkpoint()
        killed = copy_cut(tmp_path, tmp_path / "killed", wal(tmp_path).read_bytes())
        reader.rollback()
        journal.checkpoint()
        moved = copy_cut(tmp_path, tmp_path / "moved", b"")
    assert intact(killed) == intact(moved) == ["pi-1"]


@pytest.mark.parametrize("acknowledged", [1, 5, 8, 30])
def test_killed_while_it_stores_updates_an_aggregator_has_those_that_it_acknowledged(tmp_path, acknowledged):
    root = Path(__file__).parents[3]
    command = [sys.executable, "-c", KILLED, str(tmp_path)]
    with subprocess.Popen(command, cwd=root, stdout=subprocess.PIPE, text=True) as process:
        for _ in range(acknowledged):
            number, client = map(int, process.stdout.readline().split())
        process.kill()
        for line in process.stdout.read().splitlines():
            number, client = map(int, line.split())
    found = intact(tmp_path, number)
    if len(found) < client + 1:  # The first update of the next round was committed and not acknowledged
        assert intact(tmp_path, number + 1) == ["pi-0"]
    else:
        assert found[: client + 1] == [f"pi-{i}" for i in range(client + 1)]


def test_the_first_updates_stay_decoded_and_the_others_are_read_one_at_a_time(tmp_path, monkeypatch):
    monkeypatch.setattr(storage_module, "DECODED_BYTES", 8 * SIZE)
    with open_storage(tmp_path) as storage:
        opened = opened_round(storage, 1)
        for number in range(3):
            commit(storage, opened, update(f"pi-{number}", number, codec="top-40"))
        assert [value for _, value in values(storage)] == [0.0, 1.0, 2.0]
        edit(tmp_path, "update tensors set content = zeroblob(10)")
        found = storage.read_updates()
        assert [float(next(found).deltas["global"]["w"][0]) for _ in range(2)] == [0.0, 1.0]
        with pytest.raises(WireError):
            next(found)


def test_aggregating_holds_one_update_in_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(storage_module, "DECODED_BYTES", 0)
    size = 250_000
    expected = {"global": (TensorSpec("w", (size,)),)}
    with open_storage(tmp_path) as storage:
        opened = opened_round(storage, 1)
        for number in range(12):
            commit(storage, opened, update(f"pi-{number:02}", number, size=size, expected=expected))
        tracemalloc.start()
        try:
            assert sum(float(each.deltas["global"]["w"][0]) for each in storage.read_updates()) == 66.0
            assert tracemalloc.get_traced_memory()[1] < 3 * 4 * size
        finally:
            tracemalloc.stop()


def test_disk_space_is_used_again_and_given_back_at_the_end(tmp_path):
    size = 30_000
    expected = {"global": (TensorSpec("w", (size,)),)}
    sizes = []
    with open_storage(tmp_path) as storage:
        for number in range(1, 21):
            opened = opened_round(storage, number)
            storage.release()
            updates = [update(f"pi-{i}", 17, number, size=size, expected=expected) for i in range(5)]
            commit(storage, opened, *updates[:2])
            commit(storage, opened, *updates[2:])
            assert len(values(storage)) == 5
            close(storage, opened)
            storage.apply(SaveState(state_after(number)))
            sizes.append(sum(path.stat().st_size for path in files(tmp_path)))
        storage.wait()
        assert sizes[-1] < 1.1 * sizes[3], sizes
        assert max(sizes) < 4 * 5 * 4 * size, sizes
        storage.remove_updates()
        sample = np.full(64, 17, np.float32).tobytes()
        assert all(sample not in path.read_bytes() for path in files(tmp_path))
        assert sum(path.stat().st_size for path in files(tmp_path)) < 300_000
        assert list(storage.read_updates()) == []


def test_the_updates_of_a_round_stay_until_the_state_after_it_is_saved(tmp_path, monkeypatch):
    monkeypatch.setattr(state_writer, "MAX_SAVE_DELAY_S", 1e6)
    with open_storage(tmp_path) as storage:
        first = opened_round(storage, 1)
        commit(storage, first, update("pi-1", 1))
        close(storage, first)
        storage.apply(SaveState(state_after(1)))
        second = opened_round(storage, 2)
        storage.apply(update("pi-2", 2, 2))
        assert not AggregatorFiles(tmp_path).server_state.exists()
        killed = copy_cut(tmp_path, tmp_path / "killed", wal(tmp_path).read_bytes())
        storage.apply(CommitUpdates(second, (update("pi-2", 2, 2).begin,)))
        assert AggregatorFiles(tmp_path).server_state.exists()
        assert values(storage) == [("pi-2", 2.0)]
    assert intact(killed) == ["pi-1"]
    assert (intact(tmp_path), intact(tmp_path, 2)) == ([], ["pi-2"])


def test_a_full_disk_is_an_error_with_a_remedy_and_stores_nothing_of_the_batch(tmp_path):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    size = 100_000
    expected = {"global": (TensorSpec("w", (size,)),)}
    with open_storage(tmp_path) as storage:
        opened = opened_round(storage, 1)
        commit(storage, opened, update("pi-0", 0, size=size, expected=expected))
        updates = [update(f"pi-{i}", i, size=size, expected=expected) for i in (1, 2)]
        limit = wal(tmp_path).stat().st_size + 5 * size
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
        try:
            with pytest.raises(StateError, match=r"cannot use .*journal\.sqlite: .*free some space"):
                commit(storage, opened, *updates)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert values(storage) == [("pi-0", 0.0)]
        commit(storage, opened, *updates)
        assert [client_id for client_id, _ in values(storage)] == ["pi-0", "pi-1", "pi-2"]
    assert intact(tmp_path) == ["pi-0", "pi-1", "pi-2"]


@pytest.fixture
def resume(tmp_path):
    """Start again in the directory, and return what was resumed and the updates of the open round."""
    config = FederationConfig(rounds=3, seed=1)
    algorithm = make_algorithm("fedavg", None, SPEC.options)
    initial = ServerState(1, "federate", {"global": {"w": np.zeros(SIZE, np.float32)}})

    def start(state=initial):
        with open_storage(tmp_path) as storage:
            return storage.resume(config, SPEC, algorithm, state), values(storage)

    return start


def test_a_restarted_aggregator_has_the_accepted_updates(tmp_path, resume):
    with open_storage(tmp_path) as storage:
        opened = opened_round(storage, 1)
        commit(storage, opened, update("pi-2", 2), update("pi-1", 1))
        # The sum of a masked round is stored as fp32, whatever the codec of the federation is
        commit(storage, opened, update("", 3, codec="fp16"))
    resumed, found = resume()
    assert resumed.opened == opened
    assert [begin.client_id for begin in resumed.begins] == ["", "pi-1", "pi-2"]
    assert found == [("", 3.0), ("pi-1", 1.0), ("pi-2", 2.0)]


@pytest.mark.parametrize("damage", ["missing", "damaged"])
@pytest.mark.parametrize("is_closed", [False, True])
def test_a_round_whose_updates_are_not_intact_takes_them_again(damage, is_closed, tmp_path, resume):
    with open_storage(tmp_path) as storage:
        opened = opened_round(storage, 1)
        commit(storage, opened, update("pi-1", 1), update("pi-2", 2))
        if is_closed:
            close(storage, opened)
    if damage == "missing":
        edit(tmp_path, "delete from tensors where client_id = 'pi-2'")
    else:
        other = update("pi-2", 2.5).blob
        edit(tmp_path, "update tensors set content = ? where client_id = 'pi-2'", other)
    resumed, found = resume()
    assert found == [("pi-1", 1.0)]
    assert (resumed.opened, [begin.client_id for begin in resumed.begins]) == (opened, ["pi-1"])
    assert list(resumed.losses) == []
    with open_storage(tmp_path) as storage:
        commit(storage, opened, update("pi-2", 2))
        close(storage, opened)
    resumed, found = resume()
    assert (resumed.opened.is_closed, list(resumed.losses)) == (True, [0.5])
    assert found == [("pi-1", 1.0), ("pi-2", 2.0)]


def test_a_personalization_needs_no_tensors_after_a_restart(tmp_path, resume):
    with open_storage(tmp_path) as storage:
        opened = opened_round(storage, 4, PHASE_PERSONALIZE)
        commit(storage, opened, update("pi-1", 1, 4))
        close(storage, opened)
        storage.remove_updates()
    resumed, found = resume(ServerState(4, "federate", {}))
    assert (resumed.opened.is_closed, [begin.client_id for begin in resumed.begins]) == (True, ["pi-1"])
    assert found == []


def test_a_masked_sum_comes_back_with_its_path(tmp_path, resume):
    path = AggregatorFiles(tmp_path).masked_sum
    with open_storage(tmp_path) as storage:
        storage.apply(SaveMaskedSum(b"sum"))
    resumed, _ = resume()
    assert (resumed.masked_sum, resumed.masked_sum_origin) == (b"sum", str(path))
    with open_storage(tmp_path) as storage:
        storage.apply(SaveMaskedSum(b""))
    assert not path.exists()


def test_the_spool_of_an_older_version_is_removed(tmp_path):
    spool = AggregatorFiles(tmp_path).spool / "session"
    spool.mkdir(parents=True)
    (spool / "updates").write_bytes(b"x")
    with open_storage(tmp_path):
        assert not AggregatorFiles(tmp_path).spool.exists()


def test_a_damaged_row_names_the_file_and_fresh(tmp_path):
    with Journal(tmp_path) as journal:
        journal.open_round(OpenedRound(1, "federate", "n", ("pi-1",)))
    with closing(sqlite3.connect(tmp_path / "journal.sqlite")) as database, database:
        database.execute("update round set cohort = '[\"pi-1'")
    with Journal(tmp_path) as journal, pytest.raises(StateError, match=r"sqlite is damaged: .*--fresh"):
        journal.read_round(1, "federate")
