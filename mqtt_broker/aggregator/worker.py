"""A worker process of an aggregator: it takes the uploads of some clients on a connection of its own,
verifies and spools them.

`python -m mqtt_broker.aggregator.worker`, started by `edgefl aggregator start --workers N` and by nobody
else: what to do comes on standard input (`control`), and when that ends, this process does. A device sees no
difference: topics, messages and receipts are the aggregator's.

An update is told ok only when the aggregator has journalled it. A worker keeps nothing that matters but its
spool: killed, it is started again, and who has no receipt announces the update once more.
"""

import os
import secrets
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO

from edgefl.errors import EdgeflError, WireError
from edgefl.plan.spec import TensorSpec
from edgefl.security.enrolment import load_enrolment, tls_context
from edgefl.security.trust import Enrolments, Trust
from edgefl.server import rounds
from edgefl.server.rounds import Round
from edgefl.system.format import printable
from edgefl.transport.link import KEEPALIVE_S, Message
from edgefl.wire.messages import JOINING, Begin, State
from edgefl.wire.topics import Address, Topics
from mqtt_broker.aggregator import control
from mqtt_broker.aggregator.control import SharedLink, from_line, to_line
from mqtt_broker.aggregator.exchange import Exchange
from mqtt_broker.aggregator.spool import Spool
from mqtt_broker.aggregator.tasks import Brief, Tasks
from mqtt_broker.aggregator.uploads import receipt

CONTROL = "control"
"""The topic under which the aggregator's lines lie in the link's queue; no topic of a broker is called so."""
MAX_HELD = 20_000


class Briefs(Tasks):
    """What the clients of a worker may send, as the aggregator told."""

    def __init__(self, play: control.Play, known: dict[str, Brief]) -> None:
        self.nonces = dict(play.nonces)
        self._known = known

    def brief(self, client_id: str) -> Brief:
        """Return a client's brief; WireError for one that was not told of."""
        if client_id not in self._known:
            raise WireError(f"{client_id} has no task; wait for one")
        return self._known[client_id]


