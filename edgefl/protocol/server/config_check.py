"""Finds configurations that cannot work, or probably cannot, before anything is compiled or sent.

A configuration is refused when it is certain to fail. An example is a number of rounds that ends before the
clustering phase. A configuration gets a warning when it fails in most cases, for example with a learning rate
of 10.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgefl.base.config import FederationConfig
from edgefl.base.errors import ConfigError
from edgefl.base.tasks.config import BINARY_LOSS
from edgefl.learning.algorithms import make_algorithm, resolve_algorithm_options
from edgefl.learning.algorithms.options import count_expected_clients
from edgefl.learning.algorithms.registry import EARLY_ALGORITHMS, check_algorithm_task
from edgefl.learning.algorithms.robust import count_krum_updates
from edgefl.learning.algorithms.server_optimizer import DEFAULT_RATES, MAX_WEIGHT_RATE
from edgefl.learning.privacy.mechanism import check_privacy
from edgefl.program.models.keras_file import read_compiled_loss
from edgefl.protocol.security.secagg.masked_aggregation import check_secure_aggregation
from edgefl.protocol.security.secagg.masking import MIN_MASKED_CLIENTS
from edgefl.protocol.server.rounds import count_needed_updates
from edgefl.protocol.server.staleness import check_staleness

LARGE_RATE = 10.0
"""A learning rate of SGD far above every published recipe."""
LARGE_ADAPTIVE_RATE = 1.0
"""A rate of Adam, AdamW or Yogi that moves every weight by about 1 in each step."""
MIN_PASSES = 3
"""Minimum number of passes over a client's samples. Fewer passes leave a model near its initial weights."""
MIN_SERVER_STEP_SUM = 0.1
"""Minimum distance that Adam must be able to move a weight at the server. Initial weights are about this
large.
"""
KERAS_LOSSES = {
    "cross-entropy": ("sparsecategoricalcrossentropy", "categoricalcrossentropy"),
    BINARY_LOSS: ("binarycrossentropy",),
    "mse": ("mse", "meansquarederror"),
    "mae": ("mae", "meanabsoluteerror"),
    "huber": ("huber",),
}
"""Names of Keras's losses in lower case without underscores, by the loss of a task."""
AlgorithmOptions = Mapping[str, Any]


@dataclass(frozen=True)
class Problem:
    """A setting that cannot work, or probably cannot.

    Attributes:
        is_certain: whether the federation is certain to fail.
        message: what was found, what is expected, and the remedy.
    """

    is_certain: bool
    message: str


def check_config(config: FederationConfig, clients: int | None = None) -> tuple[str, ...]:
    """Check that a federation with this configuration can work.

    Args:
        clients: the exact number of clients. None takes the number of `[federation] clients`, and treats the
            number as unknown when that list is empty.

    Returns:
        One warning for each setting with which the federation will probably fail.

    Raises:
        ConfigError: the federation cannot work.
    """
    if config.algorithm in EARLY_ALGORITHMS:
        raise ConfigError(
            f"the algorithm is {config.algorithm!r}, which runs before round 1 and makes no model; choose "
            "another name of `edgefl algorithms`, and set normalize = true in [model] to measure mean and "
            "std, or range_test = true in [federation] to find learning_rate"
        )
    check_algorithm_task(config)
    options = resolve_algorithm_options(config)
    algorithm = make_algorithm(config.algorithm, None, options)
    check_staleness(config)
    check_privacy(algorithm, config)
    check_secure_aggregation(algorithm, config)
    num_clients = clients or len(set(config.clients)) or None
    problems = [
        *_check_compiled_loss(config),
        *_check_training(config, options),
        *_check_algorithm_rates(options),
        *_check_personalization_rate(config),
        *_check_server_rate(config, options),
        *_check_phases(config, options),
        *_check_splits(config, options, num_clients),
        *_check_experts(config, options, num_clients),
        *_check_mean(config, options, num_clients),
        *_check_cohort(config, num_clients),
    ]
    for problem in problems:
        if problem.is_certain:
            raise ConfigError(problem.message)
    return tuple(problem.message for problem in problems)


def _check_compiled_loss(config: FederationConfig) -> Iterator[Problem]:
    path = Path(config.model.name)
    if path.suffix != ".keras" or not path.is_file():
        return
    loss = read_compiled_loss(path)
    if loss and loss.lower().replace("_", "") not in KERAS_LOSSES[config.task.loss_name]:
        yield Problem(
            False,
            f"{path} was compiled with the loss {loss}, and devices train with {config.task.loss_name}: they "
            "use the loss of [task] and the optimizer of [algorithm], so expect other results than those of "
            "model.fit",
        )


