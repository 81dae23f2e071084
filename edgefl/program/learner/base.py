"""The interface of a learner, and the parts that all learners share: batches, checks and evaluation."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from edgefl.base.errors import DataError, PlanError
from edgefl.base.tasks.scores import measure_explained_share, measure_sample_losses
from edgefl.base.types import Array, Labels, Weights
from edgefl.program.plan.spec import PlanSpec, SignatureSpec, TensorSpec, read_task

DataTensors = Mapping[str, Array]


class Learner(Protocol):
    """Runs the signatures of one plan.

    A learner has no state of training: it takes weights and returns weights. All randomness comes from `rng`.

    Attributes:
        name: name of the learner, such as `litert`.
        spec: the spec of the plan.
    """

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
        slots: dict[str, Array] | None = None,
        augment: bool = True,
        final_loss: float = -math.inf,
        least_epochs: int = 1,
    ) -> tuple[Weights, float]:
        """Train for some epochs.

        Calls of one epoch that pass the same `slots` give the same bits as one call with all epochs.

        Args:
            signature: name of a training signature of the plan.
            weights: at least the trained and the frozen weights of the signature.
            data: samples for each data tensor of the signature, such as `x`: shape (n, ...), float32.
            labels: labels, shape (n,), int64. For another task than classification the values to predict,
                shape (n, outputs), float32.
            epochs: maximum number of epochs.
            rng: draws the batches, the augmentation and the noise.
            hyper: hyperparameters by name. The plan's defaults are used for all others.
            slots: optimizer slots by name, such as momentum. They are replaced by the slots after the
                training. The training starts from zero slots if this is empty or None.
            augment: whether the plan's augmentation changes the samples `x`. False trains on them as they
                are.
            final_loss: the training ends with the first epoch whose mean loss is at most this.
            least_epochs: it does not end before that for this many epochs.

        Returns:
            The trained weights without the frozen ones, and the mean loss of the last epoch.

        Raises:
            DataError: the data do not fit the signature, or there are no samples.
            DivergedError: the loss is not a finite number.
            PlanError: the weights do not fit the signature.
        """

    def predict(self, signature: str, weights: Weights, data: DataTensors) -> Array:
        """Return the signature's output for each sample.

        Args:
            signature: name of a predict signature of the plan.
            weights: at least the weights of the signature.
            data: samples for each data tensor of the signature, such as `x`: shape (n, ...), float32.

        Returns:
            The output, shape (n, ...), float32.

        Raises:
            DataError: the data do not fit the signature, or there are no samples.
            PlanError: the weights do not fit the signature.
        """


@dataclass(frozen=True)
class Evaluation:
    """Measurements of a model over a number of samples.

    Attributes:
        loss: mean loss of the task, such as the cross-entropy in nats.
        accuracy: share of correct predictions, from 0 to 1. For another task than classification, the share
            of the targets' variance that the model explains, at least 0.
        num_samples: number of samples.
    """

    loss: float
    accuracy: float
    num_samples: int


def evaluate(learner: Learner, signature: str, weights: Weights, x: Array, labels: Labels) -> Evaluation:
    """Return the loss and the accuracy of a model.

    Args:
        signature: a predict signature that returns the outputs of a whole model.
        weights: the weights of the signature.
        x: samples, shape (n, *input_shape), float32.
        labels: labels, see `Learner.fit`.

    Returns:
        The measurements. Without samples, loss and accuracy are NaN.
    """
    if len(labels) == 0:
        return Evaluation(float("nan"), float("nan"), 0)
    task = read_task(learner.spec)
    if not task.is_classification:
        outputs = learner.predict(signature, weights, {"x": x})
        loss = float(measure_sample_losses(task.loss_name, outputs, labels).mean())
        return Evaluation(loss, measure_explained_share(outputs, labels), len(labels))
    logits = learner.predict(signature, weights, {"x": x}).astype(np.float64)
    shifted = logits - logits.max(axis=1, keepdims=True)
    log_p = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    loss = -log_p[np.arange(len(labels)), labels].mean()
    return Evaluation(float(loss), float((logits.argmax(axis=1) == labels).mean()), len(labels))


def predict_label_log_p(
    learner: Learner, signature: str, weights: Weights, x: Array, y: Labels
) -> NDArray[np.float64]:
    """Return log p(y|x) of each sample.

    For another task than classification, it is the negative loss of the sample. With mse, that is the
    logarithm of a normal density, apart from its scale and a constant.

    Args:
        signature: a predict signature that returns the outputs of a whole model.
        weights: the weights of the signature.
        x: samples, shape (n, *input_shape), float32.
        y: labels, see `Learner.fit`.

    Returns:
        The log probabilities, shape (n,), float64.
    """
    task = read_task(learner.spec)
    if not task.is_classification:
        return -measure_sample_losses(task.loss_name, learner.predict(signature, weights, {"x": x}), y)
    logits = learner.predict(signature, weights, {"x": x}).astype(np.float64)
    shifted = logits - logits.max(axis=1, keepdims=True)
    return np.asarray(shifted[np.arange(len(y)), y] - np.log(np.exp(shifted).sum(axis=1)))


def convert_labels(signature: SignatureSpec, labels: Labels) -> NDArray[Any]:
    """Return labels in the form that a training signature takes.

    Args:
        labels: labels, see `Learner.fit`.

    Returns:
        The labels, shape (n,), int32, or (n, outputs), float32.

    Raises:
        DataError: the labels have another shape than the signature's, or are not finite.
    """
    if signature.label is None:
        return labels.astype(np.int32)
    if labels.shape[1:] != signature.label.shape[1:]:
        raise DataError(
            f"the labels have the shape {labels.shape[1:]} per sample, expected {signature.label.shape[1:]}; "
            "does this shard belong to another task?"
        )
    if not np.isfinite(labels).all():
        raise DataError("the labels hold NaN or infinite values, expected numbers; clean the shard")
    return labels.astype(np.float32)


def check_data(signature: SignatureSpec, data: DataTensors, labels: Labels | None = None) -> int:
    """Check the data of a signature and return the number of samples.

    Args:
        data: samples by the name of the data tensor, shape (n, ...), float32.
        labels: labels, see `Learner.fit`. None for a predict signature.

    Raises:
        DataError: a tensor is missing, has another shape or number of samples, or is not finite. Or there are
            no samples, or not one label for each sample.
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
                f"{spec.name} has the shape {array.shape[1:]} per sample, expected {spec.shape[1:]}; is this "
                "shard of another data set?"
            )
        if count not in (-1, len(array)):
            raise DataError(f"{spec.name} has {len(array)} samples, expected {count}")
        if not np.isfinite(array).all():
            raise DataError(f"{spec.name} holds NaN or infinite values; clean the shard")
        count = len(array)
    if labels is not None and len(labels) != count:
        raise DataError(f"{len(labels)} labels for {count} samples; a shard needs one label for each sample")
    if count == 0:
        raise DataError("no samples to train on; give the device a shard with at least one")
    return count


