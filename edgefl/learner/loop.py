"""The training and prediction loops over one signature's step, the same for every learner: same draws, same
order.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from functools import partial

import numpy as np

from edgefl.errors import DivergedError
from edgefl.learner.base import DataTensors, check_data, check_weights, iterate_batches
from edgefl.plan.spec import PlanSpec, SignatureSpec
from edgefl.types import Array, Labels, Weights

StepFunction = Callable[[Mapping[str, np.ndarray]], Mapping[str, np.ndarray]]
"""Arguments by their names in `Signature` -> results by theirs, which hold until the next step only."""


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
) -> tuple[Weights, float]:
    """Run `epochs` epochs of steps; see `Learner.fit`.

    Raises DivergedError when the loss stops being a finite number.
    """
    count = check_data(signature, data, labels)
    moving = _name_arrays("t", check_weights(signature.trained, weights))
    moving |= _name_arrays("s", [np.zeros(spec.shape, np.float32) for spec in signature.slots])
    arguments = _name_arrays("f", check_weights(signature.frozen, weights)) | moving
    arguments |= {
        f"h_{k}": np.asarray((hyper or {}).get(k, default), np.float32)
        for k, default in signature.hyper.items()
    }
    targets = labels.astype(np.int32)
    loss = 0.0
    size = signature.batch_size
    for _ in range(epochs):
        total = 0.0
        for index, sample_weight in iterate_batches(count, size, rng):
            arguments |= {f"d_{spec.name}": data[spec.name][index] for spec in signature.data}
            arguments |= {"d_y": targets[index], "d_sample_weight": sample_weight}
            arguments |= _name_arrays(
                "n", [rng.random(spec.shape, dtype=np.float32) for spec in signature.noise]
            )
            out = step(arguments)
            arguments |= {name: out[name] for name in moving}
            total += float(out["loss"]) * float(sample_weight.sum())
        loss = total / count
        if not np.isfinite(loss):
            raise DivergedError(
                f"{signature.name}: the loss is {loss}, expected a finite number; lower the learning rate or "
                "check the data's scale"
            )
    return {
        spec.name: np.array(arguments[f"t_{i}"], np.float32) for i, spec in enumerate(signature.trained)
    }, loss


def predict_samples(
    step: StepFunction, signature: SignatureSpec, weights: Weights, data: DataTensors
) -> Array:
    """Run a predict signature over all samples, the last batch filled up and cut; see `Learner.predict`."""
    count = check_data(signature, data)
    frozen = _name_arrays("f", check_weights(signature.frozen, weights))
    parts = []
    for index, sample_weight in iterate_batches(count, signature.batch_size, None):
        out = step({**{f"d_{spec.name}": data[spec.name][index] for spec in signature.data}, **frozen})["out"]
        parts.append(np.array(out[: int(sample_weight.sum())], np.float32))
    return np.concatenate(parts)


class StepLearner(ABC):
    """A `Learner` that only has to say what one step is."""

    spec: PlanSpec

    @abstractmethod
    def step(self, signature: str, arguments: Mapping[str, np.ndarray]) -> Mapping[str, np.ndarray]:
        """Run the signature once; arguments and results are named as in `Signature`.

        The results hold until the next step only.
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
    ) -> tuple[Weights, float]:
        """Train; see `Learner.fit`."""
        return train_epochs(
            partial(self.step, signature),
            self.spec.find_signature(signature),
            weights,
            data,
            labels,
            epochs,
            rng,
            hyper,
        )

    def predict(self, signature: str, weights: Weights, data: DataTensors) -> Array:
        """Predict; see `Learner.predict`."""
        return predict_samples(
            partial(self.step, signature), self.spec.find_signature(signature), weights, data
        )
