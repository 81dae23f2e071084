"""Scores windows with the exported anomaly detector, and decides when the device reports its alarm."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from devices.readings import MAX_SENSORS
from edgefl.base.errors import ConfigError, DataError, PlanError, StateError
from edgefl.base.system.stderr import suppress_stderr
from edgefl.base.tasks.detector import (
    TASK_METADATA_NAME,
    AnomalyDetector,
    ModelTask,
    decode_model_task,
    make_score_rule,
)
from edgefl.base.tasks.samples import SAMPLES_METADATA_NAME, SamplesConfig, decode_samples
from edgefl.base.types import Array
from edgefl.data.forms import format_shape, to_input_shape
from edgefl.program.plan.runtime import load_interpreter
from edgefl.program.plan.tflite import read_metadata
from edgefl.protocol.wire.messages import Anomaly

EXPORT_REMEDY = (
    "take part in a federation with kind = 'anomaly' in [task], and let the device export its model"
)


@dataclass(frozen=True)
class WindowScorer:
    """Scores windows with a loaded detector.

    Attributes:
        input_shape: shape of a window.
        threshold: a higher score is an alarm, in units of the loss.
        task: the task of the model.
        score: returns the score of each window, shape (n,), float64, in units of the loss. Its argument are
            windows, shape (n, *input_shape), float32.
        samples: unit and layout of the windows that the model was trained on. None if it has no record.
    """

    input_shape: tuple[int, ...]
    threshold: float
    task: ModelTask
    score: Callable[[Array], NDArray[np.float64]]
    samples: SamplesConfig | None = None

    def count_channels(self, window: int) -> int:
        """Return the number of channels of a window that fits the model.

        Args:
            window: readings per window.

        Raises:
            ConfigError: no number of channels makes such a window fit.
        """
        channels = math.prod(self.input_shape) // window
        try:
            self._to_input(np.zeros((1, window, channels), np.float32))
        except DataError as error:
            raise ConfigError(
                f"--window is {window}, which does not fit the model's input "
                f"{format_shape(self.input_shape)}; omit --window to use the model's"
            ) from error
        return channels

    def score_windows(self, x: Array) -> NDArray[np.float64]:
        """Return the score of each window, in units of the loss.

        Args:
            x: windows, shape (n, ...), float32. A missing channel axis of size 1 is added. For a model whose
                input has one axis, windows of one reading or of one channel lose their other axis.

        Raises:
            DataError: the windows have another shape than the model's input.
        """
        return self.score(self._to_input(x))

    def _to_input(self, x: Array) -> Array:
        windows = to_input_shape(x, self.input_shape)
        if windows.shape[1:] in ((1, *self.input_shape), (*self.input_shape, 1)) and windows.ndim == 3:
            windows = windows.reshape(-1, *self.input_shape)
        if windows.shape[1:] != self.input_shape:
            raise DataError(
                f"a window is {format_shape(x.shape[1:])}, expected {format_shape(self.input_shape)}, the "
                "model's input; pass the --window and --channels of the samples that it was trained on"
            )
        return windows


def load_window_scorer(path: Path) -> WindowScorer:
    """Load the exported int8 model of an anomaly task.

    The reference kernels run it, because the threshold was calibrated with them.

    Args:
        path: the `.tflite`.

    Raises:
        StateError: the file is missing, or is not the model of an anomaly task.
        PlanError: no TFLite runtime is installed, or it rejects the model.
    """
    try:
        model = path.read_bytes()
    except OSError as error:
        raise StateError(f"cannot read the detector {path}: {error.strerror}; {EXPORT_REMEDY}") from error
    content = read_metadata(model, TASK_METADATA_NAME)
    try:
        task = None if content is None else decode_model_task(content)
    except ConfigError as error:
        raise StateError(f"{path}: {error}") from error
    if task is None or not task.is_anomaly:
        raise StateError(
            f"the task of {path} is {'classification' if task is None else task.kind}, expected anomaly; "
            f"{EXPORT_REMEDY}"
        )
    with suppress_stderr():  # the runtime prints a line about its delegate
        interpreter = load_interpreter(model, reference=True)
        try:
            interpreter.allocate_tensors()
        except (RuntimeError, ValueError) as error:
            raise PlanError(
                f"{path} cannot be run here: {error}; export the model again, or install a newer runtime"
            ) from error
    source, sink = interpreter.get_input_details()[0], interpreter.get_output_details()[0]
    (scale, zero_point), (output_scale, output_zero_point) = source["quantization"], sink["quantization"]
    try:
        rule = make_score_rule(task.loss, scale, zero_point, output_scale, output_zero_point)
    except ConfigError as error:
        raise StateError(f"{path}: {error}") from error
    samples = decode_samples(read_metadata(model, SAMPLES_METADATA_NAME) or b"")
    detector = AnomalyDetector(rule, task.threshold, task.false_alarm_rate)

    def score(x: Array) -> NDArray[np.float64]:
        inputs = np.clip(np.round(x / scale) + zero_point, -128, 127).astype(np.int8)
        outputs = []
        for sample in inputs:
            interpreter.set_tensor(source["index"], sample[None])
            interpreter.invoke()
            outputs.append(interpreter.get_tensor(sink["index"])[0].ravel())
        if not outputs:
            return np.zeros(0)
        return np.asarray(detector.score(inputs, np.stack(outputs)) * rule.unit, np.float64)

    return WindowScorer(
        input_shape=tuple(source["shape"][1:].tolist()),
        threshold=task.threshold * rule.unit,
        task=task,
        score=score,
        samples=samples,
    )


@dataclass
class AlarmTracker:
    """Turns scores into messages: one for each change of the alarm, and others at a limited rate.

    Attributes:
        client_id: id of the device.
        threshold: a higher score is an alarm.
        interval_s: shortest time between two messages without a change of the alarm, in seconds.
        windows: number of scored windows.
        alarms: number of windows with a score above the threshold.
    """

    client_id: str
    threshold: float
    interval_s: float
    windows: int = 0
    alarms: int = 0
    _scores: dict[str, float] = field(default_factory=dict)
    _reported: tuple[bool, float] | None = None

    @property
    def score(self) -> float:
        """The highest of the sensors' latest scores. 0 before the first score."""
        return max(self._scores.values(), default=0.0)

    def add_score(self, sensor: str, score: float, now_s: float) -> bool:
        """Record the score of a window, and return whether a message is due.

        A further sensor than `MAX_SENSORS` replaces the sensor whose last score is the oldest.

        Args:
            sensor: topic of the sensor.
            now_s: the time, in seconds on a clock that only moves forward.
        """
        self._scores.pop(sensor, None)
        if len(self._scores) >= MAX_SENSORS:
            del self._scores[next(iter(self._scores))]
        self._scores[sensor] = score
        self.windows += 1
        self.alarms += score > self.threshold
        alarm = self.score > self.threshold
        if self._reported and self._reported[0] == alarm and now_s - self._reported[1] < self.interval_s:
            return False
        self._reported = alarm, now_s
        return True

    def forget_sensors(self) -> None:
        """Forget the latest scores of all sensors. Call it when windows start again."""
        self._scores.clear()

    def make_message(self, ts: float) -> Anomaly:
        """Return the message with the current result.

        Args:
            ts: the time, in seconds since 1970.
        """
        alarm = self.score > self.threshold
        return Anomaly(
            client_id=self.client_id,
            score=self.score,
            threshold=self.threshold,
            alarm=alarm,
            windows=self.windows,
            alarms=self.alarms,
            ts=ts,
        )
