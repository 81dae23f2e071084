"""Hands out the tasks of one round at a time, and collects the updates that answer them."""

import logging
import math
from collections.abc import Callable, Collection, Generator, Iterable

from edgefl.base.errors import WireError
from edgefl.learning.algorithms import PHASE_MEASURE, PHASE_PERSONALIZE
from edgefl.protocol.server import rounds
from edgefl.protocol.server.blob_publisher import BlobPublisher
from edgefl.protocol.server.events import (
    OTHER_SENDER,
    Action,
    BeginReceived,
    ChunkReceived,
    ClientExcluded,
    EndReceived,
    Event,
    ManifestReceived,
    MessageInvalid,
    PausesChanged,
    StateOverwritten,
    StatusReceived,
    StoreUpdate,
    WantReceived,
    WriteLog,
)
from edgefl.protocol.server.presence import Presence
from edgefl.protocol.server.rounds import Round
from edgefl.protocol.server.tasks import StepTasks, TaskSource, validate_announcement
from edgefl.protocol.server.uploads import Uploads, make_receipt, make_verdict_receipt
from edgefl.protocol.wire.divergence_message import Divergence, FederationDivergedError
from edgefl.protocol.wire.machine_events import LinkLoad, LinkRestored, Publish
from edgefl.protocol.wire.messages import DIVERGED_PREFIX, REFUSAL_PREFIX, Begin, Receipt, State, Status
from edgefl.protocol.wire.tensors import decode_models
from edgefl.protocol.wire.topics import FederationTopics

GROUP_COMMIT_DELAY_S = 0.05
"""Group-commit delay: how long a complete update waits so that others can be committed with it."""
MAX_TASKS_IN_FLIGHT = 50
"""Maximum number of unacknowledged messages at which a task is sent. Further tasks wait."""
UPLOAD_POLL_S = 1.0
"""How often the server looks for upload slots of idle clients while others wait for a slot."""
RoundGenerator = Generator[float, None, Round]
"""A generator that yields the time at which it has to be resumed, and returns a closed round."""


