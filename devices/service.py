"""The device service: joins a federation, and trains, personalizes and exports as the aggregator asks."""

import logging
import threading
from contextlib import closing, suppress
from queue import Empty, SimpleQueue
from typing import Any

from devices.availability import Availability
from devices.boards import detect_machine
from devices.driver import ClientDriver, Work, draw_pause_factor
from devices.join import JoinedFederation, join_federation
from devices.local_dataset import LocalDataset
from devices.plan_check import PlanTrials
from devices.settings import DeviceSettings
from devices.storage import DeviceStorage
from devices.store import DeviceStore
from devices.telemetry import read_field_figures
from devices.worker import DeviceWorker
from edgefl.base.errors import DataError, LinkError
from edgefl.base.names import check_client_id, check_federation
from edgefl.base.storage.device_directory import DeviceFiles
from edgefl.base.verdict import judge_federation, render_device_lines
from edgefl.learning.algorithms import PHASE_PERSONALIZE
from edgefl.protocol.device.duplicate_id import DuplicateIdError
from edgefl.protocol.device.events import (
    ClientEvent,
    EndParticipation,
    SaveRound,
    Trained,
    make_answered_round,
)
from edgefl.protocol.device.machine import ClientMachine, ClientSettings

LOGGER = logging.getLogger("edgefl.device")
STOP_TIMEOUT_S = 5.0
"""Longest time in seconds that a device waits for its driver to stop."""
SIGNAL_CHECK_S = 0.5
"""Longest time in seconds until an idle device notices a signal."""


def run_device(settings: DeviceSettings) -> dict[str, Any]:
    """Join a federation with one device, and take part until the federation is done.

    Args:
        settings: the options of `edgefl device start`.

    Returns:
        `id`, `model`, which is the path of the int8 model or None without an export, and `metrics` of the
        personalization.

    Raises:
        ConfigError: the client id or the name of the federation is not valid, or an option cannot be used.
        DataError: the samples cannot be read or do not fit the plan, or the last task failed.
        DuplicateIdError: another device uses the id.
        ExportError: the int8 model cannot be made. The federation has ended.
        FederationDivergedError: the aggregator stopped, because the training diverged.
        LinkError: the broker does not answer, or no federation runs, or it ended without this device.
        StateError: the state directory cannot be used.
    """
    check_client_id(settings.client_id)
    if settings.federation:
        check_federation(settings.federation)
    samples = LocalDataset(settings.data)
    with (
        closing(DeviceStore(settings.state, settings.client_id)) as store,
        closing(PlanTrials(settings.state)) as trials,
    ):
        if store.recovered:
            LOGGER.warning(store.recovered)
        if crashed := trials.start():
            LOGGER.error(
                f"the plan {crashed[:8]} crashed the last process of this device; the device now refuses "
                "this plan"
            )
        availability = Availability(settings.conditions, settings.state, detect_machine().cores)
        joined = join_federation(settings, samples.num_samples, availability.find_pause_reason())
        try:
            service = DeviceService(
                settings=settings, samples=samples, store=store, trials=trials, joined=joined
            )
            return service.run(availability)
        finally:
            joined.link.close()


