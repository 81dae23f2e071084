"""The privacy spending of a federation: its epsilon at a delta after a number of rounds.

Google's `dp-accounting` (the extra `dp`) computes it with privacy loss distributions. The mechanism is the
Gaussian of `mechanism` with Poisson sampling.

Two federations are neighbours if the updates of one client are replaced by zeros in every round in which it
takes part. So the number of clients is not secret, but the data of each client are. Losses are rounded up to
a grid, so the reported epsilon is at least the true epsilon. The step of the grid adds less than a
thousandth.

Source: privacy loss distributions: Koskela, Jälkö and Honkela, arXiv:1906.03049, and Doroshenko et al.,
arXiv:2207.04380. Neighbours: Kairouz et al., arXiv:2103.00039, definition 1.1.
"""

import logging
import math
from dataclasses import replace
from typing import Any

from edgefl.base.config import FederationConfig
from edgefl.base.errors import ConfigError
from edgefl.learning.privacy.mechanism import compute_sampling_rate

LOGGER = logging.getLogger(__name__)

LOSS_GRID_STEP = 1e-3
MAX_NOISE_MULTIPLIER = 1e4
MIN_NOISE_MULTIPLIER = 0.25
"""The search does not halve below this. With less noise, epsilon is in the hundreds and slow to compute."""


def require_accountant() -> None:
    """Raise ModuleNotFoundError if the extra `dp` is not installed, before a long run instead of after it."""
    import dp_accounting.pld  # noqa: F401


def compute_epsilon(rate: float, noise_multiplier: float, rounds: int, delta: float) -> float:
    """Return epsilon after a number of rounds. It is 0 before the first round.

    Args:
        rate: probability with which a client takes part in a round.
        noise_multiplier: standard deviation of the noise as a multiple of the clipping norm.
        delta: the delta of the guarantee.

    Raises:
        ModuleNotFoundError: the extra `dp` is not installed.
    """
    import dp_accounting
    from dp_accounting.pld import PLDAccountant

    gaussian = dp_accounting.GaussianDpEvent(noise_multiplier)
    event = gaussian if rate >= 1 else dp_accounting.PoissonSampledDpEvent(rate, gaussian)
    accountant = PLDAccountant(dp_accounting.NeighboringRelation.REPLACE_SPECIAL, LOSS_GRID_STEP)
    if not rounds:
        return 0.0
    accountant.compose(event, rounds)
    return float(accountant.get_epsilon(delta))


def find_noise_multiplier(rate: float, rounds: int, target: float, delta: float) -> float:
    """Return a noise multiplier, rounded up to three decimals, that spends at most the target epsilon.

    It is at most about 1 % above the smallest such multiplier, and above 0.125.

    Args:
        rate: probability with which a client takes part in a round.
        target: maximum epsilon.
        delta: the delta of the guarantee.

    Raises:
        ConfigError: the multiplier would be above 10,000.
        ModuleNotFoundError: the extra `dp` is not installed.
    """

    def is_within_target(noise_multiplier: float) -> bool:
        return compute_epsilon(rate, noise_multiplier, rounds, delta) <= target

    high = 1.0
    while not is_within_target(high):
        high *= 2
        if high > MAX_NOISE_MULTIPLIER:
            raise ConfigError(
                f"epsilon {target} needs a noise multiplier above {MAX_NOISE_MULTIPLIER:g}; raise "
                "--epsilon or --clients, or lower --rounds"
            )
    while high > MIN_NOISE_MULTIPLIER and is_within_target(high / 2):
        high /= 2
    low = high / 2
    while high - low > 0.005 * high:
        middle = (low + high) / 2
        low, high = (low, middle) if is_within_target(middle) else (middle, high)
    return math.ceil(high * 1000) / 1000


def limit_to_budget(config: FederationConfig) -> FederationConfig:
    """Return the configuration with as many rounds as `max_epsilon` of `[privacy]` allows.

    The configuration is returned unchanged if `max_epsilon` allows all rounds, or is not set. Otherwise the
    number of rounds is logged.

    Raises:
        ConfigError: `max_epsilon` does not allow a single round.
        ModuleNotFoundError: the extra `dp` is not installed.
    """
    privacy = config.privacy
    if not privacy.is_on:
        return config
    require_accountant()
    if not privacy.max_epsilon:
        return config

    def compute_epsilon_after(rounds: int) -> float:
        return compute_epsilon(compute_sampling_rate(config), privacy.noise_multiplier, rounds, privacy.delta)

    if compute_epsilon_after(config.rounds) <= privacy.max_epsilon:
        return config
    low = 0
    high = config.rounds
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if compute_epsilon_after(middle) <= privacy.max_epsilon else (low, middle)
    if not low:
        raise ConfigError(
            f"[privacy] max_epsilon is {privacy.max_epsilon}, but the first round spends "
            f"{compute_epsilon_after(1):.3f}; raise max_epsilon or noise_multiplier: "
            "`edgefl privacy plan --epsilon` prints how far"
        )
    LOGGER.warning(
        f"privacy: max_epsilon {privacy.max_epsilon:g} ends the federation after {low} of {config.rounds} "
        "rounds"
    )
    return replace(config, rounds=low)


def list_milestones(rounds: int) -> list[int]:
    """Return 1, 2, 5, 10, 20, 50, ... below the last round, and then the last round."""
    steps = [digit * 10**power for power in range(len(str(rounds))) for digit in (1, 2, 5)]
    return [*(step for step in steps if step < rounds), rounds]


def summarize_spending(config: FederationConfig, rounds: int) -> dict[str, Any]:
    """Return the spending after `rounds` rounds of a configuration and its assumptions, for JSON.

    The summary includes epsilon at some earlier rounds.

    Args:
        config: configuration of the federation, with `[privacy]` on.
        rounds: number of rounds. With 0, epsilon is 0.

    Raises:
        ModuleNotFoundError: the extra `dp` is not installed.
    """
    privacy = config.privacy
    rate = compute_sampling_rate(config)
    curve = (
        {
            str(n): compute_epsilon(rate, privacy.noise_multiplier, n, privacy.delta)
            for n in list_milestones(rounds)
        }
        if rounds
        else {}
    )
    return {
        "epsilon": curve.get(str(rounds), 0.0),
        "delta": privacy.delta,
        "rounds": rounds,
        "clip": privacy.clip,
        "noise_multiplier": privacy.noise_multiplier,
        "population": privacy.population,
        "sampling_rate": rate,
        "sampling": "poisson" if rate < 1 else "all",
        "unit": "client",
        "neighbours": "one client's updates zeroed",
        "accountant": "dp-accounting PLD",
        "epsilon_by_round": curve,
    }


def describe_spending(config: FederationConfig, rounds: int) -> str:
    """Return a line with the spending after `rounds` rounds of a configuration.

    Args:
        config: configuration of the federation, with `[privacy]` on.

    Raises:
        ModuleNotFoundError: the extra `dp` is not installed.
    """
    value = compute_epsilon(
        compute_sampling_rate(config), config.privacy.noise_multiplier, rounds, config.privacy.delta
    )
    return f"privacy: epsilon {value:.3f} at delta {config.privacy.delta:g} after {rounds} rounds"
