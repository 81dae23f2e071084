"""`edgefl export`, which does not need TensorFlow."""

import base64
import functools
import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from edgefl.base.errors import ExportError
from edgefl.base.system.format import format_percent
from edgefl.base.system.progress import Progress
from edgefl.data.sources import DataSource
from edgefl.data.sources.classes import read_class_list
from edgefl.data.sources.options import add_data_options
from firmware_export.certificate.budget import Budget
from firmware_export.certificate.bundle import remove_certificate, remove_derived_files, write_bundle
from firmware_export.certificate.certificate import ExportRequest, check_measurable
from firmware_export.certificate.golden import choose_golden_samples
from firmware_export.certificate.member_exports import (
    MemberExport,
    choose_member_count,
    describe_member_exports,
    measure_member_exports,
)
from firmware_export.codegen.c_source import OPTIMIZE_SPEED, check_labels
from firmware_export.codegen.prefix import DEFAULT_PREFIX, check_prefix
from firmware_export.commands.certificate import describe_certificate, make_target_progress, profile, verify
from firmware_export.commands.fleet import fleet
from firmware_export.commands.import_model import import_model, optimize_option
from firmware_export.commands.update import drift, key, update
from firmware_export.firmware.targets import find_target, parse_bytes, parse_count
from firmware_export.ota.signing_key import read_public_key
from firmware_export.quantize.device_state import read_state
from firmware_export.quantize.personal_model import list_exported_members
from firmware_export.quantize.quantize import MAX_LOSS_INCREASE, ExportReport, export_mixture
from firmware_export.quantize.routes import DEVICE_ROUTE, TENSORFLOW_ROUTE, QuantizationOptions
from firmware_export.quantize.task_figures import describe_task_figures, describe_threshold
from firmware_export.quantize.tune import Tuning

QUANTIZATION_OPTIONS = ("route", "activations", "weights", "qat", "prune", "cluster_weights", "tune_epochs")


def add_quantization_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the quantization options to a command, which receives `quantization: QuantizationOptions`."""

    @functools.wraps(command)
    def with_options(**parameters: Any) -> Any:
        chosen = {name: parameters.pop(name) for name in QUANTIZATION_OPTIONS}
        tuning = Tuning(
            prune=chosen["prune"],
            cluster=chosen["cluster_weights"],
            qat=chosen["qat"],
            epochs=chosen["tune_epochs"],
        )
        activations: Any = int(chosen["activations"])
        weights: Any = int(chosen["weights"])
        return command(
            quantization=QuantizationOptions(
                route=chosen["route"], bits=activations, tuning=tuning, dense=weights
            ),
            **parameters,
        )

    options = (
        click.option(
            "--route",
            type=click.Choice([DEVICE_ROUTE, TENSORFLOW_ROUTE]),
            default=DEVICE_ROUTE,
            show_default=True,
            help="Quantizer: on the device, or TensorFlow on a host.",
        ),
        click.option(
            "--activations",
            type=click.Choice(["8", "16"]),
            default="8",
            show_default=True,
            help="Bits of the activations. Weights have 8.",
        ),
        click.option(
            "--weights",
            type=click.Choice(["8", "4", "3"]),
            default="8",
            show_default=True,
            help="Bits of a large dense layer's weights in the C. With 3, they need 0.4 of the flash.",
        ),
        click.option("--qat", is_flag=True, help="Train quantization-aware first (route tensorflow)."),
        click.option(
            "--prune",
            type=float,
            default=0.0,
            help="Share of the weights that become zero (route tensorflow).",
        ),
        click.option(
            "--cluster-weights",
            type=int,
            default=0,
            help="Number of different values in each kernel, such as 16 (route tensorflow).",
        ),
        click.option(
            "--tune-epochs",
            type=int,
            default=3,
            show_default=True,
            help="Epochs over the training samples, for each tuning step.",
        ),
    )
    for option in reversed(options):
        with_options = option(with_options)
    return with_options


class ExportGroup(click.Group):
    """The group `edgefl export`. Its argument MODEL.tflite means `edgefl export tflite MODEL.tflite`."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the subcommand of the arguments, with its name and its own arguments."""
        if args and args[0].lower().endswith(".tflite"):
            args = [import_model.name or "", *args]
        return super().resolve_command(ctx, args)


