"""The folder of an export for a target: model, C, TensorFlow Lite Micro files, firmware, golden vectors,
report; certificate last.
"""

from collections.abc import Collection, Mapping
from contextlib import suppress
from hashlib import sha256
from json import dumps
from pathlib import Path
from typing import Any

from edgefl.errors import ExportError
from edgefl.system.files import SECRET, write_atomic
from edgefl.types import Array, Labels
from firmware_export.certificate.certificate import (
    NAME,
    Request,
    make_certificate,
    quantization_of,
    read_certificate,
)
from firmware_export.certificate.golden import Golden, encode_golden, make_golden
from firmware_export.certificate.tflm import tflm_files
from firmware_export.codegen.c_source import CSource, generate
from firmware_export.firmware.field_program import Updates
from firmware_export.firmware.project import project_files
from firmware_export.firmware.report_html import report_html
from firmware_export.firmware.targets import TARGETS
from firmware_export.tflite.graph import read_graph

MODEL = "model.tflite"
MODEL_FLOAT = "model_float.tflite"
GOLDEN = "golden.npz"
REPORT = "report.html"
NOTE = "report.json"
PRIVATE = (GOLDEN, "firmware/samples.bin")
"""Files that hold samples of the device."""
SHOWN = 10
"""Samples in the firmware project's samples.bin."""


def write_bundle(
    out: Path, x: Array, y: Labels, request: Request, old: Collection[str] = ()
) -> dict[str, Any]:
    """Complete a folder that holds model.tflite, model_float.tflite and report.json; returns the certificate.

    x float32[n, *shape], y int64[n]: the device's held-out samples. old: files of an earlier export, of
    `take_away_certificate`. The certificate is written last: where there is one, all that it speaks of is
    there. Raises ExportError as `make_certificate` does, or when the folder cannot be written.
    """
    try:
        old = {*old, *take_away_certificate(out)}
        model = (out / MODEL).read_bytes()
        model_float = (out / MODEL_FLOAT).read_bytes()
        source = generate(model, threshold=request.threshold)
        golden = make_golden(model, x, y)
        certificate = make_certificate(model, model_float, source, golden, request)
        certificate["quantization"] = quantization_of((out / NOTE).read_bytes())
        made = derived_files(model, source, golden, request, certificate)
        made[GOLDEN] = encode_golden(golden)
        for name, content in made.items():
            write_atomic(out / name, content, SECRET if name in PRIVATE else None)
        kept = {name: (out / name).read_bytes() for name in (MODEL, MODEL_FLOAT, NOTE)}
        certificate["files"] = {
            name: sha256(content).hexdigest() for name, content in sorted({**kept, **made}.items())
        }
        remove_derived(out, old - certificate["files"].keys())
        write_atomic(out / NAME, dumps(certificate, indent=1).encode())
    except OSError as error:
        raise ExportError(
            f"cannot write the export to {out}: {error}; choose another directory with -o"
        ) from error
    return certificate


def derived_files(
    model: bytes, source: CSource, golden: Golden, request: Request, certificate: Mapping[str, Any]
) -> dict[str, bytes]:
    """Return every file that follows from the model, the golden vectors and the certificate's figures."""
    target = TARGETS[request.target]
    text = {f"c/{name}": content for name, content in source.files.items()}
    tflm = tflm_files(
        model,
        read_graph(model),
        int(certificate["tflm"]["arena_bytes"]),
        str(certificate["tools"]["tflite-micro"]),
    )
    text |= {f"tflm/{name}": content for name, content in tflm.items()}
    updates = (
        Updates(request.update_key, source.part_bytes, request.update_device) if request.update_key else None
    )
    text |= {
        f"firmware/{name}": content for name, content in project_files(source.files, target, updates).items()
    }
    text[REPORT] = report_html(certificate)
    return {name: content.encode() for name, content in text.items()} | {
        "firmware/samples.bin": golden.inputs[:SHOWN].tobytes()
    }


def remove_derived(out: Path, names: Collection[str]) -> None:
    """Remove what an earlier export made of its model, by name."""
    for name in set(names) - {MODEL, MODEL_FLOAT, NOTE}:
        (out / name).unlink(missing_ok=True)


def take_away_certificate(out: Path) -> set[str]:
    """Remove the certificate of an earlier export; returns the names of the files that it speaks of.

    To be done before anything else is written: an export that is killed leaves no certificate.
    """
    try:
        blob = (out / NAME).read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return set()
    found: set[str] = set()
    with suppress(ExportError):
        found = {
            name
            for name in read_certificate(blob)["files"]
            if not Path(name).is_absolute() and ".." not in Path(name).parts
        }
    (out / NAME).unlink()
    return found
