"""Scores new windows of sensor topics with the exported anomaly detector, and publishes alarms."""

import contextlib
import logging
import secrets
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from devices.anomaly_scores import AlarmTracker, WindowScorer, load_window_scorer
from devices.readings import SensorTopics, SensorWindow, WindowCutter
from edgefl.base.errors import ConfigError, DataError
from edgefl.base.names import check_client_id
from edgefl.base.storage.device_directory import DeviceFiles, decode_note
from edgefl.base.system.signals import Stopped
from edgefl.base.tasks.config import ANOMALY, TaskConfig
from edgefl.base.tasks.samples import SamplesConfig
from edgefl.base.tasks.scores import measure_alarms
from edgefl.data.forms import scale_samples, split_targets, to_training_form
from edgefl.data.npz import check_lengths, read_label_array, read_sample_array
from edgefl.data.sources import DataSource, parse_source, read_source
from edgefl.data.task_form import check_anomaly_labels, find_anomalies
from edgefl.data.unit import check_unit, to_federation_classes
from edgefl.protocol.security.enrolment import Enrolment, make_tls_context
from edgefl.protocol.transport.link import Link, Message
from edgefl.protocol.wire.strict_json import encode_json
from edgefl.protocol.wire.topics import FederationTopics

LOGGER = logging.getLogger("edgefl.detector")
UNUSABLE_LOG_INTERVAL_S = 60.0
ACKNOWLEDGEMENT_TIMEOUT_S = 10.0


@dataclass(frozen=True)
class DetectSettings:
    """The options of `edgefl device detect`.

    Attributes:
        state: the state directory of the device.
        broker: URL of the broker that gets the alarms. Empty publishes nothing.
        sensor_broker: URL of the broker of the readings. Empty uses `broker`.
        topics: topics of the readings. None scores the samples of `data` once.
        data: where samples are, or None.
        client_id: id of the device. Empty uses the id in the state directory.
        federation: name of the federation. Empty uses the name in the state directory.
        window: number of readings per window. 0 uses the window of the model.
        step: number of readings between the starts of two windows. 0 uses `window`.
        channels: names of the channels. Empty uses the channels of the model, or all channels without names.
        scale: what divides readings. 0 uses the scale that the owner stated for the device's samples, or else
            the scale of the model.
        interval_s: shortest time between two messages without a change of the alarm, in seconds.
        count: number of windows after which to stop. 0 runs until a signal.
        enrolment: the keys of the device, or None.
    """

    state: Path
    broker: str = ""
    sensor_broker: str = ""
    topics: SensorTopics | None = None
    data: DataSource | None = None
    client_id: str = ""
    federation: str = ""
    window: int = 0
    step: int = 0
    channels: tuple[str, ...] = ()
    scale: float = 0.0
    interval_s: float = 60.0
    count: int = 0
    enrolment: Enrolment | None = None


def read_owner(state: Path) -> tuple[str, str, float]:
    """Return the id of a device, the name of its federation, and the scale that its owner stated.

    They are empty, or 0, if the state has none.
    """
    try:
        note = decode_note(DeviceFiles(state).note.read_bytes())
        scale = parse_source(note).scale if "data" in note else 0.0
    except (OSError, ValueError, TypeError):
        return "", "", 0.0
    return str(note.get("id", "")), str(note.get("federation", "")), scale


