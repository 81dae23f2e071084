"""The worker processes of an aggregator: who serves which client, what each was told, and another start for
one that ended.
"""

import contextlib
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from edgefl import errors
from edgefl.errors import EdgeflError, LinkError
from edgefl.plan.spec import TensorSpec
from edgefl.transport.link import Message
from mqtt_broker.aggregator import control
from mqtt_broker.aggregator.control import SharedLink, from_line, to_line
from mqtt_broker.aggregator.places import Place, placed
from mqtt_broker.aggregator.tasks import Brief

CREW = "crew/"
"""Topics under which workers' lines lie in the link's queue; none of a broker begins so."""
COMMAND = ("-m", "mqtt_broker.aggregator.worker")
END_S = 10.0
MAX_FAILURES = 8
FIRST_WAIT_S = 0.25
LONGEST_WAIT_S = 5.0


@dataclass
class Worker:
    """One worker: `starts` so often, `failures` in a row before it was connected.

    `due` when it is to be started, 0: it runs.
    """

    popen: "subprocess.Popen[bytes] | None" = None
    starts: int = 0
    failures: int = 0
    due: float = 0.0
    reason: str = ""
    fatal: EdgeflError | None = None
    is_up: bool = False
    closed: bool = True
    serving: set[str] = field(default_factory=set)
    specs: dict[tuple[TensorSpec, ...], int] = field(default_factory=dict)
    told: dict[str, Brief] = field(default_factory=dict)
    new: dict[str, Brief] = field(default_factory=dict)
    others: set[str] = field(default_factory=set)


