"""Converts sensor messages to windows of consecutive readings. This module does not use the network."""

import json
import math
import re
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from edgefl.base.errors import ConfigError, DataError
from edgefl.base.options import suggest_nearest
from edgefl.base.types import Array
from edgefl.data.sources.classes import parse_number
from edgefl.data.sources.windows import FLOAT32_MAX, find_epoch_unit, find_majority

MAX_SENSOR_CHANNELS = 1024
MAX_SENSORS = 256
MAX_LABEL_NUMBER = 999_999
MIN_SILENCE_S = 10.0
"""No shorter time between two readings is a gap."""
SILENCE_FACTOR = 10.0
"""A gap is this many times as long as the usual time between two readings."""
MAX_LISTED_FIELDS = 32
SINGLE_CHANNEL = "value"
"""Name of the channel of a message that is one number."""


def parse_reading(payload: bytes, channels: tuple[str, ...]) -> dict[str, float]:
    """Return the channels of a reading with their values.

    A number is the channel `value`. A list has the channels `0`, `1` and so on. An object has one channel for
    each field.

    Args:
        payload: the message, JSON.
        channels: names of the channels to return. Empty returns all channels.

    Returns:
        The value by name of the channel.

    Raises:
        DataError: the payload is not JSON, contains other values than finite numbers, lacks a channel, or has
            no values or too many.
    """
    try:
        raw = json.loads(payload, parse_constant=lambda _: None)
    except (ValueError, RecursionError) as error:
        raise DataError(f"not JSON, expected a number, a list or an object: {str(error)[:80]}") from error
    # Sorted, because the fields of an object have no order, and all boards must use the same order
    items = (
        sorted(raw.items())
        if isinstance(raw, dict)
        else enumerate(raw)
        if isinstance(raw, list)
        else [(SINGLE_CHANNEL, raw)]
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
            raise DataError(
                f"{name} is {str(value)[:40]!r}, expected a finite number"
                + ("" if channels else "; name the channels to use with --channels")
            )
    return {name: float(value) for name, value in picked.items()}


def parse_label(payload: bytes, classes: tuple[str, ...]) -> int:
    """Return the class number of a label.

    Args:
        payload: the message. It is the name of a class, or a whole number if classes have no names.
        classes: names of the classes. Empty if classes have no names.

    Raises:
        DataError: the label is not a class.
    """
    text = payload[:1024].decode(errors="replace").strip().strip('"')
    if classes:
        if text not in classes:
            raise DataError(f"no class {text[:40]!r}; {suggest_nearest(text, list(classes))}")
        return classes.index(text)
    number = parse_number(text)
    if number is None or number != round(number) or not 0 <= number <= MAX_LABEL_NUMBER:
        raise DataError(
            f"the label {text[:40]!r} is not a whole number from 0 to {MAX_LABEL_NUMBER}; pass --classes "
            "FILE with one class name per line"
        )
    return int(number)


def parse_target(payload: bytes) -> float:
    """Return the number to predict that a message contains.

    Args:
        payload: the message, a JSON number.

    Raises:
        DataError: the message is not one finite number.
    """
    return parse_reading(payload, (SINGLE_CHANNEL,))[SINGLE_CHANNEL]


@dataclass(frozen=True)
class SensorTopics:
    """The topics of readings and labels.

    Attributes:
        readings: MQTT filter of the readings.
        labels: MQTT filter of the labels or targets, empty without any. A label belongs to the sensor whose
            topic has the same values for the wildcards. Without wildcards it belongs to all sensors.

    Raises:
        ConfigError: a topic is not a filter, or the numbers of wildcards differ.
    """

    readings: str
    labels: str = ""

    def __post_init__(self) -> None:
        for topic in filter(None, (self.readings, self.labels)):
            if not re.fullmatch(r"(\+|[^+#\0/]*)(/(\+|[^+#\0/]*))*(/#)?|#", topic):
                raise ConfigError(
                    f"the topic {topic!r} is not an MQTT filter, expected a filter such as a/+/accel; use + "
                    "for one whole level, and # for all levels at the end"
                )
        wild = [sum(topic.count(mark) for mark in "+#") for topic in (self.readings, self.labels)]
        if self.labels and wild[1] not in (0, wild[0]):
            raise ConfigError(
                f"--label-topic or --target-topic {self.labels!r} has {wild[1]} wildcards, --topic "
                f"{self.readings!r} {wild[0]}; use the same number, or none in the topic of labels"
            )

    def match(self, topic: str) -> tuple[str, tuple[str, ...]] | None:
        """Return the kind of a topic and the values of its wildcards.

        Args:
            topic: topic of a message.

        Returns:
            `labels` or `readings`, and the part of the topic for each wildcard. If both filters match, the
            kind is `labels`. None if no filter matches.
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
    """The newest consecutive readings of one sensor, at most as many as a window has.

    Attributes:
        channels: names of the channels of the readings.
        rows: the readings with their labels or targets. A reading has shape (channels,), float32.
        recording: number of the recording.
        seen: number of readings in the recording.
    """

    channels: tuple[str, ...]
    rows: deque[tuple[Array, float]]
    recording: int
    seen: int = 0


@dataclass
class SensorClock:
    """The times at which one sensor was heard.

    Attributes:
        intervals: the newest times between two readings, in seconds.
        last: when the sensor was heard last.
    """

    intervals: deque[float]
    last: float

    def is_gap(self, now: float) -> bool:
        """Note a reading, and return whether readings are missing before it.

        A sensor that sends its readings in groups has long times between groups. The second longest time
        therefore counts as usual. A gap occurs once.

        Args:
            now: when the reading was received, from the same clock as `last`.
        """
        silence = now - self.last
        usual = sorted(self.intervals)[-2:][0] if silence > MIN_SILENCE_S and self.intervals else silence
        has_history = len(self.intervals) > 1
        self.intervals.append(silence)
        self.last = now
        return has_history and silence > max(MIN_SILENCE_S, SILENCE_FACTOR * usual)


@dataclass(frozen=True)
class SensorWindow:
    """A window of readings with its origin.

    Attributes:
        topic: topic of the sensor.
        channels: names of the channels.
        values: readings, shape (window, channels), float32.
        label: number of the class, or the target.
        recording: number of the recording. After a gap, a sensor begins a new recording.
        first_row: index of the window's first reading in the recording.
    """

    topic: str
    channels: tuple[str, ...]
    values: Array
    label: float
    recording: int
    first_row: int


@dataclass
class WindowCutter:
    """Cuts the readings of each sensor into windows, one reading at a time.

    The function `edgefl.data.sources.windows.cut_windows` cuts the same windows from consecutive readings
    with labels. The rows of a window are consecutive: after a gap, a reading that cannot be used, a reading
    without a label or a reading with other channels, the windows of that sensor start again. They also
    start again after a silence that is much longer than usual.

    At most `MAX_SENSORS` sensors have windows and labels. A further sensor replaces the sensor whose last
    reading is the oldest.

    Attributes:
        topics: topics of the readings and labels.
        window: number of readings per window.
        step: number of readings between the starts of two windows.
        on_window: receives each window.
        channels: names of the channels to use. Empty uses all channels but times since 1970.
        classes: names of the classes. Empty if classes have no names.
        label: number of the class of all readings. None uses the labels of the label topic.
        channel_names: expected channels of all sensors. Empty accepts any, also of different sensors.
        channel_count: expected number of channels of all sensors. 0 accepts any.
        readings: number of readings so far.
        unlabelled: number of readings for which no label applied.
        replaced: number of sensors that a further sensor replaced.
        silences: number of gaps because a sensor was silent.
        left_out: names of fields that were left out, at most `MAX_LISTED_FIELDS`.
        has_targets: whether the topic of labels has numbers to predict. A window gets the number at its last
            reading, and not the most frequent one.
    """

    topics: SensorTopics
    window: int
    step: int
    on_window: Callable[[SensorWindow], None]
    channels: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()
    label: int | None = None
    channel_names: tuple[str, ...] = ()
    channel_count: int = 0
    readings: int = 0
    unlabelled: int = 0
    replaced: int = 0
    silences: int = 0
    left_out: set[str] = field(default_factory=set)
    has_targets: bool = False
    # Both in the order of their last use
    _labels: dict[tuple[str, ...], float] = field(default_factory=dict)
    _sensors: dict[str, Sensor] = field(default_factory=dict)
    _clocks: dict[str, SensorClock] = field(default_factory=dict)
    _recordings: int = 0

    def take(
        self,
        topic: str,
        payload: bytes,
        retained: bool = False,
        oversize: int = 0,
        now: float | None = None,
    ) -> None:
        """Process one message.

        A retained reading is ignored, because it may be old. A retained label is used. A label applies until
        the next message on its topic. An empty message or an unknown class ends it.

        Args:
            payload: the message.
            retained: whether the broker retained the message.
            oversize: size in bytes of a message that was too large to receive, otherwise 0.
            now: when the message was received, in seconds of any clock. None notices no silence.

        Raises:
            DataError: the message cannot be used.
        """
        kind, wildcards = self.topics.match(topic) or ("", ())
        if kind == "labels":
            self._labels.pop(wildcards, None)
            _check_size(oversize)
            if payload:
                number = parse_target(payload) if self.has_targets else parse_label(payload, self.classes)
                _make_room(self._labels)
                self._labels[wildcards] = number
        elif kind == "readings" and not retained:
            sensor = self._sensors.pop(topic, None)
            if now is not None and self._is_gap(topic, now):
                self.silences += sensor is not None
                sensor = None
            _check_size(oversize)
            reading = self._leave_out_times(parse_reading(payload, self.channels))
            self._check_channels(tuple(reading))
            self._take_reading(topic, wildcards, reading, sensor)

    def _is_gap(self, topic: str, now: float) -> bool:
        clock = self._clocks.pop(topic, None)
        is_gap = clock is not None and clock.is_gap(now)
        _make_room(self._clocks)
        self._clocks[topic] = clock or SensorClock(deque(maxlen=2 * self.window), now)
        return is_gap

    def _leave_out_times(self, reading: dict[str, float]) -> dict[str, float]:
        if self.channels:
            return reading
        values = {name: value for name, value in reading.items() if not find_epoch_unit(value, value)}
        if len(values) < len(reading) and len(self.left_out) < MAX_LISTED_FIELDS:
            self.left_out |= set(reading) - set(values)
        if not values:
            raise DataError(
                f"{', '.join(reading)[:80]} are times since 1970, expected readings; name the channels to "
                "use with --channels"
            )
        return values

    def _check_channels(self, channels: tuple[str, ...]) -> None:
        if self.channel_names and channels != self.channel_names:
            raise DataError(
                f"the channels are {', '.join(channels)[:80]}, expected "
                f"{', '.join(self.channel_names)[:80]}, the channels of the recording; use a "
                "narrower --topic, or pass --channels"
            )
        if self.channel_count and len(channels) != self.channel_count:
            raise DataError(
                f"{len(channels)} channels, expected {self.channel_count}, the channels of the model's "
                "input; use a narrower --topic, or pass --channels"
            )

    def _take_reading(
        self, topic: str, wildcards: tuple[str, ...], reading: Mapping[str, float], sensor: Sensor | None
    ) -> None:
        self.readings += 1
        label = self._find_label(wildcards)
        if label is None:
            self.unlabelled += 1
            return
        channels = tuple(reading)
        if sensor is None or sensor.channels != channels:
            self.replaced += _make_room(self._sensors)
            sensor = Sensor(channels=channels, rows=deque(maxlen=self.window), recording=self._recordings)
            self._recordings += 1
        self._sensors[topic] = sensor
        sensor.rows.append((np.array(list(reading.values()), np.float32), label))
        sensor.seen += 1
        if sensor.seen >= self.window and (sensor.seen - self.window) % self.step == 0:
            if not self.has_targets:
                label = find_majority(np.array([label for _, label in sensor.rows], np.int64))
            values = np.stack([row for row, _ in sensor.rows])
            first_row = sensor.seen - self.window
            self.on_window(
                SensorWindow(
                    topic=topic,
                    channels=channels,
                    values=values,
                    label=label,
                    recording=sensor.recording,
                    first_row=first_row,
                )
            )

    def _find_label(self, wildcards: tuple[str, ...]) -> float | None:
        if self.label is not None:
            return self.label
        key = wildcards if wildcards in self._labels else ()
        if key not in self._labels:
            return None
        label = self._labels[key] = self._labels.pop(key)
        return label

    def restart_windows(self) -> None:
        """Start all windows again. Call it when messages may have been lost."""
        self._sensors.clear()

    def forget_labels(self) -> None:
        """End all labels. Call it when a label may have been lost."""
        self._labels.clear()


def _check_size(oversize: int) -> None:
    if oversize:
        raise DataError(f"the message has {oversize} bytes, expected one reading or label")


def _make_room(by_last_use: dict[Any, Any]) -> int:
    """Remove the first entry of a full dictionary, and return the number of removed entries."""
    if len(by_last_use) < MAX_SENSORS:
        return 0
    del by_last_use[next(iter(by_last_use))]
    return 1


def format_counts(counts: Mapping[str, Any]) -> str:
    """Return counts as text, without the counts that are 0.

    Args:
        counts: the count by name.
    """
    return ", ".join(f"{value} {key}" for key, value in counts.items() if value)
