"""The client machine: answers the tasks of an aggregator, without a link, clock, files or learner.

`ClientMachine.handle` takes an event and the time, and returns actions. `devices.driver` carries them out on
a device, and `edgefl.simulation.simulated_client` in a simulation.

The machine does one job at a time. While the driver trains, the machine handles all other events, so the
status and the newest task are always known. Training is not cancelled: its result is stored, and it is sent
if the aggregator still accepts it.
"""

import logging
import math
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from edgefl.base.errors import EdgeflError, LinkError, WireError
from edgefl.learning.algorithms import PHASE_DONE
from edgefl.protocol.device.download import Download
from edgefl.protocol.device.duplicate_id import DuplicateIdError, describe_duplicate_id, should_yield
from edgefl.protocol.device.events import (
    Answer,
    AnswerStep,
    AvailabilityChanged,
    BeginAttempt,
    BlobChunkReceived,
    BlobManifestReceived,
    CacheRead,
    ClaimReceived,
    ClientAction,
    ClientEvent,
    EndParticipation,
    ForgetPendingTask,
    MaskedAnswerReady,
    OpenPlan,
    PackageMissing,
    PlanOpened,
    PlanRefused,
    PublishMetrics,
    ReadCache,
    ReceiptReceived,
    SameIdStatusReceived,
    SavedClient,
    SaveMaskedSession,
    SaveOrder,
    SavePendingTask,
    SaveRound,
    StateReceived,
    StopClient,
    StoreBlob,
    Subscribe,
    TaskReceived,
    Train,
    Trained,
    TrainingFailed,
    Unsubscribe,
    WriteClientLog,
    make_answered_round,
)
from edgefl.protocol.device.masked_rounds import (
    EMPTY_ANSWER,
    MAX_STEP_BYTES,
    MaskingRules,
    is_final,
    is_same_attempt,
    is_step_rejected,
)
from edgefl.protocol.device.order import (
    RESET_REMEDY,
    SharingRules,
    TaskOrder,
    check_masked_task,
    check_session,
)
from edgefl.protocol.device.refusals import Refusals
from edgefl.protocol.device.upload import AnswerUpload
from edgefl.protocol.wire.chunks import check_chunk_bytes
from edgefl.protocol.wire.divergence_message import FederationDivergedError, read_divergence
from edgefl.protocol.wire.machine_events import LinkLoad, LinkRestored, Publish, TimePassed
from edgefl.protocol.wire.masked import MASKED_CODEC, MAX_ATTEMPTS, SECAGG_STEPS
from edgefl.protocol.wire.messages import STOPPED_PHASE, Receipt, State, Status, Task, Want
from edgefl.protocol.wire.topics import FederationTopics, check_sha256

MAX_PLAN_BYTES = 64 * 1024 * 1024
"""Maximum size of an encoded plan in bytes."""
DRAIN_PERIOD_S = 5.0
"""Seconds of a pause in which a client still accepts a task that arrives.

The aggregator may have sent the task before it received the pause.
"""
STATUS_TIMEOUT_S = 30.0
"""Longest wait for the client's own status. A broker may drop messages without an error."""
UNCHECKED_REASON = "has not yet checked that its data fit the plan"

Stage = Literal[
    "fetch plan", "open plan", "late update", "fetch models", "train", "attempt", "upload", "steps"
]
"""What a job waits for."""


@dataclass
class _Job:
    """The work on one task, or on the plan of a state before the first task.

    Attributes:
        stage: what the job waits for.
        plan: the plan, sha256 in hex.
        session: the session.
        task: the task. None to check the plan only.
        has_left: whether the client does not take part in the attempt, so that its next answer is the last.
    """

    stage: Stage
    plan: str
    session: str
    task: Task | None = None
    has_left: bool = False


@dataclass
class _StepWork:
    """The work on one step of a masked round.

    Attributes:
        step: the step.
        is_computing: whether the driver computes the answer.
    """

    step: Task
    is_computing: bool = False


