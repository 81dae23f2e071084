"""Drives a round server over MQTT: turns messages into events, and performs the server's actions.

The round server decides. The driver reads the clock, the link and the list of paused clients. It also signs
and publishes messages, and passes actions to the storage.
"""

import logging
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from edgefl.base.errors import WireError
from edgefl.base.types import ServerState
from edgefl.learning.algorithms import PHASE_DONE
from edgefl.protocol.security.trust import Trust
from edgefl.protocol.server.events import (
    OTHER_SENDER,
    Action,
    AggregateUpdates,
    ClientExcluded,
    CloseRound,
    Event,
    Finish,
    OpenRound,
    PausesChanged,
    StateAggregated,
    Stop,
    WriteLog,
)
from edgefl.protocol.server.presence import ClientLineLimit
from edgefl.protocol.server.round_server import RoundServer
from edgefl.protocol.transport.link import Connected, Link, Message
from edgefl.protocol.transport.reconnects import Reconnects
from edgefl.protocol.wire.machine_events import LinkLoad, LinkRestored, Publish, TimePassed
from edgefl.protocol.wire.messages import JOINING_PHASE, STOPPED_PHASE, State, Task
from edgefl.protocol.wire.topics import FederationTopics
from mqtt_broker.aggregator.messages import list_aggregator_topics, read_event
from mqtt_broker.aggregator.storage import Storage

LOGGER = logging.getLogger("edgefl.aggregator")

MAX_WAIT_S = 0.5
BUSY_WAIT_S = 0.004
"""Longest wait for a message while the broker's acknowledgements are also awaited."""
PAUSES_CHECK_S = 0.25
"""Interval at which the driver reads the paused clients."""
ENROLMENT_CHECK_S = 1.0
"""Interval at which the driver checks for revoked clients that send no messages.

A message of a revoked client is rejected at once.
"""


@dataclass(frozen=True)
class Hooks:
    """Functions of the aggregator that perform some of the actions.

    Attributes:
        aggregate: returns the server state after a round, from the state before it.
        close: receives each closed round and the number of payload bytes published in it.
        finish: receives the end of the federation.
        show_progress: receives the current activity, the number of completed rounds, and the number of all
            rounds.
        read_paused: returns the ids of the paused clients.
    """

    aggregate: Callable[[ServerState], ServerState]
    close: Callable[[CloseRound, int], None]
    finish: Callable[[Finish], None]
    show_progress: Callable[[str, int, int], None]
    read_paused: Callable[[], frozenset[str]]


