"""The laws that every algorithm passes, checked on two rounds of a small federation."""

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np

from edgefl.algorithms.base import PERSONALIZE, Algorithm, canonical
from edgefl.checkpoint import decode_server_state, encode_client_state, encode_mixture, encode_server_state
from edgefl.learner.base import Learner
from edgefl.rng import rng_for
from edgefl.types import Broadcast, ClientState, Mixture, ServerState, Shard, Update, Weights

ROUNDS = 2


def _updates(device: Algorithm, server: Algorithm, state: ServerState, shards: Mapping[str, Shard], seed: int) -> list[Update]:
    return [device.local_update(server.broadcast(state, c), ClientState(), shards[c], c, rng_for(seed, state.round, c))[0] for c in shards]


def _same(law: str, a: bytes, b: bytes) -> None:
    if a != b:
        raise AssertionError(f"law broken: {law}")


def check_algorithm(
    make: Callable[[Learner | None], Algorithm], learner: Learner, initial: Weights, shards: Mapping[str, Shard], seed: int = 1
) -> None:
    """Raise AssertionError with the law that the algorithm breaks.

    `make` is the algorithm's factory, with its options bound; `initial` fits the learner's spec; two shards or more.
    Laws: the aggregator's side needs no learner; the same seed gives the same bits; no argument is changed in place; arrival
    order, duplicates and stale updates change nothing; an update holds what was broadcast, by name and shape, and nothing else;
    state survives a save and a load at any round; the mixture fits the plan.
    """
    server, device = make(None), make(learner)
    state = server.init(initial, rng_for(seed, 0, "init"))
    for _ in range(ROUNDS):
        before = encode_server_state(state)
        updates = _updates(device, server, state, shards, seed)
        _same("no argument is changed in place", before, encode_server_state(state))
        again = _updates(device, server, state, shards, seed)
        _same("the same seed gives the same bits", _update_bytes(updates), _update_bytes(again))
        for update in updates:
            _check_update(server.broadcast(state, update.client_id), update)
        after = server.aggregate(state, canonical(state, updates))
        expected = encode_server_state(after)
        if after.round != state.round + 1:
            raise AssertionError(f"law broken: aggregate ends a round, it went from {state.round} to {after.round}")
        stale = replace(updates[0], client_id="zz-stale", round=state.round - 1)
        doubled = server.aggregate(state, canonical(state, [stale, *reversed(updates), updates[-1], updates[0]]))
        _same("arrival order, duplicates and stale updates change nothing", expected, encode_server_state(doubled))
        lazy = (update for update in canonical(state, updates))
        resumed = server.aggregate(decode_server_state(before), lazy)
        _same("state survives a save and a load, and updates may come one at a time", expected, encode_server_state(resumed))
        state = after
    state = replace(state, phase=PERSONALIZE)
    for client_id, shard in shards.items():
        once, twice = (_personalize(device, server, state, client_id, shard, seed) for _ in range(2))
        _same("personalizing twice gives the same bits", *(encode_mixture(m) + encode_client_state(s) for m, s in (once, twice)))
        logits = learner.predict("predict_mixture", once[0].weights, {"x": shard.x_test})
        if not np.isfinite(logits).all():
            raise AssertionError(f"law broken: a mixture predicts finite logits, those of {client_id} are not")


def _personalize(
    device: Algorithm, server: Algorithm, state: ServerState, client_id: str, shard: Shard, seed: int
) -> tuple[Mixture, ClientState]:
    return device.personalize(server.broadcast(state, client_id), ClientState(), shard, rng_for(seed, state.round, client_id))


def _update_bytes(updates: list[Update]) -> bytes:
    return b"".join(u.client_id.encode() + a.tobytes() for u in updates for w in u.deltas.values() for a in w.values())


def _check_update(broadcast: Broadcast, update: Update) -> None:
    shapes = {model: {name: array.shape for name, array in weights.items()} for model, weights in broadcast.models.items()}
    for model, deltas in update.deltas.items():
        if {name: array.shape for name, array in deltas.items()} != shapes.get(model):
            raise AssertionError(f"law broken: an update holds what was broadcast; {update.client_id}'s {model} does not fit")
