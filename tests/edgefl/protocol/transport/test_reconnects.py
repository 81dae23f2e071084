"""The log lines about reconnects."""

import logging

from edgefl.protocol.transport.reconnects import Reconnects

URL = "mqtt://a.local:1883"


def test_many_reconnects_in_a_short_time_are_a_warning_with_a_remedy():
    reconnects = Reconnects()
    lines = [reconnects.describe(URL, 29.0 * number) for number in range(12)]
    assert [level for level, _ in lines] == ([logging.INFO] * 4 + [logging.WARNING]) * 2 + [logging.INFO] * 2
    assert lines[0] == (logging.INFO, f"the link to the broker is up again at {URL}")
    assert "5 lost connections within 120 s" in lines[4][1]
    assert lines[4][1].endswith(f"; look at its log, or run `edgefl doctor --broker {URL}`")


def test_rare_reconnects_are_no_warning():
    reconnects = Reconnects()
    assert {reconnects.describe(URL, 31.0 * number)[0] for number in range(30)} == {logging.INFO}
