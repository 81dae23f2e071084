"""DP-FedAvg: a mechanism that limits how much the models of a round depend on any single client.

The limits of all rounds add up to a guarantee of (epsilon, delta). With C `clip`, z `noise_multiplier`, N
`population` and q N `clients_per_round`:

    cohort   each client takes part with probability q, independently of the others (Poisson sampling)

    update   d_k <- d_k min(1, C / |d_k|), |.| the L2 norm over all models and weights that the client sent

    model    w <- w + (sum_k d_k + N(0, (z C)^2)) / (q N)

All clients have the same weight, because the number of samples that a client reports is private data too. The
denominator does not depend on which clients took part. With several models (IFCA, AEM), a client trains one
of them and noise is added to all. All sums together move by at most C if one client's update is replaced by
zeros. Further steps of `aggregate` on the mean, such as a server optimizer, spend no privacy.

The aggregator clips, so devices run unchanged. A device that cheats moves the sum by at most C as well.

Source: McMahan et al., Learning Differentially Private Recurrent Language Models, arXiv:1710.06963, algorithm
1 with flat clipping and the fixed-denominator estimator.
"""

import hashlib
import math
from collections.abc import Collection, Iterable
from dataclasses import replace

import numpy as np

from edgefl.base.config import FederationConfig
from edgefl.base.errors import ConfigError
from edgefl.base.types import ServerState, Update
from edgefl.learning.algorithms.base import Algorithm
from edgefl.learning.algorithms.cohort import choose_cohort
from edgefl.learning.algorithms.server_optimizer import STATISTICS
from edgefl.learning.algorithms.update_sanitization import has_suffix
from edgefl.learning.privacy.noise import draw_normal, draw_uniform
from edgefl.program.plan.spec import PlanSpec

WeightSums = dict[tuple[str, str], np.ndarray]


def count_expected_cohort(config: FederationConfig) -> int:
    """Return the mean number of clients in a round, q N, when the whole population is online."""
    return config.clients_per_round or config.privacy.population


def compute_sampling_rate(config: FederationConfig) -> float:
    """Return the probability q with which each client takes part in a round."""
    return count_expected_cohort(config) / config.privacy.population


def draw_cohort(
    config: FederationConfig, key: bytes, state: ServerState, clients: Iterable[str]
) -> tuple[str, ...]:
    """Draw the cohort of a round.

    With `[privacy]` it is a Poisson sample, which may be empty. Without it, see `choose_cohort`.

    Args:
        key: the noise key, 32 bytes.
        state: the server state before the round.
        clients: ids of the available clients.
    """
    if not config.privacy.is_on:
        return choose_cohort(config.seed, state, clients, config.clients_per_round)
    ids = sorted(set(clients))
    drawn = draw_uniform(key, f"cohort of round {state.round}", len(ids))
    return tuple(
        client_id for client_id, u in zip(ids, drawn, strict=True) if u < compute_sampling_rate(config)
    )


def check_privacy(algorithm: Algorithm, config: FederationConfig) -> None:
    """Check that the algorithm can satisfy `[privacy]` if it is on.

    Args:
        algorithm: the algorithm at the aggregator.

    Raises:
        ConfigError: `[privacy]` is on, and the algorithm uses more of the updates than their sums.
    """
    if config.privacy.is_on and not algorithm.by_sums:
        raise ConfigError(
            f"[privacy] does not work with {algorithm.name} and these options: it uses more of the updates "
            "than their sums (such as similarities, responsibilities, an order or a stop), and noise on the "
            "sums would not cover that; take fedavg or an algorithm built on it with mean = 'weighted' and "
            "no clip_norm, ifca, aem with patience = 0, or clustered and fedap with clustering = false"
        )


def with_privacy(algorithm: Algorithm, config: FederationConfig, spec: PlanSpec, key: bytes) -> Algorithm:
    """Return the algorithm with clipping and noise before its `aggregate`.

    Without `[privacy]` the algorithm is returned unchanged. Only weights that the plan's `train` trains are
    released. All others keep their values, as do moving statistics, because a noisy variance may be negative.
    Everything else in an update is ignored.

    Args:
        algorithm: the algorithm at the aggregator.
        key: the noise key, 32 bytes.

    Raises:
        ConfigError: as in `check_privacy`.
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
        return algorithm.aggregate(
            state, [Update(client_id="", round=state.round, num_samples=1, deltas=deltas)]
        )

    return replace(algorithm, aggregate=aggregate)


def sum_clipped(
    weight_keys: Collection[tuple[str, str]],
    shapes: dict[tuple[str, str], tuple[int, ...]],
    updates: Iterable[Update],
    clip: float,
) -> WeightSums:
    """Return the sum of all updates, each clipped to an L2 norm of `clip` over all these weights together.

    An update that is not finite counts as zeros, so it cannot affect the release.

    Args:
        weight_keys: pairs of a model and a weight.
        shapes: the shape of each weight.
        updates: the round's updates, read once and one at a time.
        clip: maximum L2 norm of an update.

    Returns:
        The sum of each weight, float64.
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
    """Return the SHA-256 digest of a sum, in hexadecimal.

    The digest covers the name of each weight, a newline, and its values as little-endian float64. The weights
    are sorted by name, because a state from a file may have another order.

    Noise is drawn for one sum only. Two sums of one round, as after a restored backup or a lost update, get
    unrelated noise. The difference of their releases therefore does not reveal the exact difference of the
    sums. The same sum gets the same noise, so a restart gives the same bits.
    """
    digest = hashlib.sha256()
    for (model, name), array in sorted(total.items()):
        digest.update(f"{model}/{name}\n".encode())
        digest.update(array.astype("<f8").tobytes())
    return digest.hexdigest()


def _is_released(name: str, trained: Collection[str]) -> bool:
    return name in trained and not has_suffix(name, STATISTICS)
