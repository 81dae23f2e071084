"""A load generator for the aggregator: stub clients, which do not train. `python -m
tests.benchmarks.fleet.stub_client FEDERATION CLIENTS_A_PROCESS ENROLMENT...` starts many.

Each client has a separate connection, thread, certificate and keys. It joins, fetches, uploads and
personalizes by the device's protocol. It does not train: its delta is noise of the model's size. It writes
nothing to disk. paho waits with select(2), which accepts file numbers below 1,024. A client has up to five
files, so a process runs at most 180 clients.
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

MAX_CLIENTS_PER_PROCESS = 180
MAX_PLAN_BYTES = 64 * 1024 * 1024
NUM_SAMPLES = 10
LOSS = 1.0
CONNECT_S = 60.0
JOIN_SLOTS = threading.BoundedSemaphore(32)
"""Limits the number of clients that join at the same time. Hundreds of simultaneous handshakes on one machine
would time out.
"""


@dataclass(frozen=True)
class StubJoinSettings:
    """The settings with which a stub client joins, see `devices.join.JoinSettings`."""

    broker: str
    client_id: str
    federation: str
    enrolment: Enrolment
    keepalive_s: int = KEEPALIVE_S
    wait_s: float = 0.0


@dataclass(frozen=True)
class Tally:
    """Counts of one client.

    Attributes:
        client_id: the client's id.
        accepted: accepted updates.
        rejected: rejected updates.
        bytes_up: payload bytes that the client sent.
        bytes_down: payload bytes that the client received.
        dropped: messages for which its queue had no room.
    """

    client_id: str
    accepted: int
    rejected: int
    bytes_up: int
    bytes_down: int
    dropped: int


@cache
def draw_noise(shape: tuple[int, ...]) -> Array:
    """Return noise. All clients of this process share it, so that drawing it costs no time."""
    return np.random.default_rng(1).normal(0, 1e-3, shape).astype(np.float32)


class Client:
    """One client with its link."""

    def __init__(self, enrolment: Enrolment, federation: str) -> None:
        self._enrolment = enrolment
        self._federation = federation
        self._fetched: set[str] = set()
        self._spec: PlanSpec | None = None
        self._accepted = self._rejected = 0

    def run(self) -> Tally:
        """Take part until the federation is done."""
        enrolment = self._enrolment
        with JOIN_SLOTS:
            session = join_federation(
                StubJoinSettings(enrolment.broker, enrolment.client_id, self._federation, enrolment),
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
                enrolment.client_id,
                self._accepted,
                self._rejected,
                link.bytes_up,
                link.bytes_down,
                link.dropped,
            )
        finally:
            link.close()

    def _take_part(self, session: Session) -> None:
        answered = 0
        last_session = ""
        while True:
            session.pump(0.5)
            state = session.state
            task = session.task
            # A repeated task is answered again with the same bytes
            if task and session.tasks_received != answered and session.is_current(task):
                with suppress(Superseded):
                    self._perform(session, task)
                    if session.is_current(task):
                        answered = session.tasks_received
                continue
            if state and state.phase == PHASE_DONE and state.session == last_session:
                return
            if state and state.phase not in (PHASE_DONE, STOPPED_PHASE):
                last_session = state.session

    def _perform(self, session: Session, task: Task) -> None:
        if self._spec is None:
            blobs = session.fetch(lambda: session.is_current(task), {task.plan: MAX_PLAN_BYTES})
            self._spec = decode_plan(blobs[task.plan]).spec
        missing = set(task.models.values()) - self._fetched
        if missing:
            session.fetch(
                lambda: session.is_current(task), dict.fromkeys(missing, bound_blob_size(self._spec.weights))
            )
            self._fetched |= missing
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
        # No two updates have the same bytes
        factor = np.float32(1 + crc32(f"{self._enrolment.client_id} {task.round}".encode()) / 2**32)
        return {
            model: {each.name: draw_noise(each.shape) * factor for each in spec.weights}
            for model in task.models
        }


def run_clients(federation: str, enrolments: list[Path]) -> list[Tally]:
    """Run clients in threads until the federation is done. The first error is raised at once."""
    if len(enrolments) > MAX_CLIENTS_PER_PROCESS:
        raise ConfigError(
            f"{len(enrolments)} clients in one process, expected at most {MAX_CLIENTS_PER_PROCESS}; start "
            "another"
        )
    clients = [Client(load_enrolment(path), federation) for path in enrolments]
    pool = ThreadPoolExecutor(len(clients))
    futures = [pool.submit(client.run) for client in clients]
    wait(futures, return_when=FIRST_EXCEPTION)
    pool.shutdown(wait=False)
    for future in futures:
        if future.done():
            future.result()
    return [future.result() for future in futures]


def run_part(federation: str, enrolments: list[Path], sender: Connection) -> None:
    """Run these clients in this process. Send its peak memory in MB and the counts, or an error message."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
    try:
        tallies = run_clients(federation, enrolments)
    except EdgeflError as error:
        sender.send(str(error))
        return
    sender.send((read_peak_rss_mb(), [asdict(tally) for tally in tallies]))


def main(federation: str, clients_per_process: int, enrolments: list[Path]) -> None:
    """Run the clients in several processes, and print one JSON line.

    The processes are forks, so they have already imported all modules. As soon as one process fails or is
    killed, the others are stopped and the exit code is 1.
    """
    # A waiting thread asks for the interpreter lock this often. Hundreds of threads that ask more often would
    # use up two cores
    sys.setswitchinterval(0.1)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # multiprocessing then stops the processes
    # Python loses a signal that arrives during a fork
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    context = multiprocessing.get_context("fork")
    waiting = list[Connection]()
    results = []
    for i in range(0, len(enrolments), clients_per_process):
        receiver, sender = context.Pipe(duplex=False)
        context.Process(
            target=run_part, args=(federation, enrolments[i : i + clients_per_process], sender), daemon=True
        ).start()
        sender.close()  # now only the process has the sender, so it closes when the process ends
        waiting.append(receiver)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
    while waiting:
        ready = wait_for_any(waiting)
        for receiver in [each for each in waiting if each in ready]:
            try:
                message = receiver.recv()
            except EOFError:
                message = "a process of stub clients was killed; run them again"
            if isinstance(message, str):
                sys.exit(message)
            results.append(message)
            waiting.remove(receiver)
    clients = [client for _, tallies in results for client in tallies]
    print(json.dumps({"peak_rss_mb": max(peak for peak, _ in results), "clients": clients}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), [Path(each) for each in sys.argv[3:]])
