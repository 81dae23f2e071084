"""Where a broker listens: `mqtt://[user:password@]host[:1883]`, or `mqtts://` with port 8883."""

from dataclasses import dataclass
from urllib.parse import unquote, urlsplit

from edgefl.errors import LinkError


@dataclass(frozen=True)
class Broker:
    """Where a broker listens and how to log in."""

    host: str
    port: int
    tls: bool
    username: str
    password: str


def parse_url(url: str) -> Broker:
    """Read `mqtt://[user:password@]host[:1883]` or `mqtts://...[:8883]`; LinkError for anything else."""
    example = "expected mqtt://HOST:PORT or mqtts://USER:PASSWORD@HOST:PORT"
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise LinkError(f"broker {url!r}: {error}, {example}") from error
    if parts.scheme not in ("mqtt", "mqtts") or not parts.hostname or parts.path not in ("", "/"):
        raise LinkError(f"broker {without_password(url)!r}, {example}")
    tls = parts.scheme == "mqtts"
    return Broker(parts.hostname, port or (8883 if tls else 1883), tls, unquote(parts.username or ""), unquote(parts.password or ""))


def without_password(url: str) -> str:
    """Return the url as it may be shown."""
    head, at, tail = url.rpartition("@")
    return f"{head.partition('//')[0]}//...@{tail}" if at else url
