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
from firmware_export.certificate.bundle import GOLDEN, MODEL, MODEL_FLOAT, NOTE, REPORT, derived_files
from firmware_export.certificate.certificate import (
    NAME,
    make_certificate,
    quantization_of,
    read_certificate,
    request_of,
)
from firmware_export.certificate.golden import decode_golden, make_golden
from firmware_export.certificate.parity import EQUAL, NOT_RUN
from firmware_export.certificate.resource_usage import profile
from firmware_export.codegen.c_source import LayerCost, generate
from firmware_export.firmware.targets import TARGETS

TOOLS = ("cost", "layers")
"""Parts of a certificate that another version of a compiler or of QEMU changes."""


@dataclass(frozen=True)
class Verified:
    """checked: what was found to hold, a line each; unchecked: what could not be checked here, and why."""

    checked: tuple[str, ...]
    unchecked: tuple[str, ...]


def verify_bundle(out: Path) -> Verified:
    """Check a folder with a certificate. ExportError names the first file or figure that does not hold."""
    certificate = read_certificate(_read(out, NAME))
    contents = check_files(out, certificate["files"])
    model = contents[MODEL]
    model_float = contents[MODEL_FLOAT]
    golden = decode_golden(contents[GOLDEN])
    request = request_of(certificate)
    source = generate(model, threshold=request.threshold)
    again = make_golden(model, golden.x, golden.y)
    if not np.array_equal(again.inputs, golden.inputs):
        raise ExportError(f"{GOLDEN}: the int8 inputs are not those that its samples give; export again")
    if not np.array_equal(again.outputs, golden.outputs):
        raise ExportError(
            f"{GOLDEN}: the outputs are not those of tflite-micro for model.tflite; export again"
        )
    try:
        derived = derived_files(model, source, golden, request, {"warnings": [], **certificate})
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ExportError(f"{NAME} is damaged: {error!r}; export again") from error
    for name, content in derived.items():
        if contents.get(name) != content and name != REPORT:
            raise ExportError(
                f"{name} is not what model.tflite gives; it was edited, or written by another edgefl: export "
                "again"
            )
    rebuilt = make_certificate(model, model_float, source, again, request)
    rebuilt["quantization"] = quantization_of(contents[NOTE])
    unchecked = list(_compare(certificate, rebuilt))
    if contents.get(REPORT) != derived[REPORT]:
        raise ExportError(f"{REPORT} is not what {NAME} gives; it was edited: export again")
    places = [place["place"] for place in rebuilt["parity"] if place["status"] == EQUAL]
    accuracy = rebuilt["accuracy"]
    return Verified(
        (
            f"{len(contents)} files have their digests, and all that follow from model.tflite were made "
            "again",
            f"{accuracy['samples']} samples, every output byte the same: {', '.join(places)}",
            *(f"WARNING: {warning}" for warning in rebuilt["warnings"]),
            f"accuracy: float {accuracy['accuracy_float']:.4f}, int8 {accuracy['accuracy_int8']:.4f}",
        ),
        tuple(unchecked),
    )


def profile_bundle(out: Path, target: str | None) -> tuple[str, tuple[LayerCost, ...], dict[str, int]]:
    """Return the target (the export's own for None), its layers with instructions, and the budget that the
    export was given.
    """
    certificate = read_certificate(_read(out, NAME))
    contents = check_files(out, certificate["files"])
    request = request_of(certificate)
    chosen = target or request.target
    if TARGETS[chosen].is_host:
        raise ExportError("instructions are counted in QEMU, and the target is host; give --target cortex-m4")
    source = generate(contents[MODEL], threshold=request.threshold)
    layers = profile(source.files, source.layers, chosen, decode_golden(contents[GOLDEN]).inputs)
    return chosen, layers, asdict(request.budget)


def check_files(out: Path, digests: Mapping[str, str]) -> dict[str, bytes]:
    """Return the files' contents by name.

    ExportError names the first that is missing or has another digest.
    """
    for name in (MODEL, MODEL_FLOAT, GOLDEN, NOTE):
        if name not in digests:
            raise ExportError(f"{NAME} does not speak of {name}; it is damaged, export again")
    contents = {}
    for name, digest in digests.items():
        if Path(name).is_absolute() or ".." in Path(name).parts:
            raise ExportError(
                f"{NAME} speaks of {name!r}, expected files of its own folder; it is damaged, export again"
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


def _compare(told: Mapping[str, Any], found: Mapping[str, Any]) -> Iterator[str]:
    """Raise ExportError at the first figure that differs; yield what could not be compared."""
    same_tools = told.get("tools") == found["tools"]
    if not same_tools:
        yield (
            f"sizes and instructions: made with {_versions(told.get('tools'))}; here are "
            f"{_versions(found['tools'])}"
        )
    for key in found:
        if key in ("edgefl", "tools", "parity") or (key in (*TOOLS, "tflm") and not same_tools):
            continue
        noted = told.get(key, [] if key == "warnings" else None)  # an older certificate has no warnings
        if path := difference(noted, found[key], key):
            raise ExportError(f"{NAME} says {path}; it was edited, or this is another machine: export again")
    before = {place["place"]: place for place in told.get("parity", ())}
    for place in found["parity"]:
        name = place["place"]
        if name not in before:
            raise ExportError(f"{NAME} does not speak of {name}; it is damaged, export again")
        if NOT_RUN in (place["status"], before[name]["status"]):
            if place["status"] == NOT_RUN:
                yield f"{name}: {place['reason']}"
            continue
        for field in ("status", "samples", "outputs_sha256"):
            if before[name][field] != place[field]:
                raise ExportError(
                    f"{NAME} says {field} {before[name][field]!r} of {name}, found {place[field]!r}; it was "
                    "edited: export again"
                )


def difference(told: Any, found: Any, path: str) -> str:
    """Return where two values of JSON differ first, with both; "" when they are the same."""
    if isinstance(told, dict) and isinstance(found, dict):
        parts = (
            difference(told.get(key), found.get(key), f"{path}.{key}") for key in sorted({*told, *found})
        )
        return next(filter(None, parts), "")
    if isinstance(told, list) and isinstance(found, list) and len(told) == len(found):
        return next(
            filter(
                None,
                (difference(a, b, f"{path}[{i}]") for i, (a, b) in enumerate(zip(told, found, strict=True))),
            ),
            "",
        )
    return "" if told == found else f"{path} is {json.dumps(told)[:80]}, found {json.dumps(found)[:80]}"


def _versions(versions: Any) -> str:
    return (
        ", ".join(f"{name} {version or 'missing'}" for name, version in versions.items())
        if isinstance(versions, dict)
        else "no tools"
    )
