"""The figures of a float and an integer model, for tasks other than classification."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgefl.base.tasks.detector import AnomalyDetector, AnomalyScores
from edgefl.base.tasks.scores import measure_alarms, measure_auc, measure_r2, measure_sample_losses

FIGURE_NAMES = {"auc": "AUC", "r2": "R2", "mae": "mean absolute error"}
"""Names of figures for readers, in their order."""


def measure_model(
    loss: str,
    outputs: NDArray[Any],
    targets: NDArray[Any],
    is_anomaly: NDArray[np.bool_] | None = None,
    scores: AnomalyScores | None = None,
) -> dict[str, float | None]:
    """Return the figures of a model. A figure without samples is None.

    Args:
        loss: `mse`, `mae` or `huber`.
        outputs: real values of the model's outputs, shape (n, k).
        targets: the values to predict, shape (n, k).
        is_anomaly: for an anomaly task, whether each sample is an anomaly, shape (n,). None for a regression.
        scores: anomaly scores, shape (n,). None takes the losses.

    Returns:
        `loss`, `r2` and `mae`, of normal samples. For an anomaly task also `auc`, of all samples.
    """
    losses = measure_sample_losses(loss, outputs, targets)
    normal = slice(None) if is_anomaly is None else ~is_anomaly
    figures: dict[str, float] = {
        "loss": float(losses[normal].mean()) if len(losses[normal]) else math.nan,
        "r2": measure_r2(outputs[normal], targets[normal]),
        "mae": float(np.abs(outputs - targets)[normal].mean()) if len(losses[normal]) else math.nan,
    }
    if is_anomaly is not None:
        figures["auc"] = measure_auc(losses if scores is None else scores, is_anomaly)
    return replace_missing(figures)


def measure_detector(
    detector: AnomalyDetector, scores: AnomalyScores, is_anomaly: NDArray[np.bool_]
) -> dict[str, float | None]:
    """Return precision, recall, F1 and the false-alarm rate of a detector. A figure without samples is None.

    Args:
        scores: scores of samples, shape (n,), int64.
        is_anomaly: whether each sample is an anomaly, shape (n,).
    """
    return replace_missing(measure_alarms(detector.is_alarm(scores), is_anomaly))


def replace_missing(figures: Mapping[str, float]) -> dict[str, float | None]:
    """Return figures with None for each that is not finite, since JSON has no such number."""
    return {name: value if math.isfinite(value) else None for name, value in figures.items()}


def combine_figures(
    on_float: Mapping[str, float | None], on_int8: Mapping[str, float | None]
) -> dict[str, float | None]:
    """Return the figures of both models, with `_float` or `_int8` behind their names.

    Args:
        on_float: figures of the float model. A missing one becomes None.
        on_int8: figures of the integer model.
    """
    return {
        f"{name}_{kind}": value
        for name in on_int8
        for kind, value in (("float", on_float.get(name)), ("int8", on_int8[name]))
    }


def describe_task_figures(task: Mapping[str, Any] | None, kind: str = "int8") -> list[str]:
    """Return a line for each figure of a report's or certificate's entry `task`. No line without an entry.

    Args:
        task: the entry. None for a classification.
        kind: name of the integer model's type.
    """
    lines = []
    for key, name in FIGURE_NAMES.items():
        measured = (
            [
                f"{label} {task[f'{key}_{suffix}']:.4f}"
                for label, suffix in (("float", "float"), (kind, "int8"))
                if task is not None and task.get(f"{key}_{suffix}") is not None
            ]
            if task
            else []
        )
        if measured:
            lines.append(f"{name}: {', '.join(measured)}")
    return lines


def describe_threshold(anomaly: Mapping[str, Any]) -> str:
    """Return a line with the threshold of a report's entry `anomaly`, and how it did on measured samples."""
    measured = anomaly["measured"]
    rates = [
        f"{name} {measured[key]:.4f}"
        for key, name in (("false_alarm_rate", "false-alarm rate"), ("recall", "recall"))
        if measured[key] is not None
    ]
    return (
        f"threshold {anomaly['threshold']:,} (loss {anomaly['threshold'] * anomaly['unit']:.4g}) from "
        f"{anomaly['samples']} normal {anomaly['calibrated_on']} samples, for a false-alarm rate of "
        f"{anomaly['false_alarm_rate']:g}; measured: {', '.join(rates) or 'nothing'}"
    )
