"""What one client can do to a whole federation: it floods the aggregator, stays connected after its
revocation, or sends absurd updates.
"""

import signal
import time
from pathlib import Path

import numpy as np
import pytest

from edgefl.algorithms import make_algorithm
from edgefl.config import FederationConfig
from edgefl.rng import derive_rng
from edgefl.security.authority import revoke_enrolment
from edgefl.types import Update
from edgefl.wire.messages import Status, Task
from edgefl.wire.strict_json import decode_json, encode_json
from edgefl.wire.tensors import encode_models
from edgefl.wire.topics import parse_topic
from mqtt_broker.aggregator.results import load_state

MB = 1024 * 1024
DEADLINE_S = 60.0

SLOW = """
import time
from dataclasses import replace
from pathlib import Path

from edgefl.algorithms.papers.fedavg import ENTRIES as FEDAVG

def slow(learner, options):
    made = FEDAVG["fedavg"].factory(learner, options)
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
    [line] = [
        line
        for line in Path(f"/proc/{process.popen.pid}/status").read_text().splitlines()
        if line.startswith("VmHWM")
    ]
    return int(line.split()[1]) / 1024


def flood(flooder, messages, qos):
    """Publish chunks of 250 KB that belong to no upload."""
    topic = flooder.topics.format_upload(flooder.client_id, "ab" * 32, 0)
    for _ in range(messages):
        flooder.link.publish(topic, bytes(250_000), qos=qos)
        assert flooder.link.wait_in_flight(8, DEADLINE_S)


@pytest.fixture
def slow_algorithm(tmp_path, monkeypatch):
    """An algorithm of the operator's own whose `aggregate` is busy until the file `go-on` is there."""
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "slow_rounds.py").write_text(SLOW.format(tmp_path))
    monkeypatch.syspath_prepend(tmp_path / "own")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "own"))
    return "slow_rounds:slow"


@pytest.mark.parametrize(
    ("qos", "least_mb", "most_mb"),
    [
        pytest.param(1, 2, 20, id="with acknowledgements the broker keeps all but 20 messages"),
        pytest.param(0, 60, 100, id="without them 64 MiB wait and the rest is dropped"),
    ],
)
def test_a_flood_while_the_aggregator_computes_does_not_fill_its_memory(
    qos, least_mb, most_mb, federate, own_broker, puppet, toys, slow_algorithm, tmp_path
):
    federation = federate(
        f"mqtt://127.0.0.1:{own_broker.port}", algorithm=slow_algorithm, rounds=1, quorum=0.5
    )
    honest = puppet(federation, "pi-1")
    flooder = puppet(federation, "pi-2")
    aggregator = federation.aggregator()
    task = honest.next("task")
    _ = flooder.next("task")
    assert honest.send(task, encode_models({"global": toys.weights()})).outcome == "ok"
    flooder.say(online=False)  # the round does not wait for it
    deadline = time.monotonic() + DEADLINE_S
    while not (tmp_path / "busy").exists():
        assert time.monotonic() < deadline and aggregator.popen.poll() is None, aggregator.said
        time.sleep(0.01)
    before = peak_mb(aggregator)
    flood(flooder, 500, qos)  # 125 MB; the broker holds at most 1,000 messages for the aggregator
    while peak_mb(aggregator) - before < least_mb:
        assert time.monotonic() < deadline, f"it took {peak_mb(aggregator) - before:.0f} MiB of the flood"
        time.sleep(0.01)
    flood(flooder, 400, qos)
    grown = peak_mb(aggregator) - before
    (tmp_path / "go-on").touch()
    assert honest.send(honest.next("task"), encode_models({})).outcome == "ok"
    assert aggregator.end() == 0, aggregator.said
    assert grown < most_mb, f"one client made the aggregator take {grown:.0f} MiB"
    assert ("messages were dropped" in aggregator.said) == (qos == 0)


@pytest.fixture
def stolen(secured_broker, tmp_path):
    """A device with keys that never answers, stays connected, and says its status whenever the test wants."""
    link = secured_broker.link(secured_broker.enrol("stolen", tmp_path / "stolen.enrol"))

    def speak(federation):
        status = Status("stolen", "5701e9", True, time.time(), 10, "0", time.time())
        link.subscribe(federation.topics.format_device("stolen", "task"))
        link.publish(federation.topics.format_device("stolen", "status"), encode_json(status), retain=True)
        assert link.wait_in_flight(1, DEADLINE_S)
        return link

    yield speak
    link.close(1.0)


def enrolled_device(secured_broker, federation, toys, client_id):
    path = federation.directory / f"{client_id}.enrol"
    secured_broker.enrol(client_id, path)
    return federation.device(client_id, toys.shard(1), "--enrol", path)


