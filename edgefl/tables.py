"""The tables of a configuration that stand beside `[federation]`."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from edgefl.errors import ConfigError

KINDS: Mapping[type, str] = {
    int: "a whole number", float: "a number", str: "text", bool: "true or false", tuple: "a list", list: "a list",
}  # fmt: skip


def in_words(kind: type) -> str:
    """Return what a value of this type is called in a configuration file."""
    return KINDS.get(kind, "a table")


@dataclass(frozen=True)
class ModelConfig:
    """`[model]`: the model that is federated; further keys are the model's own options.

    Attributes:
        name: a name of `edgefl models`, a .keras file, or module:function of yours
        input_shape: the shape of one sample: rows, columns, channels of a picture; rows, channels of a window
        num_classes: how many classes; labels go from 0 to num_classes - 1
    """

    name: str = "lenet5"
    input_shape: tuple[int, ...] = (28, 28, 1)
    num_classes: int = 10
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.input_shape or any(type(size) is not int or size < 1 for size in self.input_shape):
            raise ConfigError(f"input_shape is {list(self.input_shape)}, expected whole numbers above 0 such as [28, 28, 1]")
        if self.num_classes < 2:
            raise ConfigError(f"num_classes is {self.num_classes}, expected at least 2: for yes or no take Dense(2), labels 0 and 1")


@dataclass(frozen=True)
class DataConfig:
    """`[data]`: what `edgefl simulate` shares out; devices bring their own. Further keys are the data set's options.

    Attributes:
        name: a name of `edgefl datasets`, or npz:PATH
        num_train: how many training samples to draw of it; 0: all
        num_test: how many test samples to draw of it; 0: all
    """

    name: str = "digits"
    num_train: int = 0
    num_test: int = 0
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.num_train < 0 or self.num_test < 0:
            raise ConfigError(f"num_train {self.num_train} and num_test {self.num_test}, expected 0 (all) or more")


@dataclass(frozen=True)
class PartitionConfig:
    """`[partition]`: how `edgefl simulate` shares the data out. Further keys are the partition's options.

    Attributes:
        name: a name of `edgefl partitions`
        num_clients: how many clients share the data
    """

    name: str = "dirichlet"
    num_clients: int = 10
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.num_clients < 1:
            raise ConfigError(f"num_clients is {self.num_clients}, expected at least 1")


@dataclass(frozen=True)
class PrivacyConfig:
    """`[privacy]`: DP-FedAvg (`edgefl.privacy`), off while clip is 0, or secure aggregation (`edgefl.security.summing`).

    Attributes:
        clip: the L2 norm that each update is cut to; 0: no noise is added
        noise_multiplier: standard deviation of the noise on the sum of updates, in units of clip
        population: how many clients there are that a round's are drawn from
        delta: at which epsilon is told; below 1 / population
        secure_aggregation: the aggregator sees the sum of a round's updates alone
        max_epsilon: rounds end before more than this is spent; 0: no limit
    """

    clip: float = 0.0
    noise_multiplier: float = 0.0
    population: int = 0
    delta: float = 1e-5
    secure_aggregation: bool = False
    max_epsilon: float = 0.0

    def __post_init__(self) -> None:
        for key in ("clip", "noise_multiplier", "max_epsilon"):
            if not 0 <= getattr(self, key) < float("inf"):
                raise ConfigError(f"[privacy] {key} is {getattr(self, key)}, expected a number above 0")
        if self.clip and self.secure_aggregation:
            raise ConfigError(
                "[privacy] has clip and secure_aggregation, expected one of them: the aggregator clips and adds noise "
                "to what it then cannot see, and devices have no noise of their own; choose whom updates are to be hidden from"
            )
        if bool(self.clip) != bool(self.noise_multiplier):
            raise ConfigError(
                f"[privacy] clip is {self.clip} and noise_multiplier {self.noise_multiplier}, expected both above 0: one without the "
                "other keeps nothing private; to clip alone, use clip_norm of [algorithm]"
            )
        if self.max_epsilon and not self.clip:
            raise ConfigError(f"[privacy] max_epsilon is {self.max_epsilon} without clip and noise_multiplier, which spend it; set both")
        if self.clip and self.population < 1:
            raise ConfigError(f"[privacy] population is {self.population}, expected the number of clients that cohorts are drawn from")
        if self.clip and not 0 < self.delta < 1 / self.population:
            raise ConfigError(f"[privacy] delta is {self.delta}, expected above 0 and below 1 / population = {1 / self.population:.3g}")

    @property
    def is_on(self) -> bool:
        """Whether updates are clipped and noise is added."""
        return self.clip > 0
