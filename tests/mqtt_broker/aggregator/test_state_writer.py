"""The state of a round is saved after the tasks of the next round are sent, and after another write that
must come first.
"""

import pytest

from edgefl.base.errors import StateError
from edgefl.base.storage.aggregator_directory import AggregatorFiles
from edgefl.base.types import ServerState
from edgefl.learning.checkpoint import decode_server_state
from mqtt_broker.aggregator import state_writer
from mqtt_broker.aggregator.state_writer import StateWriter

DEADLINE_S = 40.0
STATE_2 = ServerState(round=2, phase="federate", models={})


@pytest.mark.parametrize("trigger", ["tasks_out", "wait", "after a moment"])
def test_state_is_saved_after_the_write_that_must_come_first(trigger, tmp_path, monkeypatch):
    monkeypatch.setattr(
        state_writer, "MAX_SAVE_DELAY_S", 0.0 if trigger == "after a moment" else 10 * DEADLINE_S
    )
    calls = []
    writer = StateWriter(lambda: calls.append(AggregatorFiles(tmp_path).server_state.exists()))
    writer.wait()
    writer.begin(STATE_2, tmp_path)
    if trigger != "after a moment":
        assert calls == []
    if trigger == "tasks_out":
        writer.release()
    if trigger == "wait":
        writer.wait()
    else:
        writer._last.result(DEADLINE_S)
    assert calls == [False]
    assert decode_server_state(AggregatorFiles(tmp_path).server_state.read_bytes()).round == 2
    writer.wait()


def test_error_of_the_first_write_reaches_the_caller_and_saves_nothing(tmp_path):
    def fail():
        raise StateError("the disk is full; free some space")

    writer = StateWriter(fail)
    writer.begin(STATE_2, tmp_path)
    with pytest.raises(StateError, match="full"):
        writer.wait()
    assert not AggregatorFiles(tmp_path).server_state.exists()