def _check_training(config: FederationConfig, options: AlgorithmOptions) -> Iterator[Problem]:
    epochs = options.get("epochs")
    for key, effect in (("epochs", "no client trains"), ("learning_rate", "no model moves")):
        if options.get(key) == 0:
            yield Problem(
                True,
                f"[algorithm] {key} is 0, expected above 0: {effect}; leave {key} out to take its default",
            )
    if epochs and config.rounds * epochs < MIN_PASSES:
        yield Problem(
            False,
            f"rounds x epochs is {config.rounds * epochs}, expected {MIN_PASSES} or more: each client passes "
            "that often over its samples, and its model stays near its first weights; raise rounds",
        )


def _check_personalization_rate(config: FederationConfig) -> Iterator[Problem]:
    rate = config.personalization.learning_rate
    if rate >= LARGE_ADAPTIVE_RATE:
        yield Problem(
            False,
            f"[personalization] learning_rate is {rate:g}, expected below {LARGE_ADAPTIVE_RATE:g}: Adam "
            "moves every weight by about that much in each step; try 0.001",
        )


def _check_server_rate(config: FederationConfig, options: AlgorithmOptions) -> Iterator[Problem]:
    name = options.get("server_optimizer", "none")
    rate = options.get("server_learning_rate", 0.0) or DEFAULT_RATES[name]
    is_small = rate < MAX_WEIGHT_RATE and rate * config.rounds < MIN_SERVER_STEP_SUM
    if name in ("adam", "yogi") and is_small:
        yield Problem(
            False,
            f"[algorithm] server_learning_rate x rounds is {rate * config.rounds:.3g}, expected "
            f'{MIN_SERVER_STEP_SUM:g} or more: server_optimizer = "{name}" moves a weight by about its '
            "rate in a round, and models stay near their first weights; try "
            f"{min(0.3 / config.rounds, MAX_WEIGHT_RATE):.2g}",
        )


def _check_algorithm_rates(options: AlgorithmOptions) -> Iterator[Problem]:
    is_adaptive = {
        "server_learning_rate": options.get("server_optimizer", "adam") in ("adam", "yogi"),
        "local_learning_rate": True,  # AdamW
        "gate_learning_rate": options.get("gate_optimizer", "adam") == "adam",  # or AdamW
        "learning_rate": options.get("optimizer") == "adam",
    }
    for key, value in options.items():
        if not key.endswith("learning_rate"):
            continue
        limit = LARGE_ADAPTIVE_RATE if is_adaptive.get(key) else LARGE_RATE
        if value >= limit:
            yield Problem(
                False,
                f"[algorithm] {key} is {value:g}, expected below {limit:g}: training diverges at such a "
                "step size in most cases; try 0.01",
            )
    for key, value in options.items():
        if key.endswith("momentum") and value >= 1:
            yield Problem(
                True,
                f"[algorithm] {key} is {value:g}, expected below 1: steps grow without end; try 0.9",
            )
    pulls = (("penalty", "personal_learning_rate"), ("mu", "learning_rate"))
    for strength, rate in pulls:
        if strength in options and rate in options and options[strength] * options[rate] >= 2:
            yield Problem(
                True,
                f"[algorithm] {strength} x {rate} is {options[strength] * options[rate]:g}, expected below "
                f"2: a step towards the received model ends further from it than it began; lower {strength}",
            )
    for rate, decay in (("learning_rate", "weight_decay"), ("adapt_learning_rate", "adapt_weight_decay")):
        if rate in options and decay in options and options[rate] * options[decay] >= 1:
            yield Problem(
                True,
                f"[algorithm] {rate} x {decay} is {options[rate] * options[decay]:g}, expected below 1: each "
                f"step removes a weight completely; lower {decay}",
            )


def _check_phases(config: FederationConfig, options: AlgorithmOptions) -> Iterator[Problem]:
    if not options.get("clustering"):
        return
    pretrain = options.get("pretrain_rounds", 0)
    needed = pretrain + 2
    if config.rounds < needed:
        before = f"{pretrain} of FedAvg (pretrain_rounds), " if pretrain else ""
        lower = "lower pretrain_rounds, " if pretrain > 1 else ""
        yield Problem(
            True,
            f"[federation] rounds is {config.rounds}, expected {needed} or more: {before}1 that clusters the "
            f"clients, and at least 1 in clusters; {lower}raise rounds, or set clustering = false",
        )
    if options.get("mixing") == 1:
        yield Problem(
            False,
            "[algorithm] mixing is 1, expected below 1: each client keeps its own model and uses nothing "
            "of its cluster; try 0.5",
        )
    if options.get("cut") == "threshold" and options.get("threshold") == 1:
        yield Problem(
            False,
            "[algorithm] threshold is 1, expected below 1: only equal clients share a cluster; lower it, or "
            'set cut = "auto"',
        )


