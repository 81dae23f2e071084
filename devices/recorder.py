"""Records sensor topics to a ring of windows in a file. The recorder publishes nothing."""

import contextlib
import logging
import math
import secrets
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from devices.readings import SensorTopics, SensorWindow, WindowCutter, format_counts, parse_label
from edgefl.data.sources.ring import (
    CLASS_LABELS,
    NO_LABELS,
    TARGET_LABELS,
    Ring,
    check_ring_size,
    load_ring,
    lock_ring,
)
from edgefl.errors import DataError
from edgefl.system.signals import Stopped
from edgefl.transport.link import Link, Message

LOGGER = logging.getLogger("edgefl.recorder")
PROBLEMS_LOG_INTERVAL_S = 60.0


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
        self._ring: Ring | None = None
        self._recordings: dict[int, int] = {}  # number in the cutter -> number in the ring
        self._new = self._malformed = self._lost = 0
        self._last_problem = ""
        self._logged_problems = (0, 0, 0)
        label = None if settings.label is None else parse_label(settings.label.encode(), settings.classes)
        if settings.labels == NO_LABELS:
            label = 0  # the ring does not store it
        self._cutter = WindowCutter(
            settings.topics,
            settings.window,
            settings.step,
            self._add_window,
            settings.channels,
            settings.classes,
            label,
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
        return {"windows": len(self._ring or ()), **self._count_messages(), "file": str(settings.out)}

    def _count_messages(self) -> dict[str, int]:
        unlabelled = self._cutter.unlabelled
        readings = self._cutter.readings
        return {
            "new": self._new,
            "readings": readings,
            "malformed": self._malformed,
            "unlabelled": unlabelled,
            "lost": self._lost,
        }

    def _resume(self) -> None:
        settings = self._settings
        self._ring = load_ring(
            settings.out, settings.capacity, settings.window, settings.classes, settings.labels
        )
        if self._ring is not None:
            if settings.channels and settings.channels != self._ring.channels:
                raise DataError(
                    f"{settings.out} has the channels {', '.join(self._ring.channels)}, --channels is "
                    f"{', '.join(settings.channels)}; pass the same channels, or another -o"
                )
            self._cutter.channel_names = self._ring.channels
            LOGGER.info(f"{settings.out} contains {len(self._ring)} windows; continuing")

    def _add_window(self, window: SensorWindow) -> None:
        if self._ring is None:
            settings = self._settings
            self._ring = Ring(
                settings.capacity,
                settings.window,
                self._cutter.channel_names,
                settings.classes,
                settings.labels,
            )
        recording = self._recordings.setdefault(window.recording, self._ring.recorded)
        self._ring.add(window.values, window.label, recording, window.first_row)
        self._new += 1

    def _listen(self, link: Link) -> None:
        settings = self._settings
        saved = 0
        saved_at = time.monotonic()
        logged_at = -math.inf
        while not settings.count or self._new < settings.count:
            event = link.get(min(0.5, settings.save_s) if self._new > saved else 0.5)
            if isinstance(event, Message):
                self._take(event)
            elif event is not None:
                LOGGER.info("the link to the broker is up again")
                self._cutter.restart_windows()
            if link.dropped > self._lost:
                self._lost = link.dropped
                self._cutter.restart_windows()
            now = time.monotonic()
            if self._new > saved and now - saved_at >= settings.save_s:
                self._save()
                saved = self._new
                saved_at = now
                LOGGER.info(
                    f"{len(self._ring or ())} windows in {settings.out}: "
                    f"{format_counts(self._count_messages())}"
                )
            if self._count_problems() != self._logged_problems and now - logged_at >= PROBLEMS_LOG_INTERVAL_S:
                logged_at = now
                self._logged_problems = self._count_problems()
                LOGGER.warning(
                    f"{format_counts(self._count_messages())}; last: "
                    f"{self._last_problem or 'no label has arrived yet'}"
                )

    def _count_problems(self) -> tuple[int, int, int]:
        return self._malformed, self._cutter.unlabelled, self._lost

    def _take(self, message: Message) -> None:
        try:
            if message.oversize:
                raise DataError(f"the message has {message.oversize} bytes, expected one reading")
            self._cutter.take(message.topic, message.payload, message.retained)
        except DataError as error:
            self._malformed += 1
            self._last_problem = f"{message.topic}: {error}"

    def _save(self) -> None:
        if self._ring is not None and self._new:
            self._ring.save(self._settings.out)
