"""Server optimizers, which use the mean delta of a round as a gradient.

With d the mean delta of the clients, which points downhill, and eta the server's learning rate:

    none        w <- w + eta d

    momentum    m <- beta1 m + d                     (Hsu et al., arXiv:1909.06335)
                w <- w + eta m

    adam, yogi  m <- beta1 m + (1 - beta1) d

    adam        v <- beta2 v + (1 - beta2) d^2

    yogi        v <- v - (1 - beta2) d^2 sign(v - d^2)

    adam, yogi  w <- w + eta m' / (sqrt(v') + epsilon)
                with m' = m / (1 - beta1^t) and v' = v / (1 - beta2^t)

Communication cost: none. The state stays at the aggregator.

Source: Reddi et al., Adaptive Federated Optimization, arXiv:2003.00295, algorithm 2. The bias correction m',
v' is from Kingma and Ba, arXiv:1412.6980. Reddi et al. start from v = epsilon^2 and omit it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from edgefl.base.errors import ConfigError
from edgefl.base.options import suggest_nearest
from edgefl.base.types import Array, StateRecord, Weights

OPTIMIZERS = ("none", "momentum", "adam", "yogi")
DEFAULT_HYPER: Mapping[str, float] = {"beta1": 0.9, "beta2": 0.999, "epsilon": 1e-8}
"""The values of Kingma and Ba. Reddi et al. use beta2 .99 and epsilon 1e-3."""
DEFAULT_RATES: Mapping[str, float] = {"none": 1.0, "momentum": 1.0, "adam": 0.001, "yogi": 0.001}
STATISTICS = ("moving_mean", "moving_variance")
"""Last parts of the names of batch-norm statistics.

Every optimizer averages these, because a variance has to stay positive.
"""


def check_optimizer(name: str, hyper: Mapping[str, float]) -> dict[str, float]:
    """Return learning_rate, beta1, beta2 and epsilon: the values of `hyper`, and defaults for all others.

    Args:
        name: one of `OPTIMIZERS`.
        hyper: values by name. A learning rate of 0 selects the optimizer's default.

    Raises:
        ConfigError: the name or a key is unknown, a beta is not at least 0 and below 1, or epsilon or the
            learning rate is not a finite number above 0.
    """
    if name not in OPTIMIZERS:
        raise ConfigError(f"unknown server_optimizer {name!r}; {suggest_nearest(name, list(OPTIMIZERS))}")
    defaults = {"learning_rate": DEFAULT_RATES[name], **DEFAULT_HYPER}
    for key in hyper:
        if key not in defaults:
            raise ConfigError(f"a server optimizer has no {key!r}; {suggest_nearest(key, list(defaults))}")
    settings = {
        **defaults,
        **{key: float(value) for key, value in hyper.items() if key != "learning_rate" or value},
    }
    for key in ("beta1", "beta2"):
        if not 0 <= settings[key] < 1:
            raise ConfigError(f"server_{key} is {settings[key]}, expected at least 0 and below 1")
    for key in ("epsilon", "learning_rate"):
        if not 0 < settings[key] < np.inf:
            raise ConfigError(f"server_{key} is {settings[key]}, expected a number above 0")
    return settings


WEIGHT_DISTANCE = 0.3
"""How far the server optimizer must be able to move a weight: about the size of a layer's initial weights."""
MAX_WEIGHT_RATE = 0.03
"""Largest learning rate for Adam and Yogi that follows from a few rounds. Models diverge with larger ones."""


def choose_server_rate(name: str, distance: float, rounds: int, maximum: float = 1.0) -> float:
    """Return the learning rate with which an optimizer can move a weight by `distance` in `rounds` steps.

    Adam and Yogi move a weight by at most about the rate in each step. At the default rate of .001, a
    federation of 20 rounds would end close to its initial weights. The other optimizers step by the whole
    delta and use their default.

    Args:
        name: one of `OPTIMIZERS`.
        distance: required change of a weight.
        maximum: largest rate for Adam and Yogi.

    Returns:
        The rate, at least the optimizer's default and at most `maximum`. The server skips a round in which a
            model of zeros moves by more than 1 per weight (`edgefl.protocol.server.plausibility`).
    """
    return (
        min(max(DEFAULT_RATES[name], distance / rounds), maximum)
        if name in ("adam", "yogi")
        else DEFAULT_RATES[name]
    )


def step_optimizer(
    name: str, hyper: Mapping[str, float], weights: Weights, mean_delta: Weights, slots: Weights
) -> tuple[Weights, Weights]:
    """Return the weights and the optimizer slots after one step.

    A weight whose delta has always been zero keeps its exact bits.

    Args:
        name: one of `OPTIMIZERS`.
        hyper: see `check_optimizer`.
        weights: the weights before the step.
        mean_delta: the mean delta, with the names and shapes of the weights.
        slots: the slots that the previous step returned, or an empty mapping before the first step. Their
            names are `momentum/W`, `velocity/W` and `step`.

    Raises:
        ConfigError: as in `check_optimizer`.
    """
    settings = check_optimizer(name, hyper)
    rate = settings["learning_rate"]
    count = float(slots.get("step", np.zeros((), np.float32))) + 1
    new_weights: dict[str, Array] = {}
    new_slots: dict[str, Array] = {}
    for key, weight in weights.items():
        is_plain = name == "none" or key.endswith(STATISTICS)
        if is_plain:
            new_weights[key] = weight + mean_delta[key] * np.float32(
                1.0 if key.endswith(STATISTICS) else rate
            )
            continue
        delta = mean_delta[key].astype(np.float64)
        momentum = _read_slot(slots, f"momentum/{key}", delta) * settings["beta1"] + delta * (
            1 if name == "momentum" else 1 - settings["beta1"]
        )
        new_slots[f"momentum/{key}"] = np.asarray(momentum, np.float32)
        move = momentum
        if name != "momentum":
            velocity = _update_velocity(
                name, settings["beta2"], _read_slot(slots, f"velocity/{key}", delta), delta * delta
            )
            new_slots[f"velocity/{key}"] = np.asarray(velocity, np.float32)
            root = np.sqrt(velocity / (1 - settings["beta2"] ** count))
            move = momentum / (1 - settings["beta1"] ** count) / (root + settings["epsilon"])
        new_weights[key] = np.asarray(weight + rate * move, np.float32)
    if name in ("adam", "yogi"):
        new_slots["step"] = np.asarray(count, np.float32)
    return new_weights, new_slots


@dataclass(frozen=True)
class OptimizerSlots(StateRecord):
    """The slots of the server optimizer.

    Attributes:
        by_model: the slots that `step_optimizer` returned last, by the name of the model.
    """

    by_model: Mapping[str, Weights] = field(default_factory=dict)


def _read_slot(slots: Weights, key: str, like: np.ndarray) -> np.ndarray:
    return slots[key].astype(np.float64) if key in slots else np.zeros_like(like)


def _update_velocity(name: str, beta2: float, velocity: np.ndarray, square: np.ndarray) -> np.ndarray:
    if name == "yogi":
        return np.asarray(velocity - (1 - beta2) * square * np.sign(velocity - square))
    return np.asarray(velocity * beta2 + square * (1 - beta2))
