"""The four stages of the search, in the paper's order.

Isaksson et al., Adaptive Expert Models for Personalization in Federated Learning, 2022, section 4.4: first a
single global model and a local model, then the gate with what those two found, at last epsilon with two
cluster models; all in the IID setting.
The paper does not say with how many cluster models the gate is tuned: here it is the configuration's
num_experts.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from edgefl.algorithms.registry import entry
from edgefl.config import FederationConfig
from edgefl.errors import ConfigError
from edgefl.tune.space import Space, cluster_space, exploration_space, gate_space, local_space, with_options


@dataclass(frozen=True)
class Stage:
    """`setting` makes of the configuration what a trial plays.

    `metric` is the clients' figure whose mean is the score.

    federates: a trial plays the rounds, else it only personalizes. experts: it begins with cluster models
    that were trained once. by_round: its score is taken after rounds, else after clients.
    """

    number: int
    name: str
    what: str
    space: Callable[[FederationConfig], Space]
    setting: Callable[[FederationConfig], FederationConfig]
    metric: str
    federates: bool = False
    experts: bool = False
    by_round: bool = False

    def steps(self, config: FederationConfig) -> int:
        """Return after how many rounds or clients a trial is over."""
        return config.rounds if self.by_round else config.partition.num_clients


def _cluster(config: FederationConfig) -> FederationConfig:
    known = entry("ifca").defaults
    own = {name: value for name, value in config.options.items() if name in known}
    return replace(config, algorithm="ifca", options={**own, "num_experts": 1})


def _local(config: FederationConfig) -> FederationConfig:
    """The gate and the cluster model are untrained company: as small as they can be."""
    alone = {
        "num_experts": 1,
        "gate": "pixels",
        "gate_options": {},
        "gate_epochs": 1,
        "gate_share": 0.0,
        "baselines": False,
    }
    return with_options(config, alone)


def _gate(config: FederationConfig) -> FederationConfig:
    return with_options(config, {"baselines": False})


def _exploration(config: FederationConfig) -> FederationConfig:
    return with_options(config, {"baselines": False, "num_experts": 2})


def experts_setting(config: FederationConfig) -> FederationConfig:
    """Return what trains the cluster models that the trials of the gate share.

    Its personalization is of no use and short.
    """
    return with_options(config, {"baselines": False, "local_epochs": 1, "gate_epochs": 1})


STAGES = (
    Stage(
        1,
        "cluster",
        "a single cluster model",
        cluster_space,
        _cluster,
        "accuracy_mixture",
        federates=True,
        by_round=True,
    ),
    Stage(2, "local", "the local model", local_space, _local, "accuracy_local_expert"),
    Stage(
        3,
        "gate",
        "the gate over the cluster models and the local one",
        gate_space,
        _gate,
        "accuracy_mixture",
        experts=True,
    ),
    Stage(
        4,
        "exploration",
        "epsilon, with two cluster models",
        exploration_space,
        _exploration,
        "accuracy_mixture",
        federates=True,
    ),
)


def chosen(text: str) -> tuple[Stage, ...]:
    """Return the stages of `all` or of numbers such as `1,2`, in their order.

    ConfigError for what is no stage.
    """
    if text == "all":
        return STAGES
    known = {str(stage.number): stage for stage in STAGES}
    asked = {part.strip() for part in text.split(",")}
    if not asked <= set(known):
        listed = ", ".join(f"{stage.number} ({stage.name})" for stage in STAGES)
        raise ConfigError(f"--stages is {text!r}, expected all, or numbers such as 1,2; there are {listed}")
    return tuple(stage for number, stage in known.items() if number in asked)
