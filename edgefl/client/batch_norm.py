"""Batch norm on a client: moving statistics are re-estimated before a model is measured or shipped.

A training step normalizes by the statistics of its batch. Prediction normalizes by moving averages of them.
With a momentum of .99 the averages are still near their initial values after a hundred steps, and the mean
over clients fits no client. Wu and Johnson, Rethinking "Batch" in BatchNorm, arXiv:2105.07576, section 3,
replace the averages of a trained model by its statistics on a sample of the data (PreciseBN). This module
does the same with a training signature of the plan: a step whose hyperparameters are all 0 changes the
statistics alone.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace

import numpy as np

from edgefl.algorithms.base import Algorithm
from edgefl.algorithms.names import LOCAL_START
from edgefl.algorithms.server_optimizer import STATISTICS
from edgefl.errors import DivergedError
from edgefl.learner.base import Learner
from edgefl.plan.spec import PREDICT_MIXTURE, PREDICT_SINGLE, TRAIN_SINGLE, PlanSpec, SignatureSpec
from edgefl.rng import derive_rng
from edgefl.types import Array, Broadcast, ClientState, Labels, Mixture, Peer, Shard, Weights

MEAN, VARIANCE = STATISTICS
TRAIN_SIGNATURE = "train"
"""The signature that trains the whole network in most plans without `TRAIN_SINGLE`."""
MAX_ROUND_SAMPLES = 64
"""Number of samples whose statistics a model gets that is measured in a round."""
MAX_STATISTICS_SAMPLES = 256
"""Number of samples whose statistics a model gets. More than 32 do not help a ResNet-8 on CIFAR-10."""


def reestimate_statistics(
    learner: Learner,
    signature: str,
    weights: Weights,
    x: Array,
    y: Labels,
    rng: np.random.Generator,
    max_samples: int = MAX_STATISTICS_SAMPLES,
) -> Weights:
    """Return the weights with the moving statistics that these samples have.

    All other weights are the same arrays. Weights without moving statistics are returned at no cost.

    One step from zero makes the statistics of a batch, b, to (1 - momentum) b. A second step on the first
    batch starts from that value, and the quotient gives the momentum. The new mean is the mean of the
    batches' means. The new variance is the variance over all samples: the mean of the batches' variances plus
    the variance of their means.

    Args:
        learner: runs the plan.
        signature: the name of a training signature of the plan.
        weights: the trained and frozen weights of the signature, and any others.
        x: float32[n, *input_shape], the samples.
        y: int64[n], their labels. They do not affect the result.
        rng: draws the samples, and the noise of dropout.
        max_samples: the number of samples that are drawn, if there are more.

    Raises:
        DataError: The samples do not fit the plan.
        DivergedError: The loss of the samples is not a finite number.
    """
    spec = learner.spec.find_signature(signature)
    layers = list_normalized_layers(spec)
    if not layers or not len(y):
        return weights
    names = [f"{layer}/{part}" for layer in layers for part in STATISTICS]
    hyper = dict.fromkeys(spec.hyper, 0.0)

    def run_step(start: Weights, rows: Labels, seed: int) -> dict[str, Array]:
        trained, _ = learner.fit(
            signature,
            {**weights, **start},
            {"x": x[rows]},
            y[rows],
            epochs=1,
            rng=np.random.default_rng(seed),
            hyper=hyper,
        )
        return {name: trained[name] for name in names}

    zeros = {name: np.zeros_like(weights[name]) for name in names}
    batches = draw_batches(len(y), spec.batch_size, max_samples, rng)
    seeds = [int(seed) for seed in rng.integers(2**63, size=len(batches))]
    batch_statistics = [run_step(zeros, rows, seed) for rows, seed in zip(batches, seeds, strict=True)]
    again = run_step(batch_statistics[0], batches[0], seeds[0])
    new: dict[str, Array] = {}
    for layer in layers:
        mean, variance = f"{layer}/{MEAN}", f"{layer}/{VARIANCE}"
        share = estimate_step_share(batch_statistics[0][variance], again[variance])
        if share > 0:
            new[mean], new[variance] = pool_statistics(
                [(batch[mean] / share, batch[variance] / share) for batch in batch_statistics]
            )
    return {**weights, **new}


def with_statistics(algorithm: Algorithm, learner: Learner) -> Algorithm:
    """Return the algorithm with statistics of the client's own samples in what it personalizes and measures.

    `personalize` receives models with statistics of the client's training samples, and each model that it
    returns gets the statistics that it has on them. `current` returns such a model too, of fewer samples. A
    plan without moving statistics leaves the algorithm as it is.
    """
    signature = find_training_signature(learner.spec)
    if signature is None:
        return algorithm

    def personalize(
        broadcast: Broadcast, state: ClientState, shard: Shard, rng: np.random.Generator
    ) -> tuple[Mixture, ClientState]:
        draws = derive_rng(int(rng.integers(2**31)), broadcast.round, "statistics")
        renew = make_renewer(learner, signature, shard, draws, MAX_STATISTICS_SAMPLES)
        models = {
            name: weights if name == LOCAL_START else renew(weights)
            for name, weights in broadcast.models.items()
        }
        mixture, after = algorithm.personalize(replace(broadcast, models=models), state, shard, rng)
        peers = {
            name: replace(peer, weights=renew(peer.weights))
            if peer.signature in (PREDICT_SINGLE, PREDICT_MIXTURE)
            else peer
            for name, peer in mixture.peers.items()
        }
        return replace(mixture, weights=renew(mixture.weights), peers=peers), after

    def current(broadcast: Broadcast, state: ClientState, shard: Shard) -> Peer | None:
        peer = algorithm.current(broadcast, state, shard)
        if peer is None or peer.signature not in (PREDICT_SINGLE, PREDICT_MIXTURE):
            return peer
        draws = derive_rng(0, broadcast.round, "statistics")
        with suppress(DivergedError):  # the model is measured as it is
            weights = make_renewer(learner, signature, shard, draws, MAX_ROUND_SAMPLES)(peer.weights)
            return replace(peer, weights=weights)
        return peer

    return replace(algorithm, personalize=personalize, current=current)


def find_training_signature(spec: PlanSpec) -> str | None:
    """Return the name of a signature that trains the plan's whole network; None without moving statistics."""
    names = [signature.name for signature in spec.signatures if list_normalized_layers(signature)]
    return next((name for name in (TRAIN_SINGLE, TRAIN_SIGNATURE) if name in names), None)


