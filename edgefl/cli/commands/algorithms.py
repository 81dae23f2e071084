"""`edgefl algorithms`: what there is, with the source of each and its options."""

import json

import click

from edgefl.algorithms.registry import REGISTRY

BASE = "fedavg"
"""Whose options are told once, not with each algorithm that is this one and something more."""


@click.command(short_help="Algorithms, their sources and options.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def algorithms(as_json: bool) -> None:
    """List the algorithms: name, source, and options with their defaults, as `[algorithm]` of a configuration
    takes them.

    \b
    Example:
      edgefl algorithms
    """
    if as_json:
        click.echo(
            json.dumps(
                {
                    name: {"source": entry.source, "options": dict(entry.defaults)}
                    for name, entry in REGISTRY.items()
                }
            )
        )
        return
    shared = REGISTRY[BASE].defaults
    for name, entry in REGISTRY.items():
        inherits = name != BASE and shared.items() <= entry.defaults.items()
        own = {key: value for key, value in entry.defaults.items() if not (inherits and key in shared)}
        options = [f"those of {BASE}"] * inherits + [
            f"{key}={json.dumps(value)}" for key, value in own.items()
        ]
        click.echo(f"{name}\n  {entry.source}\n{click.wrap_text(', '.join(options), 100, '  ', '  ')}\n")
