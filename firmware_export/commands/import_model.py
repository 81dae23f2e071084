"""`edgefl export MODEL.tflite`: firmware from any int8 model, whatever trained it."""

import json
from pathlib import Path

import click
import numpy as np

from edgefl.base.errors import ExportError
from edgefl.base.system.files import write_atomic
from edgefl.base.system.progress import Progress
from edgefl.data.sources.classes import read_class_list
from firmware_export.certificate.budget import Budget
from firmware_export.certificate.bundle import (
    FLOAT_MODEL_FILE,
    MODEL_FILE,
    REPORT_JSON_FILE,
    remove_certificate,
    write_bundle,
)
from firmware_export.certificate.certificate import (
    FILE_INPUTS,
    RANDOM_INPUTS,
    ExportRequest,
    check_measurable,
)
from firmware_export.certificate.import_model import (
    DEFAULT_RANDOM_INPUTS,
    MAX_SAMPLES,
    draw_random_samples,
    read_imported_model,
    read_samples,
)
from firmware_export.certificate.verify import describe_accuracy
from firmware_export.codegen.c_source import OPTIMIZE_RAM, OPTIMIZE_SPEED
from firmware_export.codegen.prefix import DEFAULT_PREFIX, check_prefix
from firmware_export.commands.certificate import describe_certificate, make_target_progress
from firmware_export.firmware.targets import find_target, parse_bytes
from firmware_export.tflite.interpreter import load_tflite

optimize_option = click.option(
    "--optimize",
    type=click.Choice([OPTIMIZE_SPEED, OPTIMIZE_RAM]),
    default=OPTIMIZE_SPEED,
    show_default=True,
    help="Whether the C saves instructions, or RAM at the cost of some instructions.",
)


@click.command(
    "tflite",
    short_help="Make firmware from any int8 .tflite.",
    epilog="Example: edgefl export tflite model.tflite -o out/ --target cortex-m4 --data samples.npz",
)
@click.argument("model", type=click.Path(path_type=Path))
@click.option("-o", "--out", required=True, type=click.Path(path_type=Path), help="Directory for all files.")
@click.option(
    "--target",
    required=True,
    help="Core: cortex-m0, -m0plus, -m3, -m4, -m7, -m33, -m55, rv32imc, lx106 or host.",
)
@click.option(
    "--data",
    type=click.Path(path_type=Path),
    help="File .npz with samples x and perhaps labels y. Samples of the model's type are its integers.  "
    "[default: random inputs]",
)
@click.option("--ram", help="Maximum RAM of the model on the target, including its stack, such as 64K.")
@click.option("--flash", help="Maximum flash of the model on the target, such as 256K.")
@click.option(
    "--samples",
    type=click.IntRange(1, MAX_SAMPLES),
    help=f"Maximum number of samples to compare.  [default: all of --data, or {DEFAULT_RANDOM_INPUTS} random "
    "inputs]",
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
@click.option(
    "--seed", type=click.IntRange(0), default=1, show_default=True, help="Random seed of random inputs."
)
@click.option("--json", "as_json", is_flag=True, help="Print the certificate as JSON.")
def import_model(
    model: Path,
    out: Path,
    target: str,
    data: Path | None,
    ram: str | None,
    flash: str | None,
    samples: int | None,
    optimize: str,
    prefix: str,
    labels: Path | None,
    seed: int,
    as_json: bool,
) -> None:
    """Make C99, a firmware project and a certificate from MODEL, an int8 .tflite of any origin.

    The certificate states that the C computes the same bytes as TensorFlow Lite Micro, on this computer and
    on each core in QEMU. With labels in --data it also has the accuracy. Without --data it compares random
    inputs, which proves bytes only.

    `edgefl export MODEL.tflite` is the same command.
    """
    budget = Budget(parse_bytes(ram) if ram else 0, parse_bytes(flash) if flash else 0)
    request = ExportRequest(
        target=find_target(target).name,
        budget=budget,
        inputs=RANDOM_INPUTS if data is None else FILE_INPUTS,
        prefix=check_prefix(prefix),
        seed=seed if data is None else None,
        labels=() if labels is None else read_class_list(labels),
        optimize=optimize,
    )
    check_measurable(request)
    imported = read_imported_model(model, request.labels)
    content = imported.content
    loaded = load_tflite(content)
    if data is None:
        x = draw_random_samples(loaded, samples or DEFAULT_RANDOM_INPUTS, seed)
        y = np.empty(0, np.int64)
    else:
        x, y = read_samples(data, content, samples or MAX_SAMPLES)
    _check_folder(out, model)
    old = remove_certificate(out)
    with Progress() as progress:
        progress.update_live(f"building for {request.target}, comparing {len(x)} inputs")
        try:
            out.mkdir(parents=True, exist_ok=True)
            write_atomic(out / MODEL_FILE, content)
        except OSError as error:
            raise ExportError(
                f"cannot write the export to {out}: {error}; choose another directory with -o"
            ) from error
        certificate = write_bundle(out, x, y, request, old, make_target_progress(progress))
    if as_json:
        click.echo(json.dumps(certificate, indent=1))
        return
    lines = [f"{out / MODEL_FILE}: {np.dtype(loaded.dtype)}, {len(content):,} bytes", *imported.notes]
    lines += describe_accuracy(certificate["accuracy"])
    if not len(y):
        lines.append("no labels: the certificate proves equal bytes, and says nothing about accuracy")
    if certificate["arena"]["state_bytes"]:
        lines.append("the model keeps a state: its inputs are one sequence, also in the accuracy")
    click.echo("\n".join([*lines, describe_certificate(certificate, out)]))


def _check_folder(out: Path, model: Path) -> None:
    """Check that the export overwrites neither the given model nor the export of a device."""
    if (out / MODEL_FILE).resolve() == model.resolve():
        raise ExportError(
            f"the export would overwrite {model}, expected another directory than the model's; pass another "
            "-o"
        )
    for name in (FLOAT_MODEL_FILE, REPORT_JSON_FILE):
        if (out / name).exists():
            raise ExportError(
                f"{out} contains {name}, so it may be the export of a device, expected a new directory or an "
                "earlier export of a model file; pass another -o"
            )
