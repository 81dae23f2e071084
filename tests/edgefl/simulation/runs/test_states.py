"""States of clients on disk, and which of them remain after a crash at each moment."""

import numpy as np
import pytest

from edgefl.base.errors import StateError
from edgefl.base.storage.run_directory import RunFiles
from edgefl.base.types import ClientState
from edgefl.learning.algorithms.papers.apfl import PersonalShare
from edgefl.simulation.runs.states import FileStates, load_committed_states


@pytest.fixture
def files(tmp_path):
    files = RunFiles(tmp_path)
    files.clients.mkdir()
    return files


def make_state(value: float) -> ClientState:
    return ClientState({"w": np.full(3, value, np.float32)}).with_record(PersonalShare(value))


def read_value(states: FileStates, client_id: str) -> float:
    return float(states[client_id].arrays["w"][0])


def list_names(directory):
    return sorted(path.name for path in directory.iterdir())


def test_states_return_to_the_last_checkpoint_after_a_crash(files):
    """Round 1 writes a and b, then a checkpoint. Rounds 2 and 3 write a twice and c once before the crash."""
    states = FileStates(files, 0)
    states["a"] = make_state(1)
    states["b"] = make_state(2)
    states.commit()
    states.set_round(2)
    states["a"] = make_state(3)
    states.set_round(3)
    states["a"] = make_state(4)
    states["c"] = make_state(5)
    # a.2 is no longer needed
    assert list_names(files.clients) == [f"{name}.safetensors" for name in ("a.1", "a.3", "b.1", "c.3")]
    assert [read_value(states, each) for each in "abc"] == [4, 2, 5]
    restored = FileStates(files, 1)
    assert list(restored) == ["a", "b"]
    assert [read_value(restored, each) for each in restored] == [1, 2]
    assert list_names(files.clients) == ["a.1.safetensors", "b.1.safetensors"]


def test_committed_states_are_read_without_a_change_of_the_directory(files):
    states = FileStates(files, 0)
    states["a"] = make_state(1)
    states["b"] = make_state(2)
    states.commit()
    states.set_round(2)
    states["a"] = make_state(3)
    before = list_names(files.clients)
    committed = load_committed_states(files, 1)
    assert {name: float(state.arrays["w"][0]) for name, state in committed.items()} == {"a": 1, "b": 2}
    assert float(load_committed_states(files, 2)["a"].arrays["w"][0]) == 3
    assert list_names(files.clients) == before
    files.client_state(client="b", round=1).write_bytes(b"damaged")
    with pytest.raises(StateError, match=r"b\.1\.safetensors"):
        load_committed_states(files, 1)


def test_crash_between_server_state_and_commit_keeps_new_states(files):
    states = FileStates(files, 0)
    states["a"] = make_state(1)
    states.commit()
    states.set_round(2)
    states["a"] = make_state(2)  # the server state of round 2 is written, `commit` is not called
    restored = FileStates(files, 2)
    assert read_value(restored, "a") == 2
    assert list_names(files.clients) == ["a.2.safetensors"]


def test_checkpoint_removes_replaced_states(files):
    states = FileStates(files, 4)
    for number in (1, 2):  # the same round twice, as when a client repeats its answer
        states["a"] = make_state(number)
    states.commit()
    states.set_round(6)
    states["a"] = make_state(3)
    states.commit()
    assert list_names(files.clients) == ["a.6.safetensors"]
    assert read_value(FileStates(files, 6), "a") == 3


def test_partial_files_are_removed_and_foreign_files_stay(files):
    (files.clients / ".a.2.safetensors.x1y2z3").write_bytes(b"half")
    (files.clients / "notes.safetensors").write_bytes(b"mine")
    assert len(FileStates(files, 2)) == 0
    assert list_names(files.clients) == ["notes.safetensors"]


def test_client_without_state_has_no_file_until_it_stores_one(files):
    states = FileStates(files, 0)
    states["a"] = ClientState()
    assert (list_names(files.clients), "a" in states, len(states)) == ([], False, 0)
    with pytest.raises(KeyError):
        states["a"]
    states["a"] = ClientState().with_record(PersonalShare(alpha=1.0))
    states["a"] = ClientState()  # an empty state that replaces a state is stored
    assert states["a"] == ClientState()
    del states["a"]
    with pytest.raises(KeyError):
        del states["a"]
    assert list_names(files.clients) == []


def test_client_ids_may_contain_dots(files):
    states = FileStates(files, 0)
    states["pi-1.local"] = make_state(7)
    states.commit()
    assert dict(FileStates(files, 1)).keys() == {"pi-1.local"}


def test_damaged_state_error_names_its_file(files):
    states = FileStates(files, 0)
    states["a"] = make_state(1)
    (files.clients / "a.1.safetensors").write_bytes(b"\0" * 40)
    with pytest.raises(StateError, match=r"a\.1\.safetensors: this file is not a client state"):
        states["a"]


def test_missing_directory_is_reported_as_a_write_error(files):
    states = FileStates(files, 0)
    files.clients.rmdir()
    files.clients.write_text("a file in its place")
    with pytest.raises(StateError, match=r"cannot write .*a\.1\.safetensors: .*free some space"):
        states["a"] = make_state(1)
