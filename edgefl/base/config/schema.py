"""Reads the TOML file that configures a federation. An error for an unknown key names the nearest key."""

import tomllib
from collections.abc import Callable, Mapping
from dataclasses import MISSING, asdict, dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from edgefl.base.errors import ConfigError
from edgefl.base.names import check_client_id, check_federation
from edgefl.base.options import check_options, suggest_nearest
from edgefl.base.tasks.config import ANOMALY, TaskConfig
from edgefl.base.tasks.samples import SamplesConfig

DEFAULT_BROKER = "mqtt://localhost:1883"
LARGEST_SEED = 2**32 - 1
"""Largest seed that all packages take."""
MIN_STD = 1e-7
"""Minimum standard deviation of samples. Keras's Normalization layer divides by no smaller number."""
MAX_CONSTANT = 1e15
"""Largest mean and std. Their squares are finite in float32."""
T = TypeVar("T")
SHIP_CHOICES = ("auto", "blend", "one")
"""Values of `ship`, see `PersonalizationConfig`."""
OTHER_TABLE_FIELDS = (
    "broker",
    "algorithm",
    "options",
    "model",
    "data",
    "partition",
    "privacy",
    "personalization",
    "task",
    "augmentation",
    "training",
    "samples",
    "fleet",
)
"""The fields of FederationConfig that are not keys of the table `[federation]`."""


def _check_values(record: Any, table: str) -> None:
    """Check the types of a record that code in Python made, and convert numbers of numpy.

    Raises:
        ConfigError: a value has another type than the default of its field.
    """
    for item in fields(record):
        default = item.default if item.default_factory is MISSING else item.default_factory()
        value = getattr(record, item.name)
        if hasattr(value, "tolist"):  # an array or a number of numpy
            value = value.tolist()
            object.__setattr__(record, item.name, value)
        if is_dataclass(default):
            if not isinstance(value, type(default)):
                raise ConfigError(
                    f"{item.name} is {value!r}, expected a {type(default).__name__}; write "
                    f"{type(default).__name__}(...)"
                )
        elif item.name == "fleet":
            if not isinstance(value, FleetConfig | None):
                raise ConfigError(f"fleet is {value!r}, expected a FleetConfig or None")
        else:
            check_options(f"[{table}]", {item.name: default}, {item.name: value}, noun="key")


@dataclass(frozen=True)
class ModelConfig:
    """`[model]`: the federated model. Further keys are options of the model.

    Raises ConfigError if a value is out of range.

    Attributes:
        name: a name from `edgefl models`, a .keras file, or module:function.
        input_shape: shape of one sample: rows, columns and channels of a picture, or rows and channels of a
            window.
        num_classes: number of classes. Labels range from 0 to num_classes - 1. For another `[task]` than
            classification, the number of outputs, which need not be written.
        options: options of the model.
        mean: mean of the samples, one value or one for each channel. With std, the model first computes
            (x - mean) / std. An empty list leaves the samples unchanged.
        std: standard deviation of the samples, as many values as in mean.
        normalize: without mean and std, the devices measure both for each channel before round 1. This has
            no effect on a model that scales its own input.
    """

    name: str = "lenet5"
    input_shape: tuple[int, ...] = (28, 28, 1)
    num_classes: int = 10
    options: Mapping[str, Any] = field(default_factory=dict)
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    normalize: bool = False

    def __post_init__(self) -> None:
        _check_values(self, "model")
        for key in ("input_shape", "mean", "std"):  # a person may write a list in Python, as in TOML
            value = getattr(self, key)
            object.__setattr__(self, key, tuple(value) if isinstance(value, list) else value)
        if not self.input_shape or any(type(size) is not int or size < 1 for size in self.input_shape):
            raise ConfigError(
                f"input_shape is {list(self.input_shape)}, expected whole numbers above 0 such as [28, 28, 1]"
            )
        if self.num_classes < 1:
            raise ConfigError(f"num_classes is {self.num_classes}, expected at least 1")
        self._check_normalization()

    def _check_normalization(self) -> None:
        for key, values in (("mean", self.mean), ("std", self.std)):
            if not all(type(value) in (int, float) and abs(value) <= MAX_CONSTANT for value in values):
                raise ConfigError(
                    f"[model] {key} is {list(values)}, expected finite numbers such as [0.5], at most "
                    f"{MAX_CONSTANT:g}; `edgefl data show` prints them"
                )
        if len(self.mean) != len(self.std):
            raise ConfigError(
                f"[model] has {len(self.mean)} values in mean and {len(self.std)} in std, expected as many "
                "in both; set both, or leave both out"
            )
        if len(self.mean) > 1 and len(self.mean) != self.input_shape[-1]:
            raise ConfigError(
                f"[model] has {len(self.mean)} values in mean and in std, expected one or "
                f"{self.input_shape[-1]}, the channels of input_shape {list(self.input_shape)}; change them"
            )
        if any(value < MIN_STD for value in self.std):
            raise ConfigError(
                f"[model] std is {list(self.std)}, expected numbers of at least {MIN_STD:g}; leave a "
                "constant channel out of the data, or give it a std of 1; multiply very small samples by a "
                "constant"
            )


