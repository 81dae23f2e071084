"""Parses broker urls: `mqtt://[user:password@]host[:1883]`, or `mqtts://` with port 8883.

The urls of a cluster are separated by commas.

The protocol is MQTT 3.1.1, or MQTT 5 if the url ends in `?protocol=5`. The protocol is part of the url
because it is a property of the broker. It then needs no option of its own on the command line, in the
`[broker]` table and in an enrolment.
"""

import re
from dataclasses import dataclass
from urllib.parse import unquote, urlsplit

from edgefl.base.errors import LinkError

URL_SEPARATOR = re.compile(r",(?=mqtts?://)")
PROTOCOL_VERSIONS = {"": 4, "protocol=3.1.1": 4, "protocol=5": 5}


@dataclass(frozen=True)
class Broker:
    """The address of a broker, and the login.

    Attributes:
        tls: whether the connection uses TLS (`mqtts`).
        username: user name, "" for an anonymous login.
        password: password, "" for an anonymous login.
        protocol: 4 for MQTT 3.1.1, 5 for MQTT 5.
        display_url: the url without the password.
    """

    host: str
    port: int
    tls: bool
    username: str
    password: str
    protocol: int
    display_url: str


def parse_urls(urls: str) -> tuple[Broker, ...]:
    """Parse one broker url, or several separated by commas.

    Raises:
        LinkError: a url is not valid, or the urls differ in TLS or protocol.
    """
    brokers = tuple(parse_url(url) for url in URL_SEPARATOR.split(urls))
    if len({(broker.tls, broker.protocol) for broker in brokers}) > 1:
        raise LinkError(
            f"brokers {hide_password(urls)!r} differ in mqtt, mqtts or protocol; expected the same for "
            "all brokers of a cluster"
        )
    return brokers


def parse_url(url: str) -> Broker:
    """Parse `mqtt://[user:password@]host[:1883][?protocol=5]` or `mqtts://...[:8883]`.

    Raises:
        LinkError: the url is not valid.
    """
    example = (
        "expected mqtt://HOST:PORT or mqtts://USER:PASSWORD@HOST:PORT, with ?protocol=5 after it for MQTT 5"
    )
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise LinkError(f"broker {hide_password(url)!r}: {error}, {example}") from error
    host = parts.hostname
    protocol = PROTOCOL_VERSIONS.get(parts.query)
    if (
        parts.scheme not in ("mqtt", "mqtts")
        or not host
        or "," in host
        or parts.path not in ("", "/")
        or protocol is None
    ):
        raise LinkError(f"broker {hide_password(url)!r}, {example}")
    tls = parts.scheme == "mqtts"
    return Broker(
        host=host,
        port=port or (8883 if tls else 1883),
        tls=tls,
        username=unquote(parts.username or ""),
        password=unquote(parts.password or ""),
        protocol=protocol,
        display_url=hide_password(url),
    )


def hide_password(urls: str) -> str:
    """Return one or several broker urls without their passwords."""
    parts = (url.rpartition("@") for url in URL_SEPARATOR.split(urls))
    return ",".join(f"{head.partition('//')[0]}//...@{tail}" if at else tail for head, at, tail in parts)
