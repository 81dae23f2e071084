"""The state directory of a device.

An export reads `device.json`, `plan/` and `mixture.safetensors`.

A digest covers each of these files. `device.json` contains its own digest. The mixture contains its own
digest and the id of its plan, which is the sha256 of the whole plan. This detects a flipped bit, and files
that do not belong together.
"""

import contextlib
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgefl.base.storage.directory import STATE_FORMAT, Directory, FileSeries, StoredFile, check_state_format
from edgefl.base.system.files import parse_json

DIGEST_KEY = "sha256"
FORMAT_KEY = "format"
STATE_ACCESS_REMEDY = "let this account write to the state directory, or pass another --state"


@dataclass(frozen=True)
class DeviceFiles(Directory):
    """The files of a device."""

    lock = StoredFile("lock", "lock of the running device", "device")
    note = StoredFile(
        "device.json",
        "id, federation, seed, source of the samples, digests of up to 32 samples",
        "device",
        is_secret=True,
    )
    round = FileSeries(
        "round-{number}-{sha256}",
        "one of the last two finished rounds: its figures, update and client state",
        "device",
        is_secret=True,
    )
    damaged_round = StoredFile("round.damaged", "a damaged file of a round", "device", is_secret=True)
    pending_task = StoredFile(
        "unsent.json", "task of an update that is not acknowledged", "device", is_secret=True
    )
    order = FileSeries("order-{federation}.json", "newest signed run of a federation", "device with --enrol")
    blobs = StoredFile("blobs/", "plans and models of the federation, by sha256", "device")
    plan_trials = StoredFile("plans.json", "plans that were tried, and which are refused", "device")
    crash_log = StoredFile("crash.log", "report of a fatal signal", "device")
    plan = StoredFile("plan/", "plan of the shipped model", "device")
    mixture = StoredFile("mixture.safetensors", "the shipped model", "device", is_secret=True)
    export = StoredFile(
        "model/", "export of the shipped model, with all members of a blend", "device, without --no-export"
    )
    model = StoredFile(
        "model/model.tflite", "the shipped model as int8", "device, without --no-export", is_secret=True
    )
    shard = StoredFile(
        "shard.npz",
        "samples of a simulated client or a new client",
        "edgefl simulate --mixtures, edgefl personalize -o",
        is_secret=True,
    )
    field_figures = StoredFile(
        "field.json", "figures of the firmware in use", "edgefl export drift", is_secret=True
    )
    paused = StoredFile("paused", "pauses the device", "edgefl device pause")


def encode_note(note: Mapping[str, Any]) -> bytes:
    """Return the content of `device.json` with its format and its digest."""
    content = {**note, FORMAT_KEY: STATE_FORMAT}
    return (json.dumps({**content, DIGEST_KEY: _digest(content)}, indent=1) + "\n").encode()


def decode_note(blob: bytes) -> dict[str, Any]:
    """Read `device.json` and remove its format and its digest. A person may write a file without them.

    Raises:
        ValueError: the content is not a JSON object, or differs from its digest.
        StateError: another version of edgefl wrote it.
    """
    note = parse_json(blob)
    if not isinstance(note, dict):
        raise ValueError(f"a {type(note).__name__}, expected an object")
    digest = note.pop(DIGEST_KEY, None)
    if digest is not None and digest != _digest(note):
        raise ValueError(f"its sha256 is {_digest(note)}, expected {digest}")
    check_state_format(note.pop(FORMAT_KEY, STATE_FORMAT), DeviceFiles.note.name, "pass another --state")
    return note


def check_note_format(path: Path, blob: bytes) -> None:
    """Check the format of `device.json` before a device continues its directory. A damaged file passes.

    Args:
        blob: its content.

    Raises:
        StateError: another version of edgefl wrote it.
    """
    with contextlib.suppress(ValueError):
        decode_note(blob)
        check_state_format(parse_json(blob).get(FORMAT_KEY), path, "pass another --state")


def _digest(note: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(dict(note), sort_keys=True).encode()).hexdigest()
