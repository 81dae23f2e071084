"""Renders the C of an anomaly detector: the score of `edgefl.base.tasks.detector`, its threshold and
counters.

The text comes from `templates/anomaly`.
"""

from importlib import resources

import numpy as np

from edgefl.base.errors import ConfigError, ExportError
from edgefl.base.tasks.detector import AnomalyDetector, ModelTask, make_score_rule
from firmware_export.tflite.quantized_model import QuantizedModel

LOSS_NAMES = {
    "mse": "the mean squared error",
    "mae": "the mean absolute error",
    "huber": "the mean Huber loss with delta 1",
}
LOSS_TERMS = {
    "mae": "        sum += error;",
    "mse": "        error = (error + 128) >> 8; /* in units of the scale / 64 */\n"
    "        sum += error * error;",
    "huber": "        uint32_t inner;\n"
    "        error = (error + 128) >> 8; /* in units of the scale / 64 */\n"
    "        inner = error < {delta}u ? error : {delta}u;\n"
    "        sum += inner * inner + {double}u * (error - inner);",
}


def make_network_detector(network: QuantizedModel, task: ModelTask) -> AnomalyDetector:
    """Return the detector of a model.

    Args:
        network: the int8 model.
        task: its task, of kind anomaly.

    Raises:
        ExportError: input or output is not int8, or they have different sizes, so the output cannot
            reconstruct the input.
    """
    entry, result = (network.get_tensor(index) for index in (network.inputs[0], network.outputs[0]))
    if {entry.dtype, result.dtype} != {"INT8"}:
        raise ExportError(
            f"an anomaly model has an input of {entry.dtype} and an output of {result.dtype}, expected INT8; "
            "quantize it to full int8"
        )
    if entry.size != result.size:
        raise ExportError(
            f"an anomaly model has {entry.size} inputs and {result.size} outputs, expected equal numbers; "
            "train an autoencoder, such as the model autoencoder"
        )
    try:
        rule = make_score_rule(
            task.loss, float(entry.scale[0]), entry.zero_point, float(result.scale[0]), result.zero_point
        )
    except ConfigError as error:
        raise ExportError(str(error)) from error
    return AnomalyDetector(rule, task.threshold, task.false_alarm_rate)


def render_detector_h(detector: AnomalyDetector) -> str:
    """Return the lines of a detector in model.h."""
    rule = detector.rule
    values = {
        "LOSS": LOSS_NAMES[rule.loss],
        "THRESHOLD": str(detector.threshold),
        "UNIT": np.format_float_scientific(np.float32(rule.unit)),
    }
    return _fill_template("anomaly.h.in", values)


def render_detector_c(detector: AnomalyDetector) -> str:
    """Return the functions of a detector in model.c."""
    rule = detector.rule
    values = {
        "INPUT_MULTIPLIER": str(rule.input_multiplier),
        "OUTPUT_MULTIPLIER": str(rule.output_multiplier),
        "TERM": LOSS_TERMS[rule.loss].format(delta=rule.delta, double=2 * rule.delta),
    }
    return _fill_template("anomaly.c.in", values)


def _fill_template(name: str, values: dict[str, str]) -> str:
    text = resources.files("firmware_export").joinpath("templates", "anomaly", name).read_text()
    for key, value in values.items():
        text = text.replace(f"@{key}@", value)
    return text
