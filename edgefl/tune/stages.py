"""The four stages of the search, in the order of the paper.

First come a single global model and a local model. Then comes the gate with their results. Last comes
epsilon with two cluster models. All are in the IID setting. The paper does not state the number of cluster
models for the gate. Here it is `num_experts` of the configuration.

Source: Isaksson et al., Adaptive Expert Models for Personalization in Federated Learning, 2022, section
4.4.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from edgefl.algorithms.registry import find_entry
from edgefl.config import FederationConfig
from edgefl.errors import ConfigError
from edgefl.tune.space import (
    SearchSpace,
    make_cluster_space,
    make_exploration_space,
    make_gate_space,
    make_local_space,
    with_options,
)


@dataclass(frozen=True)
class TuneStage:
    """`setting` makes of the configuration what a trial plays.

    `metric` is the clients' figure whose mean is the score.

    federates: a trial plays the rounds, else it only personalizes. experts: it begins with cluster models
    that were trained once. by_round: its score is taken after rounds, else after clients.
    """

    number: int
    name: str
    description: str
    space: Callable[[FederationConfig], SearchSpace]
    configure: Callable[[FederationConfig], FederationConfig]
    metric: str
    federates: bool = False
    experts: bool = False
    by_round: bool = False

    def count_steps(self, config: FederationConfig) -> int:
        """Return after how many rounds or clients a trial is over."""
        return config.rounds if self.by_round else config.partition.num_clients


def _configure_cluster(config: FederationConfig) -> FederationConfig:
    defaults = find_entry("ifca").defaults
    options = {name: value for name, value in config.options.items() if name in defaults}
    return replace(config, algorithm="ifca", options={**options, "num_experts": 1})


def _configure_local(config: FederationConfig) -> FederationConfig:
    """The gate and the cluster model are untrained company: as small as they can be."""
    options = {
        "num_experts": 1,
        "gate": "pixels",
        "gate_options": {},
        "gate_epochs": 1,
        "gate_share": 0.0,
        "baselines": False,
    }
    return with_options(config, options)


def _configure_gate(config: FederationConfig) -> FederationConfig:
    return with_options(config, {"baselines": False})


def _configure_exploration(config: FederationConfig) -> FederationConfig:
    return with_options(config, {"baselines": False, "num_experts": 2})


def configure_experts(config: FederationConfig) -> FederationConfig:
    """Return the configuration that trains the cluster models which the trials of the gate share.

    Its personalization is not used, and is short.
    """
    return with_options(config, {"baselines": False, "local_epochs": 1, "gate_epochs": 1})


TUNE_STAGES = (
    TuneStage(
        1,
        "cluster",
        "a single cluster model",
        make_cluster_space,
        _configure_cluster,
        "accuracy_mixture",
        federates=True,
        by_round=True,
    ),
    TuneStage(2, "local", "the local model", make_local_space, _configure_local, "accuracy_local_expert"),
    TuneStage(
        3,
        "gate",
        "the gate over the cluster models and the local one",
        make_gate_space,
        _configure_gate,
        "accuracy_mixture",
        experts=True,
    ),
    TuneStage(
        4,
        "exploration",
        "epsilon, with two cluster models",
        make_exploration_space,
        _configure_exploration,
        "accuracy_mixture",
        federates=True,
    ),
)


def parse_stages(text: str) -> tuple[TuneStage, ...]:
    """Return the stages of `all` or of numbers such as `1,2`, in their order.

    ConfigError for what is no stage.
    """
    if text == "all":
        return TUNE_STAGES
    by_number = {str(stage.number): stage for stage in TUNE_STAGES}
    asked = {part.strip() for part in text.split(",")}
    if not asked <= set(by_number):
        listed = ", ".join(f"{stage.number} ({stage.name})" for stage in TUNE_STAGES)
        raise ConfigError(f"--stages is {text!r}, expected all, or numbers such as 1,2; there are {listed}")
    return tuple(stage for number, stage in by_number.items() if number in asked)
