"""States and mixtures <-> bytes for a local disk: safetensors with a JSON note, the same state gives the same
bytes.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load, save

from edgefl.errors import StateError
from edgefl.plan.spec import PREDICT_MIXTURE, PREDICT_SINGLE
from edgefl.types import ClientState, Mixture, ServerState, Weights

NOTE_TENSOR = "note.json"
"""The tensor that holds the JSON: header metadata has no fixed order in safetensors, and states must give the
same bytes.
"""


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
            raise StateError(f"this file holds a {note['kind']}, expected a {kind}")
        if lacking := [name for name, cls in fields.items() if type(note.get(name)) is not cls]:
            raise ValueError(f"its note has no {lacking[0]}")
        if not all(isinstance(value, int | float) for value in note.get("scalars", {}).values()):
            raise ValueError("a scalar is no number")
    except (SafetensorError, AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise StateError(
            f"this file is not a {kind} (truncated or foreign): {error}; remove it to start afresh"
        ) from error
    groups: dict[str, dict[str, np.ndarray]] = {}
    for key, array in tensors.items():
        group, _, name = key.partition(":")
        groups.setdefault(group, {})[name] = array
    return note, groups


def encode_server_state(state: ServerState) -> bytes:
    """Return the aggregator's state as bytes."""
    groups = {f"models/{n}": w for n, w in state.models.items()} | {
        f"slots/{n}": w for n, w in state.slots.items()
    }
    return _encode(
        "server state", {"round": state.round, "phase": state.phase, "scalars": dict(state.scalars)}, groups
    )


def decode_server_state(blob: bytes) -> ServerState:
    """Read an aggregator's state; StateError when the bytes are not one."""
    note, groups = _decode("server state", blob, round=int, phase=str, scalars=dict)
    models = {g.removeprefix("models/"): w for g, w in groups.items() if g.startswith("models/")}
    slots = {g.removeprefix("slots/"): w for g, w in groups.items() if g.startswith("slots/")}
    return ServerState(note["round"], note["phase"], models, slots, note["scalars"])


def encode_client_state(state: ClientState) -> bytes:
    """Return a device's own state as bytes."""
    return _encode("client state", {"scalars": dict(state.scalars)}, {"arrays": state.arrays})


def decode_client_state(blob: bytes) -> ClientState:
    """Read a device's own state; StateError when the bytes are not one."""
    note, groups = _decode("client state", blob, scalars=dict)
    return ClientState(groups.get("arrays", {}), note["scalars"])


@dataclass(frozen=True)
class StoredMixture:
    """A mixture as a file holds it.

    plan_id: the plan that it belongs to, "" if the file does not name it; has_digest: whether the file
    carries a digest, which then fits.
    """

    mixture: Mixture
    plan_id: str
    has_digest: bool


def encode_mixture(mixture: Mixture, plan_id: str = "") -> bytes:
    """Return a mixture as bytes with a digest of its weights and the id of its plan, for the device's own
    disk only.
    """
    return _encode(
        "mixture",
        {"plan": plan_id, "sha256": _digest(mixture), "signature": mixture.signature},
        {"weights": mixture.weights},
    )


def decode_stored_mixture(blob: bytes) -> StoredMixture:
    """Read a mixture with what its file says of it. A file of an older edgefl carries no digest.

    Raises:
        StateError: The bytes are not a mixture, or differ from their digest.
    """
    note, groups = _decode("mixture", blob)
    weights = groups.get("weights", {})
    if note == {"kind": "mixture"}:
        return StoredMixture(Mixture(weights), "", False)
    mixture = Mixture(weights, signature=note.get("signature", PREDICT_MIXTURE))
    if mixture.signature not in (PREDICT_MIXTURE, PREDICT_SINGLE):
        raise StateError(
            f"this mixture is for the signature {mixture.signature!r}, expected {PREDICT_MIXTURE} or "
            f"{PREDICT_SINGLE}; copy "
            "the file again, or let the device personalize again"
        )
    digest = _digest(mixture)
    if note.get("sha256") != digest or not isinstance(note.get("plan"), str):
        raise StateError(
            f"the weights of this mixture have the sha256 {digest}, expected {note.get('sha256')}: the file "
            "is damaged; copy it again, or let the device personalize again"
        )
    return StoredMixture(mixture, note["plan"], True)


def _digest(mixture: Mixture) -> str:
    """Return the sha256 over the signature, and the names, types, shapes and values of the weights."""
    hashed = hashlib.sha256(b"" if mixture.signature == PREDICT_MIXTURE else mixture.signature.encode())
    for name in sorted(mixture.weights):
        array = np.asarray(mixture.weights[name], order="C")
        hashed.update(json.dumps([name, str(array.dtype), array.shape]).encode())
        hashed.update(array.tobytes())
    return hashed.hexdigest()
