"""The interface of a learner, and what all learners share: batching, noise, accuracy."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from edgefl.errors import DataError, PlanError
from edgefl.plan.spec import PlanSpec, SignatureSpec, TensorSpec
from edgefl.types import Array, Labels, Weights

DataTensors = Mapping[str, Array]


class Learner(Protocol):
    """Runs the signatures of one plan. Pure: weights in, weights out; all randomness comes from `rng`."""

    name: str
    spec: PlanSpec

    def fit(
        self,
        signature: str,
        weights: Weights,
        data: DataTensors,
        labels: Labels,
        *,
        epochs: int,
        rng: np.random.Generator,
        hyper: Mapping[str, float] | None = None,
    ) -> tuple[Weights, float]:
        """Train for some epochs from zero optimizer slots.

        `data` maps each data tensor of the signature (`x`: float32[n, ...]) to its samples; `weights` holds
        at least the trained and frozen weights. Returns the trained weights only, and the mean loss of the
        last epoch.
        Raises DataError for data that do not fit, PlanError for weights that do not.
        """

    def predict(self, signature: str, weights: Weights, data: DataTensors) -> Array:
        """Return the signature's output for each sample: float32[n, ...]."""


@dataclass(frozen=True)
class Evaluation:
    """Mean cross-entropy and share of right answers over `num_samples` samples."""

    loss: float
    accuracy: float
    num_samples: int


def evaluate(learner: Learner, signature: str, weights: Weights, x: Array, labels: Labels) -> Evaluation:
    """Measure logits of a predict signature against labels."""
    if len(labels) == 0:
        return Evaluation(float("nan"), float("nan"), 0)
    logits = learner.predict(signature, weights, {"x": x}).astype(np.float64)
    shifted = logits - logits.max(axis=1, keepdims=True)
    log_p = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    loss = -log_p[np.arange(len(labels)), labels].mean()
    return Evaluation(float(loss), float((logits.argmax(axis=1) == labels).mean()), len(labels))


def predict_label_log_p(
    learner: Learner, signature: str, weights: Weights, x: Array, y: Labels
) -> NDArray[np.float64]:
    """Return log p(y|x) of each sample, float64[n], for a signature that predicts logits."""
    logits = learner.predict(signature, weights, {"x": x}).astype(np.float64)
    shifted = logits - logits.max(axis=1, keepdims=True)
    return np.asarray(shifted[np.arange(len(y)), y] - np.log(np.exp(shifted).sum(axis=1)))


def check_data(signature: SignatureSpec, data: DataTensors, labels: Labels | None = None) -> int:
    """Return the number of samples.

    DataError when a tensor is missing, of another shape, not finite, or there is none.
    """
    count = -1
    for spec in signature.data:
        if spec.name not in data:
            raise DataError(
                f"{signature.name} expected data {spec.name!r}, received {', '.join(data)}; is the plan of "
                "another algorithm?"
            )
        array = data[spec.name]
        if array.shape[1:] != spec.shape[1:]:
            raise DataError(
                f"{spec.name} is {array.shape[1:]} a sample, expected {spec.shape[1:]}; is this shard of "
                "another data set?"
            )
        if count not in (-1, len(array)):
            raise DataError(f"{spec.name} has {len(array)} samples, expected {count}")
        if not np.isfinite(array).all():
            raise DataError(f"{spec.name} holds NaN or infinite values; clean the shard")
        count = len(array)
    if labels is not None and len(labels) != count:
        raise DataError(f"{len(labels)} labels for {count} samples; a shard needs one label a sample")
    if count == 0:
        raise DataError("no samples to train on; give the device a shard with at least one")
    return count


def check_weights(specs: tuple[TensorSpec, ...], weights: Weights) -> list[Array]:
    """Return the arrays in the specs' order; PlanError when one is missing or of another shape."""
    arrays = []
    for spec in specs:
        if spec.name not in weights:
            raise PlanError(f"weight {spec.name} is missing; the plan expects {spec.shape}")
        array = weights[spec.name]
        if array.shape != spec.shape:
            raise PlanError(
                f"{spec.name} is {array.shape}, expected {spec.shape}; the weights are of another plan"
            )
        arrays.append(np.asarray(array, np.float32, order="C"))
    return arrays


def iterate_batches(
    count: int, batch_size: int, rng: np.random.Generator | None
) -> Iterator[tuple[Labels, Array]]:
    """Yield (indices int64[batch_size], sample_weight float32[batch_size]) that cover 0..count-1 once.

    The last batch is filled up with samples seen before, at weight 0: real values keep batch statistics sane.
    """
    order = np.arange(count) if rng is None else rng.permutation(count)
    for start in range(0, count, batch_size):
        used = order[start : start + batch_size]
        weight = np.zeros(batch_size, np.float32)
        weight[: len(used)] = 1
        yield np.concatenate([used, np.resize(order, batch_size - len(used))]), weight
