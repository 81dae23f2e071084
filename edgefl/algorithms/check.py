"""The laws that every algorithm passes, checked on two rounds of a small federation."""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

import numpy as np

from edgefl.algorithms.base import PERSONALIZE, Algorithm, canonical
from edgefl.learner.base import Learner
from edgefl.rng import rng_for
from edgefl.storage.checkpoint import (
    decode_client_state,
    decode_server_state,
    encode_client_state,
    encode_mixture,
    encode_server_state,
)
from edgefl.types import Broadcast, ClientState, Mixture, Scalars, ServerState, Shard, Update, Weights

ROUNDS = 2
LATE = "zz-late"
"""Sorts behind all clients, and joins when the rounds are over."""

States = Mapping[str, ClientState]
Results = Mapping[str, tuple[Update, ClientState]]


def check_algorithm(
    make: Callable[[Learner | None], Algorithm],
    learner: Learner,
    initial: Weights,
    shards: Mapping[str, Shard],
    seed: int = 1,
) -> None:
    """Raise AssertionError with the law that the algorithm breaks.

    `make` is the algorithm's factory, with its options bound; `initial` fits the learner's spec; two shards
    or more.
    Laws: the aggregator's side needs no learner; the same seed gives the same bits; no argument is changed in
    place; arrival order, duplicates and stale updates change nothing; an update holds what was broadcast, by
    name and shape, and nothing else, finite float32 and a loss; states of server and clients survive a save
    and a load at any round; a round without updates passes; a client that lost its state, or comes late, is
    served; the mixture fits the plan.
    """
    server = make(None)
    device = make(learner)
    state = server.init(initial, rng_for(seed, 0, "init"))
    _same(
        "the same seed gives the same start",
        encode_server_state(state),
        encode_server_state(server.init(initial, rng_for(seed, 0, "init"))),
    )
    clients: States = {client_id: ClientState() for client_id in shards}
    for _ in range(ROUNDS):
        state, clients = _check_round(device, server, state, clients, shards, seed)
    state = replace(state, phase=PERSONALIZE)
    for client_id, shard in shards.items():
        _check_ending(device, server, learner, state, client_id, clients[client_id], shard, seed)
    for client_id in (next(iter(shards)), LATE):
        _check_ending(
            device, server, learner, state, client_id, ClientState(), next(iter(shards.values())), seed
        )


def _check_round(
    device: Algorithm,
    server: Algorithm,
    state: ServerState,
    clients: States,
    shards: Mapping[str, Shard],
    seed: int,
) -> tuple[ServerState, States]:
    """Play one round in several ways that must come to the same; return the states after it."""
    before = encode_server_state(state)
    own = {c: encode_client_state(clients[c]) for c in shards}
    results = _play(device, server, state, clients, shards, seed)
    _same("no argument is changed in place", before, encode_server_state(state))
    _same(
        "no argument is changed in place",
        _joined(own.values()),
        _joined(encode_client_state(clients[c]) for c in shards),
    )
    again = _play(
        device,
        server,
        decode_server_state(before),
        {c: decode_client_state(own[c]) for c in shards},
        shards,
        seed,
    )
    if _result_bytes(results) != _result_bytes(again):
        twice = _play(device, server, state, clients, shards, seed)
        _same("the same seed gives the same bits", _result_bytes(results), _result_bytes(twice))
        raise AssertionError("law broken: states of server and clients survive a save and a load")
    lost = _play(device, server, state, {c: ClientState() for c in shards}, shards, seed)
    for client_id in shards:
        broadcast = server.broadcast(state, client_id)
        _check_update(broadcast, results[client_id][0], client_id)
        _check_update(broadcast, lost[client_id][0], client_id)
    updates = [update for update, _ in results.values()]
    after = server.aggregate(state, canonical(state, updates))
    expected = encode_server_state(after)
    empty = server.aggregate(state, [])
    if after.round != state.round + 1 or empty.round != state.round + 1:
        raise AssertionError(
            f"law broken: aggregate ends a round, it went from {state.round} to {after.round}, or "
            f"{empty.round} when empty"
        )
    for name, weights in empty.models.items():
        if not all(np.isfinite(array).all() for array in weights.values()):
            raise AssertionError(f"law broken: a round without updates passes; {name} is no longer finite")
    stale = replace(updates[0], client_id=LATE, round=state.round - 1)
    doubled = server.aggregate(state, canonical(state, [stale, *reversed(updates), updates[-1], updates[0]]))
    _same(
        "arrival order, duplicates and stale updates change nothing", expected, encode_server_state(doubled)
    )
    lazy = (update for update in canonical(state, updates))
    resumed = server.aggregate(decode_server_state(before), lazy)
    _same(
        "state survives a save and a load, and updates may come one at a time",
        expected,
        encode_server_state(resumed),
    )
    return after, {client_id: kept for client_id, (_, kept) in results.items()}


