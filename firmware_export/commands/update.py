"""`edgefl export key`, `edgefl export update` and `edgefl export drift`, for firmware in the field."""

import json
from pathlib import Path
from typing import Any

import click

from edgefl.base.errors import ExportError
from edgefl.base.storage.device_directory import DeviceFiles
from edgefl.base.system.files import SECRET_MODE, write_atomic
from firmware_export.certificate.bundle import REPORT_JSON_FILE
from firmware_export.certificate.certificate import (
    CERTIFICATE_FILE,
    ExportRequest,
    read_certificate,
    read_request,
)
from firmware_export.ota.drift import DriftResult, GateUsage, as_values, measure_drift, read_counters
from firmware_export.ota.signing_key import make_signing_key, read_signer
from firmware_export.ota.update_package import (
    FirmwarePart,
    FirmwareParts,
    describe_update,
    make_update,
    read_update,
)

UPDATE_JSON_FILE = "update.json"
PATH_TYPE = click.Path(path_type=Path)


@click.command(epilog="Example: edgefl export key keys/updates")
@click.argument("path", type=PATH_TYPE)
def key(path: Path) -> None:
    """Make the key that signs updates.

    Firmware gets the public half, PATH.pub, from `edgefl export --update-key`.
    """
    click.echo(f"{path}: keep it secret; {make_signing_key(path)}: pass it to `edgefl export --update-key`")


@click.command(epilog="Example: edgefl export update old/ new/ --key keys/updates -o update.bin")
@click.argument("old", type=PATH_TYPE)
@click.argument("new", type=PATH_TYPE)
@click.option("--key", "key_file", type=PATH_TYPE, required=True, help="Private key of `edgefl export key`.")
@click.option("-o", "--out", type=PATH_TYPE, required=True, help="File for the update.")
@click.option(
    "--counter",
    type=click.IntRange(1),
    help="Number of the update. A device accepts only higher numbers.  [default: one more than OLD's]",
)
@click.option(
    "--device",
    help="Id of the device that accepts the update.  [default: the device from which NEW was exported]",
)
@click.option(
    "--all-devices",
    is_flag=True,
    help="Every device that trusts the key accepts the update. A personal model is for one device.",
)
@click.option("--json", "as_json", is_flag=True, help="Print what the update carries as JSON.")
def update(
    old: Path,
    new: Path,
    key_file: Path,
    out: Path,
    counter: int | None,
    device: str | None,
    all_devices: bool,
    as_json: bool,
) -> None:
    """Make a signed update from the export OLD to the export NEW, with only the parts that differ.

    OLD is the export that the firmware runs. Only the device from which NEW was exported accepts the update.
    The update's number is stored in NEW/update.json, and the next update from NEW continues from there.
    """
    if device is not None and (all_devices or not device):
        raise click.UsageError(
            "--device with --all-devices or without an id; use either --device ID or --all-devices"
        )
    sign = read_signer(key_file)
    receiver = "" if all_devices else device or _find_device(old, new)
    before = generate_parts(old)
    after = generate_parts(new)
    number = counter or read_counter(old) + 1
    model = _read_model(new)
    content = make_update(
        before,
        after,
        counter=number,
        sign=sign,
        answer=lambda x: _run_model(model, x),
        inputs=_count_input_bytes(model),
        device=receiver,
    )
    manifest = read_update(content)
    try:
        write_atomic(out, content, SECRET_MODE)
        write_atomic(new / UPDATE_JSON_FILE, json.dumps({"counter": number}).encode())
    except OSError as error:
        raise ExportError(f"cannot write the update: {error}; choose another directory") from error
    names = [part.name for part in after.parts]
    summary = {
        "update": str(out),
        "bytes": len(content),
        "counter": number,
        "layout": manifest.layout,
        "device": receiver or None,
        "carries": [
            name for name, (_, is_carried, _) in zip(names, manifest.entries, strict=True) if is_carried
        ],
        "parts": names,
    }
    click.echo(
        json.dumps(summary, indent=1)
        if as_json
        else f"{out}: {describe_update(manifest, names, len(content), receiver)}"
    )


@click.command(epilog="Example: edgefl export drift out/ counters.bin")
@click.argument("folder", type=PATH_TYPE)
@click.argument("counters", type=PATH_TYPE)
@click.option(
    "--state",
    type=PATH_TYPE,
    help="State directory in which to store the figures, so that the device publishes them with its metrics.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the figures as JSON.")
