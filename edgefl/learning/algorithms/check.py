"""The laws that every algorithm must satisfy, checked on two rounds of a small federation."""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

import numpy as np

from edgefl.base.rng import derive_rng
from edgefl.base.types import Broadcast, ClientState, Mixture, Scalars, ServerState, Shard, Update, Weights
from edgefl.learning.algorithms.base import PHASE_PERSONALIZE, Algorithm, canonicalize_updates
from edgefl.learning.checkpoint import (
    decode_client_state,
    decode_server_state,
    encode_client_state,
    encode_mixture,
    encode_server_state,
)
from edgefl.program.learner.base import Learner

CHECK_ROUNDS = 2
LATE_CLIENT_ID = "zz-late"
"""A client that sorts after all others and joins after the rounds."""

StateByClient = Mapping[str, ClientState]
ResultByClient = Mapping[str, tuple[Update, ClientState]]


def check_algorithm(
    make: Callable[[Learner | None], Algorithm],
    learner: Learner,
    initial: Weights,
    shards: Mapping[str, Shard],
    seed: int = 1,
) -> None:
    """Check that an algorithm satisfies the laws.

    The laws are:

    - The aggregator's functions need no learner.
    - The same seed gives the same bits.
    - No argument is changed in place.
    - The order of arrival, duplicates and stale updates change nothing.
    - An update has only deltas of models in the broadcast, with the same names and shapes, as finite float32.
      It reports a loss.
    - An update holds the models that `trained` of the algorithm requires and allows.
    - The states of server and clients can be saved and loaded after any round.
    - A round without updates ends normally.
    - A client that lost its state, or joins after the rounds, gets a mixture.
    - The mixture and its peers fit the plan.

    Args:
        make: the algorithm's factory with its options bound. It takes a learner or None.
        initial: the initial weights, which fit the learner's spec.
        shards: samples by client id, for two or more clients.

    Raises:
        AssertionError: the algorithm breaks a law, which the message names.
    """
    server = make(None)
    device = make(learner)
    state = server.init(initial, derive_rng(seed, 0, "init"))
    _check_equal(
        "the same seed gives the same start",
        encode_server_state(state),
        encode_server_state(server.init(initial, derive_rng(seed, 0, "init"))),
    )
    clients: StateByClient = {client_id: ClientState() for client_id in shards}
    for _ in range(CHECK_ROUNDS):
        state, clients = _check_round(device, server, state, clients, shards, seed)
    state = replace(state, phase=PHASE_PERSONALIZE)
    for client_id, shard in shards.items():
        _check_personalization(device, server, learner, state, client_id, clients[client_id], shard, seed)
    for client_id in (next(iter(shards)), LATE_CLIENT_ID):
        _check_personalization(
            device, server, learner, state, client_id, ClientState(), next(iter(shards.values())), seed
        )


