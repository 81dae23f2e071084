"""A monitor's link takes messages in bursts."""

from edgefl.monitor import connection
from edgefl.monitor.connection import REST_EACH_S, REST_S, Rest


def test_a_thread_rests_after_a_message_and_is_awake_for_a_while_after_it(monkeypatch):
    now = [100.0]
    rests = []

    def sleep(seconds):
        rests.append(seconds)
        now[0] += seconds

    monkeypatch.setattr(connection.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(connection.time, "sleep", sleep)
    rest = Rest()
    rest()
    assert rests == [REST_S]
    now[0] += REST_EACH_S / 2
    rest()
    assert rests == [REST_S]
    now[0] += REST_EACH_S
    rest()
    assert rests == [REST_S, REST_S]