def make_renewer(
    learner: Learner, signature: str, shard: Shard, rng: np.random.Generator, max_samples: int
) -> Callable[[Weights], Weights]:
    """Return a function from a model or a mixture to the same with statistics of a shard's training samples.

    The function re-estimates each complete network among the weights. The tensors of a network have a prefix,
    such as `local/`. Those of a single model have none. An incomplete network, such as a trunk below several
    heads, keeps its statistics. A network that the function has already re-estimated is not changed again.
    """
    spec = learner.spec.find_signature(signature)
    shapes = {tensor.name: tensor.shape for tensor in (*spec.trained, *spec.frozen)}
    first = f"{list_normalized_layers(spec)[0]}/{MEAN}"
    renewed: dict[tuple[int, ...], Weights] = {}
    """Networks by the identities of their arrays, old and new."""
    alive: list[Weights] = []

    def renew_network(network: Weights) -> Weights:
        key = tuple(map(id, network.values()))
        if key not in renewed:
            new = reestimate_statistics(
                learner, signature, network, shard.x_train, shard.y_train, rng, max_samples
            )
            alive.extend((network, new))
            renewed[key] = renewed[tuple(map(id, new.values()))] = new
        return renewed[key]

    def renew(weights: Weights) -> Weights:
        new: dict[str, Array] = {}
        for prefix in [name.removesuffix(first) for name in weights if f"/{name}".endswith(f"/{first}")]:
            network = {name: weights[prefix + name] for name in shapes if prefix + name in weights}
            if {name: array.shape for name, array in network.items()} == shapes:
                new |= {prefix + name: array for name, array in renew_network(network).items()}
        return {**weights, **new}

    return renew


def list_normalized_layers(signature: SignatureSpec) -> list[str]:
    """Return the layers whose moving mean and variance a training signature assigns, in the plan's order."""
    names = {spec.name for spec in signature.trained}
    layers = [
        spec.name.removesuffix(f"/{MEAN}") for spec in signature.trained if spec.name.endswith(f"/{MEAN}")
    ]
    return [layer for layer in layers if f"{layer}/{VARIANCE}" in names]


def draw_batches(count: int, batch_size: int, max_rows: int, rng: np.random.Generator) -> list[Labels]:
    """Return full batches, int64[batch_size] each, of the row numbers 0..count-1, or of `max_rows` of them.

    The last batch is filled with rows of the first.
    """
    order = rng.permutation(count)[:max_rows]
    batches = -(-len(order) // batch_size)
    return list(np.resize(order, (batches, batch_size)))


def estimate_step_share(first: Array, second: Array) -> float:
    """Return s = 1 - momentum from the statistics s b after one step from zero, and (2 - s) s b after the
    same step from s b.

    0 when the first are all zero: the momentum is 1, or the samples do not vary.
    """
    before = first.astype(np.float64).ravel()
    square = float(before @ before)
    return 2.0 - float(before @ second.astype(np.float64).ravel()) / square if square else 0.0


def pool_statistics(batches: Sequence[tuple[Array, Array]]) -> tuple[Array, Array]:
    """Return the mean and the variance of the union of batches of one size: float32[channels] each.

    batches: mean and variance of each batch.
    """
    means = np.stack([mean for mean, _ in batches]).astype(np.float64)
    variances = np.stack([variance for _, variance in batches]).astype(np.float64)
    return means.mean(axis=0).astype(np.float32), (variances.mean(axis=0) + means.var(axis=0)).astype(
        np.float32
    )
