"""Measures the mean and the standard deviation of each channel over all clients, before the first round.

It is an algorithm of one round without training, so simulator, aggregator and devices run it as any other.
Each client sends the mean and the variance of each channel of its training samples. The result is made of
medians over clients, so fewer than half of the clients cannot move it beyond the values of the others. A
client sends two numbers for each channel. `docs/threat-model.md` lists them.
"""

import logging
from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from edgefl.base.config.schema import MIN_STD
from edgefl.base.errors import DataError
from edgefl.base.rng import derive_rng
from edgefl.base.types import Array, Broadcast, ClientState, ServerState, Shard, Update, Weights
from edgefl.learning.algorithms.base import PHASE_DONE, PHASE_MEASURE, Algorithm
from edgefl.learning.algorithms.early import make_early_algorithm
from edgefl.learning.algorithms.entry import Entry
from edgefl.program.learner.base import Learner
from edgefl.program.plan.spec import Plan, TensorSpec

LOGGER = logging.getLogger(__name__)

MEASUREMENT_ALGORITHM = "measurement"
"""Name of the algorithm. No configuration can choose it."""
MOMENTS = "moments"
"""The name of the model that stands for the measured values."""
MEAN = "moments/mean"
VARIANCE = "moments/variance"
STD = "moments/std"
MAX_SPREAD_RATIO = 100.0
"""How far the values of one client may be from the mean, in standard deviations of most clients, without a
warning."""
MAX_PART_VALUES = 2**18
"""About this many values are in memory as float64 at a time."""
MIN_SHARE = 1e-6
"""A channel whose standard deviation is below this share of its mean counts as constant."""


@dataclass(frozen=True)
class MeasurementOptions:
    """The algorithm has no options."""


def prepare_measurement(plan: Plan, seed: int) -> tuple[Plan, Algorithm, ServerState]:
    """Return the plan, the algorithm and the first server state of the measurement before a federation.

    Args:
        plan: the plan of the federation, whose normalization is not set yet.
    """
    measured = make_measurement_plan(plan)
    zeros = {spec.name: np.zeros(spec.shape, np.float32) for spec in measured.spec.weights}
    algorithm = make_measurement(None, MeasurementOptions())
    return measured, algorithm, algorithm.init(zeros, derive_rng(seed, 0, "init"))


def read_moments(state: ServerState) -> tuple[list[float], list[float]]:
    """Return mean and standard deviation of each channel.

    Args:
        state: the server state after the measurement.
    """
    moments = state.models[MOMENTS]
    return moments[MEAN].tolist(), moments[STD].tolist()


def make_measurement_plan(plan: Plan) -> Plan:
    """Return the plan of the measurement before a federation. It has no program, because nothing is trained.

    Args:
        plan: the plan of the federation, whose normalization is not set yet.
    """
    channels = plan.spec.input_shape[-1]
    weights = tuple(TensorSpec(name, (channels,)) for name in (MEAN, VARIANCE))
    spec = replace(
        plan.spec,
        algorithm=MEASUREMENT_ALGORITHM,
        options={},
        model_options={},
        weights=weights,
        signatures=(),
        bindings=(),
        single_bindings=(),
        personalization={},
        augmentation={},
    )
    return Plan(spec=spec, program=b"", template=b"")


def measure_moments(x: Array) -> Weights:
    """Return mean and variance of each channel.

    Args:
        x: samples, shape (n, ..., channels), float32.

    Returns:
        Two arrays of shape (channels,), float32, by name.
    """
    rows = x.reshape(-1, x.shape[-1])
    mean = rows.mean(0, dtype=np.float64)
    variance = np.zeros_like(mean)
    for part in np.array_split(rows, max(1, rows.size // MAX_PART_VALUES)):
        variance += np.square(part - mean).sum(0)
    return {MEAN: mean.astype(np.float32), VARIANCE: (variance / len(rows)).astype(np.float32)}


def combine_moments(moments: Iterable[Weights]) -> Weights:
    """Return mean and standard deviation of each channel over all clients.

    The mean is the median of the clients' means. The variance is the median of the clients' variances around
    this mean. A channel that is constant, or whose standard deviation is below `MIN_STD`, gets the standard
    deviation 1.

    Args:
        moments: mean and variance of each client, as `measure_moments` returns them. At least one client.

    Returns:
        Two arrays of shape (channels,), float32, by name.
    """
    clients = list(moments)
    means, variances = (
        np.array([values[name] for values in clients], np.float64) for name in (MEAN, VARIANCE)
    )
    mean = np.median(means, axis=0)
    std = np.sqrt(np.median(np.maximum(variances, 0) + (means - mean) ** 2, axis=0))
    _warn_of_other_spreads(variances + (means - mean) ** 2, std)
    is_constant = std <= MIN_SHARE * np.abs(mean)
    is_small = ~is_constant & (std < MIN_STD)
    for channel in np.flatnonzero(is_small):
        LOGGER.warning(
            f"channel {channel}: the standard deviation is {std[channel]:.3g}, expected {MIN_STD:g} or more; "
            "it is not normalized, so multiply this channel by a constant on every device"
        )
    return {
        MEAN: mean.astype(np.float32),
        STD: np.where(is_constant | is_small, 1.0, std).astype(np.float32),
    }


def _warn_of_other_spreads(squares: NDArray[np.float64], std: NDArray[np.float64]) -> None:
    """Warn if some clients have far larger values than most clients, as with a sensor that seldom moves.

    Args:
        squares: mean squared distance from the common mean, shape (clients, channels).
        std: the standard deviation over all clients, shape (channels,).
    """
    largest = np.sqrt(np.maximum(squares, 0).max(axis=0))
    for channel in np.flatnonzero(largest > MAX_SPREAD_RATIO * np.maximum(std, MIN_STD)):
        LOGGER.warning(
            f"channel {channel}: one device has values {largest[channel]:.3g} from the mean, most devices "
            f"{std[channel]:.3g}; if the channel seldom changes, write mean and std into [model]"
        )


def make_measurement(learner: Learner | None, options: MeasurementOptions) -> Algorithm:
    """Return the algorithm.

    Args:
        learner: not used, because nothing is trained.
        options: not used.
    """

    def init(initial: Weights, rng: np.random.Generator) -> ServerState:
        return ServerState(round=1, phase=PHASE_MEASURE, models={MOMENTS: initial})

    def local_update(
        broadcast: Broadcast, state: ClientState, shard: Shard, client_id: str, rng: np.random.Generator
    ) -> tuple[Update, ClientState]:
        moments = measure_moments(shard.x_train)
        deltas = {name: value - broadcast.models[MOMENTS][name] for name, value in moments.items()}
        update = Update(
            client_id=client_id,
            round=broadcast.round,
            num_samples=len(shard.x_train),
            deltas={MOMENTS: deltas},
        )
        return update, state

    def aggregate(state: ServerState, updates: Iterable[Update]) -> ServerState:
        moments = [update.deltas[MOMENTS] for update in updates]
        if not moments:
            raise DataError("no client reported mean and std; set both in [model] of federation.toml")
        measured = combine_moments(moments)
        return replace(state, round=state.round + 1, phase=PHASE_DONE, models={MOMENTS: measured})

    return make_early_algorithm(MEASUREMENT_ALGORITHM, MOMENTS, init, local_update, aggregate)


MEASUREMENT_ENTRY = Entry(
    options=MeasurementOptions,
    factory=make_measurement,
    objectives=lambda network, options: (),
    source="edgefl",
)
