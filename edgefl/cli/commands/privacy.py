"""`edgefl privacy`: computes the noise that a privacy budget needs."""

import json

import click

from edgefl.base.errors import ConfigError


@click.group(short_help="Plan differential privacy for a federation.")
def privacy() -> None:
    """Plan the privacy budget of a federation.

    Example: edgefl privacy plan --clients 1000 --per-round 50 --rounds 100 --epsilon 8
    """


@privacy.command("plan", short_help="Compute the noise that a budget needs.")
@click.option("--clients", type=click.IntRange(1), required=True, help="Number of clients.")
@click.option(
    "--per-round",
    type=click.IntRange(0),
    default=0,
    help="Average number of clients in a round  [default: all]",
)
@click.option("--rounds", type=click.IntRange(1), required=True, help="Number of training rounds.")
@click.option(
    "--epsilon",
    type=click.FloatRange(0, min_open=True),
    help="Privacy budget. The command finds the smallest noise that keeps it.",
)
@click.option(
    "--noise-multiplier",
    type=click.FloatRange(0, min_open=True),
    help="Instead of --epsilon: compute the epsilon that this noise spends.",
)
@click.option(
    "--delta",
    type=click.FloatRange(0, 1, min_open=True, max_open=True),
    default=1e-5,
    show_default=True,
    help="Delta at which epsilon is computed.",
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
    """Print the noise multiplier, epsilon by round, and the noise on the mean update relative to the clipping
    norm.

    \b
    Example:
      edgefl privacy plan --clients 1000 --per-round 50 --rounds 100 --epsilon 8
    """
    from edgefl.base.config import FederationConfig, PrivacyConfig
    from edgefl.learning.privacy import accountant
    from edgefl.learning.privacy.mechanism import compute_sampling_rate, count_expected_cohort

    if (epsilon is None) == (noise_multiplier is None):
        raise ConfigError(
            "give either --epsilon, to compute the noise, or --noise-multiplier, to compute what it spends"
        )
    probe = FederationConfig(
        clients_per_round=per_round,
        rounds=rounds,
        privacy=PrivacyConfig(clip=1.0, noise_multiplier=1.0, population=clients, delta=delta),
    )
    if noise_multiplier is None:
        assert epsilon is not None
        noise_multiplier = accountant.find_noise_multiplier(
            compute_sampling_rate(probe), rounds, epsilon, delta
        )
    config = FederationConfig(
        clients_per_round=per_round,
        rounds=rounds,
        privacy=PrivacyConfig(clip=1.0, noise_multiplier=noise_multiplier, population=clients, delta=delta),
    )
    budget = accountant.summarize_spending(config, rounds)
    # Noise on each weight of the mean, relative to the largest norm of a client's update
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
