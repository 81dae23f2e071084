"""Describes the changes between two snapshots as a JSON merge patch, which is short and easy to apply.

A merge patch replaces lists as a whole. Lists of records therefore become objects first: devices by id,
rounds by number. A merge patch cannot set a value to null, because null removes the key. A missing figure is
therefore absent on the page.

Source: RFC 7396.
"""

from collections.abc import Iterable, Mapping
from typing import Any

Json = dict[str, Any]
DeviceCache = dict[str, tuple[Mapping[str, Any], Json]]


def index_records(snapshot: Mapping[str, Any], device_cache: DeviceCache | None = None) -> Json:
    """Return a snapshot with its lists of records as objects by key, and without values that are None.

    Args:
        snapshot: a snapshot of `edgefl.watch.monitor.view`.
        device_cache: devices of the previous call, which this call updates. A device that is still the same
            object is not converted again.
    """
    clusters = snapshot.get("clusters") or {}
    made = {key: value for key, value in snapshot.items() if value is not None}
    made["history"] = {str(row["round"]): _drop_none(row) for row in snapshot["history"]}
    made["devices"] = _index_devices(snapshot["devices"], {} if device_cache is None else device_cache)
    made["clusters"] = {
        "rounds": {str(cluster_round["round"]): cluster_round for cluster_round in clusters.get("rounds", ())}
    }
    if similarity := clusters.get("similarity"):
        made["clusters"]["similarity"] = _drop_none(similarity)
    return made


def merge_patch(before: Json, after: Json) -> Json:
    """Return the merge patch that turns `before` into `after`. It is empty if they are equal.

    Args:
        before: the object that the receiver has, such as a snapshot from `index_records`.
        after: the new object, without values that are None. A patch cannot set None.
    """
    patch: Json = dict.fromkeys(before.keys() - after.keys())
    for key, value in after.items():
        old = before.get(key)
        if old is value or (key in before and old == value):
            continue
        patch[key] = merge_patch(old, value) if isinstance(value, dict) and isinstance(old, dict) else value
    return patch


def _index_devices(devices: Iterable[Mapping[str, Any]], device_cache: DeviceCache) -> Json:
    before = dict(device_cache)
    device_cache.clear()
    for device in devices:
        cached = before.get(device["id"])
        device_cache[device["id"]] = (
            cached if cached and cached[0] is device else (device, _drop_none(device))
        )
    return {client_id: made for client_id, (_, made) in device_cache.items()}


def _drop_none(record: Mapping[str, Any]) -> Json:
    return {key: value for key, value in record.items() if value is not None}
