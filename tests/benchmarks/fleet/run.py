"""One federation of stub clients: `edgefl aggregator start --security`, mosquitto with certificates and
access list, real updates.
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

from edgefl.algorithms import PHASE_PERSONALIZE, complete_algorithm_options
from edgefl.errors import EdgeflError
from edgefl.plan.spec import INITIAL_FILE, Plan, save_plan
from edgefl.security.enrolment import load_enrolment, make_tls_context
from edgefl.storage.aggregator_directory import AggregatorFiles
from edgefl.system.host import read_peak_rss_mb
from edgefl.transport.link import Link, Message
from edgefl.wire.messages import Summary
from edgefl.wire.strict_json import decode_json
from edgefl.wire.tensors import encode_weights
from edgefl.wire.topics import FederationTopics
from tests.benchmarks.fleet.broker import WATCH, make_keys, secured_broker
from tests.benchmarks.process import clients_a_process, cpu_s, running
from tests.support.numpy_learner.softmax import softmax_spec

INPUTS = 60
CLASSES = 10
DROPPED = "$SYS/broker/publish/messages/dropped"
SETTLE_S = 2.5
"""For the broker's last word on what it dropped: it says so each second."""


@dataclass(frozen=True)
class Load:
    """What is measured: so many clients, a model of so many bytes, so many rounds; `timeout_s` for the whole
    of it.
    """

    clients: int
    model_bytes: int
    rounds: int
    timeout_s: float = 600.0


def client_ids(count: int) -> list[str]:
    """Return the clients' names."""
    return [f"stub-{i:03d}" for i in range(count)]


def write_plan(directory: Path, model_bytes: int) -> int:
    """Write a plan of the numpy learner and initial weights; returns the bytes of its weights, at most
    `model_bytes`.
    """
    spec = softmax_spec(
        "fedavg",
        inputs=INPUTS,
        features=(model_bytes // 4 - CLASSES) // (INPUTS + CLASSES),
        classes=CLASSES,
        options=complete_algorithm_options("fedavg", {}),
    )
    save_plan(Plan(spec, b"", b""), directory)
    rng = np.random.default_rng(1)
    weights = {each.name: rng.normal(0, 0.1, each.shape).astype(np.float32) for each in spec.weights}
    (directory / INITIAL_FILE).write_bytes(encode_weights(weights))
    return sum(each.nbytes for each in weights.values())


def run_fleet(load: Load, directory: Path) -> dict[str, Any]:
    """Play a federation in an empty directory and return what it took; EdgeflError when it does not come to
    its end.
    """
    ids = client_ids(load.clients)
    broker = make_keys(directory, ids)
    size = write_plan(directory / "plan", load.model_bytes)
    name = "fleet"
    out = directory / "out"
    (directory / "federation.toml").write_text(
        f'[federation]\nname = "{name}"\nrounds = {load.rounds}\nmin_clients = {load.clients}\nquorum = 1.0\n'
        f'deadline_s = {load.timeout_s}\n[algorithm]\nname = "fedavg"\n'
    )
    edgefl = [sys.executable, "-m", "edgefl", "aggregator", "start", "--security", str(broker)]
    lead = [
        *edgefl,
        "--config",
        str(directory / "federation.toml"),
        "--plan",
        str(directory / "plan"),
        "--out",
        str(out),
    ]
    files = [str(directory / f"{client_id}.enrol") for client_id in ids]
    together = clients_a_process(load.clients)
    clients = [sys.executable, "-m", "tests.benchmarks.fleet.stub_client", name, str(together), *files]
    with ExitStack() as stack:
        stack.enter_context(secured_broker(directory, broker))
        watch = Watch(directory, name)
        stack.callback(watch.link.close)
        began = time.time()
        aggregator = stack.enter_context(running(lead, directory / "aggregator.log"))
        stubs = stack.enter_context(running(clients, directory / "stubs.log", stdout=subprocess.PIPE))
        summaries, peak_mb, used_s = watch.until_personal(aggregator, stubs, load.timeout_s)
        told = json.loads(_output(stubs, directory / "stubs.log"))
        if aggregator.wait(60):
            last = last_line(directory / "aggregator.log")
            raise EdgeflError(f"the aggregator ended with {aggregator.returncode}: {last}")
        dropped = watch.dropped_by_broker()
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
        "client_process_mb": told["peak_rss_mb"],
        "clients_a_process": together,
        "bytes_a_round": _bytes_a_round(told["clients"], load.rounds),
        **_account(out, told["clients"], load, dropped),
    }