class UpdateCollector:
    """Handles one federation's messages with its clients: presence, tasks, blobs and uploads.

    It does no I/O and reads no clock. `handle` takes each event. `collect` plays a round as a generator that
    waits for events.

    Args:
        state: the state to publish, such as the joining phase.
        emit: receives each action.
        upload_slots: maximum number of clients that may send an update at a time.
        max_samples: maximum number of samples that a client may report.
        chunk_bytes: size of the chunks of blobs in bytes.
        clients: the clients that may take part. Empty for all.

    Attributes:
        state: the state that was published last.
        presence: the online clients.
        blobs: the blobs on offer.
        round: the open round. None between rounds.
        paused: the clients that the operator has paused.
        left_out_clients: the clients that sent an update that cannot be used. They get no task, and their
            updates are rejected.
        now: the time of the last event in seconds.
    """

    def __init__(
        self,
        topics: FederationTopics,
        state: State,
        emit: Callable[[Action], None],
        *,
        upload_slots: int,
        max_samples: int,
        chunk_bytes: int,
        clients: Collection[str] = (),
    ) -> None:
        self._topics = topics
        self._emit = emit
        self._clients = frozenset(clients)
        self._max_samples = max_samples
        self._uploads = Uploads(upload_slots)
        self._tasks: TaskSource | None = None
        self._accept: Callable[[tuple[Begin, ...]], None] = lambda begins: None
        self._complete: dict[str, Begin] = {}
        self._commit_at = math.inf
        self._due_tasks: dict[str, None] = {}
        self._in_flight = 0
        self._is_open_to_all = False
        self._is_sample = False
        self._diverged: set[str] = set()
        self._excluded: dict[str, str] = {}
        self.state = state
        self.presence = Presence()
        self.blobs = BlobPublisher(topics, state.session, emit, chunk_bytes)
        self.round: Round | None = None
        self.paused: frozenset[str] = frozenset()
        self.left_out_clients: frozenset[str] = frozenset()
        self.now = 0.0

    @property
    def unavailable(self) -> frozenset[str]:
        """The clients that are chosen for no round, even when they are online."""
        return self.paused | self.left_out_clients

    def publish_state(self, state: State) -> None:
        """Publish the state of the federation as a retained message."""
        self.state = state
        self._emit(Publish(topic=self._topics.state, message=state, receiver="", is_retained=True))

    def collect(
        self,
        round: Round,
        tasks: TaskSource,
        accept: Callable[[tuple[Begin, ...]], None],
        *,
        is_open_to_all: bool = False,
        is_sample: bool = False,
    ) -> RoundGenerator:
        """Send the tasks of a round and collect updates until the round closes.

        Args:
            tasks: makes the task of each client.
            accept: emits the action that commits updates. Their receipts follow it.
            is_open_to_all: whether clients that come online join the round.
            is_sample: whether the cohort is a random sample that no client may join. If all of it is
                excluded, the round closes without a cohort.

        Returns:
            The closed round.

        Raises:
            RoundError: the round missed its quorum for good.
            FederationDivergedError: the round missed its quorum because training diverged on the clients.
        """
        self.round = round
        self._tasks = tasks
        self._accept = accept
        self._is_open_to_all = is_open_to_all
        self._is_sample = is_sample
        self._complete.clear()
        self._due_tasks.clear()
        self._diverged.clear()
        for client_id in rounds.list_missing(round):
            if client_id in self._excluded:
                self._remove_from_round(client_id)
        self._send_tasks(rounds.list_missing(self.round))
        while (self.round.cohort or not is_sample) and not rounds.is_closed(self.round, self.now):
            self._check_divergence()
            if rounds.is_overdue(self.round, self.now):
                self._extend()
            yield self.now + rounds.get_timeout(self.round, self.now)
        self._commit()
        if not round.max_staleness:
            self._uploads.clear()
        closed = self.round
        self.round = None
        return closed

    def _extend(self) -> None:
        assert self.round is not None
        missing = rounds.list_missing(self.round)
        will_return = self.presence.list_paused().keys() - self.presence.list_refusing().keys()
        self.round = rounds.extend_round(self.round, self.now, counts=not will_return & set(missing))
        added = len(self._admit_substitutes())
        self._emit(
            WriteLog(
                f"round {self.round.number}: no quorum yet, tasks are sent again to {', '.join(missing)}"
                + (f", and for the first time to {added} other devices" if added else ""),
                level=logging.WARNING,
            )
        )
        self._send_tasks(rounds.list_missing(self.round))

    def _admit_substitutes(self) -> tuple[str, ...]:
        """Add all available clients to a round that misses its quorum, and return the new ones.

        Otherwise a cohort that happens to consist of silent or hostile clients would end the federation. A
        random sample and the keys of a masked round fix the cohort.
        """
        assert self.round is not None
        if self._is_sample or isinstance(self._tasks, StepTasks):
            return ()
        before = self.round.cohort
        for client_id in self.presence.list_available(self.unavailable):
            self.round = rounds.admit_client(self.round, client_id)
        return tuple(client_id for client_id in self.round.cohort if client_id not in before)

    def _check_divergence(self) -> None:
        """Raise FederationDivergedError when too many clients diverged for the round's quorum.

        Fewer than half of the clients cannot end the federation in this way. All other available clients are
        asked first.
        """
        assert self.round is not None
        lost = self._diverged & set(rounds.list_missing(self.round))
        size = len(self.round.cohort)
        if lost and 2 * len(lost) >= size and size - len(lost) < self.round.needed:
            if added := self._admit_substitutes():
                self._send_tasks(added)
                return
            raise FederationDivergedError(Divergence(round=self.round.number, clients=len(lost), cohort=size))

    def _send_tasks(self, client_ids: Iterable[str]) -> None:
        """Queue tasks and send as many as the link allows."""
        self._due_tasks.update(dict.fromkeys(client_ids))
        while self._due_tasks and self._in_flight < MAX_TASKS_IN_FLIGHT:
            client_id = next(iter(self._due_tasks))
            del self._due_tasks[client_id]
            if self.round and client_id in rounds.list_missing(self.round):
                self._send_task(client_id)

    def _send_task(self, client_id: str) -> None:
        assert self._tasks is not None
        assert self.round is not None
        if self.presence.is_resting(client_id):
            # The client gets its task when its pause ends
            self.round = rounds.mark_offline(self.round, client_id, self.now)
            return
        task = self._tasks.prepare(client_id).task
        for sha256 in task.models.values():
            self.blobs.expect(sha256, client_id)
        qos = int(len(self.round.cohort) > MAX_TASKS_IN_FLIGHT)
        self._emit(
            Publish(
                topic=self._topics.format_device(client_id, "task"), message=task, receiver=client_id, qos=qos
            )
        )
        self._in_flight += qos

    def _send(self, receipts: Iterable[tuple[str, Receipt]]) -> None:
        for client_id, message in receipts:
            # A client that misses a receipt announces its update again
            topic = self._topics.format_device(client_id, "receipt")
            self._emit(Publish(topic=topic, message=message, receiver=client_id, qos=0))

    def handle(self, event: Event, now: float) -> None:
        """Handle an event, then do everything that is due at this time.

        A message that breaks the protocol is rejected and logged. It raises no error.

        Args:
            now: the time in seconds, of any clock that does not go back.
        """
        self.now = now
        client_id = _find_client(event)
        try:
            is_admitted = not self._clients or client_id in self._clients or isinstance(event, ClientExcluded)
            if client_id and not is_admitted:
                self._emit(
                    WriteLog(
                        f"ignored: {client_id} is not one of [federation] clients", client_id, logging.WARNING
                    )
                )
            else:
                self._dispatch_event(event)
        except WireError as error:
            if client_id:
                self._reject(client_id, str(error), _find_update(event))
            else:
                self._emit(WriteLog(f"ignored: {error}", OTHER_SENDER, logging.WARNING))
        if self._complete and (now >= self._commit_at or not self._needs_updates()):
            self._commit()
        self._send(self._uploads.expire(now))
        self._send_tasks(())
        self._in_flight += self.blobs.publish_due(now, self._in_flight)

    def get_timer(self) -> float:
        """Return the time in seconds at which `handle` is due even without an event. Infinity means never."""
        commit = self._commit_at if self._complete else math.inf
        uploads = self.now + UPLOAD_POLL_S if self._uploads.is_queued else math.inf
        return min(commit, uploads, self.blobs.get_timer(self.now))

    def _dispatch_event(self, event: Event) -> None:
        if not isinstance(event, ClientExcluded):
            self._excluded.pop(_find_client(event), None)
        match event:
            case StatusReceived(status):
                self._on_status(status)
            case BeginReceived(begin):
                self._on_begin(begin)
            case ChunkReceived():
                self._on_chunk(event)
            case EndReceived(client_id, sha256):
                self._send(self._uploads.end(client_id, sha256))
            case WantReceived(client_id, want):
                self.blobs.record_want(client_id, want, self.now)
            case ManifestReceived(manifest):
                self.blobs.remove_leftover(manifest)
            case StateOverwritten():
                self.publish_state(self.state)
            case MessageInvalid(client_id, reason, sha256):
                self._reject(client_id, reason, sha256)
            case ClientExcluded(client_id, reason, sha256):
                self._exclude(client_id, reason)
                if sha256:
                    self._send_rejection(client_id, reason, sha256)
            case PausesChanged(client_ids):
                self.paused = client_ids
            case LinkLoad(in_flight):
                self._in_flight = in_flight
            case LinkRestored():
                self.publish_state(self.state)
                self.blobs.publish_again()
                self._due_tasks.clear()
                self._send_tasks(rounds.list_missing(self.round) if self.round else ())

    def _needs_updates(self) -> bool:
        """Return whether the round lacks more updates than the complete ones."""
        return self.round is not None and rounds.count_outstanding(self.round) > len(self._complete)

    def _on_status(self, status: Status) -> None:
        client_id = status.client_id
        before = self.presence.describe(client_id)
        self.presence.update(status)
        after = self.presence.describe(client_id)
        if after != before:
            self._emit(WriteLog(f"{client_id} is {after} ({self.presence.num_online} online)", client_id))
        if self.round is None:
            return
        if status.paused.startswith(f"{REFUSAL_PREFIX}round {self.round.number}: {DIVERGED_PREFIX}"):
            self._diverged.add(client_id)
        if after == "offline" or self.presence.is_resting(client_id):
            self.round = rounds.mark_offline(self.round, client_id, self.now)
            self._send(self._uploads.close(client_id, self.now))
            return
        self.round = rounds.mark_online(self.round, client_id)
        if self._is_open_to_all and client_id not in self.unavailable:
            self.round = rounds.admit_client(self.round, client_id)
        if client_id in rounds.list_missing(self.round) and not status.draining:
            self._send_tasks([client_id])

    def _on_begin(self, begin: Begin) -> None:
        client_id = begin.client_id
        if begin.session != self.state.session:
            reason = (
                f"the update is of session {begin.session[:8]!r}, this is {self.state.session[:8]!r}; wait "
                "for a task"
            )
            # It says nothing about the client's update in this round, which may follow
            self._emit(WriteLog(f"rejected from {client_id}: {reason}", client_id, logging.WARNING))
            self._send_rejection(client_id, reason, begin.sha256)
            return
        if self.round is None or self._tasks is None:
            self._send([(client_id, make_receipt(begin, "wait", "no round is open"))])
            return
        if begin.plan != self.state.plan:
            raise WireError(
                f"{client_id} runs the plan {begin.plan[:8] or '(none)'}, expected {self.state.plan[:8]}; "
                "restart it"
            )
        if client_id in self.left_out_clients:
            raise WireError(
                f"{client_id} is left out, because an earlier update of it could not be used; look at the "
                "aggregator's log"
            )
        if client_id in self._complete:
            self._commit()
        verdict = rounds.judge_update(self.round, begin.round, client_id, begin.sha256)
        if verdict.kind != "accepted":
            self._send([(client_id, make_verdict_receipt(begin, verdict))])
            return
        client_task = self._tasks.prepare(client_id)
        if begin.sha256 in client_task.earlier_answers:  # The receipt was lost
            self._send([(client_id, make_receipt(begin, "ok"))])
            return
        if isinstance(self._tasks, StepTasks) and begin.nonce in self._tasks.past_nonces:
            self._send([(client_id, make_receipt(begin, "rejected", "enough others answered this step"))])
            return
        checked = validate_announcement(
            begin, client_task, self._tasks.find_nonce(begin.round, client_id), self._max_samples
        )
        follows = begin.follows and client_task.task.granted
        self._send(self._uploads.begin(checked, client_task.limit, self.now, follows=follows))

    def _on_chunk(self, event: ChunkReceived) -> None:
        client_id = event.client_id
        begin = self._uploads.add_chunk(client_id, event.sha256, event.index, event.payload, self.now)
        if begin is None:
            return
        if self.round is None or self._tasks is None:
            self._send([(client_id, make_receipt(begin, "wait", "no round is open"))])
            self._send(self._uploads.close(client_id, self.now))
            return
        # A late update may have become too old during its upload
        verdict = rounds.judge_update(self.round, begin.round, client_id, begin.sha256)
        if verdict.kind != "accepted":
            self._send(
                [(client_id, make_verdict_receipt(begin, verdict)), *self._uploads.close(client_id, self.now)]
            )
            return
        blob = self._uploads.read_blob(client_id)
        client_task = self._tasks.prepare(client_id)
        if client_task.read_answer:
            client_task.read_answer(begin, blob)
        else:
            deltas = decode_models(blob, client_task.expected, client_id, client_task.task.codec)
            if problem := client_task.trained.find_problem(deltas):
                raise WireError(f"the update of {client_id} cannot be used: {problem}; update or restart it")
            self._emit(
                StoreUpdate(
                    begin=begin,
                    blob=blob,
                    expected=client_task.expected,
                    codec=client_task.task.codec,
                    deltas=deltas,
                )
            )
        if not self._complete:
            self._commit_at = self.now + GROUP_COMMIT_DELAY_S
        self._complete[client_id] = begin
        self._send(self._uploads.close(client_id, self.now))

    def _commit(self) -> None:
        """Commit the complete updates together, and only then send their receipts."""
        if not self._complete:
            return
        assert self.round is not None
        begins = tuple(self._complete.values())
        self._complete.clear()
        self._accept(begins)
        for begin in begins:
            self.round, _ = rounds.receive_update(self.round, begin.round, begin.client_id, begin.sha256)
            self._send([(begin.client_id, make_receipt(begin, "ok"))])
            self._emit(WriteLog(_format_progress(self.state.phase, self.round, begin)))

    def _reject(self, client_id: str, reason: str, sha256: str) -> None:
        """Reject a client's message. The round does not wait for a client whose update cannot be used."""
        self._emit(WriteLog(f"rejected from {client_id}: {reason}", client_id, logging.WARNING))
        if not sha256:
            return
        self._send_rejection(client_id, reason, sha256)
        if self.round:
            self.round = rounds.mark_failed(self.round, client_id, reason)

    def _send_rejection(self, client_id: str, reason: str, sha256: str) -> None:
        number = self.round.number if self.round else 0
        rejection = Receipt(
            round=number,
            sha256=sha256,
            outcome="rejected",
            missing=(),
            reason=reason[:1000],
            nonce="",
            ts=0.0,
        )
        self._send([(client_id, rejection), *self._uploads.close(client_id, self.now)])

    def _exclude(self, client_id: str, reason: str) -> None:
        if client_id not in self._excluded:
            self._excluded[client_id] = reason
            self._emit(
                WriteLog(
                    f"ignored: {reason}. To end its connection, restart the broker: other devices reconnect "
                    "by themselves",
                    level=logging.WARNING,
                )
            )
        self.presence.forget(client_id)
        self._remove_from_round(client_id)

    def _remove_from_round(self, client_id: str) -> None:
        """Continue the open round without an excluded client."""
        if self.round is None:
            return
        if client_id in self._complete:
            self._commit()  # The update was complete before the client was excluded
        self._send(self._uploads.close(client_id, self.now))
        # The keys of a masked round fix how many clients must answer
        if isinstance(self._tasks, StepTasks):
            self.round = rounds.mark_failed(self.round, client_id, self._excluded[client_id])
            return
        self.round = rounds.remove_client(self.round, client_id)
        # A random sample must not be filled up, because epsilon depends on its size
        if not self.round.cohort and not self._is_sample:
            self._is_open_to_all = True
            self._send_tasks(self._admit_substitutes())

    def remove_excluded(self, client_ids: Iterable[str]) -> tuple[str, ...]:
        """Return the clients that are not excluded, in the same order."""
        return tuple(client_id for client_id in client_ids if client_id not in self._excluded)


def _format_progress(phase: str, round: Round, begin: Begin) -> str:
    name = phase if phase in (PHASE_MEASURE, PHASE_PERSONALIZE) else f"round {round.number}"
    late = f" late, for round {begin.round}" if begin.round < round.number else ""
    return (
        f"{name}: {begin.client_id} reported{late} ({rounds.count_updates(round)} of "
        f"{round.enough or len(round.cohort)})"
    )


def _find_client(event: Event) -> str:
    match event:
        case StatusReceived(status):
            return status.client_id
        case BeginReceived(begin):
            return begin.client_id
        case (
            ChunkReceived(client_id=client_id)
            | EndReceived(client_id=client_id)
            | WantReceived(client_id=client_id)
            | MessageInvalid(client_id=client_id)
            | ClientExcluded(client_id=client_id)
        ):
            return client_id
    return ""


def _find_update(event: Event) -> str:
    """Return the sha256 of the update that an event belongs to, or an empty string."""
    match event:
        case BeginReceived(begin):
            return begin.sha256
        case ChunkReceived(sha256=sha256) | EndReceived(sha256=sha256):
            return sha256
    return ""