def _check_splits(
    config: FederationConfig, options: AlgorithmOptions, num_clients: int | None
) -> Iterator[Problem]:
    if "min_cluster_size" not in options:
        return
    pretrain = options["pretrain_rounds"]
    if config.rounds <= pretrain:
        yield Problem(
            False,
            f"[algorithm] pretrain_rounds is {pretrain}, expected below {config.rounds}, the number of "
            "rounds: no round is left that could split a cluster, and all clients share one model; lower "
            "pretrain_rounds, or raise rounds",
        )
    for key, is_met, expected in (
        ("eps1", options["eps1"] > 0, "above 0"),
        ("eps2", options["eps2"] < 1 or not options["relative"], "below 1"),
    ):
        if not is_met:
            yield Problem(
                False,
                f"[algorithm] {key} is {options[key]:g}, expected {expected}: no norm meets this condition "
                f"of a split, and all clients share one model; leave {key} out to take its default",
            )
    most = min(config.clients_per_round or math.inf, num_clients or math.inf)
    needed = 2 * options["min_cluster_size"]
    if most < needed:
        yield Problem(
            False,
            f"{most} clients take part in a round, expected {needed} or more: a split makes two parts of "
            f"min_cluster_size = {options['min_cluster_size']} clients or more, so all clients share one "
            "model; lower min_cluster_size, or add clients",
        )


def _check_experts(
    config: FederationConfig, options: AlgorithmOptions, num_clients: int | None
) -> Iterator[Problem]:
    clients = num_clients or count_expected_clients(config)
    for key, effect in (
        ("num_experts", "some experts are never trained, or several are alike"),
        ("num_clusters", "each client is a cluster by itself, and no client learns from another"),
    ):
        count = options.get(key, 0)
        if count > clients:
            which = "the number of clients" if num_clients else "the smallest number of clients"
            yield Problem(
                False,
                f"[algorithm] {key} is {count}, expected at most {clients}, {which}: {effect}; lower {key}"
                + ("" if num_clients else ", or raise min_clients"),
            )
    if options.get("condition") == "side" and options.get("num_sides", 2) < 2:
        yield Problem(
            True,
            f"[algorithm] num_sides is {options['num_sides']}, expected 2 or more: with one kind of side "
            'information all samples are alike; raise it, or set condition = "label"',
        )
    if options.get("epsilon") == 1:
        yield Problem(
            False,
            "[algorithm] epsilon is 1, expected below 1: clients choose models at random, and never the "
            "best fit; try 0.33",
        )


def _check_mean(
    config: FederationConfig, options: AlgorithmOptions, num_clients: int | None
) -> Iterator[Problem]:
    mean = options.get("mean")
    most = min(config.clients_per_round or math.inf, num_clients or math.inf)
    least = min(most, count_expected_clients(config))
    if mean == "krum":
        faults = options["krum_faults"]
        needed = max(count_krum_updates(faults), options["krum_keep"] + faults + 2)
        least_updates = count_needed_updates(config.quorum, int(least))
        effect = f'mean = "krum" with krum_faults = {faults} skips a round of fewer updates'
        remedy = "raise clients_per_round, or lower krum_faults or krum_keep"
        if most < needed:
            yield Problem(
                True, f"{most} clients take part in a round, expected {needed} or more: {effect}; {remedy}"
            )
        elif least_updates < needed:
            yield Problem(
                False,
                f"a round may close with {least_updates} updates, expected {needed} or more: {effect}; raise "
                "min_clients or quorum",
            )
    elif mean in ("trimmed", "median") and most < 3:
        yield Problem(
            True,
            f'{most} clients take part in a round, expected 3 or more: mean = "{mean}" of fewer clients is '
            'their plain mean; raise clients_per_round, or set mean = "weighted"',
        )


def _check_cohort(config: FederationConfig, num_clients: int | None) -> Iterator[Problem]:
    if num_clients is None:
        return
    if config.clients_per_round > num_clients:
        yield Problem(
            False,
            f"[federation] clients_per_round is {config.clients_per_round}, expected at most {num_clients}, "
            "the number of clients: all of them take part in each round; lower it, or set 0 for all",
        )
    if config.privacy.secure_aggregation and num_clients < MIN_MASKED_CLIENTS:
        yield Problem(
            True,
            f"secure_aggregation has {num_clients} clients, expected {MIN_MASKED_CLIENTS} or more: the sum "
            "over two shows each of them the other's update; add clients",
        )
