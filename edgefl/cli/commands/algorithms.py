"""`edgefl algorithms`: the algorithms, with the source and the options of each."""

import json
from typing import Any

import click

from edgefl.algorithms.entry import Entry
from edgefl.algorithms.registry import REGISTRY, entry
from edgefl.cli.completion import algorithm_names, known
from edgefl.config.template import key_docs

BASE = "fedavg"
"""The algorithm whose options are listed once, not with each algorithm that inherits them."""
WIDTH = 100


@click.command(short_help="Algorithms, their sources and options.")
@click.argument("name", required=False, shell_complete=known(algorithm_names))
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def algorithms(name: str | None, as_json: bool) -> None:
    """List the algorithms: name, source, and options with their defaults, as `[algorithm]` of a configuration
    takes them. With NAME, or MODULE:NAME, explain the options of one algorithm.

    \b
    Example:
      edgefl algorithms
      edgefl algorithms fedprox
    """
    entries = REGISTRY if name is None else {name: entry(name)}
    if as_json:
        click.echo(json.dumps({each: _record(found) for each, found in entries.items()}))
        return
    for each, found in entries.items():
        click.echo(
            f"{each}\n  {found.source}\n{_listed(each, found) if name is None else _explained(found)}\n"
        )


def _record(found: Entry) -> dict[str, Any]:
    return {"source": found.source, "options": found.defaults, "explained": key_docs(found.options)}


def _listed(name: str, found: Entry) -> str:
    base = REGISTRY[BASE]
    inherits = name != BASE and issubclass(found.options, base.options)
    inherited = base.defaults.keys() if inherits else ()
    options = [f"{key}={json.dumps(value)}" for key, value in found.defaults.items() if key not in inherited]
    return click.wrap_text(
        ", ".join([*([f"those of {BASE}"] if inherits else []), *options]), WIDTH, "  ", "  "
    )


def _explained(found: Entry) -> str:
    docs = key_docs(found.options)
    return "\n".join(
        f"\n  {key} = {json.dumps(value)}\n" + click.wrap_text(docs.get(key, ""), WIDTH, "    ", "    ")
        for key, value in found.defaults.items()
    )
