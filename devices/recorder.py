"""Records sensor topics to a ring of windows in a file. The recorder publishes nothing.

A file has the windows of sensors with the same channels. If neither `--channels` nor an existing file names
the channels, sensors may differ. The recorder then keeps one ring for each list of channels, and the file is
the ring of most sensors. One odd sensor therefore cannot decide for the others.
"""

import contextlib
import logging
import math
import secrets
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from devices.readings import (
    MAX_SENSORS,
    SensorTopics,
    SensorWindow,
    WindowCutter,
    format_counts,
    parse_label,
)
from edgefl.base.errors import DataError
from edgefl.base.system.signals import Stopped
from edgefl.data.sources.ring import (
    CLASS_LABELS,
    NO_LABELS,
    TARGET_LABELS,
    Ring,
    check_ring_size,
    load_ring,
    lock_ring,
)
from edgefl.protocol.transport.link import Link, Message

LOGGER = logging.getLogger("edgefl.recorder")
PROBLEMS_LOG_INTERVAL_S = 60.0
MAX_RINGS = 8
"""Maximum number of lists of channels that the recorder keeps."""


@dataclass(frozen=True)
class RecordSettings:
    """The options of `edgefl device record`.

    Attributes:
        broker: URL of the broker.
        topics: topics of the readings and labels.
        window: number of readings per window.
        step: number of readings between the starts of two windows.
        capacity: number of windows in the file.
        out: the file.
        label: label of all windows. None uses the label topic.
        channels: names of the channels to record. Empty records all channels.
        classes: names of the classes. Empty if classes have no names.
        save_s: seconds between writes of the file.
        count: number of new windows after which to stop. 0 records until a signal.
        labels: what the labels are, see `edgefl.data.sources.ring.LABEL_FORMS`. The topic of labels has the
            numbers to predict if they are targets.
    """

    broker: str
    topics: SensorTopics
    window: int
    step: int
    capacity: int
    out: Path
    label: str | None = None
    channels: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()
    save_s: float = 60.0
    count: int = 0
    labels: str = CLASS_LABELS


@dataclass(frozen=True)
class SensorRecording:
    """The recording of a sensor.

    Attributes:
        channels: names of its channels.
        number: its number in the cutter.
        ring_number: its number in the ring.
    """

    channels: tuple[str, ...]
    number: int
    ring_number: int


