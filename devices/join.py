"""Joins a federation: finds it, checks that the client id is free, and connects with a last will."""

import logging
import secrets
import time
from dataclasses import dataclass
from typing import Protocol

from devices.identity import check_id_is_free, find_federation, report_other_federations
from edgefl import __version__
from edgefl.protocol.security.enrolment import Enrolment, make_tls_context
from edgefl.protocol.security.trust import Trust
from edgefl.protocol.transport.link import Link, Message
from edgefl.protocol.wire.messages import Status
from edgefl.protocol.wire.strict_json import encode_json
from edgefl.protocol.wire.topics import FederationTopics
from edgefl.protocol.wire.url import hide_password, parse_urls

LOGGER = logging.getLogger("edgefl.device")
CONNECT_TIMEOUT_S = 10.0


class JoinSettings(Protocol):
    """Settings that a device needs to join.

    Attributes:
        broker: URL of the broker, or several URLs with commas.
        client_id: id of the device.
        federation: name of the federation. Empty for the only one that runs.
        keepalive_s: MQTT keepalive in seconds.
        wait_s: seconds to wait for a federation. 0 waits without limit.
        enrolment: the keys of the device, or None.
    """

    @property
    def broker(self) -> str: ...
    @property
    def client_id(self) -> str: ...
    @property
    def federation(self) -> str: ...
    @property
    def keepalive_s(self) -> int: ...
    @property
    def wait_s(self) -> float: ...
    @property
    def enrolment(self) -> Enrolment | None: ...


@dataclass(frozen=True)
class JoinedFederation:
    """A connection of a device to a federation.

    Attributes:
        link: the connection to the broker. Its last will is the status.
        topics: topics of the federation.
        status: the status of the device, offline.
        trust: signs messages and checks signatures.
    """

    link: Link
    topics: FederationTopics
    status: Status
    trust: Trust


def join_federation(
    settings: JoinSettings,
    samples: int,
    paused: str,
    timeout_s: float = CONNECT_TIMEOUT_S,
) -> JoinedFederation:
    """Join a federation, and return a connection on which no status is published yet.

    Args:
        settings: the settings of the device.
        samples: number of samples of the device.
        paused: reason why this device accepts no task at first, empty if it accepts tasks.
        timeout_s: seconds that the broker may take to answer.

    Raises:
        ConfigError: the name of the federation is not valid, or the enrolment cannot be used for TLS.
        LinkError: the broker does not answer, or not exactly one federation runs.
        DuplicateIdError: another device uses the id.
    """
    boot_id = secrets.token_hex(8)
    # Not the boot id, which the status publishes. A client that connects under the name of another client
    # makes the broker close the other connection.
    name = f"edgefl-{settings.client_id}-{secrets.token_hex(8)}"
    enrolment = settings.enrolment
    if enrolment and not all(broker.tls for broker in parse_urls(settings.broker)):
        shown = hide_password(settings.broker)
        LOGGER.warning(
            f"{shown} is not mqtts: anyone on the network can read the signed messages, and the broker's "
            "certificate is not checked"
        )
    context = make_tls_context(enrolment) if enrolment else None
    probe = Link(
        settings.broker,
        f"{name}-probe",
        keepalive_s=settings.keepalive_s,
        timeout_s=timeout_s,
        context=context,
    )
    try:
        federation = settings.federation or find_federation(probe, settings.wait_s)
        topics = FederationTopics(federation)
        if settings.federation:
            report_other_federations(probe, federation)
        check_id_is_free(probe, topics, settings.client_id, boot_id, settings.keepalive_s)
    finally:
        probe.close()
    now = time.time()
    status = Status(
        client_id=settings.client_id,
        boot_id=boot_id,
        online=False,
        born=now,
        num_samples=samples,
        version=__version__,
        ts=now,
        paused=paused,
    )
    will = Message(
        topic=topics.format_device(settings.client_id, "status"), payload=encode_json(status), retained=True
    )
    link = Link(
        settings.broker,
        name,
        will=will,
        keepalive_s=settings.keepalive_s,
        timeout_s=timeout_s,
        context=context,
    )
    aggregator = enrolment.aggregator_key if enrolment else ""
    trust = Trust(
        federation=federation,
        key=enrolment.signing_key if enrolment else "",
        find_key=(lambda _: aggregator) if enrolment else None,
    )
    return JoinedFederation(link=link, topics=topics, status=status, trust=trust)