@dataclass(frozen=True)
class DataConfig:
    """`[data]`: the data of `edgefl simulate`. Further keys are options of the data set.

    Devices use their own data. Raises ConfigError if a value is out of range.

    Attributes:
        name: a name from `edgefl datasets`, or npz:PATH.
        num_train: number of training samples to draw. 0 uses all.
        num_test: number of test samples to draw. 0 uses all.
        options: options of the data set.
    """

    name: str = "digits"
    num_train: int = 0
    num_test: int = 0
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _check_values(self, "data")
        if self.num_train < 0 or self.num_test < 0:
            raise ConfigError(
                f"num_train {self.num_train} and num_test {self.num_test}, expected 0 (all) or more"
            )


@dataclass(frozen=True)
class PartitionConfig:
    """`[partition]`: how `edgefl simulate` divides the data among clients.

    Further keys are options of the partition. Raises ConfigError if a value is out of range.

    Attributes:
        name: a name from `edgefl partitions`.
        num_clients: number of clients that share the data.
        client_ids: ids of these clients. Random draws depend on the ids, so a simulation has the results of
            devices only with the same ids. An empty list means client-000, client-001 and so on.
        options: options of the partition.
    """

    name: str = "dirichlet"
    num_clients: int = 10
    options: Mapping[str, Any] = field(default_factory=dict)
    client_ids: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        _check_values(self, "partition")
        if self.num_clients < 1:
            raise ConfigError(f"num_clients is {self.num_clients}, expected at least 1")
        if not all(isinstance(client_id, str) for client_id in self.client_ids):
            raise ConfigError(f"client_ids is {list(self.client_ids)!r}, expected ids such as 'pi-1'")
        for client_id in self.client_ids:
            check_client_id(client_id)
        if self.client_ids and len(set(self.client_ids)) != self.num_clients:
            raise ConfigError(
                f"client_ids has {len(set(self.client_ids))} different ids, expected num_clients, "
                f"{self.num_clients}; add or remove ids, or remove client_ids"
            )


@dataclass(frozen=True)
class PrivacyConfig:
    """`[privacy]`: DP-FedAvg (`edgefl.learning.privacy`) or secure aggregation.

    `clip` above 0 turns DP-FedAvg on. Secure aggregation is in
    `edgefl.protocol.security.secagg.masked_aggregation`. Raises ConfigError if values are out of range or do
    not fit together.

    Attributes:
        clip: maximum L2 norm of an update. Longer updates are scaled down to it. 0 turns clipping and noise
            off.
        noise_multiplier: standard deviation of the noise on the sum of updates, in units of clip.
        population: number of clients that the clients of a round are drawn from.
        delta: the delta of the reported epsilon, below 1 / population.
        secure_aggregation: the aggregator sees only the sum of a round's updates.
        max_epsilon: the federation stops before it exceeds this epsilon. 0 means no limit.
    """

    clip: float = 0.0
    noise_multiplier: float = 0.0
    population: int = 0
    delta: float = 1e-5
    secure_aggregation: bool = False
    max_epsilon: float = 0.0

    def __post_init__(self) -> None:
        _check_values(self, "privacy")
        for key in ("clip", "noise_multiplier", "max_epsilon"):
            if not 0 <= getattr(self, key) < float("inf"):
                raise ConfigError(f"[privacy] {key} is {getattr(self, key)}, expected a number above 0")
        if self.clip and self.secure_aggregation:
            raise ConfigError(
                "[privacy] has clip and secure_aggregation, expected one of them: the aggregator cannot clip "
                "updates that it does not see, and devices add no noise; choose whether to hide updates from "
                "the aggregator or from other parties"
            )
        if bool(self.clip) != bool(self.noise_multiplier):
            raise ConfigError(
                f"[privacy] clip is {self.clip} and noise_multiplier {self.noise_multiplier}, expected both "
                "above 0: one without the other protects nothing; for clipping alone, use clip_norm of "
                "[algorithm]"
            )
        if self.max_epsilon and not self.clip:
            raise ConfigError(
                f"[privacy] max_epsilon is {self.max_epsilon} without clip and noise_multiplier, expected "
                "both above 0; set them, or leave max_epsilon out"
            )
        if self.clip and self.population < 1:
            raise ConfigError(
                f"[privacy] population is {self.population}, expected the number of clients that cohorts are "
                "drawn from"
            )
        if self.clip and not 0 < self.delta < 1 / self.population:
            raise ConfigError(
                f"[privacy] delta is {self.delta}, expected above 0 and below 1 / population = "
                f"{1 / self.population:.3g}"
            )

    @property
    def is_on(self) -> bool:
        """Whether updates are clipped and noise is added."""
        return self.clip > 0


