"""The state of a round goes to the disk when the next one's tasks are out, and after what must be on the disk
first.
"""

import pytest

from edgefl.errors import StateError
from edgefl.storage.aggregator_directory import AggregatorFiles
from edgefl.storage.checkpoint import decode_server_state
from edgefl.types import ServerState
from mqtt_broker.aggregator import state_writer
from mqtt_broker.aggregator.state_writer import StateWriter

DEADLINE_S = 40.0
STATE_2 = ServerState(2, "federate", {}, {})


@pytest.mark.parametrize("how", ["tasks_out", "wait", "after a moment"])
def test_the_state_is_saved_after_what_must_be_on_the_disk_first(how, tmp_path, monkeypatch):
    monkeypatch.setattr(state_writer, "MAX_SAVE_DELAY_S", 0.0 if how == "after a moment" else 10 * DEADLINE_S)
    calls = []
    made = StateWriter(lambda: calls.append(AggregatorFiles(tmp_path).server_state.exists()))
    made.wait()
    made.begin(STATE_2, tmp_path)
    if how != "after a moment":
        assert calls == []
    if how == "tasks_out":
        made.release()
    if how == "wait":
        made.wait()
    else:
        made._last.result(DEADLINE_S)
    assert calls == [False]
    assert decode_server_state(AggregatorFiles(tmp_path).server_state.read_bytes()).round == 2
    made.wait()


def test_an_error_reaches_the_caller_that_waits_and_no_state_is_saved(tmp_path):
    def before():
        raise StateError("the disk is full; free some space")

    made = StateWriter(before)
    made.begin(STATE_2, tmp_path)
    with pytest.raises(StateError, match="full"):
        made.wait()
    assert not AggregatorFiles(tmp_path).server_state.exists()
