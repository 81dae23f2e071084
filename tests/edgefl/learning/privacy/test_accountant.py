"""Epsilon compared with published values, and with the closed form of the Gaussian mechanism."""

import json
import math

import pytest
from click.testing import CliRunner

from edgefl.base.config import FederationConfig, PrivacyConfig
from edgefl.base.errors import ConfigError
from edgefl.cli.commands.privacy import privacy
from edgefl.learning.privacy import accountant

pytest.importorskip("dp_accounting", reason="the extra dp is not installed")


@pytest.mark.parametrize(
    ("noise_multiplier", "epochs", "published"), [(1.12, 60, 2.92), (0.6, 30, 9.74), (1.2, 10, 1.20)]
)
def test_epsilon_is_close_to_the_tensorflow_privacy_tutorial(noise_multiplier, epochs, published):
    """Its README has epsilon at delta 1e-5 for batches of 256 of 60,000 samples.

    It uses Renyi divergences, whose bound is looser.
    """
    computed = accountant.compute_epsilon(256 / 60_000, noise_multiplier, epochs * 60_000 // 256, 1e-5)
    assert 0.65 * published < computed <= published


def test_epsilon_is_slightly_below_the_rdp_accountant():
    import dp_accounting
    from dp_accounting.rdp import RdpAccountant

    renyi = RdpAccountant(neighboring_relation=dp_accounting.NeighboringRelation.REPLACE_SPECIAL)
    renyi.compose(dp_accounting.PoissonSampledDpEvent(0.01, dp_accounting.GaussianDpEvent(1.1)), 1000)
    rdp_epsilon = renyi.get_epsilon(1e-5)
    assert 0.85 * rdp_epsilon < accountant.compute_epsilon(0.01, 1.1, 1000, 1e-5) < rdp_epsilon


@pytest.mark.parametrize(("noise_multiplier", "rounds"), [(5.0, 1), (5.0, 10), (1.0, 1), (20.0, 100)])
def test_epsilon_without_sampling_matches_the_closed_form(noise_multiplier, rounds):
    """Balle and Wang, arXiv:1805.06530, theorem 8, with s = sigma / sqrt(rounds).

    delta = Phi(1 / 2s - eps s) - e^eps Phi(-1 / 2s - eps s).
    """
    computed = accountant.compute_epsilon(1.0, noise_multiplier, rounds, 1e-5)
    s = noise_multiplier / math.sqrt(rounds)

    def delta(epsilon):
        low, high = (math.erfc(-(side / (2 * s) - epsilon * s) / math.sqrt(2)) / 2 for side in (-1, 1))
        return high - math.exp(epsilon) * low

    assert delta(computed) <= 1e-5 < delta(computed - 0.01)


def test_epsilon_grows_with_sampling_rate_and_rounds():
    unsampled, sampled = (accountant.compute_epsilon(rate, 1.0, 5, 1e-5) for rate in (1.0, 0.1))
    assert sampled < unsampled / 2
    assert (
        0
        == accountant.compute_epsilon(0.1, 1.0, 0, 1e-5)
        < accountant.compute_epsilon(0.1, 1.0, 1, 1e-5)
        < sampled
    )


@pytest.mark.parametrize(("rate", "rounds", "target"), [(0.1, 50, 8.0), (1.0, 3, 0.5), (0.01, 10, 2.0)])
def test_noise_multiplier_meets_the_budget_closely(rate, rounds, target):
    computed = accountant.find_noise_multiplier(rate, rounds, target, 1e-5)
    assert accountant.compute_epsilon(rate, computed, rounds, 1e-5) <= target
    assert accountant.compute_epsilon(rate, computed * 0.985, rounds, 1e-5) > target


def test_spending_summary_contains_its_assumptions():
    config = FederationConfig(
        clients_per_round=5, privacy=PrivacyConfig(clip=0.5, noise_multiplier=1.5, population=50, delta=1e-4)
    )
    spent = accountant.summarize_spending(config, 20)
    assert (spent["sampling"], spent["sampling_rate"], spent["rounds"]) == ("poisson", 0.1, 20)
    assert list(spent["epsilon_by_round"]) == ["1", "2", "5", "10", "20"]
    assert (
        spent["epsilon"] == spent["epsilon_by_round"]["20"] == accountant.compute_epsilon(0.1, 1.5, 20, 1e-4)
    )
    assert accountant.list_milestones(1) == [1]
    assert accountant.list_milestones(30) == [1, 2, 5, 10, 20, 30]
    assert accountant.summarize_spending(config, 0)["epsilon"] == 0


def test_plan_command_finds_noise_and_shows_epsilon():
    def run(*arguments):
        return CliRunner().invoke(
            privacy, ["plan", "--clients", "100", "--per-round", "10", "--rounds", "20", *arguments]
        )

    computed = json.loads(run("--epsilon", "4", "--json").output)
    assert computed["epsilon"] <= 4
    assert computed["noise_on_mean"] == pytest.approx(computed["noise_multiplier"] / 10)
    text = run("--noise-multiplier", str(computed["noise_multiplier"])).output
    assert f"   20    {computed['epsilon']:.3f}" in text
    for arguments in ((), ("--epsilon", "4", "--noise-multiplier", "1")):
        assert isinstance(run(*arguments).exception, ConfigError)


def test_rounds_are_limited_to_the_budget(caplog):
    def config(max_epsilon, rounds=50):
        return FederationConfig(
            rounds=rounds,
            privacy=PrivacyConfig(
                clip=1.0, noise_multiplier=2.0, population=10, delta=1e-5, max_epsilon=max_epsilon
            ),
        )

    spent = [accountant.compute_epsilon(1.0, 2.0, rounds, 1e-5) for rounds in (1, 7, 8)]
    assert accountant.limit_to_budget(config(spent[1])).rounds == 7
    assert caplog.messages == [f"privacy: max_epsilon {spent[1]:g} ends the federation after 7 of 50 rounds"]
    assert accountant.limit_to_budget(config((spent[1] + spent[2]) / 2)).rounds == 7
    assert accountant.limit_to_budget(config(spent[2], rounds=8)).rounds == 8
    assert accountant.limit_to_budget(config(0.0)).rounds == 50
    with pytest.raises(ConfigError, match="the first round spends"):
        accountant.limit_to_budget(config(spent[0] / 2))
    with pytest.raises(ConfigError, match="without clip and noise_multiplier"):
        PrivacyConfig(max_epsilon=1.0)
