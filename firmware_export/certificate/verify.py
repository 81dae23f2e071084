"""Verifies an export from its files alone.

It checks the digests, builds everything that follows from the model again, and runs and measures it again.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

from edgefl.base.errors import ExportError
from firmware_export.certificate.bundle import (
    FLOAT_MODEL_FILE,
    GOLDEN_FILE,
    MODEL_FILE,
    REPORT_HTML_FILE,
    REPORT_JSON_FILE,
    derive_files,
    list_input_files,
)
from firmware_export.certificate.certificate import (
    CERTIFICATE_FILE,
    DEVICE_INPUTS,
    RANDOM_INPUTS,
    TASK_KEY,
    make_certificate,
    read_certificate,
    read_quantization,
    read_request,
)
from firmware_export.certificate.golden import GoldenVectors, decode_golden, make_golden
from firmware_export.certificate.import_model import draw_random_samples
from firmware_export.certificate.parity import EQUAL, NOT_RUN, TargetProgress, describe_equal_outputs
from firmware_export.certificate.resource_usage import profile_layers
from firmware_export.codegen.c_source import OPTIMIZE_SPEED, LayerCost
from firmware_export.codegen.prefix import DEFAULT_PREFIX
from firmware_export.firmware.targets import TARGETS
from firmware_export.quantize.task_figures import describe_task_figures
from firmware_export.tflite.interpreter import load_tflite

OLDER_VALUES: Mapping[str, Any] = {
    "warnings": [],
    "prefix": DEFAULT_PREFIX,
    "labels": [],
    "optimize": OPTIMIZE_SPEED,
}
"""Values of the entries that an older certificate lacks."""
ESTIMATES_KEY = "estimates"
"""Estimates for boards. They depend on edgefl's table of boards, and older certificates have none."""
TOOL_DEPENDENT_KEYS = ("cost", "layers", ESTIMATES_KEY)
"""Parts of a certificate that depend on the versions of the compiler and of QEMU."""


@dataclass(frozen=True)
class VerificationResult:
    """The result of a verification.

    Attributes:
        checked: one line for each check that passed.
        unchecked: one line for each check that was not possible on this computer, with the reason.
        warnings: one line for each reason why the passed checks prove little.
    """

    checked: tuple[str, ...]
    unchecked: tuple[str, ...]
    warnings: tuple[str, ...] = ()


def verify_bundle(out: Path, progress: TargetProgress = lambda done, total: None) -> VerificationResult:
    """Verify a folder with a certificate.

    Args:
        out: folder of the export.
        progress: called with the number of finished targets and of all targets.

    Raises:
        ExportError: a file or a figure differs. The error names the first one.
    """
    certificate = read_certificate(_read(out, CERTIFICATE_FILE))
    request = read_request(certificate)
    contents = check_files(out, certificate["files"], imported=request.imported)
    model = contents[MODEL_FILE]
    model_float = None if request.imported else contents[FLOAT_MODEL_FILE]
    golden = decode_golden(contents[GOLDEN_FILE])
    source = request.generate_source(model)
    again = make_golden(model, golden.x, golden.y)
    if not np.array_equal(again.inputs, golden.inputs):
        raise ExportError(f"{GOLDEN_FILE}: the int8 inputs do not follow from its samples; export again")
    if not np.array_equal(again.outputs, golden.outputs):
        raise ExportError(
            f"{GOLDEN_FILE}: the outputs differ from tflite-micro's outputs for model.tflite; export again"
        )
    if request.seed is not None:
        _check_random_inputs(model, golden, request.seed)
    try:
        derived = derive_files(model, source, golden, request, {"warnings": [], **certificate})
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise ExportError(f"{CERTIFICATE_FILE} is damaged: {error!r}; export again") from error
    for name, content in derived.items():
        if contents.get(name) != content and name != REPORT_HTML_FILE:
            raise ExportError(
                f"{name} does not follow from model.tflite; it was edited, or written by another edgefl: "
                "export again"
            )
    rebuilt = make_certificate(model, model_float, source, again, request, progress=progress)
    rebuilt["quantization"] = {} if request.imported else read_quantization(contents[REPORT_JSON_FILE])
    unchecked = list(_compare_certificates(certificate, rebuilt))
    random_inputs: tuple[str, ...] = ()
    if request.seed is not None:
        random_inputs = (f"the inputs are {len(golden.x)} random inputs with the seed {request.seed}",)
    elif request.inputs == RANDOM_INPUTS:
        unchecked.append(
            "origin of the inputs: the certificate has no seed of its random inputs; export again"
        )
    if contents.get(REPORT_HTML_FILE) != derived[REPORT_HTML_FILE]:
        raise ExportError(
            f"{REPORT_HTML_FILE} does not follow from {CERTIFICATE_FILE}; it was edited: export again"
        )
    equal_runtimes = {row["place"]: row["samples"] for row in rebuilt["parity"] if row["status"] == EQUAL}
    accuracy = rebuilt["accuracy"]
    return VerificationResult(
        (
            f"{len(contents)} files match their digests, and all files that follow from model.tflite were "
            "made again",
            describe_equal_outputs(equal_runtimes, "samples"),
            *random_inputs,
            *describe_accuracy(accuracy),
            *describe_task_figures(rebuilt.get(TASK_KEY)),
        ),
        tuple(unchecked),
        tuple(rebuilt["warnings"]),
    )


