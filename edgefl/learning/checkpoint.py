"""Encodes states and mixtures for a local disk, as safetensors with a JSON note.

The same state always gives the same bytes.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load, save

from edgefl.base.errors import StateError
from edgefl.base.storage.directory import STATE_FORMAT, check_state_format
from edgefl.base.storage.records import decode_records, encode_records
from edgefl.base.types import BaseState, ClientState, Mixture, ServerState, StateRecord, Weights
from edgefl.program.plan.spec import PERSONAL_SIGNATURES, PREDICT_MIXTURE

RECORDS = "records"

NOTE_TENSOR = "note.json"
"""Name of the tensor that contains the JSON note.

The metadata of a safetensors header has no fixed order, so the same state could give different bytes.
"""
_DAMAGE_REMEDY = "restore it from a backup or make it again"


def _encode(kind: str, note: Mapping[str, object], groups: Mapping[str, Weights]) -> bytes:
    text = json.dumps({"kind": kind, **note}, sort_keys=True).encode()
    tensors = {f"{group}:{name}": array for group, arrays in groups.items() for name, array in arrays.items()}
    return bytes(
        save(
            {
                NOTE_TENSOR: np.frombuffer(text, np.uint8),
                **{k: np.asarray(tensors[k], order="C") for k in sorted(tensors)},
            }
        )
    )


def _decode(
    kind: str, blob: bytes, **fields: type
) -> tuple[dict[str, Any], dict[str, dict[str, np.ndarray]]]:
    try:
        tensors = load(blob)
        note = json.loads(tensors.pop(NOTE_TENSOR).tobytes())
        if note["kind"] != kind:
            raise StateError(f"this file contains a {note['kind']}, expected a {kind}")
        if lacking := [name for name, cls in fields.items() if type(note.get(name)) is not cls]:
            raise ValueError(f"its note has no {lacking[0]}")
    except (SafetensorError, AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise StateError(
            f"this file is not a {kind} (truncated or foreign): {error}; {_DAMAGE_REMEDY}"
        ) from error
    groups: dict[str, dict[str, np.ndarray]] = {}
    for key, array in tensors.items():
        group, _, name = key.partition(":")
        groups.setdefault(group, {})[name] = array
    return note, groups


def encode_server_state(state: ServerState) -> bytes:
    """Return the server state as bytes. They contain a digest of the state.

    Raises:
        StateError: a record has a value of another type than its field.
    """
    tree, arrays = _write_records("server state", state)
    groups = {f"models/{name}": weights for name, weights in state.models.items()} | {RECORDS: arrays}
    note = {"format": STATE_FORMAT, "round": state.round, "phase": state.phase, RECORDS: tree}
    return _encode("server state", {**note, "sha256": _digest_state(note, groups)}, groups)


def decode_server_state(blob: bytes) -> ServerState:
    """Read a server state.

    Raises:
        StateError: the bytes are not a server state, differ from their digest, or are from another version.
    """
    note, groups = _decode("server state", blob, round=int, phase=str)
    _check_note(note, "server state")
    fields = {name: note[name] for name in ("format", "round", "phase", RECORDS)}
    digest = _digest_state(fields, groups)
    if note.get("sha256") != digest:
        raise StateError(
            f"this server state has the sha256 {digest}, expected {str(note.get('sha256'))[:64]}: the file "
            f"is damaged; {_DAMAGE_REMEDY}"
        )
    models = {g.removeprefix("models/"): w for g, w in groups.items() if g.startswith("models/")}
    return ServerState(
        round=note["round"],
        phase=note["phase"],
        models=models,
        records=_read_records("server state", note, groups),
    )


def _digest_state(note: Mapping[str, object], groups: Mapping[str, Weights]) -> str:
    hashed = hashlib.sha256(json.dumps(note, sort_keys=True).encode())
    _add_arrays(
        hashed, {f"{group}:{name}": array for group in groups for name, array in groups[group].items()}
    )
    return hashed.hexdigest()


def encode_client_state(state: ClientState) -> bytes:
    """Return a client state as bytes, for the device's own disk only.

    Raises:
        StateError: a record has a value of another type than its field.
    """
    tree, arrays = _write_records("client state", state)
    note = {"format": STATE_FORMAT, RECORDS: tree}
    return _encode("client state", note, {"arrays": state.arrays, RECORDS: arrays})


def decode_client_state(blob: bytes) -> ClientState:
    """Read a client state.

    Raises:
        StateError: the bytes are not a client state, or are from another version.
    """
    note, groups = _decode("client state", blob)
    _check_note(note, "client state")
    return ClientState(arrays=groups.get("arrays", {}), records=_read_records("client state", note, groups))


def _write_records(kind: str, state: BaseState) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    try:
        return encode_records(state.records)
    except (ValueError, TypeError) as error:
        raise StateError(
            f"this {kind} cannot be stored: {error}; convert the value in the algorithm"
        ) from error


def _check_note(note: Mapping[str, Any], kind: str) -> None:
    check_state_format(note.get("format"), f"this {kind}", "start with an empty directory")
    if RECORDS not in note:
        raise StateError(f"this {kind} has no records: the file is damaged; {_DAMAGE_REMEDY}")


def _read_records(
    kind: str, note: Mapping[str, Any], groups: Mapping[str, dict[str, np.ndarray]]
) -> dict[str, StateRecord]:
    try:
        return decode_records(note[RECORDS], groups.get(RECORDS, {}))
    except (ValueError, OverflowError) as error:
        raise StateError(
            f"this {kind} does not fit the algorithms of this version of edgefl: {error}; continue with the "
            "version that wrote it, or start with an empty directory"
        ) from error


@dataclass(frozen=True)
class StoredMixture:
    """A mixture as read from a file.

    Attributes:
        plan_id: id of the mixture's plan, or "" if the file does not name it.
    """

    mixture: Mixture
    plan_id: str


def encode_mixture(mixture: Mixture, plan_id: str = "") -> bytes:
    """Return a mixture as bytes, for the device's own disk only.

    The bytes contain a digest of the weights and the id of the plan.
    """
    return _encode(
        "mixture",
        {
            "plan": plan_id,
            "sha256": _digest(mixture),
            "signature": mixture.signature,
            "single": mixture.single,
        },
        {"weights": mixture.weights},
    )


def decode_stored_mixture(blob: bytes) -> StoredMixture:
    """Read a mixture and its plan id.

    Raises:
        StateError: the bytes are not a mixture, or differ from their digest.
    """
    note, groups = _decode("mixture", blob)
    weights = groups.get("weights", {})
    mixture = Mixture(
        weights=weights,
        signature=note.get("signature", PREDICT_MIXTURE),
        single=str(note.get("single", "")),
    )
    if mixture.signature not in PERSONAL_SIGNATURES:
        raise StateError(
            f"this mixture is for the signature {mixture.signature!r}, expected one of "
            f"{', '.join(PERSONAL_SIGNATURES)}; copy the file again, or let the device personalize again"
        )
    digest = _digest(mixture)
    if note.get("sha256") != digest or not isinstance(note.get("plan"), str):
        raise StateError(
            f"the weights of this mixture have the sha256 {digest}, expected {note.get('sha256')}: the file "
            "is damaged; copy it again, or let the device personalize again"
        )
    return StoredMixture(mixture, note["plan"])


def _digest(mixture: Mixture) -> str:
    """Return the sha256 of `signature`, `single` and all weights with their names, types and shapes."""
    signature = "" if mixture.signature == PREDICT_MIXTURE else mixture.signature
    hashed = hashlib.sha256(f"{signature}{mixture.single}".encode())
    _add_arrays(hashed, mixture.weights)
    return hashed.hexdigest()


def _add_arrays(hashed: "hashlib._Hash", arrays: Weights) -> None:
    for name in sorted(arrays):
        array = np.asarray(arrays[name], order="C")
        hashed.update(json.dumps([name, str(array.dtype), array.shape]).encode())
        hashed.update(array.tobytes())
