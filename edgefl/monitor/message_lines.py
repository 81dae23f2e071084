"""Formats any message of a federation as one line.

Messages of the protocol are decoded. Binary content is shown by its size. Any other message is shown with
its error.
"""

import dataclasses
import json
import math
import time
from typing import Any

from edgefl.errors import ConfigError, WireError
from edgefl.system.format import escape_unprintable
from edgefl.wire import messages
from edgefl.wire.strict_json import decode_json
from edgefl.wire.topics import TOPIC_PREFIX, parse_topic

MESSAGE_TYPES: dict[str, type] = {
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
BINARY_KINDS = ("blob", "chunk")
SHA256_HEX_LENGTH = 64
SHOWN_DIGITS = 8


def build_topic_filter(topic: str, federation: str) -> str:
    """Return the MQTT filter of what was asked for: `device/+/metrics` of the federation (empty: of all), or
    a whole topic.

    Raises ConfigError for what is no filter (MQTT 3.1.1, 4.7).
    """
    pattern = topic if topic.startswith(f"{TOPIC_PREFIX}/") else f"{TOPIC_PREFIX}/{federation or '+'}/{topic}"
    levels = pattern.split("/")
    bad = [
        level
        for i, level in enumerate(levels)
        if (set("+#") & set(level) and len(level) > 1) or (level == "#" and i < len(levels) - 1)
    ]
    if bad or not topic or topic.startswith("/") or "\0" in topic:
        raise ConfigError(
            f"topic {topic[:200]!r}, expected one below {TOPIC_PREFIX}/FEDERATION/ such as "
            f"'device/+/metrics'; + "
            "is one level, # all the rest"
        )
    return pattern


def decode_message(topic: str, payload: bytes, oversize: int = 0) -> dict[str, Any]:
    """Return a message as a tree for JSON: `topic`, and `kind` with `message`, `bytes`, `cleared` or
    `broken`, which says why.

    oversize: the bytes of a payload above the limit, which was left out. Never raises.
    """
    try:
        kind = parse_topic(topic).kind
        if oversize:
            raise WireError(f"{oversize} bytes, more than a message may have")
        if kind in BINARY_KINDS:
            return {"topic": topic, "kind": kind, "bytes": len(payload)}
        if not payload:
            return {"topic": topic, "kind": kind, "cleared": True}
        return {
            "topic": topic,
            "kind": kind,
            "message": _replace_nan(dataclasses.asdict(decode_json(MESSAGE_TYPES[kind], payload))),
        }
    except WireError as error:
        return {"topic": topic, "bytes": oversize or len(payload), "broken": str(error)}


def _replace_nan(value: Any) -> Any:
    """Return the value without NaN, for JSON."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _replace_nan(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_replace_nan(item) for item in value]
    return value


def format_json_line(tree: dict[str, Any], now_s: float, retained: bool) -> str:
    """Return one line of JSON: what `decode_message` gave, when it was received, and whether the broker had
    kept it.
    """
    return json.dumps({"received": now_s, "retained": retained, **tree})


def format_text_line(tree: dict[str, Any], now_s: float, retained: bool) -> str:
    """Return one line for a person: time of day, `*` for what the broker had kept, topic below the
    federation, fields.
    """
    topic = "/".join(
        _shorten_hash(level) for level in tree["topic"].removeprefix(f"{TOPIC_PREFIX}/").split("/")
    )
    mark = "*" if retained else " "
    return (
        f"{time.strftime('%H:%M:%S', time.localtime(now_s))}{mark} {escape_unprintable(topic)}  "
        f"{escape_unprintable(_format_content(tree))}"
    )


def _format_content(tree: dict[str, Any]) -> str:
    if "broken" in tree:
        return f"(broken, {tree['bytes']} bytes: {tree['broken']})"
    if "bytes" in tree:
        return f"({tree['bytes']:,} bytes)"
    if "cleared" in tree:
        return "(cleared)"
    return " ".join(
        f"{key}={_format_field(key, value)}" for key, value in tree["message"].items() if value != ""
    )


def _format_field(key: str, value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.0f}" if key in ("ts", "born") else f"{value:.4g}"
    if isinstance(value, dict):
        return "{" + " ".join(f"{name}={_format_field('', item)}" for name, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + " ".join(_format_field("", item) for item in value) + "]"
    return _shorten_hash(str(value))


def _shorten_hash(text: str) -> str:
    """Return a hash, key or signature as its first digits."""
    return f"{text[:SHOWN_DIGITS]}.." if len(text) >= SHA256_HEX_LENGTH and " " not in text else text
