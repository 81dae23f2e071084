"""Finds the federation that a device joins, and checks that its id is unique on the broker.

A starting device asks on `device/{id}/claim` whether another device uses its id. A device with this id
answers at once with its status, also while it trains. A retained status `online` without an answer comes from
a slow or a dead device. The new device then waits one and a half keepalive times, because a broker publishes
the will of a dead device within that time.
"""

import logging
import time

from edgefl.base.errors import LinkError, WireError
from edgefl.protocol.device.duplicate_id import DuplicateIdError, describe_duplicate_id
from edgefl.protocol.transport.link import Link, Message
from edgefl.protocol.wire.messages import STOPPED_PHASE, Claim, State, Status
from edgefl.protocol.wire.strict_json import decode_json, encode_json
from edgefl.protocol.wire.topics import FederationTopics, parse_topic

LOGGER = logging.getLogger("edgefl.device")
RETAINED_WAIT_S = 0.5


def report_other_federations(link: Link, federation: str) -> None:
    """Log a warning if other federations run on the broker, but not the named one.

    Args:
        federation: name of the federation.

    Raises:
        LinkError: the link failed.
    """
    link.subscribe(FederationTopics("+").state)
    running = set[str]()
    until = time.monotonic() + RETAINED_WAIT_S
    while federation not in running and (left := until - time.monotonic()) > 0:
        event = link.get(left)
        if isinstance(event, Message):
            name, phase = _read_federation_phase(event)
            running |= {name} if phase not in ("", "done", STOPPED_PHASE) else set()
    link.unsubscribe(FederationTopics("+").state)
    if running and federation not in running:
        LOGGER.warning(
            f"no federation {federation!r} runs at {link.url} yet, this device waits for it; running: "
            f"{', '.join(sorted(running))}"
        )


def find_federation(link: Link, timeout_s: float) -> str:
    """Return the name of the only federation on a broker, and wait until one runs.

    Args:
        timeout_s: seconds to wait for a federation. 0 waits without limit.

    Raises:
        LinkError: several federations run, or no federation runs in time.
    """
    link.subscribe(FederationTopics("+").state)
    running: dict[str, str] = {}
    has_logged = False
    began = time.monotonic()
    settled = began + RETAINED_WAIT_S
    while True:
        now = time.monotonic()
        if now >= settled and len(running) == 1:
            link.unsubscribe(FederationTopics("+").state)
            return next(iter(running))
        if now >= settled and running:
            raise LinkError(
                f"{len(running)} federations run at {link.url}: {', '.join(sorted(running))}; choose one "
                "with --federation"
            )
        if timeout_s and now - began > timeout_s:
            raise LinkError(
                f"no federation runs at {link.url} after {timeout_s:g} s; start one with `edgefl aggregator "
                "start`"
            )
        event = link.get(max(0.0, settled - now) or 0.5)
        if event is None and not running and not has_logged:
            has_logged = True
            LOGGER.info(f"no federation runs at {link.url} yet; waiting for an aggregator")
        if isinstance(event, Message):
            name, phase = _read_federation_phase(event)
            running.pop(name, None)
            if phase not in ("", "done", STOPPED_PHASE):
                running[name] = phase
                settled = max(settled, time.monotonic() + 0.1)


def _read_federation_phase(message: Message) -> tuple[str, str]:
    try:
        name = parse_topic(message.topic).federation
        return name, decode_json(State, message.payload).phase if message.payload else ""
    except WireError:
        return "", ""


def check_id_is_free(
    link: Link, topics: FederationTopics, client_id: str, boot_id: str, keepalive_s: float
) -> set[str]:
    """Check that no other device uses an id.

    Args:
        boot_id: random id of this start of the device.
        keepalive_s: MQTT keepalive of the devices in seconds.

    Returns:
        The boot ids of dead devices with this id.

    Raises:
        DuplicateIdError: another device answers.
        LinkError: the link failed.
    """
    link.subscribe(topics.format_device(client_id, "status"))
    link.publish(topics.format_device(client_id, "claim"), encode_json(Claim(boot_id, time.time())))
    until = time.monotonic() + RETAINED_WAIT_S
    seen: dict[str, float] = {}
    while (left := until - time.monotonic()) > 0:
        event = link.get(left)
        if not isinstance(event, Message) or not event.payload:
            continue
        try:
            status = decode_json(Status, event.payload)
        except WireError:
            continue
        if not status.online:
            seen.pop(status.boot_id, None)
            until = min(until, time.monotonic() + RETAINED_WAIT_S)
        elif status.boot_id in seen or not event.retained:
            raise DuplicateIdError(describe_duplicate_id(client_id, link.url))
        else:
            seen[status.boot_id] = status.ts
            until = time.monotonic() + 1.5 * keepalive_s
    return set(seen)
