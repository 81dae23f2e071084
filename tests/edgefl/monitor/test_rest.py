"""A monitor's link takes messages in bursts."""

from edgefl.monitor import connection
from edgefl.monitor.connection import BURST_PAUSE_S, MIN_AWAKE_S, BurstPause


def test_a_thread_rests_after_a_message_and_is_awake_for_a_while_after_it(monkeypatch):
    now = [100.0]
    rests = []

    def sleep(seconds):
        rests.append(seconds)
        now[0] += seconds

    monkeypatch.setattr(connection.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(connection.time, "sleep", sleep)
    rest = BurstPause()
    rest()
    assert rests == [BURST_PAUSE_S]
    now[0] += MIN_AWAKE_S / 2
    rest()
    assert rests == [BURST_PAUSE_S]
    now[0] += MIN_AWAKE_S
    rest()
    assert rests == [BURST_PAUSE_S, BURST_PAUSE_S]
