"""Sensor messages <-> windows: what a payload says, and which readings follow on one another.

No network in here.
"""

import json
import math
import re
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from edgefl.config import suggest_nearest
from edgefl.data.sources.windows import FLOAT32_MAX, find_majority
from edgefl.errors import ConfigError, DataError
from edgefl.types import Array

MAX_SENSOR_CHANNELS = 1024
MAX_SENSORS = 256
MAX_LABEL_NUMBER = 999_999


def parse_reading(payload: bytes, channels: tuple[str, ...]) -> dict[str, float]:
    """Return the channels of a reading with their values.

    A number is the channel `value`. A list has the channels `0`, `1` and so on. An object has its fields by
    name.
    `channels` selects some of them.

    Raises:
        DataError: the payload is not JSON, contains anything but finite numbers, or lacks a channel.
    """
    try:
        raw = json.loads(payload, parse_constant=lambda _: None)
    except (ValueError, RecursionError) as error:
        raise DataError(f"no JSON, expected a number, a list or an object: {str(error)[:80]}") from error
    # sorted: an object's fields have no order, and boards must agree on one
    items = (
        sorted(raw.items())
        if isinstance(raw, dict)
        else enumerate(raw)
        if isinstance(raw, list)
        else [("value", raw)]
    )
    values = {str(key): value for key, value in items}
    if missing := [name for name in channels if name not in values]:
        raise DataError(f"no channel {missing[0]!r}, expected it among {', '.join(values)[:80] or 'none'}")
    picked = {name: values[name] for name in channels or values}
    if not 0 < len(picked) <= MAX_SENSOR_CHANNELS:
        raise DataError(f"{len(picked)} values, expected 1 to {MAX_SENSOR_CHANNELS}")
    for name, value in picked.items():
        if (
            isinstance(value, bool)
            or not isinstance(value, int | float)
            or not abs(value) <= FLOAT32_MAX
            or math.isnan(value)
        ):
            raise DataError(f"{name} is {str(value)[:40]!r}, expected a finite number")
    return {name: float(value) for name, value in picked.items()}


def parse_label(payload: bytes, classes: tuple[str, ...]) -> int:
    """Return the class number of a label: one of the classes' names, or a whole number where classes have no
    names. DataError.
    """
    text = payload[:1024].decode(errors="replace").strip().strip('"')
    if classes:
        if text not in classes:
            raise DataError(f"no class {text[:40]!r}; {suggest_nearest(text, list(classes))}")
        return classes.index(text)
    if not (text.isascii() and text.isdecimal() and len(text) < 8 and int(text) <= MAX_LABEL_NUMBER):
        raise DataError(
            f"the label {text[:40]!r} is no whole number from 0 to {MAX_LABEL_NUMBER}; give --classes "
            f"FILE with one "
            "class name a line"
        )
    return int(text)


@dataclass(frozen=True)
class SensorTopics:
    """Where readings and labels come from.

    A label topic with wildcards speaks of the sensor for which they stand for the same words.
    """

    readings: str
    labels: str = ""

    def __post_init__(self) -> None:
        for topic in filter(None, (self.readings, self.labels)):
            if not re.fullmatch(r"(\+|[^+#\0/]*)(/(\+|[^+#\0/]*))*(/#)?|#", topic):
                raise ConfigError(
                    f"the topic {topic!r} is no MQTT filter, expected such as a/+/accel: + is one whole "
                    "level, # all at the end"
                )
        wild = [sum(topic.count(mark) for mark in "+#") for topic in (self.readings, self.labels)]
        if self.labels and wild[1] not in (0, wild[0]):
            raise ConfigError(
                f"--label-topic {self.labels!r} has {wild[1]} wildcards, --topic {self.readings!r} "
                f"{wild[0]}; expected as many, or none"
            )

    def match(self, topic: str) -> tuple[str, tuple[str, ...]] | None:
        """Return `labels` or `readings` and what its wildcards stand for, None for another topic.

        Labels come first where both fit.
        """
        for kind, pattern in (("labels", self.labels), ("readings", self.readings)):
            if pattern and (wildcards := _match_filter(pattern, topic)) is not None:
                return kind, wildcards
        return None


