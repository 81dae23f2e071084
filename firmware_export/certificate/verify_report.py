"""Verifies a device's model folder that has no certificate.

It checks model.tflite and report.json, and also the accuracy and the parity if the samples are available.
"""

import json
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

from edgefl.base.errors import ExportError, StateError
from edgefl.base.storage.demo_directory import DemoFiles
from edgefl.base.types import Shard
from edgefl.data.sources import DataSource
from firmware_export.certificate.bundle import FLOAT_MODEL_FILE, MODEL_FILE, REPORT_JSON_FILE
from firmware_export.certificate.certificate import CERTIFICATE_FILE
from firmware_export.certificate.golden import choose_golden_samples, make_golden, measure_task
from firmware_export.certificate.parity import EQUAL, describe_equal_outputs, run_everywhere
from firmware_export.certificate.verify import VerificationResult
from firmware_export.codegen.c_source import generate_c
from firmware_export.firmware.targets import HOST_TARGET, TARGETS
from firmware_export.quantize.device_state import read_state
from firmware_export.quantize.task_figures import describe_task_figures
from firmware_export.tflite.graph import check_integer, read_graph
from firmware_export.tflite.interpreter import load_tflite, measure_accuracy, run_samples
from firmware_export.tflite.model_samples import load_model_samples

MAX_PARITY_SAMPLES = 200
MAX_FIGURE_DIFFERENCE = 0.01
NO_CERTIFICATE_REASON = (
    f"sizes and instructions: there is no {CERTIFICATE_FILE}; make one with `edgefl export --target`"
)


def verify_report(folder: Path, source: DataSource | None = None) -> VerificationResult:
    """Verify model.tflite and report.json of a folder.

    Args:
        source: the device's samples. None looks for the state in DIR/devices/ID of a folder DIR/clients/ID.

    Raises:
        ExportError: a file or a figure differs. The error names it.
    """
    model = _read(folder, MODEL_FILE)
    report = _decode_report(_read(folder, REPORT_JSON_FILE))
    if sha256(model).hexdigest() != report["sha256"]:
        raise ExportError(
            f"{MODEL_FILE} does not match {REPORT_JSON_FILE}: sha256 {sha256(model).hexdigest()}, expected "
            f"{report['sha256']}; export again"
        )
    check_integer(read_graph(model))
    checked = [
        f"{MODEL_FILE} is the file that {REPORT_JSON_FILE} describes, {len(model):,} bytes, integers only"
    ]
    shard, why = _load_shard(folder, report, source, model)
    if shard is None:
        return VerificationResult(tuple(checked), (f"accuracy and parity: {why}", NO_CERTIFICATE_REASON))
    checked += _check_accuracy(model, _read(folder, FLOAT_MODEL_FILE), shard, report)
    golden = make_golden(model, *choose_golden_samples(shard, MAX_PARITY_SAMPLES, int(report["seed"])))
    results = run_everywhere(generate_c(model).files, golden, list(TARGETS.values()), HOST_TARGET)
    equal = {result.name: result.samples for result in results if result.status == EQUAL}
    checked.append(describe_equal_outputs({"tflite-micro": len(golden.y), **equal}, "samples"))
    unchecked = [f"{result.name}: {result.reason}" for result in results if result.status != EQUAL]
    return VerificationResult(tuple(checked), (*unchecked, NO_CERTIFICATE_REASON))


def _check_accuracy(model: bytes, model_float: bytes, shard: Shard, report: dict[str, Any]) -> list[str]:
    x, y = (shard.x_test, shard.y_test) if len(shard.y_test) else (shard.x_train, shard.y_train)
    if len(y) != report["num_test"]:
        raise ExportError(
            f"{REPORT_JSON_FILE} was measured on {report['num_test']} samples, the shard holds out "
            f"{len(y)}; pass the device's own --data"
        )
    if "task" in report:
        return _check_task(model, model_float, shard, report["task"])
    answers_by_kind = {
        "float": run_samples(load_tflite(model_float), x)[0],
        "int8": run_samples(load_tflite(model, reference=True), x)[0],
    }
    for kind, answers in answers_by_kind.items():
        stated = report[f"accuracy_{kind}"]
        # Another version of the kernels may round a logit the other way, for about one sample in a hundred.
        if (
            abs(measure_accuracy(answers, y) - stated) > max(0.01, 1.5 / len(y))
            or not np.isfinite(answers).all()
        ):
            raise ExportError(
                f"{REPORT_JSON_FILE} has accuracy_{kind} {stated}, measured {measure_accuracy(answers, y)}; "
                f"export again"
            )
    return [
        f"accuracy on {len(y)} samples: float {measure_accuracy(answers_by_kind['float'], y):.4f}, int8 "
        f"{measure_accuracy(answers_by_kind['int8'], y):.4f}"
    ]


def _check_task(model: bytes, model_float: bytes, shard: Shard, stated: Mapping[str, Any]) -> list[str]:
    """Check R2 and AUC of a model that is no classifier. Other kernels may round an output the other way."""
    samples = choose_golden_samples(shard, max(len(shard.y_test), len(shard.y_train)), 1)
    golden = make_golden(model, *samples)
    measured = measure_task(golden, model, model_float) or {}
    for key in ("auc_float", "auc_int8", "r2_float", "r2_int8"):
        before, now = (values.get(key) for values in (stated, measured))
        if (before is None) != (now is None) or (
            before is not None and now is not None and abs(before - now) > MAX_FIGURE_DIFFERENCE
        ):
            raise ExportError(f"{REPORT_JSON_FILE} has {key} {before}, measured {now}; export again")
    return [f"{line}, on {len(golden.x)} samples" for line in describe_task_figures(measured)]


def _load_shard(
    folder: Path, report: dict[str, Any], source: DataSource | None, model: bytes
) -> tuple[Shard | None, str]:
    if source is not None and "task" in report:
        return None, "--data cannot name the labels of anomalies or values; pass a folder with a certificate"
    if source is not None:
        return load_model_samples(source, model, load_tflite(model), seed=int(report["seed"])).shard, ""
    state = DemoFiles(folder.resolve().parent.parent).device(client=folder.resolve().name)
    try:
        return read_state(state).read_shard(), ""
    except StateError:
        return None, f"no samples; {state} is not a device's state: pass --data"


def _decode_report(blob: bytes) -> dict[str, Any]:
    try:
        report = json.loads(blob)
        missing = {
            "sha256",
            "num_test",
            "seed",
            "client_id",
            *(() if "task" in report else ("accuracy_float", "accuracy_int8")),
        } - report.keys()
    except (ValueError, AttributeError) as error:
        raise ExportError(f"{REPORT_JSON_FILE} is damaged: {error!r}; export again") from error
    if missing:
        raise ExportError(f"{REPORT_JSON_FILE} lacks {', '.join(sorted(missing))}; export again")
    return dict(report)


def _read(folder: Path, name: str) -> bytes:
    try:
        return (folder / name).read_bytes()
    except OSError as error:
        raise ExportError(
            f"{name} cannot be read: {error}; pass a folder that `edgefl export -o` wrote"
        ) from error
