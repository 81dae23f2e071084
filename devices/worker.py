"""The computations of a device: opens plans, trains, personalizes, exports, and answers masked steps.

The worker does not use the network. It passes its results to the client machine as events.
"""

import hashlib
import logging
import time
from collections.abc import Callable, Mapping
from typing import Any

from devices.driver import Work
from devices.export import export_in_child, extract_export_metrics
from devices.local_dataset import LocalDataset
from devices.masked_attempt import CannotMaskError, MaskedAttempt, draw_attempt
from devices.plan_check import PlanTrials, check_memory, check_names, find_usable_mb
from devices.settings import DeviceSettings
from devices.storage import DeviceStorage
from devices.store import DeviceStore
from devices.training import check_shard, choose_epochs, make_work_item, measure_gate, open_runner, was_masked
from edgefl.base.errors import (
    ConfigError,
    DataError,
    DivergedError,
    ExportError,
    PlanError,
    RoundError,
    WireError,
)
from edgefl.base.system.host import read_peak_rss_mb
from edgefl.base.types import ClientState, Weights
from edgefl.learning.algorithms import PHASE_PERSONALIZE
from edgefl.learning.client.runner import ClientRunner
from edgefl.program.plan.spec import Plan, decode_plan
from edgefl.protocol.device.events import (
    Answer,
    AnswerStep,
    BeginAttempt,
    ClientEvent,
    MaskedAnswerReady,
    OpenPlan,
    PackageMissing,
    PlanOpened,
    PlanRefused,
    Train,
    Trained,
    TrainingFailed,
)
from edgefl.protocol.device.masked_rounds import is_same_attempt
from edgefl.protocol.security.trust import Trust
from edgefl.protocol.wire.messages import Task
from edgefl.protocol.wire.tensors import bound_blob_size, decode_subset, encode_models

LOGGER = logging.getLogger("edgefl.device")


