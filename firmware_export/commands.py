"""`edgefl export` and `edgefl infer`: neither needs TensorFlow."""

import base64
import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import numpy as np

from edgefl.data.npz import make_shard
from edgefl.data.sources import DataSource, read_source
from edgefl.data.sources.options import data_options
from edgefl.data.split import METADATA_NAME, Split, decode_split, split_of
from edgefl.errors import ExportError
from edgefl.plan.tflite import read_metadata
from edgefl.system.progress import Telling
from firmware_export.certificate.budget import Budget
from firmware_export.certificate.bundle import (
    MODEL,
    NOTE,
    remove_derived,
    take_away_certificate,
    write_bundle,
)
from firmware_export.certificate.certificate import Request, check_measurable
from firmware_export.certificate.golden import choose
from firmware_export.certificate_commands import describe_certificate, profile, verify
from firmware_export.firmware.targets import find_target, parse_bytes
from firmware_export.ota.signing_key import read_public
from firmware_export.quantize.device_state import read_state
from firmware_export.quantize.options import quantization_options
from firmware_export.quantize.quantize import ExportReport, export_mixture
from firmware_export.quantize.routes import Options
from firmware_export.tflite.interpreter import MICRO, accuracy, load, outputs
from firmware_export.update_commands import drift, key, update

DIGEST_EQUAL = "equal"


@click.group(
    invoke_without_command=True,
    epilog="Example: edgefl export --state state -o out/ --target cortex-m4 --ram 64K --flash 256K",
)
@click.option("--state", type=click.Path(path_type=Path), help="What `edgefl device start --state` wrote.")
@click.option(
    "-o",
    "--out",
    type=click.Path(path_type=Path),
    help="Directory for model.tflite and report.json, with --target all else.",
)
@click.option("--target", help="Firmware too, with a certificate: cortex-m0, -m3, -m4, -m7, -m55, or host.")
@click.option("--ram", help="Bytes that the model may take of the target's RAM, its stack counted: 64K.")
@click.option("--flash", help="Bytes that the model may take of the target's flash: 256K.")
@click.option(
    "--update-key",
    type=click.Path(path_type=Path),
    help="Public key, of `edgefl export key`, that the firmware's updates are signed with.",
)
@click.option(
    "--samples",
    type=click.IntRange(1),
    default=1000,
    show_default=True,
    help="Held-out samples to compare, at most.",
)
@click.option(
    "--threshold",
    type=click.FloatRange(0, 1),
    default=0.0,
    show_default=True,
    help="Skip experts of a gate value under this.",
)
@data_options(
    "Other samples than those the device trained on; what `edgefl device start --data` takes.", required=False
)
@quantization_options
@click.option(
    "--json", "as_json", is_flag=True, help="Print the report as JSON; with --target, the certificate."
)
@click.pass_context
def export(
    ctx: click.Context,
    state: Path | None,
    out: Path | None,
    target: str | None,
    ram: str | None,
    flash: str | None,
    update_key: Path | None,
    samples: int,
    threshold: float,
    source: DataSource | None,
    quantization: Options,
    as_json: bool,
) -> None:
    """Quantize a device's mixture to int8, with its own samples, on the device itself.

    With --target, on a computer with a compiler: C99 source, files for TensorFlow Lite Micro, a firmware
    project, and a certificate that all give the same bytes. For the certificate the model's C is compiled and
    run, on this computer and in QEMU, in temporary folders and with limits on memory, processor time and file
    size (no sandbox). The folder then holds samples of the device (golden.npz, firmware/samples.bin): it is
    as private as these.
    """
    if ctx.invoked_subcommand is not None:
        return
    if state is None or out is None:
        raise click.UsageError(
            f"Missing option '{'--state' if state is None else '-o'}'; give both, --state DIR -o OUT.", ctx
        )
    request = None
    if target is not None:
        budget = Budget(parse_bytes(ram) if ram else 0, parse_bytes(flash) if flash else 0)
        request = Request(find_target(target).name, budget, threshold, _public(update_key))
        check_measurable(request)
        if quantization.bits != 8:
            raise ExportError(
                f"--target with --activations {quantization.bits}, expected 8: the C is of int8; leave out "
                "one of them"
            )
    elif ram or flash or threshold or update_key:
        raise ExportError(
            "--ram, --flash, --threshold and --update-key are of a target, and there is no --target; give "
            "one, such as --target cortex-m4"
        )
    device = read_state(state, source)
    if not device.has_digests:
        click.echo(
            f"WARNING: {state} is of an older edgefl and holds no digests: damage to its plan and mixture "
            "may not be noticed. The device writes them at its next personalization.",
            err=True,
        )
    if request is not None and update_key is not None:
        request = replace(request, update_device=device.client_id)
    shard, its_split = device.shard_with_split()
    old = take_away_certificate(out)
    with Telling() as tell:
        tell.at("quantizing, measuring")
        report = export_mixture(
            device.plan,
            device.mixture,
            shard,
            out,
            seed=device.seed,
            client_id=device.client_id,
            options=quantization,
            split=its_split,
        )
        certificate = None
        if request is not None:
            tell.doing(f"building for {request.target}, comparing with {samples} samples at most")
            certificate = write_bundle(out, *choose(shard, samples, device.seed), request, old)
    if request is None:
        remove_derived(out, old)
        click.echo(json.dumps(report.as_dict(), indent=1) if as_json else _describe(report, out))
        return
    if as_json:
        click.echo(json.dumps(certificate, indent=1))
        return
    click.echo(_describe(report, out))
    if certificate is not None:
        click.echo(describe_certificate(certificate, out, report.warnings))


