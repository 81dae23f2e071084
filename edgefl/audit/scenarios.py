"""What each defence of a device leaves an aggregator to read, and what it costs in accuracy: a small
federation for each.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from edgefl.algorithms import make_algorithm
from edgefl.algorithms.names import GLOBAL, RECEIVED_PREFIX, find_output_layer, with_prefix
from edgefl.algorithms.registry import find_entry
from edgefl.algorithms.robust import l2_norm
from edgefl.audit.labels import (
    OutputLayer,
    Reading,
    Vector,
    correlation,
    count_shares,
    read_labels,
    total_variation,
)
from edgefl.client.local_training import derive_client_rng
from edgefl.config import FederationConfig
from edgefl.errors import ConfigError
from edgefl.learner.base import DataTensors, Learner, iterate_batches
from edgefl.plan.spec import Plan
from edgefl.rng import derive_rng
from edgefl.simulation.simulate import simulate
from edgefl.types import Array, ClientState, Shard, Update, Weights

DEFENCES_OFF: Mapping[str, Any] = {"clip_update": 0.0, "noise_multiplier": 0.0, "withhold": ""}
ONE_STEP_NAME = "one step on all samples"
"""The name of the case in which equation 15 is exact: no federation trains so."""
ShowScenario = Callable[[str], None]


@dataclass(frozen=True)
class Scenario:
    """A name and the options by which it differs from the configuration."""

    name: str
    options: Mapping[str, Any]


@dataclass(frozen=True)
class Leak:
    """What one client's update told: true and read shares float64[classes], their total variation distance
    and correlation.
    """

    truth: Vector
    reading: Reading

    @property
    def distance(self) -> float:
        """Total variation distance between the two."""
        return total_variation(self.truth, self.reading.shares)

    @property
    def correlation(self) -> float:
        """Correlation of the two over the classes."""
        return correlation(self.truth, self.reading.shares)


@dataclass(frozen=True)
class AuditFinding:
    """A scenario with each client's leak; accuracy: mean over clients at the end of the rounds, NaN when none
    were played.
    """

    scenario: Scenario
    clients: Mapping[str, Leak]
    accuracy: float = float("nan")

    @property
    def distance(self) -> float:
        """Mean distance over clients."""
        return float(np.mean([leak.distance for leak in self.clients.values()]))

    @property
    def correlation(self) -> float:
        """Mean correlation over the clients that have one."""
        correlations = [leak.correlation for leak in self.clients.values() if np.isfinite(leak.correlation)]
        return float(np.mean(correlations)) if correlations else float("nan")


@dataclass(frozen=True)
class Setting:
    """A federation to be audited: the same plan, first weights and shards in each scenario."""

    plan: Plan
    initial: Weights
    shards: Mapping[str, Shard]
    config: FederationConfig
    learner: Learner

    def __post_init__(self) -> None:
        if not set(DEFENCES_OFF) <= set(find_entry(self.config.algorithm).defaults):
            raise ConfigError(
                f"the algorithm is {self.config.algorithm!r}, expected one such as fedavg, with "
                f"{', '.join(DEFENCES_OFF)}; give another --config"
            )

    def build_options(self, scenario: Scenario) -> dict[str, Any]:
        """Return the plan's options with this scenario's defences, and no others."""
        return {**self.plan.spec.options, **DEFENCES_OFF, **scenario.options}


def simulate_first_updates(setting: Setting, scenario: Scenario) -> dict[str, Update]:
    """Return what every client sends in the first round, in answer to the weights that were drawn."""
    options = setting.build_options(scenario)
    name = setting.config.algorithm
    seed = setting.config.seed
    server = make_algorithm(name, None, options)
    device = make_algorithm(name, setting.learner, options)
    state = server.init(setting.initial, derive_rng(seed, 0, "init"))
    sent = {client_id: server.broadcast(state, client_id) for client_id in setting.shards}
    return {
        c: device.local_update(sent[c], ClientState(), shard, c, derive_client_rng(seed, sent[c], c))[0]
        for c, shard in setting.shards.items()
    }


def take_one_step(
    learner: Learner, weights: Weights, shard: Shard, learning_rate: float, rng: np.random.Generator
) -> dict[str, Array]:
    """Return the delta of a single step on all of a client's samples: the mean of what each batch moves the
    same weights by.
    """
    signature = learner.spec.find_signature("train")
    total: dict[str, np.ndarray] = {spec.name: np.zeros(spec.shape, np.float64) for spec in signature.trained}
    all_weights = {**weights, **with_prefix(RECEIVED_PREFIX, weights)}
    for index, weight in iterate_batches(len(shard.y_train), signature.batch_size, None):
        used = index[: int(weight.sum())]
        data: DataTensors = {"x": shard.x_train[used]}
        moved, _ = learner.fit(
            "train",
            all_weights,
            data,
            shard.y_train[used],
            epochs=1,
            rng=rng,
            hyper={"learning_rate": learning_rate},
        )
        for name, array in moved.items():
            total[name] = total[name] + (array.astype(np.float64) - weights[name]) * len(used) / len(
                shard.y_train
            )
    return {name: array.astype(np.float32) for name, array in total.items()}


def choose_read_layer(setting: Setting) -> OutputLayer:
    """Return the output layer.

    ConfigError when it has no bias, or is not found since it is frozen and stands elsewhere.
    """
    weights = setting.initial
    classes = setting.plan.spec.num_classes
    kernel, bias = find_output_layer(weights)
    if weights[bias].shape != (classes,):
        raise ConfigError(
            f"the last trained layer has the bias {bias}, {weights[bias].shape}, expected one number a "
            f"class, {classes}"
        )
    features = weights[kernel].shape[0]
    before = [
        name
        for name, array in weights.items()
        if name.endswith("/bias") and array.shape == (features,) and name != bias
    ]
    return OutputLayer(kernel, bias, before[-1] if before else "", weights[kernel])


def list_defences(setting: Setting, noises: tuple[float, ...]) -> list[Scenario]:
    """Return no defence.

    Clipping to the median norm of the first updates; that with noise; and more and more that is withheld.
    """
    layer = choose_read_layer(setting)
    norm = float(
        np.median(
            [
                l2_norm(update.deltas[GLOBAL])
                for update in simulate_first_updates(setting, Scenario("", {})).values()
            ]
        )
    )
    limit = float(f"{norm:.3g}")
    return [
        Scenario("no defence", {}),
        Scenario(f"clip to {limit:g}", {"clip_update": limit}),
        *(
            Scenario(f"clip to {limit:g}, noise {noise:g}", {"clip_update": limit, "noise_multiplier": noise})
            for noise in noises
        ),
        Scenario("withhold output bias", {"withhold": layer.bias}),
        Scenario("withhold output layer", {"withhold": f"{layer.kernel}, {layer.bias}"}),
    ]


def audit_labels(
    setting: Setting, noises: tuple[float, ...], *, accuracy: bool, show_scenario: ShowScenario
) -> list[AuditFinding]:
    """Read every client's labels off its first update: after one step on all samples, and with each defence
    off and on.

    Args:
        setting: the federation whose updates are read.
        noises: noise multipliers of `[privacy]` to try.
        accuracy: also play the rounds of the configuration with each defence.
        progress: receives the name of each scenario before it is played.

    Raises:
        ConfigError: the output layer of the model has no bias, or the algorithm has no defences.
    """
    layer = choose_read_layer(setting)
    truths = {c: count_shares(shard.y_train, shard.num_classes) for c, shard in setting.shards.items()}
    rate = float(setting.plan.spec.options["learning_rate"])
    seed = setting.config.seed
    show_scenario(ONE_STEP_NAME)
    steps = {
        c: take_one_step(setting.learner, setting.initial, shard, rate, derive_rng(seed, 1, c))
        for c, shard in setting.shards.items()
    }
    exact = {c: Leak(truths[c], read_labels(delta, layer, step=rate)) for c, delta in steps.items()}
    findings = [AuditFinding(Scenario(ONE_STEP_NAME, {}), exact)]
    for scenario in list_defences(setting, noises):
        show_scenario(scenario.name)
        updates = simulate_first_updates(setting, scenario)
        leaks = {
            c: Leak(truths[c], read_labels(update.deltas[GLOBAL], layer)) for c, update in updates.items()
        }
        findings.append(
            AuditFinding(scenario, leaks, _measure_accuracy(setting, scenario) if accuracy else float("nan"))
        )
    return findings


def _measure_accuracy(setting: Setting, scenario: Scenario) -> float:
    spec = replace(setting.plan.spec, options=setting.build_options(scenario), personalization={})
    plan = replace(setting.plan, spec=spec)
    end = simulate(plan, setting.initial, setting.shards, setting.config, learner=setting.learner)
    accuracies = [metrics["accuracy_mixture"] for metrics in end.metrics.values()]
    return float(np.nanmean(accuracies))


def guess(setting: Setting) -> AuditFinding:
    """Return what one knows without any update: that there are so many classes."""
    count = setting.plan.spec.num_classes
    uniform = Reading(np.full(count, 1 / count), "nothing")
    leaks = {c: Leak(count_shares(shard.y_train, count), uniform) for c, shard in setting.shards.items()}
    return AuditFinding(Scenario("a uniform guess", {}), leaks)
