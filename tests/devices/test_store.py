"""The state directory of a device: the last finished round is complete after any interruption."""

import errno
import hashlib
import json
import os
from pathlib import Path

import numpy as np
import pytest

from devices.export import export_in_child, extract_export_metrics
from devices.plan_check import PlanTrials
from devices.storage import DeviceStorage
from devices.store import MAX_MASKED_SESSIONS, DeviceStore, FinishedRound, read_last_round
from edgefl.base.errors import ExportError, StateError
from edgefl.base.types import ClientState
from edgefl.data.sources import DataSource
from edgefl.learning.algorithms.papers.apfl import PersonalShare
from edgefl.protocol.device.duplicate_id import should_yield
from edgefl.protocol.device.events import (
    Answer,
    AnsweredRound,
    ForgetPendingTask,
    NewestRound,
    SavedClient,
    SaveMaskedSession,
    SaveOrder,
    SavePendingTask,
    SaveRound,
)
from edgefl.protocol.wire.messages import Status, Task
from edgefl.protocol.wire.strict_json import decode_json, encode_json

STATE = ClientState({"gate/kernel": np.float32([1, 2])}).with_record(PersonalShare(alpha=0.25))


def finish_round(store, round=1, session="s", update=b"update", state=STATE):
    return store.finish_round(session, round, "federate", 5, {"loss": 0.5}, update, state)


def list_rounds(directory):
    """Return the files of the rounds, the oldest first."""
    return sorted(directory.glob("round-[0-9]*"), key=lambda path: int(path.name.split("-")[1]))


class OpenStorage(DeviceStorage):
    """A storage with a store of its own."""

    def __init__(self, directory, is_enrolled):
        self.store = DeviceStore(directory, "pi-1")
        super().__init__(directory, self.store, "f", is_enrolled)

    def close(self):
        self.store.close()


def open_storage(directory, is_enrolled=True):
    return OpenStorage(directory, is_enrolled)


def make_task(number):
    return Task(
        session="s",
        round=number,
        phase="federate",
        plan="p",
        models={},
        scalars={},
        seed=0,
        deadline_s=60.0,
        codec="fp32",
        max_staleness=2,
        budget_s=0.0,
        nonce=f"n{number}",
        ts=0.0,
    )


def test_finished_round_survives_a_restart(tmp_path):
    store = DeviceStore(tmp_path / "a" / "b", "pi-1")
    assert store.read_progress() is None
    assert store.read_client_state("s") == ClientState()
    finish_round(store, 1)
    progress = finish_round(store, 2, update=b"second")
    store.close()
    reopened = DeviceStore(tmp_path / "a" / "b", "pi-1")
    assert reopened.read_progress() == progress
    assert reopened.read_update() == b"second"
    state = reopened.read_client_state("s")
    assert state.arrays["gate/kernel"].tobytes() == STATE.arrays["gate/kernel"].tobytes()
    assert state.records == STATE.records
    assert reopened.read_client_state("another session") == ClientState()
    finish_round(reopened, 3, update=b"third")
    assert len(list_rounds(tmp_path / "a" / "b")) == 2  # the last two rounds


def test_masked_sessions_are_remembered(tmp_path):
    store = DeviceStore(tmp_path, "pi-1")
    for session in ("masked", "another", "masked"):
        progress = finish_round(store, 1, session)
        if session == "masked":
            store.mark_masked(session)
    assert progress.masked_sessions == store.read_progress().masked_sessions == ("masked",)
    for number in range(70):
        finish_round(store, 1, f"s{number}")
        store.mark_masked(f"s{number}")
    assert store.read_progress().masked_sessions == tuple(f"s{number}" for number in range(6, 70))


def test_power_cut_while_saving_leaves_the_previous_round(tmp_path, monkeypatch):
    store = DeviceStore(tmp_path, "pi-1")
    before = finish_round(store, 1)

    def fail(path, content, mode):
        raise StateError("power cut")

    monkeypatch.setattr("devices.store.write_state", fail)
    with pytest.raises(StateError):
        finish_round(store, 2, update=b"half", state=ClientState())
    monkeypatch.undo()
    assert store.read_progress() == before
    assert store.read_update() == b"update"
    assert store.read_client_state("s").records == STATE.records


