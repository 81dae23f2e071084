"""A load generator for the aggregator: stub clients, which do not train. `python -m
tests.benchmarks.fleet.stub_client FEDERATION CLIENTS_A_PROCESS ENROLMENT...` starts many.

Each has a connection, a thread, certificate and keys of its own, and joins, fetches, uploads and personalizes
by the device's protocol; only training is left out, its delta being noise of the model's size, and nothing is
kept on disk. paho waits with select(2), which takes file numbers below 1,024, and a client has up to five:
180 clients a process at most.
"""

import json
import multiprocessing
import signal
import sys
import threading
from collections.abc import Mapping
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cache
from multiprocessing.connection import Connection
from multiprocessing.connection import wait as wait_for_any
from pathlib import Path
from zlib import crc32

import numpy as np

from devices.join import join_federation
from devices.session import Session, Superseded
from devices.telemetry import publish_telemetry
from devices.upload import send_update
from edgefl.algorithms import PHASE_DONE, PHASE_PERSONALIZE
from edgefl.errors import ConfigError, EdgeflError
from edgefl.plan.spec import PlanSpec, decode_plan
from edgefl.security.enrolment import Enrolment, load_enrolment
from edgefl.system.host import read_peak_rss_mb
from edgefl.transport.link import KEEPALIVE_S
from edgefl.types import Array
from edgefl.wire.messages import STOPPED_PHASE, Task
from edgefl.wire.tensors import bound_blob_size, encode_models

MOST = 180
MAX_PLAN_BYTES = 64 * 1024 * 1024
NUM_SAMPLES = 10
LOSS = 1.0
CONNECT_S = 60.0
JOINING = threading.BoundedSemaphore(32)
"""So many join at a time: hundreds of handshakes at once on this machine would wait for each other until they
time out.
"""


@dataclass(frozen=True)
class Place:
    """Where a stub client joins; see `devices.join.JoinSettings`."""

    broker: str
    client_id: str
    federation: str
    enrolment: Enrolment
    keepalive_s: int = KEEPALIVE_S
    wait_s: float = 0.0


@dataclass(frozen=True)
class Tally:
    """What one client did: updates that were received and refused, payload bytes, messages that its queue
    could not hold.
    """

    client_id: str
    accepted: int
    rejected: int
    bytes_up: int
    bytes_down: int
    dropped: int


@cache
def noise(shape: tuple[int, ...]) -> Array:
    """Return the same noise for all clients of this process: drawing it is not what is measured."""
    return np.random.default_rng(1).normal(0, 1e-3, shape).astype(np.float32)


