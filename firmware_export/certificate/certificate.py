"""The parity certificate: output digests per target, accuracy, RAM, flash, instructions, and file digests.

It is made from the export's files alone. Anyone with the files can make it again and compare. See
`verify.py`.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from hashlib import sha256
from typing import Any

from edgefl import __version__
from edgefl.base.errors import ConfigError, ExportError
from edgefl.base.system.files import parse_json
from edgefl.program.plan.tflite import TfliteTensor
from firmware_export.certificate.budget import Budget, check_budget
from firmware_export.certificate.golden import GoldenVectors, compare_accuracy, measure_task
from firmware_export.certificate.parity import (
    EQUAL,
    ParityResult,
    TargetProgress,
    hash_outputs,
    run_everywhere,
    run_skipping,
)
from firmware_export.certificate.resource_usage import add_instructions, extract_cost
from firmware_export.certificate.tflm import list_operators
from firmware_export.certificate.tflm_runner import read_tflm_version
from firmware_export.codegen.c_source import OPTIMIZE_RAM, OPTIMIZE_SPEED, CSource, generate_c
from firmware_export.codegen.prefix import DEFAULT_PREFIX, check_prefix
from firmware_export.firmware.latency import estimate_latencies
from firmware_export.firmware.targets import TARGETS
from firmware_export.firmware.toolchain import explain_missing_tools, read_tool_version
from firmware_export.quantize.anomaly import read_model_task
from firmware_export.quantize.report import find_warnings
from firmware_export.tflite.graph import read_graph
from firmware_export.tflite.interpreter import load_tflite
from firmware_export.tflite.quantized_model import read_quantized_model

CERTIFICATE_FILE = "certificate.json"
CERTIFICATE_FORMAT = 1
DEVICE_INPUTS = "device"
FILE_INPUTS = "file"
RANDOM_INPUTS = "random"
TASK_KEY = "task"
"""Task and figures of a model that is no classifier. The certificate of a classifier has no such entry."""
QUANTIZATION_KEYS = ("route", "quantizer", "recipe", "calibration_samples", "mixing", "held_out", "members")


@dataclass(frozen=True)
class ExportRequest:
    """The options of an export.

    Attributes:
        target: name of the target.
        budget: what the model may need.
        threshold: gate value below which an expert is skipped.
        update_key: public key for the firmware's updates, in base64. Empty if the firmware takes no updates.
        update_device: id of the device that accepts the updates.
        inputs: origin of the golden inputs. One of DEVICE_INPUTS, FILE_INPUTS and RANDOM_INPUTS.
        prefix: prefix of the C symbols and files in the folder `c`.
        labels: name of each output, for model.h. Empty for none.
        seed: random seed of random inputs. None for other inputs, and in a certificate of an older edgefl.
        optimize: what the C saves, as in `generate_c`.
    """

    target: str
    budget: Budget
    threshold: float = 0.0
    update_key: str = ""
    update_device: str = ""
    inputs: str = DEVICE_INPUTS
    prefix: str = DEFAULT_PREFIX
    labels: tuple[str, ...] = ()
    seed: int | None = None
    optimize: str = OPTIMIZE_SPEED

    @property
    def imported(self) -> bool:
        """Whether the model is a given int8 .tflite, without a float model and a quantization report."""
        return self.inputs != DEVICE_INPUTS

    def generate_source(self, model: bytes) -> CSource:
        """Return the C of a model with these options, as in `generate_c`."""
        return generate_c(model, threshold=self.threshold, labels=self.labels, optimize=self.optimize)


def make_certificate(
    model: bytes,
    model_float: bytes | None,
    source: CSource,
    golden: GoldenVectors,
    request: ExportRequest,
    target_names: Sequence[str] = tuple(TARGETS),
    progress: TargetProgress = lambda done, total: None,
) -> dict[str, Any]:
    """Build, run and measure the export on all targets, and return its certificate.

    Args:
        model: the integer .tflite.
        model_float: the float .tflite. None for an imported model.
        source: the C that was generated from `model` with the request's threshold.
        golden: the golden vectors of `model`, from `make_golden`.
        progress: called with the number of finished targets and of all targets.

    Returns:
        The certificate as values for JSON, without its entry `files`.

    Raises:
        ExportError: an output byte differs on a target, the model exceeds the budget, or a budget cannot be
            measured on this computer.
    """
    check_measurable(request)
    graph = read_graph(model)
    loaded = load_tflite(model)
    targets = [TARGETS[name] for name in target_names]
    if request.threshold and read_model_task(model) is not None:
        raise ExportError(
            f"--threshold {request.threshold:g} compares the classes with and without skipped experts, but "
            "the model is no classifier; leave out --threshold"
        )
    exact = generate_c(model, optimize=request.optimize) if request.threshold else source
    compared = run_everywhere(
        exact.files,
        golden,
        targets,
        request.target,
        profile=not request.threshold,
        progress=progress,
    )
    ran = compared
    skipping = None
    if request.threshold:
        ran, skipping = run_skipping(source.files, golden, targets, request.target, progress)
    task = measure_task(golden, model, model_float)
    costs = [cost for cost in map(extract_cost, ran) if cost is not None]
    counted = next((result.layer_instructions for result in ran if result.name == request.target), {})
    layers = add_instructions(source.layers, counted)
    target_cost = next((cost for cost in costs if cost.target == request.target), None)
    if target_cost is not None:
        check_budget(request.budget, target_cost, source.layers, imported=request.imported)
    certificate: dict[str, Any] = normalize_json(
        {
            "certificate": CERTIFICATE_FORMAT,
            "edgefl": __version__,
            "target": request.target,
            "threshold": request.threshold,
            "update_key": request.update_key,
            "update_device": request.update_device,
            "prefix": request.prefix,
            "labels": request.labels,
            "optimize": request.optimize,
            "budget": asdict(request.budget),
            "model": {
                "sha256": sha256(model).hexdigest(),
                "bytes": len(model),
                "input_shape": loaded.shape,
                "input_scale": _list_input_values(model, lambda tensor: float(tensor.scale[0])),
                "input_zero_point": _list_input_values(model, lambda tensor: tensor.zero_point),
                "operators": list_operators(graph),
                "parts": source.parts,
            },
            "tools": list_tool_versions(),
            "warnings": find_warnings(
                golden.outputs, classifies=task is None and (not request.imported or len(golden.y) > 0)
            ),
            "golden": {
                "inputs": request.inputs,
                "samples": len(golden.inputs),
                "outputs_sha256": hash_outputs(golden.outputs),
                **({} if request.seed is None else {"seed": request.seed}),
            },
            "parity": [_make_reference_row(golden), *map(_make_parity_row, compared)],
            "skipping": skipping
            and {**skipping, "instructions_all_run": _find_worst_instructions(compared, request.target)},
            "accuracy": asdict(compare_accuracy(golden, model_float, is_other_task=task is not None)),
            **({} if task is None else {TASK_KEY: task}),
            "cost": [asdict(cost) for cost in costs],
            "estimates": [
                asdict(estimate)
                for cost in costs
                for estimate in estimate_latencies(
                    cost.target, cost.instructions_mean, cost.flash_bytes, cost.ram_bytes + cost.stack_bytes
                )
            ],
            "arena": {
                "bytes": source.arena_bytes,
                "bound_bytes": source.bound_bytes,
                "state_bytes": source.state_bytes,
            },
            "tflm": {"arena_bytes": golden.arena_bytes, "model_bytes": len(model)},
            "layers": [asdict(layer) for layer in layers],
        }
    )
    return certificate


def _list_input_values(model: bytes, read: Callable[[TfliteTensor], float]) -> float | list[float]:
    """Return a value of the model's input, or a list if it has several inputs."""
    network = read_quantized_model(model)
    values = [read(network.get_tensor(index)) for index in network.inputs]
    return values[0] if len(values) == 1 else values