def test_a_round_is_one_file_with_two_syncs(tmp_path, monkeypatch):
    store = DeviceStore(tmp_path, "pi-1")
    synced = []
    monkeypatch.setattr("os.fsync", synced.append)
    finish_round(store)
    assert len(synced) == 2  # the file and its directory


def test_damaged_file_is_named_with_a_remedy(tmp_path):
    store = DeviceStore(tmp_path, "pi-1")
    finish_round(store)
    [path] = list_rounds(tmp_path)
    path.write_bytes(path.read_bytes()[:-3])
    readers = (store.read_update, lambda: store.read_client_state("s"), lambda: read_last_round(tmp_path))
    for read in readers:
        with pytest.raises(
            StateError, match=rf"{path.name} is damaged: its sha256 is .*; restart this device"
        ):
            read()
    path.unlink()
    for read in readers[:2]:
        with pytest.raises(StateError, match=rf"{path.name} is missing; restart this device"):
            read()


@pytest.mark.parametrize("remaining_bytes", [0, 3, -1])
def test_store_resumes_from_previous_round_when_the_last_file_is_damaged(tmp_path, remaining_bytes):
    store = DeviceStore(tmp_path, "pi-1")
    before = finish_round(store, 1)
    finish_round(store, 2, update=b"second", state=ClientState().with_record(PersonalShare(alpha=0.5)))
    assert store.recovered == ""
    store.close()
    path = list_rounds(tmp_path)[-1]
    damaged = path.read_bytes()[:remaining_bytes]
    path.write_bytes(damaged)
    reopened = DeviceStore(tmp_path, "pi-1")
    assert "from the file before it" in reopened.recovered
    assert (tmp_path / "round.damaged").read_bytes() == damaged
    assert reopened.read_progress() == before
    assert reopened.read_update() == b"update"
    assert reopened.read_client_state("s").records == STATE.records
    assert finish_round(reopened, 2, update=b"second").round == 2
    assert reopened.read_update() == b"second"


def test_damage_of_both_rounds_is_named(tmp_path):
    store = DeviceStore(tmp_path, "pi-1")
    finish_round(store, 1)
    finish_round(store, 2)
    store.close()
    [first, second] = list_rounds(tmp_path)
    for path in (first, second):
        path.write_bytes(b"")
    with pytest.raises(StateError, match=rf"{second.name} is damaged.*to start with an empty state"):
        DeviceStore(tmp_path, "pi-1")
    first.unlink()  # a file with a number above 1 is not the first round
    with pytest.raises(StateError, match=rf"{second.name} is damaged.*to start with an empty state"):
        DeviceStore(tmp_path, "pi-1")


def test_file_that_cannot_be_read_is_not_damaged(tmp_path, monkeypatch):
    store = DeviceStore(tmp_path, "pi-1")
    finish_round(store, 1)
    finish_round(store, 2)
    store.close()
    newest = list_rounds(tmp_path)[-1]
    read_bytes = Path.read_bytes

    def fail_on_newest(path):
        if path == newest:
            raise OSError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return read_bytes(path)

    monkeypatch.setattr("pathlib.Path.read_bytes", fail_on_newest)
    with pytest.raises(
        StateError, match=rf"cannot read {newest}: Permission denied; let this account read it"
    ):
        DeviceStore(tmp_path, "pi-1")
    monkeypatch.undo()
    assert DeviceStore(tmp_path, "pi-1").read_progress().round == 2


def test_recovery_moves_every_damaged_file(tmp_path):
    """A crash between the write of a round and the removal of an older one leaves three files."""
    store = DeviceStore(tmp_path, "pi-1")
    finish_round(store, 1)
    finish_round(store, 2)
    kept = {path.name: path.read_bytes() for path in list_rounds(tmp_path)}
    finish_round(store, 3)
    store.close()
    for name, content in kept.items():
        (tmp_path / name).write_bytes(content)
    [oldest, *others] = list_rounds(tmp_path)
    for path in others:
        path.write_bytes(b"")
    reopened = DeviceStore(tmp_path, "pi-1")
    assert reopened.read_progress().round == 1
    assert list_rounds(tmp_path) == [oldest]
    finish_round(reopened, 2)
    assert list_rounds(tmp_path)[0] == oldest


