"""The command `edgefl broker examples`: configurations of Telegraf, Prometheus, Grafana and Node-RED."""

import json
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path

import click

from edgefl.base.errors import ConfigError, StateError

EXAMPLE_DESCRIPTIONS = {
    "grafana/edgefl.json": "Grafana dashboard, to import or to load from a dashboard directory",
    "grafana/provisioning/dashboards/edgefl.yml": "the dashboard directory for Grafana",
    "grafana/provisioning/datasources/edgefl.yml": "the address of Prometheus for Grafana",
    "node-red/flow.json": "Node-RED flow, to import or to run with `node-red flow.json`",
    "prometheus/prometheus.yml": "scrape targets for Prometheus: the aggregator and Telegraf",
    "telegraf/telegraf.conf": "device statuses, metrics and round summaries for Prometheus",
}


def _read_texts(directory: Traversable, prefix: str = "") -> dict[str, str]:
    texts: dict[str, str] = {}
    for entry in directory.iterdir():
        name = prefix + entry.name
        texts |= (
            _read_texts(entry, f"{name}/") if entry.is_dir() else {name: entry.read_text(encoding="utf-8")}
        )
    return dict(sorted(texts.items()))


def read_examples() -> dict[str, str]:
    """Return the text of each example by its relative path."""
    return _read_texts(files("mqtt_broker.integrations") / "examples")


def write_examples(directory: Path) -> list[Path]:
    """Write all examples into a directory, and return their paths.

    Raises:
        ConfigError: a file already exists.
        StateError: a file cannot be written.
    """
    targets = {directory / name: text for name, text in read_examples().items()}
    existing = [path for path in targets if path.exists()]
    if existing:
        raise ConfigError(
            f"{existing[0]} already exists, and you may have changed it; pass another directory"
        )
    try:
        for path, text in targets.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")  # Readable by the other accounts that run these tools
    except OSError as error:
        raise StateError(
            f"cannot write {error.filename}: {error.strerror}; pass another directory"
        ) from error
    return list(targets)


@click.command("examples", short_help="Telegraf, Prometheus, Grafana and Node-RED.")
@click.argument("directory", type=click.Path(path_type=Path, file_okay=False))
@click.option("--json", "as_json", is_flag=True, help="Print the paths as JSON.")
def examples(directory: Path, as_json: bool) -> None:
    """Write example configurations of other tools that read a federation's messages.

    Change the files as needed. The command never overwrites a file.

    Example: edgefl broker examples examples
    """
    paths = write_examples(directory)
    if as_json:
        click.echo(json.dumps([str(path) for path in paths]))
        return
    for path in paths:
        click.echo(f"{path}: {EXAMPLE_DESCRIPTIONS[path.relative_to(directory).as_posix()]}")
