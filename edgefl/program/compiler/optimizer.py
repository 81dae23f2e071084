"""Optimizers as pure functions that compute the same as those of Keras 3.

Hyper-parameters are inputs of the program, with defaults. The ops of a momentum or weight decay that is zero
at compile time are left out of the program. Weight decay is decoupled, as in Keras: `w <- w - w *
weight_decay * learning_rate` before the update.

Source: https://keras.io/api/optimizers/.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from edgefl.program.plan.spec import TensorSpec

Tensor = Any
Tensors = Mapping[str, Tensor]
UpdateFunction = Callable[[Tensors, Tensors, Tensors, Tensors], tuple[dict[str, Tensor], dict[str, Tensor]]]


@dataclass(frozen=True)
class Optimizer:
    """An optimizer.

    Attributes:
        name: name of the optimizer.
        hyper: default value of each hyper-parameter by name.
        make_slots: returns the specs of the optimizer's state for some weights. The state is zero at first.
        update: maps (weights, gradients, slots, hyper-parameters), each by name, to the new weights and
            slots.
    """

    name: str
    hyper: Mapping[str, float]
    make_slots: Callable[[Sequence[TensorSpec]], tuple[TensorSpec, ...]]
    update: UpdateFunction


def sgd(
    learning_rate: float = 0.01, *, momentum: float = 0.0, nesterov: bool = False, weight_decay: float = 0.0
) -> Optimizer:
    """Return keras.optimizers.SGD: `m <- momentum m - lr g` and `w <- w + m`.

    With `nesterov` the second step is `w <- w + momentum m - lr g`. With momentum 0 there are no slots.

    Args:
        learning_rate: lr.
        momentum: share of the last step that is added to the next.
        nesterov: whether to use Nesterov momentum.
        weight_decay: decoupled weight decay.
    """
    hyper = {"learning_rate": learning_rate} | _drop_zeros(momentum=momentum, weight_decay=weight_decay)

    def make_slots(specs: Sequence[TensorSpec]) -> tuple[TensorSpec, ...]:
        return _make_slots("momentum", specs) if momentum else ()

    def update(
        weights: Tensors, gradients: Tensors, slots: Tensors, hyper: Tensors
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        weights = _apply_decay(weights, hyper)
        new = {}
        new_slots = {}
        for name, weight in weights.items():
            step = gradients[name] * hyper["learning_rate"]
            if not momentum:
                new[name] = weight - step
                continue
            velocity = slots[f"momentum/{name}"] * hyper["momentum"] - step
            new_slots[f"momentum/{name}"] = velocity
            new[name] = weight + (velocity * hyper["momentum"] - step if nesterov else velocity)
        return new, new_slots

    return Optimizer(name="sgd", hyper=hyper, make_slots=make_slots, update=update)


def adam(
    learning_rate: float = 0.001,
    *,
    beta_1: float = 0.9,
    beta_2: float = 0.999,
    epsilon: float = 1e-7,
    weight_decay: float = 0.0,
) -> Optimizer:
    """Return keras.optimizers.Adam. The number of steps is a slot.

    Args:
        beta_1: decay of the mean of gradients.
        beta_2: decay of the mean of squared gradients.
        epsilon: added to the denominator.
        weight_decay: decoupled weight decay.

    Source: Kingma and Ba, arXiv:1412.6980.
    """
    hyper = {"learning_rate": learning_rate} | _drop_zeros(weight_decay=weight_decay)

    def make_slots(specs: Sequence[TensorSpec]) -> tuple[TensorSpec, ...]:
        return (*_make_slots("momentum", specs), *_make_slots("velocity", specs), TensorSpec("step", ()))

    def update(
        weights: Tensors, gradients: Tensors, slots: Tensors, hyper: Tensors
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        import tensorflow as tf

        weights = _apply_decay(weights, hyper)
        step = slots["step"] + 1.0
        rate = hyper["learning_rate"] * tf.sqrt(1.0 - tf.pow(beta_2, step)) / (1.0 - tf.pow(beta_1, step))
        new = {}
        new_slots = {"step": step}
        for name, weight in weights.items():
            gradient = gradients[name]
            mean = slots[f"momentum/{name}"]
            variance = slots[f"velocity/{name}"]
            mean = mean + (gradient - mean) * (1.0 - beta_1)
            variance = variance + (gradient * gradient - variance) * (1.0 - beta_2)
            new[name] = weight - mean * rate / (tf.sqrt(variance) + epsilon)
            new_slots[f"momentum/{name}"] = mean
            new_slots[f"velocity/{name}"] = variance
        return new, new_slots

    return Optimizer(name="adam", hyper=hyper, make_slots=make_slots, update=update)


def adamw(
    learning_rate: float = 0.001,
    *,
    weight_decay: float = 0.004,
    beta_1: float = 0.9,
    beta_2: float = 0.999,
    epsilon: float = 1e-7,
) -> Optimizer:
    """Return keras.optimizers.AdamW.

    Args:
        weight_decay: decoupled weight decay.
        beta_1: decay of the mean of gradients.
        beta_2: decay of the mean of squared gradients.
        epsilon: added to the denominator.

    Source: Loshchilov and Hutter, arXiv:1711.05101.
    """
    base = adam(learning_rate, beta_1=beta_1, beta_2=beta_2, epsilon=epsilon, weight_decay=weight_decay)
    return Optimizer(name="adamw", hyper=base.hyper, make_slots=base.make_slots, update=base.update)


def _drop_zeros(**hyper: float) -> dict[str, float]:
    return {name: value for name, value in hyper.items() if value}


def _make_slots(slot: str, specs: Sequence[TensorSpec]) -> tuple[TensorSpec, ...]:
    return tuple(TensorSpec(f"{slot}/{spec.name}", spec.shape) for spec in specs)


def _apply_decay(weights: Tensors, hyper: Tensors) -> Tensors:
    if "weight_decay" not in hyper:
        return weights
    rest = 1.0 - hyper["weight_decay"] * hyper["learning_rate"]
    return {name: weight * rest for name, weight in weights.items()}
