"""`edgefl infer`, which needs no TensorFlow."""

import hashlib
import json
from pathlib import Path
from typing import Any

import click
import numpy as np

from edgefl.data.npz import make_shard_and_split
from edgefl.data.sources import DataSource, read_source
from edgefl.data.sources.options import add_data_options
from edgefl.data.split import SPLIT_METADATA_NAME, SplitRecord, decode_split
from edgefl.errors import ExportError
from edgefl.plan.tflite import read_metadata
from edgefl.system.progress import Progress
from firmware_export.certificate.bundle import MODEL_FILE, REPORT_JSON_FILE
from firmware_export.tflite.interpreter import MICRO_RUNTIME, load_tflite, measure_accuracy, run_samples

DIGEST_EQUAL = "equal"


@click.command(epilog="Example: edgefl infer model/model.tflite --data shard.npz")
@click.argument("model", type=click.Path(path_type=Path))
@add_data_options(
    "Samples, as `edgefl device start --data` takes them; those held out are measured.", required=True
)
@click.option(
    "--runtime",
    type=click.Choice(["auto", "litert", "tflite-runtime", MICRO_RUNTIME]),
    default="auto",
    show_default=True,
    help="auto: the one that is installed.",
)
@click.option(
    "--reference", is_flag=True, help="Reference kernels: slow, and near the bits of a microcontroller."
)
@click.option(
    "--split",
    type=click.Choice(["test", "train", "all"]),
    default="test",
    show_default=True,
    help="Which samples to run. All of them where the model does not say which ones were held out.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the figures as JSON.")
def infer(model: Path, source: DataSource, runtime: str, reference: bool, split: str, as_json: bool) -> None:
    """Run a .tflite over a shard: accuracy, latency, and the runtime that was used.

    The model's metadata tell by which rule and seed samples were held out. Where that does not fit these
    samples, all of them are run, and the answer says that the model may have been trained on some of them.
    """
    try:
        content = model.read_bytes()
    except OSError as error:
        raise ExportError(f"cannot read {model}: {error}; make it with `edgefl export`") from error
    loaded = load_tflite(content, runtime, reference=reference)
    checked = check_digest(model, content)
    model_split = decode_split(read_metadata(content, SPLIT_METADATA_NAME) or b"")
    arrays = read_source(source)
    shard, shard_split = make_shard_and_split(
        arrays, source.data, seed=model_split.seed if model_split else 1, input_shape=loaded.shape[1:]
    )
    unknown = explain_unknown_split(model_split, shard_split)
    if unknown and split == "train":
        raise ExportError(
            f"--split train: {unknown}, so the training samples are not known; give --split all"
        )
    split = "all" if unknown else split
    parts = {"test": [0], "train": [1], "all": [0, 1]}[split]
    x = np.concatenate([(shard.x_test, shard.x_train)[i] for i in parts])
    y = np.concatenate([(shard.y_test, shard.y_train)[i] for i in parts])
    with Progress() as progress:
        progress.update_live(f"running {len(x)} samples")
        answers, times = run_samples(loaded, x)
    if answers.ndim != 2 or answers.shape[1] <= y.max():
        raise ExportError(
            f"the model gives {answers.shape[1:]} values a sample, the shard's labels go to {y.max()}; is it "
            "another task?"
        )
    figures: dict[str, Any] = {
        "model": str(model),
        "runtime": loaded.runtime,
        "input": str(np.dtype(loaded.dtype)),
        "samples": len(y),
        "split": split,
        "split_unknown": unknown,
        "digest": checked,
        "accuracy": measure_accuracy(answers, y),
        "latency_ms_median": float(np.median(times)),
        "latency_ms_p90": float(np.percentile(times, 90)),
        "tflite_bytes": len(content),
    }
    click.echo(json.dumps(figures, indent=1) if as_json else _format_figures(figures))


def explain_unknown_split(model_split: SplitRecord | None, shard_split: SplitRecord) -> str:
    """Return why nobody can tell which of these samples the model was trained on, "" when the model's note
    tells it.
    """
    if model_split is None:
        return "the model does not say which samples were held out, or by a rule of another edgefl version"
    if model_split.allows_test_on(shard_split):
        return ""
    if model_split.rule != shard_split.rule:
        return f"the model's samples were held out by {model_split.rule}, these are by {shard_split.rule}"
    return (
        f"the model's device had {model_split.train + model_split.test} samples and held out "
        f"{model_split.test}, here are "
        f"{shard_split.train + shard_split.test}"
    )


def check_digest(model: Path, content: bytes) -> str:
    """Compare a model with the digest in the report.json beside it.

    Returns:
        What is known of the file: "equal", or why it cannot be checked.

    Raises:
        ExportError: The digest differs.
    """
    report = model.parent / REPORT_JSON_FILE
    if model.name != MODEL_FILE or not report.exists():
        return f"not checked: {REPORT_JSON_FILE} with its digest lies beside a {MODEL_FILE} only"
    try:
        expected = str(json.loads(report.read_bytes())["sha256"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        return f"not checked: {report} cannot be read ({error!r})"
    digest = hashlib.sha256(content).hexdigest()
    if digest != expected:
        raise ExportError(
            f"{model} is damaged, or of another export: its sha256 is {digest}, expected {expected} by "
            f"{report}; export again, or give it a folder of its own"
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
            "train": f"{f['samples']} samples that it was trained on",
            "all": f"all {f['samples']} samples; the model was trained on some of them",
        }[f["split"]]
    return (
        f"accuracy {f['accuracy']:.4f} on {which}\n"
        f"latency median {f['latency_ms_median']:.3f} ms, 90th percentile {f['latency_ms_p90']:.3f} ms\n"
        f"runtime {f['runtime']}; input {f['input']}; {f['tflite_bytes']:,} bytes"
        + (
            ""
            if f["digest"] == DIGEST_EQUAL
            else f"\nfile {f['digest']}, so damage to its weights would not show"
        )
    )
