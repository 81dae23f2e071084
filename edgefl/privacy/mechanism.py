"""DP-FedAvg: the models of a round depend on any one client's data by little, in a sense that adds up over
rounds to (epsilon, delta).

McMahan et al., Learning Differentially Private Recurrent Language Models, arXiv:1710.06963, algorithm 1 with
flat clipping and the fixed-denominator estimator; C `clip`, z `noise_multiplier`, N `population`, q N
`clients_per_round`:

    cohort   each client takes part with probability q, on its own                    (Poisson sampling)
    update   d_k <- d_k min(1, C / |d_k|), |.| the L2 norm over all models and weights that the client sent
    model    w <- w + (sum_k d_k + N(0, (z C)^2)) / (q N)

Each client counts alike, for a number of samples that a client tells is its data too. The denominator does
not depend on who came. Where there are several models (IFCA, AEM) a client trains one of them; noise goes
onto all, and the sums together move by C at most when one client's update is replaced by zeros. All that
`aggregate` does with the mean, such as a server optimizer, costs nothing more.

The aggregator clips, so a device runs unchanged, and one that cheats moves the sum by C as well.
"""

import hashlib
import math
from collections.abc import Collection, Iterable
from dataclasses import replace

import numpy as np

from edgefl.algorithms.base import Algorithm
from edgefl.algorithms.cohort import choose_cohort
from edgefl.algorithms.server_optimizer import STATISTICS
from edgefl.algorithms.update_sanitization import has_suffix
from edgefl.config import FederationConfig
from edgefl.errors import ConfigError
from edgefl.plan.spec import PlanSpec
from edgefl.privacy.noise import draw_normal, draw_uniform
from edgefl.types import ServerState, Update

WeightSums = dict[tuple[str, str], np.ndarray]


def count_expected_cohort(config: FederationConfig) -> int:
    """Return how many clients take part in a round on average, q N, when the whole population is online."""
    return config.clients_per_round or config.privacy.population


def compute_sampling_rate(config: FederationConfig) -> float:
    """Return the probability q with which each client takes part in a round."""
    return count_expected_cohort(config) / config.privacy.population


def draw_cohort(
    config: FederationConfig, key: bytes, state: ServerState, clients: Iterable[str]
) -> tuple[str, ...]:
    """Return who takes part in a round: without `[privacy]` see `choose_cohort`, with it a Poisson sample,
    which may be empty.
    """
    if not config.privacy.is_on:
        return choose_cohort(config.seed, state, clients, config.clients_per_round)
    ids = sorted(set(clients))
    drawn = draw_uniform(key, f"cohort of round {state.round}", len(ids))
    return tuple(
        client_id for client_id, u in zip(ids, drawn, strict=True) if u < compute_sampling_rate(config)
    )


def check_privacy(algorithm: Algorithm, config: FederationConfig) -> None:
    """Raise ConfigError when `[privacy]` asks for what this algorithm cannot keep."""
    if config.privacy.is_on and not algorithm.by_sums:
        raise ConfigError(
            f"[privacy] does not go with {algorithm.name} and these options: what it makes of the updates is "
            "more than their sums (who is like whom, who answers for what, an order, a stop), and noise on "
            "the sums would not cover that; take fedavg or one built on it with mean = 'weighted' and no "
            "clip_norm, ifca, aem with patience = 0, or clustered and fedap with clustering = false"
        )


def with_privacy(algorithm: Algorithm, config: FederationConfig, spec: PlanSpec, key: bytes) -> Algorithm:
    """Return the algorithm with the mechanism before its `aggregate`; as it is without `[privacy]`.

    ConfigError, see `check_privacy`.

    Only what the plan's `train` moves is released; the rest, and moving statistics (a noisy variance may be
    negative), stays as broadcast. What an update holds beyond that is not looked at.
    """
    if not config.privacy.is_on:
        return algorithm
    check_privacy(algorithm, config)
    clip = config.privacy.clip
    sigma = config.privacy.clip * config.privacy.noise_multiplier
    expected = count_expected_cohort(config)
    trained = {tensor.name for tensor in spec.find_signature("train").trained}

    def aggregate(state: ServerState, updates: Iterable[Update]) -> ServerState:
        sent = algorithm.broadcast(state, "").models
        weight_keys = [
            (model, name)
            for model, weights in sent.items()
            for name in weights
            if _is_released(name, trained)
        ]
        total = sum_clipped(
            weight_keys,
            {weight_key: sent[weight_key[0]][weight_key[1]].shape for weight_key in weight_keys},
            updates,
            clip,
        )
        deltas = {
            model: {name: np.zeros_like(array) for name, array in weights.items()}
            for model, weights in sent.items()
        }
        digest = digest_sum(total)
        for model, name in weight_keys:
            noise = draw_normal(
                key, f"noise of round {state.round} on {model}/{name} for {digest}", total[model, name].shape
            )
            deltas[model][name] = np.asarray((total[model, name] + sigma * noise) / expected, np.float32)
        return algorithm.aggregate(state, [Update("", state.round, 1, deltas)])

    return replace(algorithm, aggregate=aggregate)


def sum_clipped(
    weight_keys: Collection[tuple[str, str]],
    shapes: dict[tuple[str, str], tuple[int, ...]],
    updates: Iterable[Update],
    clip: float,
) -> WeightSums:
    """Return the sum of all updates, float64, each cut to an L2 norm of `clip` over these places (model,
    weight) together.

    An update that is not finite counts as zeros: it must not decide what is released.
    """
    total = {weight_key: np.zeros(shapes[weight_key]) for weight_key in weight_keys}
    for update in updates:
        arrays = {
            (m, n): update.deltas[m][n].astype(np.float64) for m, n in weight_keys if m in update.deltas
        }
        norm = math.sqrt(sum(float(np.square(array).sum()) for array in arrays.values()))
        if not math.isfinite(norm):
            continue
        scale = 1.0 if norm <= clip else clip / norm
        for weight_key, array in arrays.items():
            total[weight_key] += array * scale
    return total


def digest_sum(total: WeightSums) -> str:
    """Return the sha256, in hexadecimal, of a sum: its places by name, each as its name, a newline and
    float64 little-endian.

    The places are sorted, since a state that was read from a file may hold its weights in another order.

    Noise is drawn for this sum alone. Two sums of one round, as after a restored backup or a lost update, get
    unrelated noise, so that the difference of the two releases is not the exact difference of the sums. The
    same sum gets the same noise, so that a restart comes to the same bits.
    """
    digest = hashlib.sha256()
    for (model, name), array in sorted(total.items()):
        digest.update(f"{model}/{name}\n".encode())
        digest.update(array.astype("<f8").tobytes())
    return digest.hexdigest()


def _is_released(name: str, trained: Collection[str]) -> bool:
    return name in trained and not has_suffix(name, STATISTICS)
