"""The training and prediction loops, which call a signature's step.

All learners share them, so all make the same draws in the same order.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from functools import partial

import numpy as np

from edgefl.base.config import AugmentationConfig
from edgefl.base.errors import DivergedError
from edgefl.base.types import Array, Labels, Weights
from edgefl.program.learner.augmentation import augment_images, read_augmentation
from edgefl.program.learner.base import (
    DataTensors,
    check_data,
    check_weights,
    convert_labels,
    iterate_batches,
)
from edgefl.program.plan.spec import PlanSpec, SignatureSpec

StepFunction = Callable[[Mapping[str, np.ndarray]], Mapping[str, np.ndarray]]
"""Maps arguments to results, both named as in `SignatureSpec`. The next step may overwrite the results."""

SAMPLES = "x"
"""The data tensor with the samples of a shard."""


def _name_arrays(letter: str, arrays: list[Array]) -> dict[str, np.ndarray]:
    return {f"{letter}_{i}": array for i, array in enumerate(arrays)}


def train_epochs(
    step: StepFunction,
    signature: SignatureSpec,
    weights: Weights,
    data: DataTensors,
    labels: Labels,
    epochs: int,
    rng: np.random.Generator,
    hyper: Mapping[str, float] | None,
    slots: dict[str, Array] | None,
    augmentation: AugmentationConfig,
    final_loss: float = -math.inf,
    least_epochs: int = 1,
) -> tuple[Weights, float]:
    """Train with a step function, see `Learner.fit`.

    Args:
        step: runs the signature once.
        weights: see `Learner.fit`.
        data: see `Learner.fit`.
        labels: see `Learner.fit`.
        epochs: maximum number of epochs.
        rng: draws the batches, the augmentation and the noise.
        hyper: see `Learner.fit`.
        slots: see `Learner.fit`.
        augmentation: random changes of the data tensor `x`.
        final_loss: see `Learner.fit`.
        least_epochs: see `Learner.fit`.

    Returns:
        The trained weights without the frozen ones, and the mean loss of the last epoch.

    Raises:
        DataError: the data do not fit the signature.
        DivergedError: the loss is not a finite number.
        PlanError: the weights do not fit the signature.
    """
    count = check_data(signature, data, labels)
    state = _name_arrays("t", check_weights(signature.trained, weights))
    zeros = {spec.name: np.zeros(spec.shape, np.float32) for spec in signature.slots}
    state |= _name_arrays("s", check_weights(signature.slots, slots or zeros))
    arguments = _name_arrays("f", check_weights(signature.frozen, weights)) | state
    arguments |= {
        f"h_{k}": np.asarray((hyper or {}).get(k, default), np.float32)
        for k, default in signature.hyper.items()
    }
    targets = convert_labels(signature, labels)
    loss = 0.0
    size = signature.batch_size
    changes_samples = augmentation.is_on and any(spec.name == SAMPLES for spec in signature.data)
    for epoch in range(1, epochs + 1):
        total = 0.0
        for index, sample_weight in iterate_batches(count, size, rng):
            batch = {f"d_{spec.name}": data[spec.name][index] for spec in signature.data}
            if changes_samples:
                batch[f"d_{SAMPLES}"] = augment_images(batch[f"d_{SAMPLES}"], augmentation, rng)
            batch |= {"d_y": targets[index], "d_sample_weight": sample_weight}
            if signature.gradients:
                noise_shapes = [(size, *spec.shape[1:]) for spec in signature.noise]
            else:
                noise_shapes = [spec.shape for spec in signature.noise]
            batch |= _name_arrays("n", [rng.random(shape, dtype=np.float32) for shape in noise_shapes])
            out, batch_loss = _train_batch(step, signature, arguments, batch)
            arguments |= {name: out[name] for name in state}
            total += batch_loss * float(sample_weight.sum())
        loss = total / count
        if not np.isfinite(loss):
            raise DivergedError(
                f"{signature.name}: the loss is {loss}, expected a finite number; lower the learning rate or "
                "check the data's scale"
            )
        if loss <= final_loss and epoch >= least_epochs:
            break
    if slots is not None:
        slots |= {
            spec.name: np.array(arguments[f"s_{i}"], np.float32) for i, spec in enumerate(signature.slots)
        }
    return {
        spec.name: np.array(arguments[f"t_{i}"], np.float32) for i, spec in enumerate(signature.trained)
    }, loss


def _train_batch(
    step: StepFunction,
    signature: SignatureSpec,
    arguments: Mapping[str, np.ndarray],
    batch: Mapping[str, np.ndarray],
) -> tuple[Mapping[str, np.ndarray], float]:
    """Take one training step, in several calls if the signature takes micro-batches.

    Args:
        step: runs the signature once.
        arguments: weights, slots and hyperparameters.
        batch: the arguments with an axis of samples. The samples of weight 0 are the last ones.

    Returns:
        The results of the last call, and the mean loss of the batch.
    """
    if not signature.gradients:
        out = step({**arguments, **batch})
        return out, float(out["loss"])
    weight = batch["d_sample_weight"]
    parts = {**batch, "d_sample_weight": weight / weight.sum()}
    sums = _name_arrays("g", [np.zeros(spec.shape, np.float32) for spec in signature.gradients])
    loss = 0.0
    for start in range(0, int(weight.sum()), signature.call_size):
        part = {name: array[start : start + signature.call_size] for name, array in parts.items()}
        if missing := signature.call_size - len(part["d_y"]):
            part = {name: np.concatenate([array, parts[name][:missing]]) for name, array in part.items()}
            part["d_sample_weight"][-missing:] = 0
        out = step({**arguments, **part, **sums})
        sums = {name: out[name] for name in sums}
        loss += float(out["loss"])
    # The parts of the next batch start from these weights, and its first call overwrites the results
    return {name: array.copy() for name, array in out.items() if name not in sums}, loss


def predict_samples(
    step: StepFunction, signature: SignatureSpec, weights: Weights, data: DataTensors
) -> Array:
    """Run a predict signature over all samples in batches, see `Learner.predict`.

    Args:
        step: runs the signature once.
        weights: see `Learner.predict`.
        data: see `Learner.predict`.

    Returns:
        The output for each sample, shape (n, ...), float32.

    Raises:
        DataError: the data do not fit the signature.
        PlanError: the weights do not fit the signature.
    """
    count = check_data(signature, data)
    frozen = _name_arrays("f", check_weights(signature.frozen, weights))
    parts = []
    for index, sample_weight in iterate_batches(count, signature.batch_size, None):
        out = step({**{f"d_{spec.name}": data[spec.name][index] for spec in signature.data}, **frozen})["out"]
        parts.append(np.array(out[: int(sample_weight.sum())], np.float32))
    return np.concatenate(parts)


class StepLearner(ABC):
    """Base class of learners, which only define a single step."""

    spec: PlanSpec

    @abstractmethod
    def step(self, signature: str, arguments: Mapping[str, np.ndarray]) -> Mapping[str, np.ndarray]:
        """Run the signature once.

        Args:
            signature: name of the signature.
            arguments: inputs, named as in `SignatureSpec`.

        Returns:
            Outputs, named as in `SignatureSpec`. The next step may overwrite them.
        """

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
        """Train for some epochs, see `Learner.fit`."""
        return train_epochs(
            partial(self.step, signature),
            self.spec.find_signature(signature),
            weights,
            data,
            labels,
            epochs,
            rng,
            hyper,
            slots,
            read_augmentation(self.spec) if augment else AugmentationConfig(),
            final_loss,
            least_epochs,
        )

    def predict(self, signature: str, weights: Weights, data: DataTensors) -> Array:
        """Return the output for each sample, see `Learner.predict`."""
        return predict_samples(
            partial(self.step, signature), self.spec.find_signature(signature), weights, data
        )