def drift(folder: Path, counters: Path, state: Path | None, as_json: bool) -> None:
    """Compare how a firmware uses its gate with the gate's use at export.

    COUNTERS is a file with the bytes of the firmware's `struct drift`. The use at export is measured on the
    golden samples of FOLDER.
    """
    from firmware_export.ota.gate_usage import measure_gate_usage

    try:
        now = read_counters(counters.read_bytes())
    except OSError as error:
        raise ExportError(
            f"cannot read {counters}: {error}; dump the firmware's struct drift to this file"
        ) from error
    before = measure_gate_usage(folder)
    result = measure_drift(now, before)
    if state:
        _save_figures(state, now, result)
    if as_json:
        click.echo(json.dumps({"now": as_values(now, result), "at_export": list(before.shares)}, indent=1))
        return
    for expert, (share, was) in enumerate(zip(now.shares, before.shares, strict=True)):
        click.echo(
            f"expert {expert}: share {share:.3f}, at export {was:.3f}; first in {now.chosen[expert]} of "
            f"{now.inferences} inferences"
        )
    click.echo(f"entropy {now.entropy_bits:.3f} bits, at export {before.entropy_bits:.3f}; {now.ties} ties")
    verdict = "DRIFTED: personalize again on new samples" if result.drifted else "no drift"
    click.echo(f"population stability index {result.psi:.3f}, by chance up to {result.noise:.3f}: {verdict}")


def _save_figures(state: Path, now: GateUsage, result: DriftResult) -> None:
    figures = {
        "drift_psi": result.psi,
        "drift_inferences": now.inferences,
        "drift_entropy_bits": now.entropy_bits,
        "drift_entropy_change_bits": result.entropy_change_bits,
        "drifted": float(result.drifted),
    }
    files = DeviceFiles(state)
    if not files.note.exists():
        raise ExportError(
            f"{state} is not a device's state: it has no {files.note.name}; pass the --state of `edgefl "
            "device start`"
        )
    try:
        write_atomic(files.field_figures, json.dumps(figures).encode(), SECRET_MODE)
    except OSError as error:
        raise ExportError(
            f"cannot write {files.field_figures}: {error}; pass the --state of `edgefl device start`"
        ) from error


def generate_parts(folder: Path) -> FirmwareParts:
    """Return the parts of an export's firmware, generated again from its model.tflite.

    Raises:
        ExportError: the model cannot be read or cannot become C.
    """
    from firmware_export.codegen.c_source import generate_c

    request = _read_request(folder)
    model = _read_model(folder)
    source = generate_c(model) if request is None else request.generate_source(model)
    return FirmwareParts(
        source.layout, tuple(FirmwarePart(name, source.images[name]) for name in source.parts)
    )


def read_counter(folder: Path) -> int:
    """Return the number of the update that installed this export.

    Returns:
        The number. 0 for an export that was flashed.

    Raises:
        ExportError: update.json is damaged.
    """
    try:
        return int(json.loads((folder / UPDATE_JSON_FILE).read_bytes())["counter"])
    except FileNotFoundError:
        return 0
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise ExportError(
            f"{folder / UPDATE_JSON_FILE} is damaged: {error!r}; set the number with --counter"
        ) from error


def _find_device(old: Path, new: Path) -> str:
    """Return the id of the device from which both exports were made."""
    ids = [_read_client_id(folder) for folder in (old, new)]
    if ids[0] != ids[1]:
        raise ExportError(
            f"{old} was exported from the device {ids[0]!r}, {new} from {ids[1]!r}, expected one device; "
            "set its id with --device, or use --all-devices for an update for every device"
        )
    return ids[1]


def _read_client_id(folder: Path) -> str:
    try:
        client_id = str(json.loads((folder / REPORT_JSON_FILE).read_bytes())["client_id"])
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise ExportError(
            f"{folder / REPORT_JSON_FILE} names no device: {error!r}; export again, or use --device ID or "
            "--all-devices"
        ) from error
    if not client_id:
        raise ExportError(
            f"{folder / REPORT_JSON_FILE} names no device; set its id with --device, or use --all-devices"
        )
    return client_id


def _read_model(folder: Path) -> bytes:
    try:
        return (folder / "model.tflite").read_bytes()
    except OSError as error:
        raise ExportError(
            f"cannot read the model of {folder}: {error}; pass a folder that `edgefl export -o` wrote"
        ) from error


def _read_request(folder: Path) -> ExportRequest | None:
    """Return the options of an export. None for an export without a certificate."""
    try:
        return read_request(read_certificate((folder / CERTIFICATE_FILE).read_bytes()))
    except FileNotFoundError:
        return None


def _count_input_bytes(model: bytes) -> int:
    from firmware_export.tflite.quantized_model import read_quantized_model

    network = read_quantized_model(model)
    return sum(network.get_tensor(index).size for index in network.inputs)


def _run_model(model: bytes, x: Any) -> Any:
    from firmware_export.certificate.tflm_runner import run_tflm

    return run_tflm(model, x)
