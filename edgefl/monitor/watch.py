"""Any message of a federation as one line: decoded where it is of the protocol, its size where it is bytes,
else what is wrong with it.
"""

import dataclasses
import json
import math
import time
from typing import Any

from edgefl.errors import ConfigError, WireError
from edgefl.system.format import printable
from edgefl.wire import messages
from edgefl.wire.strict_json import decode_json
from edgefl.wire.topics import PREFIX, parse_topic

TYPES: dict[str, type] = {
    "state": messages.State,
    "summary": messages.Summary,
    "clusters": messages.Clusters,
    "verdict": messages.Verdict,
    "manifest": messages.Manifest,
    "status": messages.Status,
    "metrics": messages.Metrics,
    "task": messages.Task,
    "receipt": messages.Receipt,
    "want": messages.Want,
    "claim": messages.Claim,
    "begin": messages.Begin,
    "end": messages.End,
}
CHUNKS = ("blob", "chunk")
SHA = 64
SHOWN = 8


def topic_filter(topic: str, federation: str) -> str:
    """Return the MQTT filter of what was asked for: `device/+/metrics` of the federation (empty: of all), or
    a whole topic.

    Raises ConfigError for what is no filter (MQTT 3.1.1, 4.7).
    """
    wanted = topic if topic.startswith(f"{PREFIX}/") else f"{PREFIX}/{federation or '+'}/{topic}"
    levels = wanted.split("/")
    bad = [
        each
        for i, each in enumerate(levels)
        if (set("+#") & set(each) and len(each) > 1) or (each == "#" and i < len(levels) - 1)
    ]
    if bad or not topic or topic.startswith("/") or "\0" in topic:
        raise ConfigError(
            f"topic {topic[:200]!r}, expected one below {PREFIX}/FEDERATION/ such as 'device/+/metrics'; + "
            "is one level, # all the rest"
        )
    return wanted


def decoded(topic: str, payload: bytes, oversize: int = 0) -> dict[str, Any]:
    """Return a message as a tree for JSON: `topic`, and `kind` with `message`, `bytes`, `cleared` or
    `broken`, which says why.

    oversize: the bytes of a payload above the limit, which was left out. Never raises.
    """
    try:
        kind = parse_topic(topic).kind
        if oversize:
            raise WireError(f"{oversize} bytes, more than a message may have")
        if kind in CHUNKS:
            return {"topic": topic, "kind": kind, "bytes": len(payload)}
        if not payload:
            return {"topic": topic, "kind": kind, "cleared": True}
        return {
            "topic": topic,
            "kind": kind,
            "message": _plain(dataclasses.asdict(decode_json(TYPES[kind], payload))),
        }
    except WireError as error:
        return {"topic": topic, "bytes": oversize or len(payload), "broken": str(error)}


def _plain(value: Any) -> Any:
    """Return the value without NaN, for JSON."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value


def json_line(found: dict[str, Any], now_s: float, retained: bool) -> str:
    """Return one line of JSON: what `decoded` gave, when it was received, and whether the broker had
    kept it.
    """
    return json.dumps({"received": now_s, "retained": retained, **found})


def text_line(found: dict[str, Any], now_s: float, retained: bool) -> str:
    """Return one line for a person: time of day, `*` for what the broker had kept, topic below the
    federation, fields.
    """
    topic = "/".join(_short(each) for each in found["topic"].removeprefix(f"{PREFIX}/").split("/"))
    mark = "*" if retained else " "
    return (
        f"{time.strftime('%H:%M:%S', time.localtime(now_s))}{mark} {printable(topic)}  "
        f"{printable(_told(found))}"
    )


def _told(found: dict[str, Any]) -> str:
    if "broken" in found:
        return f"(broken, {found['bytes']} bytes: {found['broken']})"
    if "bytes" in found:
        return f"({found['bytes']:,} bytes)"
    if "cleared" in found:
        return "(cleared)"
    return " ".join(f"{key}={_field(key, value)}" for key, value in found["message"].items() if value != "")


def _field(key: str, value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.0f}" if key in ("ts", "born") else f"{value:.4g}"
    if isinstance(value, dict):
        return "{" + " ".join(f"{name}={_field('', item)}" for name, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + " ".join(_field("", item) for item in value) + "]"
    return _short(str(value))


def _short(text: str) -> str:
    """Return a hash, key or signature as its first digits."""
    return f"{text[:SHOWN]}.." if len(text) >= SHA and " " not in text else text