@dataclass(frozen=True)
class PersonalizationConfig:
    """`[personalization]`: how a device makes the model that it ships when the rounds are over.

    A device compares the model that it trained alone, the federation's model, the federation's model after
    fine-tuning on the device's samples, and the mixture of the algorithm. Raises ConfigError if values are
    out of range or do not fit together.

    Attributes:
        select: true compares the models on validation samples and ships what `ship` says. false ships the
            mixture of the algorithm.
        validation_share: share of a device's training samples that are used only to compare models. A device
            with fewer than 100 samples uses at least a third of them. 0 uses none and needs select = false.
        baseline: the device also trains a model on its own samples alone, for comparison. It trains for as
            many epochs as the federation takes, or until it has learned the samples.
        epochs: maximum epochs of fine-tuning the federation's model on the device's samples.
        least_steps: the maximum of epochs is raised until they take this number of steps.
        learning_rate: learning rate of Adam for fine-tuning and for the model trained alone.
        batch_size: samples per batch for fine-tuning and for the model trained alone. It is fixed when the
            plan is built.
        ship: what a device ships if select is true. blend: all of its models. Their probabilities or
            predictions are added with shares that fit the validation samples of all devices. one: the best
            of them. auto: blend, but one in anomaly detection.
        deadline_s: seconds after which the aggregator stops waiting for devices that make their models. 0
            estimates it from the training times that devices report, between deadline_s of a round and 2 x
            rounds x deadline_s. It may change with a restart.
    """

    select: bool = True
    validation_share: float = 0.2
    baseline: bool = True
    epochs: int = 10
    least_steps: int = 200
    learning_rate: float = 0.001
    batch_size: int = 16
    ship: str = "auto"
    deadline_s: float = 0.0

    def __post_init__(self) -> None:
        _check_values(self, "personalization")
        if self.ship not in SHIP_CHOICES:
            raise ConfigError(
                f"[personalization] ship is {self.ship!r}, expected one of "
                f"{', '.join(map(repr, SHIP_CHOICES))}; without the key it is 'auto'"
            )
        if self.ship == "blend" and not self.select:
            raise ConfigError(
                '[personalization] ship = "blend" with select = false, expected select = true: a blend needs '
                'several models; remove select = false, or set ship = "auto"'
            )
        if not self.deadline_s >= 0:
            raise ConfigError(
                f"[personalization] deadline_s is {self.deadline_s}, expected seconds of at least 0"
            )
        if not 0 <= self.validation_share < 1:
            raise ConfigError(
                f"[personalization] validation_share is {self.validation_share}, expected 0 or more and "
                "below 1, such as 0.2"
            )
        if self.select and not self.validation_share:
            raise ConfigError(
                "[personalization] select = true with validation_share = 0, expected samples to compare "
                "models on; set validation_share above 0, or select = false"
            )
        if self.select and not self.baseline:
            raise ConfigError(
                "[personalization] select = true with baseline = false, expected a model trained alone to "
                "compare with; leave baseline out, or set select = false"
            )
        for key, low in (("epochs", 0), ("least_steps", 0), ("batch_size", 1)):
            if getattr(self, key) < low:
                raise ConfigError(f"[personalization] {key} is {getattr(self, key)}, expected at least {low}")
        if not self.learning_rate > 0:
            raise ConfigError(
                f"[personalization] learning_rate is {self.learning_rate}, expected a number above 0"
            )


