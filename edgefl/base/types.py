"""The frozen dataclasses that all packages share: samples, messages, states and mixtures.

`Weights` maps a name such as `conv2d/kernel` to a float32 array. No function of the project changes an array
of these records in place.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]
Labels = NDArray[np.int64]
Weights = Mapping[str, Array]
Scalars = Mapping[str, float]


@dataclass(frozen=True)
class Shard:
    """One client's private data, which never leaves the device.

    Attributes:
        x_train: training samples, shape (n, *input_shape), float32.
        y_train: labels of the training samples, shape (n,), int64. In the form of another task than
            classification, the values to predict, shape (n, outputs), float32: see
            `edgefl.data.task_form`.
        x_test: the client's test samples, shape (m, *input_shape), float32.
        y_test: labels of the test samples, like `y_train`.
        num_classes: number of classes of the task.
        side_train: side information about each training sample, such as its rotation, shape (n,), int64. None
            if there is none.
        group_train: the recording (or other group) of each training sample, shape (n,), int64. None if
            samples are independent. A split of the training samples never divides a group.
        target_train: values to predict of each training sample, shape (n, outputs), float32. None if the
            samples have classes.
        target_test: values to predict of each test sample, like `target_train`.
        has_labels: whether the owner labelled the samples. Without labels, all of them are 0.
        anomaly_test: whether each test sample is an anomaly, shape (m,), bool. None for another task.
        unseen_train: sorted rows of the training samples that no round has trained on, shape (k,), int64.
            None or empty if there are none.
    """

    x_train: Array
    y_train: NDArray[Any]
    x_test: Array
    y_test: NDArray[Any]
    num_classes: int
    side_train: Labels | None = None
    group_train: Labels | None = None
    target_train: Array | None = None
    target_test: Array | None = None
    has_labels: bool = True
    anomaly_test: NDArray[np.bool_] | None = None
    unseen_train: Labels | None = None


@dataclass(frozen=True)
class Broadcast:
    """The models and numbers that a client receives in one round.

    Attributes:
        round: number of the round, from 1.
        phase: phase of the federation, such as `federate`.
        models: weights of each model by its name, such as `global` or `expert0`.
        scalars: further numbers by name.
    """

    round: int
    phase: str
    models: Mapping[str, Weights]
    scalars: Scalars = field(default_factory=dict)


@dataclass(frozen=True)
class Update:
    """The result of a client's training that it sends to the aggregator.

    Attributes:
        client_id: the client.
        round: number of the round that it answers.
        num_samples: number of samples that the client trained on.
        deltas: trained minus received weights of each trained model, by the model's name.
        metrics: numbers about the training by name, among them `loss`.
    """

    client_id: str
    round: int
    num_samples: int
    deltas: Mapping[str, Weights]
    metrics: Scalars = field(default_factory=dict)


class StateRecord:
    """Base class of the typed records in a state, each a frozen dataclass whose fields all have defaults.

    A field is an int, a float, a bool, a str, an array, a `tuple[X, ...]`, a `Mapping` from str or int, or
    another frozen dataclass. `X | None` is allowed too. `edgefl.base.storage.records` encodes the records.

    Raises:
        TypeError: two modules of edgefl define records of one name.

    Attributes:
        record_name: identifies the class in a file: its name, after its module for a class of another
            package.
        classes: all subclasses whose modules are imported, by their names in a file.
    """

    record_name: ClassVar[str] = ""
    classes: ClassVar[dict[str, type["StateRecord"]]] = {}

    def __init_subclass__(cls) -> None:
        """Register the class."""
        is_ours = cls.__module__.startswith("edgefl.")
        cls.record_name = cls.__name__ if is_ours else f"{cls.__module__}.{cls.__name__}"
        other = StateRecord.classes.get(cls.record_name, cls)
        if other.__module__ != cls.__module__:
            raise TypeError(
                f"{cls.__module__} and {other.__module__} define the record {cls.record_name}; rename one"
            )
        StateRecord.classes[cls.record_name] = cls


AnyRecord = TypeVar("AnyRecord", bound=StateRecord)


@dataclass(frozen=True)
class BaseState:
    """What clients and aggregators keep between rounds besides models.

    Attributes:
        records: the records by their names in a file. The methods below read and set them.
    """

    records: Mapping[str, StateRecord] = field(default_factory=dict, kw_only=True)

    def read_record(self, record_class: type[AnyRecord]) -> AnyRecord:
        """Return the record of a class, or one with the defaults of the class if the state has none.

        Args:
            record_class: the class of the record.
        """
        record = self.records.get(record_class.record_name)
        return record_class() if record is None else cast("AnyRecord", record)

    def with_record(self, record: StateRecord) -> Self:
        """Return the state with this record in place of an earlier one of its class.

        Args:
            record: the record.
        """
        return replace(self, records={**self.records, record.record_name: record})

    def remove_record(self, record_class: type[StateRecord]) -> Self:
        """Return the state without the record of a class.

        Args:
            record_class: the class of the record.
        """
        others = {name: record for name, record in self.records.items() if name != record_class.record_name}
        return replace(self, records=others)


@dataclass(frozen=True)
class ClientState(BaseState):
    """The private state of a client between rounds. It is never encoded for the network.

    Attributes:
        arrays: the client's personal weights by name.
    """

    arrays: Weights = field(default_factory=dict)


@dataclass(frozen=True)
class ServerState(BaseState):
    """The state of the aggregator between rounds.

    Attributes:
        round: number of the next round, from 1.
        phase: phase of the next round.
        models: weights of each model by its name.
    """

    round: int
    phase: str
    models: Mapping[str, Weights]


@dataclass(frozen=True)
class Peer:
    """A model that a client compares its mixture with.

    Attributes:
        signature: a predict signature of the plan.
        weights: the weights of this signature.
    """

    signature: str
    weights: Weights


@dataclass(frozen=True)
class Mixture:
    """A client's personal model.

    It is private, because it may contain local experts and gates. Only `weights` and `signature` are saved.

    Attributes:
        weights: weights of a predict signature of the plan, by name.
        peers: other models that the client may be measured with, such as `federated`, `local` or `ensemble`.
        diagnostics: numbers about the mixture, such as how often the gate picks each expert. They stay with
            the mixture.
        signature: `predict_mixture`, `predict` if the client ships one model instead of the mixture, or
            `predict_blend` if it ships a blend of its models.
        single: for a blend, the name of the member that the client would ship alone. Empty for other models.
    """

    weights: Weights
    peers: Mapping[str, Peer] = field(default_factory=dict)
    diagnostics: Scalars = field(default_factory=dict)
    signature: str = "predict_mixture"
    single: str = ""
