"""The calibration of anomaly detectors, with a model whose scores follow from its input."""

from typing import Any

import numpy as np
import pytest

from edgefl.base.errors import ExportError
from edgefl.base.tasks.config import TaskConfig
from edgefl.base.tasks.detector import TASK_METADATA_NAME, AnomalyDetector, ModelTask, encode_model_task
from edgefl.base.types import Shard
from edgefl.learning.client.validation import ValidationSplit, hold_out_validation
from edgefl.program.plan.tflite import with_metadata
from firmware_export.quantize.anomaly import (
    calibrate_detector,
    count_needed_samples,
    explain_false_alarms,
    load_detector,
    make_loaded_rule,
    read_model_task,
    run_scores,
)
from firmware_export.quantize.task_figures import (
    combine_figures,
    describe_task_figures,
    describe_threshold,
    measure_model,
)
from firmware_export.tflite.interpreter import LoadedModel

STEP = 64**2
"""Score of an error of one step of equal scales."""
ZEROS = LoadedModel(
    invoke=lambda sample: np.zeros(1, np.int8),
    shape=(1, 1),
    dtype=np.int8,
    scale=1.0,
    zero_point=0,
    runtime="zeros",
    output_scale=1.0,
    output_zero_point=0,
)
"""A model that returns 0, so that the score of a sample k is k^2 steps."""


def make_shard(train: Any, test: Any = (), anomalies: Any = ()) -> Shard:
    x, x_test = (np.array(values, np.float32).reshape(-1, 1) for values in (train, [*test, *anomalies]))
    is_anomaly = np.arange(len(x_test)) >= len(test)
    return Shard(x_train=x, y_train=x, x_test=x_test, y_test=x_test, num_classes=1, anomaly_test=is_anomaly)


def test_score_of_a_sample_is_its_squared_error() -> None:
    rule = make_loaded_rule(ZEROS, "mse")
    scores, outputs = run_scores(ZEROS, rule, np.array([[0], [1.2], [-3]], np.float32))
    assert scores.tolist() == [0, STEP, 9 * STEP]
    assert outputs.tolist() == [[0], [0], [0]]


def test_threshold_comes_from_validation_samples() -> None:
    """Of 19 validation samples from 1 to 19 and a rate of 0.1, the 18th is the threshold."""
    shard = make_shard([100] * 50, [50] * 9, [90])
    held_out = np.arange(1, 20, dtype=np.float32)[::-1, None]
    made = calibrate_detector(
        ZEROS,
        TaskConfig(kind="anomaly", false_alarm_rate=0.1),
        shard,
        ValidationSplit(train=shard, x=held_out, y=held_out),
    )
    assert made.detector.threshold == 18**2 * STEP
    assert (made.calibrated_on, len(made.scores), made.warnings) == ("validation", 19, ())


def test_threshold_without_validation_samples_says_so() -> None:
    task = TaskConfig(kind="anomaly", false_alarm_rate=0.1)
    shard = make_shard([100] * 50, range(1, 20), [90, 91])
    made = calibrate_detector(ZEROS, task, shard, hold_out_validation(shard, 0, 1, ""))
    assert (made.calibrated_on, made.detector.threshold) == ("held-out", 18**2 * STEP)
    assert "false-alarm rate is no test of it" in made.warnings[0]
    shard = make_shard([5] * 50)
    made = calibrate_detector(ZEROS, task, shard, hold_out_validation(shard, 0, 1, ""))
    assert (made.calibrated_on, made.detector.threshold) == ("training", 25 * STEP)
    assert "will raise more false alarms" in made.warnings[0]


def test_too_few_samples_take_the_highest_score() -> None:
    shard = make_shard([1], [1, 4, 2])
    made = calibrate_detector(
        ZEROS, TaskConfig(kind="anomaly"), shard, ValidationSplit(train=shard, x=shard.x_test, y=shard.x_test)
    )
    assert made.detector.threshold == 16 * STEP
    assert "3 samples are too few for a false-alarm rate of 0.01, expected 99 or more" in made.warnings[0]
    assert [count_needed_samples(rate) for rate in (0.5, 0.1, 0.01, 0.03)] == [1, 9, 99, 33]


def test_more_false_alarms_than_chance_are_a_warning() -> None:
    """For 100 samples and a rate of 0.1, chance allows 10 + 3 * 3 + 1 alarms."""
    detector = AnomalyDetector(make_loaded_rule(ZEROS, "mse"), 5, 0.1)
    assert explain_false_alarms(detector, np.repeat([9, 5], [20, 80])) == ""
    assert "21 of 100 normal held-out samples" in explain_false_alarms(detector, np.repeat([9, 5], [21, 79]))
    assert explain_false_alarms(detector, np.zeros(0, np.int64)) == ""


def test_float_model_has_no_score_rule() -> None:
    loaded = LoadedModel(
        invoke=lambda sample: sample[0],
        shape=(1, 1),
        dtype=np.float32,
        scale=0.0,
        zero_point=0,
        runtime="float",
    )
    with pytest.raises(ExportError, match=r"scales of input and output are 0\.0 and 0\.0"):
        make_loaded_rule(loaded, "mse")


def test_model_without_a_detector_is_refused(graphs: Any) -> None:
    model = graphs.make_tflite([graphs.T((1, 1)), graphs.T((1, 1))], [graphs.Op("RELU", (0,), (1,))])
    assert read_model_task(model) is None
    with pytest.raises(ExportError, match="task is classification, expected anomaly"):
        load_detector(model, ZEROS)
    regression = with_metadata(
        model, {TASK_METADATA_NAME: encode_model_task(ModelTask(kind="regression", loss="mse"))}
    )
    with pytest.raises(ExportError, match="task is regression, expected anomaly"):
        load_detector(regression, ZEROS)
    with pytest.raises(ExportError, match="record of its task cannot be read"):
        read_model_task(with_metadata(model, {TASK_METADATA_NAME: b"{}"}))


def test_figures_match_hand_computed_values() -> None:
    """Errors 1, 1, 1 around the targets 0, 2, 4, then two anomalies with errors 3 and 0.5."""
    outputs, targets = np.array([[1.0], [1], [3], [9], [9]]), np.array([[0.0], [2], [4], [6], [9.5]])
    assert measure_model("mse", outputs[:3], targets[:3]) == {"loss": 1.0, "r2": 1 - 3 / 8, "mae": 1.0}
    is_anomaly = np.array([False] * 3 + [True] * 2)
    figures = measure_model("mse", outputs, targets, is_anomaly)
    assert figures == {"loss": 1.0, "r2": 1 - 3 / 8, "mae": 1.0, "auc": 0.5}
    assert measure_model("mse", outputs[:3], targets[:3], is_anomaly[:3])["auc"] is None
    combined = combine_figures({"r2": 0.5}, {"r2": 0.25, "auc": None})
    assert combined == {"r2_float": 0.5, "r2_int8": 0.25, "auc_float": None, "auc_int8": None}
    assert describe_task_figures(combined, "int16") == ["R2: float 0.5000, int16 0.2500"]
    assert describe_task_figures(None) == []


def test_threshold_is_described_with_its_origin() -> None:
    line = describe_threshold(
        {
            "threshold": 2000,
            "unit": 0.001,
            "samples": 80,
            "calibrated_on": "validation",
            "false_alarm_rate": 0.05,
            "measured": {"false_alarm_rate": 0.04, "recall": None},
        }
    )
    assert line == (
        "threshold 2,000 (loss 2) from 80 normal validation samples, for a false-alarm rate of 0.05; "
        "measured: false-alarm rate 0.0400"
    )
