"""Monitors read messages in bursts."""

from edgefl.watch.monitor import connection
from edgefl.watch.monitor.connection import BURST_PAUSE_S, MIN_AWAKE_S, BurstPause


def test_burst_pause_sleeps_only_after_the_minimum_awake_time(monkeypatch):
    now = [100.0]
    pauses = []

    def sleep(seconds):
        pauses.append(seconds)
        now[0] += seconds

    monkeypatch.setattr(connection.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(connection.time, "sleep", sleep)
    pause = BurstPause()
    pause()
    assert pauses == [BURST_PAUSE_S]
    now[0] += MIN_AWAKE_S / 2
    pause()
    assert pauses == [BURST_PAUSE_S]
    now[0] += MIN_AWAKE_S
    pause()
    assert pauses == [BURST_PAUSE_S, BURST_PAUSE_S]