@click.group(
    cls=ExportGroup,
    invoke_without_command=True,
    epilog="Example: edgefl export --state state -o out/ --target cortex-m4 --ram 64K --flash 256K",
)
@click.option(
    "--state", type=click.Path(path_type=Path), help="State directory of `edgefl device start --state`."
)
@click.option(
    "-o",
    "--out",
    type=click.Path(path_type=Path),
    help="Directory for model.tflite and report.json, and for all files of --target.",
)
@click.option(
    "--target",
    help="Also make firmware with a certificate, for cortex-m0, -m0plus, -m3, -m4, -m7, -m33, -m55, rv32imc, "
    "lx106 or host.",
)
@click.option("--ram", help="Maximum RAM of the model on the target, including its stack, such as 64K.")
@click.option("--flash", help="Maximum flash of the model on the target, such as 256K.")
@click.option(
    "--instructions",
    help="Maximum instructions of an inference on the target, such as 4M.",
)
@click.option(
    "--members",
    type=click.IntRange(1),
    help="Number of members of a blend to export: 1 for the model that the device would ship alone, more for "
    "those with the largest shares. Default: all. With --target it is 1, or as many as fit --ram, --flash "
    "and --instructions if all three are given.",
)
@click.option(
    "--update-key",
    type=click.Path(path_type=Path),
    help="Public key of `edgefl export key`, with which the firmware checks updates.",
)
@click.option(
    "--samples",
    type=click.IntRange(1),
    default=1000,
    show_default=True,
    help="Maximum number of held-out samples to compare.",
)
@click.option(
    "--threshold",
    type=click.FloatRange(0, 1),
    default=0.0,
    show_default=True,
    help="Skip experts with a gate value below this.",
)
@optimize_option
@click.option(
    "--prefix",
    default=DEFAULT_PREFIX,
    show_default=True,
    help="Prefix of the C symbols and files in the folder c, for a firmware with several models.",
)
@click.option(
    "--labels",
    type=click.Path(path_type=Path),
    help="Text file with the name of each class, one per line, for model.h.",
)
@add_data_options(
    "Samples to use instead of the device's, as for `edgefl device start --data`.",
    required=False,
    target_options=("--target-column",),
)
@add_quantization_options
@click.option(
    "--json", "as_json", is_flag=True, help="Print the report as JSON, or the certificate with --target."
)
@click.pass_context
def export(
    ctx: click.Context,
    state: Path | None,
    out: Path | None,
    target: str | None,
    ram: str | None,
    flash: str | None,
    instructions: str | None,
    members: int | None,
    update_key: Path | None,
    samples: int,
    threshold: float,
    optimize: str,
    prefix: str,
    labels: Path | None,
    source: DataSource | None,
    quantization: QuantizationOptions,
    as_json: bool,
) -> None:
    """Quantize the model that a device ships to int8, with its own samples, on the device itself.

    With --target, the folder also gets C99 source, files for TensorFlow Lite Micro and a firmware project. A
    certificate states that all of them compute the same bytes. For the certificate, the model's C is compiled
    and run, on this computer and in QEMU. This uses temporary folders, with limits on memory, processor time
    and file size. The limits are not a sandbox. The folder then contains samples of the device (golden.npz,
    firmware/samples.bin): keep it private.
    """
    if ctx.invoked_subcommand is not None:
        if ctx.invoked_subcommand == import_model.name and (state or out or target):
            raise click.UsageError(
                "Options stand before the model; put the model first: edgefl export MODEL.tflite -o OUT "
                "--target cortex-m4.",
                ctx,
            )
        return
    if state is None or out is None:
        raise click.UsageError(
            f"Missing option '{'--state' if state is None else '-o'}'; use both, --state DIR -o OUT.", ctx
        )
    request = None
    if target is not None:
        budget = Budget(
            ram_bytes=parse_bytes(ram) if ram else 0,
            flash_bytes=parse_bytes(flash) if flash else 0,
            instructions=parse_count(instructions) if instructions else 0,
        )
        request = ExportRequest(
            target=find_target(target).name,
            budget=budget,
            threshold=threshold,
            update_key=_encode_public_key(update_key),
            prefix=check_prefix(prefix),
            labels=() if labels is None else read_class_list(labels),
            optimize=optimize,
        )
        check_measurable(request)
        if quantization.bits != 8:
            raise ExportError(
                f"--target with --activations {quantization.bits}, expected 8: the C has int8 activations; "
                "leave out one of them"
            )
    elif (
        ram
        or flash
        or instructions
        or threshold
        or update_key
        or labels
        or prefix != DEFAULT_PREFIX
        or optimize != OPTIMIZE_SPEED
    ):
        raise ExportError(
            "--ram, --flash, --instructions, --threshold, --optimize, --prefix, --labels and --update-key "
            "need a target, but --target is missing; add one, such as --target cortex-m4"
        )
    device = read_state(state, source)
    if request is not None:
        check_labels(request.labels, [device.plan.spec.num_classes])
    if request is not None and update_key is not None:
        request = replace(request, update_device=device.client_id)
    device_samples = device.read_samples()
    shard = device_samples.shard
    for change in device_samples.changes:
        click.echo(f"{device.data.data}: {change}", err=True)

    def write_models(folder: Path, max_members: int) -> ExportReport:
        return export_mixture(
            device.plan,
            device.mixture,
            shard,
            folder,
            seed=device.seed,
            client_id=device.client_id,
            options=quantization,
            split=device_samples.split,
            max_members=max_members,
        )

    exports: tuple[MemberExport, ...] = ()
    names = list_exported_members(device.plan, device.mixture)
    if members and members > max(len(names), 1):
        shipped = f"ships a blend of {len(names)} models" if names else "ships one model"
        raise ExportError(
            f"--members is {members}, but {device.client_id} {shipped}, expected at most "
            f"{max(len(names), 1)}; lower --members, or leave it out"
        )
    old = remove_certificate(out)
    with Progress() as progress:
        if request is not None and len(names) > 1 and not members and not quantization.tuning.name:
            progress.update(f"measuring 1 to {len(names)} members of the blend for {request.target}")
            held_out = choose_golden_samples(shard, samples, device.seed)
            exports = measure_member_exports(write_models, names, *held_out, request)
            members = choose_member_count(exports, request.budget)
        progress.update_live("quantizing and measuring")
        report = write_models(out, members or (0 if request is None else 1))
        certificate = None
        if request is not None:
            progress.update(f"building for {request.target}, comparing up to {samples} samples")
            held_out = choose_golden_samples(shard, samples, device.seed)
            certificate = write_bundle(out, *held_out, request, old, make_target_progress(progress))
    if request is None:
        remove_derived_files(out, old)
        click.echo(json.dumps(report.as_dict(), indent=1) if as_json else _describe(report, out))
        return
    if as_json:
        click.echo(json.dumps(certificate, indent=1))
        return
    click.echo(_describe(report, out))
    if exports:
        score = "accuracy" if report.task is None else "R2"
        click.echo(describe_member_exports(exports, members or 1, score))
    if certificate is not None:
        click.echo(describe_certificate(certificate, out, report.warnings))


