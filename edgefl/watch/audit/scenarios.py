"""Measures what each defence hides from an aggregator and what it costs in accuracy.

Each defence is measured in a small simulated federation.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from edgefl.base.config import FederationConfig
from edgefl.base.errors import ConfigError
from edgefl.base.rng import derive_rng
from edgefl.base.types import Array, ClientState, Shard, Update, Weights
from edgefl.learning.algorithms import make_algorithm
from edgefl.learning.algorithms.names import GLOBAL, RECEIVED_PREFIX, find_output_weights, with_prefix
from edgefl.learning.algorithms.registry import find_entry
from edgefl.learning.algorithms.robust import l2_norm
from edgefl.learning.client.local_training import derive_client_rng
from edgefl.program.learner.base import DataTensors, Learner, iterate_batches
from edgefl.program.plan.spec import Plan
from edgefl.simulation.simulate import simulate
from edgefl.watch.audit.labels import (
    OutputLayer,
    Reading,
    Vector,
    correlation,
    count_shares,
    read_labels,
    total_variation,
)

DEFENCES_OFF: Mapping[str, Any] = {"clip_update": 0.0, "noise_multiplier": 0.0, "withhold": ""}
ONE_STEP_NAME = "one step on all samples"
"""Name of the scenario in which equation 15 is exact. No real federation trains this way."""
ShowScenario = Callable[[str], None]


@dataclass(frozen=True)
class Scenario:
    """A defence that is audited.

    Attributes:
        name: name in the report.
        options: options of the algorithm that differ from the configuration.
    """

    name: str
    options: Mapping[str, Any]


NO_DEFENCE = Scenario("no defence", {})


@dataclass(frozen=True)
class Leak:
    """The information that one client's update reveals.

    Attributes:
        truth: true class shares, shape (num_classes,), float64.
        reading: inferred class shares.
    """

    truth: Vector
    reading: Reading

    @property
    def distance(self) -> float:
        """Total variation distance between true and inferred shares."""
        return total_variation(self.truth, self.reading.shares)

    @property
    def correlation(self) -> float:
        """Correlation of true and inferred shares over the classes."""
        return correlation(self.truth, self.reading.shares)


@dataclass(frozen=True)
class AuditFinding:
    """The result of a scenario.

    Attributes:
        scenario: the scenario.
        clients: the leak of each client, by id.
        accuracy: mean accuracy over clients after the last round. NaN if no rounds were simulated.
    """

    scenario: Scenario
    clients: Mapping[str, Leak]
    accuracy: float = float("nan")

    @property
    def distance(self) -> float:
        """Mean distance over all clients."""
        return float(np.mean([leak.distance for leak in self.clients.values()]))

    @property
    def correlation(self) -> float:
        """Mean of the finite correlations over clients, or NaN."""
        correlations = [leak.correlation for leak in self.clients.values() if np.isfinite(leak.correlation)]
        return float(np.mean(correlations)) if correlations else float("nan")


@dataclass(frozen=True)
class Setting:
    """The audited federation. Plan, initial weights and shards are the same in each scenario.

    Attributes:
        plan: the compiled plan.
        initial: initial weights by name, float32.
        shards: the shard of each client, by id.
        config: the configuration.
        learner: runs the plan.

    Raises:
        ConfigError: the algorithm has no defences, or the task has no classes.
    """

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
        if not self.plan.spec.is_classification:
            raise ConfigError(
                f"the task is {self.config.task.kind}, expected a classification: only its updates reveal "
                "class shares; give another --config"
            )

    def build_options(self, scenario: Scenario) -> dict[str, Any]:
        """Return the options of the plan with only the defences of this scenario."""
        return {**self.plan.spec.options, **DEFENCES_OFF, **scenario.options}


def simulate_first_updates(setting: Setting, scenario: Scenario) -> dict[str, Update]:
    """Return the first update of each client, by id, trained from the initial weights.

    Args:
        scenario: the defence that the clients apply.

    Raises:
        DataError: a shard does not fit the plan.
        DivergedError: the training of a client diverged.
    """
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
    """Return the delta of a single step on all samples of a client.

    It is the mean over batches of the change from the same weights, weighted by the samples of each batch.

    Args:
        weights: received weights by name, float32.
        rng: random generator for the noise of the training step.

    Returns:
        Trained minus received weights by name, float32.
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