def test_mark_of_a_masked_session_survives_damage_or_loss_of_the_newest_file(tmp_path):
    store = DeviceStore(tmp_path, "pi-1")
    finish_round(store, 1)
    store.mark_masked("s")
    store.close()
    list_rounds(tmp_path)[-1].write_bytes(b"")
    reopened = DeviceStore(tmp_path, "pi-1")
    assert reopened.read_progress().masked_sessions == ("s",)
    reopened.close()
    assert DeviceStore(tmp_path, "pi-1").read_update() == b"update"


def test_last_round_is_the_highest_number_and_foreign_files_are_ignored(tmp_path):
    store = DeviceStore(tmp_path, "pi-1")
    for number in range(1, 12):
        finish_round(store, number)
    digest = "0" * 64
    for name in (
        "round-x-y",
        "round-99-notes.txt",
        f"round-99-{digest}.bak",
        f"round-0-{digest}",
        f"round-²-{digest}",
        f"round-{'9' * 19}-{digest}",
    ):
        (tmp_path / name).write_bytes(b"")
    assert read_last_round(tmp_path).round == 11
    store.close()
    assert DeviceStore(tmp_path, "pi-1").read_progress().round == 11


def test_damaged_first_round_starts_again_and_keeps_the_file(tmp_path):
    store = DeviceStore(tmp_path, "pi-1")
    store.save_note({"id": "pi-1"})
    finish_round(store)
    store.close()
    for path in (*list_rounds(tmp_path), tmp_path / "device.json"):
        path.write_bytes(path.read_bytes()[:-9])
    reopened = DeviceStore(tmp_path, "pi-1")
    assert "starts again" in reopened.recovered
    assert reopened.read_progress() is None
    assert (tmp_path / "round.damaged").exists()


def test_directories_in_place_of_files_are_named(tmp_path):
    store = DeviceStore(tmp_path, "pi-1")
    finish_round(store, 1)
    finish_round(store, 2)
    [oldest, newest] = list_rounds(tmp_path)
    oldest.unlink()
    oldest.mkdir()
    with pytest.raises(StateError, match=rf"cannot remove {oldest}: Is a directory; remove that directory"):
        finish_round(store, 3)
    oldest.rmdir()
    store.close()
    newest = list_rounds(tmp_path)[-1]
    newest.write_bytes(newest.read_bytes()[:-3])
    damaged = tmp_path / "round.damaged"
    (damaged / "child").mkdir(parents=True)
    with pytest.raises(StateError, match=rf"cannot write {damaged}: Is a directory; remove that directory"):
        DeviceStore(tmp_path, "pi-1")
    (damaged / "child").rmdir()
    damaged.rmdir()
    note = tmp_path / "device.json"
    note.mkdir()
    with pytest.raises(StateError, match=rf"cannot read {note}: Is a directory; let this account"):
        DeviceStore(tmp_path, "pi-1")
    note.rmdir()
    DeviceStore(tmp_path, "pi-1").close()  # each refusal unlocked the directory


def test_directory_that_cannot_be_listed_is_named(tmp_path, monkeypatch):
    def fail(path, pattern):
        raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))

    monkeypatch.setattr("pathlib.Path.glob", fail)
    with pytest.raises(StateError, match=rf"cannot list {tmp_path}: Input/output error; let this account"):
        DeviceStore(tmp_path, "pi-1")


def test_pending_task_that_cannot_be_removed_is_named(tmp_path):
    storage = open_storage(tmp_path)
    storage.apply(ForgetPendingTask())  # a task that was never stored is no error
    path = tmp_path / "unsent.json"
    (path / "child").mkdir(parents=True)
    with pytest.raises(StateError, match=rf"cannot remove {path}: .*; remove that directory"):
        storage.apply(ForgetPendingTask())


def test_damaged_order_of_tasks_is_an_error_with_remedy(tmp_path):
    (tmp_path / "order-f.json").write_bytes(b'{"session":"s"')
    with pytest.raises(StateError, match="remove it"):
        open_storage(tmp_path).load()


