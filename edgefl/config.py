"""One TOML file configures a federation; an unknown key raises and names the nearest known one."""

import difflib
import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import Any, TypeVar

from edgefl.errors import ConfigError

T = TypeVar("T")


@dataclass(frozen=True)
class ModelConfig:
    """`[model]`: a name of `edgefl.models`, a `.keras` file or `module:function`, and the shape of one sample."""

    name: str = "lenet5"
    input_shape: tuple[int, ...] = (28, 28, 1)
    num_classes: int = 10
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.input_shape or any(type(size) is not int or size < 1 for size in self.input_shape):
            raise ConfigError(f"input_shape is {list(self.input_shape)}, expected whole numbers above 0 such as [28, 28, 1]")
        if self.num_classes < 2:
            raise ConfigError(f"num_classes is {self.num_classes}, expected at least 2")


@dataclass(frozen=True)
class DataConfig:
    """`[data]`: a name of `edgefl datasets`; num_train, num_test: how many samples to draw of it, 0 means all."""

    name: str = "digits"
    num_train: int = 0
    num_test: int = 0
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.num_train < 0 or self.num_test < 0:
            raise ConfigError(f"num_train {self.num_train} and num_test {self.num_test}, expected 0 (all) or more")


@dataclass(frozen=True)
class PartitionConfig:
    """`[partition]`: a name of `edgefl partitions`, and how many clients share the data."""

    name: str = "dirichlet"
    num_clients: int = 10
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.num_clients < 1:
            raise ConfigError(f"num_clients is {self.num_clients}, expected at least 1")


@dataclass(frozen=True)
class PrivacyConfig:
    """`[privacy]`: DP-FedAvg (`edgefl.privacy`), off while clip is 0.

    clip: the L2 norm that each update is cut to; noise_multiplier: standard deviation of the noise on their sum, in units of it;
    population: how many clients there are that a cohort is drawn from; delta: at which epsilon is told.
    secure_aggregation: the aggregator sees the sum of a cohort's updates alone (`edgefl.security.summing`); in the simulator only.
    """

    clip: float = 0.0
    noise_multiplier: float = 0.0
    population: int = 0
    delta: float = 1e-5
    secure_aggregation: bool = False

    def __post_init__(self) -> None:
        for key in ("clip", "noise_multiplier"):
            if not 0 <= getattr(self, key) < float("inf"):
                raise ConfigError(f"[privacy] {key} is {getattr(self, key)}, expected a number above 0")
        if self.clip and self.secure_aggregation:
            raise ConfigError(
                "[privacy] has clip and secure_aggregation, expected one of them: the aggregator clips what it then cannot see"
            )
        if bool(self.clip) != bool(self.noise_multiplier):
            raise ConfigError(
                f"[privacy] clip is {self.clip} and noise_multiplier {self.noise_multiplier}, expected both above 0: one without the "
                "other keeps nothing private; to clip alone, use clip_norm of [algorithm]"
            )
        if self.clip and self.population < 1:
            raise ConfigError(f"[privacy] population is {self.population}, expected the number of clients that cohorts are drawn from")
        if self.clip and not 0 < self.delta < 1 / self.population:
            raise ConfigError(f"[privacy] delta is {self.delta}, expected above 0 and below 1 / population = {1 / self.population:.3g}")

    @property
    def is_on(self) -> bool:
        """Whether updates are clipped and noise is added."""
        return self.clip > 0


