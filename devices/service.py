"""The device service: joins a federation, and trains, personalizes and exports as the aggregator asks."""

import contextlib
import logging
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from devices.availability import UNCHECKED_REASON, Availability
from devices.blob_cache import BlobCache
from devices.boards import detect_machine
from devices.conditions import Conditions
from devices.export import export_in_child, extract_export_metrics
from devices.identity import DuplicateIdError
from devices.join import join_federation
from devices.local_dataset import LocalDataset
from devices.masked_sender import CannotMaskError, MaskedSender, filter_masked_metrics
from devices.order import SharingRules, TaskOrder, is_unmasked_update
from devices.pending_update import PendingUpdate
from devices.plan_check import AllowedCode, PlanTrials, check_names
from devices.session import Session, Superseded
from devices.store import DeviceStore, FinishedRound
from devices.telemetry import publish_telemetry, read_field_figures
from devices.training import check_shard, choose_epochs, make_work_item, measure_gate, open_runner, was_masked
from devices.upload import send_update
from edgefl.algorithms import PHASE_DONE, PHASE_PERSONALIZE
from edgefl.client.runner import ClientRunner
from edgefl.data.sources import DataSource
from edgefl.errors import ConfigError, DataError, DivergedError, ExportError, LinkError, PlanError, WireError
from edgefl.plan.spec import Plan, decode_plan
from edgefl.security.enrolment import Enrolment
from edgefl.server.divergence import FederationDivergedError, read_divergence
from edgefl.storage.device_directory import DeviceFiles
from edgefl.system.host import read_peak_rss_mb
from edgefl.transport.link import KEEPALIVE_S
from edgefl.types import Weights
from edgefl.verdict import judge_federation, render_device_lines
from edgefl.wire.masked import MASKED_CODEC
from edgefl.wire.messages import DIVERGED_PREFIX, REFUSAL_PREFIX, STOPPED_PHASE, State, Task
from edgefl.wire.tensors import bound_blob_size, decode_subset, encode_models
from edgefl.wire.topics import check_client_id, check_federation, check_sha256

LOGGER = logging.getLogger("edgefl.device")
MAX_PLAN_BYTES = 64 * 1024 * 1024
FIRST_RETRY_S = 5.0
LONGEST_RETRY_S = 300.0
"""Range of the pause after a refused task, in seconds. The pause doubles each time, until a task succeeds."""
MAX_REASON_LENGTH = 300


class TaskRefusedError(Exception):
    """A task whose models this device cannot train on."""


class TaskDivergedError(TaskRefusedError):
    """A task for which the training loss is not a finite number."""


@dataclass(frozen=True)
class DeviceSettings:
    """The options of `edgefl device start`.

    Attributes:
        broker: URL of the broker, or several URLs with commas.
        client_id: id of the device.
        data: where the samples are.
        state: the state directory.
        federation: name of the federation. Empty for the only one that runs.
        learner: a name of `LEARNERS`.
        threads: number of threads of the learner.
        keepalive_s: MQTT keepalive in seconds.
        wait_s: seconds to wait for a federation. 0 waits without limit.
        export: whether the device exports an int8 model at the end.
        enrolment: the keys of the device. None connects without a client certificate and signatures.
        conditions: conditions under which the device accepts tasks.
        allowed: names that a plan may use in addition to the registered ones.
        sharing: the owner's rules about the data that the device may send.
    """

    broker: str
    client_id: str
    data: DataSource
    state: Path
    federation: str = ""
    learner: str = "litert"
    threads: int = 1
    keepalive_s: int = KEEPALIVE_S
    wait_s: float = 0.0
    export: bool = True
    enrolment: Enrolment | None = None
    conditions: Conditions = field(default_factory=Conditions)
    allowed: AllowedCode = field(default_factory=AllowedCode)
    sharing: SharingRules = field(default_factory=SharingRules)


