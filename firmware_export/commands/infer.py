"""`edgefl infer`, which does not need TensorFlow."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
import numpy as np

from edgefl.base.errors import ExportError
from edgefl.base.system.progress import Progress
from edgefl.base.tasks.config import ANOMALY, TaskConfig
from edgefl.base.tasks.detector import ModelTask
from edgefl.base.types import Array, Shard
from edgefl.data.sources import DataSource
from edgefl.data.sources.options import add_data_options
from edgefl.data.split import SPLIT_METADATA_NAME, SplitRecord, decode_split
from edgefl.data.task_form import check_anomaly_labels, find_anomalies
from edgefl.program.plan.tflite import read_metadata
from firmware_export.certificate.bundle import MODEL_FILE, REPORT_JSON_FILE
from firmware_export.quantize.anomaly import load_detector, read_model_task
from firmware_export.quantize.task_figures import FIGURE_NAMES, measure_detector, measure_model
from firmware_export.tflite.interpreter import (
    MICRO_RUNTIME,
    LoadedModel,
    dequantize_output,
    load_tflite,
    measure_accuracy,
    quantize_input,
    run_samples,
)
from firmware_export.tflite.model_samples import load_model_samples

DIGEST_EQUAL = "equal"


@click.command(epilog="Example: edgefl infer model/model.tflite --data shard.npz")
@click.argument("model", type=click.Path(path_type=Path))
@add_data_options(
    "Samples, as for `edgefl device start --data`. Held-out samples are measured.", required=True
)
@click.option(
    "--runtime",
    type=click.Choice(["auto", "litert", "tflite-runtime", MICRO_RUNTIME]),
    default="auto",
    show_default=True,
    help="Runtime. auto chooses an installed one.",
)
@click.option(
    "--reference",
    is_flag=True,
    help="Use the reference kernels, which are slow and compute nearly like a microcontroller.",
)
@click.option(
    "--split",
    type=click.Choice(["test", "train", "all"]),
    default="test",
    show_default=True,
    help="Samples to run. All of them if the model does not record which ones were held out.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the figures as JSON.")
def infer(model: Path, source: DataSource, runtime: str, reference: bool, split: str, as_json: bool) -> None:
    """Run a .tflite on a shard and print its accuracy, its latency and the runtime.

    For a model of a regression, the figures are R2 and the mean absolute error. For a model that finds
    anomalies, they are AUC and what its threshold does.

    Samples are read in the unit of the model, which `edgefl export` records in its metadata. For a model
    without this record, --scale states the unit.

    The model's metadata contain the rule and the seed by which samples were held out. If they do not fit
    these samples, all samples are run. The output then says that the model may have been trained on some of
    them.
    """
    try:
        content = model.read_bytes()
    except OSError as error:
        raise ExportError(f"cannot read {model}: {error}; make it with `edgefl export`") from error
    loaded = load_tflite(content, runtime, reference=reference)
    checked = check_digest(model, content)
    model_split = decode_split(read_metadata(content, SPLIT_METADATA_NAME) or b"")
    task = read_model_task(content)
    samples = load_model_samples(
        source, content, loaded, seed=model_split.seed if model_split else 1, any_task=task is not None
    )
    for change in samples.changes:
        click.echo(f"{source.data}: {change}", err=True)
    shard, shard_split = samples.shard, samples.split
    unknown = explain_unknown_split(model_split, shard_split)
    if unknown and split == "train":
        raise ExportError(f"--split train: {unknown}, so the training samples are unknown; use --split all")
    split = "all" if unknown else split
    parts = {"test": [0], "train": [1], "all": [0, 1]}[split]
    x = np.concatenate([(shard.x_test, shard.x_train)[i] for i in parts])
    y = np.concatenate([_list_labels(shard, task)[i] for i in parts])
    with Progress() as progress:
        progress.update_live(f"running {len(x)} samples")
        answers, times = run_samples(loaded, x)
    if task is None and (answers.ndim != 2 or answers.shape[1] <= y.max()):
        raise ExportError(
            f"the model gives {answers.shape[1:]} values per sample, the shard's labels go up to {y.max()}; "
            "is it a shard of another task?"
        )
    figures: dict[str, Any] = {
        "model": str(model),
        "runtime": loaded.runtime,
        "input": str(np.dtype(loaded.dtype)),
        "samples": len(y),
        "split": split,
        "split_unknown": unknown,
        "digest": checked,
        **_measure(content, loaded, task, x, y, answers, shard.has_labels),
        "latency_ms_median": float(np.median(times)),
        "latency_ms_p90": float(np.percentile(times, 90)),
        "tflite_bytes": len(content),
    }
    click.echo(json.dumps(figures, indent=1) if as_json else _format_figures(figures))


def _list_labels(shard: Shard, task: ModelTask | None) -> tuple[Any, Any]:
    """Return the test and the training labels: classes, values to predict, or whether each is an anomaly."""
    if task is None:
        return shard.y_test, shard.y_train
    if task.is_anomaly:
        check_anomaly_labels(shard.target_train, shard.target_test)
        config = TaskConfig(kind=ANOMALY, anomalies=task.anomalies)
        return find_anomalies(shard.y_test, config), find_anomalies(shard.y_train, config)
    if not shard.has_labels:
        raise ExportError(
            "the samples have no labels y, expected numbers to predict; add y, or for CSV pass --target"
        )
    if shard.target_train is None:
        return shard.y_test[:, None], shard.y_train[:, None]
    return shard.target_test, shard.target_train


def _measure(
    content: bytes,
    loaded: LoadedModel,
    task: ModelTask | None,
    x: Array,
    y: Any,
    answers: Any,
    has_labels: bool,
) -> dict[str, Any]:
    """Return the figures of the model's task. Without labels nobody knows which samples are anomalies."""
    if task is None:
        return {"accuracy": measure_accuracy(answers, y)}
    outputs = dequantize_output(loaded, answers)
    targets = x.reshape(len(x), -1) if task.is_anomaly else y
    if targets.shape != outputs.shape:
        raise ExportError(
            f"the model gives {outputs.shape[1:]} values per sample, the shard has {targets.shape[1:]} to "
            "predict; is it a shard of another task?"
        )
    if not task.is_anomaly:
        return {"task": task.kind, **measure_model(task.loss, outputs, targets)}
    if not loaded.scale:
        return {"task": task.kind, **measure_model(task.loss, outputs, targets, y if has_labels else None)}
    detector = load_detector(content, loaded)
    scores = detector.score(quantize_input(loaded, x), answers)
    figures = {
        "task": task.kind,
        **measure_model(task.loss, outputs, targets, y if has_labels else None, scores),
        "threshold": detector.threshold,
        "alarms": int(detector.is_alarm(scores).sum()),
    }
    return figures | measure_detector(detector, scores, y) if has_labels else figures


