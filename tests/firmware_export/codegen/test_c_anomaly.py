"""The C of anomaly detectors gives the scores of Python, on this computer and on a core in QEMU."""

import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgefl.base.errors import ExportError
from edgefl.base.tasks.detector import TASK_METADATA_NAME, ModelTask, encode_model_task
from edgefl.program.plan.tflite import with_metadata
from firmware_export.codegen.c_anomaly import make_network_detector
from firmware_export.codegen.c_source import generate_c
from firmware_export.firmware.firmware import build_and_run, explain_not_runnable
from firmware_export.firmware.targets import TARGETS
from firmware_export.quantize.anomaly import load_detector
from firmware_export.tflite.interpreter import load_tflite
from firmware_export.tflite.quantized_model import read_quantized_model

VALUES = 24
MAIN = """
#include <stdio.h>
#include "model.h"
int main(void)
{
    static int8_t sample[MODEL_INPUT_BYTES];
    static struct model_detector detector;
    uint32_t numbers[5 + MODEL_SCORE_BINS];
    model_detector_begin(&detector);
    while (fread(sample, 1, sizeof sample, stdin) == sizeof sample) {
        int8_t *const input = model_input();
        for (int i = 0; i < MODEL_INPUT_BYTES; i++) {
            input[i] = sample[i];
        }
        numbers[0] = (uint32_t)model_is_anomaly(&detector, input);
        numbers[1] = model_score(sample, model_output());
        numbers[2] = detector.score;
        numbers[3] = detector.windows;
        numbers[4] = detector.alarms;
        for (int i = 0; i < MODEL_SCORE_BINS; i++) {
            numbers[5 + i] = detector.bins[i];
        }
        fwrite(numbers, sizeof numbers, 1, stdout);
    }
    return sizeof detector == 48 + MODEL_INPUT_BYTES ? 0 : 1;
}
"""


def make_detector_model(
    graphs: Any, loss: str, threshold: int = 5000, scales: tuple[float, float] = (0.05, 0.05), extra: int = 0
) -> bytes:
    """Return a dense int8 layer with `extra` more outputs than inputs, and the task of a detector."""
    weights = np.random.default_rng(3).integers(-127, 128, (VALUES + extra, VALUES)).astype(np.int8)
    tensors = [
        graphs.T((1, VALUES), scales[0], -3),
        graphs.T(weights.shape, 0.004, 0, weights),
        graphs.T((1, len(weights)), scales[1], 9),
    ]
    layer = graphs.Op(
        "FULLY_CONNECTED", (0, 1, -1), (2,), {"keepNumDims": False}, "FullyConnected", version=4
    )
    task = ModelTask(kind="anomaly", loss=loss, anomalies=(), false_alarm_rate=0.05, threshold=threshold)
    return with_metadata(graphs.make_tflite(tensors, [layer]), {TASK_METADATA_NAME: encode_model_task(task)})


def draw_samples(count: int) -> Any:
    samples = np.random.default_rng(4).integers(-128, 128, (count, VALUES), np.int8)
    samples[:2] = [[127], [-128]]
    return samples


@pytest.mark.parametrize("loss", ["mse", "mae", "huber"])
@pytest.mark.parametrize("scales", [(0.05, 0.05), (0.003, 0.11), (0.4, 0.02)])
def test_scores_and_counters_on_the_host_equal_python(
    compiled: Any, graphs: Any, tmp_path: Path, loss: str, scales: tuple[float, float]
) -> None:
    if shutil.which("gcc") is None:
        pytest.skip("no gcc here; apt install gcc")
    samples = draw_samples(300)
    model = make_detector_model(graphs, loss, scales=scales)
    detector = load_detector(model, load_tflite(model, reference=True))
    expected = detector.score(samples, compiled.run_micro(model, samples))
    threshold = int(np.median(expected))
    model = make_detector_model(graphs, loss, threshold, scales)
    detector = load_detector(model, load_tflite(model, reference=True))
    program = compiled.build(generate_c(model), tmp_path, main=MAIN)
    ran = subprocess.run([program], input=samples.tobytes(), capture_output=True, timeout=60)
    assert ran.returncode == 0, "the struct has another size"
    rows = np.frombuffer(ran.stdout, np.uint32).reshape(len(samples), -1).astype(np.int64)
    np.testing.assert_array_equal(rows[:, 0], detector.is_alarm(expected))
    np.testing.assert_array_equal(rows[:, 1], expected)
    np.testing.assert_array_equal(rows[:, 2], expected)
    np.testing.assert_array_equal(rows[:, 3], np.arange(1, 301))
    np.testing.assert_array_equal(rows[:, 4], np.cumsum(expected > threshold))
    assert tuple(rows[-1, 5:]) == detector.count_bins(expected)
    assert 100 < rows[-1, 4] < 200


@pytest.mark.parametrize("target", ["cortex-m0", "cortex-m4"])
def test_scores_on_a_core_equal_python(compiled: Any, graphs: Any, tmp_path: Path, target: str) -> None:
    if reason := explain_not_runnable(TARGETS[target]):
        pytest.skip(reason)
    samples = draw_samples(40)
    model = make_detector_model(graphs, "huber", scales=(0.01, 0.03))
    _, ran = build_and_run(generate_c(model).files, TARGETS[target], samples, tmp_path)
    detector = load_detector(model, load_tflite(model, reference=True))
    np.testing.assert_array_equal(ran.outputs, compiled.run_micro(model, samples))
    np.testing.assert_array_equal(ran.scores, detector.score(samples, ran.outputs))


def test_classifier_and_regression_have_no_scorer(graphs: Any) -> None:
    model = make_detector_model(graphs, "mse")
    header = generate_c(model).files["model.h"]
    assert "#define MODEL_THRESHOLD 5000u" in header and "model_classify" not in header
    regression = with_metadata(
        graphs.make_tflite(
            [
                graphs.T((1, 2)),
                graphs.T((1, 2), 0.01, 0, np.ones((1, 2), np.int8)),
                graphs.T((1, 1)),
            ],
            [graphs.Op("FULLY_CONNECTED", (0, 1, -1), (2,), {}, "FullyConnected", version=4)],
        ),
        {TASK_METADATA_NAME: encode_model_task(ModelTask(kind="regression", loss="mae"))},
    )
    files = generate_c(regression, labels=["degrees"]).files
    assert "Names of the outputs" in files["model.h"]
    assert not any("classify" in text or "detector" in text for text in files.values())


def test_detector_needs_as_many_outputs_as_inputs(graphs: Any) -> None:
    with pytest.raises(ExportError, match="24 inputs and 25 outputs, expected equal numbers"):
        generate_c(make_detector_model(graphs, "mse", extra=1))


def test_detectors_of_file_and_network_are_equal(graphs: Any) -> None:
    model = make_detector_model(graphs, "huber", 77, (0.013, 0.04))
    task = ModelTask(kind="anomaly", loss="huber", anomalies=(), false_alarm_rate=0.05, threshold=77)
    assert make_network_detector(read_quantized_model(model), task) == load_detector(
        model, load_tflite(model)
    )
