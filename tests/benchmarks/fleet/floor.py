"""One process of the fleet benchmark's floor: `floor serve|answer URL CA BYTES CLIENTS ROUNDS [FIRST]`.

It uses bare paho with QoS 1, without chunks, receipts, signatures and journal.

In each round the server publishes one message of BYTES and waits until every client has answered with a
message of the same size. The messages are random bytes. Nothing is aggregated or stored. A process of CLIENTS
clients runs the clients from number FIRST on.
"""

import json
import os
import sys
import threading
import time
from typing import Any
from urllib.parse import urlsplit

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion

from edgefl.base.system.host import read_peak_rss_mb

DEADLINE_S = 120.0
READY = "floor/ready"
DOWN = "floor/down"
UP = "floor/up"
END = "floor/end"


def connect(
    url: str, ca: str, name: str, topics: list[str], receive: Any
) -> tuple[paho.Client, threading.Event]:
    """Return a connected client whose messages go to `receive`, and an event that is set once the broker has
    accepted the subscription.
    """
    client = paho.Client(CallbackAPIVersion.VERSION2, client_id=name, protocol=paho.MQTTv311)
    subscribed_event = threading.Event()
    if ca:
        client.tls_set(ca)
    client.on_message = receive
    client.on_subscribe = lambda *_: subscribed_event.set()
    client.on_connect = lambda client, *_: client.subscribe([(topic, 1) for topic in topics])
    address = urlsplit(url)
    client.connect(str(address.hostname), address.port or 1883, keepalive=20)
    client.loop_start()
    return client, subscribed_event


def serve(url: str, ca: str, size: int, clients: int, rounds: int) -> dict[str, Any]:
    """Run the rounds, and return the seconds of each."""
    condition = threading.Condition()
    counts = {READY: 0, UP: 0}

    def receive(client: paho.Client, userdata: Any, message: paho.MQTTMessage) -> None:
        with condition:
            counts[message.topic.rpartition("/")[0]] += 1
            condition.notify_all()

    def wait(topic: str, count: int) -> None:
        with condition:
            if not condition.wait_for(lambda: counts[topic] >= count, DEADLINE_S):
                raise TimeoutError(f"{counts[topic]} of {count} messages on {topic}")

    client, subscribed_event = connect(url, ca, "floor-server", [f"{READY}/+", f"{UP}/+"], receive)
    subscribed_event.wait(DEADLINE_S)
    print("up", flush=True)
    wait(READY, clients)
    seconds = []
    model = os.urandom(size)
    for number in range(rounds):
        start = time.perf_counter()
        client.publish(DOWN, model, qos=1)
        wait(UP, clients * (number + 1))
        seconds.append(time.perf_counter() - start)
    client.publish(END, b"", qos=1).wait_for_publish(DEADLINE_S)
    client.disconnect()
    return {"seconds": seconds}


def answer(url: str, ca: str, size: int, clients: int, rounds: int, first: int) -> dict[str, Any]:
    """Run the clients until the server ends the rounds, and return the process's peak memory."""
    numbers = range(first, first + clients)
    ended = {number: threading.Event() for number in numbers}

    def make_receiver(number: int, update: bytes) -> Any:
        def receive(client: paho.Client, userdata: Any, message: paho.MQTTMessage) -> None:
            if message.topic == END:
                ended[number].set()
            else:
                client.publish(f"{UP}/{number}", update, qos=1)

        return receive

    links = [
        connect(url, ca, f"floor-{number}", [DOWN, END], make_receiver(number, os.urandom(size)))
        for number in numbers
    ]
    for number, (client, subscribed_event) in zip(numbers, links, strict=True):
        subscribed_event.wait(DEADLINE_S)
        client.publish(f"{READY}/{number}", b"", qos=1)
    for each in ended.values():
        if not each.wait(DEADLINE_S):
            raise TimeoutError("the server did not say that it is over")
    for client, _ in links:
        client.disconnect()
    return {"peak_rss_mb": read_peak_rss_mb()}


if __name__ == "__main__":
    role, url, ca, *numbers = sys.argv[1:]
    print(json.dumps((serve if role == "serve" else answer)(url, ca, *map(int, numbers))))