def test_a_device_that_is_revoked_in_a_round_and_stays_connected_counts_for_nothing(
    secured_broker, federate, toys, stolen
):
    federation = federate(secured_broker.url, rounds=2, min_clients=2, quorum=1.0, deadline_s=5.0)
    aggregator = federation.aggregator("--security", secured_broker.directory, "--broker", secured_broker.url)
    aggregator.wait_for("waiting for devices")
    link = stolen(federation)
    device = enrolled_device(secured_broker, federation, toys, "honest")
    assert decode_json(Task, link.get(DEADLINE_S).payload).round == 1
    revoke_enrolment(secured_broker.directory, "stolen")
    # Mosquitto reads the revocation list, and keeps the connection
    secured_broker.popen.send_signal(signal.SIGHUP)
    aggregator.wait_for("revoked")
    stolen(federation)
    assert aggregator.end() == 0, aggregator.said
    assert device.end() == 0, device.said
    assert [row["id"] for row in federation.result()["clients"]] == ["honest"]
    assert link.is_connected and link.get(0.0) is None  # no further task
    assert aggregator.said.count("stolen was revoked") == 1 and "restart the broker" in aggregator.said


def test_a_round_whose_only_client_is_revoked_goes_on_with_the_next_that_comes(
    secured_broker, federate, toys, stolen
):
    federation = federate(secured_broker.url, rounds=1, min_clients=1, quorum=1.0, deadline_s=5.0)
    aggregator = federation.aggregator("--security", secured_broker.directory, "--broker", secured_broker.url)
    aggregator.wait_for("waiting for devices")
    link = stolen(federation)
    assert decode_json(Task, link.get(DEADLINE_S).payload).round == 1
    revoke_enrolment(secured_broker.directory, "stolen")
    device = enrolled_device(secured_broker, federation, toys, "honest")
    assert aggregator.end() == 0, aggregator.said
    assert device.end() == 0, device.said


def test_a_masked_round_that_lost_a_client_to_a_revocation_is_played_by_others(
    secured_broker, federate, toys, stolen
):
    """Its cohort of three is in the journal; one of them is revoked while the aggregator is down, and another
    device is enrolled.
    """
    federation = federate(
        secured_broker.url,
        algorithm="fedavg",
        rounds=1,
        min_clients=3,
        quorum=1.0,
        deadline_s=10.0,
        tables="[privacy]\nsecure_aggregation = true\n",
    )
    options = ("--security", secured_broker.directory, "--broker", secured_broker.url)
    aggregator = federation.aggregator(*options)
    link = stolen(federation)
    devices = [enrolled_device(secured_broker, federation, toys, f"pi-{number}") for number in (1, 2)]
    assert decode_json(Task, link.get(DEADLINE_S).payload).round == 1
    aggregator.popen.kill()
    aggregator.popen.wait()
    revoke_enrolment(secured_broker.directory, "stolen")
    aggregator = federation.aggregator(*options)
    aggregator.wait_for("is drawn again")
    devices.append(enrolled_device(secured_broker, federation, toys, "pi-3"))
    assert aggregator.end() == 0, aggregator.said
    assert [device.end() for device in devices] == [0, 0, 0], [device.said for device in devices]
    assert [row["id"] for row in federation.result()["clients"]] == ["pi-1", "pi-2", "pi-3"]
    assert federation.result()["losses"] != [None]


def test_a_random_sample_whose_only_client_is_revoked_is_not_filled_up(
    secured_broker, federate, toys, stolen
):
    """Epsilon counts with the odds of being drawn: who was not drawn must not take part."""
    pytest.importorskip("dp_accounting", reason="the extra dp is not installed")
    table = "[privacy]\nclip = 0.5\nnoise_multiplier = 2.0\npopulation = 1\n"
    federation = federate(
        secured_broker.url, rounds=1, min_clients=1, quorum=1.0, deadline_s=5.0, tables=table
    )
    aggregator = federation.aggregator("--security", secured_broker.directory, "--broker", secured_broker.url)
    aggregator.wait_for("waiting for devices")
    link = stolen(federation)
    assert decode_json(Task, link.get(DEADLINE_S).payload).round == 1
    device = enrolled_device(secured_broker, federation, toys, "honest")
    aggregator.wait_for("honest is online")
    revoke_enrolment(secured_broker.directory, "stolen")
    assert aggregator.end() == 0, aggregator.said
    assert device.end() == 0, device.said
    assert federation.result()["losses"] == [None], "a client that was not drawn took part"
    assert "round 1 federate" not in device.said
    assert [row["id"] for row in federation.result()["clients"]] == ["honest"]


