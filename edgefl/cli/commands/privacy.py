"""`edgefl privacy`: how much noise a budget asks for."""

import json

import click

from edgefl.errors import ConfigError


@click.group(short_help="Differential privacy of a federation.")
def privacy() -> None:
    """Plan the privacy budget of a federation.

    Example: edgefl privacy plan --clients 1000 --per-round 50 --rounds 100 --epsilon 8
    """


@privacy.command("plan", short_help="The noise that a budget asks for.")
@click.option("--clients", type=click.IntRange(1), required=True, help="How many clients there are.")
@click.option(
    "--per-round",
    type=click.IntRange(0),
    default=0,
    help="How many take part in a round on average  [default: all]",
)
@click.option("--rounds", type=click.IntRange(1), required=True, help="Rounds of training.")
@click.option(
    "--epsilon",
    type=click.FloatRange(0, min_open=True),
    help="The budget: the least noise that keeps it is sought.",
)
@click.option(
    "--noise-multiplier",
    type=click.FloatRange(0, min_open=True),
    help="Instead of --epsilon: what this much noise spends.",
)
@click.option(
    "--delta",
    type=click.FloatRange(0, 1, min_open=True, max_open=True),
    default=1e-5,
    show_default=True,
    help="Epsilon is told at this delta.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def plan(
    clients: int,
    per_round: int,
    rounds: int,
    epsilon: float | None,
    noise_multiplier: float | None,
    delta: float,
    as_json: bool,
) -> None:
    """Print the noise multiplier, epsilon by round, and the noise on the mean beside a clipped update.

    \b
    Example:
      edgefl privacy plan --clients 1000 --per-round 50 --rounds 100 --epsilon 8
    """
    from edgefl.config import FederationConfig, PrivacyConfig
    from edgefl.privacy import accountant
    from edgefl.privacy.mechanism import compute_sampling_rate, count_expected_cohort

    if (epsilon is None) == (noise_multiplier is None):
        raise ConfigError(
            "give one of --epsilon, to seek the noise, and --noise-multiplier, to see what it spends"
        )
    probe = FederationConfig(
        clients_per_round=per_round, rounds=rounds, privacy=PrivacyConfig(1.0, 1.0, clients, delta)
    )
    if noise_multiplier is None:
        assert epsilon is not None
        noise_multiplier = accountant.find_noise_multiplier(
            compute_sampling_rate(probe), rounds, epsilon, delta
        )
    config = FederationConfig(
        clients_per_round=per_round,
        rounds=rounds,
        privacy=PrivacyConfig(1.0, noise_multiplier, clients, delta),
    )
    budget = accountant.summarize_spending(config, rounds)
    # the noise on each weight of the mean, as a share of the norm that one client's update may have
    budget = {**budget, "noise_on_mean": noise_multiplier / count_expected_cohort(config)}
    del budget["clip"]
    if as_json:
        click.echo(json.dumps(budget))
        return
    click.echo(f"noise_multiplier  {noise_multiplier:g}")
    click.echo(f"on each weight of the mean: a standard deviation of {budget['noise_on_mean']:.4g} clip\n")
    click.echo(f"round    epsilon (delta {delta:g})")
    for number, value in budget["epsilon_by_round"].items():
        click.echo(f"{number:>5}    {value:.3f}")
