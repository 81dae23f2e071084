"""Fail-over of a link between real brokers, acknowledgements, and refused subscriptions."""

import contextlib
import socket
import threading
from dataclasses import dataclass

import pytest

from edgefl.base.errors import LinkError
from edgefl.protocol.transport.acknowledgements import Acknowledgements
from edgefl.protocol.transport.failover import BrokerOrder, explain_refused
from edgefl.protocol.transport.link import Connected, Link, Message
from edgefl.protocol.transport.subscriptions import RETRY_S, Subscriptions
from edgefl.protocol.wire.url import parse_urls
from mqtt_broker.broker.dev_broker import LOOPBACK_HOST, find_mosquitto
from tests.support.broker import mosquitto
from tests.support.ports import choose_port

needs_mosquitto = pytest.mark.skipif(find_mosquitto() is None, reason="mosquitto is not installed")
NOT_AUTHORIZED = 0x87
QUOTA = 0x97
FAILURE = 0x80


@dataclass(frozen=True)
class Answer:
    value: int

    @property
    def is_failure(self):
        return self.value >= 0x80


@needs_mosquitto
@pytest.mark.parametrize("protocol", ["", pytest.param("?protocol=5", marks=pytest.mark.slow)])
def test_link_fails_over_with_subscriptions_and_unsent_messages(protocol, until):
    """Three independent brokers: the first is down at the start, and the second goes down later."""
    ports = [choose_port() for _ in range(3)]
    urls = [f"mqtt://{LOOPBACK_HOST}:{port}{protocol}" for port in ports]
    with contextlib.ExitStack() as third, contextlib.ExitStack() as second:
        second.enter_context(mosquitto(ports[1]))
        third.enter_context(mosquitto(ports[2]))
        link = Link(",".join(urls), "one")
        assert link.url == urls[1]
        link.subscribe("a/+")
        second.close()
        link.publish("a/late", b"kept")
        assert until(link, lambda event: isinstance(event, Connected)) == Connected(urls[2])
        assert link.url == urls[2]
        other = Link(urls[2], "two")
        other.subscribe("a/late")
        assert link.wait_in_flight(1, 10.0)
        link.publish("a/new", b"new")
        assert (
            until(link, lambda event: isinstance(event, Message) and event.topic == "a/new").payload == b"new"
        )
        with mosquitto(ports[0]):  # back to the first broker, which is up now
            third.close()
            assert until(link, lambda event: isinstance(event, Connected)) == Connected(urls[0])
            link.close()
            other.close(0.0)


def test_unreachable_brokers_are_named_without_passwords():
    ports = [choose_port(), choose_port()]
    with pytest.raises(LinkError) as caught:
        Link(f"mqtt://pi:s3cret@{LOOPBACK_HOST}:{ports[0]},mqtt://{LOOPBACK_HOST}:{ports[1]}", "one")
    error = str(caught.value)
    assert error.startswith(f"none of 2 brokers: no broker at mqtt://...@{LOOPBACK_HOST}:{ports[0]}")
    assert f"no broker at mqtt://{LOOPBACK_HOST}:{ports[1]}" in error
    assert error.endswith("check host, port and firewall")


@needs_mosquitto
def test_silent_first_broker_is_skipped(until):
    port = choose_port()
    with socket.create_server((LOOPBACK_HOST, 0)) as silent, mosquitto(port):
        link = Link(
            f"mqtt://{LOOPBACK_HOST}:{silent.getsockname()[1]},mqtt://{LOOPBACK_HOST}:{port}",
            "one",
            timeout_s=2.0,
        )
        link.subscribe("a")
        link.publish("a", b"here")
        assert until(link, lambda event: True) == Message(topic="a", payload=b"here")
        assert link.close()


def test_broker_order_visits_all_brokers_before_repeating_one():
    brokers = parse_urls("mqtt://a,mqtt://b,mqtt://c,mqtt://d")
    order = BrokerOrder(brokers, brokers[1])
    visited = [order.advance() for _ in range(8)]
    assert visited[3] == brokers[1]
    assert set(visited[:4]) == set(brokers)
    assert visited[4:] == visited[:4]
    first_hosts = {
        tuple(broker.host for broker in (BrokerOrder(brokers, brokers[0]).advance(),)) for _ in range(200)
    }
    assert len(first_hosts) == 3  # links do not all choose the same broker