for subcommand in (import_model, verify, profile, key, update, drift, fleet):
    export.add_command(subcommand)


def _encode_public_key(path: Path | None) -> str:
    return base64.b64encode(read_public_key(path)).decode() if path else ""


def _describe(report: ExportReport, out: Path) -> str:
    kind = f"int{report.activation_bits}"
    lines = [
        f"{out / 'model.tflite'}: {kind}, {report.tflite_bytes:,} bytes (float {report.float_bytes:,})",
        *([f"shares of the blend: {_list_shares(report.members)}"] if report.members else []),
        *_describe_figures(report, kind),
        f"recipe: {report.recipe} ({report.calibration_samples} calibration samples); measured with "
        f"{report.runtime}",
    ]
    if report.held_out:
        lines.append(f"held-out samples: {report.held_out}")
    if len(report.tried) > 1:
        if report.task is None:
            tried = ", ".join(f"{a.recipe} {a.accuracy_int8:.4f}" for a in report.tried)
            first_is_enough = report.within_one_point and report.recipe == report.tried[0].recipe
            reason = "compared" if first_is_enough else f"{kind} lost more than a point at first; tried"
            lines.append(f"{reason}: {tried}")
        else:
            tried = ", ".join(f"{a.recipe} {a.loss_int8:.4g}" for a in report.tried)
            lines.append(f"the loss of {kind} grew too much at first; tried: {tried}")
    lines += [f"WARNING: {warning}" for warning in report.warnings]
    if report.accuracy_float is not None and report.accuracy_int8 is not None and not report.within_one_point:
        loss = 100 * (report.accuracy_float - report.accuracy_int8)
        lines.append(
            f"WARNING: {kind} loses {loss:.1f} points after all remedies; the best model was kept. Collect "
            "more samples on this device."
        )
    if report.task is not None and not report.task["within_limit"]:
        lines.append(
            f"WARNING: the {kind} model has a mean loss more than {MAX_LOSS_INCREASE:.0%} above the float "
            "model's after all remedies; the best model was kept. Collect more samples on this device."
        )
    return "\n".join(lines)


def _list_shares(members: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {format_percent(share)}" for name, share in members.items())


def _describe_figures(report: ExportReport, kind: str) -> list[str]:
    where = f"{report.num_test} {report.measured_on} samples"
    if report.task is None:
        return [f"accuracy on {where}: float {report.accuracy_float:.4f}, {kind} {report.accuracy_int8:.4f}"]
    lines = [f"figures of {where}:", *describe_task_figures(report.task, kind)]
    if report.anomaly is not None:
        lines.append(describe_threshold(report.anomaly))
    return lines
