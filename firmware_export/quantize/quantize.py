"""Exports a mixture as an int8 .tflite, calibrated and measured with the device's own samples.

The device route needs no TensorFlow. Candidates are tried in order until one loses at most one point of
accuracy on the validation samples. For a regression or an anomaly task, the mean loss decides instead, see
MAX_LOSS_INCREASE. No candidate is tuned on the validation samples. The test samples only
measure the chosen candidate.
"""

import hashlib
import json
import zlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from edgefl.base.config import PersonalizationConfig
from edgefl.base.errors import ExportError
from edgefl.base.rng import derive_rng
from edgefl.base.system.files import SECRET_MODE, write_atomic
from edgefl.base.system.host import read_peak_rss_mb
from edgefl.base.tasks.config import TaskConfig
from edgefl.base.tasks.detector import TASK_METADATA_NAME, encode_model_task
from edgefl.base.tasks.samples import SAMPLES_METADATA_NAME, encode_samples
from edgefl.base.tasks.scores import measure_sample_losses
from edgefl.base.types import Array, Labels, Mixture, Shard
from edgefl.data.split import SPLIT_METADATA_NAME, SplitRecord, encode_split
from edgefl.learning.client.measures import measure_constant_loss
from edgefl.learning.client.validation import hold_out_validation, read_personalization
from edgefl.program.plan.spec import Plan, read_samples_config, read_task
from edgefl.program.plan.tflite import with_metadata
from firmware_export.quantize.device_route import RECIPES, Recipe, load_quantizer, quantize
from firmware_export.quantize.exported_task import measure_exported
from firmware_export.quantize.personal_model import make_float_model
from firmware_export.quantize.ranges import check_calibration
from firmware_export.quantize.report import ExportReport, QuantizationAttempt, find_warnings
from firmware_export.quantize.routes import (
    DEVICE_ROUTE,
    QuantizationCandidate,
    QuantizationOptions,
    generate_candidates,
)
from firmware_export.tflite.graph import OperatorGraph, read_graph
from firmware_export.tflite.interpreter import (
    LoadedModel,
    dequantize_output,
    load_tflite,
    measure_accuracy,
    run_samples,
)

__all__ = [
    "RECIPES",
    "ExportReport",
    "QuantizationAttempt",
    "QuantizationOptions",
    "Recipe",
    "detect_mixing",
    "export_mixture",
    "quantize",
]

MAX_ACCURACY_LOSS = 0.01
MAX_LOSS_INCREASE = 0.05
"""Share by which the mean loss may grow. A thousandth of the best constant prediction's loss is allowed too,
because the loss of a nearly exact float model may grow by any share."""
MAX_CONSTANT_LOSS_SHARE = 0.001