def test_stored_client_is_the_same_after_a_restart(tmp_path):
    """The order is stored only for an enrolled device: without signatures anyone can forge the newest run."""
    task = make_task(3)
    newest = NewestRound(session="s", started=7, round=3, masked=True)
    answer = Answer(
        sha256=hashlib.sha256(b"update").hexdigest(), size=6, num_samples=5, metrics={"loss": 0.5}
    )
    answered = AnsweredRound(session="s", round=3, phase="federate", answer=answer)
    for is_enrolled in (True, False):
        directory = tmp_path / str(is_enrolled)
        storage = open_storage(directory, is_enrolled)
        storage.add_answer(answer.sha256, b"update", STATE)
        for action in (SavePendingTask(task), SaveOrder(newest), SaveRound(answered), SaveMaskedSession("s")):
            storage.apply(action)
        storage.close()
        again = open_storage(directory, is_enrolled)
        assert again.load() == SavedClient(
            answered=answered,
            pending=task,
            newest=newest if is_enrolled else None,
            masked_sessions=("s",),
        )
        assert again.read_answer(answer.sha256) == b"update"


def test_answer_to_a_step_leaves_the_update_of_the_round(tmp_path):
    storage = open_storage(tmp_path)
    update = hashlib.sha256(b"update").hexdigest()
    answer = Answer(sha256=update, size=6, num_samples=5, metrics={})
    storage.add_answer(update, b"update", STATE)
    storage.apply(SaveRound(AnsweredRound(session="s", round=1, phase="federate", answer=answer)))
    storage.add_answer("5" * 64, b"step")
    assert storage.read_answer("5" * 64) == b"step"
    assert storage.read_answer(update) == b"update"
    assert storage.read_answer(hashlib.sha256(b"").hexdigest()) == b""


def test_directory_has_one_user_at_a_time_and_one_fixed_id(tmp_path):
    store = DeviceStore(tmp_path, "pi-1")
    with pytest.raises(StateError, match="another device uses"):
        DeviceStore(tmp_path, "pi-1")
    store.save_note({"id": "pi-1"})
    store.close()
    with pytest.raises(StateError, match="belongs to 'pi-1', this device is 'pi-2'"):
        DeviceStore(tmp_path, "pi-2")
    DeviceStore(tmp_path, "pi-1").close()


def test_state_path_must_be_a_directory(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StateError, match="pass a directory"):
        DeviceStore(tmp_path / "file", "pi-1")


def test_export_error_and_metrics_come_from_the_child_process(tmp_path):
    with pytest.raises(ExportError, match=r"the export failed: .*run `edgefl export --state"):
        export_in_child(tmp_path, DataSource(data=str(tmp_path)))
    assert extract_export_metrics(
        {"accuracy_int8": 0.5, "tflite_bytes": 10, "peak_rss_mb": 1.0, "recipe": "x"}
    ) == {
        "accuracy_shipped_int8": 0.5,
        "tflite_bytes": 10.0,
        "export_rss_mb": 1.0,
    }


def test_later_boot_of_the_same_id_yields_to_the_earlier():
    def make_status(boot_id, born):
        return Status(
            client_id="pi-1", boot_id=boot_id, online=True, born=born, num_samples=1, version="0", ts=0.0
        )

    for earlier, later in [
        (make_status("a", 1.0), make_status("b", 2.0)),
        (make_status("b", 1.0), make_status("a", 2.0)),
        (make_status("a", 1.0), make_status("b", 1.0)),
    ]:
        assert not should_yield(earlier, later)
        assert should_yield(later, earlier)


def test_device_note_is_json(tmp_path):
    store = DeviceStore(tmp_path, "pi-1")
    store.save_note({"id": "pi-1", "data": "x.npz", "seed": 1, "federation": "home"})
    assert json.loads((tmp_path / "device.json").read_text())["federation"] == "home"
    store.close()


@pytest.mark.parametrize("name", ["lock", "crash.log"])
def test_link_in_the_state_directory_is_an_error_and_its_target_stays(tmp_path, name):
    target = tmp_path / "target"
    target.write_text("precious")
    state = tmp_path / "state"
    state.mkdir()
    (state / name).symlink_to(target)
    with pytest.raises(StateError, match="it is a symbolic link, expected a file; remove the link"):
        if name == "lock":
            DeviceStore(state, "pi-1")
        else:
            PlanTrials(state).start()
    assert target.read_text() == "precious"


def test_names_of_all_masked_sessions_fit_into_the_progress_of_a_device():
    session = "a" * 64
    finished = FinishedRound(
        session=session,
        round=1,
        phase="federate",
        num_samples=10,
        metrics={"loss": 0.5},
        update_bytes=10**9,
        masked_sessions=(session,) * MAX_MASKED_SESSIONS,
    )
    assert decode_json(FinishedRound, encode_json(finished)) == finished