class Crew:
    """Workers by number.

    Their lines come through the link's queue, so that whoever waits for the broker waits for them too.

    `open_play`: what a worker that starts while a round is open has to know of it, None when there is none.
    """

    def __init__(
        self,
        count: int,
        start: control.Start,
        link: SharedLink,
        note: Callable[[str], None],
        open_play: Callable[[], control.Play | None],
    ) -> None:
        self._start = start
        self._link = link
        self._note = note
        self._open_play = open_play
        self.workers = [Worker() for _ in range(count)]
        self._places: dict[str, Place] = {}
        for number in range(count):
            self._run(number)

    def _run(self, number: int) -> None:
        worker = self.workers[number]
        known = {**worker.told, **worker.new}
        worker.popen = subprocess.Popen(
            [sys.executable, *COMMAND], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        worker.starts = worker.starts + 1
        worker.due = 0.0
        worker.reason = ""
        worker.closed = True
        worker.is_up = False
        worker.serving = set()
        worker.specs = {}
        worker.told = {}
        worker.new = known
        worker.others = {client_id for client_id, place in self._places.items() if place[0] == number}
        threading.Thread(
            target=self._read, args=(f"{CREW}{number}/{worker.starts}", worker.popen), daemon=True
        ).start()
        self.tell(number, self._start)
        if (play := self._open_play()) is not None:
            worker.closed = False
            self.tell(number, play)
            self._serve(number)

    def _read(self, topic: str, popen: "subprocess.Popen[bytes]") -> None:
        assert popen.stdout is not None
        for line in popen.stdout:
            self._link.post(Message(topic, line))
        popen.wait()
        self._link.post(Message(topic, b""))

    def tell(self, number: int, said: control.Said) -> None:
        """Say something to a worker; nothing to one that has ended."""
        popen = self.workers[number].popen
        assert popen is not None
        assert popen.stdin is not None
        try:
            popen.stdin.write(to_line(said))
            popen.stdin.flush()
        except (OSError, ValueError):  # its end comes through the queue, and who starts anew is told all
            pass

    def open(self, play: control.Play, groups: Mapping[str, int | None]) -> None:
        """Tell all of a round that opens, and where its clients are by their expert groups.

        Uploads are held until `flush` with `begin`.

        What clients were told before does not count any more, unless late updates do.
        """
        places = placed(self._places, groups, len(self.workers))
        moved = [client_id for client_id, place in self._places.items() if places[client_id][0] != place[0]]
        for number, worker in enumerate(self.workers):
            if left := tuple(client_id for client_id in moved if self._places[client_id][0] == number):
                self.tell(number, control.Leave(left))
                worker.serving.difference_update(left)
                worker.others.difference_update(left)
                worker.told = {
                    client_id: brief for client_id, brief in worker.told.items() if client_id not in left
                }
        self._places = places
        for client_id in moved:
            self._at(client_id).others.add(client_id)
        for number, worker in enumerate(self.workers):
            if not play.max_staleness:
                worker.told = {}
            worker.new = {}
            worker.closed = False
            self.tell(number, play)

    def serve(self, client_id: str, brief: Brief) -> None:
        """Have a client's worker take its uploads, at the next `flush`."""
        self.hear(client_id)
        worker = self._at(client_id)
        if worker.told.get(client_id) is not brief:
            worker.new[client_id] = brief

    def hear(self, client_id: str) -> None:
        """Have some worker hear a client, if only to tell it that it has no task."""
        if client_id not in self._places:
            self._places = placed(self._places, {client_id: None}, len(self.workers))
            self._at(client_id).others.add(client_id)

    def is_serving(self, client_id: str) -> bool:
        """Whether the client's worker hears it."""
        return client_id in self._at(client_id).serving

    def _at(self, client_id: str) -> Worker:
        return self.workers[self._places[client_id][0]]

    def flush(self, *, begin: bool = False) -> None:
        """Tell the workers whom they serve.

        `begin`: a round was opened, and all whom it asks were named: before that, none is refused.
        """
        for number, worker in enumerate(self.workers):
            if (begin or worker.new or worker.others) and not worker.closed:
                self._serve(number)

    def _serve(self, number: int) -> None:
        worker = self.workers[number]
        specs = list[tuple[TensorSpec, ...]]()
        clients = list[control.Client]()
        for client_id, brief in worker.new.items():
            for each in brief.expected.values():
                if each not in worker.specs:
                    worker.specs[each] = len(worker.specs)
                    specs.append(each)
            models = {model: worker.specs[each] for model, each in brief.expected.items()}
            clients.append(
                control.Client(client_id, replace(brief.task, models={}, scalars={}), models, brief.limit)
            )
        others = tuple(worker.others)
        worker.others = set()
        worker.told = {**worker.told, **worker.new}
        worker.new = {}
        self.tell(number, control.Serve(tuple(clients), tuple(specs), others))

    def gone(self, client_id: str) -> None:
        """Note that a client is offline."""
        if client_id in self._places:
            self.tell(self._places[client_id][0], control.Gone(client_id))

    def close(self) -> None:
        """Have all report what they have, and hold the rest."""
        for number, worker in enumerate(self.workers):
            if not worker.closed:
                self.tell(number, control.Close())

    @property
    def is_closing(self) -> bool:
        """Whether a worker may still report for the round that was closed."""
        return not all(worker.closed for worker in self.workers)

    @property
    def is_up(self) -> bool:
        """Whether all are connected."""
        return all(worker.is_up for worker in self.workers)

    def take(self, message: Message) -> tuple[int, control.Said] | None:
        """Read what a worker said; returns it with the worker's number when it is for the exchange.

        Raises what a worker ended of.
        """
        _, number_text, start = message.topic.split("/")
        worker = self.workers[number := int(number_text)]
        if int(start) != worker.starts:
            return None
        if not message.payload:
            self._ended(number)
            return None
        said = from_line(message.payload)
        match said:
            case control.Up():
                worker.failures = 0
                worker.is_up = True
            case control.Serving(client_ids):
                worker.serving.update(client_ids)
                return number, said
            case control.Closed():
                worker.closed = True
            case control.Broke(kind, reason):
                worker.reason = reason
                if kind != LinkError.__name__:  # a full disk, a missing key: another start would not help
                    worker.fatal = getattr(errors, kind, EdgeflError)(reason)
            case _:
                return number, said
        return None

    def _ended(self, number: int) -> None:
        worker = self.workers[number]
        if worker.fatal:
            raise worker.fatal
        assert worker.popen is not None
        if worker.failures >= MAX_FAILURES:
            raise LinkError(
                worker.reason
                or f"worker {number} ended {worker.failures + 1} times with {worker.popen.returncode}"
            )
        wait_s = min(LONGEST_WAIT_S, FIRST_WAIT_S * 2.0**worker.failures) if worker.failures else 0.0
        worker.failures = worker.failures + 1
        worker.closed = True
        worker.serving = set()
        worker.due = time.monotonic() + wait_s
        why = f" ({worker.reason})" if worker.reason else ""
        self._note(
            f"worker {number} ended with {worker.popen.returncode}{why}; it is started again, and what it "
            "had not reported comes again"
        )

    def start_due(self) -> None:
        """Start again who ended."""
        for number, worker in enumerate(self.workers):
            if worker.due and time.monotonic() >= worker.due:
                self._run(number)

    def end(self, *, orderly: bool) -> None:
        """End all; `orderly`: when they have sent what is left."""
        until = time.monotonic() + END_S
        for number, worker in enumerate(self.workers):
            if orderly:
                self.tell(number, control.End())
            elif worker.popen and worker.popen.stdin:
                with contextlib.suppress(OSError):
                    worker.popen.stdin.close()
        for worker in self.workers:
            assert worker.popen is not None
            try:
                worker.popen.wait(max(0.0, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                worker.popen.kill()
                worker.popen.wait()
