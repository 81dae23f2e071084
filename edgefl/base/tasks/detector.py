"""Anomaly scores of an int8 model, in integers, with the same result in Python and in the generated C.

Input and output of an int8 autoencoder have two scales. The score brings both to the larger scale s. With a =
input byte - zero point, b = output byte - zero point, and the multipliers p and q, which are 2^14 times the
own scale divided by s, rounded:

    e = |q b - p a|, an error in units of s / 2^14
    d = (e + 128) >> 8, the same error in units of s / 64

The score is the sum of one of these terms over all values, divided by the number of values, rounded down:

    mae:   e                        in units of s / 2^14
    mse:   d^2                      in units of s^2 / 2^12
    huber: m^2 + 2 delta (d - m)    in units of s^2 / 2^13, where m = min(d, delta) and delta = 64 / s

A term of int8 values is below 2^30, so the score is a uint32_t. The sum needs 64 bits.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgefl.base.errors import ConfigError
from edgefl.base.tasks.config import ANOMALY, LOSSES_BY_KIND, REGRESSION
from edgefl.base.tasks.scores import HUBER_DELTA

AnomalyScores = NDArray[np.int64]
MULTIPLIER_BITS = 14
ERROR_BITS = 6
"""Fractional bits of the error d."""
SCORE_BINS = 8
"""Number of bins of the scores' histogram: at most 1/16, 1/8, 1/4, 1/2, 1, 2, 4 thresholds, and more."""
THRESHOLD_BIN = 4
"""The last bin without alarms."""
MAX_SCALE = 1e18
"""Limit of a scale. The square of a lower one is a float in C."""
MAX_THRESHOLD = (1 << 32) - 1


@dataclass(frozen=True)
class ScoreRule:
    """How the score of a sample follows from the bytes of a model's input and output.

    Attributes:
        loss: `mse`, `mae` or `huber`.
        input_zero_point: zero point of the input.
        output_zero_point: zero point of the output.
        input_multiplier: p, from 0 to 2^14.
        output_multiplier: q, from 0 to 2^14. The larger of both multipliers is 2^14.
        delta: delta of the Huber loss in units of s / 64, from 1 to 2^15. 0 for another loss.
        unit: the loss that a score of 1 means.
    """

    loss: str
    input_zero_point: int
    output_zero_point: int
    input_multiplier: int
    output_multiplier: int
    delta: int
    unit: float


def make_score_rule(
    loss: str, input_scale: float, input_zero_point: int, output_scale: float, output_zero_point: int
) -> ScoreRule:
    """Return the rule of a model.

    Args:
        loss: `mse`, `mae` or `huber`.
        input_scale: scale of the input's quantization, above 0 and below MAX_SCALE.
        output_scale: scale of the output's quantization, above 0 and below MAX_SCALE.

    Raises:
        ConfigError: the loss is unknown, or a scale is out of range.
    """
    if loss not in LOSSES_BY_KIND[ANOMALY]:
        raise ConfigError(
            f"the loss of the detector is {loss!r}, expected one of {', '.join(LOSSES_BY_KIND[ANOMALY])}; "
            "export the model again"
        )
    if not (0 < input_scale < MAX_SCALE and 0 < output_scale < MAX_SCALE):
        raise ConfigError(
            f"the scales of input and output are {input_scale} and {output_scale}, expected numbers above 0 "
            f"and below {MAX_SCALE:g}; use an int8 model, from `edgefl export`"
        )
    scale = max(input_scale, output_scale)
    p, q = (round(part / scale * (1 << MULTIPLIER_BITS)) for part in (input_scale, output_scale))
    delta = 0
    unit = scale / (1 << MULTIPLIER_BITS)
    if loss != "mae":
        unit = (scale / (1 << ERROR_BITS)) ** 2
    if loss == "huber":
        delta = min(max(round(HUBER_DELTA * (1 << ERROR_BITS) / scale), 1), 1 << 15)
        unit /= 2
    return ScoreRule(
        loss=loss,
        input_zero_point=input_zero_point,
        output_zero_point=output_zero_point,
        input_multiplier=p,
        output_multiplier=q,
        delta=delta,
        unit=unit,
    )