class Driver:
    """Runs one federation over a link.

    Args:
        session: session of this aggregator.
        trust: signs messages and checks signatures.
        storage: performs the storage actions of the server.
        hooks: functions of the aggregator for some of the actions.
    """

    def __init__(
        self,
        server: RoundServer,
        link: Link,
        topics: FederationTopics,
        session: str,
        trust: Trust,
        storage: Storage,
        hooks: Hooks,
    ) -> None:
        self._server = server
        self._link = link
        self._topics = topics
        self._session = session
        self._started = server.make_stopped_state().started
        self._trust = trust
        self._storage = storage
        self._hooks = hooks
        self._line_limit = ClientLineLimit()
        self._reconnects = Reconnects()
        self._paused: frozenset[str] = frozenset()
        self._load = 0
        self._dropped = 0
        self._sent_before = link.bytes_up
        self._pauses_check_at = self._enrolment_check_at = 0.0

    def run(self) -> None:
        """Lead the federation to its end.

        Raises:
            EdgeflError: the round server stopped the federation with this error.
            OtherAggregatorError: another aggregator leads the federation.
            LinkError: the broker cannot be used.
            StateError: the directory cannot be read or written.
        """
        self._link.subscribe(*list_aggregator_topics(self._topics))
        self._execute(self._server.start(time.monotonic(), self._find_unenrolled()))
        while not self._server.is_done:
            self._pump()

    def stop(self, settings: dict[str, float]) -> None:
        """Publish that the federation has no aggregator now, and remove its blobs from the broker.

        Args:
            settings: settings to add to the last state message.
        """
        for action in self._server.stop(settings):
            if isinstance(action, Publish):
                self._publish(action)

    def _handle(self, event: Event) -> None:
        self._execute(self._server.handle(event, time.monotonic()))

    def _pump(self) -> None:
        """Handle one message or the next timer of the server, whichever comes first."""
        now = time.monotonic()
        if now >= self._pauses_check_at:
            self._check_pauses()
        if now >= self._enrolment_check_at:
            self._check_enrolments()
        load = self._link.in_flight
        if load != self._load:
            self._load = load
            self._handle(LinkLoad(load))
        is_waiting = self._link.in_flight and self._link.is_connected
        wait = BUSY_WAIT_S if is_waiting else MAX_WAIT_S
        received = self._link.get(min(wait, max(0.0, self._server.get_timer() - time.monotonic())))
        event: Event | None = None
        if isinstance(received, Connected):
            LOGGER.log(*self._reconnects.describe(received.url, time.monotonic()))
            event = LinkRestored()
        elif received is not None:
            event = self._read_event(received)
        if event is None and self._server.get_timer() <= time.monotonic():
            event = TimePassed()
        if event is not None:
            self._handle(event)

    def _read_event(self, message: Message) -> Event | None:
        try:
            return read_event(message, self._session, self._trust, self._started)
        except WireError as error:
            self._log(WriteLog(f"ignored: {error}", OTHER_SENDER, logging.WARNING))
            return None

    def _log(self, action: WriteLog) -> None:
        line = action.line
        if action.client_id:
            line = self._line_limit.admit(action.client_id, line, time.monotonic())
        if line:
            LOGGER.log(action.level, line, extra={"client_id": action.client_id} if action.client_id else {})

    def _check_pauses(self) -> None:
        self._pauses_check_at = time.monotonic() + PAUSES_CHECK_S
        paused = self._hooks.read_paused()
        if paused != self._paused:
            self._paused = paused
            self._handle(PausesChanged(paused))

    def _check_enrolments(self) -> None:
        self._enrolment_check_at = time.monotonic() + ENROLMENT_CHECK_S
        for client_id, reason in self._find_unenrolled().items():
            self._handle(ClientExcluded(client_id, reason))

    def _find_unenrolled(self) -> dict[str, str]:
        """Return the clients that the server must check and that are not enrolled, with the reasons."""
        if self._trust.find_key is None:
            return {}
        reasons = {
            client: self._trust.explain_refusal(client)
            for client in self._server.list_clients_to_check()
            if client
        }
        return {client_id: reason for client_id, reason in reasons.items() if reason}

    def _execute(self, actions: Iterable[Action]) -> None:
        has_tasks = False
        waiting = deque(actions)
        while waiting:  # No reference to a performed action remains: it may hold an update of many megabytes
            action = waiting.popleft()
            self._storage.apply(action)
            match action:
                case Publish(message=message):
                    self._publish(action)
                    has_tasks = has_tasks or isinstance(message, Task)
                case WriteLog():
                    self._log(action)
                case OpenRound():
                    self._sent_before = self._link.bytes_up
                case CloseRound():
                    self._log_drops()
                    self._hooks.close(action, self._link.bytes_up - self._sent_before)
                    self._sent_before = self._link.bytes_up
                case AggregateUpdates(state):
                    after = self._hooks.aggregate(state)
                    # The next cohort must not contain clients that were paused or revoked meanwhile
                    self._check_pauses()
                    self._check_enrolments()
                    self._handle(StateAggregated(after))
                case Finish():
                    self._hooks.finish(action)
                case Stop(error):
                    self._storage.wait()
                    raise error
        if has_tasks:
            self._storage.release()

    def _publish(self, action: Publish) -> None:
        message = action.message
        if isinstance(message, State):
            self._show_progress(message)
        payload = message if isinstance(message, bytes) else self._trust.encode_now(message, action.receiver)
        self._link.publish(action.topic, payload, qos=action.qos, retain=action.is_retained)
        if action.qos:
            self._load = -1  # The server counts this message. It needs an event on its acknowledgement

    def _show_progress(self, state: State) -> None:
        if state.phase in (JOINING_PHASE, STOPPED_PHASE, PHASE_DONE):
            return
        round_text = f", round {state.round}" if state.round <= state.rounds else ""
        self._hooks.show_progress(
            f"{state.phase}{round_text}, {state.cohort_size} devices", state.round - 1, state.rounds
        )

    def _log_drops(self) -> None:
        if new := self._link.dropped - self._dropped:
            self._dropped += new
            LOGGER.warning(
                f"{new} messages were dropped: more arrived than the aggregator may hold; dropped chunks are "
                "requested again"
            )
