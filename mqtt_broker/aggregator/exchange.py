"""The aggregator's side of the wire: takes messages, serves blobs, receives updates, and plays one round at a
time.
"""

import time
from collections.abc import Callable, Sequence

from edgefl.config import FederationConfig
from edgefl.errors import LinkError, WireError
from edgefl.security.trust import Trust
from edgefl.server import rounds
from edgefl.server.divergence import Divergence, FederationDivergedError
from edgefl.server.presence import ClientLines, Presence
from edgefl.server.rounds import Round
from edgefl.server.tasks import Accepted, Asks, Steps, Then, checked_answer
from edgefl.server.uploads import Uploads, answer, receipt
from edgefl.transport.link import Connected, Link, Message
from edgefl.wire.chunks import CHUNK_BYTES
from edgefl.wire.messages import DIVERGED, REFUSES, STOPPED, Begin, Receipt, State, Status, Want
from edgefl.wire.strict_json import decode_json
from edgefl.wire.topics import Address, Topics, parse_topic
from edgefl.wire.version1 import is_version1
from mqtt_broker.aggregator.blob_traffic import BlobTraffic
from mqtt_broker.aggregator.older_devices import OlderDevices
from mqtt_broker.aggregator.results import reported
from mqtt_broker.aggregator.spool import Spool

SETTLE_S = 0.05
"""So long at most an update that came whole waits for those on their way, to be synced and journalled with
them.
"""
MOST_TASKS = 50
"""More at once wait for the broker's word on those before; rounds of so many clients or fewer go
without it.
"""

ENROLMENT_CHECK_S = 1.0
"""How often the aggregator looks for revoked clients that are silent; one that sends a message is refused at
once.
"""


