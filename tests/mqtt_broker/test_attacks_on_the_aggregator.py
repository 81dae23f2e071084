"""What one client can do to a whole federation: it floods the aggregator, stays connected after its revocation, or sends absurd updates."""

import signal
import time
from pathlib import Path

import pytest

from edgefl.security.authority import revoke
from edgefl.wire.messages import Status, Task
from edgefl.wire.strict_json import decode_json, encode_json
from edgefl.wire.tensors import encode_models

MB = 1024 * 1024
DEADLINE_S = 60.0

SLOW = """
import time
from dataclasses import replace
from pathlib import Path

from edgefl.algorithms.fedavg import ENTRIES as FEDAVG

def slow(learner, **options):
    made = FEDAVG["fedavg"].factory(learner, **options)
    def aggregate(state, updates):
        Path("{0}/busy").touch()
        while not Path("{0}/go-on").exists():
            time.sleep(0.01)
        return made.aggregate(state, updates)
    return replace(made, aggregate=aggregate)

ENTRIES = {{"slow": replace(FEDAVG["fedavg"], factory=slow)}}
"""


def peak_mb(process):
    """Return the largest resident memory of a process so far, in MiB."""
    [line] = [line for line in Path(f"/proc/{process.popen.pid}/status").read_text().splitlines() if line.startswith("VmHWM")]
    return int(line.split()[1]) / 1024


@pytest.fixture
def slow_algorithm(tmp_path, monkeypatch):
    """An algorithm of the operator's own whose `aggregate` is busy until the file `go-on` is there."""
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "slow_rounds.py").write_text(SLOW.format(tmp_path))
    monkeypatch.syspath_prepend(tmp_path / "own")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "own"))
    return "slow_rounds:slow"


def test_a_flood_while_the_aggregator_computes_does_not_fill_its_memory(federate, own_broker, puppet, toys, slow_algorithm, tmp_path):
    federation = federate(f"mqtt://127.0.0.1:{own_broker.port}", algorithm=slow_algorithm, workers=0, rounds=1, quorum=0.5)
    honest, flooder = puppet(federation, "pi-1"), puppet(federation, "pi-2")
    aggregator = federation.aggregator()
    task, _ = honest.next("task"), flooder.next("task")
    assert honest.send(task, encode_models({"global": toys.weights()})).outcome == "ok"
    flooder.say(online=False)  # the round does not wait for it
    deadline = time.monotonic() + DEADLINE_S
    while not (tmp_path / "busy").exists():
        assert time.monotonic() < deadline and aggregator.popen.poll() is None, aggregator.said
        time.sleep(0.01)
    before = peak_mb(aggregator)
    for _ in range(1600):  # 400 MB
        flooder.publish("ab" * 32, 0, bytes(250_000))
        assert flooder.link.wait_in_flight(8, DEADLINE_S)
    grown = peak_mb(aggregator) - before
    (tmp_path / "go-on").touch()
    assert honest.send(honest.next("task"), encode_models({})).outcome == "ok"
    assert aggregator.end() == 0, aggregator.said
    assert grown < 100, f"one client made the aggregator take {grown:.0f} MiB"
    assert "messages were dropped" in aggregator.said


@pytest.fixture
def stolen(secured_broker, tmp_path):
    """A device with keys that never answers, stays connected, and says its status whenever the test wants."""
    link = secured_broker.link(secured_broker.enrol("stolen", tmp_path / "stolen.enrol"))

    def speak(federation):
        status = Status("stolen", "5701e9", True, time.time(), 10, "0", time.time())
        link.subscribe(federation.topics.device("stolen", "task"))
        link.publish(federation.topics.device("stolen", "status"), encode_json(status), retain=True)
        assert link.wait_in_flight(1, DEADLINE_S)
        return link

    yield speak
    link.close(1.0)


def enrolled_device(secured_broker, federation, toys, client_id):
    path = federation.directory / f"{client_id}.enrol"
    secured_broker.enrol(client_id, path)
    return federation.device(client_id, toys.shard(1), "--enrol", path)


def test_a_device_that_is_revoked_in_a_round_and_stays_connected_counts_for_nothing(secured_broker, federate, toys, stolen):
    federation = federate(secured_broker.url, rounds=2, min_clients=2, quorum=1.0, deadline_s=5.0)
    aggregator = federation.aggregator("--security", secured_broker.directory, "--broker", secured_broker.url)
    aggregator.wait_for("waiting for devices")
    link = stolen(federation)
    device = enrolled_device(secured_broker, federation, toys, "honest")
    assert decode_json(Task, link.get(DEADLINE_S).payload).round == 1
    revoke(secured_broker.directory, "stolen")
    secured_broker.popen.send_signal(signal.SIGHUP)  # mosquitto reads the revocation list, and keeps the connection
    aggregator.wait_for("revoked")
    stolen(federation)
    assert aggregator.end() == 0, aggregator.said
    assert device.end() == 0, device.said
    assert [row["id"] for row in federation.result()["clients"]] == ["honest"]
    assert link.is_connected and link.get(0.0) is None  # no further task
    assert aggregator.said.count("stolen was revoked") == 1 and "restart the broker" in aggregator.said


def test_a_round_whose_only_client_is_revoked_goes_on_with_the_next_that_comes(secured_broker, federate, toys, stolen):
    federation = federate(secured_broker.url, rounds=1, min_clients=1, quorum=1.0, deadline_s=5.0)
    aggregator = federation.aggregator("--security", secured_broker.directory, "--broker", secured_broker.url)
    aggregator.wait_for("waiting for devices")
    link = stolen(federation)
    assert decode_json(Task, link.get(DEADLINE_S).payload).round == 1
    revoke(secured_broker.directory, "stolen")
    device = enrolled_device(secured_broker, federation, toys, "honest")
    assert aggregator.end() == 0, aggregator.said
    assert device.end() == 0, device.said
