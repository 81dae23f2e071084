"""Names of models, peers, scalars and weights that several algorithms share, and prefixes of names."""

from collections.abc import Mapping, Sequence
from typing import TypeVar

from edgefl.base.errors import ConfigError
from edgefl.base.types import Weights
from edgefl.program.plan.spec import TensorSpec

T = TypeVar("T")

GLOBAL = "global"
"""The model that all clients train, or the model of the receiving client's cluster."""
INITIAL = "initial"
"""The model before the first round."""
LOCAL_MODEL = "local"
"""The model that a client trains on its own samples, without the federation."""
LOCAL_START = "local_start"
"""The initial weights of a client's local model, sent in the last broadcast."""
FINE_TUNED_MODEL = "fine_tuned"
"""The federated model after some epochs on the client's own samples."""
MIXTURE_MODEL = "mixture"
"""The personal model that the algorithm makes."""
BLEND_MODEL = "blend"
"""The sum of the probabilities of a client's models, each times its share, see
`edgefl.learning.client.blend`. In a regression it is the sum of their predictions."""
FEDERATED_MODEL = "federated"
"""The peer of a mixture that has no personal weights."""
EXPERT_PREFIX = "expert"
"""Prefix of the models of an algorithm with several models, and the metric with the trained model's index."""
PHI_MODEL = "phi"
"""A model of one array: logits of the experts' responsibilities, shape (conditions, experts), float32."""
RECEIVED_PREFIX = "received"
"""Prefix of the received weights in a training objective that has them as frozen weights."""
LOCAL_EPOCHS = "local_epochs"
"""The scalar of the last broadcast: number of epochs in the rounds. A local model trains at most as many
before those of the personalization."""
COMPARE_SCALAR = "compare"
"""The scalar in the broadcast of the last round that asks a client to compare its models."""
SCORE_METRIC_PREFIX = "score_"
"""Prefix of a model's mean score, a metric of the updates of the last round."""
BLEND_PREFIX = "blend_"
"""Prefix of a model's share in a blend: a metric of the updates of the last round, and, as the mean of all
clients, a scalar of the last broadcast."""
RANK_SCALAR_PREFIX = "rank_"
"""Prefix of a model's rank over all clients, a scalar of the last broadcast. Rank 0 is the best."""
LOCAL_ROUND = 0
"""The round of a broadcast that a client makes for itself. Its update is never sent. Rounds count from 1."""


def name_expert(index: int) -> str:
    """Return the name of a model by its index: `expert0`, `expert1`, ..."""
    return f"{EXPERT_PREFIX}{index}"


def name_experts(count: int) -> tuple[str, ...]:
    """Return the names of the first `count` models: `expert0`, `expert1`, ..."""
    return tuple(map(name_expert, range(count)))


def select_experts(models: Mapping[str, Weights]) -> dict[int, Weights]:
    """Return the experts among the models of a broadcast or a state, by index in ascending order."""
    by_index = {
        int(name.removeprefix(EXPERT_PREFIX)): weights
        for name, weights in models.items()
        if name.startswith(EXPERT_PREFIX)
    }
    return dict(sorted(by_index.items()))


def with_prefix(prefix: str, weights: Mapping[str, T]) -> dict[str, T]:
    """Return the weights with `prefix/` before each name.

    Args:
        prefix: the prefix without its slash, such as `local`.
        weights: weights, or any other values, by name.
    """
    return {f"{prefix}/{name}": array for name, array in weights.items()}


def strip_prefix(prefix: str, weights: Mapping[str, T]) -> dict[str, T]:
    """Return the weights named `prefix/...` without the prefix.

    For example, the prefix `local` turns `local/fc3/bias` into `fc3/bias`. All other weights are left out.

    Args:
        prefix: the prefix without its slash, such as `local`.
        weights: weights, or any other values, by name.
    """
    return {
        name.removeprefix(f"{prefix}/"): array
        for name, array in weights.items()
        if name.startswith(f"{prefix}/")
    }


def prefix_specs(prefix: str, specs: Sequence[TensorSpec]) -> tuple[TensorSpec, ...]:
    """Return the specs with `prefix/` before each name.

    Args:
        prefix: the prefix without its slash, such as `local`.
        specs: specs of weights. Their shapes and dtypes do not change.
    """
    return tuple(TensorSpec(f"{prefix}/{spec.name}", spec.shape, spec.dtype) for spec in specs)


def extract_layer(name: str) -> str:
    """Return the layer of a weight, such as `block/conv1` for `block/conv1/kernel`."""
    return name.rpartition("/")[0] or name


def find_output_weights(weights: Weights) -> tuple[str, str]:
    """Return the names of the output layer's kernel and bias.

    The kernel is the last weight of rank 2 named `.../kernel`, in the plan's order.

    Raises:
        ConfigError: the model has no such kernel, or the kernel has no bias.
    """
    kernels = [name for name, array in weights.items() if array.ndim == 2 and name.endswith("/kernel")]
    layer = extract_layer(kernels[-1]) if kernels else ""
    if f"{layer}/bias" not in weights:
        raise ConfigError(
            "the model's output layer has no bias that each client could personalize; give it use_bias=True"
        )
    return kernels[-1], f"{layer}/bias"


def find_head_weights(weights: Weights) -> list[str]:
    """Return the names of the head's weights, or an empty list for a model without a head.

    The aggregator knows only names and shapes. The head is therefore the last layers that have exactly a
    kernel of rank 2 and a bias, in the plan's order. A plan builder compares it with the model's head.

    Args:
        weights: the weights of the model, in the plan's order.
    """
    names_by_layer = _group_by_layer(weights)
    head: list[str] = []
    for layer, names in reversed(names_by_layer.items()):
        if set(names) != {f"{layer}/kernel", f"{layer}/bias"} or weights[f"{layer}/kernel"].ndim != 2:
            break
        head = [*names, *head]
    return head


def find_last_layers(weights: Weights, count: int) -> list[str]:
    """Return the names of the weights of the last layers.

    Args:
        weights: the weights of the model, in the plan's order.
        count: number of layers. Only layers with weights count.
    """
    layers = list(_group_by_layer(weights).values())
    return [name for names in layers[max(len(layers) - count, 0) :] for name in names]


def _group_by_layer(weights: Weights) -> dict[str, list[str]]:
    names_by_layer: dict[str, list[str]] = {}
    for name in weights:
        names_by_layer.setdefault(extract_layer(name), []).append(name)
    return names_by_layer