def export_mixture(
    plan: Plan,
    mixture: Mixture,
    shard: Shard,
    out: Path,
    *,
    seed: int = 1,
    client_id: str = "",
    recipes: tuple[Recipe, ...] = RECIPES,
    options: QuantizationOptions | None = None,
    split: SplitRecord | None = None,
    max_members: int = 0,
) -> ExportReport:
    """Write model.tflite, model_float.tflite and report.json, and return the report.

    The accuracy of the integer model is measured with the reference kernels, which compute like a
    microcontroller. The float model runs on the default kernels, which differ by rounding only. Both are
    measured on the held-out samples, or on the training samples if nothing is held out.

    Both models carry unit and layout of their samples as metadata, see `edgefl.base.tasks.samples`. A model
    of another task than classification carries its task as metadata, see `edgefl.base.tasks.detector`. The
    float figures of such a task are those of real outputs, and so are the int8 figures, after the outputs are
    dequantized.

    A tuned model is measured beside its control, which trains for as many epochs in float. If the tuned model
    loses more than a point against float, the control or an untuned model replaces it, if its accuracy is
    higher. If the plan holds out no validation samples, an export with tuning holds out the default share of
    the training samples and compares the candidates on them.

    Args:
        mixture: the mixture to quantize.
        shard: the device's samples, in the form of the plan's task.
        out: directory for the files.
        seed: random seed for the calibration samples. The report contains it.
        client_id: id of the client. The report contains it.
        recipes: recipes of the device route, in the order to try.
        options: how to quantize. None means the defaults.
        split: how the samples were held out. Both models carry it as metadata, so that `edgefl infer` finds
            the held-out samples.
        max_members: maximum number of a blend's members, see `make_float_model`. 0 takes all.

    Raises:
        PlanError: the mixture belongs to another plan.
        ExportError: the samples cannot calibrate, the route is not available on this machine, the task cannot
            be tuned, or the files cannot be written.
    """
    chosen = options or QuantizationOptions()
    task = read_task(plan.spec)
    if chosen.tuning.name and not task.is_classification:
        raise ExportError(
            f"{chosen.tuning.name}: tuning trains with the cross-entropy of classes, but the plan's task is "
            f"{task.kind}; leave out --qat, --prune and --cluster-weights"
        )
    if chosen.route == DEVICE_ROUTE:
        load_quantizer()
    check_calibration(shard.x_train, plan.spec.input_shape)
    held_out = len(shard.y_test) > 0
    x, y = (shard.x_test, shard.y_test) if held_out else (shard.x_train, shard.y_train)
    share = read_personalization(plan.spec).validation_share
    if chosen.tuning.name and not share:
        share = PersonalizationConfig().validation_share
    validation = hold_out_validation(shard, share, seed, client_id)
    x_compared, y_compared = (
        (validation.x, validation.y) if len(validation.y) else (shard.x_train, shard.y_train)
    )
    if not np.isfinite(x).all():
        raise ExportError("the held-out samples contain NaN or infinite values; clean the shard")
    if task.is_classification and len(y) and y.max() >= plan.spec.num_classes:
        raise ExportError(
            f"a label is {y.max()}, the mixture has {plan.spec.num_classes} classes; is this shard from "
            "another data set?"
        )
    personal = make_float_model(plan, mixture, max_members)
    model = personal.model
    expected, _ = run_samples(load_tflite(model), x_compared)
    is_enough = _make_limit(task, expected, y_compared)
    calibration, _ = _shuffle_samples(shard, seed)
    tuning_samples = partial(_shuffle_samples, validation.train, seed)
    tried: list[tuple[QuantizationAttempt, bytes, tuple[str, ...]]] = []
    runtime = ""
    for candidate in generate_candidates(model, calibration, tuning_samples, chosen, recipes):
        try:
            made = candidate.make()
        except ExportError:
            if not tried:
                raise
            continue
        loaded = load_tflite(made, reference=True)
        runtime = loaded.runtime
        answers, _ = run_samples(loaded, x_compared)
        attempt = _rate_attempt(task, candidate, loaded, answers, expected, y_compared)
        tried.append((attempt, made, find_warnings(answers, classifies=task.is_classification)))
        if not candidate.has_control and any(is_enough(earlier) for earlier, *_ in tried):
            break
    enough = [item for item in tried if is_enough(item[0])]
    best, made, warnings = enough[0] if enough else max(tried, key=lambda item: item[0].rank)
    loaded = load_tflite(made, reference=True)
    on_float, on_int8 = (run_samples(item, x)[0] for item in (load_tflite(model), loaded))
    rates: tuple[float | None, ...] = (None, None, None)
    figures: dict[str, Any] = {}
    notes: dict[str, bytes] = {}
    if task.is_classification:
        agreement = float((on_int8.argmax(axis=1) == on_float.argmax(axis=1)).mean())
        rates = (measure_accuracy(on_float, y), measure_accuracy(on_int8, y), agreement)
    else:
        measured = measure_exported(task, loaded, shard, validation, on_float, on_int8)
        figures = {
            "task": {**measured.task, "within_limit": is_enough(best)},
            "anomaly": measured.anomaly,
        }
        notes[TASK_METADATA_NAME] = encode_model_task(measured.model_task)
        warnings = (*warnings, *measured.warnings)
    notes[SAMPLES_METADATA_NAME] = encode_samples(read_samples_config(plan.spec))
    if split is not None:
        notes[SPLIT_METADATA_NAME] = encode_split(split)
    made, model = (with_metadata(item, notes) for item in (made, model))
    report = ExportReport(
        accuracy_float=rates[0],
        accuracy_int8=rates[1],
        agreement=rates[2],
        within_one_point=is_enough(best) if task.is_classification else None,
        measured_on="held-out" if held_out else "training",
        num_test=len(y),
        tflite_bytes=len(made),
        float_bytes=len(model),
        sha256=hashlib.sha256(made).hexdigest(),
        recipe=best.recipe,
        calibration_samples=best.calibration_samples,
        tried=tuple(attempt for attempt, *_ in tried),
        runtime=runtime,
        quantizer=chosen.quantizer,
        peak_rss_mb=read_peak_rss_mb(),
        seed=seed,
        client_id=client_id,
        route=chosen.route,
        activation_bits=chosen.bits,
        mixing=_describe_mixing(task, model),
        deflated_bytes=len(zlib.compress(made, 9)),
        warnings=warnings,
        members=personal.shares or None,
        held_out=split.description if split is not None else "",
        **figures,
    )
    _write(out, made, model, report)
    return report