for each in (verify, profile, key, update, drift):
    export.add_command(each)


def _public(path: Path | None) -> str:
    return base64.b64encode(read_public(path)).decode() if path else ""


def _describe(report: ExportReport, out: Path) -> str:
    kind = f"int{report.activation_bits}"
    lines = [
        f"{out / 'model.tflite'}: {kind}, {report.tflite_bytes:,} bytes (float {report.float_bytes:,})",
        f"accuracy on {report.num_test} {report.measured_on} samples: float {report.accuracy_float:.4f}, "
        f"{kind} {report.accuracy_int8:.4f}",
        f"recipe: {report.recipe} ({report.calibration_samples} calibration samples); measured with "
        f"{report.runtime}",
    ]
    if len(report.tried) > 1:
        tried = ", ".join(f"{a.recipe} {a.accuracy_int8:.4f}" for a in report.tried)
        lines.append(f"{kind} lost more than a point at first; tried: {tried}")
    lines += [f"WARNING: {warning}" for warning in report.warnings]
    if not report.within_one_point:
        loss = 100 * (report.accuracy_float - report.accuracy_int8)
        lines.append(
            f"WARNING: {kind} loses {loss:.1f} points after all remedies; the best model was kept. Collect "
            "more samples on this device."
        )
    return "\n".join(lines)


@click.command(epilog="Example: edgefl infer model/model.tflite --data shard.npz")
@click.argument("model", type=click.Path(path_type=Path))
@data_options(
    "Samples, as `edgefl device start --data` takes them; those held out are measured.", required=True
)
@click.option(
    "--runtime",
    type=click.Choice(["auto", "litert", "tflite-runtime", MICRO]),
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
    loaded = load(content, runtime, reference=reference)
    checked = check_digest(model, content)
    note = decode_split(read_metadata(content, METADATA_NAME) or b"")
    arrays = read_source(source)
    shard = make_shard(arrays, source.data, seed=note.seed if note else 1)
    unknown = why_unknown(note, split_of(arrays, shard, note.seed if note else 1))
    if unknown and split == "train":
        raise ExportError(
            f"--split train: {unknown}, so the training samples are not known; give --split all"
        )
    split = "all" if unknown else split
    parts = {"test": [0], "train": [1], "all": [0, 1]}[split]
    x = np.concatenate([(shard.x_test, shard.x_train)[i] for i in parts])
    y = np.concatenate([(shard.y_test, shard.y_train)[i] for i in parts])
    with Telling() as tell:
        tell.at(f"running {len(x)} samples")
        answers, times = outputs(loaded, x)
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
        "accuracy": accuracy(answers, y),
        "latency_ms_median": float(np.median(times)),
        "latency_ms_p90": float(np.percentile(times, 90)),
        "tflite_bytes": len(content),
    }
    click.echo(json.dumps(figures, indent=1) if as_json else _figures(figures))


def why_unknown(note: Split | None, here: Split) -> str:
    """Return why nobody can tell which of these samples the model was trained on, "" when the model's note
    tells it.
    """
    if note is None:
        return "the model does not say which samples were held out"
    if note.covers(here):
        return ""
    if note.rule != here.rule:
        return f"the model's samples were held out by {note.rule}, these are by {here.rule}"
    return (
        f"the model's device had {note.train + note.test} samples and held out {note.test}, here are "
        f"{here.train + here.test}"
    )


def check_digest(model: Path, content: bytes) -> str:
    """Compare a model with the digest in the report.json beside it.

    Returns:
        What is known of the file: "equal", or why it cannot be checked.

    Raises:
        ExportError: The digest differs.
    """
    report = model.parent / NOTE
    if model.name != MODEL or not report.exists():
        return f"not checked: {NOTE} with its digest lies beside a {MODEL} only"
    try:
        expected = str(json.loads(report.read_bytes())["sha256"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        return f"not checked: {report} cannot be read ({error!r})"
    found = hashlib.sha256(content).hexdigest()
    if found != expected:
        raise ExportError(
            f"{model} is damaged, or of another export: its sha256 is {found}, expected {expected} by "
            f"{report}; export again, or give it a folder of its own"
        )
    return DIGEST_EQUAL


def _figures(f: dict[str, Any]) -> str:
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