class Client:
    """One client on a link of its own."""

    def __init__(self, enrolment: Enrolment, federation: str) -> None:
        self._enrolment = enrolment
        self._federation = federation
        self._known: set[str] = set()
        self._spec: PlanSpec | None = None
        self._accepted = self._rejected = 0

    def run(self) -> Tally:
        """Take part until the federation is done."""
        own = self._enrolment
        with JOINING:
            session = join_federation(
                Place(own.broker, own.client_id, self._federation, own),
                NUM_SAMPLES,
                "",
                CONNECT_S,
            )
        link = session.link
        try:
            session.start()
            self._take_part(session)
            session.publish_status(online=False)
            return Tally(
                own.client_id, self._accepted, self._rejected, link.bytes_up, link.bytes_down, link.dropped
            )
        finally:
            link.close()

    def _take_part(self, session: Session) -> None:
        answered = 0
        seen = ""
        while True:
            session.pump(0.5)
            state = session.state
            task = session.task
            # a task that comes again is answered again, with the same bytes
            if task and session.tasks_received != answered and session.is_current(task):
                with suppress(Superseded):
                    self._perform(session, task)
                    if session.is_current(task):
                        answered = session.tasks_received
                continue
            if state and state.phase == PHASE_DONE and state.session == seen:
                return
            if state and state.phase not in (PHASE_DONE, STOPPED_PHASE):
                seen = state.session

    def _perform(self, session: Session, task: Task) -> None:
        if self._spec is None:
            blobs = session.fetch(lambda: session.is_current(task), {task.plan: MAX_PLAN_BYTES})
            self._spec = decode_plan(blobs[task.plan]).spec
        lacking = set(task.models.values()) - self._known
        if lacking:
            session.fetch(
                lambda: session.is_current(task), dict.fromkeys(lacking, bound_blob_size(self._spec.weights))
            )
            self._known |= lacking
        blob = encode_models({} if task.phase == PHASE_PERSONALIZE else self._deltas(task, self._spec))
        metrics = {"loss": LOSS, "seconds": 0.0, "peak_rss_mb": read_peak_rss_mb()}
        client_id = self._enrolment.client_id
        receipt = send_update(session, client_id, task, blob, metrics, NUM_SAMPLES)
        if receipt.outcome == "rejected":
            self._rejected += 1
            return
        self._accepted += 1
        publish_telemetry(session, client_id, task.round, metrics)

    def _deltas(self, task: Task, spec: PlanSpec) -> Mapping[str, Mapping[str, Array]]:
        # no two updates have the same bytes
        own = np.float32(1 + crc32(f"{self._enrolment.client_id} {task.round}".encode()) / 2**32)
        return {model: {each.name: noise(each.shape) * own for each in spec.weights} for model in task.models}


def run_clients(federation: str, enrolments: list[Path]) -> list[Tally]:
    """Run them side by side until the federation is done; raises what the first of them that fails raised, at
    once.
    """
    if len(enrolments) > MOST:
        raise ConfigError(f"{len(enrolments)} clients in one process, expected at most {MOST}; start another")
    clients = [Client(load_enrolment(path), federation) for path in enrolments]
    pool = ThreadPoolExecutor(len(clients))
    running = [pool.submit(client.run) for client in clients]
    wait(running, return_when=FIRST_EXCEPTION)
    pool.shutdown(wait=False)
    for each in running:
        if each.done():
            each.result()
    return [each.result() for each in running]


def run_part(federation: str, enrolments: list[Path], told: Connection) -> None:
    """Run these clients in a process of their own; tells its peak memory in MB and what they did, or what
    went wrong.
    """
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
    try:
        tallies = run_clients(federation, enrolments)
    except EdgeflError as error:
        told.send(str(error))
        return
    told.send((read_peak_rss_mb(), [asdict(tally) for tally in tallies]))


def main(federation: str, together: int, enrolments: list[Path]) -> None:
    """Run them, so many in a process, and print one JSON line. A process is a fork: it has imported all
    before it begins.

    Ends with 1 as soon as one of them fails or is killed, and ends the others.
    """
    # whoever waits for the interpreter asks for it this often, and hundreds of threads that ask are all that
    # two cores can do
    sys.setswitchinterval(0.1)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # multiprocessing ends the processes then
    # Python forgets a signal that comes in the midst of a fork
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    context = multiprocessing.get_context("fork")
    waiting = list[Connection]()
    found = []
    for i in range(0, len(enrolments), together):
        told, telling = context.Pipe(duplex=False)
        context.Process(
            target=run_part, args=(federation, enrolments[i : i + together], telling), daemon=True
        ).start()
        telling.close()  # the process alone has that end now, so that it closes with the process
        waiting.append(told)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
    while waiting:
        ready = wait_for_any(waiting)
        for told in [each for each in waiting if each in ready]:
            try:
                said = told.recv()
            except EOFError:
                said = "a process of stub clients was killed; run them again"
            if isinstance(said, str):
                sys.exit(said)
            found.append(said)
            waiting.remove(told)
    clients = [client for _, each in found for client in each]
    print(json.dumps({"peak_rss_mb": max(peak for peak, _ in found), "clients": clients}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), [Path(each) for each in sys.argv[3:]])