class DeviceService:
    """One device that has joined a federation.

    The client machine and its driver run in a second thread, so a device that trains handles messages. The
    thread that calls `run` computes, so a signal ends a training at once.

    Args:
        settings: the options of `edgefl device start`.
        store: the files of this device.
        trials: runs each new plan once before the device uses it.
        joined: the connection to the federation.
    """

    def __init__(
        self,
        settings: DeviceSettings,
        samples: LocalDataset,
        store: DeviceStore,
        trials: PlanTrials,
        joined: JoinedFederation,
    ) -> None:
        self._settings = settings
        self._store = store
        self._joined = joined
        self._work: SimpleQueue[Work | None] = SimpleQueue()
        self._is_computing = False
        self._trained: Trained | None = None
        self._end: EndParticipation | None = None
        self._error: BaseException | None = None
        federation = joined.topics.federation
        enrolment = settings.enrolment
        self._storage = DeviceStorage(settings.state, store, federation, is_enrolled=enrolment is not None)
        link = joined.link
        self._worker = DeviceWorker(
            settings=settings,
            federation=federation,
            samples=samples,
            store=store,
            storage=self._storage,
            trials=trials,
            trust=joined.trust,
            count_traffic=lambda: (link.bytes_up, link.bytes_down),
        )

    def run(self, availability: Availability) -> dict[str, Any]:
        """Perform tasks until the federation is done.

        Args:
            availability: decides whether this device accepts tasks now.

        Returns:
            The results, see `run_device`.

        Raises:
            DataError: the samples do not fit the plan, or the last task failed.
            DuplicateIdError: another device uses the id.
            ExportError: the int8 model cannot be made. The federation has ended.
            FederationDivergedError: the aggregator stopped, because the training diverged.
            LinkError: the link failed, no federation ran in time, or it ended without this device.
            StateError: the state directory cannot be read or written.
        """
        settings, joined = self._settings, self._joined
        saved = self._storage.load()
        machine = ClientMachine(
            topics=joined.topics,
            status=joined.status,
            settings=ClientSettings(
                sharing=settings.sharing,
                is_checked=saved.answered is not None,
                wait_s=settings.wait_s,
                draw_factor=draw_pause_factor,
                reset_remedy=self._storage.reset_remedy,
                broker=joined.link.url,
            ),
            saved=saved,
        )
        driver = ClientDriver(
            machine=machine,
            link=joined.link,
            topics=joined.topics,
            trust=joined.trust,
            storage=self._storage,
            begin_work=self._work.put,
            find_pause_reason=lambda refresh: availability.find_pause_reason(
                refresh=refresh, is_computing=self._is_computing
            ),
            pause_reason=joined.status.paused,
            read_drift_figures=lambda: read_field_figures(settings.state),
        )
        # A daemon, because it may wait up to a minute for the broker's answer to a subscription
        thread = threading.Thread(target=self._drive, args=(driver,), name="edgefl-device", daemon=True)
        thread.start()
        try:
            while event := self._compute_next():
                driver.add_event(event)
        finally:
            driver.stop()
            thread.join(STOP_TIMEOUT_S)
            if not isinstance(self._error, DuplicateIdError):  # The other device owns the status
                driver.publish_offline()
            self._save_unsaved_round()
        if self._error is not None:
            raise self._error
        assert self._end is not None, (
            "a driver that was not stopped ends with an error or with the federation"
        )
        return self._make_result(self._end)

    def _compute_next(self) -> ClientEvent | None:
        """Compute what the machine asks for next, or return None after the driver has ended."""
        work = self._wait_for_work()
        if work is None or self._error is not None:
            return None
        self._is_computing = True
        event = self._worker.compute(work)
        self._is_computing = False
        if isinstance(event, Trained):
            self._trained = event
        return event

    def _save_unsaved_round(self) -> None:
        """Store the last trained round if the driver ended before. The next process sends its update."""
        event = self._trained
        if event and self._storage.has_unsaved_answer(event.answer.sha256):
            self._storage.apply(SaveRound(make_answered_round(event)))

    def _wait_for_work(self) -> Work | None:
        """Return the next work, or None after the driver has ended."""
        while True:
            # A wait without a timeout can miss a signal that arrives just before it
            with suppress(Empty):
                return self._work.get(timeout=SIGNAL_CHECK_S)

    def _drive(self, driver: ClientDriver) -> None:
        try:
            self._end = driver.run()
        except BaseException as error:
            self._error = error
        finally:
            self._work.put(None)

    def _make_result(self, end: EndParticipation) -> dict[str, Any]:
        progress = self._store.read_progress()
        if progress is None or (progress.session, progress.phase) != (end.session, PHASE_PERSONALIZE):
            if end.failure:
                raise DataError(
                    "the federation ended, and this device has no model, because its last task failed: "
                    f"{end.failure}"
                )
            raise LinkError(
                "the federation ended while this device was away, so this device has no model; restart the "
                "federation with `edgefl aggregator start --fresh`"
            )
        verdict = judge_federation([{**progress.metrics, "id": self._settings.client_id}])
        for line in render_device_lines(verdict.rows[0], verdict.measure):
            LOGGER.info(line)
        if self._worker.export_error:
            raise self._worker.export_error
        model = DeviceFiles(self._settings.state).model
        return {
            "id": self._settings.client_id,
            "model": str(model) if model.exists() else None,
            "metrics": dict(progress.metrics),
        }