def test_acknowledgement_may_arrive_before_the_send_is_recorded():
    acknowledgements = Acknowledgements()
    acknowledgements.record_sent(1, "a")
    acknowledgements.record_answer(3)  # before the thread of the publisher records it
    assert len(acknowledgements) == 1
    acknowledgements.record_sent(3, "c")
    assert len(acknowledgements) == 1
    acknowledgements.record_answer(1)
    assert (len(acknowledgements), acknowledgements.take_refused()) == (0, "")
    acknowledgements.record_answer(4, "no")
    acknowledgements.record_sent(4, "d")
    for number, topic in enumerate("efghi", 5):
        acknowledgements.record_sent(number, topic)
        acknowledgements.record_answer(number, "never")
    assert len(acknowledgements) == 0
    assert acknowledgements.take_refused() == "d (no), e (never), f (never) and more"
    assert acknowledgements.take_refused() == ""


def test_unexpected_acknowledgements_are_forgotten():
    acknowledgements = Acknowledgements()
    for number in range(1, 1000):  # of QoS 0
        acknowledgements.record_answer(number)
    acknowledgements.record_sent(1, "a")  # the numbers start again
    assert len(acknowledgements) == 1
    acknowledgements.record_answer(1)
    assert len(acknowledgements) == 0


def make_subscriptions(*answers, present=1):
    """Return subscriptions whose broker gives these answers in turn, and the list of requests."""
    requests = []
    remaining = list(answers)
    threads = []

    def send(filters):
        requests.append(filters)
        if remaining:
            # like MQTT clients: on another thread, after the number was returned
            threads.append(
                threading.Thread(
                    target=subscriptions.record_answer,
                    args=(len(requests), [remaining.pop(0)] * len(filters)),
                )
            )
            threads[-1].start()
        return len(requests)

    subscriptions = Subscriptions(send, lambda: present, Acknowledgements())
    return subscriptions, requests


def test_temporary_refusal_is_retried_and_permanent_refusal_is_an_error():
    subscriptions, requests = make_subscriptions(Answer(FAILURE), Answer(QUOTA), Answer(1))
    subscriptions.add("mqtt://x", {"a": 1, "b": 1}, 10.0)
    assert requests == [[("a", 1), ("b", 1)]] * 3
    assert subscriptions.filters == {"a": 1, "b": 1}
    subscriptions, requests = make_subscriptions(Answer(NOT_AUTHORIZED))
    with pytest.raises(LinkError, match=r"mqtt://x refused the subscription a: .*access list"):
        subscriptions.add("mqtt://x", {"a": 1}, 10.0)
    assert (subscriptions.filters, len(requests)) == ({}, 1)
    subscriptions, requests = make_subscriptions(Answer(FAILURE))
    with pytest.raises(LinkError, match="refused the subscription a"):
        subscriptions.add("mqtt://x", {"a": 1}, 1.5 * RETRY_S)  # too short for another answer
    assert len(requests) == 1
    subscriptions, _ = make_subscriptions()
    with pytest.raises(LinkError, match="did not answer a subscription within"):
        subscriptions.add("mqtt://x", {"a": 1}, 0.1)
    subscriptions, requests = make_subscriptions(
        present=0
    )  # without a connection, the next connection subscribes
    subscriptions.add("mqtt://x", {"a": 1}, 10.0)
    assert (subscriptions.filters, len(requests)) == ({"a": 1}, 1)


def test_refusal_after_a_reconnect_is_retried_or_an_error():
    subscriptions, _ = make_subscriptions(Answer(1))
    subscriptions.add("mqtt://x", {"a": 1}, 10.0)
    sent = threading.Event()
    original_send = subscriptions._send
    subscriptions._send = lambda filters: sent.set() or original_send(filters)
    subscriptions.record_answer(99, [Answer(FAILURE)])
    assert sent.wait(20.0)
    with pytest.raises(LinkError, match="refused a subscription that it had granted"):
        subscriptions.record_answer(100, [Answer(NOT_AUTHORIZED)])


def test_silent_tls_broker_error_mentions_a_revoked_certificate():
    silent = str(explain_refused("mqtts://a.local:8883", "", 10.0))
    assert "within 10 s" in silent and "revoked or expired" in silent
    assert "start one" in str(explain_refused("mqtt://a.local:1883", "", 10.0))


@pytest.mark.parametrize(
    ("reason", "remedy"),
    [
        ("Not authorized", "check user and password in the url"),
        ("Bad user name or password", "check user and password in the url"),
        ("Unsupported protocol version", "leave ?protocol=5 out of the url"),
        ("Retain not supported", "allow retained messages (mosquitto: retain_available true)"),
        ("QoS not supported", "allow QoS 1 (mosquitto: max_qos 1 or 2)"),
        ("Server busy", "look at the broker's log"),
    ],
)
def test_refusal_has_the_remedy_of_its_reason(reason, remedy):
    error = explain_refused("mqtt://a.local:1883", reason, 10.0)
    assert str(error) == f"the broker at mqtt://a.local:1883 refused: {reason}; {remedy}"