def find_read_layer(setting: Setting) -> OutputLayer:
    """Return the output layer of the model.

    Raises:
        ConfigError: the last trained layer has no bias with one number per class. The output layer may be
            frozen.
    """
    weights = setting.initial
    classes = setting.plan.spec.num_classes
    kernel, bias = find_output_weights(weights)
    if weights[bias].shape != (classes,):
        raise ConfigError(
            f"the last trained layer has the bias {bias}, {weights[bias].shape}, expected one number per "
            f"class, {classes}"
        )
    features = weights[kernel].shape[0]
    before = [
        name
        for name, array in weights.items()
        if name.endswith("/bias") and array.shape == (features,) and name != bias
    ]
    return OutputLayer(kernel=kernel, bias=bias, hidden=before[-1] if before else "", sent=weights[kernel])


def list_defences(setting: Setting, noises: tuple[float, ...]) -> list[Scenario]:
    """Return the scenarios: no defence, clipping, clipping with noise, and withheld arrays.

    Updates are clipped to the median norm of the first updates.

    Args:
        noises: noise multipliers.
    """
    layer = find_read_layer(setting)
    norm = float(
        np.median(
            [
                l2_norm(update.deltas[GLOBAL])
                for update in simulate_first_updates(setting, NO_DEFENCE).values()
            ]
        )
    )
    limit = float(f"{norm:.3g}")
    return [
        NO_DEFENCE,
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
    """Infer the class shares of each client from its first update.

    The first finding is one step on all samples. The others are the scenarios of `list_defences`.

    Args:
        noises: noise multipliers to try. The option `noise_multiplier` of the algorithm takes them.
        accuracy: also simulate the rounds of the configuration with each defence.
        show_scenario: receives the name of each scenario before it is simulated.

    Returns:
        One finding per scenario.

    Raises:
        ConfigError: the output layer of the model has no bias.
    """
    show_scenario(ONE_STEP_NAME)
    findings = [audit_one_step(setting)]
    for scenario in list_defences(setting, noises):
        show_scenario(scenario.name)
        finding = audit_first_updates(setting, scenario)
        share = _measure_accuracy(setting, scenario) if accuracy else finding.accuracy
        findings.append(replace(finding, accuracy=share))
    return findings


def audit_one_step(setting: Setting) -> AuditFinding:
    """Infer the class shares of each client from one step on all of its samples.

    Raises:
        ConfigError: the output layer of the model has no bias.
    """
    layer = find_read_layer(setting)
    rate = float(setting.plan.spec.options["learning_rate"])
    leaks = {}
    for c, shard in setting.shards.items():
        rng = derive_rng(setting.config.seed, 1, c)
        delta = take_one_step(setting.learner, setting.initial, shard, rate, rng)
        truth = count_shares(shard.y_train, shard.num_classes)
        leaks[c] = Leak(truth, read_labels(delta, layer, step=rate))
    return AuditFinding(Scenario(ONE_STEP_NAME, {}), leaks)


def audit_first_updates(setting: Setting, scenario: Scenario) -> AuditFinding:
    """Infer the class shares of each client from its first update. The finding has no accuracy.

    Args:
        scenario: the defence.

    Raises:
        ConfigError: the output layer of the model has no bias.
    """
    layer = find_read_layer(setting)
    leaks = {
        c: Leak(
            count_shares(setting.shards[c].y_train, setting.shards[c].num_classes),
            read_labels(update.deltas[GLOBAL], layer),
        )
        for c, update in simulate_first_updates(setting, scenario).items()
    }
    return AuditFinding(scenario, leaks)


def _measure_accuracy(setting: Setting, scenario: Scenario) -> float:
    spec = replace(setting.plan.spec, options=setting.build_options(scenario), personalization={})
    plan = replace(setting.plan, spec=spec)
    end = simulate(
        plan, setting.initial, setting.shards, setting.config, open_learner=lambda plan: setting.learner
    )
    accuracies = [metrics["accuracy_mixture"] for metrics in end.metrics.values()]
    return float(np.nanmean(accuracies))


def guess(setting: Setting) -> AuditFinding:
    """Return the finding of a uniform guess, which needs no update but the number of classes."""
    count = setting.plan.spec.num_classes
    uniform = Reading(np.full(count, 1 / count), "nothing")
    leaks = {c: Leak(count_shares(shard.y_train, count), uniform) for c, shard in setting.shards.items()}
    return AuditFinding(Scenario("a uniform guess", {}), leaks)
