"""Checks of the broker and of the federations on it, over a connection of one's own."""

import secrets
import time
from collections.abc import Iterator

from edgefl.doctor.check_result import CheckResult
from edgefl.errors import LinkError, WireError
from edgefl.security.enrolment import Enrolment, tls_context
from edgefl.security.trust import Trust
from edgefl.transport.link import Link, Message
from edgefl.wire.chunks import CHUNK_BYTES
from edgefl.wire.messages import JOINING, STOPPED, Claim, State
from edgefl.wire.strict_json import decode_json, encode_json
from edgefl.wire.topics import Topics, parse_topic

WAIT_S = 3.0
SUBSCRIBE_S = 10.0
SETTLE_S = 0.5
NAME = "doctor"


def check_broker(url: str, enrolment: Enrolment | None, federation: str) -> Iterator[CheckResult]:
    """Yield what is found of connection, access, packet size and federations.

    Ends at the first that leaves nothing more to ask.
    """
    client_id = enrolment.client_id if enrolment else f"{NAME}-{secrets.token_hex(4)}"
    began = time.monotonic()
    try:
        context = tls_context(enrolment) if enrolment else None
        link = Link(url, f"edgefl-{NAME}-{secrets.token_hex(8)}", context=context)
    except LinkError as error:
        yield _failed("broker", error)
        return
    try:
        yield CheckResult("broker", "ok", f"{link.url} in {1000 * (time.monotonic() - began):.0f} ms")
        topics = Topics(federation or NAME)
        yield _echo(link, topics, client_id)
        yield _packet(link, topics, client_id)
        yield from _federations(link, federation, enrolment)
    except LinkError as error:
        yield _failed("access", error)
    finally:
        link.close(1.0)


def _failed(check: str, error: LinkError) -> CheckResult:
    problem, _, remedy = str(error).rpartition("; ")
    return CheckResult(check, "fail", problem or str(error), remedy)


def _echo(link: Link, topics: Topics, client_id: str) -> CheckResult:
    """What this client writes on a topic of its own comes back: the access list lets it write and read."""
    topic = topics.device(client_id, "claim")
    began = time.monotonic()
    link.subscribe(topic, timeout_s=SUBSCRIBE_S)
    link.publish(topic, encode_json(Claim(secrets.token_hex(8), time.time())))
    while time.monotonic() - began < WAIT_S:
        event = link.get(WAIT_S - (time.monotonic() - began))
        if isinstance(event, Message) and event.topic == topic:
            return CheckResult(
                "access", "ok", f"{client_id} hears itself in {1000 * (time.monotonic() - began):.0f} ms"
            )
    remedy = "look at the broker's access list: the certificate's or user's name must be the device's id"
    return CheckResult(
        "access", "fail", f"what {client_id} writes on {topic} does not come back in {WAIT_S:g} s", remedy
    )


def _packet(link: Link, topics: Topics, client_id: str) -> CheckResult:
    """A chunk is acknowledged and the connection survives it.

    The chunk is of no upload, so nobody takes it.
    """
    link.publish(topics.upload(client_id, secrets.token_hex(32), 0), bytes(CHUNK_BYTES))
    if link.wait_in_flight(1, WAIT_S) and link.is_connected:
        return CheckResult("packets", "ok", f"{CHUNK_BYTES // 1024} KiB pass")
    remedy = "raise the broker's limit (mosquitto: max_packet_size 262144)"
    return CheckResult(
        "packets", "fail", f"a chunk of {CHUNK_BYTES // 1024} KiB is not acknowledged in {WAIT_S:g} s", remedy
    )


def _federations(link: Link, federation: str, enrolment: Enrolment | None) -> Iterator[CheckResult]:
    """What each federation says of itself, by its retained state."""
    link.subscribe(Topics(federation or "+").state, timeout_s=SUBSCRIBE_S)
    until = time.monotonic() + SETTLE_S
    seen = 0
    while (left := until - time.monotonic()) > 0:
        event = link.get(left)
        if not isinstance(event, Message) or not event.payload or not event.topic.endswith("/state"):
            continue
        seen += 1
        yield _federation(event, enrolment)
    if not seen:
        wanted = f"the federation {federation!r} does not run" if federation else "no federation runs"
        yield CheckResult(
            "federation",
            "warn",
            f"{wanted} at {link.url}",
            "edgefl aggregator start --config federation.toml",
        )


def _federation(message: Message, enrolment: Enrolment | None) -> CheckResult:
    try:
        name = parse_topic(message.topic).federation
        state = decode_json(State, message.payload)
        if enrolment:
            Trust(name, key_of=lambda _: enrolment.aggregator_key).checked(state, message.payload)
    except WireError as error:
        problem, _, remedy = str(error).rpartition("; ")
        return CheckResult("federation", "fail", f"{message.topic}: {problem}", remedy)
    stands = {
        JOINING: f"waiting for devices, {state.rounds} rounds to come",
        "done": f"done after {state.rounds} rounds",
    }
    place = (
        state.phase if state.round > state.rounds else f"{state.phase}, round {state.round} of {state.rounds}"
    )
    told = f"{name!r}: {stands.get(state.phase, place)}, plan {state.plan[:8]}"
    if state.phase == STOPPED:
        return CheckResult(
            "federation",
            "warn",
            told,
            "its aggregator stopped; start it again with the same --out, it goes on where it was",
        )
    return CheckResult("federation", "ok", told)
