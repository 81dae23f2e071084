"""A numpy learner that records how it is trained."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from edgefl.base.types import Labels, Weights
from edgefl.program.learner.base import DataTensors
from edgefl.program.plan.spec import PlanSpec
from tests.support.numpy_learner.softmax import SoftmaxLearner


@dataclass(frozen=True)
class TrainingCall:
    """One call of `fit`.

    Attributes:
        signature: name of the signature.
        weights: the weights at the start.
        data: the samples.
        labels: their labels.
        options: `epochs`, `hyper`, and `augment` if it was given.
        slots: the optimizer's slots at the start.
        trained: the trained weights.
    """

    signature: str
    weights: Weights
    data: DataTensors
    labels: Labels
    options: Mapping[str, Any]
    slots: Weights
    trained: Weights


class RecordingLearner(SoftmaxLearner):
    """Records each training in `calls`."""

    def __init__(self, spec: PlanSpec) -> None:
        super().__init__(spec)
        self.calls: list[TrainingCall] = []

    def fit(self, *arguments: Any, **options: Any) -> tuple[Weights, float]:
        """Train as the numpy learner does, and record the call."""
        slots = dict(options.get("slots") or {})
        trained, loss = super().fit(*arguments, **options)
        kept = {name: value for name, value in options.items() if name not in ("rng", "slots")}
        signature, weights, data, labels = arguments
        self.calls.append(
            TrainingCall(
                signature=signature,
                weights=weights,
                data=data,
                labels=labels,
                options=kept,
                slots=slots,
                trained=trained,
            )
        )
        return trained, loss
