"""The state of a round goes to the disk when the next one's tasks are out, and before anything that needs it
there.
"""

import threading

import pytest

from edgefl.errors import StateError
from edgefl.storage.aggregator_directory import AggregatorFiles
from edgefl.storage.checkpoint import decode_server_state
from edgefl.types import ServerState
from mqtt_broker.aggregator import saving
from mqtt_broker.aggregator.saving import Saving

DEADLINE_S = 40.0
STATE_2 = ServerState(2, "federate", {}, {})


@pytest.mark.parametrize("how", ["tasks_out", "wait", "after a moment"])
def test_what_must_be_there_first_the_state_and_then_what_it_frees(how, tmp_path, monkeypatch):
    monkeypatch.setattr(saving, "LATER_S", 0.0 if how == "after a moment" else 10 * DEADLINE_S)
    said = []
    freed = threading.Event()

    def then():
        said.append(("then", AggregatorFiles(tmp_path).server_state.exists()))
        freed.set()

    made = Saving(lambda: said.append(("before", AggregatorFiles(tmp_path).server_state.exists())))
    made.wait()
    made.begin(STATE_2, tmp_path, then)
    if how != "after a moment":
        assert said == []
    if how == "tasks_out":
        made.tasks_out()
    elif how == "wait":
        made.wait()
    assert freed.wait(DEADLINE_S)
    assert said == [("before", False), ("then", True)]
    assert decode_server_state(AggregatorFiles(tmp_path).server_state.read_bytes()).round == 2
    made.wait()


def test_what_goes_wrong_is_told_to_who_waits_and_frees_nothing(tmp_path):
    def before():
        raise StateError("the disk is full; free some space")

    made = Saving(before)
    said = []
    made.begin(STATE_2, tmp_path, lambda: said.append("then"))
    with pytest.raises(StateError, match="full"):
        made.wait()
    assert said == [] and not AggregatorFiles(tmp_path).server_state.exists()
