"""How a client ends: it makes several models, compares them on samples it held out, and ships one.

The models are the client's local model, the federation's model, that model after some epochs on the client's
own samples, and the mixture of the algorithm. First all are made without the validation samples and compared
on them. Then all are made again on all training samples: these are measured, and the chosen one is shipped.
Test samples choose nothing.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edgefl.algorithms.base import Algorithm
from edgefl.algorithms.names import FEDERATED, FINE_TUNED, LOCAL, LOCAL_EPOCHS, LOCAL_START, MIXED
from edgefl.client.batch_norm import reestimate
from edgefl.client.selection import SIMPLEST_FIRST, choose
from edgefl.client.validation import FEW_SAMPLES, Split, validation_folds
from edgefl.config import PersonalizationConfig
from edgefl.learner.base import Learner
from edgefl.plan.spec import MIXTURE, SINGLE, TRAIN_SINGLE
from edgefl.types import Array, Broadcast, ClientState, Labels, Mixture, Peer, Scalars, Shard, Weights

RngFor = Callable[[str], np.random.Generator]
"""Returns a generator for a purpose; the empty purpose is the algorithm's."""
Correct = NDArray[np.bool_]


@dataclass(frozen=True)
class Candidates:
    """The models that a client compares, made on the same samples.

    Attributes:
        models: by name, see `SIMPLEST_FIRST`; one that the algorithm does not have is left out.
        mixture: the algorithm's mixture, with its peers and diagnostics.
        state: the client's state after the personalization.
    """

    models: Mapping[str, Peer]
    mixture: Mixture
    state: ClientState


def personalize(
    algorithm: Algorithm,
    learner: Learner,
    broadcast: Broadcast,
    state: ClientState,
    shard: Shard,
    split: Split,
    settings: PersonalizationConfig,
    seed: int,
    client_id: str,
    rng_of: RngFor,
) -> tuple[Mixture, ClientState, Scalars]:
    """Make the models of a client, choose one, and measure all of them on the client's test samples.

    Args:
        algorithm: the algorithm, with a learner.
        learner: runs the plan.
        broadcast: the last broadcast.
        state: what the client kept after its last round.
        shard: all training samples of the client, and its test samples.
        split: the same, with the validation samples held out.
        settings: `[personalization]` of the federation.
        seed: the seed of the federation, from which folds are drawn.
        client_id: the client.
        rng_of: see `RngFor`; every call with the same purpose gives the same draws.

    Returns:
        The shipped model with the others as its peers, the client's state, and the metrics: n_train,
        n_validation, n_test, accuracy_NAME of each model, accuracy_shipped, shipped (an index into
        `SIMPLEST_FIRST`), and of the test samples that exactly one of the shipped and the local model is
        right about, how many the shipped one is (test_gained) and how many the local one is (test_lost). An
        accuracy without test samples is NaN.
    """

    def make(samples: Shard) -> Candidates:
        return make_candidates(algorithm, learner, broadcast, state, samples, settings, rng_of)

    correct: dict[str, Correct] = {}
    if settings.select:
        splits = [split]
        if len(shard.y_train) < FEW_SAMPLES:
            splits = list(validation_folds(shard, seed, client_id))
        correct = _compare(make, learner, splits)
    made = make(shard)
    chosen = choose(correct) if correct else MIXED
    shipped = made.models[chosen]
    peers = {**made.mixture.peers, **made.models}
    right = {name: is_correct(learner, peer, shard.x_test, shard.y_test) for name, peer in peers.items()}
    metrics = {
        "n_train": float(len(split.train.y_train)),
        "n_validation": float(len(split.y)),
        "n_test": float(len(shard.y_test)),
        **{f"accuracy_{name}": _mean(each) for name, each in right.items()},
        "accuracy_shipped": _mean(right[chosen]),
        "shipped": float(SIMPLEST_FIRST.index(chosen)),
    }
    if LOCAL in right:
        metrics["test_gained"] = float((right[chosen] & ~right[LOCAL]).sum())
        metrics["test_lost"] = float((right[LOCAL] & ~right[chosen]).sum())
    compared = {f"validation/{name}": _mean(each) for name, each in correct.items()}
    mixture = Mixture(
        shipped.weights, peers, {**made.mixture.diagnostics, **compared}, signature=shipped.signature
    )
    return mixture, made.state, metrics


def make_candidates(
    algorithm: Algorithm,
    learner: Learner,
    broadcast: Broadcast,
    state: ClientState,
    shard: Shard,
    settings: PersonalizationConfig,
    rng_of: RngFor,
) -> Candidates:
    """Make the models of a client on the training samples of a shard; see `personalize`."""
    mixture, after = algorithm.personalize(broadcast, state, shard, rng_of(""))
    models = {}
    if LOCAL_START in broadcast.models:
        start = broadcast.models[LOCAL_START]
        epochs = int(broadcast.scalars[LOCAL_EPOCHS])
        local = train_single(learner, start, shard, epochs, settings.learning_rate, rng_of(LOCAL))
        models[LOCAL] = Peer(SINGLE, local)
    if FEDERATED in mixture.peers:
        models[FEDERATED] = mixture.peers[FEDERATED]
    shared = [peer for peer in mixture.peers.values() if peer.signature == SINGLE]
    if settings.select and shared:
        start = models[FEDERATED].weights if models.get(FEDERATED) in shared else shared[0].weights
        rng = rng_of(FINE_TUNED)
        tuned = train_single(learner, start, shard, settings.epochs, settings.learning_rate, rng)
        models[FINE_TUNED] = Peer(SINGLE, tuned)
    models[MIXED] = Peer(MIXTURE, mixture.weights)
    return Candidates(models, mixture, after)


def train_single(
    learner: Learner,
    start: Weights,
    shard: Shard,
    epochs: int,
    learning_rate: float,
    rng: np.random.Generator,
) -> Weights:
    """Return one model, trained on the training samples of a shard from these weights."""
    trained, _ = learner.fit(
        TRAIN_SINGLE,
        start,
        {"x": shard.x_train},
        shard.y_train,
        epochs=epochs,
        rng=rng,
        hyper={"learning_rate": learning_rate},
    )
    return reestimate(learner, TRAIN_SINGLE, {**start, **trained}, shard.x_train, shard.y_train, rng)


def is_correct(learner: Learner, peer: Peer, x: Array, y: Labels) -> Correct:
    """Return whether a model is right about each sample, bool[n]."""
    if not len(y):
        return np.zeros(0, np.bool_)
    return np.asarray(learner.predict(peer.signature, peer.weights, {"x": x}).argmax(axis=1) == y)


def _compare(
    make: Callable[[Shard], Candidates], learner: Learner, splits: list[Split]
) -> dict[str, Correct]:
    """Return whether each model is right about each validation sample of all splits."""
    found: dict[str, list[Correct]] = {}
    for split in splits:
        if not len(split.y) or not len(split.train.y_train):
            continue
        for name, peer in make(split.train).models.items():
            found.setdefault(name, []).append(is_correct(learner, peer, split.x, split.y))
    return {name: np.concatenate(parts) for name, parts in found.items()}


def _mean(correct: Correct) -> float:
    return float(correct.mean()) if len(correct) else float("nan")
