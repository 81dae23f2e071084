"""report.json of each kind of task, and the order of attempts."""

import json
from dataclasses import replace

from devices.export import extract_export_metrics
from firmware_export.commands.fleet import select_main_figure
from firmware_export.quantize.report import ExportReport, QuantizationAttempt

CLASSIFIED = ExportReport(
    accuracy_float=0.9,
    accuracy_int8=0.8,
    agreement=0.7,
    within_one_point=False,
    measured_on="held-out",
    num_test=10,
    tflite_bytes=1000,
    float_bytes=4000,
    sha256="00",
    recipe="a",
    calibration_samples=5,
    tried=(
        QuantizationAttempt(recipe="a", calibration_samples=5, accuracy_int8=0.8, agreement=0.7),
        QuantizationAttempt(recipe="b", calibration_samples=5, accuracy_int8=0.8, agreement=0.6),
    ),
    runtime="litert",
    quantizer="quantizer",
    peak_rss_mb=90.0,
    seed=1,
    client_id="pi-1",
    route="device",
    activation_bits=8,
    mixing="none",
    deflated_bytes=900,
)
DETECTED = replace(
    CLASSIFIED,
    accuracy_float=None,
    accuracy_int8=None,
    agreement=None,
    within_one_point=None,
    tried=(
        QuantizationAttempt(
            recipe="a", calibration_samples=5, accuracy_int8=None, agreement=None, loss_int8=0.5
        ),
        QuantizationAttempt(
            recipe="b", calibration_samples=5, accuracy_int8=None, agreement=None, loss_int8=0.25
        ),
    ),
    task={"kind": "anomaly", "auc_float": 0.75, "auc_int8": 0.5, "r2_float": 0.1, "r2_int8": -0.5},
    anomaly={"threshold": 7},
)


def test_best_attempt_has_the_highest_accuracy_or_the_lowest_loss() -> None:
    assert max(CLASSIFIED.tried, key=lambda attempt: attempt.rank).recipe == "a"
    assert max(DETECTED.tried, key=lambda attempt: attempt.rank).recipe == "b"


def test_report_of_a_classifier_has_no_entry_of_other_tasks() -> None:
    values = CLASSIFIED.as_dict()
    assert not {"task", "anomaly"} & values.keys()
    assert list(values)[:4] == ["accuracy_float", "accuracy_int8", "agreement", "within_one_point"]
    assert list(values["tried"][0]) == ["recipe", "calibration_samples", "accuracy_int8", "agreement"]


def test_report_of_another_task_has_no_accuracy() -> None:
    values = json.loads(json.dumps(DETECTED.as_dict()))
    assert not {"accuracy_float", "accuracy_int8", "agreement", "within_one_point"} & values.keys()
    assert values["tried"][1] == {"recipe": "b", "calibration_samples": 5, "loss_int8": 0.25}
    assert values["anomaly"] == {"threshold": 7}


def test_device_reports_the_measure_of_its_task() -> None:
    sizes = {"tflite_bytes": 1000.0, "export_rss_mb": 90.0}
    assert extract_export_metrics(CLASSIFIED.as_dict()) == {"accuracy_shipped_int8": 0.8, **sizes}
    # R2 below 0 counts as 0, as in the figures of the other models
    assert extract_export_metrics(DETECTED.as_dict()) == {
        "auc_shipped_int8": 0.5,
        "r2_shipped_int8": 0.0,
        **sizes,
    }


def test_fleet_compares_auc_or_r2() -> None:
    assert select_main_figure(CLASSIFIED) == {"accuracy_float": 0.9, "accuracy_int8": 0.8}
    assert select_main_figure(DETECTED) == {"auc_float": 0.75, "auc_int8": 0.5}
    without_anomalies = replace(DETECTED, task={"r2_float": 0.1, "r2_int8": 0.05, "auc_int8": None})
    assert select_main_figure(without_anomalies) == {"r2_float": 0.1, "r2_int8": 0.05}
