"""`edgefl algorithms`: lists the algorithms with their sources and options."""

import json
from typing import Any

import click

from edgefl.base.config.template import read_key_docs
from edgefl.cli.completion import complete_names, list_algorithm_names
from edgefl.learning.algorithms.entry import Entry
from edgefl.learning.algorithms.registry import REGISTRY, find_entry

BASE_ALGORITHM = "fedavg"
"""The algorithm whose options are listed only once, although other algorithms inherit them."""
OPTION_TEXT_WIDTH = 100


@click.command(short_help="List the algorithms and their options.")
@click.argument("name", required=False, shell_complete=complete_names(list_algorithm_names))
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def algorithms(name: str | None, as_json: bool) -> None:
    """List the algorithms with name, source, options and defaults. The options go into the table
    `[algorithm]` of a configuration.

    With NAME, or MODULE:NAME, explain the options of one algorithm.

    \b
    Example:
      edgefl algorithms
      edgefl algorithms fedprox
    """
    entries = REGISTRY if name is None else {name: find_entry(name)}
    if as_json:
        click.echo(json.dumps({entry_name: _record(algorithm) for entry_name, algorithm in entries.items()}))
        return
    for entry_name, algorithm in entries.items():
        text = _summarize(entry_name, algorithm) if name is None else _explain(algorithm)
        click.echo(f"{entry_name}\n  {algorithm.source}\n{text}\n")


def _record(algorithm: Entry) -> dict[str, Any]:
    return {
        "source": algorithm.source,
        "options": algorithm.defaults,
        "explained": read_key_docs(algorithm.options),
    }


def _summarize(name: str, algorithm: Entry) -> str:
    base = REGISTRY[BASE_ALGORITHM]
    inherits = name != BASE_ALGORITHM and issubclass(algorithm.options, base.options)
    inherited = base.defaults.keys() if inherits else ()
    options = [
        f"{key}={json.dumps(value)}" for key, value in algorithm.defaults.items() if key not in inherited
    ]
    return click.wrap_text(
        ", ".join([*([f"the options of {BASE_ALGORITHM}"] if inherits else []), *options]),
        OPTION_TEXT_WIDTH,
        "  ",
        "  ",
    )


def _explain(algorithm: Entry) -> str:
    docs = read_key_docs(algorithm.options)
    return "\n".join(
        f"\n  {key} = {json.dumps(value)}\n"
        + click.wrap_text(docs.get(key, ""), OPTION_TEXT_WIDTH, "    ", "    ")
        for key, value in algorithm.defaults.items()
    )
