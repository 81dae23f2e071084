"""Check an export from its files alone: digests, everything that follows from the model built again, run
again, measured again.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

from edgefl.errors import ExportError
from firmware_export.certificate.bundle import (
    FLOAT_MODEL_FILE,
    GOLDEN_FILE,
    MODEL_FILE,
    REPORT_HTML_FILE,
    REPORT_JSON_FILE,
    derive_files,
)
from firmware_export.certificate.certificate import (
    CERTIFICATE_FILE,
    make_certificate,
    read_certificate,
    read_quantization,
    read_request,
)
from firmware_export.certificate.golden import decode_golden, make_golden
from firmware_export.certificate.parity import EQUAL, NOT_RUN
from firmware_export.certificate.resource_usage import profile_layers
from firmware_export.codegen.c_source import LayerCost, generate_c
from firmware_export.firmware.targets import TARGETS

TOOL_DEPENDENT_KEYS = ("cost", "layers")
"""Parts of a certificate that another version of a compiler or of QEMU changes."""


@dataclass(frozen=True)
class VerificationResult:
    """checked: what was found to hold, a line each; unchecked: what could not be checked here, and why."""

    checked: tuple[str, ...]
    unchecked: tuple[str, ...]


def verify_bundle(out: Path) -> VerificationResult:
    """Check a folder with a certificate. ExportError names the first file or figure that does not hold."""
    certificate = read_certificate(_read(out, CERTIFICATE_FILE))
    contents = check_files(out, certificate["files"])
    model = contents[MODEL_FILE]
    model_float = contents[FLOAT_MODEL_FILE]
    golden = decode_golden(contents[GOLDEN_FILE])
    request = read_request(certificate)
    source = generate_c(model, threshold=request.threshold)
    again = make_golden(model, golden.x, golden.y)
    if not np.array_equal(again.inputs, golden.inputs):
        raise ExportError(f"{GOLDEN_FILE}: the int8 inputs are not those that its samples give; export again")
    if not np.array_equal(again.outputs, golden.outputs):
        raise ExportError(
            f"{GOLDEN_FILE}: the outputs are not those of tflite-micro for model.tflite; export again"
        )
    try:
        derived = derive_files(model, source, golden, request, {"warnings": [], **certificate})
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ExportError(f"{CERTIFICATE_FILE} is damaged: {error!r}; export again") from error
    for name, content in derived.items():
        if contents.get(name) != content and name != REPORT_HTML_FILE:
            raise ExportError(
                f"{name} is not what model.tflite gives; it was edited, or written by another edgefl: export "
                "again"
            )
    rebuilt = make_certificate(model, model_float, source, again, request)
    rebuilt["quantization"] = read_quantization(contents[REPORT_JSON_FILE])
    unchecked = list(_compare_certificates(certificate, rebuilt))
    if contents.get(REPORT_HTML_FILE) != derived[REPORT_HTML_FILE]:
        raise ExportError(
            f"{REPORT_HTML_FILE} is not what {CERTIFICATE_FILE} gives; it was edited: export again"
        )
    equal_runtimes = [row["place"] for row in rebuilt["parity"] if row["status"] == EQUAL]
    accuracy = rebuilt["accuracy"]
    return VerificationResult(
        (
            f"{len(contents)} files have their digests, and all that follow from model.tflite were made "
            "again",
            f"{accuracy['samples']} samples, every output byte the same: {', '.join(equal_runtimes)}",
            *(f"WARNING: {warning}" for warning in rebuilt["warnings"]),
            f"accuracy: float {accuracy['accuracy_float']:.4f}, int8 {accuracy['accuracy_int8']:.4f}",
        ),
        tuple(unchecked),
    )


def profile_bundle(out: Path, target: str | None) -> tuple[str, tuple[LayerCost, ...], dict[str, int]]:
    """Return the target (the export's own for None), its layers with instructions, and the budget that the
    export was given.
    """
    certificate = read_certificate(_read(out, CERTIFICATE_FILE))
    contents = check_files(out, certificate["files"])
    request = read_request(certificate)
    chosen = target or request.target
    if TARGETS[chosen].is_host:
        raise ExportError("instructions are counted in QEMU, and the target is host; give --target cortex-m4")
    source = generate_c(contents[MODEL_FILE], threshold=request.threshold)
    layers = profile_layers(source.files, source.layers, chosen, decode_golden(contents[GOLDEN_FILE]).inputs)
    return chosen, layers, asdict(request.budget)


def check_files(out: Path, digests: Mapping[str, str]) -> dict[str, bytes]:
    """Return the files' contents by name.

    ExportError names the first that is missing or has another digest.
    """
    for name in (MODEL_FILE, FLOAT_MODEL_FILE, GOLDEN_FILE, REPORT_JSON_FILE):
        if name not in digests:
            raise ExportError(f"{CERTIFICATE_FILE} does not speak of {name}; it is damaged, export again")
    contents = {}
    for name, digest in digests.items():
        if Path(name).is_absolute() or ".." in Path(name).parts:
            raise ExportError(
                f"{CERTIFICATE_FILE} speaks of {name!r}, expected files of its own folder; it is damaged, "
                f"export again"
            )
        contents[name] = _read(out, name)
        if sha256(contents[name]).hexdigest() != digest:
            raise ExportError(
                f"{name} is not the file that was exported: sha256 {sha256(contents[name]).hexdigest()}, "
                f"expected {digest}"
            )
    return contents


def _read(out: Path, name: str) -> bytes:
    try:
        return (out / name).read_bytes()
    except OSError as error:
        raise ExportError(f"{name} cannot be read: {error}; export again") from error


def _compare_certificates(stated: Mapping[str, Any], rebuilt: Mapping[str, Any]) -> Iterator[str]:
    """Raise ExportError at the first figure that differs; yield what could not be compared."""
    same_tools = stated.get("tools") == rebuilt["tools"]
    if not same_tools:
        yield (
            f"sizes and instructions: made with {_format_versions(stated.get('tools'))}; here are "
            f"{_format_versions(rebuilt['tools'])}"
        )
    for key in rebuilt:
        if key in ("edgefl", "tools", "parity") or (key in (*TOOL_DEPENDENT_KEYS, "tflm") and not same_tools):
            continue
        expected = stated.get(key, [] if key == "warnings" else None)  # an older certificate has no warnings
        if path := find_difference(expected, rebuilt[key], key):
            raise ExportError(
                f"{CERTIFICATE_FILE} says {path}; it was edited, or this is another machine: export again"
            )
    before = {row["place"]: row for row in stated.get("parity", ())}
    for row in rebuilt["parity"]:
        name = row["place"]
        if name not in before:
            raise ExportError(f"{CERTIFICATE_FILE} does not speak of {name}; it is damaged, export again")
        if NOT_RUN in (row["status"], before[name]["status"]):
            if row["status"] == NOT_RUN:
                yield f"{name}: {row['reason']}"
            continue
        for field in ("status", "samples", "outputs_sha256"):
            if before[name][field] != row[field]:
                raise ExportError(
                    f"{CERTIFICATE_FILE} says {field} {before[name][field]!r} of {name}, found "
                    f"{row[field]!r}; it was "
                    "edited: export again"
                )


def find_difference(stated: Any, rebuilt: Any, path: str) -> str:
    """Return where two values of JSON differ first, with both; "" when they are the same."""
    if isinstance(stated, dict) and isinstance(rebuilt, dict):
        parts = (
            find_difference(stated.get(key), rebuilt.get(key), f"{path}.{key}")
            for key in sorted({*stated, *rebuilt})
        )
        return next(filter(None, parts), "")
    if isinstance(stated, list) and isinstance(rebuilt, list) and len(stated) == len(rebuilt):
        return next(
            filter(
                None,
                (
                    find_difference(a, b, f"{path}[{i}]")
                    for i, (a, b) in enumerate(zip(stated, rebuilt, strict=True))
                ),
            ),
            "",
        )
    return (
        "" if stated == rebuilt else f"{path} is {json.dumps(stated)[:80]}, found {json.dumps(rebuilt)[:80]}"
    )


def _format_versions(versions: Any) -> str:
    return (
        ", ".join(f"{name} {version or 'missing'}" for name, version in versions.items())
        if isinstance(versions, dict)
        else "no tools"
    )
