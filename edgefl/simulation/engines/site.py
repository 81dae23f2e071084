"""One place that runs clients: a plan, a learner made once, and all clients' shards."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from edgefl.algorithms import make_algorithm
from edgefl.algorithms.mixtures.gate_utilization import gate_by_class
from edgefl.algorithms.names import FEDERATED
from edgefl.client.update import client_rng, compressed, personalize_and_measure
from edgefl.errors import DataError
from edgefl.learner.base import Learner, evaluate
from edgefl.learner.litert import LiteRTLearner
from edgefl.plan.spec import Plan
from edgefl.types import Array, Broadcast, ClientState, Labels, Mixture, Peer, Scalars, Shard, Update, Weights

Row = tuple[Broadcast, ClientState, str]
Accuracies = NDArray[np.float64]
_KEPT = 16


@dataclass(frozen=True)
class Federation:
    """What every process of a simulation holds.

    test: samples that stand for everybody's, float32[n, *input_shape] and int64[n]; each mixture is measured
    on them too.
    codec: how updates travel, see `codecs`.
    """

    plan: Plan
    seed: int
    shards: Mapping[str, Shard]
    test: tuple[Array, Labels] | None = None
    codec: str = "fp32"


@dataclass(frozen=True)
class Ending:
    """What a client ends with.

    metrics: see `personalize_and_measure`, with `balanced_mixture`, the mean over the classes of the client's
    held-out split. confusion: int64[n, 3], how many held-out samples of a class were taken for a class:
    (true, predicted, count), zeros left out. gates: see `gate_by_class`, on the held-out split.
    on_test: accuracy by class on the federation's test samples, float64[classes], for `mixture` and each
    peer; NaN where a class has no sample. class_share: of the client's training samples, float64[classes].
    """

    mixture: Mixture
    metrics: Scalars
    class_share: Accuracies
    on_test: Mapping[str, Accuracies] = field(default_factory=dict)
    confusion: NDArray[np.int64] = field(default_factory=lambda: np.zeros((0, 3), np.int64))
    gates: NDArray[np.float64] = field(default_factory=lambda: np.zeros((0, 2)))


class Site:
    """Runs clients one after the other; see `Algorithm.local_update` and `personalize_and_measure`."""

    def __init__(self, federation: Federation, learner: Learner | None = None) -> None:
        self.federation = federation
        self.learner = learner or LiteRTLearner(federation.plan)
        spec = federation.plan.spec
        self.algorithm = compressed(
            make_algorithm(spec.algorithm, self.learner, spec.options), federation.codec
        )
        self._measured: dict[str, Accuracies] = {}

    def update(self, broadcast: Broadcast, state: ClientState, client_id: str) -> tuple[Update, ClientState]:
        """Train; DataError that names client and round when the loss is no number."""
        rng = client_rng(self.federation.seed, broadcast, client_id)
        try:
            return self.algorithm.local_update(
                broadcast, state, self.federation.shards[client_id], client_id, rng
            )
        except DataError as error:
            raise DataError(f"{client_id}, round {broadcast.round}: {error}") from error

    def personalize(
        self, broadcast: Broadcast, state: ClientState, client_id: str
    ) -> tuple[Ending, ClientState]:
        """Make the client's mixture and measure it on its own held-out split and on the federation's test
        samples.
        """
        rng = client_rng(self.federation.seed, broadcast, client_id)
        shard = self.federation.shards[client_id]
        try:
            mixture, state, metrics = personalize_and_measure(
                self.algorithm, self.learner, broadcast, state, shard, rng
            )
        except DataError as error:
            raise DataError(f"{client_id}, personalization: {error}") from error
        counts = np.bincount(shard.y_train, minlength=shard.num_classes)
        taken = self._taken("predict_mixture", mixture.weights, shard.x_test)
        own = _by_class(taken, shard.y_test, shard.num_classes)
        known = own[np.isfinite(own)]
        metrics = {**metrics, "balanced_mixture": float(known.mean()) if len(known) else float("nan")}
        on_test = self._on_test(mixture, shard.num_classes)
        told = confusion(shard.y_test, taken)
        gates = gate_by_class(self.learner, mixture.weights, shard.x_test, shard.y_test)
        return Ending(mixture, metrics, counts / max(1, counts.sum()), on_test, told, gates), state

    def evaluate(self, broadcast: Broadcast, state: ClientState, client_id: str) -> Scalars:
        """Return accuracy and loss on the client's held-out split of the mixture that it would make now, and
        of what the federation gives.

        The names are accuracy_mixture, loss_mixture, accuracy_federated, loss_federated; NaN for an empty
        split.
        """
        rng = client_rng(self.federation.seed, broadcast, client_id)
        shard = self.federation.shards[client_id]
        try:
            mixture, _ = self.algorithm.personalize(broadcast, state, shard, rng)
        except DataError as error:
            raise DataError(f"{client_id}, evaluation before round {broadcast.round}: {error}") from error
        peers = {"mixture": Peer("predict_mixture", mixture.weights)} | {
            n: p for n, p in mixture.peers.items() if n == FEDERATED
        }
        found: dict[str, float] = {}
        for name, peer in peers.items():
            told = evaluate(self.learner, peer.signature, peer.weights, shard.x_test, shard.y_test)
            found |= {f"accuracy_{name}": told.accuracy, f"loss_{name}": told.loss}
        return found

    def _on_test(self, mixture: Mixture, num_classes: int) -> dict[str, Accuracies]:
        if self.federation.test is None:
            return {}
        x, y = self.federation.test
        found = {}
        for name, peer in {"mixture": Peer("predict_mixture", mixture.weights), **mixture.peers}.items():
            # the global model, say, is the same for many clients
            key = _digest(peer.signature, peer.weights)
            if key not in self._measured:
                while len(self._measured) >= _KEPT:
                    del self._measured[next(iter(self._measured))]
                self._measured[key] = _by_class(self._taken(peer.signature, peer.weights, x), y, num_classes)
            found[name] = self._measured[key]
        return found

    def _taken(self, signature: str, weights: Weights, x: Array) -> Labels:
        return (
            self.learner.predict(signature, weights, {"x": x}).argmax(axis=1)
            if len(x)
            else np.zeros(0, np.int64)
        )


def confusion(true: Labels, predicted: Labels) -> NDArray[np.int64]:
    """Return (true, predicted, count) of the pairs that occur, int64[n, 3], sorted."""
    pairs, counts = np.unique(np.stack([true, predicted], axis=1), axis=0, return_counts=True)
    return np.column_stack([pairs, counts]).astype(np.int64).reshape(-1, 3)


def _by_class(taken: Labels, y: Labels, num_classes: int) -> Accuracies:
    if len(y) == 0:
        return np.full(num_classes, np.nan)
    counts = np.bincount(y, minlength=num_classes)
    with np.errstate(invalid="ignore"):
        return np.asarray(np.bincount(y, taken == y, num_classes) / counts)


def _digest(signature: str, weights: Weights) -> str:
    found = hashlib.sha256(signature.encode())
    for name, array in weights.items():
        found.update(name.encode())
        found.update(np.ascontiguousarray(array).tobytes())
    return found.hexdigest()