class Watch:
    """Reads summaries and the broker's own count of dropped messages."""

    def __init__(self, directory: Path, federation: str) -> None:
        self._directory = directory
        own = load_enrolment(directory / f"{WATCH}.enrol")
        self.link = Link(own.broker, "edgefl-watch", context=make_tls_context(own))
        self.link.subscribe(FederationTopics(federation).root + "/round/+/summary", DROPPED)
        self._dropped = 0

    def summary(self, timeout_s: float) -> Summary | None:
        """Return the summary of a round, or None if another message or no message comes in time."""
        event = self.link.get(timeout_s)
        if not isinstance(event, Message):
            return None
        if event.topic == DROPPED:
            self._dropped = int(event.payload)
            return None
        return decode_json(Summary, event.payload)

    def until_personal(
        self, aggregator: "subprocess.Popen[str]", stubs: "subprocess.Popen[str]", timeout_s: float
    ) -> tuple[list[Summary], float, float]:
        """Return the rounds' summaries, that of the personalization last, and what the aggregator needed: its
        peak memory in MB, and seconds of processor time a round after the first.
        """
        until = time.monotonic() + timeout_s
        found = list[Summary]()
        used = list[float]()
        peak_mb = 0.0
        while time.monotonic() < until and aggregator.poll() is None and not stubs.poll():
            if summary := self.summary(0.5):
                found.append(summary)
                used.append(cpu_s(aggregator.pid))
            # NaN of one that has ended is not larger
            peak_mb = max(peak_mb, read_peak_rss_mb(aggregator.pid))
            if summary and summary.phase == PHASE_PERSONALIZE:
                return found, peak_mb, (used[-2] - used[0]) / max(1, len(used) - 2)
        for process, name in ((aggregator, "aggregator"), (stubs, "stubs")):
            if process.poll():
                raise EdgeflError(
                    f"{name} ended with {process.returncode} after {len(found)} rounds: "
                    f"{last_line(self._directory / f'{name}.log')}"
                )
        raise EdgeflError(
            f"the federation was not done after {timeout_s:g} s: {len(found)} rounds; run it on a quieter "
            "machine"
        )

    def dropped_by_broker(self) -> int:
        """Return how many messages the broker dropped since it started."""
        until = time.monotonic() + SETTLE_S
        while (left := until - time.monotonic()) > 0:
            self.summary(left)
        return self._dropped


def _output(stubs: "subprocess.Popen[str]", log: Path) -> str:
    out, _ = stubs.communicate(timeout=120)
    if stubs.returncode:
        raise EdgeflError(f"the stub clients ended with {stubs.returncode}: {last_line(log)}")
    return str(out).splitlines()[-1]


def last_line(log: Path) -> str:
    """Return the last line of a log, or nothing."""
    return " ".join(log.read_text().strip().splitlines()[-1:])


def _bytes_a_round(clients: list[dict[str, Any]], rounds: int) -> dict[str, float]:
    """Payload bytes of a client by round, the plan and the personalization in it: the medians, and what the
    worst one sent.
    """
    up, down = ([client[f"bytes_{way}"] / rounds for client in clients] for way in ("up", "down"))
    return {"up": median(up), "down": median(down), "most_up": max(up), "most_down": max(down)}


def _account(out: Path, clients: list[dict[str, Any]], load: Load, dropped: int) -> dict[str, Any]:
    """Return what became of the updates: each client's was to be accepted once a round."""
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