@dataclass(frozen=True)
class FederationConfig:
    """`[federation]`, with `[model]`, `[algorithm]`, `[privacy]` and `[broker]` beside it; `[data]` and `[partition]` are the simulator's.

    clients_per_round: how many of the online devices train in a round; 0 means all. min_clients: how many must be online
    before the first round opens. quorum: the share of a cohort whose updates close a round at the deadline.
    grace_s: how long a round that has its quorum waits for a device that went offline. codec: how updates travel, fp32, fp16, int8
    or top-K (per cent); what it rounds away a device adds to its next update.
    """

    name: str = "federation"
    seed: int = 1
    rounds: int = 10
    clients_per_round: int = 0
    min_clients: int = 2
    quorum: float = 0.5
    deadline_s: float = 120.0
    grace_s: float = 10.0
    upload_slots: int = 4
    codec: str = "fp32"
    broker: str = "mqtt://localhost:1883"
    algorithm: str = "fedavg"
    options: Mapping[str, Any] = field(default_factory=dict)
    model: ModelConfig = field(default_factory=ModelConfig)
    data: DataConfig = field(default_factory=DataConfig)
    partition: PartitionConfig = field(default_factory=PartitionConfig)
    privacy: PrivacyConfig = field(default_factory=PrivacyConfig)

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[a-z0-9][a-z0-9_.-]{0,63}", self.name):
            raise ConfigError(f"federation name {self.name!r}: expected lower case letters, digits and dashes; it is part of each topic")
        for key, low in (("rounds", 1), ("clients_per_round", 0), ("min_clients", 1), ("upload_slots", 1)):
            if getattr(self, key) < low:
                raise ConfigError(f"{key} is {getattr(self, key)}, expected at least {low}")
        from edgefl.codecs import check_codec  # numpy, which `edgefl` alone does not load

        check_codec(self.codec)
        if not 0 < self.quorum <= 1:
            raise ConfigError(f"quorum is {self.quorum}, expected a share above 0 and at most 1")
        if not self.grace_s >= 0:
            raise ConfigError(f"grace_s is {self.grace_s}, expected seconds of at least 0")
        if not self.deadline_s > 0:
            raise ConfigError(f"deadline_s is {self.deadline_s}, expected seconds above 0")
        if self.privacy.is_on and self.clients_per_round > self.privacy.population:
            raise ConfigError(
                f"clients_per_round is {self.clients_per_round}, expected at most the population of [privacy], {self.privacy.population}"
            )


def nearest(key: str, known: list[str]) -> str:
    """Return the end of an error message that names the nearest known key."""
    close = difflib.get_close_matches(key, known, 1)
    return f"did you mean {close[0]!r}?" if close else f"known are {', '.join(known)}"


def _check(table: str, raw: Mapping[str, Any], cls: type, skip: tuple[str, ...] = ()) -> dict[str, Any]:
    known = {f.name: f for f in fields(cls) if f.name not in skip}
    values = {}
    for key, value in raw.items():
        if key not in known:
            raise ConfigError(f"[{table}] has an unknown key {key!r}; {nearest(key, list(known))}")
        default = known[key].default
        kind = type(default) if default is not MISSING else Mapping
        if kind is float and isinstance(value, int) and not isinstance(value, bool):
            value = float(value)
        if kind is tuple and isinstance(value, list):
            value = tuple(value)
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise ConfigError(f"[{table}] {key} is {value!r}, expected {kind.__name__}")
        values[key] = value
    return values


def parse_config(text: str) -> FederationConfig:
    """Read a configuration; ConfigError names table, key, expected and received."""
    try:
        raw = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"not TOML: {error}") from error
    tables = ["federation", "model", "algorithm", "broker", "data", "partition", "privacy"]
    for table, value in raw.items():
        if table not in tables or not isinstance(value, dict):
            raise ConfigError(f"unknown table [{table}]; {nearest(table, tables)}")
    algorithm = dict(raw.get("algorithm", {}))
    name = algorithm.pop("name", "fedavg")
    if not isinstance(name, str):
        raise ConfigError(f"[algorithm] name is {name!r}, expected text such as 'fedavg'")
    broker = _check_broker(raw.get("broker", {}))
    nested = ("broker", "algorithm", "options", "model", "data", "partition", "privacy")
    federation = _check("federation", raw.get("federation", {}), FederationConfig, nested)
    return FederationConfig(
        **federation,
        **broker,
        algorithm=name,
        options=algorithm,
        model=_with_options("model", raw, ModelConfig),
        data=_with_options("data", raw, DataConfig),
        partition=_with_options("partition", raw, PartitionConfig),
        privacy=PrivacyConfig(**_check("privacy", raw.get("privacy", {}), PrivacyConfig)),
    )


def _with_options(table: str, raw: Mapping[str, Any], cls: Callable[..., T]) -> T:
    """Read a table whose further keys are options of what it names."""
    own = {f.name for f in fields(cls)} - {"options"}  # type: ignore[arg-type]
    known, options = ({k: v for k, v in raw.get(table, {}).items() if (k in own) == wanted} for wanted in (True, False))
    return cls(**_check(table, known, cls), options=options)  # type: ignore[arg-type]


def _check_broker(raw: Mapping[str, Any]) -> dict[str, Any]:
    for key, value in raw.items():
        if key != "url":
            raise ConfigError(f"[broker] has an unknown key {key!r}; known is url")
        if not isinstance(value, str):
            raise ConfigError(f"[broker] url is {value!r}, expected text such as mqtt://localhost:1883")
    return {"broker": raw["url"]} if "url" in raw else {}


def load_config(path: Path) -> FederationConfig:
    """Read a configuration file; ConfigError when it is not there or not valid."""
    try:
        return parse_config(path.read_text())
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read {path}: {error}") from error
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error