@dataclass(frozen=True)
class AugmentationConfig:
    """`[augmentation]`: random changes of the pictures that clients train on. All are off by default.

    Each training step draws new changes of its pictures. Predictions use pictures as they are. Raises
    ConfigError if a value is out of range.

    Attributes:
        crop: pixels of zeros on each side of a picture, from which a random part of the picture's size is
            cut. It moves the content by up to this many pixels. 0: off.
        flip: exchange left and right of half of the pictures. Only for samples that keep their label in a
            mirror.
        rotate: largest angle in degrees. Each picture is rotated by a random angle up to it, in either
            direction, with zeros outside. 0: off.
    """

    crop: int = 0
    flip: bool = False
    rotate: float = 0.0

    def __post_init__(self) -> None:
        if type(self.crop) is not int or self.crop < 0:
            raise ConfigError(
                f"[augmentation] crop is {self.crop}, expected a whole number of pixels of at least 0"
            )
        if type(self.flip) is not bool:
            raise ConfigError(f"[augmentation] flip is {self.flip!r}, expected true or false")
        if type(self.rotate) not in (int, float) or not 0 <= self.rotate <= 180:
            raise ConfigError(f"[augmentation] rotate is {self.rotate}, expected degrees from 0 to 180")

    @property
    def is_on(self) -> bool:
        """Whether pictures are changed."""
        return bool(self.crop or self.flip or self.rotate)

    def as_plan_entry(self) -> dict[str, Any]:
        """Return the augmentation as an entry of a plan. It is empty if all changes are off."""
        return asdict(self) if self.is_on else {}

    def check_samples(self, input_shape: tuple[int, ...], task: str) -> None:
        """Check that samples can be augmented.

        Args:
            input_shape: shape of one sample.
            task: kind of the task.

        Raises:
            ConfigError: an augmentation is on, and the samples are not pictures, are smaller than the crop,
                or are the targets of the task.
        """
        if not self.is_on:
            return
        if len(input_shape) != 3:
            raise ConfigError(
                f"[augmentation] is on with input_shape {list(input_shape)}, expected pictures [rows, "
                "columns, channels]: windows and tables have no mirror image; leave [augmentation] out"
            )
        if task == ANOMALY:
            raise ConfigError(
                f"[augmentation] is on with kind = {task!r} of [task], expected a classification or a "
                "regression: an autoencoder would have to restore a picture that it does not see; leave "
                "[augmentation] out"
            )
        if self.crop >= min(input_shape[:2]):
            raise ConfigError(
                f"[augmentation] crop is {self.crop}, expected below {min(input_shape[:2])}, the shorter "
                "side of a picture; a few pixels are enough, such as 4"
            )


@dataclass(frozen=True)
class TrainingConfig:
    """`[training]`: how devices compute a training step. Raises ConfigError if a value is out of range.

    Attributes:
        micro_batch: maximum number of samples that a device computes at once. It trains a larger batch in
            parts and adds their gradients, so a step needs less memory and has the same result, apart from
            rounding. Models with batch norms cannot. 0: the whole batch.
    """

    micro_batch: int = 0

    def __post_init__(self) -> None:
        if type(self.micro_batch) is not int or self.micro_batch < 0:
            raise ConfigError(
                f"[training] micro_batch is {self.micro_batch}, expected a number of samples, or 0 for the "
                "whole batch"
            )


@dataclass(frozen=True)
class FleetConfig:
    """`[fleet]`: the devices of a simulation in virtual time. Only `edgefl simulate` reads it.

    Raises ConfigError if a value is out of range.

    Attributes:
        samples_per_s: number of samples that a typical device trains on per second.
        speed_spread: standard deviation of the natural logarithm of the devices' speeds. 0 makes all devices
            equally fast.
        hours_per_day: hours per day that a device is online. Each device has a different time of day. 24
            means always.
        outages_per_day: mean number of connection losses of a device per day.
        outage_s: mean length of an outage in seconds.
        lost_per_day: share of the devices that leave for good each day.
        message_loss: share of tasks, announcements and receipts that are lost.
        latency_s: seconds that a message takes.
        bytes_per_s: bytes per second that a device sends or receives. 0 means no limit.
        max_days: virtual days after which the simulation ends with an error.
    """

    samples_per_s: float = 500.0
    speed_spread: float = 0.0
    hours_per_day: float = 24.0
    outages_per_day: float = 0.0
    outage_s: float = 60.0
    lost_per_day: float = 0.0
    message_loss: float = 0.0
    latency_s: float = 0.0
    bytes_per_s: float = 0.0
    max_days: float = 365.0

    def __post_init__(self) -> None:
        _check_values(self, "fleet")
        for key, low, high in (
            ("samples_per_s", 1e-6, 1e12),
            ("speed_spread", 0.0, 5.0),
            ("hours_per_day", 0.01, 24.0),
            ("outages_per_day", 0.0, 10_000.0),
            ("outage_s", 0.001, 1e7),
            ("lost_per_day", 0.0, 1.0),
            ("message_loss", 0.0, 0.9),
            ("latency_s", 0.0, 1e5),
            ("bytes_per_s", 0.0, 1e15),
            ("max_days", 0.001, 1e5),
        ):
            value = getattr(self, key)
            if not low <= value <= high:
                raise ConfigError(f"[fleet] {key} is {value:g}, expected {low:g} to {high:g}")