class Intake(Exchange):
    """Takes uploads as an exchange does, but the aggregator says which of them count."""

    def __init__(
        self,
        link: SharedLink,
        start: control.Start,
        trust: Trust,
        say: Callable[[control.Said], None],
        note: Callable[[str], None],
    ) -> None:
        state = State(start.federation, start.session, JOINING, 0, 0, 0, 0.0, start.plan, time.time())
        topics = Topics(start.federation)
        super().__init__(
            link,
            topics,
            state,
            upload_slots=start.upload_slots,
            max_samples=start.max_samples,
            spool=Spool(Path()),
            trust=trust,
            note=note,
        )
        self._say = say
        self._name = secrets.token_hex(4)
        self._known: dict[str, Brief] = {}
        self._heard: set[str] = set()
        self._specs: list[tuple[TensorSpec, ...]] = []
        self._asked: dict[str, Begin] = {}
        self._waiting: deque[Message] = deque(maxlen=MAX_HELD)
        self._directory = ""
        self._sent = 0
        self._between = True
        self.ended = False

    def publish_state(self, state: State) -> None:
        """Say nothing: the state is the aggregator's to tell."""

    def _take(self, message: Message) -> None:
        if message.topic != CONTROL:
            if self._between:
                self._waiting.append(message)
            else:
                super()._take(message)
            return
        match from_line(message.payload):
            case control.Play() as play:
                self._open(play)
            case control.Serve() as serve:
                self._serve(serve)
            case control.Answer() as answer:
                self._answered(answer)
            case control.Gone(client_id):
                self._send(self._uploads.close(client_id, time.monotonic()))
            case control.Leave(client_ids):
                self._link.unsubscribe(*(self._topics.upload(each, "+", "+") for each in client_ids))
                self._heard.difference_update(client_ids)
                for each in client_ids:
                    self._known.pop(each, None)
                    self._send(self._uploads.close(each, time.monotonic()))
            case control.Close():
                if self._unsettled:
                    self._settle()
                self._between = True
                self._say(control.Closed())
            case control.End():
                self.ended = True

    def _open(self, play: control.Play) -> None:
        directory = str(Path(play.directory) / self._name)
        if directory != self._directory:
            if self._directory:
                self._spool.remove()
            self._directory = directory
            self._spool = Spool(Path(directory))
        late, settled = (
            {(number, client_id): sha256 for number, client_id, sha256 in told}
            for told in (play.late, play.settled)
        )
        self.round = Round(
            play.number,
            tuple(sorted(client_id for client_id, _ in play.received)),
            1,
            0.0,
            0.0,
            0.0,
            0.0,
            dict(play.received),
            max_staleness=play.max_staleness,
            late=late,
            settled=settled,
        )
        self._tasks = Briefs(play, self._known)
        if not play.max_staleness:
            self._uploads.clear()

    def _serve(self, serve: control.Serve) -> None:
        assert self.round is not None
        self._specs += serve.specs
        for each in serve.clients:
            expected = {model: self._specs[place] for model, place in each.models.items()}
            self._known[each.client_id] = Brief(each.task, expected, each.limit)
        asked = {each.client_id for each in serve.clients}
        self.round = replace(self.round, cohort=tuple(sorted({*self.round.cohort, *asked})))
        if new := sorted((asked | {*serve.others}) - self._heard):
            self._heard.update(new)
            self._link.subscribe(*(self._topics.upload(client_id, "+", "+") for client_id in new))
            self._say(control.Serving(tuple(new)))
        self._between = False
        while self._waiting:
            super()._take(self._waiting.popleft())

    def _on_begin(self, address: Address, begin: Begin) -> None:
        if address.client_id not in self._asked:  # else its answer is on its way
            super()._on_begin(address, begin)

    def _send_tasks(self, client_ids: Sequence[str]) -> None:
        # this link is back: the aggregator, which knows the tasks, tells them again to all whose
        # announcements may be lost
        self._say(control.Serving(tuple(client_ids)))

    def _lacks_more(self) -> bool:
        # what it has reported is not received before the aggregator says so
        return self.round is not None and rounds.lacking(self.round) > len(self._unsettled) + len(self._asked)

    def _settle(self) -> None:
        self._spool.sync()
        begins = tuple(self._unsettled.values())
        self._unsettled.clear()
        self._asked |= {begin.client_id: begin for begin in begins}
        sent = self._link.bytes_up - self._sent
        self._sent = self._link.bytes_up
        self._say(control.Arrived(self._directory, begins, sent))

    def _answered(self, answer: control.Answer) -> None:
        for client_id, sha256, outcome, reason in answer.receipts:
            begin = self._asked.pop(client_id, None)
            if begin is None or begin.sha256 != sha256:
                continue
            if outcome == "ok" and self.round:
                self.round, _ = rounds.receive(self.round, begin.round, client_id, sha256)
            self._send([(client_id, receipt(begin, outcome, reason))])

    def _refuse(self, address: Address, reason: str) -> None:
        super()._refuse(address, reason)
        if address.kind in ("begin", "chunk", "end"):
            self._say(control.Refused(address.client_id, reason))


def _listen(lines: BinaryIO, link: SharedLink) -> None:
    for line in lines:
        link.post(Message(CONTROL, line))
    os._exit(0)  # the aggregator is gone, whatever this process is at


def run(start: control.Start, lines: BinaryIO, say: Callable[[control.Said], None]) -> None:
    """Work until the aggregator says that it is over. Raises LinkError, StateError, ConfigError."""
    security = Path(start.security) if start.security else None
    own = load_enrolment(security / "aggregator.enrol") if security else None
    trust = Trust(
        start.federation,
        own.signing_key if own else "",
        Enrolments(security).key_of if security else None,
        clients=frozenset(start.clients),
    )
    context = tls_context(own) if own else None
    link = SharedLink(
        start.broker, f"edgefl-worker-{secrets.token_hex(8)}", keepalive_s=KEEPALIVE_S, context=context
    )
    intake = Intake(link, start, trust, say, lambda line: print(printable(line), file=sys.stderr, flush=True))
    threading.Thread(target=_listen, args=(lines, link), daemon=True).start()
    say(control.Up())
    while not intake.ended:
        intake.pump(0.5)
    link.close()


def main() -> None:
    """Be a worker: the first line says of whom."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the aggregator, which then ends this process
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)

    def say(said: control.Said) -> None:
        out.write(to_line(said))
        out.flush()

    line = sys.stdin.buffer.readline()
    if not line:
        return
    start = from_line(line)
    assert isinstance(start, control.Start)
    try:
        run(start, sys.stdin.buffer, say)
    except EdgeflError as error:
        say(control.Broke(type(error).__name__, str(error)))
        os._exit(1)
    os._exit(0)  # the thread that listens holds standard input


if __name__ == "__main__":
    main()
