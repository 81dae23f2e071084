"""The nouns that every room shares: frozen records of named arrays.

`Weights` maps a name such as `conv2d/kernel` to a float32 array. No function of the project changes
an array in place once it sits in one of these records.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]
Labels = NDArray[np.int64]
Weights = Mapping[str, Array]
Scalars = Mapping[str, float]


@dataclass(frozen=True)
class Shard:
    """One client's private data. It never leaves the device.

    x_train: float32[n, *input_shape], y_train: int64[n]; x_test, y_test: the client's own held-out split.
    side_train: int64[n], what else is known of each training sample, such as how far it was turned; None when
    nothing is.
    group_train: int64[n], the recording (or other group) of each training sample; None when samples stand
    alone. A split of the training samples never divides a group.
    """

    x_train: Array
    y_train: Labels
    x_test: Array
    y_test: Labels
    num_classes: int
    side_train: Labels | None = None
    group_train: Labels | None = None


@dataclass(frozen=True)
class Broadcast:
    """What a client receives in one round: named models (`global`, `expert0`, ...) and scalars."""

    round: int
    phase: str
    models: Mapping[str, Weights]
    scalars: Scalars = field(default_factory=dict)


@dataclass(frozen=True)
class Update:
    """What a client sends back: for each model that it trained, trained minus received."""

    client_id: str
    round: int
    num_samples: int
    deltas: Mapping[str, Weights]
    metrics: Scalars = field(default_factory=dict)


@dataclass(frozen=True)
class ClientState:
    """What a client keeps for itself between rounds. Private: never encoded for the wire."""

    arrays: Weights = field(default_factory=dict)
    scalars: Scalars = field(default_factory=dict)


@dataclass(frozen=True)
class ServerState:
    """What the aggregator keeps between rounds. `round` counts from 1: the round that comes next."""

    round: int
    phase: str
    models: Mapping[str, Weights]
    slots: Mapping[str, Weights] = field(default_factory=dict)
    scalars: Scalars = field(default_factory=dict)


@dataclass(frozen=True)
class Peer:
    """A model that a client compares its mixture with: the weights of one predict signature of the plan."""

    signature: str
    weights: Weights


@dataclass(frozen=True)
class Mixture:
    """A client's personal model: the weights of a predict signature of the plan, by name.

    Private: local experts and gates are in it. peers: what `personalize` met on its way and a client may be
    measured with instead (`federated`, `local`, `ensemble`, ...). diagnostics: numbers about the mixture,
    such as how often the gate picks each expert; they stay where the mixture is. Neither is saved.
    signature: `predict_mixture`, or `predict` where the client ships one model in place of the mixture.
    """

    weights: Weights
    peers: Mapping[str, Peer] = field(default_factory=dict)
    diagnostics: Scalars = field(default_factory=dict)
    signature: str = "predict_mixture"
