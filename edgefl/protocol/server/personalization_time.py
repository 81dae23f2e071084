"""Estimates from the times of the rounds how long the aggregator waits for devices that personalize."""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from edgefl.base.config import FederationConfig
from edgefl.base.tasks.config import ANOMALY
from edgefl.learning.algorithms.options import extend_epochs
from edgefl.learning.client.personalization import LARGER_STEPS
from edgefl.learning.client.validation import read_personalization
from edgefl.program.plan.spec import PlanSpec, read_task
from edgefl.protocol.server.baseline import count_local_epochs

SAFETY_FACTOR = 2
"""Factor on each forecast. A personalization also evaluates, exports, and waits for a busy board."""
TRAININGS_PER_MODEL = 2
"""How often a device trains each model: once to compare it, and again on all samples."""


@dataclass(frozen=True)
class RoundTime:
    """The training time that one client reported for one round.

    Attributes:
        client_id: the client.
        seconds: duration of the training in seconds, as the device measured it.
        epochs: number of epochs that the client trained.
        samples: number of the client's training samples.
    """

    client_id: str
    seconds: float
    epochs: float
    samples: int


def estimate_personalization_s(
    config: FederationConfig, spec: PlanSpec, times: Iterable[RoundTime] = ()
) -> float:
    """Return the seconds after which the aggregator stops waiting for devices that personalize.

    The last round waits as long when devices compare their models in it.

    `[personalization] deadline_s` is returned if it is above 0. Otherwise each client has a forecast: the
    median of its seconds per epoch, times the epochs of its personalization, times a safety factor of 2. The
    longest forecast counts. It is at least `deadline_s` of a round and at most 2 x rounds x `deadline_s`. The
    maximum is returned when there is no training time.

    Args:
        times: the training times of the rounds. Times of 0 seconds or less are left out.
    """
    if config.personalization.deadline_s:
        return config.personalization.deadline_s
    max_s = TRAININGS_PER_MODEL * config.rounds * config.deadline_s
    by_client: dict[str, list[RoundTime]] = {}
    for round_time in times:
        if round_time.seconds > 0 and round_time.epochs > 0:
            by_client.setdefault(round_time.client_id, []).append(round_time)
    forecasts = [_estimate_client_s(config, spec, client) for client in by_client.values()]
    return max(config.deadline_s, min(max(forecasts, default=max_s), max_s))


def _estimate_client_s(config: FederationConfig, spec: PlanSpec, times: Sequence[RoundTime]) -> float:
    pace_s = statistics.median(round_time.seconds / round_time.epochs for round_time in times)
    return SAFETY_FACTOR * pace_s * count_personalization_epochs(config, spec, times[-1].samples)


def count_personalization_epochs(config: FederationConfig, spec: PlanSpec, samples: int) -> int:
    """Return the maximum number of passes over its samples that a personalization takes.

    It trains the local model, perhaps several times (`train_to_end`), fine-tunes two models, and trains for
    the algorithm's options whose name ends with `_epochs`. All of this happens twice, see
    `TRAININGS_PER_MODEL`.

    Args:
        spec: the plan's specification, which holds the settings of `[personalization]`.
        samples: number of the client's training samples.
    """
    settings = read_personalization(spec)

    def raise_epochs(epochs: int) -> int:
        return extend_epochs(epochs, settings.least_steps, samples, settings.batch_size)

    options: Mapping[str, object] = spec.options
    counts = [value for key, value in options.items() if key.endswith("_epochs") and isinstance(value, int)]
    algorithm = sum(raise_epochs(count) for count in counts)
    tuned = raise_epochs(settings.epochs)
    local = count_local_epochs(config, spec, config.rounds) + tuned
    if read_task(spec).kind != ANOMALY:
        local *= 1 + len(LARGER_STEPS)
    return TRAININGS_PER_MODEL * (local + tuned + algorithm)
