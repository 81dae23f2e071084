"""`edgefl personalize`: the model or the predictions of a client that took part in no round."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
import numpy as np

from edgefl.base.errors import ConfigError
from edgefl.base.names import check_client_id
from edgefl.base.storage.device_directory import DeviceFiles
from edgefl.base.system.files import to_json_value
from edgefl.base.system.format import align_columns, format_percent
from edgefl.base.system.progress import Progress
from edgefl.data.forms import has_label_arrays
from edgefl.data.sources import DataSource, load_samples_for_plan, read_source
from edgefl.data.sources.options import add_data_options
from edgefl.learning.personal_model import save_personal_model
from edgefl.program.plan.spec import read_samples_config


@click.command(short_help="Make a personal model for a client that took part in no round.")
@click.argument("run_path", metavar="RUN", type=click.Path(path_type=Path, file_okay=False))
@add_data_options("Samples of the new client, as for `edgefl device start --data`.", required=True)
@click.option("--id", "client_id", default="new-client", show_default=True, help="Id of the new client.")
@click.option(
    "--ignore-labels",
    is_flag=True,
    help="Predict as for samples without labels, and use the labels only to measure.",
)
@click.option(
    "-o",
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    help="New directory for the client's state, for `edgefl export --state`.",
)
@click.option("--json", "as_json", is_flag=True, help="Print figures and predictions as JSON.")
def personalize(
    run_path: Path,
    source: DataSource,
    client_id: str,
    ignore_labels: bool,
    out: Path | None,
    as_json: bool,
) -> None:
    """Make a personal model for a client that took part in no round, or predict without labels.

    RUN is the --out of a finished `edgefl simulate` or `edgefl aggregator start`. Samples with labels
    personalize the models of the federation, with any algorithm. The held-out samples are measured.

    Samples without labels work with the algorithm fedmix: the mean gate of the participants mixes the
    experts. Gates are private, so RUN is then a simulation, or the federation has gate = "federated".

    \b
    Examples:
      edgefl personalize runs/x --data new.npz -o new-client/
      edgefl personalize runs/x --data unlabelled.npz --json
    """
    from edgefl.simulation.runs import new_client
    from edgefl.simulation.runs.client_directories import save_client_samples

    check_client_id(client_id)
    if out is not None and out.exists() and any(out.iterdir()):
        raise ConfigError(f"{out} is in use, expected a new or empty directory; give another --out")
    run = new_client.open_finished_run(run_path)
    spec = run.plan.spec
    arrays = read_source(source, read_samples_config(spec))
    if ignore_labels or (spec.is_classification and not has_label_arrays(arrays)):
        if out is not None:
            raise ConfigError(
                "--out without labels: only labels give a client a gate, and so a model; add labels y and "
                "leave --ignore-labels out, or leave --out out"
            )
        gates = new_client.list_participant_gates(run)
        x, labels = new_client.read_all_samples(arrays, source, spec)
        with Progress() as progress:
            progress.update_live(f"predicting {len(x)} samples")
            classes, experts = new_client.predict_for_new_client(run, gates, x)
        predicted = classes.argmax(axis=1)
        accuracy = None if labels is None else float((predicted == labels).mean())
        figures: dict[str, Any] = {
            "id": client_id,
            "algorithm": spec.algorithm,
            "labels": False,
            "samples": len(x),
            "accuracy": accuracy,
            "gate": experts.mean(axis=0).tolist(),
            "predictions": predicted.tolist(),
        }
        click.echo(json.dumps(figures) if as_json else _format_unlabelled(figures))
        return
    loaded = load_samples_for_plan(source, spec, seed=run.config.seed)
    shard, split = loaded.shard, loaded.split
    for change in loaded.changes:
        click.echo(f"{source.data}: {change}", err=True)
    with Progress() as progress:
        progress.update_live(f"personalizing with {split.train} samples")
        mixture, metrics, predicted = new_client.personalize_new_client(run, client_id, shard)
    figures = {
        "id": client_id,
        "algorithm": spec.algorithm,
        "labels": True,
        "samples": int(metrics["n_test"]),
        **metrics,
        "predictions": predicted.tolist(),
    }
    if out is not None:
        save_client_samples(DeviceFiles(out), run.config, client_id, shard)
        save_personal_model(DeviceFiles(out), run.plan, mixture)
        figures["state"] = str(out)
    click.echo(json.dumps(to_json_value(figures)) if as_json else _format_labelled(figures))


def _format_labelled(figures: Mapping[str, Any]) -> str:
    from edgefl.base.verdict import MEASURES
    from edgefl.learning.client.selection import SHIPPED_MODELS

    shipped = SHIPPED_MODELS[int(figures["shipped"])]
    rows: list[tuple[str, ...]] = [("per cent", "", "", "")]
    for name, value in figures.items():
        measure, _, model = name.partition("_")
        if measure in MEASURES and model and model != "shipped":
            marker = "*" if model == shipped else ""
            rows.append((MEASURES[measure], model, format_percent(value, 2, ""), marker))
    lines = [
        f"{figures['id']}: {figures['algorithm']}, {figures['n_train'] + figures['n_validation']:.0f} "
        f"training samples, measured on {figures['samples']} held-out samples",
        align_columns(rows),
        "* the model of this client",
    ]
    if "state" in figures:
        lines.append(f"state in {figures['state']}: edgefl export --state {figures['state']} -o model/")
    return "\n".join(lines)


def _format_unlabelled(figures: Mapping[str, Any]) -> str:
    counts = np.bincount(figures["predictions"])
    shares = ", ".join(f"{share:.2f}" for share in figures["gate"])
    lines = [
        f"{figures['id']}: {figures['algorithm']}, samples without labels: {figures['samples']}",
        f"mean gate of the participants over the experts: {shares}",
        "predictions by class: " + ", ".join(f"{k}: {count}" for k, count in enumerate(counts) if count),
    ]
    if figures["accuracy"] is not None:
        lines[1:1] = [f"accuracy {figures['accuracy']:.4f}, by the labels that were ignored"]
    return "\n".join(lines)