def _make_limit(task: TaskConfig, expected: Any, y: Any) -> Callable[[QuantizationAttempt], bool]:
    """Return a function that decides whether an attempt is close enough to the float model."""
    if task.is_classification:
        least = measure_accuracy(expected, y) - MAX_ACCURACY_LOSS - 1e-9
        return lambda attempt: attempt.rank[0] >= least
    loss = float(measure_sample_losses(task.loss_name, expected, y).mean())
    most = (1 + MAX_LOSS_INCREASE) * loss + MAX_CONSTANT_LOSS_SHARE * measure_constant_loss(task, y)
    return lambda attempt: -attempt.rank[0] <= most


def _rate_attempt(
    task: TaskConfig,
    candidate: QuantizationCandidate,
    loaded: LoadedModel,
    answers: Any,
    expected: Any,
    y: Any,
) -> QuantizationAttempt:
    if task.is_classification:
        agreement = float((answers.argmax(axis=1) == expected.argmax(axis=1)).mean())
        return QuantizationAttempt(
            recipe=candidate.name,
            calibration_samples=candidate.samples,
            accuracy_int8=measure_accuracy(answers, y),
            agreement=agreement,
        )
    losses = measure_sample_losses(task.loss_name, dequantize_output(loaded, answers), y)
    return QuantizationAttempt(
        recipe=candidate.name,
        calibration_samples=candidate.samples,
        accuracy_int8=None,
        agreement=None,
        loss_int8=float(losses.mean()),
    )


def _shuffle_samples(shard: Shard, seed: int) -> tuple[Array, Labels]:
    """Return the training samples and their labels in the order of calibration."""
    order = derive_rng(seed, 0, "calibration").permutation(len(shard.x_train))
    return shard.x_train[order], shard.y_train[order]


def detect_mixing(graph: OperatorGraph) -> str:
    """Return the values that a graph mixes, detected from its products and softmax operators.

    Returns:
        "probabilities" or "logits" of the experts, or "none" for a single model.
    """
    products = {
        i
        for (name, _), inputs in zip(graph.operators, graph.inputs, strict=True)
        if name == "MUL"
        for i in inputs
    }
    if not products:
        return "none"
    softmaxes = [outputs[0] for name, outputs in graph.operators if name == "SOFTMAX"]
    return "probabilities" if sum(i in products for i in softmaxes) > 1 else "logits"


def _describe_mixing(task: TaskConfig, model: bytes) -> str:
    """Return the values that a float model mixes. The experts of a regression have outputs, no logits."""
    mixing = detect_mixing(read_graph(model))
    return mixing if task.is_classification or mixing == "none" else "outputs"


def _write(out: Path, model: bytes, model_float: bytes, report: ExportReport) -> None:
    try:
        write_atomic(out / "model.tflite", model, SECRET_MODE)
        write_atomic(out / "model_float.tflite", model_float, SECRET_MODE)
        write_atomic(out / "report.json", json.dumps(report.as_dict(), indent=1).encode())
    except OSError as error:
        raise ExportError(
            f"cannot write the model to {out}: {error}; choose another directory with -o"
        ) from error