ABSURD = np.float32(3.4e38)


def deltas(toys, value):
    """Return an update that moves every weight by so much."""
    return {
        "global": {name: np.full(array.shape, value, np.float32) for name, array in toys.weights().items()}
    }


def first_task(member, seconds):
    """Return the next task of a client that may get none, or None."""
    deadline = time.monotonic() + seconds
    while not member.inbox["task"] and time.monotonic() < deadline:
        event = member.link.get(max(0.0, deadline - time.monotonic()))
        if event is not None:
            member.inbox[parse_topic(event.topic).kind].append(event.payload)
    return member.next("task") if member.inbox["task"] else None


@pytest.mark.parametrize("samples", [10**9, 100])
def test_one_absurd_update_among_nine_ruins_nothing(federate, own_broker, puppet, toys, samples):
    """At the end the model is one that a device can train on: the device ends well, and its own training did
    improve the model.
    """
    federation = federate(
        f"mqtt://127.0.0.1:{own_broker.port}", algorithm="fedavg", rounds=3, min_clients=10, quorum=0.5
    )
    hostile, *honest = (puppet(federation, name) for name in ("a-hostile", *(f"pi-{i}" for i in range(8))))
    aggregator = federation.aggregator()
    device = federation.device("real", toys.shard(1))
    for round in range(1, 4):
        if task := hostile.next("task") if round == 1 else first_task(hostile, 0.5):
            hostile.send(task, encode_models(deltas(toys, ABSURD)), num_samples=samples)
        for each in honest:
            assert each.send(each.next("task"), encode_models(deltas(toys, 0.01))).outcome == "ok"
    for each in (hostile, *honest):
        if task := first_task(each, 20.0):
            each.send(task, encode_models({}))
    assert aggregator.end() == 0, aggregator.said
    assert device.end() == 0, device.said
    model = load_state(federation.out).models["global"]
    assert all(np.isfinite(array).all() and np.abs(array).max() < 100 for array in model.values())
    if samples == 100:
        assert "round 1: skipped" in aggregator.said and "Left out from now on: a-hostile" in aggregator.said
        assert aggregator.said.count("skipped") == 1
    else:
        assert "num_samples is 1000000000, expected 1 to 100000" in aggregator.said


def test_an_aggregator_that_is_killed_after_an_absurd_update_goes_on_from_the_good_state_to_the_same_bits(
    federate, own_broker, puppet, toys
):
    from edgefl.server.plausibility import list_implausible_clients, with_plausibility_check

    federation = federate(
        f"mqtt://127.0.0.1:{own_broker.port}", algorithm="fedavg", rounds=2, min_clients=3, quorum=0.5
    )
    members = {name: puppet(federation, name) for name in ("a-hostile", "pi-1", "pi-2")}
    sent = {"a-hostile": ABSURD, "pi-1": 0.25, "pi-2": 0.5}
    aggregator = federation.aggregator()
    for name, member in members.items():
        assert member.send(member.next("task"), encode_models(deltas(toys, sent[name]))).outcome == "ok"
    aggregator.wait_for("round 1: skipped")
    aggregator.popen.kill()
    aggregator.popen.wait()
    for member in members.values():  # a task of the process that is gone has nobody who waits for its answer
        while first_task(member, 0.3):
            pass
    aggregator = federation.aggregator()
    for name in ("pi-1", "pi-2"):
        task = members[name].next("task")
        assert task.round == 2
        assert members[name].send(task, encode_models(deltas(toys, sent[name]))).outcome == "ok"
    for member in members.values():
        task = member.next("task")
        while task.phase != "personalize":
            task = member.next("task")
        member.send(task, encode_models({}))
    assert aggregator.end() == 0, aggregator.said
    algorithm = with_plausibility_check(
        make_algorithm("fedavg", None, federation.plan.spec.options), FederationConfig()
    )
    state = algorithm.init(toys.weights(), derive_rng(1, 0, "init"))
    state = algorithm.aggregate(
        state, [Update(name, 1, 10, deltas(toys, sent[name])) for name in sorted(sent)]
    )
    assert list_implausible_clients(state) == {"a-hostile"}
    state = algorithm.aggregate(
        state, [Update(name, 2, 10, deltas(toys, sent[name])) for name in ("pi-1", "pi-2")]
    )
    found = load_state(federation.out)
    assert list_implausible_clients(found) == {"a-hostile"}
    assert {key: array.tobytes() for key, array in found.models["global"].items()} == {
        key: array.tobytes() for key, array in state.models["global"].items()
    }