def check_weights(specs: tuple[TensorSpec, ...], weights: Weights) -> list[Array]:
    """Return the arrays in the order of the specs, float32.

    Args:
        specs: names and shapes of the expected weights.
        weights: at least these weights.

    Raises:
        PlanError: a weight is missing or has another shape.
    """
    arrays = []
    for spec in specs:
        if spec.name not in weights:
            raise PlanError(f"the weight {spec.name} is missing; the plan expects {spec.shape}")
        array = weights[spec.name]
        if array.shape != spec.shape:
            raise PlanError(
                f"{spec.name} has the shape {array.shape}, expected {spec.shape}; the weights are of another "
                "plan"
            )
        arrays.append(np.asarray(array, np.float32, order="C"))
    return arrays


def iterate_batches(
    count: int, batch_size: int, rng: np.random.Generator | None
) -> Iterator[tuple[Labels, Array]]:
    """Yield batches that cover each of `count` samples once.

    The last batch is filled with samples of earlier batches at weight 0. Real samples keep batch statistics
    plausible.

    Args:
        rng: draws the order of the samples. None keeps their order.

    Yields:
        The indices, shape (batch_size,), int64, and the sample weights, shape (batch_size,), float32.
    """
    order = np.arange(count) if rng is None else rng.permutation(count)
    for start in range(0, count, batch_size):
        used = order[start : start + batch_size]
        weight = np.zeros(batch_size, np.float32)
        weight[: len(used)] = 1
        yield np.concatenate([used, np.resize(order, batch_size - len(used))]), weight
