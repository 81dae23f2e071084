"""Formats any message of a federation as one line.

A protocol message is decoded. A binary message is shown by its size, and an invalid one by its error.
"""

import dataclasses
import json
import math
import time
from typing import Any

from edgefl.base.errors import ConfigError, WireError
from edgefl.base.system.format import escape_unprintable
from edgefl.protocol.wire import messages
from edgefl.protocol.wire.strict_json import decode_json
from edgefl.protocol.wire.topics import TOPIC_PREFIX, parse_topic

MESSAGE_TYPES: dict[str, type] = {
    "state": messages.State,
    "summary": messages.Summary,
    "clusters": messages.Clusters,
    "verdict": messages.Verdict,
    "manifest": messages.Manifest,
    "status": messages.Status,
    "metrics": messages.Metrics,
    "anomaly": messages.Anomaly,
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
    """Return the MQTT topic filter for a topic that a user asks for.

    Args:
        topic: a filter below a federation such as `device/+/metrics`, or a complete one.
        federation: name of the federation, or empty for all federations.

    Raises:
        ConfigError: the topic is not a valid filter.

    Source: MQTT 3.1.1, section 4.7.
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
            "'device/+/metrics'; + matches one level, # all remaining levels"
        )
    return pattern


def decode_message(topic: str, payload: bytes, oversize: int = 0) -> dict[str, Any]:
    """Return a message as a dict for JSON. Invalid messages raise no error.

    Args:
        payload: the payload, empty if the link discarded it.
        oversize: size of a discarded payload in bytes, or 0.

    Returns:
        The `topic`. A valid message also has `kind` and one of `message`, `bytes` and `cleared`. An invalid
            message has `bytes` and the reason in `broken`.
    """
    try:
        kind = parse_topic(topic).kind
        if oversize:
            raise WireError(f"{oversize} bytes, above the limit for a message")
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
    """Return the value with None for NaN and infinity, which JSON lacks."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _replace_nan(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_replace_nan(item) for item in value]
    return value


def format_json_line(tree: dict[str, Any], now_s: float, retained: bool) -> str:
    """Return a message as one line of JSON.

    Args:
        tree: the message from `decode_message`.
        now_s: time of arrival, in seconds since 1970.
        retained: whether the broker had retained the message.
    """
    return json.dumps({"received": now_s, "retained": retained, **tree})


def format_text_line(tree: dict[str, Any], now_s: float, retained: bool) -> str:
    """Return a message as one line of text: time of day, topic below the prefix, and fields.

    A `*` after the time marks a retained message.

    Args:
        tree: the message from `decode_message`.
        now_s: time of arrival, in seconds since 1970.
        retained: whether the broker had retained the message.
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
    """Return the first digits of a hash, key or signature, and any other text unchanged."""
    return f"{text[:SHOWN_DIGITS]}.." if len(text) >= SHA256_HEX_LENGTH and " " not in text else text