def score_reconstructions(rule: ScoreRule, inputs: NDArray[Any], outputs: NDArray[Any]) -> AnomalyScores:
    """Return the score of each sample. More means less normal.

    Args:
        rule: the rule of the model.
        inputs: the model's input bytes, shape (n, ...), int8.
        outputs: the model's output bytes, shape (n, k), int8, with as many values per sample as the input.

    Returns:
        The scores, shape (n,), int64.
    """
    a = inputs.reshape(len(inputs), -1).astype(np.int64) - rule.input_zero_point
    b = outputs.reshape(len(outputs), -1).astype(np.int64) - rule.output_zero_point
    terms = np.abs(rule.output_multiplier * b - rule.input_multiplier * a)
    if rule.loss != "mae":
        shift = MULTIPLIER_BITS - ERROR_BITS
        errors = (terms + (1 << shift >> 1)) >> shift
        quadratic = np.minimum(errors, rule.delta) if rule.delta else errors
        terms = quadratic**2 + 2 * rule.delta * (errors - quadratic)
    return np.asarray(terms.sum(axis=1) // terms.shape[1])


@dataclass(frozen=True)
class AnomalyDetector:
    """The scores of a model, and the threshold above which a sample is an anomaly.

    Attributes:
        rule: how to score.
        threshold: a higher score raises an alarm.
        false_alarm_rate: share of normal samples that may raise an alarm.
    """

    rule: ScoreRule
    threshold: int
    false_alarm_rate: float

    def score(self, inputs: NDArray[Any], outputs: NDArray[Any]) -> AnomalyScores:
        """Return the score of each sample, see `score_reconstructions`.

        Args:
            inputs: the model's input bytes, shape (n, ...), int8.
            outputs: the model's output bytes, shape (n, k), int8.
        """
        return score_reconstructions(self.rule, inputs, outputs)

    def is_alarm(self, scores: AnomalyScores) -> NDArray[np.bool_]:
        """Return whether each score raises an alarm.

        Args:
            scores: scores, shape (n,), int64.
        """
        return np.asarray(scores > self.threshold)

    def count_bins(self, scores: AnomalyScores) -> tuple[int, ...]:
        """Return how many scores are in each of SCORE_BINS bins, as the counters of the generated C.

        Bin k from 0 to 6 holds scores up to threshold 2^(k - 4), rounded down, that are in no lower bin. The
        last bin holds all higher scores.

        Args:
            scores: scores, shape (n,), int64.
        """
        limits = [(self.threshold << 2) >> shift for shift in range(SCORE_BINS - 2, -1, -1)]
        return tuple(np.bincount(np.searchsorted(limits, scores), minlength=SCORE_BINS).tolist())


def calibrate_threshold(scores: AnomalyScores, false_alarm_rate: float) -> tuple[int, bool]:
    """Choose the threshold from the scores of normal samples that the model was not trained on.

    The threshold is the score of rank (n + 1) (1 - rate), rounded up. A further normal sample is then above
    it with a chance of at most the rate, if all samples are drawn in the same way.

    Args:
        scores: scores of normal samples, shape (n,), int64, n > 0.
        false_alarm_rate: share of normal samples that may raise an alarm, above 0 and below 1.

    Returns:
        The threshold, and whether there are enough samples for the rate. Without, the threshold is the
            highest score.

    Source: split conformal prediction, J. Lei et al., Journal of the American Statistical Association 113
    (2018), section 2.2.
    """
    ordered = np.sort(scores)
    rank = math.ceil((len(ordered) + 1) * (1 - false_alarm_rate) - 1e-9)
    return int(ordered[min(rank, len(ordered)) - 1]), rank <= len(ordered)


TASK_METADATA_NAME = "EDGEFL_TASK"
"""Name of the metadata entry of an exported model that contains its encoded task."""
MODEL_TASK_VERSION = 1


@dataclass(frozen=True)
class ModelTask:
    """What an exported model was trained for, if it is no classifier. The model file contains it.

    Attributes:
        kind: `regression` or `anomaly`.
        loss: `mse`, `mae` or `huber`.
        anomalies: labels that mean an anomaly, see `edgefl.base.tasks.config.TaskConfig`.
        false_alarm_rate: share of normal samples that may raise an alarm. 0 for a regression.
        threshold: threshold of the detector. 0 for a regression.
    """

    kind: str
    loss: str
    anomalies: tuple[int, ...] = ()
    false_alarm_rate: float = 0.0
    threshold: int = 0

    @property
    def is_anomaly(self) -> bool:
        """Whether the model detects anomalies."""
        return self.kind == ANOMALY


def encode_model_task(task: ModelTask) -> bytes:
    """Encode a task as JSON."""
    fields = {**task.__dict__, "anomalies": list(task.anomalies)}
    return json.dumps({"version": MODEL_TASK_VERSION, **fields}, separators=(",", ":")).encode()


def decode_model_task(content: bytes) -> ModelTask:
    """Decode a task that `encode_model_task` encoded.

    Raises:
        ConfigError: the bytes are damaged, or have another version.
    """
    try:
        fields = json.loads(content)
        if not isinstance(fields, Mapping) or fields.get("version") != MODEL_TASK_VERSION:
            raise ValueError("another version")
        task = ModelTask(
            kind=fields["kind"],
            loss=fields["loss"],
            anomalies=tuple(fields["anomalies"]),
            false_alarm_rate=float(fields["false_alarm_rate"]),
            threshold=fields["threshold"],
        )
        if task.kind not in (REGRESSION, ANOMALY) or task.loss not in LOSSES_BY_KIND[task.kind]:
            raise ValueError(f"kind {task.kind!r} with loss {task.loss!r}")
        if type(task.threshold) is not int or not 0 <= task.threshold <= MAX_THRESHOLD:
            raise ValueError(f"threshold {task.threshold!r}")
        if any(type(label) is not int or label < 0 for label in task.anomalies):
            raise ValueError(f"anomalies {task.anomalies!r}")
        if task.is_anomaly and not 0 < task.false_alarm_rate < 1:
            raise ValueError(f"false_alarm_rate {task.false_alarm_rate!r}")
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError) as error:
        raise ConfigError(
            f"the model's record of its task cannot be read: {error!r}; update edgefl, or export the model "
            "again"
        ) from error
    return task
