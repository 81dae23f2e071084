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
from collections.abc import Iterable, Mapping
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import asdict, dataclass
from functools import cache
from hashlib import sha256
from multiprocessing.connection import Connection
from multiprocessing.connection import wait as wait_for_any
from pathlib import Path
from zlib import crc32

import numpy as np

from devices.driver import ClientDriver, Work, draw_pause_factor
from devices.join import join_federation
from edgefl.base.errors import ConfigError, EdgeflError
from edgefl.base.system.host import read_peak_rss_mb
from edgefl.base.types import Array
from edgefl.learning.algorithms import PHASE_PERSONALIZE
from edgefl.program.plan.spec import PlanSpec, decode_plan
from edgefl.protocol.device.events import (
    Answer,
    ClientAction,
    ClientEvent,
    ForgetPendingTask,
    OpenPlan,
    PlanOpened,
    PublishMetrics,
    SavedClient,
    StoreBlob,
    Train,
    Trained,
)
from edgefl.protocol.device.machine import ClientMachine, ClientSettings
from edgefl.protocol.security.enrolment import Enrolment, load_enrolment
from edgefl.protocol.transport.link import KEEPALIVE_S
from edgefl.protocol.wire.messages import Task
from edgefl.protocol.wire.tensors import bound_blob_size, encode_models

MAX_CLIENTS_PER_PROCESS = 180
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
    """One client with its link. It is also the storage of its client machine, and stores nothing on disk."""

    def __init__(self, enrolment: Enrolment, federation: str) -> None:
        self._enrolment = enrolment
        self._federation = federation
        self._fetched: set[str] = set()
        self._content = b""
        self._spec: PlanSpec | None = None
        self._answered = self._accepted = 0

    def run(self) -> Tally:
        """Take part until the federation is done."""
        enrolment = self._enrolment
        with JOIN_SLOTS:
            joined = join_federation(
                StubJoinSettings(
                    broker=enrolment.broker,
                    client_id=enrolment.client_id,
                    federation=self._federation,
                    enrolment=enrolment,
                ),
                NUM_SAMPLES,
                "",
                CONNECT_S,
            )
        link = joined.link
        try:
            settings = ClientSettings(draw_factor=draw_pause_factor)
            driver = ClientDriver(
                machine=ClientMachine(
                    topics=joined.topics, status=joined.status, settings=settings, saved=SavedClient()
                ),
                link=link,
                topics=joined.topics,
                trust=joined.trust,
                storage=self,
                begin_work=lambda work: driver.add_event(self._perform(work)),
            )
            driver.run()
            driver.publish_offline()
            return Tally(
                client_id=enrolment.client_id,
                accepted=self._accepted,
                rejected=self._answered - self._accepted,
                bytes_up=link.bytes_up,
                bytes_down=link.bytes_down,
                dropped=link.dropped,
            )
        finally:
            link.close()

    def _perform(self, work: Work) -> ClientEvent:
        if isinstance(work, OpenPlan):
            self._spec = decode_plan(work.content).spec
            return PlanOpened(work.sha256, bound_blob_size(self._spec.weights))
        assert isinstance(work, Train) and self._spec, "the machine trains after it opened a plan"
        task = work.task
        self._content = encode_models(
            {} if task.phase == PHASE_PERSONALIZE else self._deltas(task, self._spec)
        )
        answer = Answer(
            sha256=sha256(self._content).hexdigest(),
            size=len(self._content),
            num_samples=NUM_SAMPLES,
            metrics={"loss": LOSS, "seconds": 0.0, "peak_rss_mb": read_peak_rss_mb()},
        )
        return Trained(task, answer)

    def find_blobs(self, digests: Iterable[str]) -> Mapping[str, bytes]:
        """Return empty blobs for the digests that were fetched before. The models are not used."""
        return dict.fromkeys(self._fetched.intersection(digests), b"")

    def read_answer(self, sha256: str) -> bytes:
        """Return the bytes of the newest answer."""
        return self._content

    def apply(self, action: ClientAction) -> None:
        """Note which blobs were fetched, and count the answers. Store nothing."""
        match action:
            case StoreBlob(content):
                self._fetched.add(sha256(content).hexdigest())
            case ForgetPendingTask():
                self._answered += 1
            case PublishMetrics():
                self._accepted += 1

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
