"""One federation of stub clients with `edgefl aggregator start --security`.

mosquitto uses certificates and an access list. The updates have the size of real ones.
"""

import json
import sqlite3
import subprocess
import sys
import time
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from edgefl.base.errors import EdgeflError
from edgefl.base.storage.aggregator_directory import AggregatorFiles
from edgefl.base.system.host import read_peak_rss_mb
from edgefl.learning.algorithms import PHASE_PERSONALIZE, complete_algorithm_options
from edgefl.program.plan.spec import INITIAL_FILE, Plan, save_plan
from edgefl.protocol.security.enrolment import load_enrolment, make_tls_context
from edgefl.protocol.transport.link import Link, Message
from edgefl.protocol.wire.messages import Summary
from edgefl.protocol.wire.strict_json import decode_json
from edgefl.protocol.wire.tensors import encode_weights
from edgefl.protocol.wire.topics import FederationTopics
from tests.benchmarks.fleet.broker import WATCHER, make_keys, start_secured_broker
from tests.benchmarks.process import count_clients_per_process, read_cpu_s, start_program
from tests.support.numpy_learner.softmax import softmax_spec

INPUTS = 60
CLASSES = 10
DROPPED = "$SYS/broker/publish/messages/dropped"
SETTLE_S = 2.5
"""The broker publishes its count of dropped messages each second. This is the time to wait for the last
count.
"""


@dataclass(frozen=True)
class Load:
    """The size of a measured federation.

    Attributes:
        clients: number of clients.
        model_bytes: size of the model.
        rounds: number of rounds.
        timeout_s: the most seconds that the federation may take.
    """

    clients: int
    model_bytes: int
    rounds: int
    timeout_s: float = 600.0


def list_client_ids(count: int) -> list[str]:
    """Return the clients' ids."""
    return [f"stub-{i:03d}" for i in range(count)]