class Exchange:
    """One federation's traffic.

    `note` gets lines for a person; `held`: who is paused; `ready` returns when the spool takes an update.

    `older` answers devices of version 1; None where another process does.
    """

    def __init__(
        self,
        link: Link,
        topics: Topics,
        state: State,
        *,
        upload_slots: int,
        spool: Spool,
        trust: Trust,
        note: Callable[[str], None],
        held: Callable[[], frozenset[str]] = frozenset,
        ready: Then = lambda: None,
        chunk_bytes: int = CHUNK_BYTES,
        max_samples: int = FederationConfig.max_samples,
        older: OlderDevices | None = None,
    ) -> None:
        self._link = link
        self._topics = topics
        self._spool = spool
        self._trust = trust
        self._note = note
        self._held = held
        self._ready = ready
        self._max_samples = max_samples
        self._client_lines = ClientLines(note)
        self._uploads = Uploads(upload_slots)
        self._tasks: Asks | None = None
        self._accepted: Accepted = lambda begins: None
        self._unsettled: dict[str, Begin] = {}
        self._settle_by = 0.0
        self._open_to_all = False
        self._is_sample = False
        self._diverged: set[str] = set()
        self.state = state
        self.presence = Presence()
        self._older = older
        self.blobs = BlobTraffic(link, topics, state.session, chunk_bytes)
        self.round: Round | None = None
        self._noted_drops = 0
        self._refused: set[str] = set()
        self._enrolment_check_at = 0.0

    def start(self) -> None:
        """Publish the state and listen to devices."""
        device = self._topics.device
        others = f"{self._topics.root}/device/+/up/+/+", self._topics.state, self._topics.manifest("+")
        self._link.subscribe(device("+", "status"), device("+", "want"), *others)
        self.publish_state(self.state)
        if self._older:
            self._older.start()

    def publish_state(self, state: State) -> None:
        """Say where the federation stands, for all who listen and all who come later."""
        self.state = state
        self._link.publish(self._topics.state, self._trust.encode(state), retain=True)

    def play(
        self,
        round: Round,
        tasks: Asks,
        accepted: Accepted,
        *,
        open_to_all: bool = False,
        is_sample: bool = False,
        tasks_out: Then = lambda: None,
    ) -> Round:
        """Send the tasks and take updates into the spool until the round closes; returns it closed.

        `accepted` is told of updates before their devices are, `tasks_out` called when the tasks are.
        `open_to_all`: who comes takes part. `is_sample`: nobody else does, and a round whose clients were all
        revoked is returned without a cohort.

        Raises RoundError when quorum is missed for good, FederationDivergedError when it is missed because
        training diverged on the devices.
        """
        self.round = round
        self._tasks = tasks
        self._accepted = accepted
        self._open_to_all = open_to_all
        self._is_sample = is_sample
        self._unsettled.clear()
        self._diverged.clear()
        self._leave_out_revoked()
        self._send_tasks(rounds.missing(self.round))
        tasks_out()
        while (self.round.cohort or not is_sample) and not rounds.is_closed(
            self.round, now := time.monotonic()
        ):
            self._check_divergence()
            if rounds.is_overdue(self.round, now):
                waiting = rounds.missing(self.round)
                come_back = self.presence.paused().keys() - self.presence.refusing().keys()
                self.round = rounds.extend(self.round, now, counts=not come_back & set(waiting))
                self._note(
                    f"round {round.number}: no quorum yet, tasks are sent again to {', '.join(waiting)}"
                )
                self._send_tasks(waiting)
            self.pump(min(0.5, rounds.next_change(self.round, now)))
        if self._unsettled:
            self._settle()
        if not round.max_staleness:
            self._uploads.clear()
        self._ready()
        self._note_drops()
        closed = self.round
        self.round = None
        return closed

    def _check_divergence(self) -> None:
        """Raise FederationDivergedError when too many clients diverged for the round's quorum."""
        assert self.round is not None
        lost = self._diverged & set(rounds.missing(self.round))
        if lost and len(self.round.cohort) - len(lost) < self.round.needed:
            raise FederationDivergedError(
                Divergence(self.round.number, clients=len(lost), cohort=len(self.round.cohort))
            )

    def _note_drops(self) -> None:
        if new := self._link.dropped - self._noted_drops:
            self._noted_drops += new
            self._note(
                f"{new} messages were dropped: more came than the aggregator may hold; a chunk that was "
                "among them is sent again"
            )

    def _send_tasks(self, client_ids: Sequence[str]) -> None:
        for client_id in client_ids:
            # paho keeps 2 KB of each message that is not acknowledged; a broker that is away acknowledges
            # none
            while self._link.in_flight >= MOST_TASKS and self._link.is_connected:
                self.pump(0.01)
            self._send_task(client_id)

    def _send_task(self, client_id: str) -> None:
        assert self._tasks is not None
        assert self.round is not None
        if self.presence.is_resting(client_id):
            # the round waits for it as for one that is offline; its task goes out when it says that it takes
            # up tasks again
            self.round = rounds.offline(self.round, client_id, time.monotonic())
            return
        task = self._tasks.brief(client_id).task
        for sha256 in task.models.values():
            self.blobs.expect(sha256, client_id)
        qos = int(len(self.round.cohort) > MOST_TASKS)  # what is lost with a link is told again
        self._link.publish(
            self._topics.device(client_id, "task"), self._trust.encode(task, client_id), qos=qos
        )

    def pump(self, timeout_s: float) -> None:
        """Take one event, if one comes in time, and send what is due."""
        if self._unsettled:
            timeout_s = min(timeout_s, self._settle_by - time.monotonic()) if self._lacks_more() else 0.0
        event = self._link.get(min(timeout_s, 0.004) if self.blobs.is_busy else timeout_s)
        if isinstance(event, Message):
            self._take(event)
        elif isinstance(event, Connected):
            self._note(f"the link to the broker is up again at {event.url}")
            # a broker that was restarted has forgotten what was retained; who lost its announcement makes it
            # again at its task
            self.publish_state(self.state)
            if self._older:
                self._older.publish()
            self.blobs.publish_again()
            self._send_tasks(rounds.missing(self.round) if self.round else ())
        now = time.monotonic()
        if now >= self._enrolment_check_at:
            self._enrolment_check_at = now + ENROLMENT_CHECK_S
            self._leave_out_revoked()
        if self._unsettled and (now >= self._settle_by or not self._lacks_more()):
            self._settle()
        self._send(self._uploads.expire(now))
        self.blobs.send_due(now)

    def _lacks_more(self) -> bool:  # beside the updates that came whole
        return self.round is not None and rounds.lacking(self.round) > len(self._unsettled)

    def _send(self, receipts: list[tuple[str, Receipt]]) -> None:
        for (
            client_id,
            each,
        ) in receipts:  # nothing is kept of them: who does not hear one says again what it has
            self._link.publish(
                self._topics.device(client_id, "receipt"), self._trust.encode(each, client_id), qos=0
            )

    def _take(self, message: Message) -> None:
        if is_version1(message.topic):
            if self._older:
                self._older.take(message)
            return
        try:
            address = parse_topic(message.topic)
        except WireError as error:
            self._note(f"ignored: {error}")
            return
        if address.client_id and (reason := self._trust.refusal(address.client_id)):
            self._leave_out(address.client_id, reason)
            if address.kind == "begin":
                self._reject(address, reason)
            return
        if address.client_id and not self._trust.admits(address.client_id):
            self._client_lines(
                address.client_id,
                f"ignored: {address.client_id} is not one of [federation] clients",
                time.monotonic(),
            )
            return
        self._refused.discard(address.client_id)
        try:
            if message.oversize:
                raise WireError(
                    f"a message of {message.oversize} bytes on {address.kind}, expected smaller chunks; "
                    "update the sender"
                )
            match address.kind:
                case "state":
                    self._on_state(message.payload)
                case "status":
                    self._on_status(address, message.payload)
                case "manifest" if message.payload:
                    self.blobs.clear_left(address.sha256, message.payload)
                case "want":
                    self.blobs.want(address.client_id, decode_json(Want, message.payload))
                case "begin":
                    self._on_begin(
                        address,
                        self._trust.checked(
                            decode_json(Begin, message.payload), message.payload, address.client_id
                        ),
                    )
                case "chunk":
                    self._on_chunk(address, message.payload)
                case "end":
                    self._send(self._uploads.end(address.client_id, address.sha256, time.monotonic()))
        except WireError as error:
            self._refuse(address, str(error))

    def _on_state(self, payload: bytes) -> None:
        if not payload:
            return
        told = decode_json(State, payload)
        if told.session != self.state.session:
            raise LinkError(
                f"another aggregator leads the federation {self._topics.federation!r} now; run one at a time"
            )
        if told.phase == STOPPED:  # the will of this aggregator's process before this one, late
            self.publish_state(self.state)

    def _on_status(self, address: Address, payload: bytes) -> None:
        if not payload:
            return
        status = decode_json(Status, payload)
        if status.client_id != address.client_id:
            raise WireError(
                f"the status names {status.client_id!r}, its topic {address.client_id!r}; a device speaks "
                "for itself only"
            )
        before = self.presence.describe(status.client_id)
        self.presence.take(status)
        if (word := self.presence.describe(status.client_id)) != before:
            line = f"{status.client_id} is {word} ({self.presence.num_online} online)"
            self._client_lines(status.client_id, line, time.monotonic())
        if self.round is None:
            return
        if status.paused.startswith(f"{REFUSES}round {self.round.number}: {DIVERGED}"):
            self._diverged.add(status.client_id)
        if word == "offline" or self.presence.is_resting(status.client_id):
            self.round = rounds.offline(self.round, status.client_id, time.monotonic())
            self._send(self._uploads.close(status.client_id, time.monotonic()))
            return
        self.round = rounds.online(self.round, status.client_id)
        if self._open_to_all and status.client_id not in self._held():
            self.round = rounds.admit(self.round, status.client_id)
        if status.client_id in rounds.missing(self.round) and not status.draining:
            self._send_task(status.client_id)

    def _on_begin(self, address: Address, begin: Begin) -> None:
        if (begin.client_id, begin.sha256) != (address.client_id, address.sha256):
            raise WireError(
                f"the update names {begin.client_id!r}, its topic {address.client_id!r}; a device speaks for "
                "itself only"
            )
        if begin.session != self.state.session:
            raise WireError(
                f"the update is of session {begin.session[:8]!r}, this is {self.state.session[:8]!r}; wait "
                "for a task"
            )
        if self.round is None or self._tasks is None:
            # after a restart, or between rounds: it would not be sent again
            self._send([(begin.client_id, receipt(begin, "wait", "no round is open"))])
            return
        if begin.plan != self.state.plan:
            raise WireError(
                f"{begin.client_id} runs the plan {begin.plan[:8] or '(none)'}, expected "
                f"{self.state.plan[:8]}; restart it"
            )
        if begin.client_id in self._unsettled:
            self._settle()
        verdict = rounds.judge(self.round, begin.round, begin.client_id, begin.sha256)
        if verdict.kind != "accepted":
            self._send([(begin.client_id, answer(begin, verdict))])
            return
        brief = self._tasks.brief(begin.client_id)
        if begin.sha256 in brief.before:  # its receipt was lost
            self._send([(begin.client_id, receipt(begin, "ok"))])
            return
        # Enough others answered before; the next step is under way
        if isinstance(self._tasks, Steps) and begin.nonce in self._tasks.over:
            self._send([(begin.client_id, receipt(begin, "rejected", "enough others answered this step"))])
            return
        kept = checked_answer(
            begin, brief, self._tasks.nonce_of(begin.round, begin.client_id), self._max_samples
        )
        self._send(
            self._uploads.begin(
                kept, brief.limit, time.monotonic(), follows=begin.follows and brief.task.granted
            )
        )

    def _on_chunk(self, address: Address, payload: bytes) -> None:
        begin = self._uploads.chunk(
            address.client_id, address.sha256, address.index, payload, now := time.monotonic()
        )
        if begin is None:
            return
        if self.round is None or self._tasks is None:  # whole between rounds: it comes again when one is open
            self._send(
                [
                    (begin.client_id, receipt(begin, "wait", "no round is open")),
                    *self._uploads.close(begin.client_id, now),
                ]
            )
            return
        self._ready()
        # a late update may have become too old on its way
        verdict = rounds.judge(self.round, begin.round, begin.client_id, begin.sha256)
        if verdict.kind != "accepted":
            self._send(
                [(begin.client_id, answer(begin, verdict)), *self._uploads.close(begin.client_id, now)]
            )
            return
        blob = self._uploads.blob(begin.client_id)
        brief = self._tasks.brief(begin.client_id)
        if brief.take:
            brief.take(begin, blob)
        else:
            self._spool.take(begin, brief.expected, brief.task.codec, blob)
        self._settle_by = self._settle_by if self._unsettled else time.monotonic() + SETTLE_S
        self._unsettled[begin.client_id] = begin
        self._send(self._uploads.close(begin.client_id, time.monotonic()))

    def _settle(self) -> None:
        """Make sure of the updates that came whole, all at once, and only then say so."""
        assert self.round is not None
        self._spool.sync()
        self._accepted(list(self._unsettled.values()))
        for begin in self._unsettled.values():
            after, _ = rounds.receive(self.round, begin.round, begin.client_id, begin.sha256)
            self._send([(begin.client_id, receipt(begin, "ok"))])
            self._note(reported(self.state.phase, after, begin, rounds.count(after)))
            self.round = after
        self._unsettled.clear()

    def _refuse(self, address: Address, reason: str) -> None:
        sender = address.client_id or address.kind
        self._client_lines(sender, f"rejected from {sender}: {reason}", time.monotonic())
        if address.kind not in ("begin", "chunk", "end"):
            return
        self._reject(address, reason)
        if self.round:
            self.round = rounds.fail(self.round, address.client_id, reason)

    def _reject(self, address: Address, reason: str) -> None:
        answer = Receipt(
            self.round.number if self.round else 0,
            address.sha256,
            "rejected",
            (),
            reason[:1000],
            "",
            time.time(),
        )
        self._send([(address.client_id, answer), *self._uploads.close(address.client_id, time.monotonic())])

    def _leave_out_revoked(self) -> None:
        """Leave out each client that was revoked, also one that is silent."""
        if self._trust.key_of is None:
            return
        for client_id in sorted(
            {*self.presence.statuses, *(rounds.missing(self.round) if self.round else ())}
        ):
            if client_id and (reason := self._trust.refusal(client_id)):
                self._leave_out(client_id, reason)

    def without_revoked(self, round: Round) -> Round:
        """Return a round that waits for enrolled clients alone."""
        for client_id in rounds.missing(round):
            if client_id and self._trust.refusal(client_id):
                round = rounds.leave(round, client_id)
        return round

    def _leave_out(self, client_id: str, reason: str) -> None:
        """Forget that a client is online, and let the open round go on without it."""
        if client_id not in self._refused:
            self._refused.add(client_id)
            self._note(
                f"ignored: {reason}. To end its connection, restart the broker: other devices reconnect by "
                "themselves"
            )
        self.presence.forget(client_id)
        if self.round is None:
            return
        if client_id in self._unsettled:  # this update was complete, and its client enrolled
            self._settle()
        self._send(self._uploads.close(client_id, time.monotonic()))
        # How many must answer a step of a masked round is settled by its keys
        if isinstance(self._tasks, Steps):
            self.round = rounds.fail(self.round, client_id, reason)
            return
        self.round = rounds.leave(self.round, client_id)
        # the round would have nobody to wait for; a random sample must not be filled up, for epsilon counts
        # with its size
        if not self.round.cohort and not self._is_sample:
            self._open_to_all = True
            for other in self.presence.available(self._held()):
                self.round = rounds.admit(self.round, other)
                self._send_task(other)