def profile_bundle(out: Path, target: str | None) -> tuple[str, tuple[LayerCost, ...], dict[str, int]]:
    """Count the instructions of each layer of an export.

    Args:
        target: name of the core. None chooses the export's target.

    Returns:
        The target's name, the layers with their instructions, and the export's budget.

    Raises:
        ExportError: a file is missing or differs from its digest, the target is the host, or it cannot be
            run.
    """
    certificate = read_certificate(_read(out, CERTIFICATE_FILE))
    request = read_request(certificate)
    contents = check_files(out, certificate["files"], imported=request.imported)
    chosen = target or request.target
    if TARGETS[chosen].is_host:
        raise ExportError("instructions are counted in QEMU, but the target is host; use --target cortex-m4")
    source = request.generate_source(contents[MODEL_FILE])
    layers = profile_layers(source.files, source.layers, chosen, decode_golden(contents[GOLDEN_FILE]).inputs)
    return chosen, layers, asdict(request.budget)


def describe_accuracy(accuracy: Mapping[str, Any]) -> list[str]:
    """Return a line with the measured accuracies of a certificate, or no line without labels."""
    measured = [
        f"{kind} {accuracy[f'accuracy_{kind}']:.4f}"
        for kind in ("float", "int8")
        if accuracy[f"accuracy_{kind}"] is not None
    ]
    return [f"accuracy: {', '.join(measured)}"] if measured else []


def check_files(out: Path, digests: Mapping[str, str], *, imported: bool = False) -> dict[str, bytes]:
    """Check the files of a folder against their digests.

    Args:
        out: folder of the export.
        digests: SHA-256 of each file by name.
        imported: whether the model was imported, and so has no float model and no report.

    Returns:
        The content of each file by name.

    Raises:
        ExportError: a file is missing, lies outside the folder, or has another digest. The error names it.
    """
    for name in (*list_input_files(imported=imported), GOLDEN_FILE):
        if name not in digests:
            raise ExportError(f"{CERTIFICATE_FILE} does not list {name}; it is damaged, export again")
    contents = {}
    for name, digest in digests.items():
        if Path(name).is_absolute() or ".." in Path(name).parts:
            raise ExportError(
                f"{CERTIFICATE_FILE} lists {name!r}, expected files inside its folder; it is damaged, "
                f"export again"
            )
        contents[name] = _read(out, name)
        if sha256(contents[name]).hexdigest() != digest:
            raise ExportError(
                f"{name} is not the exported file: sha256 {sha256(contents[name]).hexdigest()}, "
                f"expected {digest}"
            )
    return contents


def _read(out: Path, name: str) -> bytes:
    try:
        return (out / name).read_bytes()
    except (OSError, ValueError) as error:  # a name may contain a null byte
        raise ExportError(f"{name} cannot be read: {error}; export again") from error


def _check_random_inputs(model: bytes, golden: GoldenVectors, seed: int) -> None:
    """Draw the random inputs of an imported model again, and compare their bytes.

    Raises:
        ExportError: the bytes differ.
    """
    x = draw_random_samples(load_tflite(model), len(golden.x), seed)
    if golden.x.dtype != x.dtype or not np.array_equal(golden.x, x):
        raise ExportError(
            f"{GOLDEN_FILE}: the samples are not the random inputs with the seed {seed} that "
            f"{CERTIFICATE_FILE} names; it was edited, or made by another edgefl: export again"
        )


def _compare_certificates(stated: Mapping[str, Any], rebuilt: Mapping[str, Any]) -> Iterator[str]:
    """Raise ExportError at the first figure that differs, and yield each check that was not possible."""
    same_tools = stated.get("tools") == rebuilt["tools"]
    if not same_tools:
        yield (
            f"sizes and instructions: made with {_format_versions(stated.get('tools'))}; this computer has "
            f"{_format_versions(rebuilt['tools'])}"
        )
    same_boards = stated.get("edgefl") == rebuilt["edgefl"]
    if ESTIMATES_KEY in stated and not same_boards:
        yield f"{ESTIMATES_KEY}: made by edgefl {stated.get('edgefl')}; this is edgefl {rebuilt['edgefl']}"
    for key in rebuilt:
        if key in ("edgefl", "tools", "parity") or (key in (*TOOL_DEPENDENT_KEYS, "tflm") and not same_tools):
            continue
        if key == ESTIMATES_KEY and not (key in stated and same_boards):
            continue
        expected = stated.get(key, OLDER_VALUES.get(key))
        if key == "golden" and isinstance(expected, dict):
            expected = {"inputs": DEVICE_INPUTS, **expected}
        if path := find_difference(expected, rebuilt[key], key):
            raise ExportError(
                f"{CERTIFICATE_FILE} differs: {path}; it was edited, or made on another machine: export again"
            )
    before = {row["place"]: row for row in stated.get("parity", ())}
    for row in rebuilt["parity"]:
        name = row["place"]
        if name not in before:
            raise ExportError(f"{CERTIFICATE_FILE} does not list {name}; it is damaged, export again")
        if NOT_RUN in (row["status"], before[name]["status"]):
            if row["status"] == NOT_RUN:
                yield f"{name}: {row['reason']}"
            continue
        for field in ("status", "samples", "outputs_sha256"):
            if before[name].get(field) != row[field]:
                raise ExportError(
                    f"{CERTIFICATE_FILE} has {field} {before[name].get(field)!r} for {name}, measured "
                    f"{row[field]!r}; it was edited: export again"
                )


def find_difference(stated: Any, rebuilt: Any, path: str) -> str:
    """Return the first difference between two JSON values.

    Args:
        stated: the value in the certificate.
        rebuilt: the value that was measured again.
        path: path of the value, for the result.

    Returns:
        The path and both values. Empty if the values are equal.
    """
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
        ""
        if stated == rebuilt
        else f"{path} is {json.dumps(stated)[:80]}, measured {json.dumps(rebuilt)[:80]}"
    )


def _format_versions(versions: Any) -> str:
    return (
        ", ".join(f"{name} {version or 'missing'}" for name, version in versions.items())
        if isinstance(versions, dict)
        else "no tools"
    )
