"""`edgefl export fleet`: an int8 model for every client of a simulation."""

import json
from pathlib import Path
from typing import Any

import click

from edgefl.base.errors import StateError
from edgefl.base.storage.device_directory import DeviceFiles
from edgefl.base.storage.run_directory import RunFiles
from edgefl.base.system.progress import Progress
from edgefl.base.verdict import DEFAULT_MEASURE, MEASURES
from firmware_export.quantize.device_state import read_state
from firmware_export.quantize.quantize import ExportReport, export_mixture


@click.command(short_help="Quantize the model of every client of a simulation.")
@click.argument("run", type=click.Path(path_type=Path, file_okay=False))
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per client, in one list.")
def fleet(run: Path, as_json: bool) -> None:
    """Quantize the model of every client of RUN into RUN/mixtures/CLIENT/model/.

    RUN is the directory of `edgefl simulate --mixtures`.

    \b
    Example:
      edgefl simulate federation.toml --out runs/x --mixtures
      edgefl export fleet runs/x
    """
    states = sorted(path.parent for path in RunFiles(run).mixtures.glob(f"*/{DeviceFiles.note.name}"))
    if not states:
        raise StateError(
            f"{run} contains no clients' models, expected those of `edgefl simulate --mixtures`; add "
            "--mixtures --resume to the command that made the run"
        )
    rows: list[dict[str, Any]] = []
    with Progress() as progress:
        for number, state in enumerate(states, 1):
            progress.update(f"client {number} of {len(states)}", number, len(states))
            device = read_state(state)
            samples = device.read_samples()
            report = export_mixture(
                device.plan,
                device.mixture,
                samples.shard,
                DeviceFiles(state).export,
                seed=device.seed,
                client_id=device.client_id,
                split=samples.split,
            )
            rows.append(
                {
                    "id": device.client_id,
                    **select_main_figure(report),
                    "tflite_bytes": report.tflite_bytes,
                    "recipe": report.recipe,
                }
            )
    if as_json:
        click.echo(json.dumps(rows))
        return
    name = next(key for key in rows[0] if key.endswith("_int8")).removesuffix("_int8")
    label = "" if name == DEFAULT_MEASURE else f"{MEASURES[name]} "
    for row in rows:
        click.echo(
            f"{row['id']}: {label}float {row[f'{name}_float']:.4f}, int8 {row[f'{name}_int8']:.4f}, "
            f"{row['tflite_bytes']:,} bytes"
        )
    count = len(rows)
    means = [sum(row[key] for row in rows) / count for key in (f"{name}_float", f"{name}_int8")]
    click.echo(f"mean of {count} clients: {label}float {means[0]:.4f}, int8 {means[1]:.4f}")


def select_main_figure(report: ExportReport) -> dict[str, float]:
    """Return the accuracy, AUC or R2 of both models, with `_float` and `_int8` behind its name.

    An anomaly task without anomalies among the measured samples has R2 only. A figure without samples is 0.
    """
    if report.task is None:
        return {
            "accuracy_float": report.accuracy_float or 0.0,
            "accuracy_int8": report.accuracy_int8 or 0.0,
        }
    name = "auc" if report.task.get("auc_int8") is not None else "r2"
    return {f"{name}_{kind}": report.task[f"{name}_{kind}"] or 0.0 for kind in ("float", "int8")}
