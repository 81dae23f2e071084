"""Batch norm on a client: moving statistics are re-estimated before a model is measured or shipped.

A training step normalizes by the statistics of its batch. Prediction normalizes by their moving averages.
With a momentum of .99, the averages are still near their initial values after a hundred steps. Their mean
over clients fits no client. PreciseBN replaces the averages of a trained model by its statistics on a sample
of the data. This module does the same with a training signature of the plan: a step whose hyperparameters are
all 0 changes only the statistics.

Source: Wu and Johnson, Rethinking "Batch" in BatchNorm, arXiv:2105.07576, section 3.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace

import numpy as np

from edgefl.base.errors import DivergedError
from edgefl.base.rng import derive_rng
from edgefl.base.types import Array, Broadcast, ClientState, Labels, Mixture, Peer, Shard, Weights
from edgefl.learning.algorithms.base import Algorithm
from edgefl.learning.algorithms.names import LOCAL_START
from edgefl.learning.algorithms.server_optimizer import STATISTICS
from edgefl.program.learner.base import Learner
from edgefl.program.plan.spec import PREDICT_MIXTURE, PREDICT_SINGLE, TRAIN_SINGLE, PlanSpec, SignatureSpec

MEAN, VARIANCE = STATISTICS
TRAIN_SIGNATURE = "train"
"""The signature that trains the whole network in most plans without `TRAIN_SINGLE`."""
MAX_ROUND_SAMPLES = 64
"""Maximum number of samples for the statistics of a model that is measured in a round."""
MAX_STATISTICS_SAMPLES = 256
"""Maximum number of samples for the statistics. More than 32 do not help a ResNet-8 on CIFAR-10."""


def reestimate_statistics(
    learner: Learner,
    signature: str,
    weights: Weights,
    x: Array,
    y: Labels,
    rng: np.random.Generator,
    max_samples: int = MAX_STATISTICS_SAMPLES,
) -> Weights:
    """Return the weights with the moving statistics of these samples.

    All other weights are the same arrays. Weights without moving statistics are returned at no cost.

    One step from zero turns the statistics b of a batch into (1 - momentum) b. A second step on the first
    batch starts from that value, and the quotient gives the momentum. The new mean is the mean of the
    batches' means. The new variance is the variance over all samples: the mean of the batches' variances plus
    the variance of their means.

    Args:
        signature: name of a training signature of the plan.
        weights: the trained and frozen weights of the signature, and any others.
        x: samples, shape (n, *input_shape), float32.
        y: labels, shape (n,), int64. They do not affect the result. Neither do other data arguments of the
            signature, which are zero.
        rng: draws the samples and the noise of dropout.
        max_samples: maximum number of samples. If there are more, this many are drawn.

    Raises:
        DataError: the samples do not fit the plan.
        DivergedError: the loss of the samples is not a finite number.
        PlanError: the weights do not fit the signature.
    """
    spec = learner.spec.find_signature(signature)
    layers = list_normalized_layers(spec)
    if not layers or not len(y):
        return weights
    names = [f"{layer}/{part}" for layer in layers for part in STATISTICS]
    hyper = dict.fromkeys(spec.hyper, 0.0)
    unused_data = {tensor.name: tensor.shape[1:] for tensor in spec.data if tensor.name != "x"}

    def run_step(start: Weights, rows: Labels, seed: int) -> dict[str, Array]:
        trained, _ = learner.fit(
            signature,
            {**weights, **start},
            {"x": x[rows]}
            | {name: np.zeros((len(rows), *shape), np.float32) for name, shape in unused_data.items()},
            y[rows],
            epochs=1,
            rng=np.random.default_rng(seed),
            hyper=hyper,
            augment=False,  # predictions see samples as they are
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
    """Return the algorithm with the statistics of the client's own samples in all models that it uses.

    `personalize` receives models with the statistics of the client's training samples. Each model that it
    returns gets its statistics on these samples as well. `current` returns a model with statistics of fewer
    samples. If the plan has no moving statistics, the algorithm is returned unchanged.

    Args:
        algorithm: the algorithm with its learner.
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
        with suppress(DivergedError):  # the model keeps its statistics
            weights = make_renewer(learner, signature, shard, draws, MAX_ROUND_SAMPLES)(peer.weights)
            return replace(peer, weights=weights)
        return peer

    return replace(algorithm, personalize=personalize, current=current)


