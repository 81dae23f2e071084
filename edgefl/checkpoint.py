"""States and mixtures <-> bytes for a local disk: safetensors with a JSON note, the same state gives the same bytes."""

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load, save

from edgefl.errors import StateError
from edgefl.types import ClientState, Mixture, ServerState, Weights

NOTE = "note.json"
"""The tensor that holds the JSON: header metadata has no fixed order in safetensors, and states must give the same bytes."""


def _encode(kind: str, note: Mapping[str, object], groups: Mapping[str, Weights]) -> bytes:
    text = json.dumps({"kind": kind, **note}, sort_keys=True).encode()
    tensors = {f"{group}:{name}": array for group, arrays in groups.items() for name, array in arrays.items()}
    return bytes(save({NOTE: np.frombuffer(text, np.uint8), **{k: np.asarray(tensors[k], order="C") for k in sorted(tensors)}}))


def _decode(kind: str, blob: bytes, **fields: type) -> tuple[dict[str, Any], dict[str, dict[str, np.ndarray]]]:
    try:
        tensors = load(blob)
        note = json.loads(tensors.pop(NOTE).tobytes())
        if note["kind"] != kind:
            raise StateError(f"this file holds a {note['kind']}, expected a {kind}")
        if lacking := [name for name, cls in fields.items() if type(note.get(name)) is not cls]:
            raise ValueError(f"its note has no {lacking[0]}")
        if not all(isinstance(value, int | float) for value in note.get("scalars", {}).values()):
            raise ValueError("a scalar is no number")
    except (SafetensorError, AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise StateError(f"this file is not a {kind} (truncated or foreign): {error}; remove it to start afresh") from error
    groups: dict[str, dict[str, np.ndarray]] = {}
    for key, array in tensors.items():
        group, _, name = key.partition(":")
        groups.setdefault(group, {})[name] = array
    return note, groups


def encode_server_state(state: ServerState) -> bytes:
    """Return the aggregator's state as bytes."""
    groups = {f"models/{n}": w for n, w in state.models.items()} | {f"slots/{n}": w for n, w in state.slots.items()}
    return _encode("server state", {"round": state.round, "phase": state.phase, "scalars": dict(state.scalars)}, groups)


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


def encode_mixture(mixture: Mixture) -> bytes:
    """Return a mixture as bytes, for the device's own disk only."""
    return _encode("mixture", {}, {"weights": mixture.weights})


def decode_mixture(blob: bytes) -> Mixture:
    """Read a mixture; StateError when the bytes are not one."""
    return Mixture(_decode("mixture", blob)[1].get("weights", {}))
