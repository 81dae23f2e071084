"""`edgefl models`: lists the models. Does not need TensorFlow."""

import json
from typing import Any

import click

from edgefl.program.models.zoo.catalog import list_models, read_model_defaults


@click.command(short_help="List the models and their options.", epilog="Example: edgefl models --json")
@click.option("--json", "as_json", is_flag=True, help="Print the list as JSON.")
def models(as_json: bool) -> None:
    """List the models with name, source and options. The options go into the table `[model]` of a
    configuration.

    A `.keras` file or `module:function` can be used instead of a name.
    """
    models_by_name = {
        name: {"source": source, "options": dict(read_model_defaults(name))}
        for name, source in list_models().items()
    }
    click.echo(
        json.dumps(models_by_name, indent=1)
        if as_json
        else "\n".join(_describe(name, model) for name, model in models_by_name.items())
    )


def _describe(name: str, model: dict[str, Any]) -> str:
    options = ", ".join(f"{key} = {json.dumps(value)}" for key, value in model["options"].items())
    return f"{name}\n  {model['source']}" + (f"\n  options: {options}" if options else "")
