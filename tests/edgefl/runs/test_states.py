"""States of clients on disk: what a crash at each moment leaves, by hand."""

import numpy as np
import pytest

from edgefl.errors import StateError
from edgefl.runs.states import FileStates
from edgefl.storage.run_directory import RunFiles
from edgefl.types import ClientState


@pytest.fixture
def files(tmp_path):
    files = RunFiles(tmp_path)
    files.clients.mkdir()
    return files


def state(value: float) -> ClientState:
    return ClientState({"w": np.full(3, value, np.float32)}, {"rounds": value})


def value(states: FileStates, client_id: str) -> float:
    return float(states[client_id].arrays["w"][0])


def names(directory):
    return sorted(path.name for path in directory.iterdir())


def test_a_crash_after_a_checkpoint_goes_back_to_it(files):
    """Round 1: a and b are written, checkpoint. Rounds 2 and 3: a twice, c once, then the crash."""
    states = FileStates(files, 0)
    states["a"] = state(1)
    states["b"] = state(2)
    states.commit()
    states.set_round(2)
    states["a"] = state(3)
    states.set_round(3)
    states["a"] = state(4)
    states["c"] = state(5)
    # a.2 is what nobody needs
    assert names(files.clients) == [f"{name}.safetensors" for name in ("a.1", "a.3", "b.1", "c.3")]
    assert [value(states, each) for each in "abc"] == [4, 2, 5]
    again = FileStates(files, 1)
    assert list(again) == ["a", "b"]
    assert [value(again, each) for each in again] == [1, 2]
    assert names(files.clients) == ["a.1.safetensors", "b.1.safetensors"]


def test_a_crash_between_the_checkpoint_and_what_it_makes_superfluous(files):
    states = FileStates(files, 0)
    states["a"] = state(1)
    states.commit()
    states.set_round(2)
    states["a"] = state(2)  # the server state of round 2 is written, `keep` is not called
    again = FileStates(files, 2)
    assert value(again, "a") == 2
    assert names(files.clients) == ["a.2.safetensors"]


def test_a_checkpoint_removes_what_it_replaces(files):
    states = FileStates(files, 4)
    for value_ in (1, 2):  # the same round twice, as when a client answers again
        states["a"] = state(value_)
    states.commit()
    states.set_round(6)
    states["a"] = state(3)
    states.commit()
    assert names(files.clients) == ["a.6.safetensors"]
    assert value(FileStates(files, 6), "a") == 3


def test_a_state_that_was_half_written_is_removed_and_foreign_files_are_left(files):
    (files.clients / ".a.2.safetensors.x1y2z3").write_bytes(b"half")
    (files.clients / "notes.safetensors").write_bytes(b"mine")
    assert len(FileStates(files, 2)) == 0
    assert names(files.clients) == ["notes.safetensors"]


def test_clients_that_keep_nothing_have_no_file_until_they_keep_something(files):
    states = FileStates(files, 0)
    states["a"] = ClientState()
    assert (names(files.clients), "a" in states, len(states)) == ([], False, 0)
    with pytest.raises(KeyError):
        states["a"]
    states["a"] = ClientState(scalars={"seen": 1.0})
    states["a"] = ClientState()  # an empty state after one that was not is a state
    assert states["a"] == ClientState()
    del states["a"]
    with pytest.raises(KeyError):
        del states["a"]
    assert names(files.clients) == []


def test_ids_with_dots_are_ids(files):
    states = FileStates(files, 0)
    states["pi-1.local"] = state(7)
    states.commit()
    assert dict(FileStates(files, 1)).keys() == {"pi-1.local"}


def test_a_damaged_state_names_its_file(files):
    states = FileStates(files, 0)
    states["a"] = state(1)
    (files.clients / "a.1.safetensors").write_bytes(b"\0" * 40)
    with pytest.raises(StateError, match=r"a\.1\.safetensors: this file is not a client state"):
        states["a"]


def test_a_directory_that_is_gone(files):
    states = FileStates(files, 0)
    files.clients.rmdir()
    files.clients.write_text("a file in its place")
    with pytest.raises(StateError, match=r"cannot write .*a\.1\.safetensors: .*free some space"):
        states["a"] = state(1)
