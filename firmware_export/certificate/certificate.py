"""The parity certificate: which places gave which outputs, float against int8 accuracy, RAM, flash,
instructions, and the files' digests.

It is made from the export's files alone, so that anyone who has these can make it again and compare:
`verify.py`.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from hashlib import sha256
from typing import Any

from edgefl import __version__
from edgefl.errors import ExportError
from edgefl.system.files import parse_json
from firmware_export.certificate.budget import Budget, check_budget
from firmware_export.certificate.golden import Golden, accuracies
from firmware_export.certificate.parity import EQUAL, Place, run_everywhere, run_skipping, sha256_of
from firmware_export.certificate.resource_usage import cost_of, profile
from firmware_export.certificate.tflm import operators
from firmware_export.certificate.tflm_runner import arena_bytes, micro_version
from firmware_export.codegen.c_source import CSource, generate
from firmware_export.firmware.targets import TARGETS
from firmware_export.firmware.toolchain import ARM, CC, QEMU, missing, version_of
from firmware_export.quantize.report import warnings_of
from firmware_export.tflite.graph import read_graph
from firmware_export.tflite.interpreter import load

NAME = "certificate.json"
FORMAT = 1
QUANTIZATION = ("route", "quantizer", "recipe", "calibration_samples", "mixing", "held_out")


@dataclass(frozen=True)
class Request:
    """What an export was asked for: the target's name, the budget, the gate value under which an expert is
    skipped, and the public key (base64) that the firmware's updates are signed with, "" for none, and the id
    of the device that takes them.
    """

    target: str
    budget: Budget
    threshold: float = 0.0
    update_key: str = ""
    update_device: str = ""


def make_certificate(
    model: bytes,
    model_float: bytes,
    source: CSource,
    golden: Golden,
    request: Request,
    places: Sequence[str] = tuple(TARGETS),
) -> dict[str, Any]:
    """Build, run and measure everything; returns the certificate without `files`, as JSON holds it.

    Raises ExportError when a byte differs anywhere, when the budget is exceeded, or when a budget is given
    that cannot be measured here.
    """
    target = TARGETS[request.target]
    check_measurable(request)
    graph = read_graph(model)
    loaded = load(model)
    arena = arena_bytes(model)
    targets = [TARGETS[name] for name in places]
    exact = generate(model) if request.threshold else source
    compared = run_everywhere(exact.files, golden, targets, request.target)
    ran = compared
    skipping = None
    if request.threshold:
        ran, skipping = run_skipping(source.files, golden, targets, request.target)
    costs = [cost for cost in map(cost_of, ran) if cost is not None]
    layers = source.layers
    own = next((cost for cost in costs if cost.target == request.target), None)
    if own is not None:
        check_budget(request.budget, own, layers)
        if not target.is_host:
            layers = profile(source.files, layers, request.target, golden.inputs)
    found: dict[str, Any] = plain(
        {
            "certificate": FORMAT,
            "edgefl": __version__,
            "target": request.target,
            "threshold": request.threshold,
            "update_key": request.update_key,
            "update_device": request.update_device,
            "budget": asdict(request.budget),
            "model": {
                "sha256": sha256(model).hexdigest(),
                "bytes": len(model),
                "input_shape": loaded.shape,
                "input_scale": loaded.scale,
                "input_zero_point": loaded.zero_point,
                "operators": operators(graph),
                "parts": source.parts,
            },
            "tools": tools(),
            "warnings": warnings_of(golden.outputs),
            "golden": {"samples": len(golden.y), "outputs_sha256": sha256_of(golden.outputs)},
            "parity": [_micro(golden), *map(_of_place, compared)],
            "skipping": skipping and {**skipping, "instructions_all_run": _worst(compared, request.target)},
            "accuracy": asdict(accuracies(golden, model_float)),
            "cost": [asdict(cost) for cost in costs],
            "tflm": {"arena_bytes": arena, "model_bytes": len(model)},
            "layers": [asdict(layer) for layer in layers],
        }
    )
    return found


def tools() -> dict[str, str]:
    """Return the versions of what a certificate's figures depend on, "" for what is not here."""
    return {"tflite-micro": micro_version(), **{tool: version_of(tool) for tool in (CC, ARM, QEMU)}}


def plain(value: Any) -> Any:
    """Return the value as it is after a way through JSON."""
    result: Any = json.loads(json.dumps(value))
    return result


def read_certificate(blob: bytes) -> dict[str, Any]:
    """Return a certificate; ExportError when it is damaged or of another format."""
    try:
        found = parse_json(blob)
        if found["certificate"] != FORMAT:
            raise ExportError(
                f"certificate.json is of format {found['certificate']!r}, expected {FORMAT}; update edgefl, "
                "or export again"
            )
        if not isinstance(found["files"], dict) or found["target"] not in TARGETS:
            raise ValueError("files or target")
    except (ValueError, KeyError, TypeError) as error:
        raise ExportError(f"certificate.json is damaged: {error!r}; export again") from error
    return dict(found)


def quantization_of(note: bytes) -> dict[str, Any]:
    """Return how the model was quantized and what it mixes, of a report.json.

    ExportError when that is damaged.
    """
    try:
        found = parse_json(note)
        return {key: found[key] for key in QUANTIZATION if key in found}
    except (ValueError, TypeError) as error:
        raise ExportError(f"report.json is damaged: {error!r}; export again") from error


def check_measurable(request: Request) -> None:
    """Raise ExportError when what a target's export needs is not here: tflite-micro, and for a budget a
    compiler and QEMU.
    """
    micro_version()
    if not (request.budget.ram_bytes or request.budget.flash_bytes):
        return
    if TARGETS[request.target].is_host:
        raise ExportError(
            "--ram and --flash are of a microcontroller, the target is host; give --target cortex-m4, or "
            "leave them out"
        )
    if reason := missing(ARM, QEMU):
        raise ExportError(f"--ram and --flash cannot be checked: {reason}")


def request_of(certificate: Mapping[str, Any]) -> Request:
    """Return what a certificate's export was asked for."""
    try:
        budget = Budget(int(certificate["budget"]["ram_bytes"]), int(certificate["budget"]["flash_bytes"]))
        key = str(certificate["update_key"])
        device = str(certificate.get("update_device", ""))
        return Request(str(certificate["target"]), budget, float(certificate["threshold"]), key, device)
    except (ValueError, KeyError, TypeError) as error:
        raise ExportError(f"certificate.json is damaged: {error!r}; export again") from error


def _worst(places: Sequence[Place], name: str) -> int:
    return next(
        (
            cost.instructions_worst
            for cost in map(cost_of, places)
            if cost is not None and cost.target == name
        ),
        0,
    )


def _micro(golden: Golden) -> dict[str, Any]:
    return {
        "place": "tflite-micro",
        "status": EQUAL,
        "samples": len(golden.y),
        "reason": "",
        "tools": f"tflite-micro {micro_version()}",
        "outputs_sha256": sha256_of(golden.outputs),
    }


def _of_place(place: Place) -> dict[str, Any]:
    return {
        "place": place.name,
        "status": place.status,
        "samples": place.samples,
        "reason": place.reason,
        "tools": place.tools,
        "outputs_sha256": place.outputs_sha256,
    }