def _play(
    device: Algorithm,
    server: Algorithm,
    state: ServerState,
    clients: States,
    shards: Mapping[str, Shard],
    seed: int,
) -> dict[str, tuple[Update, ClientState]]:
    return {
        client_id: device.local_update(
            server.broadcast(state, client_id),
            clients[client_id],
            shard,
            client_id,
            _rng(seed, state, client_id),
        )
        for client_id, shard in shards.items()
    }


def _check_update(broadcast: Broadcast, update: Update, client_id: str) -> None:
    if (update.client_id, update.round) != (client_id, broadcast.round):
        raise AssertionError(
            f"law broken: an update names its client and round, not {update.client_id}, {update.round}"
        )
    shapes = {
        model: {name: array.shape for name, array in weights.items()}
        for model, weights in broadcast.models.items()
    }
    for model, deltas in update.deltas.items():
        if {name: array.shape for name, array in deltas.items()} != shapes.get(model):
            raise AssertionError(
                f"law broken: an update holds what was broadcast; {client_id}'s {model} does not fit"
            )
        for name, array in deltas.items():
            if array.dtype != np.float32 or not np.isfinite(array).all():
                raise AssertionError(
                    f"law broken: an update is finite float32; {client_id}'s {model} {name} is not"
                )
    _check_scalars(update.metrics, f"an update's metrics ({client_id})")
    if "loss" not in update.metrics:
        raise AssertionError(
            f"law broken: an update tells its loss; that of {client_id} has "
            f"{', '.join(update.metrics) or 'no metrics'}"
        )


def _check_scalars(scalars: Scalars, what: str) -> None:
    for name, value in scalars.items():
        if type(value) is not float or math.isinf(value):
            raise AssertionError(f"law broken: {what} are floats, {name} is {value!r}")


def _check_ending(
    device: Algorithm,
    server: Algorithm,
    learner: Learner,
    state: ServerState,
    client_id: str,
    own: ClientState,
    shard: Shard,
    seed: int,
) -> None:
    ends: list[tuple[Mixture, ClientState]] = []
    for given in (own, decode_client_state(encode_client_state(own))):
        ends.append(
            device.personalize(server.broadcast(state, client_id), given, shard, _rng(seed, state, client_id))
        )
    _same(
        "personalizing twice gives the same bits",
        *(encode_mixture(m) + encode_client_state(s) for m, s in ends),
    )
    mixture, _ = ends[0]
    _check_scalars(mixture.diagnostics, f"a mixture's diagnostics ({client_id})")
    predicted = [
        ("predict_mixture", mixture.weights),
        *((peer.signature, peer.weights) for peer in mixture.peers.values()),
    ]
    for signature, weights in predicted:
        if not np.isfinite(learner.predict(signature, weights, {"x": shard.x_test})).all():
            raise AssertionError(
                f"law broken: a mixture and its peers predict finite logits, {signature} of {client_id} does "
                "not"
            )


def _rng(seed: int, state: ServerState, client_id: str) -> np.random.Generator:
    return rng_for(seed, state.round, client_id)


def _same(law: str, a: bytes, b: bytes) -> None:
    if a != b:
        raise AssertionError(f"law broken: {law}")


def _joined(parts: Iterable[bytes]) -> bytes:
    return b"".join(parts)


def _result_bytes(results: Results) -> bytes:
    parts = []
    for update, kept in results.values():
        parts += [
            update.client_id.encode(),
            repr(sorted(update.metrics.items())).encode(),
            encode_client_state(kept),
        ]
        parts += [
            model.encode() + name.encode() + a.tobytes()
            for model, w in sorted(update.deltas.items())
            for name, a in sorted(w.items())
        ]
    return b"".join(parts)
