"""Where brokers listen: `mqtt://[user:password@]host[:1883]`, or `mqtts://` with port 8883.

Several of a cluster, with commas between.

MQTT 3.1.1 is spoken unless a url ends in `?protocol=5`. It is part of the url, and no option or scheme of its
own, since it is a property of the broker: it then goes wherever a url goes (command line, `[broker]` table,
enrolment) and nothing else has to know.
"""

import re
from dataclasses import dataclass
from urllib.parse import unquote, urlsplit

from edgefl.errors import LinkError

URL_SEPARATOR = re.compile(r",(?=mqtts?://)")
PROTOCOL_VERSIONS = {"": 4, "protocol=3.1.1": 4, "protocol=5": 5}


@dataclass(frozen=True)
class Broker:
    """Where a broker listens and how to log in.

    `protocol`: 4 is MQTT 3.1.1, 5 is 5; `shown`: the url without its password.
    """

    host: str
    port: int
    tls: bool
    username: str
    password: str
    protocol: int
    display_url: str


def parse_urls(urls: str) -> tuple[Broker, ...]:
    """Read one url or several, `mqtt://a:1883,mqtt://b:1883`.

    LinkError for anything else, or when they do not speak alike.
    """
    brokers = tuple(parse_url(url) for url in URL_SEPARATOR.split(urls))
    if len({(broker.tls, broker.protocol) for broker in brokers}) > 1:
        raise LinkError(
            f"brokers {hide_password(urls)!r} differ in mqtt, mqtts or protocol; expected the same for "
            "all of a cluster"
        )
    return brokers


def parse_url(url: str) -> Broker:
    """Read `mqtt://[user:password@]host[:1883][?protocol=5]` or `mqtts://...[:8883]`.

    LinkError for anything else.
    """
    example = (
        "expected mqtt://HOST:PORT or mqtts://USER:PASSWORD@HOST:PORT, and ?protocol=5 after it for MQTT 5"
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
    user = unquote(parts.username or ""), unquote(parts.password or "")
    return Broker(host, port or (8883 if tls else 1883), tls, *user, protocol, hide_password(url))


def hide_password(urls: str) -> str:
    """Return one url or several as they may be shown."""
    parts = (url.rpartition("@") for url in URL_SEPARATOR.split(urls))
    return ",".join(f"{head.partition('//')[0]}//...@{tail}" if at else tail for head, at, tail in parts)
