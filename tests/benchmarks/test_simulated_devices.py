"""The simulated devices follow the protocol: a view accepts all messages, and every device state occurs."""

from collections import Counter

from click.testing import CliRunner

from edgefl.watch.monitor.view import FederationView, snapshot
from tests.benchmarks.__main__ import benchmarks
from tests.benchmarks.watching.simulated_devices import Fleet, list_round_messages


def test_simulated_rounds_follow_the_protocol():
    view = FederationView("fleet")
    fleet = Fleet(devices=100, period_s=5.0, round_s=20.0)
    for number in (1, 2):
        opened = 1000.0 + 20.0 * (number - 1)
        messages = list_round_messages(fleet, "s", number, opened)
        assert [due for due, *_ in messages] == sorted(due for due, *_ in messages)
        for due, topic, payload, _ in messages:
            view.take(topic, payload, opened + due)
    tree = snapshot(view, 1039.5)
    assert (tree["broken"], tree["round"], len(tree["history"]), len(tree["clusters"]["rounds"])) == (
        0,
        2,
        2,
        2,
    )
    assert Counter(device["state"] for device in tree["devices"]) == {
        "sent": 92,
        "silent": 2,
        "rejected": 2,
        "paused": 2,
        "offline": 2,
    }
    assert (
        sum(len(payload) for _, topic, payload, _ in messages if topic.endswith("/metrics")) / (4 * 98) < 400
    )


def test_help_has_an_example():
    assert (
        "python -m tests.benchmarks monitor --devices 500"
        in CliRunner().invoke(benchmarks, ["monitor", "--help"]).output
    )
