"""`edgefl export key`, `edgefl export update` and `edgefl export drift`: what comes after a firmware was
flashed.
"""

import json
from pathlib import Path
from typing import Any

import click

from edgefl.errors import ExportError
from edgefl.storage.device_directory import DeviceFiles
from edgefl.system.files import SECRET, write_atomic
from firmware_export.ota.drift import Drift, Usage, as_values, compare, read_counters
from firmware_export.ota.ota import Part, Parts, describe, make_update, read_update
from firmware_export.ota.signing_key import make_key, read_signer

NOTE = "update.json"
REPORT = "report.json"
PATH = click.Path(path_type=Path)


@click.command(epilog="Example: edgefl export key keys/updates")
@click.argument("path", type=PATH)
def key(path: Path) -> None:
    """Make the key that signs updates; firmware gets its public half, PATH.pub, by `edgefl export
    --update-key`.
    """
    click.echo(f"{path}: keep it secret; {make_key(path)}: give it to `edgefl export --update-key`")


@click.command(epilog="Example: edgefl export update old/ new/ --key keys/updates -o update.bin")
@click.argument("old", type=PATH)
@click.argument("new", type=PATH)
@click.option("--key", "key_file", type=PATH, required=True, help="The private key, of `edgefl export key`.")
@click.option("-o", "--out", type=PATH, required=True, help="File for the update.")
@click.option(
    "--counter",
    type=click.IntRange(1),
    help="Number of the update; a device takes only higher ones.  [default: one more than OLD's]",
)
@click.option(
    "--device",
    help="Id of the device that takes the update.  [default: the device that NEW was exported from]",
)
@click.option(
    "--all-devices",
    is_flag=True,
    help="Every device that trusts the key takes the update. A personal model is for one device.",
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
    """Make a signed update from the export OLD, which a firmware runs, to the export NEW: only the parts that
    differ.

    Only the device that NEW was exported from takes it. The update's number is kept in NEW/update.json, so
    that the next update from NEW goes on from there.
    """
    if device is not None and (all_devices or not device):
        raise click.UsageError(
            "--device with --all-devices or without an id; give --device ID or --all-devices"
        )
    sign = read_signer(key_file)
    receiver = "" if all_devices else device or _device_of(old, new)
    before = parts_of(old)
    after = parts_of(new)
    number = counter or counter_of(old) + 1
    model = _model(new)
    content = make_update(
        before,
        after,
        counter=number,
        sign=sign,
        answer=lambda x: _answers(model, x),
        inputs=_input_bytes(model),
        device=receiver,
    )
    manifest = read_update(content)
    try:
        write_atomic(out, content)
        write_atomic(new / NOTE, json.dumps({"counter": number}).encode())
    except OSError as error:
        raise ExportError(f"cannot write the update: {error}; choose another place") from error
    names = [part.name for part in after.parts]
    told = {
        "update": str(out),
        "bytes": len(content),
        "counter": number,
        "layout": manifest.layout,
        "device": receiver or None,
        "carries": [name for name, (_, taken, _) in zip(names, manifest.entries, strict=True) if taken],
        "parts": names,
    }
    click.echo(
        json.dumps(told, indent=1)
        if as_json
        else f"{out}: {describe(manifest, names, len(content), receiver)}"
    )


@click.command(epilog="Example: edgefl export drift out/ counters.bin")
@click.argument("folder", type=PATH)
@click.argument("counters", type=PATH)
@click.option(
    "--state",
    type=PATH,
    help="Also leave the figures here, for the device that made the mixture to publish with its metrics.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the figures as JSON.")
def drift(folder: Path, counters: Path, state: Path | None, as_json: bool) -> None:
    """Compare how a firmware uses its gate (COUNTERS, the bytes of its `struct drift`) with the use at
    export, on the golden samples.
    """
    from firmware_export.ota.gate_use import gate_use

    try:
        now = read_counters(counters.read_bytes())
    except OSError as error:
        raise ExportError(
            f"cannot read {counters}: {error}; dump the firmware's struct drift there"
        ) from error
    before = gate_use(folder)
    found = compare(now, before)
    if state:
        _leave(state, now, found)
    if as_json:
        click.echo(json.dumps({"now": as_values(now, found), "at_export": list(before.shares)}, indent=1))
        return
    for expert, (share, was) in enumerate(zip(now.shares, before.shares, strict=True)):
        click.echo(
            f"expert {expert}: share {share:.3f}, at export {was:.3f}; first in {now.chosen[expert]} of "
            f"{now.inferences} inferences"
        )
    click.echo(f"entropy {now.entropy_bits:.3f} bits, at export {before.entropy_bits:.3f}; {now.ties} ties")
    said = "DRIFTED: personalize again on new samples" if found.drifted else "no drift"
    click.echo(f"population stability index {found.psi:.3f}, by chance up to {found.noise:.3f}: {said}")


def _leave(state: Path, now: Usage, found: Drift) -> None:
    figures = {
        "drift_psi": found.psi,
        "drift_inferences": now.inferences,
        "drift_entropy_bits": now.entropy_bits,
        "drift_entropy_change_bits": found.entropy_change_bits,
        "drifted": float(found.drifted),
    }
    files = DeviceFiles(state)
    if not files.note.exists():
        raise ExportError(
            f"{state} is no device's state: it holds no {files.note.name}; give the --state of `edgefl "
            "device start`"
        )
    try:
        write_atomic(files.field_figures, json.dumps(figures).encode(), SECRET)
    except OSError as error:
        raise ExportError(
            f"cannot write {files.field_figures}: {error}; give the --state of `edgefl device start`"
        ) from error


def parts_of(folder: Path) -> Parts:
    """Return the parts of an export's firmware, generated again from its model.tflite. Raises ExportError."""
    from firmware_export.codegen.c_source import generate

    source = generate(_model(folder), threshold=_threshold(folder))
    return Parts(source.layout, tuple(Part(name, source.images[name]) for name in source.parts))


def counter_of(folder: Path) -> int:
    """Return the number of the update that brought this export, 0 for one that was flashed."""
    try:
        return int(json.loads((folder / NOTE).read_bytes())["counter"])
    except FileNotFoundError:
        return 0
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise ExportError(f"{folder / NOTE} is damaged: {error!r}; give the number by --counter") from error


def _device_of(old: Path, new: Path) -> str:
    """Return the id of the device that both exports are from."""
    ids = [_client_id(folder) for folder in (old, new)]
    if ids[0] != ids[1]:
        raise ExportError(
            f"{old} was exported from the device {ids[0]!r}, {new} from {ids[1]!r}, expected one device; "
            "give its id with --device, or --all-devices for an update that every device takes"
        )
    return ids[1]


def _client_id(folder: Path) -> str:
    try:
        found = str(json.loads((folder / REPORT).read_bytes())["client_id"])
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise ExportError(
            f"{folder / REPORT} names no device: {error!r}; export again, or give --device ID or "
            "--all-devices"
        ) from error
    if not found:
        raise ExportError(f"{folder / REPORT} names no device; give its id with --device, or --all-devices")
    return found


def _model(folder: Path) -> bytes:
    try:
        return (folder / "model.tflite").read_bytes()
    except OSError as error:
        raise ExportError(
            f"cannot read the model of {folder}: {error}; give what `edgefl export -o` wrote"
        ) from error


def _threshold(folder: Path) -> float:
    from firmware_export.certificate.certificate import NAME, read_certificate, request_of

    try:
        return request_of(read_certificate((folder / NAME).read_bytes())).threshold
    except FileNotFoundError:
        return 0.0


def _input_bytes(model: bytes) -> int:
    from firmware_export.tflite.quantized_model import read_quantized_model

    network = read_quantized_model(model)
    return network.tensor(network.inputs[0]).size


def _answers(model: bytes, x: Any) -> Any:
    from firmware_export.certificate.tflm_runner import micro_outputs
    from firmware_export.tflite.quantized_model import read_quantized_model

    network = read_quantized_model(model)
    return micro_outputs(model, x.reshape(len(x), *network.tensor(network.inputs[0]).shape[1:]))
