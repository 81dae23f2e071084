"""An aggregator in several processes: this one keeps the rounds and folds, its workers take the uploads
(docs/decisions/0010).

What workers have spooled is folded here in the order of client ids, as one process does it: the bits do not
depend on how many there are.
"""

from contextlib import ExitStack
from pathlib import Path
from typing import Any

from edgefl.algorithms import DONE
from edgefl.config import FederationConfig
from edgefl.errors import ConfigError
from edgefl.server import rounds
from edgefl.server.rounds import Round
from edgefl.transport.link import Message
from edgefl.wire.messages import Begin, State
from edgefl.wire.topics import Address
from mqtt_broker.aggregator import control
from mqtt_broker.aggregator.control import SharedLink
from mqtt_broker.aggregator.crew import CREW, Crew
from mqtt_broker.aggregator.exchange import Exchange
from mqtt_broker.aggregator.places import Groups, picked_of
from mqtt_broker.aggregator.results import reported
from mqtt_broker.aggregator.shared_spool import SharedSpool
from mqtt_broker.aggregator.tasks import Accepted, Asks, Tasks, Then


def check_split(workers: int, config: FederationConfig) -> None:
    """Raise ConfigError for what cannot be done by several processes."""
    if workers and config.privacy.secure_aggregation:
        raise ConfigError(
            "--workers does not go with secure_aggregation: keys and masks of a round are one process's; "
            "leave one out"
        )


def exchange_for(
    workers: int, broker: str, security: Path | None, ending: ExitStack, *given: Any, **named: Any
) -> Exchange:
    """Return an `Exchange`, with so many workers when there are any; `ending` ends them."""
    if not workers:
        return Exchange(*given, **named)
    split = SplitExchange(workers, broker, security, *given, **named)
    ending.callback(split.close)
    return split


class SplitExchange(Exchange):
    """An exchange whose uploads are taken by workers."""

    _link: SharedLink
    _spool: SharedSpool

    def __init__(self, workers: int, broker: str, security: Path | None, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self._closing = False
        self._picked: dict[str, float] = {}
        start = control.Start(
            broker,
            self._topics.federation,
            self.state.session,
            self.state.plan,
            str(security.resolve()) if security else "",
            named["upload_slots"],
            named["max_samples"],
            tuple(sorted(self._trust.clients)),
        )
        self._crew = Crew(workers, start, self._link, self._note, self._told_play)

    def start(self) -> None:
        """Publish the state and listen to devices, but for their uploads.

        Returns when the workers are connected.
        """
        device = self._topics.device
        self._link.subscribe(
            device("+", "status"), device("+", "want"), self._topics.state, self._topics.manifest("+")
        )
        self.publish_state(self.state)
        if self._older:
            self._older.start()
        while not self._crew.is_up:  # else the first round's time would run while they load
            self.pump(0.5)

    def publish_state(self, state: State) -> None:
        """Say where the federation stands.

        That it is done only when the workers have sent their last receipts.
        """
        if state.phase == DONE:
            self._crew.end(orderly=True)
        super().publish_state(state)

    def close(self) -> None:
        """End the workers."""
        self._crew.end(orderly=False)

    def _told_play(self) -> control.Play | None:
        if self.round is None or self._tasks is None or self._closing:
            return None
        late, settled = (
            tuple((number, client_id, sha256) for (number, client_id), sha256 in told.items())
            for told in (self.round.late, self.round.settled)
        )
        return control.Play(
            self.round.number,
            self.round.max_staleness,
            tuple(self._tasks.nonces.items()),
            str(self._spool.directory()),
            tuple(self.round.received.items()),
            late,
            settled,
        )

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
        """Play a round as one process does; before it is over, workers report all that reached them whole."""
        assert isinstance(tasks, Tasks)  # masked rounds are refused: check_split
        self._ready()  # else the last round's spool is cleared after this one's directory was made in it
        self.round = round
        self._tasks = tasks
        play = self._told_play()
        groups = Groups(tasks.state, self._picked)
        assert play is not None
        self._crew.open(play, {client_id: groups.of(client_id) for client_id in round.cohort})
        # who is online may answer an earlier round, if that is still taken
        for client_id in {*rounds.missing(round), *(self.presence.online() if round.max_staleness else ())}:
            self._crew.serve(client_id, tasks.brief(client_id))
        self._crew.flush(begin=True)
        self.round = super().play(
            round, tasks, accepted, open_to_all=open_to_all, is_sample=is_sample, tasks_out=tasks_out
        )
        self._closing = True
        self._crew.close()
        while self._crew.is_closing:
            self.pump(0.5)
        self._closing = False
        closed = self.round
        self.round = None
        return closed

    def _send_task(self, client_id: str) -> None:
        assert self._tasks is not None
        self._crew.serve(client_id, self._tasks.brief(client_id))
        self._crew.flush()
        if self._crew.is_serving(client_id):
            super()._send_task(client_id)  # else when its worker hears it, so that no announcement is lost

    def pump(self, timeout_s: float) -> None:
        """Take one event, if one comes in time, and send what is due."""
        self._crew.start_due()
        super().pump(timeout_s)

    def _take(self, message: Message) -> None:
        if not message.topic.startswith(CREW):
            super()._take(message)
            return
        match self._crew.take(message):
            case number, control.Arrived() as arrived:
                self._on_arrived(number, arrived)
            case _, control.Serving(client_ids):
                for client_id in client_ids:
                    if self.round and not self._closing and client_id in rounds.missing(self.round):
                        super()._send_task(client_id)
            case _, control.Refused(client_id, reason) if self.round:
                self.round = rounds.fail(self.round, client_id, reason)

    def _on_status(self, address: Address, payload: bytes) -> None:
        super()._on_status(address, payload)
        if address.client_id not in self.presence.online() or self.presence.is_resting(address.client_id):
            self._crew.gone(address.client_id)
            return
        if self.round and self._tasks and self.round.max_staleness:
            self._crew.serve(address.client_id, self._tasks.brief(address.client_id))
        else:
            self._crew.hear(address.client_id)
        self._crew.flush()

    def _on_arrived(self, number: int, arrived: control.Arrived) -> None:
        """Journal what counts of it, and have the worker say so."""
        directory = Path(arrived.directory)
        taken = list[Begin]()
        receipts = list[tuple[str, str, str, str]]()
        self._link.bytes_up += arrived.sent
        after = self.round
        for begin in arrived.begins:
            outcome = "wait"
            reason = "no round is open"
            if after is not None and self._tasks is not None and self._spool.holds(directory):
                after, verdict = rounds.receive(after, begin.round, begin.client_id, begin.sha256)
                outcome = "rejected" if verdict.kind == "rejected" else "ok"
                reason = verdict.reason
                if verdict.kind == "accepted":
                    brief = self._tasks.brief(begin.client_id)
                    self._spool.adopt(begin, brief.expected, brief.task.codec, directory)
                    taken.append(begin)
            receipts.append((begin.client_id, begin.sha256, outcome, reason))
        if taken and after is not None:
            self._accepted(taken)
            self.round = after
            self._picked |= {begin.client_id: picked_of(begin.metrics) for begin in taken}
            for place, begin in enumerate(taken, 1 - len(taken)):
                self._note(reported(self.state.phase, after, begin, rounds.count(after) + place))
        self._crew.tell(number, control.Answer(tuple(receipts)))
