"""`edgefl export verify`, `edgefl export profile`, and the output of `edgefl export --target`."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from edgefl.base.errors import ExportError
from edgefl.base.system.progress import Progress
from edgefl.data.sources import DataSource
from edgefl.data.sources.options import add_data_options
from firmware_export.certificate.board import (
    BOARD_REPORT_FILE,
    DEFAULT_BOARD_SAMPLES,
    describe_board_report,
    verify_on_board,
)
from firmware_export.certificate.certificate import CERTIFICATE_FILE, DEVICE_INPUTS, RANDOM_INPUTS
from firmware_export.certificate.parity import EQUAL, TargetProgress, describe_equal_outputs
from firmware_export.codegen.c_source import LayerCost
from firmware_export.firmware.latency import format_milliseconds_range
from firmware_export.firmware.serial_link import open_serial_port
from firmware_export.firmware.targets import TARGETS, find_target

BOARD_OPTIONS = ("baud", "samples", "board", "report_file")
"""Parameters of `verify` that only --serial uses."""


@click.command(epilog="Example: edgefl export verify out/")
@click.argument("folder", type=click.Path(path_type=Path))
@add_data_options("Samples to measure on, for a folder without a certificate.", required=False)
@click.option(
    "--serial",
    "port",
    help="Serial port of a board that runs the export's self-test, such as /dev/ttyACM0. Only the board is "
    "checked.",
)
@click.option("--baud", type=click.IntRange(1), default=115200, show_default=True, help="Rate of --serial.")
@click.option(
    "--samples",
    type=click.IntRange(1),
    default=DEFAULT_BOARD_SAMPLES,
    show_default=True,
    help="Maximum number of golden inputs that --serial sends.",
)
@click.option("--board", default="", help="Name of the board for the report.  [default: what it says]")
@click.option(
    "--report",
    "report_file",
    type=click.Path(path_type=Path),
    help=f"File for the report of --serial.  [default: {BOARD_REPORT_FILE} in FOLDER]",
)
@click.option("--json", "as_json", is_flag=True, help="Print what was checked as JSON.")
@click.pass_context
def verify(
    ctx: click.Context,
    folder: Path,
    source: DataSource | None,
    port: str | None,
    baud: int,
    samples: int,
    board: str,
    report_file: Path | None,
    as_json: bool,
) -> None:
    """Build and run an export again from its files, and compare it with its certificate.

    This compiles and runs C that is made from the folder's model, on this computer and in QEMU. It uses
    temporary folders, with limits on memory, processor time and file size. The limits are not a sandbox:
    verify an export from a stranger in a virtual machine.

    A folder without a certificate is checked as far as possible, for example DIR/clients/ID of `edgefl demo`:
    its model.tflite, its report.json, and the accuracy if the device's samples are available.

    With --serial, the golden inputs are sent to a board that runs the program in c/examples/selftest. Its
    outputs are compared, and its time per inference is measured. The report contains no samples.
    """
    from firmware_export.certificate.verify import verify_bundle
    from firmware_export.certificate.verify_report import verify_report

    if not folder.is_dir():
        raise ExportError(f"no directory {folder}; pass a folder that `edgefl export -o` wrote")
    used = [name for name in BOARD_OPTIONS if ctx.get_parameter_source(name) == ParameterSource.COMMANDLINE]
    if port is None and used:
        option = "--report" if used[0] == "report_file" else f"--{used[0]}"
        raise click.UsageError(f"{option} needs --serial PORT; add it, or leave {option} out.", ctx)
    if port is not None:
        file = report_file or folder / BOARD_REPORT_FILE
        with open_serial_port(port, baud) as opened, Progress() as progress:
            progress.update_live(f"waiting for the board at {port}")
            report = verify_on_board(
                folder,
                opened,
                samples,
                file,
                board,
                lambda done, total: progress.update(f"sample {done} of {total}", done, total),
            )
        click.echo(json.dumps(report, indent=1) if as_json else describe_board_report(report, file))
        return
    with Progress() as progress:
        progress.update_live("building and running the export again")
        result = (
            verify_bundle(folder, make_target_progress(progress))
            if (folder / CERTIFICATE_FILE).exists()
            else verify_report(folder, source)
        )
    if as_json:
        click.echo(json.dumps({"folder": str(folder), **asdict(result)}, indent=1))
        return
    click.echo(
        "\n".join(
            [f"ok           {line}" for line in result.checked]
            + [f"warning      {line}" for line in result.warnings]
            + [f"not checked  {line}" for line in result.unchecked]
        )
    )


@click.command(epilog="Example: edgefl export profile out/")
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--target", help="Name of the core.  [default: the target of the export]")
@click.option("--json", "as_json", is_flag=True, help="Print the layers as JSON.")
def profile(folder: Path, target: str | None, as_json: bool) -> None:
    """Show RAM, flash and instructions of each layer, counted in QEMU."""
    from firmware_export.certificate.verify import profile_bundle

    if target is not None:
        find_target(target)
    with Progress() as progress:
        progress.update_live("building the export and counting instructions in QEMU")
        name, layers, budget = profile_bundle(folder, target)
    if as_json:
        click.echo(
            json.dumps(
                {"target": name, "budget": budget, "layers": [asdict(layer) for layer in layers]}, indent=1
            )
        )
        return
    click.echo(describe_layers(name, layers))


def make_target_progress(progress: Progress) -> TargetProgress:
    """Return a callback that shows how many targets are finished."""
    return lambda done, total: progress.update_live(f"compared {done} of {total} targets", done, total)


def describe_layers(target: str, layers: tuple[LayerCost, ...]) -> str:
    """Return a table of the layers, with the share of each one in all instructions.

    Args:
        target: name of the target.
        layers: the layers with their instructions, from `profile_bundle`.
    """
    total = sum(layer.instructions for layer in layers)
    width = max((len(layer.name) for layer in layers), default=5)
    op = max((len(layer.op) for layer in layers), default=8)
    part = max((len(layer.part) for layer in layers), default=4)
    lines = [
        f"{target}: instructions of an inference, bytes of weights (flash), bytes of output (RAM, shared "
        "with other layers)",
        f"{'layer':{width}} {'operator':{op}} {'part':{part}} {'instructions':>12} {'share':>6} {'flash':>8} "
        f"{'RAM':>7}",
    ]
    for layer in layers:
        share = layer.instructions / total if total else 0.0
        lines.append(
            f"{layer.name:{width}} {layer.op:{op}} {layer.part:{part}} {layer.instructions:12,} {share:6.1%} "
            f"{layer.weight_bytes:8,} {layer.output_bytes:7,}"
        )
    weights = sum(layer.weight_bytes for layer in layers)
    lines.append(f"{'all':{width}} {'':{op}} {'':{part}} {total:12,} {'':6} {weights:8,}")
    return "\n".join(lines)


def describe_certificate(certificate: Mapping[str, Any], out: Path, printed: Sequence[str] = ()) -> str:
    """Return a summary of a certificate: the targets with equal outputs, and the resources of the model.

    Args:
        out: folder of the export.
        printed: warnings that were printed before and are left out.
    """
    equal = {row["place"]: row["samples"] for row in certificate["parity"] if row["status"] == EQUAL}
    golden = certificate["golden"]
    noun = "random inputs" if golden["inputs"] == RANDOM_INPUTS else "samples"
    lines = [f"{out / CERTIFICATE_FILE}: {describe_equal_outputs(equal, noun)}"]
    lines += [f"WARNING: {warning}" for warning in certificate["warnings"] if warning not in printed]
    lines += [
        f"not run: {row['place']}: {row['reason']}" for row in certificate["parity"] if row["status"] != EQUAL
    ]
    for cost in certificate["cost"]:
        if cost["target"] == certificate["target"]:
            counted = (
                f", {cost['instructions_mean']:,} instructions per inference"
                if cost["instructions_mean"]
                else ""
            )
            ram = f"RAM {cost['ram_bytes']:,} and stack {cost['stack_bytes']:,}"
            lines.append(f"{cost['target']}: flash {cost['flash_bytes']:,} bytes, {ram}{counted}")
    lines += [
        f"{estimate['board']} at {estimate['mhz']} MHz: "
        f"{format_milliseconds_range(estimate['ms_low'], estimate['ms_high'])} (estimate from instructions; "
        "nothing was run on this board)"
        for estimate in certificate["estimates"]
        if estimate["target"] == certificate["target"]
    ]
    if skipping := certificate["skipping"]:
        lines.append(
            f"experts with a gate value below {certificate['threshold']:g} are skipped: accuracy "
            f"{skipping['accuracy_int8']:.4f}, the same answer in {skipping['agreement']:.1%}; "
            f"{skipping['instructions_all_run']:,} instructions when all experts run"
        )
    state = certificate["arena"].get("state_bytes", 0)
    lines.append(
        f"arena with input and output: {certificate['arena']['bytes']:,} bytes; "
        + (f"state between inferences: {state:,} bytes; " if state else "")
        + "at most "
        f"{certificate['arena']['bound_bytes']:,} live at the same time; TensorFlow Lite Micro's arena: "
        f"{certificate['tflm']['arena_bytes']:,} bytes"
    )
    if not TARGETS[certificate["target"]].is_host:
        lines.append(f"firmware: cd {out / 'firmware'} && cmake -B build && cmake --build build --target run")
    if golden["inputs"] != RANDOM_INPUTS:
        whose = " of the device" if golden["inputs"] == DEVICE_INPUTS else ""
        lines.append(f"{out} contains samples{whose} (golden.npz, firmware/samples.bin): keep it private")
    return "\n".join(lines)
