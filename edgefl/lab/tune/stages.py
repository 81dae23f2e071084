"""The four stages of the search, in the order of the paper.

Stages 1 and 2 tune a single cluster model and the local model. Stage 3 tunes the gate with their options.
Stage 4 tunes epsilon with two cluster models. All stages partition the data evenly (IID). The paper does not
state the number of cluster models in stage 3. Here it is `num_experts` of the configuration.

Source: Isaksson et al., Adaptive Expert Models for Personalization in Federated Learning, 2022, section
4.4.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from edgefl.base.config import FederationConfig
from edgefl.base.errors import ConfigError
from edgefl.lab.tune.space import (
    SearchSpace,
    make_cluster_space,
    make_exploration_space,
    make_gate_space,
    make_local_space,
    with_options,
)
from edgefl.learning.algorithms.registry import find_entry


@dataclass(frozen=True)
class TuneStage:
    """One stage of the search.

    Attributes:
        number: number of the stage, from 1.
        name: name of the stage.
        description: the tuned part, for messages.
        space: returns the search space for a configuration.
        configure: returns the configuration of a trial.
        metric: the metric of the clients whose mean is the score of a trial.
        federates: whether a trial runs the rounds. Otherwise it only personalizes.
        experts: whether all trials start from the same trained cluster models.
        by_round: whether a trial reports its score after rounds. Otherwise it reports after clients.
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
        """Return the number of rounds or clients of a complete trial."""
        return config.rounds if self.by_round else config.partition.num_clients


def _configure_cluster(config: FederationConfig) -> FederationConfig:
    defaults = find_entry("ifca").defaults
    options = {name: value for name, value in config.options.items() if name in defaults}
    return replace(config, algorithm="ifca", options={**options, "num_experts": 1})


def _configure_local(config: FederationConfig) -> FederationConfig:
    """Return the configuration of a trial that measures only the local model.

    The gate and the cluster model do not affect the score, so they are as small as possible.
    """
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
    """Return the configuration that trains the cluster models for all trials of the gate.

    Only the rounds matter, so the personalization is as short as possible.

    Args:
        config: the configuration with the options of the earlier stages.
    """
    return with_options(config, {"baselines": False, "local_epochs": 1, "gate_epochs": 1})


TUNE_STAGES = (
    TuneStage(
        number=1,
        name="cluster",
        description="a single cluster model",
        space=make_cluster_space,
        configure=_configure_cluster,
        metric="accuracy_mixture",
        federates=True,
        by_round=True,
    ),
    TuneStage(
        number=2,
        name="local",
        description="the local model",
        space=make_local_space,
        configure=_configure_local,
        metric="accuracy_local_expert",
    ),
    TuneStage(
        number=3,
        name="gate",
        description="the gate over the cluster models and the local one",
        space=make_gate_space,
        configure=_configure_gate,
        metric="accuracy_mixture",
        experts=True,
    ),
    TuneStage(
        number=4,
        name="exploration",
        description="epsilon, with two cluster models",
        space=make_exploration_space,
        configure=_configure_exploration,
        metric="accuracy_mixture",
        federates=True,
    ),
)


def parse_stages(text: str) -> tuple[TuneStage, ...]:
    """Return the stages of the option `--stages`, sorted by number.

    Args:
        text: `all`, or numbers such as `1,2`.

    Raises:
        ConfigError: a part of the text is not the number of a stage.
    """
    if text == "all":
        return TUNE_STAGES
    by_number = {str(stage.number): stage for stage in TUNE_STAGES}
    asked = {part.strip() for part in text.split(",")}
    if not asked <= set(by_number):
        listed = ", ".join(f"{stage.number} ({stage.name})" for stage in TUNE_STAGES)
        raise ConfigError(f"--stages is {text!r}, expected all, or numbers such as 1,2; choose from {listed}")
    return tuple(stage for number, stage in by_number.items() if number in asked)