def list_tool_versions() -> dict[str, str]:
    """Return the versions of the tools that measured the figures. A missing tool has an empty version."""
    return {
        "tflite-micro": read_tflm_version(),
        **{tool: read_tool_version(tool) for target in TARGETS.values() for tool in target.tools},
    }


def normalize_json(value: Any) -> Any:
    """Return the value after encoding it to JSON and decoding it again."""
    result: Any = json.loads(json.dumps(value))
    return result


def read_certificate(blob: bytes) -> dict[str, Any]:
    """Parse a certificate.

    Args:
        blob: the content of certificate.json.

    Raises:
        ExportError: the certificate is damaged or has another format.
    """
    try:
        certificate = parse_json(blob)
        if certificate["certificate"] != CERTIFICATE_FORMAT:
            raise ExportError(
                f"certificate.json has format {certificate['certificate']!r}, expected "
                f"{CERTIFICATE_FORMAT}; update edgefl, or export again"
            )
        if not isinstance(certificate["files"], dict) or certificate["target"] not in TARGETS:
            raise ValueError("files or target")
    except (ValueError, KeyError, TypeError) as error:
        raise ExportError(f"certificate.json is damaged: {error!r}; export again") from error
    return dict(certificate)


def read_quantization(report: bytes) -> dict[str, Any]:
    """Return how the model was quantized and what it mixes.

    Args:
        report: the content of report.json.

    Raises:
        ExportError: the report is damaged.
    """
    try:
        values = parse_json(report)
        return {key: values[key] for key in QUANTIZATION_KEYS if key in values}
    except (ValueError, TypeError) as error:
        raise ExportError(f"report.json is damaged: {error!r}; export again") from error


