"""A link's fail-over over real brokers, and what it remembers of answers and refusals."""

import contextlib
import socket
import threading
from dataclasses import dataclass

import pytest

from edgefl.errors import LinkError
from edgefl.transport.acknowledgements import Acknowledgements
from edgefl.transport.failover import BrokerOrder, explain_refused
from edgefl.transport.link import Connected, Link, Message
from edgefl.transport.subscriptions import Subscriptions
from edgefl.wire.url import parse_urls
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
@pytest.mark.parametrize("protocol", ["", "?protocol=5"])
def test_a_link_goes_over_to_the_next_broker_with_its_subscriptions_and_what_it_published(protocol, until):
    """Three brokers that know nothing of each other; the first is not there at the start, and the one that is
    taken then goes.
    """
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
        with mosquitto(ports[0]):  # and back to the first, which has come up meanwhile
            third.close()
            assert until(link, lambda event: isinstance(event, Connected)) == Connected(urls[0])
            link.close()
            other.close(0.0)


def test_without_any_broker_each_is_named_and_no_password():
    ports = [choose_port(), choose_port()]
    with pytest.raises(LinkError) as caught:
        Link(f"mqtt://pi:s3cret@{LOOPBACK_HOST}:{ports[0]},mqtt://{LOOPBACK_HOST}:{ports[1]}", "one")
    said = str(caught.value)
    assert said.startswith(f"none of 2 brokers: no broker at mqtt://...@{LOOPBACK_HOST}:{ports[0]}")
    assert f"no broker at mqtt://{LOOPBACK_HOST}:{ports[1]}" in said
    assert said.endswith("check host, port and firewall")


@needs_mosquitto
def test_a_first_broker_that_says_nothing_is_passed_over(until):
    port = choose_port()
    with socket.create_server((LOOPBACK_HOST, 0)) as silent, mosquitto(port):
        link = Link(
            f"mqtt://{LOOPBACK_HOST}:{silent.getsockname()[1]},mqtt://{LOOPBACK_HOST}:{port}",
            "one",
            timeout_s=2.0,
        )
        link.subscribe("a")
        link.publish("a", b"here")
        assert until(link, lambda event: True) == Message("a", b"here")
        assert link.close()


def test_turns_visit_every_broker_before_any_again():
    brokers = parse_urls("mqtt://a,mqtt://b,mqtt://c,mqtt://d")
    turns = BrokerOrder(brokers, brokers[1])
    visited = [turns.advance() for _ in range(8)]
    assert visited[3] == brokers[1]
    assert set(visited[:4]) == set(brokers)
    assert visited[4:] == visited[:4]
    seen = {
        tuple(broker.host for broker in (BrokerOrder(brokers, brokers[0]).advance(),)) for _ in range(200)
    }
    assert len(seen) == 3  # not everybody goes to the same one


def test_acknowledgements_in_either_order():
    made = Acknowledgements()
    made.record_sent(1, "a")
    made.record_answer(3)  # before the publisher's thread could say so
    assert len(made) == 1
    made.record_sent(3, "c")
    assert len(made) == 1
    made.record_answer(1)
    assert (len(made), made.take_refused()) == (0, "")
    made.record_answer(4, "no")
    made.record_sent(4, "d")
    for number, topic in enumerate("efghi", 5):
        made.record_sent(number, topic)
        made.record_answer(number, "never")
    assert len(made) == 0
    assert made.take_refused() == "d (no), e (never), f (never) and more"
    assert made.take_refused() == ""


def test_answers_to_messages_that_nobody_waits_for_are_forgotten():
    made = Acknowledgements()
    for number in range(1, 1000):  # of QoS 0
        made.record_answer(number)
    made.record_sent(1, "a")  # the numbers began anew
    assert len(made) == 1
    made.record_answer(1)
    assert len(made) == 0


def answering(*answers, present=1):
    """Return subscriptions whose broker gives these answers one after the other, and what was asked."""
    asked = []
    left = list(answers)
    threads = []

    def send(filters):
        asked.append(filters)
        if left:
            # as MQTT clients do: on another thread, after the number was returned
            threads.append(
                threading.Thread(target=made.record_answer, args=(len(asked), [left.pop(0)] * len(filters)))
            )
            threads[-1].start()
        return len(asked)

    made = Subscriptions(send, lambda: present, Acknowledgements())
    return made, asked


def test_a_refusal_that_may_pass_is_asked_again_and_one_for_good_is_an_error():
    made, asked = answering(Answer(FAILURE), Answer(QUOTA), Answer(1))
    made.add("mqtt://x", {"a": 1, "b": 1}, 10.0)
    assert asked == [[("a", 1), ("b", 1)]] * 3
    assert made.filters == {"a": 1, "b": 1}
    made, asked = answering(Answer(NOT_AUTHORIZED))
    with pytest.raises(LinkError, match=r"mqtt://x refused the subscription a: .*access list"):
        made.add("mqtt://x", {"a": 1}, 10.0)
    assert (made.filters, len(asked)) == ({}, 1)
    made, asked = answering(Answer(FAILURE), Answer(FAILURE))
    with pytest.raises(LinkError, match="refused the subscription a"):
        made.add("mqtt://x", {"a": 1}, 0.6)
    made, _ = answering()
    with pytest.raises(LinkError, match="did not answer a subscription within"):
        made.add("mqtt://x", {"a": 1}, 0.1)
    made, asked = answering(present=0)  # no connection now: the next one subscribes
    made.add("mqtt://x", {"a": 1}, 10.0)
    assert (made.filters, len(asked)) == ({"a": 1}, 1)


def test_a_subscription_that_is_refused_after_a_reconnect_is_asked_again_or_an_error():
    made, _ = answering(Answer(1))
    made.add("mqtt://x", {"a": 1}, 10.0)
    sent = threading.Event()
    plain = made._send
    made._send = lambda filters: sent.set() or plain(filters)
    made.record_answer(99, [Answer(FAILURE)])
    assert sent.wait(20.0)
    with pytest.raises(LinkError, match="refused a subscription that it had granted"):
        made.record_answer(100, [Answer(NOT_AUTHORIZED)])


def test_a_broker_with_keys_that_says_nothing_may_have_a_certificate_on_its_list():
    silent = str(explain_refused("mqtts://a.local:8883", "", 10.0))
    assert "within 10 s" in silent and "revoked or expired" in silent
    assert "start one" in str(explain_refused("mqtt://a.local:1883", "", 10.0))