MIXTURE_ONLY = PersonalizationConfig(select=False, validation_share=0.0, baseline=False)
"""A client trains on all of its samples and ships the algorithm's mixture, as in the papers."""


@dataclass(frozen=True)
class FederationConfig:
    """A whole configuration: `[federation]`, with the other tables as fields.

    Only the simulator reads `[data]`, `[partition]` and `[fleet]`. `edgefl init` writes the descriptions
    below as comments above the keys. Raises ConfigError if values are out of range or do not fit together.

    Attributes:
        name: name of the federation, part of each MQTT topic: 1 to 64 of a-z, 0-9, -, _ and ., starting with
            a letter or digit.
        seed: random seed. The same seed gives the same bits.
        rounds: number of training rounds, at most.
        least_rounds: the rounds end after at least this many, when the devices' accuracy had no new maximum
            for ten rounds. 0 plays all rounds. It needs evaluate.
        range_test: a few devices try learning rates before round 1, from a tenth to ten times the one of the
            algorithm. The federation uses the median of their votes.
        clients_per_round: number of online devices that train in a round. 0 means all.
        min_clients: number of devices that must be online before the first round opens.
        clients: ids of the devices that may take part. An empty list admits every device that the broker
            admits. It may change with a restart.
        quorum: share of a round's devices whose updates close the round at the deadline.
        deadline_s: seconds after which a round closes if it has its quorum.
        grace_s: seconds that a round with a quorum waits for a device that went offline.
        max_samples: maximum number of samples that a device may count in a mean. Updates with a higher number
            are rejected.
        upload_slots: number of devices that may send their updates at the same time.
        chunk_bytes: size in bytes of the messages that carry models and updates, a multiple of 1024. The
            aggregator uses a smaller size if its broker does not deliver such messages.
        codec: encoding of updates: fp32, fp16, int8, or top-K (the largest K per cent), each with or without
            +deflate. A device adds the rounding error to its next update.
        mode: sync or async. With async, a device always has a task, and each `buffer` updates make a new
            model.
        over_selection: this many times clients_per_round devices get a task. The first clients_per_round
            updates close the round.
        late: drop or keep. With keep, an update for the previous round also counts, scaled down.
        buffer: with async, number of updates that make a new model.
        max_staleness: with async, maximum age of an update in model versions.
        budget_s: seconds that a device trains in a round, in whole epochs. 0 trains all epochs of the
            algorithm.
        evaluate: in each round, each device reports the validation accuracy of the model that it would use
            now, one number. Devices never report it if [privacy] keeps updates private.
        share_scores: in the last round, each device compares its models and reports the mean score of each
            and the shares of its blend, at most eight numbers. All devices then use the order of these scores
            and the median shares. It needs evaluate, and select in [personalization].
        broker: address of the broker.
        algorithm: a name from `edgefl algorithms`, or module:name.
        options: options of the algorithm.
        samples: unit and layout of the samples of every device.
        fleet: the devices of a simulation in virtual time. None simulates without a clock.
    """

    name: str = "federation"
    seed: int = 1
    rounds: int = 10
    least_rounds: int = 0
    range_test: bool = False
    clients_per_round: int = 0
    min_clients: int = 2
    clients: tuple[str, ...] = ()
    quorum: float = 0.5
    deadline_s: float = 120.0
    grace_s: float = 10.0
    max_samples: int = 100_000
    upload_slots: int = 4
    chunk_bytes: int = 245760
    codec: str = "fp32"
    mode: str = "sync"
    over_selection: float = 1.0
    late: str = "drop"
    buffer: int = 0
    max_staleness: int = 10
    budget_s: float = 0.0
    evaluate: bool = True
    share_scores: bool = True
    broker: str = DEFAULT_BROKER
    algorithm: str = "fedavg"
    options: Mapping[str, Any] = field(default_factory=dict)
    model: ModelConfig = field(default_factory=ModelConfig)
    data: DataConfig = field(default_factory=DataConfig)
    partition: PartitionConfig = field(default_factory=PartitionConfig)
    privacy: PrivacyConfig = field(default_factory=PrivacyConfig)
    personalization: PersonalizationConfig = field(default_factory=PersonalizationConfig)
    task: TaskConfig = field(default_factory=TaskConfig)
    augmentation: AugmentationConfig = field(default_factory=AugmentationConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)
    samples: SamplesConfig = field(default_factory=SamplesConfig)
    fleet: FleetConfig | None = None

    def __post_init__(self) -> None:
        _check_values(self, "federation")
        check_federation(self.name)
        if not 0 <= self.seed <= LARGEST_SEED:
            raise ConfigError(f"seed is {self.seed}, expected a whole number from 0 to {LARGEST_SEED}")
        for key, low in (
            ("rounds", 1),
            ("least_rounds", 0),
            ("clients_per_round", 0),
            ("min_clients", 1),
            ("upload_slots", 1),
            ("max_samples", 1),
        ):
            if getattr(self, key) < low:
                raise ConfigError(f"{key} is {getattr(self, key)}, expected at least {low}")
        if self.least_rounds > self.rounds:
            raise ConfigError(
                f"least_rounds is {self.least_rounds}, expected at most rounds, {self.rounds}; rounds is the "
                "largest number that may be played"
            )
        if self.least_rounds and (not self.reports_accuracy or self.task.kind == ANOMALY):
            raise ConfigError(
                f"least_rounds is {self.least_rounds}, but devices report no accuracy in the rounds, as with "
                "evaluate = false, [privacy] or an anomaly task; leave least_rounds out, so that all rounds "
                "are played"
            )
        if not 1024 <= self.chunk_bytes <= 245760 or self.chunk_bytes % 1024:
            raise ConfigError(
                f"chunk_bytes is {self.chunk_bytes}, expected a multiple of 1024 from 1024 to 245760"
            )
        if not all(isinstance(client_id, str) for client_id in self.clients):
            raise ConfigError(f"clients is {list(self.clients)!r}, expected ids of devices such as 'pi-1'")
        if self.clients and self.min_clients > len(set(self.clients)):
            raise ConfigError(
                f"min_clients is {self.min_clients}, expected at most the number of clients listed, "
                f"{len(set(self.clients))}"
            )
        from edgefl.base.codecs import check_codec  # imports numpy, so not at the start of `edgefl`

        check_codec(self.codec)
        if not 0 < self.quorum <= 1:
            raise ConfigError(f"quorum is {self.quorum}, expected a share above 0 and at most 1")
        if not self.grace_s >= 0:
            raise ConfigError(f"grace_s is {self.grace_s}, expected seconds of at least 0")
        if not self.deadline_s > 0:
            raise ConfigError(f"deadline_s is {self.deadline_s}, expected seconds above 0")
        if not 0 <= self.budget_s < self.deadline_s:
            raise ConfigError(
                f"budget_s is {self.budget_s}, expected 0 (none) or seconds below deadline_s, "
                f"{self.deadline_s:g}"
            )
        self._check_mode()
        self._check_task()
        if self.personalization.ship == "blend" and self.task.kind == ANOMALY:
            raise ConfigError(
                f'[personalization] ship = "blend" with kind = "{self.task.kind}" of [task], expected a '
                'classification or a regression; set ship = "auto" or "one"'
            )
        self.augmentation.check_samples(self.model.input_shape, self.task.kind)
        self.samples.check_model(self.model.input_shape, self.model.num_classes, self.task)
        if self.privacy.is_on and self.clients_per_round > self.privacy.population:
            raise ConfigError(
                f"clients_per_round is {self.clients_per_round}, expected at most the population of "
                f"[privacy], {self.privacy.population}"
            )
        private = self.privacy.is_on or self.privacy.secure_aggregation
        if private and (self.mode == "async" or self.late == "keep" or self.over_selection > 1):
            raise ConfigError(
                "[privacy] needs rounds with one random cohort; leave mode = 'async', late = 'keep' and "
                "over_selection out"
            )
        if self.range_test and "learning_rate" in self.options:
            raise ConfigError(
                f"range_test = true with learning_rate = {self.options['learning_rate']} in [algorithm], "
                "expected only one of them; remove learning_rate, or set range_test = false"
            )
        if self.range_test and self.budget_s:
            raise ConfigError(
                f"range_test = true with budget_s = {self.budget_s:g}, expected one of them: the test trains "
                "all epochs of a round with each rate; set learning_rate in [algorithm], or remove budget_s"
            )
        if private and self.range_test:
            raise ConfigError(
                "range_test = true with [privacy], expected false: devices would send losses of their "
                "samples without noise or a mask; set learning_rate in [algorithm], or leave range_test out"
            )
        if private and self.model.normalize and not self.model.mean:
            raise ConfigError(
                "[model] has normalize = true with [privacy], expected mean and std: every device would send "
                "the mean and variance of its samples without noise or a mask; write both into [model], or "
                "set normalize = false"
            )

    def _check_task(self) -> None:
        model = self.model
        if self.task.is_classification and model.num_classes < 2:
            raise ConfigError(
                f"num_classes is {model.num_classes}, expected at least 2: for yes or no use Dense(2) with "
                "labels 0 and 1"
            )
        outputs = self.task.count_outputs(model.input_shape, model.num_classes)
        if model.normalize and self.task.kind == ANOMALY:
            raise ConfigError(
                "[model] has normalize = true with an anomaly task, expected false: the model would read "
                "normalized samples and restore the raw ones; set normalize = false"
            )
        if model.num_classes != outputs:
            raise ConfigError(
                f"num_classes is {model.num_classes}, expected {outputs} for kind = {self.task.kind!r} of "
                f"[task] and input_shape {list(model.input_shape)}; leave num_classes out"
            )

    def _check_mode(self) -> None:
        for key, choices in (("mode", ("sync", "async")), ("late", ("drop", "keep"))):
            if getattr(self, key) not in choices:
                raise ConfigError(
                    f"{key} is {getattr(self, key)!r}, expected {choices[0]!r} or {choices[1]!r}"
                )
        if not 1 <= self.over_selection <= 10:
            raise ConfigError(
                f"over_selection is {self.over_selection}, expected 1 (none) to 10 times clients_per_round"
            )
        if self.over_selection > 1 and not self.clients_per_round:
            raise ConfigError(
                f"over_selection is {self.over_selection} without clients_per_round; set clients_per_round, "
                "or leave over_selection at 1"
            )
        if self.mode == "sync" and self.buffer:
            raise ConfigError(
                f"buffer is {self.buffer}, which is for mode = 'async'; set that, or leave buffer out"
            )
        if self.mode == "async" and (self.buffer < 1 or self.max_staleness < 0):
            raise ConfigError(
                f"mode is async with buffer {self.buffer} and max_staleness {self.max_staleness}, expected "
                "buffer of at least 1 and max_staleness of at least 0; change them"
            )
        if self.mode == "async" and (self.clients_per_round or self.late == "keep"):
            raise ConfigError(
                "mode async gives every device a task and always keeps late updates; leave clients_per_round "
                "and late out"
            )

    @property
    def reports_accuracy(self) -> bool:
        """Whether devices report an accuracy in each round. An accuracy has neither noise nor a mask."""
        return self.evaluate and not (self.privacy.is_on or self.privacy.secure_aggregation)

    @property
    def task_settings(self) -> Mapping[str, float]:
        """The settings in the task of a round, see `edgefl.protocol.wire.messages.Task`."""
        return {"evaluate": 1.0} if self.reports_accuracy else {}

    @property
    def staleness(self) -> int:
        """Maximum age of an update in rounds."""
        return self.max_staleness if self.mode == "async" else int(self.late == "keep")