def check_measurable(request: ExportRequest) -> None:
    """Check that this computer has the tools for an export.

    An export needs tflite-micro. A budget also needs a microcontroller target, a compiler and QEMU.

    Raises:
        ExportError: a tool is missing, or the target cannot have a budget.
    """
    read_tflm_version()
    if request.budget == Budget():
        return
    if TARGETS[request.target].is_host:
        raise ExportError(
            "--ram, --flash and --instructions limit a microcontroller, but the target is host; use --target "
            "cortex-m4, or leave them out"
        )
    if reason := explain_missing_tools(*TARGETS[request.target].tools):
        raise ExportError(f"--ram, --flash and --instructions cannot be checked: {reason}")


def read_request(certificate: Mapping[str, Any]) -> ExportRequest:
    """Return the options of a certificate's export.

    Raises:
        ExportError: the certificate is damaged.
    """
    try:
        limits = certificate["budget"]
        budget = Budget(
            ram_bytes=int(limits["ram_bytes"]),
            flash_bytes=int(limits["flash_bytes"]),
            instructions=int(limits.get("instructions", 0)),
        )
        key = str(certificate["update_key"])
        device = str(certificate.get("update_device", ""))
        threshold = float(certificate["threshold"])
        inputs = str(certificate["golden"].get("inputs", DEVICE_INPUTS))
        if inputs not in (DEVICE_INPUTS, FILE_INPUTS, RANDOM_INPUTS):
            raise ValueError(f"golden.inputs is {inputs!r}")
        seed = certificate["golden"].get("seed") if inputs == RANDOM_INPUTS else None
        if seed is not None and (type(seed) is not int or seed < 0):
            raise ValueError(f"golden.seed is {seed!r}, expected a whole number of 0 or more")
        prefix = check_prefix(str(certificate.get("prefix", DEFAULT_PREFIX)))
        labels = tuple(map(str, certificate.get("labels", ())))
        optimize = certificate.get("optimize", OPTIMIZE_SPEED)
        if optimize not in (OPTIMIZE_SPEED, OPTIMIZE_RAM):
            raise ValueError(f"optimize is {optimize!r}")
        return ExportRequest(
            target=str(certificate["target"]),
            budget=budget,
            threshold=threshold,
            update_key=key,
            update_device=device,
            inputs=inputs,
            prefix=prefix,
            labels=labels,
            seed=seed,
            optimize=optimize,
        )
    except (ConfigError, ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise ExportError(f"certificate.json is damaged: {error!r}; export again") from error


def _find_worst_instructions(results: Sequence[ParityResult], name: str) -> int:
    return next(
        (
            cost.instructions_worst
            for cost in map(extract_cost, results)
            if cost is not None and cost.target == name
        ),
        0,
    )


def _make_reference_row(golden: GoldenVectors) -> dict[str, Any]:
    return {
        "place": "tflite-micro",
        "status": EQUAL,
        "samples": len(golden.inputs),
        "reason": "",
        "tools": f"tflite-micro {read_tflm_version()}",
        "outputs_sha256": hash_outputs(golden.outputs),
    }


def _make_parity_row(result: ParityResult) -> dict[str, Any]:
    return {
        "place": result.name,
        "status": result.status,
        "samples": result.samples,
        "reason": result.reason,
        "tools": result.tools,
        "outputs_sha256": result.outputs_sha256,
    }
