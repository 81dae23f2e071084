"""Measures the export of a regression or an anomaly task, and makes the task entry of the model file."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from edgefl.base.tasks.config import ANOMALY, TaskConfig
from edgefl.base.tasks.detector import ModelTask
from edgefl.base.types import Shard
from edgefl.learning.client.validation import ValidationSplit
from firmware_export.quantize.anomaly import VALIDATION_SAMPLES, calibrate_detector, explain_false_alarms
from firmware_export.quantize.task_figures import combine_figures, measure_detector, measure_model
from firmware_export.tflite.interpreter import LoadedModel, dequantize_output, quantize_input


@dataclass(frozen=True)
class ExportedTask:
    """The measurements of an exported model.

    Attributes:
        task: the field `task` of `report.ExportReport`, without `within_limit`.
        anomaly: the field `anomaly` of `report.ExportReport`. None for a regression.
        model_task: the task for the model file.
        warnings: one sentence for each reason why the threshold may raise more false alarms.
    """

    task: Mapping[str, Any]
    anomaly: Mapping[str, Any] | None
    model_task: ModelTask
    warnings: tuple[str, ...] = ()


def measure_exported(
    task: TaskConfig,
    loaded: LoadedModel,
    shard: Shard,
    validation: ValidationSplit,
    on_float: Any,
    on_int8: Any,
) -> ExportedTask:
    """Measure both models of an export, and calibrate the detector of an anomaly task.

    Args:
        task: the task, no classification.
        loaded: the integer model.
        shard: the samples of the device in the form of the task. Its test samples are measured, or its
            training samples if there are none.
        validation: how the client held out validation samples.
        on_float: outputs of the float model for the measured samples, shape (n, k).
        on_int8: raw outputs of the integer model for them, shape (n, k).

    Raises:
        ExportError: the model is not quantized.
    """
    held_out = len(shard.y_test) > 0
    x, y = (shard.x_test, shard.y_test) if held_out else (shard.x_train, shard.y_train)
    answers = dequantize_output(loaded, on_int8)
    entry: dict[str, Any] = {"kind": task.kind, "loss": task.loss_name}
    if task.kind != ANOMALY:
        figures = (measure_model(task.loss_name, outputs, y) for outputs in (on_float, answers))
        return ExportedTask(
            task=entry | combine_figures(*figures),
            anomaly=None,
            model_task=ModelTask(kind=task.kind, loss=task.loss_name),
        )
    is_anomaly = np.zeros(len(y), np.bool_)
    if held_out and shard.anomaly_test is not None:
        is_anomaly = shard.anomaly_test
    calibration = calibrate_detector(loaded, task, shard, validation)
    detector = calibration.detector
    scores = detector.score(quantize_input(loaded, x), on_int8)
    entry |= combine_figures(
        measure_model(task.loss_name, on_float, y, is_anomaly),
        measure_model(task.loss_name, answers, y, is_anomaly, scores),
    )
    anomaly = {
        "threshold": detector.threshold,
        "unit": detector.rule.unit,
        "false_alarm_rate": detector.false_alarm_rate,
        "calibrated_on": calibration.calibrated_on,
        "samples": len(calibration.scores),
        "bins": detector.count_bins(calibration.scores),
        "measured": measure_detector(detector, scores, is_anomaly),
    }
    warnings = calibration.warnings
    if held_out and calibration.calibrated_on == VALIDATION_SAMPLES:
        warning = explain_false_alarms(detector, scores[~is_anomaly])
        warnings += (warning,) if warning else ()
    model_task = ModelTask(
        kind=task.kind,
        loss=task.loss_name,
        anomalies=task.anomalies,
        false_alarm_rate=detector.false_alarm_rate,
        threshold=detector.threshold,
    )
    return ExportedTask(task=entry, anomaly=anomaly, model_task=model_task, warnings=warnings)