def _check_round(
    device: Algorithm,
    server: Algorithm,
    state: ServerState,
    clients: StateByClient,
    shards: Mapping[str, Shard],
    seed: int,
) -> tuple[ServerState, StateByClient]:
    """Run one round in several ways that must give the same result, and return the states after it."""
    before = encode_server_state(state)
    encoded_clients = {c: encode_client_state(clients[c]) for c in shards}
    results = _train_clients(device, server, state, clients, shards, seed)
    _check_equal("no argument is changed in place", before, encode_server_state(state))
    _check_equal(
        "no argument is changed in place",
        _join_parts(encoded_clients.values()),
        _join_parts(encode_client_state(clients[c]) for c in shards),
    )
    again = _train_clients(
        device,
        server,
        decode_server_state(before),
        {c: decode_client_state(encoded_clients[c]) for c in shards},
        shards,
        seed,
    )
    if _encode_results(results) != _encode_results(again):
        twice = _train_clients(device, server, state, clients, shards, seed)
        _check_equal("the same seed gives the same bits", _encode_results(results), _encode_results(twice))
        raise AssertionError("law broken: states of server and clients survive a save and a load")
    lost = _train_clients(device, server, state, {c: ClientState() for c in shards}, shards, seed)
    for client_id in shards:
        broadcast = server.broadcast(state, client_id)
        for results_of_clients in (results, lost):
            update, _ = results_of_clients[client_id]
            _check_update(broadcast, update, client_id)
            if problem := server.trained.find_problem(update.deltas):
                raise AssertionError(
                    f"law broken: an update holds the models of `trained`; of {client_id}, {problem}"
                )
    updates = [update for update, _ in results.values()]
    after = server.aggregate(state, canonicalize_updates(state, updates))
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
    stale = replace(updates[0], client_id=LATE_CLIENT_ID, round=state.round - 1)
    doubled = server.aggregate(
        state, canonicalize_updates(state, [stale, *reversed(updates), updates[-1], updates[0]])
    )
    _check_equal(
        "arrival order, duplicates and stale updates change nothing", expected, encode_server_state(doubled)
    )
    lazy = (update for update in canonicalize_updates(state, updates))
    resumed = server.aggregate(decode_server_state(before), lazy)
    _check_equal(
        "state survives a save and a load, and updates may come one at a time",
        expected,
        encode_server_state(resumed),
    )
    return after, {client_id: client_state for client_id, (_, client_state) in results.items()}


def _train_clients(
    device: Algorithm,
    server: Algorithm,
    state: ServerState,
    clients: StateByClient,
    shards: Mapping[str, Shard],
    seed: int,
) -> dict[str, tuple[Update, ClientState]]:
    return {
        client_id: device.local_update(
            server.broadcast(state, client_id),
            clients[client_id],
            shard,
            client_id,
            _make_rng(seed, state, client_id),
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
            f"law broken: an update reports its loss; the update of {client_id} has "
            f"{', '.join(update.metrics) or 'no metrics'}"
        )


def _check_scalars(scalars: Scalars, what: str) -> None:
    for name, value in scalars.items():
        if type(value) is not float or math.isinf(value):
            raise AssertionError(f"law broken: {what} are floats, {name} is {value!r}")


def _check_personalization(
    device: Algorithm,
    server: Algorithm,
    learner: Learner,
    state: ServerState,
    client_id: str,
    client_state: ClientState,
    shard: Shard,
    seed: int,
) -> None:
    results: list[tuple[Mixture, ClientState]] = []
    for state_copy in (client_state, decode_client_state(encode_client_state(client_state))):
        results.append(
            device.personalize(
                server.broadcast(state, client_id), state_copy, shard, _make_rng(seed, state, client_id)
            )
        )
    _check_equal(
        "personalizing twice gives the same bits",
        *(encode_mixture(m) + encode_client_state(s) for m, s in results),
    )
    mixture, _ = results[0]
    _check_scalars(mixture.diagnostics, f"a mixture's diagnostics ({client_id})")
    predicted = [
        ("predict_mixture", mixture.weights),
        *((peer.signature, peer.weights) for peer in mixture.peers.values()),
    ]
    for signature, weights in predicted:
        if not np.isfinite(learner.predict(signature, weights, {"x": shard.x_test})).all():
            raise AssertionError(
                f"law broken: a mixture and its peers predict finite logits; {signature} of {client_id} does "
                "not"
            )


def _make_rng(seed: int, state: ServerState, client_id: str) -> np.random.Generator:
    return derive_rng(seed, state.round, client_id)


def _check_equal(law: str, a: bytes, b: bytes) -> None:
    if a != b:
        raise AssertionError(f"law broken: {law}")


def _join_parts(parts: Iterable[bytes]) -> bytes:
    return b"".join(parts)


def _encode_results(results: ResultByClient) -> bytes:
    parts = []
    for update, client_state in results.values():
        parts += [
            update.client_id.encode(),
            repr(sorted(update.metrics.items())).encode(),
            encode_client_state(client_state),
        ]
        parts += [
            model.encode() + name.encode() + a.tobytes()
            for model, w in sorted(update.deltas.items())
            for name, a in sorted(w.items())
        ]
    return b"".join(parts)