def should_mask(task: Task, progress: FinishedRound | None) -> bool:
    """Return whether a task asks for a plain update in a session for which this device masked an update.

    It does not matter whether the device took part in other sessions meanwhile.

    Args:
        task: the new task.
        progress: the last round that the device finished, or None before the first.
    """
    return is_unmasked_update(task) and progress is not None and task.session in progress.masked_sessions


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
        availability.unchecked = store.read_progress() is None
        num_samples = samples.num_samples
        signed_in = settings.state if settings.enrolment else None
        session = join_federation(
            settings,
            num_samples,
            availability.find_pause_reason(),
            make_order=lambda federation: TaskOrder(federation, signed_in, settings.sharing),
        )
        yielded = False
        try:
            session.start()
            LOGGER.info(
                f"{settings.client_id} joined {session.topics.federation!r} at {session.link.url} with "
                f"{num_samples} samples"
            )
            service = DeviceService(
                settings=settings,
                samples=samples,
                store=store,
                trials=trials,
                availability=availability,
                session=session,
            )
            return service.run()
        except DuplicateIdError:
            yielded = True
            raise
        finally:
            if not yielded:
                session.publish_status(online=False)
            session.link.close()


class DeviceService:
    """One device that has joined a federation.

    Args:
        settings: the options of `edgefl device start`.
        samples: the samples of this device.
        store: the files of this device.
        trials: runs each new plan once before the device uses it.
        availability: decides whether this device accepts tasks now.
        session: the session on the broker.
    """

    def __init__(
        self,
        settings: DeviceSettings,
        samples: LocalDataset,
        store: DeviceStore,
        trials: PlanTrials,
        availability: Availability,
        session: Session,
    ) -> None:
        self._settings = settings
        self._samples = samples
        self._store = store
        self._trials = trials
        self._availability = availability
        self._session = session
        self._pending = PendingUpdate(settings.state)
        self._cache = BlobCache(DeviceFiles(settings.state).blobs)
        authority = settings.enrolment.ca if settings.enrolment else ""
        self._masked = MaskedSender(settings.client_id, authority, settings.sharing)
        self._runner: ClientRunner | None = None
        self._answered = 0
        self._export_error: ExportError | None = None
        self._paused = ""
        self._refused_plan = ""
        self._failed_task = ""
        self._checked_session = ""
        self._retry_s = FIRST_RETRY_S
        self._is_stopped = False

    def run(self) -> dict[str, Any]:
        """Perform tasks until the federation is done.

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
        session = self._session
        federation = session.topics.federation
        began = time.monotonic()
        seen = ""
        while True:
            session.pump(0.5)
            self._masked.answer(session)
            self._update_availability(at_work=False)
            state = session.state
            task = session.task
            # A task that arrives again is answered again, because the aggregator has lost the answer
            is_new = task and session.tasks_received != self._answered and session.is_current(task)
            if task and is_new and task.plan != self._refused_plan and self._availability.accepts_tasks():
                try:
                    self._answer_task(task, federation)
                    self._accept()
                except Superseded:
                    LOGGER.info(
                        f"round {task.round}: stopped, because the round is over", extra={"round": task.round}
                    )
                except TaskRefusedError as error:
                    diverged = DIVERGED_PREFIX if isinstance(error, TaskDivergedError) else ""
                    self._refuse_task(task, str(error), diverged)
                except CannotMaskError as error:
                    self._wait_for_package(str(error))
                except (PlanError, ConfigError) as error:
                    self._refuse_plan(task.plan, str(error))
                continue
            is_ours = (
                state
                and state.session in (seen, self._read_last_session())
                and state.plan != self._refused_plan
            )
            if state and state.phase == PHASE_DONE and is_ours and not session.order.pause_reason:
                return self._end(state.session)
            took_part = state and state.session in (seen, session.task.session if session.task else "")
            if state and took_part and (divergence := read_divergence(state)):
                raise FederationDivergedError(divergence)
            if state and took_part:
                self._log_stop(state)
            if state and state.phase not in (PHASE_DONE, STOPPED_PHASE) and state.session != seen:
                seen = state.session
                position = f", round {state.round}" if 0 < state.round <= state.rounds else ""
                LOGGER.info(f"the federation is in phase {state.phase}{position}")
                try:
                    self._check_data(state)
                except (PlanError, ConfigError) as error:
                    self._refuse_plan(state.plan, str(error))
            if not seen and self._settings.wait_s and time.monotonic() - began > self._settings.wait_s:
                raise LinkError(
                    f"the federation {federation!r} did not run within {self._settings.wait_s:g} s; start it "
                    "with `edgefl aggregator start`"
                )

    def _log_stop(self, state: State) -> None:
        """Log once that the aggregator has stopped, and once that it is back."""
        is_stopped = state.phase == STOPPED_PHASE
        if is_stopped == self._is_stopped:
            return
        self._is_stopped = is_stopped
        if is_stopped:
            LOGGER.warning("the aggregator has stopped; this device waits until it starts again")
        else:
            LOGGER.info(f"the aggregator is back, in phase {state.phase}")

    def _refuse_plan(self, sha256: str, reason: str) -> None:
        """Refuse all tasks with this plan. The device stays connected and accepts tasks with another plan."""
        self._refused_plan = sha256
        LOGGER.error(f"the plan is refused; this device waits for another plan: {reason}")
        self._availability.refuse(f"{REFUSAL_PREFIX}the plan: {reason}"[:MAX_REASON_LENGTH])
        self._update_availability(at_work=False)

    def _wait_for_package(self, reason: str) -> None:
        """Skip this task and pause. Somebody may install the missing package in this time."""
        self._answered = self._session.tasks_received
        LOGGER.warning(f"{reason}. This device tries another task in {self._retry_s:g} s")
        self._pause_for_a_while(f"masked rounds: {reason}")

    def _refuse_task(self, task: Task, reason: str, kind: str) -> None:
        """Skip this task and pause. The models of a later round may be usable.

        Args:
            task: the task.
            reason: the reason, for the owner and the aggregator.
            kind: `DIVERGED_PREFIX`, or empty.
        """
        self._answered = self._session.tasks_received
        self._failed_task = reason
        LOGGER.warning(
            f"round {task.round}: the task is refused: {reason}; this device tries another task in "
            f"{self._retry_s:g} s. If this happens in every round, look at the aggregator's log, and start "
            "the aggregator with an earlier state or --fresh",
            extra={"round": task.round},
        )
        self._pause_for_a_while(f"round {task.round}: {kind}{reason}")

    def _pause_for_a_while(self, reason: str) -> None:
        self._availability.refuse(f"{REFUSAL_PREFIX}{reason}"[:MAX_REASON_LENGTH], self._retry_s)
        self._retry_s = min(LONGEST_RETRY_S, 2 * self._retry_s)
        self._update_availability(at_work=False)

    def _accept(self) -> None:
        self._refused_plan = ""
        self._failed_task = ""
        self._retry_s = FIRST_RETRY_S
        self._availability.accept()

    def _update_availability(self, *, at_work: bool) -> None:
        """Check whether this device accepts tasks, and publish a change."""
        before = self._paused
        reason = self._availability.find_pause_reason(refresh=at_work)
        if reason in ("", UNCHECKED_REASON):
            reason = self._session.order.pause_reason or reason
        if reason not in (before, UNCHECKED_REASON) and (reason or before != UNCHECKED_REASON):
            LOGGER.info(f"paused: {reason}" if reason else "accepts tasks again")
        self._paused = reason
        self._session.publish_pause(reason, draining=bool(reason) and at_work)

    def _read_last_session(self) -> str | None:
        progress = self._store.read_progress()
        return progress.session if progress else None

    def _end(self, session: str) -> dict[str, Any]:
        progress = self._store.read_progress()
        if progress is None or (progress.session, progress.phase) != (session, PHASE_PERSONALIZE):
            if self._failed_task:
                raise DataError(
                    "the federation ended, and this device has no model, because its last task failed: "
                    f"{self._failed_task}"
                )
            raise LinkError(
                "the federation ended while this device was away, so this device has no model; restart the "
                "federation with `edgefl aggregator start --fresh`"
            )
        verdict = judge_federation([{**progress.metrics, "id": self._settings.client_id}])
        for line in render_device_lines(verdict.rows[0], verdict.measure):
            LOGGER.info(line)
        if self._export_error:
            raise self._export_error
        model = DeviceFiles(self._settings.state).model
        return {
            "id": self._settings.client_id,
            "model": str(model) if model.exists() else None,
            "metrics": dict(progress.metrics),
        }

    def _answer_task(self, task: Task, federation: str) -> None:
        """Compute the answer to a task and send it. A stored answer is sent again.

        Raises:
            Superseded: the aggregator no longer waits for the answer.
            TaskRefusedError: this device cannot or must not answer the task.
            CannotMaskError: the task is masked, and this device lacks a package for it.
            DataError: this device took part in this session with other samples.
            PlanError: this device cannot run the plan, or the plan names code that is not allowed.
            ConfigError: the plan has options that its algorithm does not accept.
        """
        self._update_availability(at_work=True)
        self._check_samples(task.session)
        progress = self._store.read_progress()
        if should_mask(task, progress):
            raise TaskRefusedError(
                "it asks for an update that is not masked, and this device masked an update of this session "
                "before. Somebody with the aggregator's key may try to read this device's update"
            )
        self._send_late(task, progress)
        self._pending.store(task)
        if progress is None or not progress.is_answer_to(task):
            progress = self._compute(task, federation)
        if task.codec == MASKED_CODEC:
            progress = self._store.mark_masked(progress)
        # Before the update, so that the aggregator receives a pause before it draws the next cohort
        self._update_availability(at_work=True)
        if self._session.order.should_withhold(task):  # A masked task of this session arrived meanwhile
            raise Superseded
        try:
            self._send(task, progress)
        except DataError as error:
            raise TaskRefusedError(str(error)) from error

    def _send_late(self, task: Task, progress: FinishedRound | None) -> None:
        """Send the pending update of an earlier task if the aggregator still accepts it."""
        late = self._pending.find_earlier_task(task, progress)
        if late is None or progress is None or should_mask(late, progress):
            return
        if self._session.is_current(late, late.max_staleness):
            self._send(late, progress)

    def _compute(self, task: Task, federation: str) -> FinishedRound:
        """Train or personalize as a task asks, and store the result."""
        runner = self._open_runner(task)
        note = {
            "id": self._settings.client_id,
            "federation": federation,
            "seed": task.seed,
            "sketch": self._samples.sketch,
            **self._settings.data.to_json(),
        }
        masked = {"masked": True} if was_masked(task, self._store.read_note()) else {}
        self._store.save_note(note | masked)
        try:
            models = self._fetch_models(task, runner.plan)
            if task.phase == PHASE_PERSONALIZE:
                return self._personalize(task, runner, models)
            return self._train(task, runner, models)
        except DivergedError as error:
            raise TaskDivergedError(str(error)) from error
        except (DataError, WireError, PlanError) as error:
            # The samples were checked before, so the models are at fault
            raise TaskRefusedError(str(error)) from error
        except (LookupError, TypeError, ValueError, ArithmeticError) as error:  # For example a missing model
            raise TaskRefusedError(f"its models do not fit the plan: {error!r}") from error

    def _send(self, task: Task, progress: FinishedRound) -> None:
        """Send the answer to a task, and publish its metrics."""
        settings = self._settings
        session = self._session
        blob = self._store.read_update(progress)
        if task.codec == MASKED_CODEC:
            metrics = filter_masked_metrics(progress.metrics, settings.sharing.requires_masks)
            receipt = self._masked.send(session, task, progress, blob)
        else:
            metrics = progress.metrics
            receipt = send_update(session, settings.client_id, task, blob, metrics, progress.num_samples)
        self._pending.forget()
        if session.is_current(task):
            self._answered = session.tasks_received
        if receipt.outcome == "rejected":
            LOGGER.warning(
                f"round {task.round}: the aggregator rejected the update: {receipt.reason}",
                extra={"round": task.round},
            )
            return
        listed = ", ".join(f"{key} {value:.4g}" for key, value in progress.metrics.items())
        LOGGER.info(
            f"round {task.round} {task.phase}: {listed}",
            extra={"round": task.round, "phase": task.phase, "metrics": dict(progress.metrics)},
        )
        figures = {**metrics, **read_field_figures(settings.state)}
        publish_telemetry(session, settings.client_id, task.round, figures)

    def _check_data(self, state: State) -> None:
        """Check that the shard fits the plan, before the first task arrives. Otherwise this device stops.

        Raises:
            DataError: the plan cannot be trained on the shard, or this device took part in this session with
                other samples.
            PlanError: this device cannot run the plan, or the plan names code that is not allowed.
        """
        session = self._session
        self._check_samples(state.session)

        def is_needed() -> bool:
            newest = session.task or session.state
            return newest is not None and newest.plan == state.plan

        with contextlib.suppress(Superseded):
            plan = self._load_plan(state.plan, is_needed)
            shard = self._samples.load_shard(plan.spec)
            check_shard(shard, plan)
            self._accept()
        self._availability.unchecked = False
        self._update_availability(at_work=False)

    def _check_samples(self, session: str) -> None:
        """Compare the samples with those of earlier rounds, once for each session.

        Raises:
            DataError: this device took part in this session with other samples.
        """
        progress = self._store.read_progress()
        took_part = progress and progress.session == session and progress.phase != PHASE_PERSONALIZE
        if took_part and session != self._checked_session:
            sketch = self._store.read_note().get("sketch", [])
            if gone := self._samples.check_sketch(sketch, self._settings.state):
                LOGGER.warning(gone)
        self._checked_session = session

    def _load_plan(self, sha256: str, is_needed: Callable[[], bool]) -> Plan:
        try:
            blob = self._cache.get(check_sha256(sha256))
        except WireError as error:
            raise PlanError(f"the plan cannot be fetched: {error}") from error
        if blob is None:
            blob = self._session.fetch(is_needed, {sha256: MAX_PLAN_BYTES})[sha256]
            self._cache.put(blob)
        plan = decode_plan(blob)
        check_names(plan.spec, self._settings.learner, self._settings.allowed)
        if self._settings.learner == "litert" and plan.spec.signatures:
            self._trials.check(sha256, self._cache.locate(sha256))
        return plan

    def _open_runner(self, task: Task) -> ClientRunner:
        if self._runner is None or (self._runner.plan.id, self._runner.seed) != (task.plan, task.seed):
            settings = self._settings
            plan = self._load_plan(task.plan, lambda: self._session.is_current(task))
            self._trials.record_open_plan(task.plan)
            self._runner = None  # Frees its shard before the next shard is read
            self._runner = open_runner(
                plan,
                self._samples,
                task.seed,
                settings.client_id,
                settings.learner,
                settings.threads,
            )
        return self._runner

    def _fetch_models(self, task: Task, plan: Plan) -> Mapping[str, Weights]:
        specs = plan.spec.weights
        cached = {sha256: self._cache.get(sha256) for sha256 in set(task.models.values())}
        missing = {sha256: bound_blob_size(specs) for sha256, blob in cached.items() if blob is None}
        fetched = self._session.fetch(lambda: self._session.is_current(task), missing) if missing else {}
        for blob in fetched.values():
            self._cache.put(blob)
        blobs = {**cached, **fetched}
        return {
            name: decode_subset(blobs[sha256] or b"", specs, f"the aggregator ({name})")
            for name, sha256 in task.models.items()
        }

    def _train(self, task: Task, runner: ClientRunner, models: Mapping[str, Weights]) -> FinishedRound:
        began = time.monotonic()
        last = self._store.read_progress()
        previous = last.metrics if last and last.session == task.session else {}
        epochs = choose_epochs(task, runner.plan, previous)
        state = self._store.read_client_state(task.session)
        update, state = runner.update(make_work_item(task, models, state, self._settings.client_id, epochs))
        metrics = {**update.metrics, "seconds": time.monotonic() - began, "peak_rss_mb": read_peak_rss_mb()}
        blob = encode_models(update.deltas, task.codec)
        return self._store.finish_round(
            task.session, task.round, task.phase, update.num_samples, metrics, blob, state
        )

    def _personalize(self, task: Task, runner: ClientRunner, models: Mapping[str, Weights]) -> FinishedRound:
        began = time.monotonic()
        link = self._session.link
        LOGGER.info(
            f"round {task.round}: personalizing"
            + (", and exporting an int8 model" if self._settings.export else ""),
            extra={"round": task.round, "phase": task.phase},
        )
        client_id = self._settings.client_id
        state = self._store.read_client_state(task.session)
        mixture, state, measured = runner.personalize(make_work_item(task, models, state, client_id))
        metrics = dict(measured)
        if not self._settings.sharing.requires_masks and not was_masked(task, self._store.read_note()):
            metrics |= measure_gate(runner, mixture, client_id)
        self._store.save_personal(runner.plan, mixture)
        if self._settings.export:
            try:
                metrics |= extract_export_metrics(export_in_child(self._settings.state, self._settings.data))
            except ExportError as error:
                # The federation continues without this int8 model. `_end` raises the error.
                self._export_error = error
                LOGGER.error(str(error))
        traffic = {"bytes_up": float(link.bytes_up), "bytes_down": float(link.bytes_down)}
        metrics |= {"seconds": time.monotonic() - began, "peak_rss_mb": read_peak_rss_mb(), **traffic}
        blob = encode_models({}, task.codec)
        return self._store.finish_round(
            task.session, task.round, task.phase, len(runner.shards[client_id].y_train), metrics, blob, state
        )
