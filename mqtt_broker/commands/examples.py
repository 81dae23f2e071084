"""`edgefl broker examples`: configurations of Telegraf, Prometheus, Grafana and Node-RED that read a
federation's messages.
"""

import json
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path

import click

from edgefl.errors import ConfigError, StateError

EXAMPLE_DESCRIPTIONS = {
    "grafana/edgefl.json": "a dashboard: import it, or have Grafana load it from its folder of dashboards",
    "grafana/provisioning/dashboards/edgefl.yml": "tells Grafana which folder that is",
    "grafana/provisioning/datasources/edgefl.yml": "tells Grafana where Prometheus is",
    "node-red/flow.json": "a flow: import it, or node-red flow.json",
    "prometheus/prometheus.yml": "what Prometheus asks: the aggregator and Telegraf",
    "telegraf/telegraf.conf": "what boards say of themselves, for Prometheus",
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
    """Return the text of each example by its path below the directory."""
    return _read_texts(files("mqtt_broker.integrations") / "examples")


def write_examples(directory: Path) -> list[Path]:
    """Write all examples into a directory.

    Raises:
        ConfigError: a file already exists.
        StateError: the disk does not accept the files.
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
            path.write_text(text, encoding="utf-8")  # not with mode 0600: other accounts run these programs
    except OSError as error:
        raise StateError(
            f"cannot write {error.filename}: {error.strerror}; give another directory"
        ) from error
    return list(targets)


@click.command("examples", short_help="Telegraf, Prometheus, Grafana and Node-RED.")
@click.argument("directory", type=click.Path(path_type=Path, file_okay=False))
@click.option("--json", "as_json", is_flag=True, help="Print the paths as JSON.")
def examples(directory: Path, as_json: bool) -> None:
    """Write configurations of other tools that read a federation's messages, to be changed and kept.

    Example: edgefl broker examples examples
    """
    paths = write_examples(directory)
    if as_json:
        click.echo(json.dumps([str(path) for path in paths]))
        return
    for path in paths:
        click.echo(f"{path}: {EXAMPLE_DESCRIPTIONS[path.relative_to(directory).as_posix()]}")