def _match_filter(pattern: str, topic: str) -> tuple[str, ...] | None:
    parts = [{"+": "([^/]*)", "#": "(.*)"}.get(part, re.escape(part)) for part in pattern.split("/")]
    match = re.fullmatch("/".join(parts), topic, re.DOTALL)
    return match.groups() if match else None


@dataclass
class Sensor:
    """The readings of one sensor that follow on one another, the last `window` of them."""

    rows: deque[tuple[Array, int]]
    recording: int
    seen: int = 0


@dataclass(frozen=True)
class SensorWindow:
    """A window of readings, float32[window, channels], with its origin.

    Attributes:
        recording: number of the recording. A sensor begins another recording after a gap.
        first_row: index of the window's first reading in the recording.
    """

    values: Array
    label: int
    recording: int
    first_row: int


@dataclass
class WindowCutter:
    """Cuts the readings of each sensor into windows, one reading at a time.

    The windows equal those of `edgefl.data.sources.windows.cut_windows`. A reading before the first label
    is only counted. A gap restarts the window, since the rows of a window must be consecutive.

    Attributes:
        on_window: receives each window.
        channels: the fields to use. Empty uses all.
        form: the channels of the first reading, which all others must have.
    """

    topics: SensorTopics
    window: int
    step: int
    on_window: Callable[[SensorWindow], None]
    channels: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()
    label: int | None = None
    channel_names: tuple[str, ...] = ()
    readings: int = 0
    unlabelled: int = 0
    _labels: dict[tuple[str, ...], int] = field(default_factory=dict)
    _sensors: dict[str, Sensor] = field(default_factory=dict)
    _recordings: int = 0

    def take(self, topic: str, payload: bytes, retained: bool = False) -> None:
        """Process one message.

        A retained reading is ignored, because it is of an earlier time. A retained label counts.

        Raises:
            DataError: the message cannot be used. It has no other effect.
        """
        kind, wildcards = self.topics.match(topic) or ("", ())
        if kind == "labels":
            number = parse_label(payload, self.classes)
            if len(self._labels) >= MAX_SENSORS and wildcards not in self._labels:
                raise DataError(f"labels of more than {MAX_SENSORS} sensors; take a narrower --label-topic")
            self._labels[wildcards] = number
        elif kind == "readings" and not retained:
            self._take_reading(topic, wildcards, parse_reading(payload, self.channels))

    def _take_reading(self, topic: str, wildcards: tuple[str, ...], reading: Mapping[str, float]) -> None:
        self.channel_names = self.channel_names or tuple(reading)
        if tuple(reading) != self.channel_names:
            raise DataError(
                f"channels {', '.join(reading)[:80]}, expected {', '.join(self.channel_names)[:80]} as before"
            )
        self.readings += 1
        label = self.label if self.label is not None else self._labels.get(wildcards, self._labels.get(()))
        if label is None:
            self.unlabelled += 1
            return
        if len(self._sensors) >= MAX_SENSORS and topic not in self._sensors:
            raise DataError(f"readings of more than {MAX_SENSORS} sensors; take a narrower --topic")
        if topic not in self._sensors:
            self._sensors[topic] = Sensor(deque(maxlen=self.window), self._recordings)
            self._recordings += 1
        sensor = self._sensors[topic]
        sensor.rows.append((np.array(list(reading.values()), np.float32), label))
        sensor.seen += 1
        if sensor.seen >= self.window and (sensor.seen - self.window) % self.step == 0:
            labels = np.array([label for _, label in sensor.rows], np.int64)
            values = np.stack([row for row, _ in sensor.rows])
            self.on_window(
                SensorWindow(values, find_majority(labels), sensor.recording, sensor.seen - self.window)
            )

    def restart_windows(self) -> None:
        """Restart all windows, because messages may have been missed."""
        self._sensors.clear()


def format_counts(counts: Mapping[str, Any]) -> str:
    """Return counts in words, those that are 0 left out."""
    return ", ".join(f"{value} {key}" for key, value in counts.items() if value)