def write_plan(directory: Path, model_bytes: int) -> int:
    """Write a plan of the numpy learner and initial weights.

    Returns:
        The size of its weights in bytes, at most `model_bytes`.
    """
    spec = softmax_spec(
        "fedavg",
        inputs=INPUTS,
        features=(model_bytes // 4 - CLASSES) // (INPUTS + CLASSES),
        classes=CLASSES,
        options=complete_algorithm_options("fedavg", {}),
    )
    save_plan(Plan(spec=spec, program=b"", template=b""), directory)
    rng = np.random.default_rng(1)
    weights = {each.name: rng.normal(0, 0.1, each.shape).astype(np.float32) for each in spec.weights}
    (directory / INITIAL_FILE).write_bytes(encode_weights(weights))
    return sum(each.nbytes for each in weights.values())


def run_fleet(load: Load, directory: Path) -> dict[str, Any]:
    """Run a federation in an empty directory, and return its measurements.

    Raises:
        EdgeflError: the federation does not finish.
    """
    ids = list_client_ids(load.clients)
    broker = make_keys(directory, ids)
    size = write_plan(directory / "plan", load.model_bytes)
    name = "fleet"
    out = directory / "out"
    (directory / "federation.toml").write_text(
        f'[federation]\nname = "{name}"\nrounds = {load.rounds}\nmin_clients = {load.clients}\nquorum = 1.0\n'
        f'deadline_s = {load.timeout_s}\n[algorithm]\nname = "fedavg"\n'
    )
    edgefl = [sys.executable, "-m", "edgefl", "aggregator", "start", "--security", str(broker)]
    aggregator_command = [
        *edgefl,
        "--config",
        str(directory / "federation.toml"),
        "--plan",
        str(directory / "plan"),
        "--out",
        str(out),
    ]
    files = [str(directory / f"{client_id}.enrol") for client_id in ids]
    clients_per_process = count_clients_per_process(load.clients)
    client_command = [
        sys.executable,
        "-m",
        "tests.benchmarks.fleet.stub_client",
        name,
        str(clients_per_process),
        *files,
    ]
    with ExitStack() as stack:
        stack.enter_context(start_secured_broker(directory, broker))
        watcher = Watcher(directory, name)
        stack.callback(watcher.link.close)
        began = time.time()
        aggregator = stack.enter_context(start_program(aggregator_command, directory / "aggregator.log"))
        stubs = stack.enter_context(
            start_program(client_command, directory / "stubs.log", stdout=subprocess.PIPE)
        )
        summaries, peak_mb, used_s = watcher.follow_rounds(aggregator, stubs, load.timeout_s)
        result = json.loads(_read_output(stubs, directory / "stubs.log"))
        if aggregator.wait(60):
            last = read_last_line(directory / "aggregator.log")
            raise EdgeflError(f"the aggregator ended with {aggregator.returncode}: {last}")
        dropped = watcher.count_dropped()
    times = [summary.ts for summary in summaries if summary.phase != PHASE_PERSONALIZE]
    seconds = [later - earlier for earlier, later in pairwise(times)]
    return {
        "clients": load.clients,
        "model_bytes": size,
        "rounds": load.rounds,
        "first_round_s": times[0] - began,
        "round_s": median(seconds),
        "round_s_range": [min(seconds), max(seconds)],
        "aggregator_cpu_s": used_s,
        "aggregator_mb": peak_mb,
        "client_process_mb": result["peak_rss_mb"],
        "clients_a_process": clients_per_process,
        "bytes_a_round": _compute_bytes_per_round(result["clients"], load.rounds),
        **_count_updates(out, result["clients"], load, dropped),
    }


class Watcher:
    """Reads summaries and the broker's count of dropped messages."""

    def __init__(self, directory: Path, federation: str) -> None:
        self._directory = directory
        enrolment = load_enrolment(directory / f"{WATCHER}.enrol")
        self.link = Link(enrolment.broker, "edgefl-watch", context=make_tls_context(enrolment))
        self.link.subscribe(FederationTopics(federation).root + "/round/+/summary", DROPPED)
        self._dropped = 0

    def read_summary(self, timeout_s: float) -> Summary | None:
        """Return the summary of a round, or None if another message or no message comes in time."""
        event = self.link.get(timeout_s)
        if not isinstance(event, Message):
            return None
        if event.topic == DROPPED:
            self._dropped = int(event.payload)
            return None
        return decode_json(Summary, event.payload)

    def follow_rounds(
        self, aggregator: "subprocess.Popen[str]", stubs: "subprocess.Popen[str]", timeout_s: float
    ) -> tuple[list[Summary], float, float]:
        """Follow the federation until its personalization.

        Returns:
            The rounds' summaries with the personalization last, the aggregator's peak memory in MB, and its
            processor time in seconds per round after the first round.
        """
        deadline = time.monotonic() + timeout_s
        summaries = list[Summary]()
        cpu_s_by_round = list[float]()
        peak_mb = 0.0
        while time.monotonic() < deadline and aggregator.poll() is None and not stubs.poll():
            if summary := self.read_summary(0.5):
                summaries.append(summary)
                cpu_s_by_round.append(read_cpu_s(aggregator.pid))
            # The memory of an ended process is NaN, which is not larger
            peak_mb = max(peak_mb, read_peak_rss_mb(aggregator.pid))
            if summary and summary.phase == PHASE_PERSONALIZE:
                return (
                    summaries,
                    peak_mb,
                    (cpu_s_by_round[-2] - cpu_s_by_round[0]) / max(1, len(cpu_s_by_round) - 2),
                )
        for process, name in ((aggregator, "aggregator"), (stubs, "stubs")):
            if process.poll():
                raise EdgeflError(
                    f"{name} ended with {process.returncode} after {len(summaries)} rounds: "
                    f"{read_last_line(self._directory / f'{name}.log')}"
                )
        raise EdgeflError(
            f"the federation was not done after {timeout_s:g} s: {len(summaries)} rounds; run it on a "
            "quieter machine"
        )

    def count_dropped(self) -> int:
        """Return the number of messages that the broker has dropped since it started."""
        deadline = time.monotonic() + SETTLE_S
        while (remaining_s := deadline - time.monotonic()) > 0:
            self.read_summary(remaining_s)
        return self._dropped


def _read_output(stubs: "subprocess.Popen[str]", log: Path) -> str:
    out, _ = stubs.communicate(timeout=120)
    if stubs.returncode:
        raise EdgeflError(f"the stub clients ended with {stubs.returncode}: {read_last_line(log)}")
    return str(out).splitlines()[-1]


def read_last_line(log: Path) -> str:
    """Return the last line of a log, or nothing."""
    return " ".join(log.read_text().strip().splitlines()[-1:])


def _compute_bytes_per_round(clients: list[dict[str, Any]], rounds: int) -> dict[str, float]:
    """Return a client's payload bytes per round, with plan and personalization: medians and maxima."""
    up, down = ([client[f"bytes_{way}"] / rounds for client in clients] for way in ("up", "down"))
    return {"up": median(up), "down": median(down), "most_up": max(up), "most_down": max(down)}


def _count_updates(out: Path, clients: list[dict[str, Any]], load: Load, dropped: int) -> dict[str, Any]:
    """Return counts of expected, accepted and lost updates. One update per client and round is expected."""
    with sqlite3.connect(AggregatorFiles(out).journal) as database:
        rows = database.execute(
            "select number, client_id, count(*) from accepted where phase != ? group by number, client_id",
            (PHASE_PERSONALIZE,),
        )
        accepted = sum(count == 1 for *_, count in rows)
        left_out = sum(len(json.loads(row[0])) for row in database.execute("select dropped from round"))
    return {
        "updates_expected": load.clients * load.rounds,
        "updates_accepted_once": accepted,
        "clients_left_out": left_out,
        "dropped_by_broker": dropped,
        "dropped_by_clients": sum(client["dropped"] for client in clients),
        "rejected": sum(client["rejected"] for client in clients),
    }
