"""How long the aggregator waits for devices that personalize, estimated from what the rounds took."""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from edgefl.algorithms.options import epochs_with_steps
from edgefl.client.validation import personalization_of
from edgefl.config import FederationConfig
from edgefl.plan.spec import PlanSpec
from edgefl.server.baseline import local_epochs

SAFETY_FACTOR = 2
"""A personalization does more than pass over samples: it evaluates, exports, and waits for a busy board."""
MODELS_MADE_TWICE = 2
"""A device makes each model to compare it, and again on all of its samples."""


@dataclass(frozen=True)
class RoundTime:
    """What one client reported of its part of a round.

    Attributes:
        client_id: the client.
        seconds: seconds of its training; a device measures them.
        epochs: epochs that it trained.
        samples: number of its training samples.
    """

    client_id: str
    seconds: float
    epochs: float
    samples: int


def personalization_deadline_s(
    config: FederationConfig, spec: PlanSpec, times: Iterable[RoundTime] = ()
) -> float:
    """Return the seconds after which the aggregator stops waiting for devices that personalize.

    The last round waits as long when devices compare their models in it.

    `[personalization] deadline_s` counts where it is above 0. Else each client has a forecast: its median
    seconds of an epoch in the rounds, times the epochs of its personalization, times a safety factor of 2.
    The longest forecast counts, and it is at least `deadline_s` of a round and at most 2 x rounds x
    `deadline_s`. Without a time of any client it is the largest value.

    Args:
        config: the federation.
        spec: the plan's specification.
        times: what clients reported of the rounds; a time that is not above 0 is left out.
    """
    if config.personalization.deadline_s:
        return config.personalization.deadline_s
    most = MODELS_MADE_TWICE * config.rounds * config.deadline_s
    by_client: dict[str, list[RoundTime]] = {}
    for each in times:
        if each.seconds > 0 and each.epochs > 0:
            by_client.setdefault(each.client_id, []).append(each)
    forecasts = [_forecast_s(config, spec, client) for client in by_client.values()]
    return max(config.deadline_s, min(max(forecasts, default=most), most))


def _forecast_s(config: FederationConfig, spec: PlanSpec, times: Sequence[RoundTime]) -> float:
    pace_s = statistics.median(each.seconds / each.epochs for each in times)
    return SAFETY_FACTOR * pace_s * personalization_epochs(config, spec, times[-1].samples)


def personalization_epochs(config: FederationConfig, spec: PlanSpec, samples: int) -> int:
    """Return the number of passes over its samples that a personalization takes at most.

    It is the local model, the fine-tuning, and what the algorithm's own options say (those whose name ends
    with `_epochs`). All of them happen twice.

    Args:
        config: the federation.
        spec: the plan's specification; its settings of `[personalization]` count.
        samples: number of the client's training samples.
    """
    settings = personalization_of(spec)

    def raised(epochs: int) -> int:
        return epochs_with_steps(epochs, settings.least_steps, samples, settings.batch_size)

    options: Mapping[str, object] = spec.options
    counts = [value for key, value in options.items() if key.endswith("_epochs") and isinstance(value, int)]
    algorithm = sum(raised(count) for count in counts)
    tuned = raised(settings.epochs)
    return MODELS_MADE_TWICE * (local_epochs(config, spec) + 2 * tuned + algorithm)
