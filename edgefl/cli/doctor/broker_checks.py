"""Broker checks: connection, access, packet size and federations, over a separate connection."""

import secrets
import time
from collections.abc import Callable, Iterator

from edgefl.base.errors import LinkError, WireError
from edgefl.cli.doctor.check_result import CheckResult
from edgefl.protocol.security.enrolment import Enrolment, make_tls_context
from edgefl.protocol.security.trust import Trust
from edgefl.protocol.transport.link import Link, Message
from edgefl.protocol.transport.message_size import describe_limit, find_message_size
from edgefl.protocol.wire.chunks import CHUNK_BYTES
from edgefl.protocol.wire.messages import JOINING_PHASE, STOPPED_PHASE, Claim, State
from edgefl.protocol.wire.strict_json import decode_json, encode_json
from edgefl.protocol.wire.topics import FederationTopics, parse_topic

ANSWER_TIMEOUT_S = 3.0
SUBSCRIBE_TIMEOUT_S = 10.0
RETAINED_WAIT_S = 0.5
DOCTOR_NAME = "doctor"


def check_broker(url: str, enrolment: Enrolment | None, federation: str) -> Iterator[CheckResult]:
    """Yield the results of the broker checks.

    The checks end early when the connection fails.

    Args:
        url: address of the broker.
        enrolment: certificates and keys. None connects without them.
        federation: name of the federation to check. Empty checks all federations on the broker.
    """
    client_id = enrolment.client_id if enrolment else f"{DOCTOR_NAME}-{secrets.token_hex(4)}"
    began = time.monotonic()

    topics = FederationTopics(federation or DOCTOR_NAME)

    def open_link(will: Message | None = None) -> Link:
        context = make_tls_context(enrolment) if enrolment else None
        return Link(url, f"edgefl-{DOCTOR_NAME}-{secrets.token_hex(8)}", will=will, context=context)

    try:
        # Like devices and aggregators, which a broker without retained messages refuses
        link = open_link(Message(topic=topics.format_device(client_id, "claim"), payload=b"", retained=True))
    except LinkError as error:
        yield _describe_failure("broker", error)
        return
    try:
        yield CheckResult(
            check="broker", level="ok", found=f"{link.url} in {1000 * (time.monotonic() - began):.0f} ms"
        )
        access = _check_access(link, topics, client_id)
        yield access
        if access.level == "ok":
            yield _check_message_size(open_link, link.url, topics.format_device(client_id, "claim"))
        yield from _check_federations(link, federation, enrolment)
    except LinkError as error:
        yield _describe_failure("access", error)
    finally:
        link.close(1.0)


def _describe_failure(check: str, error: LinkError) -> CheckResult:
    problem, _, remedy = str(error).rpartition("; ")
    return CheckResult(check=check, level="fail", found=problem or str(error), remedy=remedy)


def _check_access(link: Link, topics: FederationTopics, client_id: str) -> CheckResult:
    """Check that this client receives its own message, so that it may write and read its topics."""
    topic = topics.format_device(client_id, "claim")
    began = time.monotonic()
    link.subscribe(topic, timeout_s=SUBSCRIBE_TIMEOUT_S)
    link.publish(topic, encode_json(Claim(secrets.token_hex(8), time.time())))
    while time.monotonic() - began < ANSWER_TIMEOUT_S:
        event = link.get(ANSWER_TIMEOUT_S - (time.monotonic() - began))
        if isinstance(event, Message) and event.topic == topic:
            return CheckResult(
                check="access",
                level="ok",
                found=f"{client_id} receives its own message in {1000 * (time.monotonic() - began):.0f} ms",
            )
    remedy = "check the broker's access list: the certificate's or user's name must be the device's id"
    return CheckResult(
        check="access",
        level="fail",
        found=f"{client_id} does not receive its own message on {topic} within {ANSWER_TIMEOUT_S:g} s",
        remedy=remedy,
    )


def _check_message_size(open_link: Callable[[], Link], url: str, topic: str) -> CheckResult:
    """Check that the broker delivers messages of the default size of a chunk."""
    fitting = find_message_size(open_link, lambda _: topic, CHUNK_BYTES)
    if fitting == CHUNK_BYTES:
        return CheckResult(check="packets", level="ok", found=f"{CHUNK_BYTES // 1024} KiB pass")
    problem, remedy = describe_limit(url, CHUNK_BYTES, fitting)
    if not fitting:
        return CheckResult(check="packets", level="fail", found=problem, remedy=remedy)
    return CheckResult(
        check="packets",
        level="warn",
        found=f"{problem}; the aggregator sends messages of {fitting} bytes instead",
        remedy=remedy,
    )


def _check_federations(link: Link, federation: str, enrolment: Enrolment | None) -> Iterator[CheckResult]:
    """Yield one result per federation, from its retained state."""
    link.subscribe(FederationTopics(federation or "+").state, timeout_s=SUBSCRIBE_TIMEOUT_S)
    until = time.monotonic() + RETAINED_WAIT_S
    seen = 0
    while (left := until - time.monotonic()) > 0:
        event = link.get(left)
        if not isinstance(event, Message) or not event.payload or not event.topic.endswith("/state"):
            continue
        seen += 1
        yield _check_federation(event, enrolment)
    if not seen:
        problem = (
            f"the federation {federation!r} is not running" if federation else "no federation is running"
        )
        yield CheckResult(
            check="federation",
            level="warn",
            found=f"{problem} at {link.url}",
            remedy="edgefl aggregator start --config federation.toml",
        )


def _check_federation(message: Message, enrolment: Enrolment | None) -> CheckResult:
    try:
        name = parse_topic(message.topic).federation
        state = decode_json(State, message.payload)
        if enrolment:
            Trust(federation=name, find_key=lambda _: enrolment.aggregator_key).check(state, message.payload)
    except WireError as error:
        problem, _, remedy = str(error).rpartition("; ")
        return CheckResult(
            check="federation", level="fail", found=f"{message.topic}: {problem}", remedy=remedy
        )
    phase_texts = {
        JOINING_PHASE: f"waiting for devices, {state.rounds} rounds to come",
        "done": f"done after {state.rounds} rounds",
        STOPPED_PHASE: f"stopped before the end of its {state.rounds} rounds",
    }
    position = (
        state.phase if state.round > state.rounds else f"{state.phase}, round {state.round} of {state.rounds}"
    )
    description = f"{name!r}: {phase_texts.get(state.phase, position)}, plan {state.plan[:8]}"
    if state.phase == STOPPED_PHASE:
        return CheckResult(
            check="federation",
            level="warn",
            found=description,
            remedy="its aggregator stopped; start it again with the same --out, and it continues",
        )
    return CheckResult(check="federation", level="ok", found=description)
