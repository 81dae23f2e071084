"""What changed from one snapshot to the next, as a JSON merge patch (RFC 7396): the page is sent little, and applies it in ten lines.

A merge patch replaces lists as a whole, so lists of records become objects by key first: devices by id, rounds by number.
It cannot say null, which means *remove*: a figure that nobody has is absent on the page.
"""

from collections.abc import Iterable, Mapping
from typing import Any

Json = dict[str, Any]


def keyed(snapshot: Mapping[str, Any]) -> Json:
    """Return a snapshot (`edgefl.monitor.view`) with its lists of records as objects by key, and without what is None."""
    clusters = snapshot.get("clusters") or {}
    rounds = {"rounds": _by(clusters.get("rounds", ()), "round"), "similarity": clusters.get("similarity")}
    lists = {"history": _by(snapshot["history"], "round"), "devices": _by(snapshot["devices"], "id"), "clusters": rounds}
    return {key: _known(value) for key, value in {**snapshot, **lists}.items() if value is not None}


def merge_patch(before: Json, after: Json) -> Json:
    """Return the patch that makes `after` of `before`; empty when they are equal."""
    patch: Json = dict.fromkeys(before.keys() - after.keys())
    for key, value in after.items():
        old = before.get(key)
        if isinstance(value, dict) and isinstance(old, dict):
            if inner := merge_patch(old, value):
                patch[key] = inner
        elif key not in before or old != value:
            patch[key] = value
    return patch


def _by(records: Iterable[Mapping[str, Any]], key: str) -> Json:
    return {str(record[key]): record for record in records}


def _known(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _known(item) for key, item in value.items() if item is not None}
    return value
