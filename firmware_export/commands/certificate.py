"""`edgefl export verify` and `edgefl export profile`, and what `edgefl export --target` tells."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from edgefl.data.sources import DataSource
from edgefl.data.sources.options import add_data_options
from edgefl.errors import ExportError
from edgefl.system.progress import Progress
from firmware_export.certificate.certificate import CERTIFICATE_FILE
from firmware_export.certificate.parity import EQUAL
from firmware_export.codegen.c_source import LayerCost
from firmware_export.firmware.targets import TARGETS, find_target


@click.command(epilog="Example: edgefl export verify out/")
@click.argument("folder", type=click.Path(path_type=Path))
@add_data_options("Samples to measure on, for a folder without a certificate.", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print what was checked as JSON.")
def verify(folder: Path, source: DataSource | None, as_json: bool) -> None:
    """Build an export again from its files alone, run it again, and compare everything with its certificate.

    This compiles and runs what it verifies: C made from the folder's model, on this computer and in QEMU. It
    does so in temporary folders, with limits on memory, processor time and file size. The limits are no
    sandbox: verify a stranger's export in a virtual machine.

    A folder without one, such as DIR/clients/ID that `edgefl demo` left: its model.tflite and report.json are
    checked, and the accuracy where the device's samples are at hand.
    """
    from firmware_export.certificate.verify import verify_bundle
    from firmware_export.certificate.verify_report import verify_report

    if not folder.is_dir():
        raise ExportError(f"no directory {folder}; give what `edgefl export -o` wrote")
    with Progress() as progress:
        progress.update_live("building and running the export again")
        result = (
            verify_bundle(folder) if (folder / CERTIFICATE_FILE).exists() else verify_report(folder, source)
        )
    if as_json:
        click.echo(json.dumps({"folder": str(folder), **asdict(result)}, indent=1))
        return
    click.echo(
        "\n".join(
            [f"ok           {line}" for line in result.checked]
            + [f"not checked  {line}" for line in result.unchecked]
        )
    )


@click.command(epilog="Example: edgefl export profile out/")
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--target", help="Another core than the export's.")
@click.option("--json", "as_json", is_flag=True, help="Print the layers as JSON.")
def profile(folder: Path, target: str | None, as_json: bool) -> None:
    """RAM, flash and instructions of each layer, counted in QEMU; where the budget goes."""
    from firmware_export.certificate.verify import profile_bundle

    if target is not None:
        find_target(target)
    with Progress() as progress:
        progress.update_live("building the export, counting in QEMU")
        name, layers, budget = profile_bundle(folder, target)
    if as_json:
        click.echo(
            json.dumps(
                {"target": name, "budget": budget, "layers": [asdict(layer) for layer in layers]}, indent=1
            )
        )
        return
    click.echo(describe_layers(name, layers))


def describe_layers(target: str, layers: tuple[LayerCost, ...]) -> str:
    """Return a table of the layers with each one's share of all instructions."""
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
    """Return what a person wants to know of a certificate: who agrees, and what the model takes of its
    target.

    printed: warnings that the person has read already.
    """
    equal = [row["place"] for row in certificate["parity"] if row["status"] == EQUAL]
    lines = [
        f"{out / CERTIFICATE_FILE}: {certificate['golden']['samples']} samples, every output byte the same: "
        f"{', '.join(equal)}"
    ]
    lines += [f"WARNING: {warning}" for warning in certificate["warnings"] if warning not in printed]
    lines += [
        f"not run: {row['place']}: {row['reason']}" for row in certificate["parity"] if row["status"] != EQUAL
    ]
    for cost in certificate["cost"]:
        if cost["target"] == certificate["target"]:
            counted = (
                f", {cost['instructions_mean']:,} instructions an inference"
                if cost["instructions_mean"]
                else ""
            )
            ram = f"RAM {cost['ram_bytes']:,} and stack {cost['stack_bytes']:,}"
            lines.append(f"{cost['target']}: flash {cost['flash_bytes']:,} bytes, {ram}{counted}")
    if skipping := certificate["skipping"]:
        lines.append(
            f"experts under {certificate['threshold']:g} are skipped: accuracy "
            f"{skipping['accuracy_int8']:.4f}, the same answer in {skipping['agreement']:.1%}; "
            f"{skipping['instructions_all_run']:,} instructions when all run"
        )
    lines.append(f"TensorFlow Lite Micro's arena for it: {certificate['tflm']['arena_bytes']:,} bytes")
    if not TARGETS[certificate["target"]].is_host:
        lines.append(f"firmware: cd {out / 'firmware'} && cmake -B build && cmake --build build --target run")
    lines.append(
        f"{out} holds samples of the device (golden.npz, firmware/samples.bin): do not give these away"
    )
    return "\n".join(lines)
