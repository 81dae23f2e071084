"""Anomaly detectors of exported models: their scores, and the calibration of their threshold.

`edgefl.base.tasks.detector` defines the scores. The model file contains loss, threshold and false-alarm rate,
so that the file alone is a detector.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from edgefl.base.errors import ConfigError, ExportError
from edgefl.base.tasks.config import TaskConfig
from edgefl.base.tasks.detector import (
    TASK_METADATA_NAME,
    AnomalyDetector,
    AnomalyScores,
    ModelTask,
    ScoreRule,
    calibrate_threshold,
    decode_model_task,
    make_score_rule,
    score_reconstructions,
)
from edgefl.base.types import Array, Shard
from edgefl.learning.client.validation import ValidationSplit
from edgefl.program.plan.tflite import read_metadata
from firmware_export.tflite.interpreter import LoadedModel, quantize_input

VALIDATION_SAMPLES = "validation"
TEST_SAMPLES = "held-out"
TRAINING_SAMPLES = "training"


@dataclass(frozen=True)
class Calibration:
    """A detector with the origin of its threshold.

    Attributes:
        detector: the detector.
        calibrated_on: VALIDATION_SAMPLES, TEST_SAMPLES or TRAINING_SAMPLES.
        scores: scores of these samples, all normal, shape (n,), int64.
        warnings: one sentence for each reason why the threshold may raise more false alarms.
    """

    detector: AnomalyDetector
    calibrated_on: str
    scores: AnomalyScores
    warnings: tuple[str, ...]


def read_model_task(model: bytes) -> ModelTask | None:
    """Return the task that a model file contains. None for a classifier, and for a model of another tool.

    Raises:
        ExportError: the task is damaged.
    """
    content = read_metadata(model, TASK_METADATA_NAME)
    try:
        return None if content is None else decode_model_task(content)
    except ConfigError as error:
        raise ExportError(str(error)) from error


def load_detector(model: bytes, loaded: LoadedModel) -> AnomalyDetector:
    """Return the detector of a model file.

    Args:
        model: the int8 .tflite of an anomaly task.
        loaded: the same model.

    Raises:
        ExportError: the model is not an int8 model of an anomaly task.
    """
    task = read_model_task(model)
    if task is None or not task.is_anomaly:
        raise ExportError(
            f"the model's task is {'classification' if task is None else task.kind}, expected anomaly; set "
            "kind = 'anomaly' in [task] of the federation"
        )
    return AnomalyDetector(make_loaded_rule(loaded, task.loss), task.threshold, task.false_alarm_rate)


def make_loaded_rule(loaded: LoadedModel, loss: str) -> ScoreRule:
    """Return how the scores of a loaded model are computed.

    Args:
        loaded: an integer model.
        loss: `mse`, `mae` or `huber`.

    Raises:
        ExportError: the model is not quantized, or the loss is unknown.
    """
    try:
        return make_score_rule(
            loss, loaded.scale, loaded.zero_point, loaded.output_scale, loaded.output_zero_point
        )
    except ConfigError as error:
        raise ExportError(str(error)) from error


def run_scores(loaded: LoadedModel, rule: ScoreRule, x: Array) -> tuple[AnomalyScores, Any]:
    """Run a model on each sample and return the scores.

    Args:
        loaded: an integer model.
        x: samples, shape (n, ...), float32.

    Returns:
        The scores, shape (n,), int64, and the raw outputs, shape (n, k).

    Raises:
        ExportError: the samples have another shape than the input.
    """
    inputs = quantize_input(loaded, x)
    outputs = np.stack([loaded.invoke(sample[None]) for sample in inputs])
    return score_reconstructions(rule, inputs, outputs), outputs


def calibrate_detector(
    loaded: LoadedModel, task: TaskConfig, shard: Shard, validation: ValidationSplit
) -> Calibration:
    """Choose the threshold of a model from normal samples that it was not trained on.

    These are the validation samples, which the client holds out from training. Without any, they are the
    normal test samples. Without those too, they are the training samples.

    Args:
        loaded: the integer model.
        task: the task, of kind anomaly.
        shard: the samples of the device in the form of the task.
        validation: how the client held out validation samples.

    Raises:
        ExportError: the model is not quantized.
    """
    warnings = []
    normal_test = shard.x_test if shard.anomaly_test is None else shard.x_test[~shard.anomaly_test]
    if len(validation.y):
        x, origin = validation.x, VALIDATION_SAMPLES
    elif len(normal_test):
        x, origin = normal_test, TEST_SAMPLES
        warnings.append(
            "the plan holds out no validation samples, so the threshold comes from the normal held-out "
            "samples, and their false-alarm rate is no test of it; set validation_share in [personalization]"
        )
    else:
        x, origin = shard.x_train, TRAINING_SAMPLES
        warnings.append(
            "no sample is held out, so the threshold comes from training samples and will raise more false "
            "alarms on others; set validation_share in [personalization]"
        )
    rule = make_loaded_rule(loaded, task.loss_name)
    scores, _ = run_scores(loaded, rule, x)
    threshold, is_enough = calibrate_threshold(scores, task.false_alarm_rate)
    if not is_enough:
        warnings.append(
            f"{len(scores)} samples are too few for a false-alarm rate of {task.false_alarm_rate:g}, "
            f"expected {count_needed_samples(task.false_alarm_rate)} or more, so the threshold is the "
            "highest of their scores; collect more on this device, or raise false_alarm_rate in [task]"
        )
    return Calibration(
        detector=AnomalyDetector(rule, threshold, task.false_alarm_rate),
        calibrated_on=origin,
        scores=scores,
        warnings=tuple(warnings),
    )


def explain_false_alarms(detector: AnomalyDetector, scores: AnomalyScores) -> str:
    """Return a warning if a detector raises more false alarms on test samples than chance allows.

    Chance allows three standard deviations above the rate, and one alarm more.

    Args:
        scores: scores of normal test samples, shape (n,), int64, from which the threshold does not come.

    Returns:
        The warning. Empty if there is no reason for one.
    """
    count, rate = len(scores), detector.false_alarm_rate
    alarms = int(detector.is_alarm(scores).sum())
    if alarms <= count * rate + 3 * math.sqrt(count * rate * (1 - rate)) + 1:
        return ""
    return (
        f"{alarms} of {count} normal held-out samples raise an alarm, expected a share of {rate:g}: they "
        "differ from the validation samples, which may be windows of recordings that the model was trained "
        "on; mark recordings with the array group, or collect more of them"
    )


def count_needed_samples(false_alarm_rate: float) -> int:
    """Return how many normal samples a threshold for a false-alarm rate needs, see `calibrate_threshold`."""
    return int(np.ceil(1 / false_alarm_rate - 1e-9)) - 1