class Recorder:
    """Records the readings of sensors.

    Args:
        settings: the options of `edgefl device record`.

    Raises:
        DataError: the ring would be too large, or the label is not a class.
    """

    def __init__(self, settings: RecordSettings) -> None:
        self._settings = settings
        # Checked before the recording starts, not at its first window
        check_ring_size(settings.capacity, settings.window, max(1, len(settings.channels)))
        self._rings: dict[tuple[str, ...], Ring] = {}
        self._recordings: dict[str, SensorRecording] = {}  # by topic, in the order of their last window
        self._recorded_before = self._windows = self._malformed = self._lost = 0
        self._last_problem = ""
        self._logged_problems: dict[str, int] = {}
        label = None if settings.label is None else parse_label(settings.label.encode(), settings.classes)
        if settings.labels == NO_LABELS:
            label = 0  # the ring does not store it
        self._cutter = WindowCutter(
            topics=settings.topics,
            window=settings.window,
            step=settings.step,
            on_window=self._add_window,
            channels=settings.channels,
            classes=settings.classes,
            label=label,
            has_targets=settings.labels == TARGET_LABELS,
        )

    def run(self) -> dict[str, Any]:
        """Record until `count` new windows or a stop signal.

        Returns:
            The number of windows in the file, the number of new windows and of messages by kind, and the path
            of the file.

        Raises:
            LinkError: the broker does not answer, or the link failed.
            StateError: the recording cannot be read or written, or another recorder uses it.
            DataError: the existing recording does not fit the settings.
        """
        settings = self._settings
        with contextlib.suppress(Stopped), lock_ring(settings.out):
            self._resume()
            link = Link(settings.broker, f"edgefl-record-{secrets.token_hex(8)}")
            try:
                link.subscribe(*filter(None, (settings.topics.labels, settings.topics.readings)))
                LOGGER.info(f"listening on {settings.topics.readings} at {link.url}")
                self._listen(link)
            finally:
                self._save()
                link.close()
        ring = self._choose_ring()
        return {"windows": len(ring or ()), **self._count_messages(), "file": str(settings.out)}

    def _choose_ring(self) -> Ring | None:
        """Return the ring of most sensors. Among equals, it is the ring with more windows, then the first."""
        sensors = Counter(recording.channels for recording in self._recordings.values())
        rings = self._rings.values()
        return max(rings, key=lambda ring: (sensors[ring.channels], ring.recorded), default=None)

    def _count_new(self) -> int:
        ring = self._choose_ring()
        return ring.recorded - self._recorded_before if ring else 0

    def _count_messages(self) -> dict[str, int]:
        new = self._count_new()
        return {
            "new": new,
            "readings": self._cutter.readings,
            "malformed": self._malformed,
            "unlabelled": self._cutter.unlabelled,
            "lost": self._lost,
            "other_channels": self._windows - new,
            "replaced_sensors": self._cutter.replaced,
            "silences": self._cutter.silences,
        }

    def _resume(self) -> None:
        settings = self._settings
        ring = load_ring(settings.out, settings.capacity, settings.window, settings.classes, settings.labels)
        if ring is not None:
            if settings.channels and settings.channels != ring.channels:
                raise DataError(
                    f"{settings.out} has the channels {', '.join(ring.channels)}, --channels is "
                    f"{', '.join(settings.channels)}; pass the same channels, or another -o"
                )
            self._rings[ring.channels] = ring
            self._recorded_before = ring.recorded
            self._cutter.channel_names = ring.channels
            LOGGER.info(f"{settings.out} contains {len(ring)} windows; continuing")

    def _add_window(self, window: SensorWindow) -> None:
        settings = self._settings
        ring = self._rings.get(window.channels)
        if ring is None:
            if len(self._rings) >= MAX_RINGS:
                del self._rings[min(self._rings, key=lambda channels: self._rings[channels].recorded)]
            ring = self._rings[window.channels] = Ring(
                capacity=settings.capacity,
                window=settings.window,
                channels=window.channels,
                classes=settings.classes,
                labels=settings.labels,
            )
            left_out = ", ".join(sorted(self._cutter.left_out))[:80]
            LOGGER.info(
                f"{window.topic}: channels {', '.join(window.channels)[:80]}"
                + (f"; left out: {left_out} (time since 1970)" if left_out else "")
            )
        recording = self._recordings.pop(window.topic, None)
        if recording is None or recording.number != window.recording:
            recording = SensorRecording(window.channels, window.recording, ring.recorded)
        if len(self._recordings) >= MAX_SENSORS:
            del self._recordings[next(iter(self._recordings))]
        self._recordings[window.topic] = recording
        ring.add(window.values, window.label, recording.ring_number, window.first_row)
        self._windows += 1

    def _listen(self, link: Link) -> None:
        settings = self._settings
        saved = 0
        saved_at = time.monotonic()
        logged_at = -math.inf
        while not settings.count or self._count_new() < settings.count:
            event = link.get(min(0.5, settings.save_s) if self._windows > saved else 0.5)
            if isinstance(event, Message):
                self._take(event)
            elif event is not None:
                LOGGER.info("the link to the broker is up again")
                self._restart_after_loss()
            if link.dropped > self._lost:
                self._lost = link.dropped
                self._restart_after_loss()
                if settings.topics.labels:  # The broker sends the retained labels again
                    link.unsubscribe(settings.topics.labels)
                    link.subscribe(settings.topics.labels)
            now = time.monotonic()
            if self._windows > saved and now - saved_at >= settings.save_s:
                self._save()
                saved = self._windows
                saved_at = now
                LOGGER.info(
                    f"{len(self._choose_ring() or ())} windows in {settings.out}: "
                    f"{format_counts(self._count_messages())}"
                )
            problems = self._count_problems()
            if problems != self._logged_problems and now - logged_at >= PROBLEMS_LOG_INTERVAL_S:
                logged_at = now
                self._logged_problems = problems
                LOGGER.warning(
                    f"{format_counts(self._count_messages())}; last: "
                    f"{self._last_problem or self._describe_problem()}"
                )

    def _restart_after_loss(self) -> None:
        self._cutter.restart_windows()
        self._cutter.forget_labels()  # A lost message may have ended one

    def _count_problems(self) -> dict[str, int]:
        return {
            name: count
            for name, count in self._count_messages().items()
            if name not in ("new", "readings", "silences") and count
        }

    def _describe_problem(self) -> str:
        ring = self._choose_ring()
        for topic, recording in self._recordings.items():
            if ring and recording.channels != ring.channels:
                return (
                    f"{topic} has the channels {', '.join(recording.channels)[:80]}, the file has "
                    f"{', '.join(ring.channels)[:80]}; pass --channels, or a narrower --topic"
                )
        if self._cutter.replaced:
            return f"more than {MAX_SENSORS} sensors; use a narrower --topic"
        return "no label applies to a reading; publish labels as retained messages"

    def _take(self, message: Message) -> None:
        try:
            self._cutter.take(
                message.topic, message.payload, message.retained, message.oversize, time.monotonic()
            )
        except DataError as error:
            self._malformed += 1
            self._last_problem = f"{message.topic}: {error}"

    def _save(self) -> None:
        ring = self._choose_ring()
        if ring is not None and self._count_new():
            ring.save(self._settings.out)