@dataclass(frozen=True)
class ClientSettings:
    """How a client takes part.

    Attributes:
        sharing: the owner's rules about the data that the client may send.
        is_checked: whether the data were checked against a plan before. Until then the client is paused.
        wait_s: seconds to wait for a federation. 0 waits without limit.
        draw_factor: returns the factor by which the next pause between repeated messages is longer. Devices
            draw it at random, so that a whole fleet does not repeat its messages at the same time.
        reset_remedy: how the owner makes the client forget the newest run, for the log.
        broker: URL of the broker, for the log.
    """

    sharing: SharingRules = field(default_factory=SharingRules)
    is_checked: bool = True
    wait_s: float = 0.0
    draw_factor: Callable[[], float] = lambda: 1.6
    reset_remedy: str = RESET_REMEDY
    broker: str = "the broker"


class ClientMachine:
    """One client of a federation.

    Args:
        status: the status that the client publishes. Its `paused` is the reason why the owner's conditions
            forbid tasks at the start, empty if they do not.
        settings: how the client takes part.
        saved: the data that the client stored before its last stop.

    Attributes:
        client_id: the client.
        state: the newest accepted state of the federation, or None before the first.
        task: the newest accepted task that is not a step of a masked round, or None before the first.
    """

    def __init__(
        self,
        topics: FederationTopics,
        status: Status,
        settings: ClientSettings,
        saved: SavedClient,
    ) -> None:
        self.client_id = status.client_id
        self.state: State | None = None
        self.task: Task | None = None
        self._topics = topics
        self._settings = settings
        self._order = TaskOrder(saved.newest, settings.sharing, settings.reset_remedy)
        self._answered = saved.answered
        self._pending = saved.pending
        self._masked = MaskingRules(saved.masked_sessions, settings.sharing.requires_masks)
        self._refusals = Refusals()
        self._is_checked = settings.is_checked
        self._host_pause = status.paused
        self._paused_at = -math.inf
        # What arrived
        self._is_task_open = False
        """Whether the newest task waits for an answer. A task that arrives again is answered again."""
        self._task_at = -math.inf
        self._newest_task: Task | None = None
        """The newest accepted task or step."""
        self._open_step: Task | None = None
        # What the client does
        self._job: _Job | None = None
        self._step_work: _StepWork | None = None
        self._download: Download | None = None
        self._upload: AnswerUpload | None = None
        self._opened_plan: PlanOpened | None = None
        self._status = replace(status, online=True, paused=self._find_pause_reason(0.0))
        # What the log and the timers need
        self._seen_session = ""
        self._is_aggregator_gone = False
        self._has_ended = False
        self._status_due_at = math.inf
        self._wait_until = math.inf
        self._pause_ends_at = math.inf

    # Interface

    @property
    def is_sending(self) -> bool:
        """Whether chunks wait until fewer messages are in flight. The driver then reports the `LinkLoad`."""
        return self._upload is not None and self._upload.is_sending

    @property
    def uploading_sha256(self) -> str:
        """The sha256 of the answer that is being uploaded, empty if there is none."""
        return self._upload.sha256 if self._upload else ""

    def start(self, now: float) -> list[ClientAction]:
        """Return the first actions: subscribe to the topics of the client, and publish its status.

        Args:
            now: the time in seconds.
        """

        def list_topics(*leaves: str) -> tuple[str, ...]:
            return tuple(self._topics.format_device(self.client_id, leaf) for leaf in leaves)

        self._status_due_at = now + STATUS_TIMEOUT_S
        self._wait_until = now + self._settings.wait_s if self._settings.wait_s else math.inf
        # A task may follow the status at once, so the task topics are subscribed first. The status topic is
        # subscribed last, because it retains the status of an earlier start until this client publishes its
        # own. QoS 0 is enough: QoS 1 would not outlast the connection, and lost messages are sent again
        paused = [WriteClientLog(f"paused: {self._host_pause}")] if self._host_pause else []
        return [
            Subscribe(
                (*list_topics("claim", "task", "receipt"), self._topics.state), qos=0, is_acknowledged=True
            ),
            self._publish_status(),
            Subscribe(list_topics("status"), qos=0, is_acknowledged=True),
            WriteClientLog(
                f"{self.client_id} joined {self._topics.federation!r} at {self._settings.broker} with "
                f"{self._status.num_samples} samples"
            ),
            *paused,
        ]

    def stop(self) -> list[ClientAction]:
        """Return the actions of a client that leaves: it publishes that it is offline."""
        self._status = replace(self._status, online=False)
        return [self._publish_status()]

    def handle(self, event: ClientEvent, now: float) -> list[ClientAction]:
        """Handle an event.

        Args:
            now: the time in seconds, of a clock that does not go back.

        Returns:
            The actions, in the order in which the driver carries them out.
        """
        try:
            actions = list(self._receive(event, now))
        except WireError as error:
            actions = [WriteClientLog(f"ignored: {error}", logging.WARNING)]
        actions += self._continue(now)
        actions += self._update_status(now)
        return actions

    def get_timer(self) -> float:
        """Return the time in seconds at which `TimePassed` is due, or infinity."""
        times = [self._status_due_at, self._wait_until, self._pause_ends_at]
        if self._download:
            times.append(self._download.get_timer())
        if self._upload:
            times.append(self._upload.get_timer())
        return min(times)

    # Events

    def _receive(self, event: ClientEvent, now: float) -> Iterator[ClientAction]:
        match event:
            case StateReceived(state):
                yield from self._receive_state(state)
            case TaskReceived(task):
                yield from self._receive_task(task, now)
            case ReceiptReceived(receipt):
                yield from self._receive_receipt(receipt, now)
            case BlobManifestReceived(manifest) if self._download:
                yield from self._request(self._download.add_manifest(manifest, now))
            case BlobChunkReceived(sha256, index, payload) if self._download:
                self._download.add_chunk(sha256, index, payload, now)
            case CacheRead(digests, blobs) if self._download and digests == tuple(self._download.limits):
                yield from self._begin_download(self._download, blobs, now)
            case SameIdStatusReceived(status):
                yield from self._receive_same_id_status(status)
            case ClaimReceived(claim) if claim.boot_id != self._status.boot_id:
                yield self._publish_status()
            case LinkRestored():
                yield self._publish_status()
            case LinkLoad(in_flight) if self._upload:
                yield from self._upload.send_chunks(in_flight, now)
            case AvailabilityChanged(reason):
                if reason and not self._host_pause:
                    self._paused_at = now
                self._host_pause = reason
            case PlanOpened() | PlanRefused():
                yield from self._receive_plan(event, now)
            case Trained() | TrainingFailed() | PackageMissing():
                yield from self._receive_training(event, now)
            case MaskedAnswerReady():
                yield from self._receive_masked_answer(event, now)
            case TimePassed():
                yield from self._pass_time(now)

    def _receive_state(self, state: State) -> Iterator[ClientAction]:
        check_session(state)
        reason = yield from self._check_order(state)
        if not reason:
            self.state = state

    def _receive_task(self, task: Task, now: float) -> Iterator[ClientAction]:
        check_chunk_bytes(task.chunk_bytes)
        check_session(task)
        check_masked_task(task)
        reason = yield from self._check_order(task)
        if reason:
            return
        self._newest_task = task
        if task.phase in SECAGG_STEPS:
            self._open_step = task
            return
        self.task = task
        self._is_task_open = True
        self._task_at = now
        upload = self._upload
        if upload and not upload.is_sending and not self._step_work and self._is_current(upload.task, True):
            yield from upload.announce(now, follows=task.granted and task.nonce == upload.task.nonce)

    def _check_order(self, message: State | Task) -> Generator[ClientAction, None, str]:
        """Return why a message is refused, empty if it is accepted.

        Yield the actions that store the order and log the refusal.
        """
        before = self._order.newest
        reason = self._order.explain_refusal(message)
        newest = self._order.newest
        if newest is not None and newest != before:
            yield SaveOrder(newest)
        if reason and (line := self._order.describe_new_refusal(message, reason)):
            yield WriteClientLog(line, logging.WARNING, {"round": message.round})
        return reason

    def _receive_receipt(self, receipt: Receipt, now: float) -> Iterator[ClientAction]:
        upload = self._upload
        if upload is None or not upload.handle_receipt(receipt, now):
            return
        self._upload = None
        job = self._job
        if self._step_work:
            yield from self._end_step(self._step_work.step, receipt)
        elif job and job.task and job.stage == "late update":
            yield from self._end_task(upload.task, receipt)
            yield from self._begin_answer(job, job.task, now)
        elif job and job.task:
            is_in_attempt = job.task.codec == MASKED_CODEC and not job.has_left
            if is_in_attempt and receipt.outcome == "ok":
                job.stage = "steps"
                return
            yield from self._end_task(job.task, receipt)
            self._end_job()

    def _receive_same_id_status(self, other: Status) -> Iterator[ClientAction]:
        if other.boot_id == self._status.boot_id:
            self._status_due_at = math.inf
            # A cluster of brokers may publish the will of a broken connection after this client connected to
            # another machine of the cluster
            if not other.online:
                yield self._publish_status()
            return
        if other.online and should_yield(self._status, other):
            yield from self._stop(
                DuplicateIdError(describe_duplicate_id(other.client_id, self._settings.broker))
            )
            return
        yield self._publish_status()

    def _receive_plan(self, event: PlanOpened | PlanRefused, now: float) -> Iterator[ClientAction]:
        job = self._job
        if isinstance(event, PlanRefused):
            self._job = None
            yield self._refusals.refuse_plan(event.sha256, event.reason)
            return
        self._opened_plan = event
        if job is None or job.stage != "open plan":
            return
        if job.task is None:
            self._end_job()
        else:
            yield from self._fetch_models(job, job.task, event, now)

    def _receive_training(
        self, event: Trained | TrainingFailed | PackageMissing, now: float
    ) -> Iterator[ClientAction]:
        job = self._job
        if job is None or job.task is None or job.task.nonce != event.task.nonce:
            return
        if isinstance(event, Trained):
            self._answered = make_answered_round(event)
            yield SaveRound(self._answered)
            yield from self._send(job, job.task, event.answer, now)
            return
        self._end_refused()
        if job.stage == "attempt":
            self._masked.forget_attempt()
        if isinstance(event, PackageMissing):
            yield self._refusals.wait_for_package(event.reason, now)
        else:
            yield self._refusals.refuse_task(event.task, event.reason, now, has_diverged=event.has_diverged)

    def _receive_masked_answer(self, event: MaskedAnswerReady, now: float) -> Iterator[ClientAction]:
        work, job, answered = self._step_work, self._job, self._answered
        assert answered is not None, "only an answered round is masked"
        answer = self._masked.make_answer(event.task, event.sha256, event.size, answered)
        if work and work.step == event.task:
            work.is_computing = False
            self._masked.count_vector(work.step, event.size)
            yield from self._begin_upload(work.step, answer, now)
        elif job and job.task and job.stage == "attempt" and job.task.nonce == event.task.nonce:
            job.stage = "upload"
            yield from self._begin_upload(job.task, answer, now)

    def _pass_time(self, now: float) -> Iterator[ClientAction]:
        if now >= self._wait_until:
            federation = self._topics.federation
            yield from self._stop(
                LinkError(
                    f"the federation {federation!r} did not run within {self._settings.wait_s:g} s; start it "
                    "with `edgefl aggregator start`"
                )
            )
        if now >= self._status_due_at:
            self._status_due_at = math.inf
            broker = self._settings.broker
            yield WriteClientLog(
                f"{broker} does not deliver this device's own status within {STATUS_TIMEOUT_S:g} s; check "
                f"the broker's access list, or run `edgefl doctor --broker {broker}`",
                logging.WARNING,
            )
        if self._download:
            yield from self._request(self._download.handle_timer(now))
        if self._upload:
            yield from self._upload.handle_timer(now)

    # What the client does next

    def _continue(self, now: float) -> Iterator[ClientAction]:
        """End work that is obsolete, use a complete download, and begin the next work."""
        yield from self._drop_obsolete_work(now)
        if self._download and self._download.is_complete:
            blobs = self._download.blobs
            yield from (StoreBlob(blobs[sha256]) for sha256 in self._download.missing)
            yield from self._drop_download()
            yield from self._use_blobs(blobs)
        step, job = self._open_step, self._job
        if step and not self._step_work and (job is None or _is_step_of(job, step)):
            self._open_step = None
            yield from self._begin_step(step, now)
        if self._job is None and self._step_work is None and not self._has_ended:
            yield from self._begin_job(now)

    def _drop_obsolete_work(self, now: float) -> Iterator[ClientAction]:
        work, job = self._step_work, self._job
        if work and not work.is_computing and not self._is_current(work.step):
            self._step_work = None
            yield from self._drop_transfers()
            yield _log_round(work.step, "no answer was sent, because the aggregator no longer waits for it")
        if job is None or self._step_work or job.stage in ("open plan", "train", "attempt"):
            return
        if job.task is None:
            if self._find_newest_plan() != job.plan or self._has_session_ended(job.session):
                yield from self._drop_transfers()
                self._job = None
                self._is_checked = True
            return
        if job.stage == "late update" and self._upload and not self._is_current(self._upload.task, True):
            self._upload = None
            yield from self._begin_answer(job, job.task, now)
        is_late_allowed = job.stage == "upload"
        if job.stage != "late update" and not self._is_current(job.task, is_late_allowed):
            yield from self._drop_transfers()
            yield self._end_obsolete(job.task)

    def _find_newest_plan(self) -> str:
        """Return the plan of the newest task or of the state of a later run, empty before the first."""
        task, state = self.task, self.state
        if task and (state is None or task.started >= state.started):
            return task.plan
        return state.plan if state else ""

    def _drop_transfers(self) -> Iterator[ClientAction]:
        """End the download and the upload."""
        self._upload = None
        yield from self._drop_download()

    def _drop_download(self) -> Iterator[ClientAction]:
        if self._download and self._download.missing:
            yield Unsubscribe(self._list_filters(self._download))
        self._download = None

    def _end_obsolete(self, task: Task) -> ClientAction:
        self._job = None
        return _log_round(task, "stopped, because the round is over")

    def _end_refused(self) -> None:
        """End the job of a task that is refused. A task that arrived meanwhile is not accepted either."""
        self._job = None
        self._is_task_open = False

    def _begin_job(self, now: float) -> Iterator[ClientAction]:
        task, state = self.task, self.state
        if task and self._is_task_open and self._is_current(task) and self._can_accept(task):
            yield from self._begin_task(task, now)
        if state is None or self._job:
            return
        last_session = self._answered.session if self._answered else ""
        is_ours = state.session in (self._seen_session, last_session) and state.plan != self._refusals.plan
        if state.phase == PHASE_DONE and is_ours and not self._order.pause_reason:
            self._has_ended = True
            yield EndParticipation(state.session, self._refusals.failure)
            return
        if state.session in (self._seen_session, task.session if task else ""):
            if divergence := read_divergence(state):
                yield from self._stop(FederationDivergedError(divergence))
                return
            yield from self._log_absence(state)
        if state.phase not in (PHASE_DONE, STOPPED_PHASE) and state.session != self._seen_session:
            self._seen_session = state.session
            self._wait_until = math.inf
            position = f", round {state.round}" if 0 < state.round <= state.rounds else ""
            yield WriteClientLog(f"the federation is in phase {state.phase}{position}")
            if self._opened_plan and self._opened_plan.sha256 == state.plan:
                self._end_job()  # The samples fit the plan of this session too
                return
            self._job = _Job(stage="fetch plan", plan=state.plan, session=state.session)
            yield from self._fetch_plan(self._job)

    def _can_accept(self, task: Task) -> bool:
        was_sent_before = self._task_at - self._paused_at < DRAIN_PERIOD_S
        return task.plan != self._refusals.plan and (not self._host_pause or was_sent_before)

    def _log_absence(self, state: State) -> Iterator[ClientAction]:
        """Log once that the aggregator has stopped, and once that it is back."""
        is_gone = state.phase == STOPPED_PHASE
        if is_gone == self._is_aggregator_gone:
            return
        self._is_aggregator_gone = is_gone
        if is_gone:
            yield WriteClientLog(
                "the aggregator has stopped; this device waits until it starts again", logging.WARNING
            )
        else:
            yield WriteClientLog(f"the aggregator is back, in phase {state.phase}")

    # A task

    def _begin_task(self, task: Task, now: float) -> Iterator[ClientAction]:
        if self._masked.is_plain_in_masked_session(task):
            self._end_refused()
            reason = (
                "it asks for an update that is not masked, and this device masked an update of this session "
                "before. Somebody with the aggregator's key may try to read this device's update"
            )
            yield self._refusals.refuse_task(task, reason, now)
            return
        job = self._job = _Job(stage="late update", plan=task.plan, session=task.session, task=task)
        late = self._find_late_task(task)
        if late and self._answered:
            yield from self._begin_upload(late, self._answered.answer, now)
        else:
            yield from self._begin_answer(job, task, now)

    def _find_late_task(self, task: Task) -> Task | None:
        """Return the earlier task of the session whose answer the aggregator still accepts, or None."""
        late, answered = self._pending, self._answered
        if late is None or answered is None or not answered.is_answer_to(late):
            return None
        if late.codec == MASKED_CODEC or self._masked.is_plain_in_masked_session(late):
            return None  # Its answer must not leave this client without masks
        is_earlier = late.session == task.session and late.round < task.round
        return late if is_earlier and self._is_current(late, is_late_allowed=True) else None

    def _begin_answer(self, job: _Job, task: Task, now: float) -> Iterator[ClientAction]:
        """Send the stored answer to a task, or fetch what its training needs."""
        if task.max_staleness and task.codec != MASKED_CODEC:
            self._pending = task
            yield SavePendingTask(task)
        if self._answered and self._answered.is_answer_to(task):
            yield from self._send(job, task, self._answered.answer, now)
        elif self._opened_plan and self._opened_plan.sha256 == task.plan:
            yield from self._fetch_models(job, task, self._opened_plan, now)
        else:
            yield from self._fetch_plan(job)

    def _fetch_plan(self, job: _Job) -> Iterator[ClientAction]:
        job.stage = "fetch plan"
        if problem := _find_malformed_digest(job.plan):
            self._job = None
            yield self._refusals.refuse_plan(job.plan, f"the plan cannot be fetched: {problem}")
            return
        yield self._read_cache({job.plan: MAX_PLAN_BYTES})

    def _fetch_models(self, job: _Job, task: Task, plan: PlanOpened, now: float) -> Iterator[ClientAction]:
        job.stage = "fetch models"
        if problem := _find_malformed_digest(*task.models.values()):
            self._end_refused()
            yield self._refusals.refuse_task(task, problem, now)
            return
        yield self._read_cache(dict.fromkeys(task.models.values(), plan.max_model_bytes))

    def _send(self, job: _Job, task: Task, answer: Answer, now: float) -> Iterator[ClientAction]:
        """Announce the answer to a task, or begin an attempt to mask it."""
        is_masked = task.codec == MASKED_CODEC
        if is_masked and self._masked.add_session(task.session):
            yield SaveMaskedSession(task.session)
        if not self._is_current(task, is_late_allowed=True):  # A later task arrived meanwhile
            yield self._end_obsolete(task)
        elif is_masked:
            yield from self._begin_attempt(job, task, now)
        else:
            job.stage = "upload"
            yield from self._begin_upload(task, answer, now)

    def _end_task(self, task: Task, receipt: Receipt) -> Iterator[ClientAction]:
        """Log the end of a task whose answer the aggregator accepted or rejected."""
        self._pending = None
        yield ForgetPendingTask()
        if self._is_current(task):
            self._is_task_open = False
        if receipt.outcome == "rejected":
            yield _log_round(task, f"the aggregator rejected the update: {receipt.reason}", logging.WARNING)
            return
        metrics = self._answered.answer.metrics if self._answered else {}
        listed = ", ".join(f"{key} {value:.4g}" for key, value in metrics.items())
        fields = {"round": task.round, "phase": task.phase, "metrics": dict(metrics)}
        yield WriteClientLog(f"round {task.round} {task.phase}: {listed}", fields=fields)
        if task.codec == MASKED_CODEC:
            metrics = self._masked.filter_metrics(metrics)
        yield PublishMetrics(task.round, metrics)

    def _end_job(self) -> None:
        """End a job that succeeded. Later refusals begin with a short pause again."""
        self._job = None
        self._is_checked = True
        self._refusals.clear()

    # Masked rounds

    def _begin_attempt(self, job: _Job, task: Task, now: float) -> Iterator[ClientAction]:
        """Begin the attempt at a masked round, or ask again for the first message of the present one."""
        assert self._answered is not None, "an attempt masks the answer to its task"
        if self._masked.is_new_attempt(task):
            if not self._masked.begin_attempt(task):
                job.stage, job.has_left = "upload", True
                problem = (
                    f"this device sent its masked update in {MAX_ATTEMPTS} attempts at this round, and takes "
                    "part in no further one, because differences of their sums may reveal the update; look "
                    "in the aggregator's log why no attempt gave a sum; a restart of this device allows "
                    f"{MAX_ATTEMPTS} more"
                )
                yield from self._decline(task, problem, now)
                return
            self._open_step = None  # of an earlier attempt
        job.stage = "attempt"
        yield BeginAttempt(task, self._answered)

    def _begin_step(self, step: Task, now: float) -> Iterator[ClientAction]:
        """Answer a step. The aggregator repeats it after it restarts."""
        self._step_work = _StepWork(step)
        if problem := _find_malformed_digest(*step.models.values()):
            yield from self._decline(step, problem, now)
        elif not self._masked.has_keys(step):
            problem = (
                "this device has no keys of the attempt, perhaps after a restart; the other clients remove "
                "its masks"
            )
            yield from self._decline(step, problem, now)
        else:
            yield self._read_cache(dict.fromkeys(step.models.values(), MAX_STEP_BYTES))

    def _decline(self, task: Task, problem: str, now: float) -> Iterator[ClientAction]:
        """Send an empty answer. The aggregator then does not wait for this client."""
        yield _log_round(task, problem, logging.WARNING)
        yield from self._begin_upload(task, EMPTY_ANSWER, now)

    def _end_step(self, step: Task, receipt: Receipt) -> Iterator[ClientAction]:
        self._step_work = None
        job = self._job
        if job and job.task and is_final(step, receipt):
            outcome = "rejected" if is_step_rejected(step, receipt) else "ok"
            yield from self._end_task(job.task, replace(receipt, outcome=outcome))
            self._end_job()

    # Messages

    def _is_current(self, task: Task, is_late_allowed: bool = False) -> bool:
        """Return whether the aggregator still accepts the answer to a task.

        A task is current until a later task arrives or the federation ends. A task of a masked round is
        current until a task of another attempt arrives. A task whose answer must not leave this client is
        never current.

        Args:
            is_late_allowed: whether the newest task may be later by the `max_staleness` of this task.
        """
        if self._order.should_withhold(task):
            return False
        new = self.task
        if task.codec == MASKED_CODEC:
            new = (
                self._newest_task if self._newest_task and is_same_attempt(self._newest_task, task) else None
            )
        if new is None or new.session != task.session:
            return False
        within = task.max_staleness if is_late_allowed and new.phase == task.phase else 0
        return 0 <= new.round - task.round <= within and not self._has_session_ended(task.session)

    def _has_session_ended(self, session: str) -> bool:
        state = self.state
        if state is None or state.session != session:
            return False
        return state.phase == PHASE_DONE or read_divergence(state) is not None

    def _read_cache(self, limits: Mapping[str, int]) -> ClientAction:
        self._download = Download(limits, self._settings.draw_factor)
        return ReadCache(tuple(limits))

    def _begin_download(
        self, download: Download, cached: Mapping[str, bytes], now: float
    ) -> Iterator[ClientAction]:
        download.begin(cached, now)
        if download.missing:
            # The broker processes messages of one client in their order, so the subscription takes effect
            # before an answer arrives
            yield Subscribe(self._list_filters(download), download.qos, is_acknowledged=False)

    def _use_blobs(self, blobs: Mapping[str, bytes]) -> Iterator[ClientAction]:
        """Continue the work that needed these blobs."""
        work, job = self._step_work, self._job
        if work:
            work.is_computing = True
            yield AnswerStep(work.step, blobs[_get_request(work.step)])
        elif job and job.stage == "fetch plan":
            job.stage = "open plan"
            yield OpenPlan(job.plan, blobs[job.plan], job.session)
        elif job and job.task and job.stage == "fetch models":
            job.stage = "train"
            yield Train(job.task, {name: blobs[sha256] for name, sha256 in job.task.models.items()})

    def _list_filters(self, download: Download) -> tuple[str, ...]:
        return tuple(self._topics.format_blob(sha256, "+") for sha256 in download.missing)

    def _request(self, wants: list[Want]) -> Iterator[ClientAction]:
        topic = self._topics.format_device(self.client_id, "want")
        yield from (Publish(topic=topic, message=want) for want in wants)

    def _begin_upload(self, task: Task, answer: Answer, now: float) -> Iterator[ClientAction]:
        is_update = self._answered is not None and answer.sha256 == self._answered.answer.sha256
        needs_mask = task.codec == MASKED_CODEC or self._masked.is_plain_in_masked_session(task)
        assert not (is_update and needs_mask), "an update that needs a mask leaves the client without one"
        self._upload = AnswerUpload(
            topics=self._topics,
            client_id=self.client_id,
            task=task,
            answer=answer,
            draw_factor=self._settings.draw_factor,
        )
        yield from self._upload.announce(now, follows=task.granted)

    def _publish_status(self) -> ClientAction:
        return Publish(
            topic=self._topics.format_device(self.client_id, "status"),
            message=self._status,
            is_retained=True,
        )

    def _find_pause_reason(self, now: float) -> str:
        unchecked = "" if self._is_checked else UNCHECKED_REASON
        refusal = self._refusals.get_reason(now)
        return self._host_pause or refusal or self._order.pause_reason or unchecked

    def _update_status(self, now: float) -> Iterator[ClientAction]:
        """Publish the status if it has changed."""
        before, reason = self._status.paused, self._find_pause_reason(now)
        self._pause_ends_at = self._refusals.get_timer(now)
        is_at_work = self._step_work is not None or (self._job is not None and self._job.task is not None)
        draining = bool(reason) and is_at_work
        if reason not in (before, UNCHECKED_REASON) and (reason or before != UNCHECKED_REASON):
            yield WriteClientLog(f"paused: {reason}" if reason else "accepts tasks again")
        if (reason, draining) != (before, self._status.draining):
            self._status = replace(self._status, paused=reason, draining=draining)
            yield self._publish_status()

    def _stop(self, error: EdgeflError) -> Iterator[ClientAction]:
        self._has_ended = True
        yield StopClient(error)


def _find_malformed_digest(*digests: str) -> str:
    """Return the error of the first malformed digest, empty if all digests are valid."""
    try:
        for sha256 in digests:
            check_sha256(sha256)
    except WireError as error:
        return str(error)
    return ""


def _is_step_of(job: _Job, step: Task) -> bool:
    """Return whether a job waits for this step."""
    return job.task is not None and job.stage == "steps" and is_same_attempt(step, job.task)


def _get_request(step: Task) -> str:
    """Return the digest of the only blob of a step."""
    [sha256] = step.models.values()
    return sha256


def _log_round(task: Task, line: str, level: int = logging.INFO) -> ClientAction:
    return WriteClientLog(f"round {task.round}: {line}", level, {"round": task.round})