class DeviceWorker:
    """The computations of one device.

    Args:
        federation: name of the federation.
        store: the files of the finished rounds.
        storage: receives the answers.
        trials: runs each new plan once before the device uses it.
        trust: signs the messages of masked rounds.
        count_traffic: returns the payload bytes that the device has sent and received.

    Attributes:
        export_error: why the int8 model could not be made, or None.
    """

    def __init__(
        self,
        settings: DeviceSettings,
        federation: str,
        samples: LocalDataset,
        store: DeviceStore,
        storage: DeviceStorage,
        trials: PlanTrials,
        trust: Trust,
        count_traffic: Callable[[], tuple[int, int]],
    ) -> None:
        self.export_error: ExportError | None = None
        self._settings = settings
        self._federation = federation
        self._samples = samples
        self._store = store
        self._storage = storage
        self._trials = trials
        self._trust = trust
        self._count_traffic = count_traffic
        self._plan: Plan | None = None
        self._runner: ClientRunner | None = None
        self._attempt: MaskedAttempt | None = None
        self._checked_session = ""

    def compute(self, work: Work) -> ClientEvent:
        """Carry out an action, and return the event for the client machine.

        Args:
            work: the action.

        Raises:
            DataError: the samples cannot be read or do not fit the plan, or the device took part in this
                session with other samples.
            StateError: a file of the state directory cannot be read or written.
        """
        match work:
            case OpenPlan():
                return self._open_plan(work)
            case Train(task, models):
                return self._perform_task(task, models)
            case BeginAttempt():
                return self._begin_attempt(work)
            case AnswerStep():
                return self._answer_step(work)

    def _open_plan(self, action: OpenPlan) -> ClientEvent:
        self._check_samples(action.session)
        settings = self._settings
        try:
            plan = decode_plan(action.content)
            spec = plan.spec
            check_names(spec, settings.learner, settings.allowed)
            if settings.learner == "litert" and spec.signatures:
                check_memory(spec, find_usable_mb())
                self._trials.check(action.sha256, self._storage.cache.locate(action.sha256))
            check_shard(self._samples.load_shard(spec), spec)
        except (PlanError, ConfigError) as error:
            return PlanRefused(action.sha256, str(error))
        self._plan = plan
        return PlanOpened(action.sha256, bound_blob_size(spec.weights))

    def _check_samples(self, session: str) -> None:
        """Compare the samples with those of earlier rounds, once for each session.

        Raises:
            DataError: the device took part in this session with other samples.
        """
        progress = self._store.read_progress()
        took_part = progress and progress.session == session and progress.phase != PHASE_PERSONALIZE
        if took_part and session != self._checked_session:
            sketch = self._store.read_note().get("sketch", [])
            if gone := self._samples.check_sketch(sketch, self._settings.state):
                LOGGER.warning(gone)
        self._checked_session = session

    def _perform_task(self, task: Task, models: Mapping[str, bytes]) -> ClientEvent:
        """Train or personalize as a task asks."""
        self._check_samples(task.session)
        try:
            runner = self._open_runner(task)
        except (PlanError, ConfigError) as error:
            return PlanRefused(task.plan, str(error))
        self._save_note(task)
        try:
            weights = {
                name: decode_subset(blob, runner.plan.spec.weights, f"the aggregator ({name})")
                for name, blob in models.items()
            }
            perform = self._personalize if task.phase == PHASE_PERSONALIZE else self._train
            blob, num_samples, metrics, state = perform(task, runner, weights)
        except DivergedError as error:
            return TrainingFailed(task, str(error), has_diverged=True)
        except (DataError, WireError, PlanError) as error:
            # The samples were checked before, so the models are at fault
            return TrainingFailed(task, str(error))
        except (LookupError, TypeError, ValueError, ArithmeticError) as error:  # For example a missing model
            return TrainingFailed(task, f"its models do not fit the plan: {error!r}")
        sha256 = hashlib.sha256(blob).hexdigest()
        self._storage.add_answer(sha256, blob, state)
        return Trained(task, Answer(sha256=sha256, size=len(blob), num_samples=num_samples, metrics=metrics))

    def _save_note(self, task: Task) -> None:
        settings = self._settings
        note: dict[str, Any] = {
            "id": settings.client_id,
            "federation": self._federation,
            "seed": task.seed,
            "sketch": self._samples.sketch,
            **settings.data.to_json(),
        }
        masked = {"masked": True} if was_masked(task, self._store.read_note()) else {}
        self._store.save_note(note | masked)

    def _open_runner(self, task: Task) -> ClientRunner:
        if self._runner is None or (self._runner.plan.id, self._runner.seed) != (task.plan, task.seed):
            settings = self._settings
            assert self._plan is not None, "the machine trains after it opened the plan"
            self._trials.record_open_plan(task.plan)
            self._runner = None  # Frees its shard before the next shard is read
            self._runner = open_runner(
                plan=self._plan,
                samples=self._samples,
                seed=task.seed,
                client_id=settings.client_id,
                learner=settings.learner,
                threads=settings.threads,
            )
        return self._runner

    def _train(
        self, task: Task, runner: ClientRunner, models: Mapping[str, Weights]
    ) -> tuple[bytes, int, Mapping[str, float], ClientState]:
        began = time.monotonic()
        last = self._store.read_progress()
        previous = last.metrics if last and last.session == task.session else {}
        epochs = choose_epochs(task, runner.plan, previous)
        state = self._store.read_client_state(task.session)
        update, state = runner.update(make_work_item(task, models, state, self._settings.client_id, epochs))
        metrics = {**update.metrics, "seconds": time.monotonic() - began, "peak_rss_mb": read_peak_rss_mb()}
        return encode_models(update.deltas, task.codec), update.num_samples, metrics, state

    def _personalize(
        self, task: Task, runner: ClientRunner, models: Mapping[str, Weights]
    ) -> tuple[bytes, int, Mapping[str, float], ClientState]:
        began = time.monotonic()
        settings = self._settings
        client_id = settings.client_id
        LOGGER.info(
            f"round {task.round}: personalizing"
            + (", and exporting an int8 model" if settings.export else ""),
            extra={"round": task.round, "phase": task.phase},
        )
        state = self._store.read_client_state(task.session)
        mixture, state, measured = runner.personalize(make_work_item(task, models, state, client_id))
        metrics = dict(measured)
        if not settings.sharing.requires_masks and not was_masked(task, self._store.read_note()):
            metrics |= measure_gate(runner, mixture, client_id)
        self._store.save_personal(runner.plan, mixture)
        if settings.export:
            try:
                metrics |= extract_export_metrics(export_in_child(settings.state, settings.data))
            except ExportError as error:  # The federation continues without this int8 model
                self.export_error = error
                LOGGER.error(str(error))
        bytes_up, bytes_down = self._count_traffic()
        traffic = {"bytes_up": float(bytes_up), "bytes_down": float(bytes_down)}
        metrics |= {"seconds": time.monotonic() - began, "peak_rss_mb": read_peak_rss_mb(), **traffic}
        num_samples = len(runner.shards[client_id].y_train)
        return encode_models({}, task.codec), num_samples, metrics, state

    def _begin_attempt(self, action: BeginAttempt) -> ClientEvent:
        task, answer = action.task, action.answered.answer
        attempt = self._attempt
        if attempt is None or (attempt.task.session, attempt.task.nonce) != (task.session, task.nonce):
            settings = self._settings
            try:
                attempt = self._attempt = draw_attempt(
                    task=task,
                    update=self._storage.read_answer(answer.sha256),
                    num_samples=answer.num_samples,
                    client_id=settings.client_id,
                    trust=self._trust,
                    authority=settings.enrolment.ca if settings.enrolment else "",
                    sharing=settings.sharing,
                )
            except CannotMaskError as error:
                return PackageMissing(task, str(error))
            except DataError as error:
                return TrainingFailed(task, str(error))
        return self._add_step_answer(task, attempt.advertise())

    def _answer_step(self, action: AnswerStep) -> ClientEvent:
        step = action.step
        if self._attempt is None or not is_same_attempt(step, self._attempt.task):
            return self._add_step_answer(step, b"")
        try:
            answer = self._attempt.answer_step(step, action.request)
        except (RoundError, WireError, DataError) as error:
            LOGGER.warning(f"round {step.round}: {error}", extra={"round": step.round})
            answer = b""
        return self._add_step_answer(step, answer)

    def _add_step_answer(self, task: Task, content: bytes) -> MaskedAnswerReady:
        sha256 = hashlib.sha256(content).hexdigest()
        self._storage.add_answer(sha256, content)
        return MaskedAnswerReady(task, sha256, len(content))