def _format_task_figures(figures: Mapping[str, Any]) -> list[str]:
    shown = [
        f"{name} {figures[key]:.4f}" for key, name in FIGURE_NAMES.items() if figures.get(key) is not None
    ]
    if "threshold" not in figures:
        return [", ".join(shown)]
    rates = [
        f"{key.replace('_', ' ')} {figures[key]:.4f}"
        for key in ("false_alarm_rate", "precision", "recall")
        if figures.get(key) is not None
    ]
    alarms = f"{figures['alarms']} alarms above the threshold {figures['threshold']:,}"
    return [", ".join(shown), ", ".join([alarms, *rates])]


def explain_unknown_split(model_split: SplitRecord | None, shard_split: SplitRecord) -> str:
    """Return why the model's training samples are unknown.

    Args:
        model_split: the record in the model's metadata. None if it has no readable record.

    Returns:
        The reason. Empty if the model's record fits the shard.
    """
    if model_split is None:
        return "the model has no record of its held-out samples, or a rule of another edgefl version"
    if model_split.allows_test_on(shard_split):
        return ""
    if model_split.rule != shard_split.rule:
        return f"the model's samples were held out by {model_split.rule}, this shard's by {shard_split.rule}"
    return (
        f"the model's device had {model_split.train + model_split.test} samples and held out "
        f"{model_split.test}, this shard has {shard_split.train + shard_split.test}"
    )


def check_digest(model: Path, content: bytes) -> str:
    """Compare a model with the digest in the report.json of its folder.

    Args:
        content: the bytes of that file.

    Returns:
        "equal", or the reason why the digest cannot be checked.

    Raises:
        ExportError: the digest differs.
    """
    report = model.parent / REPORT_JSON_FILE
    if model.name != MODEL_FILE or not report.exists():
        return f"not checked: only a {MODEL_FILE} has a {REPORT_JSON_FILE} with its digest in the same folder"
    try:
        expected = str(json.loads(report.read_bytes())["sha256"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        return f"not checked: {report} cannot be read ({error!r})"
    digest = hashlib.sha256(content).hexdigest()
    if digest != expected:
        raise ExportError(
            f"{model} is damaged, or from another export: its sha256 is {digest}, expected {expected} by "
            f"{report}; export again, or move it to a separate folder"
        )
    return DIGEST_EQUAL


def _format_figures(f: dict[str, Any]) -> str:
    if f["split_unknown"]:
        which = (
            f"all {f['samples']} samples; the model may have been trained on some of them: "
            f"{f['split_unknown']}"
        )
    else:
        which = {
            "test": f"{f['samples']} held-out samples (test)",
            "train": f"{f['samples']} training samples",
            "all": f"all {f['samples']} samples; the model was trained on some of them",
        }[f["split"]]
    if "accuracy" in f:
        first = f"accuracy {f['accuracy']:.4f} on {which}"
    else:
        first = "\n".join([*_format_task_figures(f), f"measured on {which}"])
    return (
        f"{first}\n"
        f"latency median {f['latency_ms_median']:.3f} ms, 90th percentile {f['latency_ms_p90']:.3f} ms\n"
        f"runtime {f['runtime']}; input {f['input']}; {f['tflite_bytes']:,} bytes"
        + (
            ""
            if f["digest"] == DIGEST_EQUAL
            else f"\nfile {f['digest']}, so damage to its weights would go unnoticed"
        )
    )
