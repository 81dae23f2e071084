"""The figures of report.json, with warnings about weak measurements."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

MIN_MEASURED_SAMPLES = 30
"""Number of held-out samples below which a measured accuracy means little."""


def find_warnings(answers: Any, *, classifies: bool = True) -> tuple[str, ...]:
    """Return the reasons why measurements on these answers prove little.

    Args:
        answers: outputs of the integer model, shape (samples, classes), int8 or int16.
        classifies: whether the outputs are scores of classes.

    Returns:
        One sentence for each reason: too few samples, or one class or one output for all of them.
    """
    warnings = []
    if len(answers) < MIN_MEASURED_SAMPLES:
        warnings.append(
            f"{len(answers)} samples prove little, expected {MIN_MEASURED_SAMPLES} or more; collect more on "
            "this device, or pass more with --data or --samples"
        )
    if not classifies:
        if len(answers) > 1 and (answers == answers[0]).all():
            warnings.append(
                f"the int8 model gives one output for all {len(answers)} samples, so equal outputs prove "
                "little about its layers; pass samples of the model's own data with --data"
            )
        return tuple(warnings)
    classes = {int(answer) for answer in answers.argmax(axis=1)}
    if len(classes) == 1 and len(answers) > 1:
        warnings.append(
            f"the int8 model answers class {classes.pop()} for all {len(answers)} samples, so equal outputs "
            "prove little about its layers; train for more rounds, or check the classes of the samples"
        )
    return tuple(warnings)


@dataclass(frozen=True)
class QuantizationAttempt:
    """One tried recipe and its result.

    Attributes:
        recipe: name of the recipe.
        calibration_samples: number of samples that it used.
        accuracy_int8: accuracy of the integer model on the samples that compare recipes. None if the task is
            no classification.
        agreement: share of samples for which it gives the float model's answer. None if the task is no
            classification.
        loss_int8: mean loss of the integer model on the samples that compare recipes. None for a
            classification.
    """

    recipe: str
    calibration_samples: int
    accuracy_int8: float | None
    agreement: float | None
    loss_int8: float | None = None

    @property
    def rank(self) -> tuple[float, float]:
        """The key by which attempts are compared. The largest is the best."""
        if self.loss_int8 is not None:
            return -self.loss_int8, 0.0
        return self.accuracy_int8 or 0.0, self.agreement or 0.0


@dataclass(frozen=True)
class ExportReport:
    """What was exported and measured, as report.json stores it. report.json leaves out each None.

    Attributes:
        accuracy_float: accuracy of the float model. None if the task is no classification.
        accuracy_int8: accuracy of the integer model. None if the task is no classification.
        agreement: share of samples for which both models give the same answer. None if the task is no
            classification.
        within_one_point: False if all remedies were tried and the best model still loses more than a point.
            None if the task is no classification.
        measured_on: "held-out" or "training" samples.
        num_test: number of those samples.
        tflite_bytes: size of the integer model.
        float_bytes: size of the float model.
        sha256: digest of model.tflite.
        recipe: name of the chosen recipe.
        calibration_samples: number of samples that the recipe used.
        tried: all attempts in order.
        runtime: name and version of the runtime that measured.
        quantizer: name and version of the library that quantized.
        peak_rss_mb: peak memory of the process, in MB.
        seed: random seed for the calibration samples.
        client_id: id of the client.
        route: "device" or "tensorflow".
        activation_bits: 8 or 16.
        mixing: what the graph mixes, see `detect_mixing`. "outputs" for a mixture of another task than
            classification.
        deflated_bytes: size of the integer model after zlib. Pruned and clustered weights reduce it.
        warnings: see `find_warnings`.
        held_out: a description of the rule that held out the samples.
        members: share of each exported member of a blend, by name. None for another model.
        task: for another task than classification, its `kind` and `loss`, the figures of
            `task_figures.measure_model` with `_float` and `_int8` behind their names, and `within_limit`:
            False if the mean loss of the best model still grows more than `MAX_LOSS_INCREASE`.
        anomaly: for an anomaly task, the `threshold` and its `unit` (the loss that a score of 1 means), the
            `false_alarm_rate` that it aims at, the samples it comes from (`calibrated_on`, `samples`, `bins`:
            their scores in the bins of `edgefl.base.tasks.detector`), and the figures of
            `task_figures.measure_detector` on the measured samples (`measured`).
    """

    accuracy_float: float | None
    accuracy_int8: float | None
    agreement: float | None
    within_one_point: bool | None
    measured_on: str
    num_test: int
    tflite_bytes: int
    float_bytes: int
    sha256: str
    recipe: str
    calibration_samples: int
    tried: tuple[QuantizationAttempt, ...]
    runtime: str
    quantizer: str
    peak_rss_mb: float
    seed: int
    client_id: str
    route: str
    activation_bits: int
    mixing: str
    deflated_bytes: int
    warnings: tuple[str, ...] = ()
    held_out: str = ""
    members: Mapping[str, float] | None = None
    task: Mapping[str, Any] | None = None
    anomaly: Mapping[str, Any] | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return the report as values for JSON, without its fields that are None."""
        values = {name: value for name, value in asdict(self).items() if value is not None}
        values["tried"] = tuple(
            {name: value for name, value in attempt.items() if value is not None}
            for attempt in values["tried"]
        )
        return values
