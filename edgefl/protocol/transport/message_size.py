"""Finds the size of the messages that a broker delivers.

A broker with a limit either drops larger messages or closes the connection of their sender. MQTT 3.1.1
reports neither. A message to itself shows both.
"""

import contextlib
import secrets
import time
from collections.abc import Callable, Iterator

from edgefl.base.errors import LinkError
from edgefl.protocol.transport.link import Connected, Link, Message

PROBE_TIMEOUT_S = 180.0
"""Longest wait for a message of 240 KiB, which a link of 50 kbit/s needs 80 s to send and to receive."""
MIN_MESSAGE_BYTES = 32 * 1024
"""Smallest size to try. With a smaller limit, a broker refuses other messages of the protocol too."""
FIRST_TIMEOUT_S = 20.0
"""Longest wait for an empty message."""


def find_message_size(
    open_link: Callable[[], Link], choose_topic: Callable[[bytes], str], largest: int
) -> int:
    """Return the size of the largest messages that a broker delivers.

    The sizes to try are `largest`, its half, a quarter and so on. Each size needs a connection, because a
    broker may close the connection of a message that is too large.

    Args:
        open_link: connects to the broker.
        choose_topic: returns a topic for a payload of random bytes and zeros. This client may write and read
            the topic, and the payload has no other meaning there.
        largest: size of the first message in bytes, a multiple of 1024.

    Returns:
        The size in bytes, a multiple of 1024. 0 if no such size of at least 32 KiB is delivered.

    Raises:
        LinkError: the broker cannot be reached, or delivers no message on the topic.
    """
    sizes = _list_sizes(largest)
    return next((size for size in sizes if _is_delivered(open_link, choose_topic, size)), 0)


def describe_limit(url: str, requested: int, fitting: int) -> tuple[str, str]:
    """Return the problem with the limit of a broker, and its remedy.

    Args:
        requested: `chunk_bytes` of the federation.
        fitting: size that the broker delivers. 0 if it is unknown.
    """
    limit = "raise its limit (mosquitto: max_packet_size 262144 and message_size_limit 0)"
    problem = f"{url} does not deliver messages of {requested} bytes (chunk_bytes)"
    if not fitting:
        return problem, limit
    return problem, f"set chunk_bytes = {fitting} in [federation], or {limit}"


def _list_sizes(largest: int) -> Iterator[int]:
    size = largest
    while size >= min(largest, MIN_MESSAGE_BYTES):
        yield size
        size = size // 2048 * 1024


def _is_delivered(open_link: Callable[[], Link], choose_topic: Callable[[bytes], str], size: int) -> bool:
    payload = secrets.token_bytes(16).ljust(size, b"\0")
    topic = choose_topic(payload)
    link = open_link()
    with contextlib.ExitStack() as stack:
        stack.callback(link.close, 0.0)  # The acknowledgement of a message that was dropped may never come
        link.subscribe(topic)
        link.publish(topic, b"")
        if _await_payload(link, topic, payload, FIRST_TIMEOUT_S) is None:
            raise LinkError(
                f"{link.url} closes the connection of an empty message with QoS 1 on {topic}; allow QoS 1 "
                "(mosquitto: max_qos 1 or 2), or look at its log"
            )
        # A broker keeps the order of one client, so the empty message arrives after the first or without it
        link.publish(topic, payload)
        link.publish(topic, b"")
        return bool(_await_payload(link, topic, payload, PROBE_TIMEOUT_S))


def _await_payload(link: Link, topic: str, payload: bytes, timeout_s: float) -> bytes | None:
    """Return the payload or an empty one, whichever arrives first. None if the connection ended.

    Raises:
        LinkError: neither arrives in time.
    """
    until = time.monotonic() + timeout_s
    while time.monotonic() < until:
        event = link.get(0.1)
        if isinstance(event, Connected) or not link.is_connected:
            return None
        if isinstance(event, Message) and event.payload in (payload, b""):
            return event.payload
    raise LinkError(
        f"{link.url} does not deliver a message on {topic} within {timeout_s:g} s; check its access list"
    )