def find_training_signature(spec: PlanSpec) -> str | None:
    """Return the name of a signature that trains the whole network, or None without moving statistics."""
    names = [signature.name for signature in spec.signatures if list_normalized_layers(signature)]
    return next((name for name in (TRAIN_SINGLE, TRAIN_SIGNATURE) if name in names), None)


def make_renewer(
    learner: Learner, signature: str, shard: Shard, rng: np.random.Generator, max_samples: int
) -> Callable[[Weights], Weights]:
    """Return a function that re-estimates the statistics of a model or a mixture.

    The function re-estimates each complete network among the weights on the shard's training samples. The
    tensors of a network have a prefix, such as `local/`. The tensors of a single model have none. An
    incomplete network, such as a trunk below several heads, keeps its statistics. A network that the function
    has already re-estimated is not changed again.

    A signature may have weights that the network does not have, such as the received weights of a penalty.
    They affect only its loss, and they are zero.

    Args:
        signature: name of a training signature with moving statistics.
        rng: draws the samples and the noise of dropout.
        max_samples: maximum number of samples.
    """
    spec = learner.spec.find_signature(signature)
    all_shapes = {tensor.name: tensor.shape for tensor in (*spec.trained, *spec.frozen)}
    shapes = {name: all_shapes[name] for name in list_network_weights(learner.spec, spec)}
    unused = {name: np.zeros(shape, np.float32) for name, shape in all_shapes.items() if name not in shapes}
    first = f"{list_normalized_layers(spec)[0]}/{MEAN}"
    renewed: dict[tuple[int, ...], Weights] = {}
    """Re-estimated networks by the identities of their arrays, before and after."""
    alive: list[Weights] = []  # keeps the arrays, so that no identity is used again

    def renew_network(network: Weights) -> Weights:
        key = tuple(map(id, network.values()))
        if key not in renewed:
            new = reestimate_statistics(
                learner, signature, {**network, **unused}, shard.x_train, shard.y_train, rng, max_samples
            )
            new = {name: new[name] for name in network}
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


def list_network_weights(spec: PlanSpec, signature: SignatureSpec) -> list[str]:
    """Return the names of a training signature's weights that `predict` needs, in the plan's order.

    These are the weights of the network. In a plan without `predict`, they are all weights of the signature.
    """
    names = [tensor.name for tensor in (*signature.trained, *signature.frozen)]
    predicted = {
        tensor.name for other in spec.signatures if other.name == PREDICT_SINGLE for tensor in other.frozen
    }
    return [name for name in names if name in predicted] or names


def list_normalized_layers(signature: SignatureSpec) -> list[str]:
    """Return the layers whose moving mean and variance a training signature assigns, in the plan's order."""
    names = {spec.name for spec in signature.trained}
    layers = [
        spec.name.removesuffix(f"/{MEAN}") for spec in signature.trained if spec.name.endswith(f"/{MEAN}")
    ]
    return [layer for layer in layers if f"{layer}/{VARIANCE}" in names]


def draw_batches(count: int, batch_size: int, max_rows: int, rng: np.random.Generator) -> list[Labels]:
    """Return full batches of rows. The last batch is filled with rows of the first.

    Args:
        max_rows: maximum number of rows. If there are more, this many are drawn.

    Returns:
        The row numbers of each batch, shape (batch_size,), int64.
    """
    order = rng.permutation(count)[:max_rows]
    batches = -(-len(order) // batch_size)
    return list(np.resize(order, (batches, batch_size)))


def estimate_step_share(first: Array, second: Array) -> float:
    """Return s = 1 - momentum, or 0 if all statistics of the first step are zero.

    In that case, the momentum is 1 or the samples do not vary.

    Args:
        first: the statistics s b after one step from zero, shape (channels,), float32.
        second: the statistics (2 - s) s b after the same step from s b, shape (channels,), float32.
    """
    before = first.astype(np.float64).ravel()
    square = float(before @ before)
    return 2.0 - float(before @ second.astype(np.float64).ravel()) / square if square else 0.0


def pool_statistics(batches: Sequence[tuple[Array, Array]]) -> tuple[Array, Array]:
    """Return the mean and the variance over the union of several batches of equal size.

    Args:
        batches: mean and variance of each batch, shape (channels,), float32. At least one batch.

    Returns:
        Mean and variance, shape (channels,), float32.
    """
    means = np.stack([mean for mean, _ in batches]).astype(np.float64)
    variances = np.stack([variance for _, variance in batches]).astype(np.float64)
    return means.mean(axis=0).astype(np.float32), (variances.mean(axis=0) + means.var(axis=0)).astype(
        np.float32
    )
