"""The clients of a simulation: the data of each process, and the functions that it runs for one client.

The client runner trains and personalizes, as on a device. This module adds the measurements that only a
simulation can make. It has the samples of all clients, and a test set that represents all clients.
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from edgefl.base.errors import DivergedError
from edgefl.base.types import (
    Array,
    ClientState,
    Labels,
    Mixture,
    Peer,
    Scalars,
    ServerState,
    Shard,
    Update,
    Weights,
)
from edgefl.learning.algorithms.base import Algorithm
from edgefl.learning.algorithms.mixtures.gate_utilization import measure_gate_by_class
from edgefl.learning.algorithms.names import FEDERATED_MODEL, MIXTURE_MODEL
from edgefl.learning.client.blend import find_gated_weights, predict_outputs
from edgefl.learning.client.local_training import derive_client_rng
from edgefl.learning.client.measures import measure_test_samples
from edgefl.learning.client.runner import ClientRunner, WorkItem, prefix_errors
from edgefl.learning.client.selection import SHIPPED_MODELS
from edgefl.program.learner.base import Learner, evaluate
from edgefl.program.learner.litert import LiteRTLearner
from edgefl.program.plan.normalization import check_normalization
from edgefl.program.plan.spec import Plan

ClassAccuracies = NDArray[np.float64]
T = TypeVar("T")
_MAX_MEASURED_MODELS = 16
"""Maximum number of models whose accuracy on the common test set a process caches."""


@dataclass(frozen=True)
class SimulatedFederation:
    """The data that every process of a simulation needs.

    Attributes:
        plan: the plan of the federation.
        seed: the seed of the federation.
        shards: samples by client id.
        test: common test samples, which represent all clients. Samples of shape (n, *input_shape), float32,
            and labels of shape (n,), int64. None measures no model on common samples.
        open_learner: makes the learner of each process. For several processes it is a function of a module.

    Raises:
        PlanError: mean and std of the plan are not measured yet.
    """

    plan: Plan
    seed: int
    shards: Mapping[str, Shard]
    test: tuple[Array, Labels] | None = None
    open_learner: Callable[[Plan], Learner] = LiteRTLearner

    def __post_init__(self) -> None:
        check_normalization(self.plan.spec)


@dataclass(frozen=True)
class ClientResult:
    """The mixture and the measurements that personalization returns for a client.

    Attributes:
        mixture: the client's personal model.
        metrics: see `edgefl.learning.client.personalization`. `balanced_shipped` is the mean of the
            accuracies by class on the client's test samples. `precision_shipped` and `precision_mixture` are
            the macro precisions of the model that the client ships and of the algorithm's mixture.
        class_share: share of each class in the client's training samples, shape (classes,), float64.
        test_accuracies: accuracy by class on the common test samples, shape (classes,), float64, for the
            mixture (`shipped`) and each peer. NaN for a class without samples. Empty without common samples.
        confusion: confusions on the client's test samples, see `count_confusions`.
        gates: mean gate weights on the client's test samples, see `measure_gate_by_class`.
    """

    mixture: Mixture
    metrics: Scalars
    class_share: ClassAccuracies
    test_accuracies: Mapping[str, ClassAccuracies] = field(default_factory=dict)
    confusion: NDArray[np.int64] = field(default_factory=lambda: np.zeros((0, 3), np.int64))
    gates: NDArray[np.float64] = field(default_factory=lambda: np.zeros((0, 2)))


class OpenFederation:
    """A federation that a process has opened, with its client runner.

    Attributes:
        runner: trains and personalizes clients.
        test: the common test samples, or None.
    """

    def __init__(self, federation: SimulatedFederation) -> None:
        learner = federation.open_learner(federation.plan)
        self.runner = ClientRunner(federation.plan, learner, federation.shards, federation.seed)
        self.test = federation.test
        self._measured: dict[str, ClassAccuracies] = {}

    def evaluate_on_test(self, mixture: Mixture, num_classes: int) -> dict[str, ClassAccuracies]:
        """Return the accuracy by class of a mixture and its peers on the common test samples.

        Returns:
            Accuracies of shape (num_classes,), float64, by `shipped` for the mixture and by each peer's name.
            Empty without common test samples, and for another task than classification.
        """
        if self.test is None or not self.runner.plan.spec.is_classification:
            return {}
        x, y = self.test
        accuracies = {}
        for name, peer in {"shipped": Peer(mixture.signature, mixture.weights), **mixture.peers}.items():
            # Many clients share a model, such as the global model. It is measured only once.
            key = _digest(peer.signature, peer.weights)
            if key not in self._measured:
                while len(self._measured) >= _MAX_MEASURED_MODELS:
                    del self._measured[next(iter(self._measured))]
                predicted = _predict(self.runner.learner, peer, x)
                self._measured[key] = _measure_by_class(predicted, y, num_classes)
            accuracies[name] = self._measured[key]
        return accuracies


@dataclass(frozen=True)
class DivergedClient:
    """A client that has no update, because its loss is not finite.

    Attributes:
        client_id: the client.
        reason: names client, round and remedy.
    """

    client_id: str
    reason: str


ClientFunction = Callable[[OpenFederation, WorkItem], T]
"""A function that an engine runs for a work item, such as `train_client` or `personalize_client`."""


def make_work_items(
    algorithm: Algorithm,
    state: ServerState,
    clients: Iterable[str],
    states: Mapping[str, ClientState],
    codec: str,
    *,
    evaluate: bool = False,
) -> Iterator[WorkItem]:
    """Yield the work item of each client, in the order of the clients.

    Args:
        algorithm: makes the broadcasts.
        clients: client ids.
        states: client states by client id. A client that is missing has an empty state.
        codec: codec of the updates, see `edgefl.base.codecs`.
        evaluate: whether updates report the accuracy on the client's validation samples.
    """
    for client_id in clients:
        broadcast = algorithm.broadcast(state, client_id)
        yield WorkItem(
            broadcast=broadcast,
            state=states.get(client_id, ClientState()),
            client_id=client_id,
            codec=codec,
            evaluate=evaluate,
        )


def train_client(federation: OpenFederation, item: WorkItem) -> tuple[Update, ClientState]:
    """Train one client, see `ClientRunner.update`.

    Returns:
        The update and the client's new state.

    Raises:
        DataError: the client cannot be trained. The error names client and round.
        DivergedError: the loss is not finite. The error names client and round.
    """
    return federation.runner.update(item)


def personalize_client(federation: OpenFederation, item: WorkItem) -> tuple[ClientResult, ClientState]:
    """Make one client's mixture, and measure it on the client's test samples and the common test samples.

    Returns:
        The client result and the client's new state.

    Raises:
        DataError: the client cannot be personalized. The error names the client.
        DivergedError: no model could be made. The error names the client.
    """
    runner = federation.runner
    shard = runner.shards[item.client_id]
    mixture, state, metrics = runner.personalize(item)
    if not runner.plan.spec.is_classification:
        return ClientResult(mixture=mixture, metrics=metrics, class_share=np.zeros(0)), state
    counts = np.bincount(shard.y_train, minlength=shard.num_classes)
    predicted = _predict(runner.learner, Peer(mixture.signature, mixture.weights), shard.x_test)
    accuracies = _measure_by_class(predicted, shard.y_test, shard.num_classes)
    finite = accuracies[np.isfinite(accuracies)]
    balanced = float(finite.mean()) if len(finite) else float("nan")
    precisions = {"precision_shipped": measure_macro_precision(shard.y_test, predicted)}
    algorithm_mixture = mixture.peers.get(MIXTURE_MODEL)
    if algorithm_mixture is not None:
        is_shipped = metrics["shipped"] == SHIPPED_MODELS.index(MIXTURE_MODEL)
        precisions["precision_mixture"] = (
            precisions["precision_shipped"]
            if is_shipped
            else measure_macro_precision(
                shard.y_test,
                _predict(runner.learner, algorithm_mixture, shard.x_test),
            )
        )
    result = ClientResult(
        mixture=mixture,
        metrics={**metrics, "balanced_shipped": balanced, **precisions},
        class_share=counts / max(1, counts.sum()),
        test_accuracies=federation.evaluate_on_test(mixture, shard.num_classes),
        confusion=count_confusions(shard.y_test, predicted),
        gates=measure_gate_by_class(runner.learner, find_gated_weights(mixture), shard.x_test, shard.y_test),
    )
    return result, state


def train_unless_diverged(
    federation: OpenFederation, item: WorkItem
) -> tuple[Update, ClientState] | DivergedClient:
    """Do the same as `train_client`, and return a `DivergedClient` if the loss is not finite.

    Raises:
        DataError: the client cannot be trained. The error names client and round.
    """
    try:
        return train_client(federation, item)
    except DivergedError as error:
        return DivergedClient(item.client_id, str(error))


def evaluate_client(federation: OpenFederation, item: WorkItem) -> Scalars:
    """Return accuracy and loss of a client's current mixture and of the federated model.

    The current mixture is the mixture that the client would make with this broadcast. The client's state does
    not change.

    Returns:
        `accuracy_mixture` and `loss_mixture` on the client's test samples, NaN without test samples. If the
            mixture has a federated model as a peer, also `accuracy_federated` and `loss_federated`. For
            another task than classification, the measures of `edgefl.learning.client.measures` instead.

    Raises:
        DataError: the client cannot be personalized. The error names client and round.
        DivergedError: the loss is not finite. The error names client and round.
    """
    runner = federation.runner
    rng = derive_client_rng(runner.seed, item.broadcast, item.client_id)
    shard = runner.split(item.client_id).train
    with prefix_errors(item, f"evaluation before round {item.broadcast.round}"):
        mixture, _ = runner.configure_algorithm(item).personalize(item.broadcast, item.state, shard, rng)
    models = {"mixture": Peer("predict_mixture", mixture.weights)}
    models |= {name: peer for name, peer in mixture.peers.items() if name == FEDERATED_MODEL}
    metrics: dict[str, float] = {}
    for name, peer in models.items():
        if not runner.plan.spec.is_classification:
            _, measured = measure_test_samples(runner.learner, peer, shard)
            metrics |= {f"{measure}_{name}": figure for measure, figure in measured.items()}
            continue
        figures = evaluate(runner.learner, peer.signature, peer.weights, shard.x_test, shard.y_test)
        metrics |= {f"accuracy_{name}": figures.accuracy, f"loss_{name}": figures.loss}
    return metrics


def drop_mixture(client_id: str, result: ClientResult) -> ClientResult:
    """Return a client result whose mixture keeps only its diagnostics, to save memory.

    Args:
        client_id: the client. Unused, because a `KeepResult` receives it.
    """
    return replace(result, mixture=Mixture(weights={}, peers={}, diagnostics=result.mixture.diagnostics))


def measure_macro_precision(true: Labels, predicted: Labels) -> float:
    """Return the mean over classes of the share of correct predictions among the predictions of the class.

    Classes that are neither true nor predicted are left out. A class that is never predicted counts as 0.

    Args:
        true: true classes, shape (n,), int64.
        predicted: predicted classes, shape (n,), int64.

    Returns:
        The precision, NaN without samples.
    """
    classes = np.union1d(true, predicted)
    hits = [np.count_nonzero((predicted == label) & (true == label)) for label in classes]
    predictions = np.array([np.count_nonzero(predicted == label) for label in classes])
    return float(np.mean(np.array(hits) / np.maximum(predictions, 1))) if len(classes) else float("nan")


def count_confusions(true: Labels, predicted: Labels) -> NDArray[np.int64]:
    """Return the number of samples for each pair of true and predicted class that occurs.

    Args:
        true: true classes, shape (n,), int64.
        predicted: predicted classes, shape (n,), int64.

    Returns:
        Rows of true class, predicted class and count, sorted, shape (pairs, 3), int64.
    """
    pairs, counts = np.unique(np.stack([true, predicted], axis=1), axis=0, return_counts=True)
    return np.column_stack([pairs, counts]).astype(np.int64).reshape(-1, 3)


def _predict(learner: Learner, peer: Peer, x: Array) -> Labels:
    if not len(x):
        return np.zeros(0, np.int64)
    return np.asarray(predict_outputs(learner, peer, x).argmax(axis=1), np.int64)


def _measure_by_class(predicted: Labels, y: Labels, num_classes: int) -> ClassAccuracies:
    if len(y) == 0:
        return np.full(num_classes, np.nan)
    counts = np.bincount(y, minlength=num_classes)
    with np.errstate(invalid="ignore"):
        return np.asarray(np.bincount(y, predicted == y, num_classes) / counts)


def _digest(signature: str, weights: Weights) -> str:
    digest = hashlib.sha256(signature.encode())
    for name, array in weights.items():
        digest.update(name.encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()