def with_simulated_clients(config: FederationConfig) -> FederationConfig:
    """Return the configuration of a simulation, whose clients come from `[partition]`."""
    return replace(config, clients=(), min_clients=config.partition.num_clients)


def parse_shape(text: str) -> tuple[int, ...]:
    """Parse the shape of one sample, such as `28,28,1`.

    Raises:
        ConfigError: the text is not a list of whole numbers above 0.
    """
    try:
        sizes = tuple(int(part) for part in text.split(","))
    except ValueError:
        sizes = ()
    if not sizes or min(sizes) < 1:
        raise ConfigError(
            f"--input-shape is {text!r}, expected sizes above 0 separated by commas, such as 28,28,1"
        )
    return sizes


def _check_table(table: str, raw: Mapping[str, Any], cls: type, skip: tuple[str, ...] = ()) -> dict[str, Any]:
    defaults = {f.name: {} if f.default is MISSING else f.default for f in fields(cls) if f.name not in skip}
    return check_options(f"[{table}]", defaults, raw, noun="key")


def parse_config(text: str) -> FederationConfig:
    """Parse a configuration from TOML.

    Raises:
        ConfigError: the text is not TOML, or as in `read_tables`.
    """
    try:
        raw = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ConfigError(
            f"not TOML: {error}; fix that line, or write a new file with `edgefl init`"
        ) from error
    return read_tables(raw)