class Detector:
    """Scores windows and publishes the result of one device.

    Args:
        settings: the options of `edgefl device detect`.

    Raises:
        ConfigError: the id of the device or the name of the federation is missing or not valid.
        StateError: the state directory has no anomaly detector.
        PlanError: the detector cannot be run here.
    """

    def __init__(self, settings: DetectSettings) -> None:
        self._settings = settings
        self._scorer: WindowScorer = load_window_scorer(DeviceFiles(settings.state).model)
        stored_id, stored_federation, stored_scale = read_owner(settings.state)
        layout = self._scorer.samples or SamplesConfig()
        self._scale = settings.scale or stored_scale or layout.scale
        self._channels = layout.channels
        client_id = settings.client_id or stored_id
        federation = settings.federation or stored_federation
        self._topic = ""
        if settings.broker:
            for name, value in (("--id", client_id), ("--federation", federation)):
                if not value:
                    raise ConfigError(
                        f"{settings.state} has no readable {DeviceFiles.note.name} with the {name[2:]}; "
                        f"pass {name}"
                    )
            self._topic = FederationTopics(federation).format_device(check_client_id(client_id), "anomaly")
        self._tracker = AlarmTracker(
            client_id=client_id, threshold=self._scorer.threshold, interval_s=settings.interval_s
        )
        self._link: Link | None = None
        self._malformed = self._published = 0
        self._message = b""

    def run(self) -> dict[str, Any]:
        """Score the samples once, or the windows of the readings until `count` windows or a stop signal.

        Returns:
            The number of windows, alarms and published messages, the latest score and the threshold. Samples
                with labels add `precision`, `recall`, `f1` and `false_alarm_rate`.

        Raises:
            LinkError: a broker does not answer, or refuses a message.
            DataError: the samples cannot be read, or do not fit the model.
            ConfigError: a window of readings does not fit the model, or the enrolment cannot be used.
        """
        settings = self._settings
        figures: dict[str, float] = {}
        with contextlib.ExitStack() as stack:
            if settings.broker:
                self._link = self._open_link(settings.broker, settings.enrolment)
                stack.callback(self._link.close)
            if settings.data:
                figures = self._score_samples(settings.data)
            elif settings.topics:
                readings = self._link
                if settings.sensor_broker or readings is None:
                    readings = self._open_link(settings.sensor_broker, None)
                    stack.callback(readings.close)
                with contextlib.suppress(Stopped):
                    self._listen(readings, settings.topics)
            if self._link and not self._link.wait_in_flight(1, ACKNOWLEDGEMENT_TIMEOUT_S):
                LOGGER.warning(f"{self._link.url} has not acknowledged the last message")
        tracker = self._tracker
        return {
            "windows": tracker.windows,
            "alarms": tracker.alarms,
            "published": self._published,
            "malformed": self._malformed,
            "score": tracker.score,
            "threshold": tracker.threshold,
            **figures,
        }

    @staticmethod
    def _open_link(url: str, enrolment: Enrolment | None) -> Link:
        context = make_tls_context(enrolment) if enrolment else None
        return Link(url, f"edgefl-detect-{secrets.token_hex(8)}", context=context)

    def _score_samples(self, source: DataSource) -> dict[str, float]:
        samples = self._scorer.samples
        stored = read_source(source, samples)
        if samples is not None:
            check_unit(stored, samples, source.scale)
        arrays, changes = to_training_form(split_targets(stored), samples, source.scale)
        for change in changes:
            LOGGER.info(f"{source.data}: {change}")
        # The device was trained on the other samples of a file with test samples.
        part = "_test" if "x_test" in arrays else ""
        has_labels = f"y{part}" in stored
        try:
            windows = read_sample_array(arrays, part)
            if has_labels:
                check_anomaly_labels(arrays.get(f"target{part}"))
                labels = read_label_array(to_federation_classes(arrays, samples or SamplesConfig()), part)
                check_lengths(windows, labels, part)
        except DataError as error:
            raise DataError(f"{source.data}: {error}") from error
        scores = self._scorer.score_windows(windows)
        for score in scores.tolist():
            self._tracker.add_score("", score, 0.0)
        if len(scores):
            self._publish()
        if not has_labels:
            return {}
        is_anomaly = find_anomalies(labels, TaskConfig(kind=ANOMALY, anomalies=self._scorer.task.anomalies))
        return measure_alarms(scores > self._scorer.threshold, is_anomaly)

    def _listen(self, readings: Link, topics: SensorTopics) -> None:
        settings = self._settings
        window = settings.window or self._scorer.input_shape[0]
        channel_count = self._scorer.count_channels(window)
        if settings.channels and len(settings.channels) != channel_count:
            raise ConfigError(
                f"--channels has {len(settings.channels)} channels, expected {channel_count}, the channels "
                "of the model's input; pass the channels that it was trained on"
            )
        cutter = WindowCutter(
            topics=topics,
            window=window,
            step=settings.step or window,
            on_window=self._add_window,
            channels=settings.channels or (self._channels if len(self._channels) == channel_count else ()),
            label=0,
            channel_count=channel_count,
        )
        readings.subscribe(topics.readings)
        LOGGER.info(f"listening on {topics.readings} at {readings.url}")
        dropped = logged_count = 0
        logged_at = -UNUSABLE_LOG_INTERVAL_S
        while not settings.count or self._tracker.windows < settings.count:
            if self._link is not None and self._link is not readings:
                self._repeat_after_reconnect(self._link.get(0.0))
            event = readings.get(0.5)
            if isinstance(event, Message):
                try:
                    cutter.take(event.topic, event.payload, event.retained, event.oversize, time.monotonic())
                except DataError as error:
                    self._malformed += 1
                    problem = f"{event.topic}: {error}"
            elif event is not None:
                cutter.restart_windows()
                self._tracker.forget_sensors()
                if self._link is readings:
                    self._repeat_after_reconnect(event)
            if readings.dropped > dropped:
                dropped = readings.dropped
                cutter.restart_windows()
                self._tracker.forget_sensors()
            now = time.monotonic()
            if self._malformed > logged_count and now - logged_at >= UNUSABLE_LOG_INTERVAL_S:
                logged_count, logged_at = self._malformed, now
                remedy = (
                    f"; the model reads {', '.join(self._channels)[:80]}: pass --channels if the readings "
                    "have other names"
                    if self._channels and not settings.channels
                    else ""
                )
                LOGGER.warning(f"readings that cannot be used: {self._malformed}; last: {problem}{remedy}")

    def _add_window(self, window: SensorWindow) -> None:
        (score,) = self._scorer.score_windows(scale_samples(window.values[None], self._scale)).tolist()
        if self._tracker.add_score(window.topic, score, time.monotonic()):
            self._publish()

    def _repeat_after_reconnect(self, event: object) -> None:
        # A restarted broker may have lost the retained message
        if self._link and self._message and event is not None and not isinstance(event, Message):
            self._send(self._link)

    def _publish(self) -> None:
        message = self._tracker.make_message(time.time())
        state = "ALARM" if message.alarm else "normal"
        LOGGER.info(f"{state}: score {message.score:.4g}, threshold {message.threshold:.4g}")
        if self._link is not None:
            self._message = encode_json(message)
            self._send(self._link)

    def _send(self, link: Link) -> None:
        self._published += 1
        link.publish(self._topic, self._message, retain=True)
