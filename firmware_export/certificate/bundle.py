"""The folder of an export with a target.

It holds the model, C, files for TensorFlow Lite Micro, firmware, golden vectors and a report. The certificate
is written last.
"""

from collections.abc import Collection, Mapping
from contextlib import suppress
from hashlib import sha256
from json import dumps
from pathlib import Path
from typing import Any

from edgefl.base.errors import ExportError
from edgefl.base.system.files import SECRET_MODE, write_atomic
from edgefl.base.types import Array, Labels
from firmware_export.certificate.certificate import (
    CERTIFICATE_FILE,
    ExportRequest,
    make_certificate,
    read_certificate,
    read_quantization,
)
from firmware_export.certificate.golden import GoldenVectors, encode_golden, make_golden
from firmware_export.certificate.parity import TargetProgress
from firmware_export.certificate.tflm import make_tflm_files
from firmware_export.codegen.c_source import CSource
from firmware_export.firmware.field_program import UpdateSettings
from firmware_export.firmware.package import make_package_files
from firmware_export.firmware.project import make_project_files
from firmware_export.firmware.report_html import render_certificate_html
from firmware_export.firmware.targets import TARGETS
from firmware_export.tflite.graph import read_graph

MODEL_FILE = "model.tflite"
FLOAT_MODEL_FILE = "model_float.tflite"
GOLDEN_FILE = "golden.npz"
REPORT_HTML_FILE = "report.html"
REPORT_JSON_FILE = "report.json"
PRIVATE_FILES = (GOLDEN_FILE, "firmware/samples.bin")
"""Files that contain samples of the device."""
FIRMWARE_SAMPLES = 10
"""Number of samples in the firmware project's samples.bin."""


def write_bundle(
    out: Path,
    x: Array,
    y: Labels,
    request: ExportRequest,
    old: Collection[str] = (),
    progress: TargetProgress = lambda done, total: None,
) -> dict[str, Any]:
    """Complete a folder that holds the files of `list_input_files`.

    The certificate is written last. If it exists, all files that it lists exist. Only the owner may read the
    files with samples, and the files with the weights of a device's model.

    Args:
        x: samples, such as the device's held-out samples, shape (n, ...), float32.
        y: their labels, shape (n,), int64. Shape (0,) if they have none.
        old: names of the files of an earlier export, from `remove_certificate`.
        progress: called with the number of finished targets and of all targets.

    Returns:
        The certificate.

    Raises:
        ExportError: the folder cannot be written, or as in `make_certificate`.
    """
    try:
        old = {*old, *remove_certificate(out)}
        model = (out / MODEL_FILE).read_bytes()
        model_float = None if request.imported else (out / FLOAT_MODEL_FILE).read_bytes()
        source = request.generate_source(model)
        golden = make_golden(model, x, y)
        certificate = make_certificate(model, model_float, source, golden, request, progress=progress)
        certificate["quantization"] = (
            {} if request.imported else read_quantization((out / REPORT_JSON_FILE).read_bytes())
        )
        derived = derive_files(model, source, golden, request, certificate)
        derived[GOLDEN_FILE] = encode_golden(golden)
        for name, content in derived.items():
            is_public = name == REPORT_HTML_FILE or (request.imported and name not in PRIVATE_FILES)
            write_atomic(out / name, content, None if is_public else SECRET_MODE)
        exported = {name: (out / name).read_bytes() for name in list_input_files(imported=request.imported)}
        certificate["files"] = {
            name: sha256(content).hexdigest() for name, content in sorted({**exported, **derived}.items())
        }
        remove_derived_files(out, old - certificate["files"].keys())
        write_atomic(out / CERTIFICATE_FILE, dumps(certificate, indent=1).encode())
    except OSError as error:
        raise ExportError(
            f"cannot write the export to {out}: {error}; choose another directory with -o"
        ) from error
    return certificate


def list_input_files(*, imported: bool) -> tuple[str, ...]:
    """Return the names of the files that a certificate starts from, except the golden vectors."""
    return (MODEL_FILE,) if imported else (MODEL_FILE, FLOAT_MODEL_FILE, REPORT_JSON_FILE)


def derive_files(
    model: bytes,
    source: CSource,
    golden: GoldenVectors,
    request: ExportRequest,
    certificate: Mapping[str, Any],
) -> dict[str, bytes]:
    """Return every file that follows from the model, the golden vectors and the certificate's figures.

    Args:
        model: the int8 .tflite.
        source: the C that was generated from `model` with the request's threshold.
        golden: the golden vectors of `model`. Their first FIRMWARE_SAMPLES inputs become samples.bin.
        certificate: the certificate. Its entry `files` is not used.

    Returns:
        The content of each file by its path in the folder.

    Raises:
        ExportError: the model cannot be read, TensorFlow Lite Micro lacks one of its operators, or the update
            key is invalid.
        KeyError: the certificate lacks a figure.
    """
    target = TARGETS[request.target]
    package = make_package_files(source.files, request.prefix, sha256(model).hexdigest())
    text = {f"c/{name}": content for name, content in package.items()}
    tflm = make_tflm_files(
        model,
        read_graph(model),
        int(certificate["tflm"]["arena_bytes"]),
        str(certificate["tools"]["tflite-micro"]),
    )
    text |= {f"tflm/{name}": content for name, content in tflm.items()}
    updates = (
        UpdateSettings(request.update_key, source.part_bytes, request.update_device)
        if request.update_key
        else None
    )
    text |= {
        f"firmware/{name}": content
        for name, content in make_project_files(source.files, target, updates).items()
    }
    text[REPORT_HTML_FILE] = render_certificate_html(certificate)
    return {name: content.encode() for name, content in text.items()} | {
        "firmware/samples.bin": golden.inputs[:FIRMWARE_SAMPLES].tobytes()
    }


def remove_derived_files(out: Path, names: Collection[str]) -> None:
    """Remove the files of an earlier export, except the models and report.json.

    Args:
        names: paths of the files in the folder, from `remove_certificate`. Missing files are ignored.

    Raises:
        OSError: a file cannot be removed.
    """
    for name in set(names) - {MODEL_FILE, FLOAT_MODEL_FILE, REPORT_JSON_FILE}:
        (out / name).unlink(missing_ok=True)


def remove_certificate(out: Path) -> set[str]:
    """Remove the certificate of an earlier export, and return the names of the files that it lists.

    Call it before any other file is written. An export that is killed then leaves no certificate.
    """
    try:
        blob = (out / CERTIFICATE_FILE).read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return set()
    names: set[str] = set()
    with suppress(ExportError):
        names = {
            name
            for name in read_certificate(blob)["files"]
            if not Path(name).is_absolute() and ".." not in Path(name).parts
        }
    (out / CERTIFICATE_FILE).unlink()
    return names