def restore_config(values: Mapping[str, Any]) -> FederationConfig:
    """Return the configuration that run.json records: the fields of a FederationConfig, as JSON.

    Fields that an aggregator leaves out have their defaults.

    Raises:
        ConfigError: a field is unknown, or a value has the wrong type or is out of range.
    """
    tables: dict[str, Any] = {
        "federation": {key: value for key, value in values.items() if key not in OTHER_TABLE_FIELDS}
    }
    for name in OTHER_TABLE_FIELDS:
        table = values.get(name)
        if isinstance(table, dict) and name != "options":
            tables[name] = {**table, **table.get("options", {})}
            tables[name].pop("options", None)
    if "algorithm" in values:
        tables["algorithm"] = {"name": values["algorithm"], **values.get("options", {})}
    if "broker" in values:
        tables["broker"] = {"url": values["broker"]}
    return read_tables(tables)


def read_tables(raw: Mapping[str, Any]) -> FederationConfig:
    """Return a configuration from the tables of a file by name.

    Raises:
        ConfigError: a table or key is unknown, or a value has the wrong type or is out of range. The message
            names the table, the key, and the received and expected values.
    """
    tables = ["federation", *(name for name in OTHER_TABLE_FIELDS if name != "options")]
    for table, value in raw.items():
        if table not in tables:
            raise ConfigError(f"unknown table [{table}]; {suggest_nearest(table, tables)}")
        if not isinstance(value, dict):
            raise ConfigError(f"{table} is {value!r}, expected a table; write [{table}] above its keys")
    options = dict(raw.get("algorithm", {}))
    name = options.pop("name", FederationConfig.algorithm)
    if not isinstance(name, str):
        raise ConfigError(
            f"[algorithm] name is {name!r}, expected text such as {FederationConfig.algorithm!r}"
        )
    broker = _check_broker(raw.get("broker", {}))
    federation = _check_table("federation", raw.get("federation", {}), FederationConfig, OTHER_TABLE_FIELDS)
    task = TaskConfig(**_check_table("task", raw.get("task", {}), TaskConfig))
    model = _read_table_with_options("model", raw, ModelConfig)
    if "num_classes" not in raw.get("model", {}):
        model = replace(model, num_classes=task.count_outputs(model.input_shape, model.num_classes))
    return FederationConfig(
        **federation,
        **broker,
        algorithm=name,
        options=options,
        model=model,
        task=task,
        data=_read_table_with_options("data", raw, DataConfig),
        partition=_read_table_with_options("partition", raw, PartitionConfig),
        privacy=PrivacyConfig(**_check_table("privacy", raw.get("privacy", {}), PrivacyConfig)),
        personalization=PersonalizationConfig(
            **_check_table("personalization", raw.get("personalization", {}), PersonalizationConfig)
        ),
        augmentation=AugmentationConfig(
            **_check_table("augmentation", raw.get("augmentation", {}), AugmentationConfig)
        ),
        training=TrainingConfig(**_check_table("training", raw.get("training", {}), TrainingConfig)),
        samples=SamplesConfig(**_check_table("samples", raw.get("samples", {}), SamplesConfig)),
        fleet=FleetConfig(**_check_table("fleet", raw["fleet"], FleetConfig)) if "fleet" in raw else None,
    )


def _read_table_with_options(table: str, raw: Mapping[str, Any], cls: Callable[..., T]) -> T:
    """Read a table whose further keys are options."""
    field_names = {f.name for f in fields(cls)} - {"options"}  # type: ignore[arg-type]
    settings, options = (
        {k: v for k, v in raw.get(table, {}).items() if (k in field_names) == is_field}
        for is_field in (True, False)
    )
    return cls(**_check_table(table, settings, cls), options=options)  # type: ignore[arg-type]


def _check_broker(raw: Mapping[str, Any]) -> dict[str, Any]:
    for key, value in raw.items():
        if key != "url":
            raise ConfigError(f"[broker] has an unknown key {key!r}; expected url")
        if not isinstance(value, str):
            raise ConfigError(f"[broker] url is {value!r}, expected text such as mqtt://localhost:1883")
    return {"broker": raw["url"]} if "url" in raw else {}


def load_config(path: str | Path) -> FederationConfig:
    """Read a configuration file.

    Raises:
        ConfigError: the file cannot be read or is invalid.
    """
    try:
        return parse_config(Path(path).read_text())
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"cannot read {path}: {getattr(error, 'strerror', None) or error}; write one with `edgefl init`"
        ) from error
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error
