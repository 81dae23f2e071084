"""What a single client can do to a federation: it floods the aggregator, stays connected after its
revocation, or sends absurd updates.
"""

import signal
import time
from pathlib import Path

import numpy as np
import pytest

from edgefl.base.config import FederationConfig
from edgefl.base.rng import derive_rng
from edgefl.base.types import Update
from edgefl.learning.algorithms import make_algorithm
from edgefl.protocol.security.authority import revoke_enrolment
from edgefl.protocol.wire.messages import Status, Task
from edgefl.protocol.wire.strict_json import decode_json, encode_json
from edgefl.protocol.wire.tensors import encode_models
from edgefl.protocol.wire.topics import parse_topic
from mqtt_broker.aggregator.results import load_state

MB = 1024 * 1024
DEADLINE_S = 60.0

SLOW_ALGORITHM = """
import time
from dataclasses import replace
from pathlib import Path

from edgefl.learning.algorithms.papers.fedavg import ENTRIES as FEDAVG

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


def read_peak_mb(process):
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
    """A custom algorithm whose `aggregate` is busy until the file `go-on` exists."""
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "slow_rounds.py").write_text(SLOW_ALGORITHM.format(tmp_path))
    monkeypatch.syspath_prepend(tmp_path / "own")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "own"))
    return "slow_rounds:slow"


@pytest.mark.parametrize(
    ("qos", "least_mb", "most_mb"),
    [
        # Three are acknowledged, and mosquitto before 2.0.13 may send 20 more for each: 84 of 250 KB.
        pytest.param(1, 2, 30, id="with acknowledgements the broker keeps all but 84 messages"),
        pytest.param(0, 60, 100, id="without them 64 MiB wait and the rest is dropped"),
    ],
)
def test_message_flood_does_not_fill_the_aggregators_memory(
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
    flooder.publish_status(online=False)  # the round does not wait for the flooder
    deadline = time.monotonic() + DEADLINE_S
    while not (tmp_path / "busy").exists():
        assert time.monotonic() < deadline and aggregator.popen.poll() is None, aggregator.err
        time.sleep(0.01)
    before = read_peak_mb(aggregator)
    flood(flooder, 500, qos)  # 125 MB; the broker holds at most 1,000 messages for the aggregator
    while read_peak_mb(aggregator) - before < least_mb:
        assert time.monotonic() < deadline, (
            f"it took {read_peak_mb(aggregator) - before:.0f} MiB of the flood"
        )
        time.sleep(0.01)
    flood(flooder, 400, qos)
    increase_mb = read_peak_mb(aggregator) - before
    (tmp_path / "go-on").touch()
    assert honest.send(honest.next("task"), encode_models({})).outcome == "ok"
    assert aggregator.end() == 0, aggregator.err
    assert increase_mb < most_mb, f"one client made the aggregator take {increase_mb:.0f} MiB"
    assert ("messages were dropped" in aggregator.err) == (qos == 0)


@pytest.fixture
def connect_stolen_device(secured_broker, tmp_path):
    """Returns a function that publishes the status of an enrolled device, which stays connected and never
    answers.
    """
    link = secured_broker.link(secured_broker.enrol("stolen", tmp_path / "stolen.enrol"))

    def publish_status(federation):
        status = Status(
            client_id="stolen",
            boot_id="5701e9",
            online=True,
            born=time.time(),
            num_samples=10,
            version="0",
            ts=time.time(),
        )
        link.subscribe(federation.topics.format_device("stolen", "task"))
        link.publish(federation.topics.format_device("stolen", "status"), encode_json(status), retain=True)
        assert link.wait_in_flight(1, DEADLINE_S)
        return link

    yield publish_status
    link.close(1.0)


def start_enrolled_device(secured_broker, federation, toys, client_id):
    path = federation.directory / f"{client_id}.enrol"
    secured_broker.enrol(client_id, path)
    return federation.device(client_id, toys.shard(1), "--enrol", path)


def test_device_revoked_during_a_round_is_excluded_while_connected(
    secured_broker, federate, toys, connect_stolen_device
):
    federation = federate(secured_broker.url, rounds=2, min_clients=2, quorum=1.0, deadline_s=5.0)
    aggregator = federation.aggregator("--security", secured_broker.directory, "--broker", secured_broker.url)
    aggregator.wait_for("waiting for devices")
    link = connect_stolen_device(federation)
    device = start_enrolled_device(secured_broker, federation, toys, "honest")
    assert decode_json(Task, link.get(DEADLINE_S).payload).round == 1
    revoke_enrolment(secured_broker.directory, "stolen")
    # Mosquitto reads the revocation list but does not end the connection
    secured_broker.popen.send_signal(signal.SIGHUP)
    aggregator.wait_for("revoked")
    connect_stolen_device(federation)
    assert aggregator.end() == 0, aggregator.err
    assert device.end() == 0, device.err
    assert [row["id"] for row in federation.result()["clients"]] == ["honest"]
    assert link.is_connected and link.get(0.0) is None  # no further task
    assert aggregator.err.count("stolen was revoked") == 1 and "restart the broker" in aggregator.err


def test_round_with_a_revoked_client_continues_with_the_next_device(
    secured_broker, federate, toys, connect_stolen_device
):
    federation = federate(secured_broker.url, rounds=1, min_clients=1, quorum=1.0, deadline_s=5.0)
    aggregator = federation.aggregator("--security", secured_broker.directory, "--broker", secured_broker.url)
    aggregator.wait_for("waiting for devices")
    link = connect_stolen_device(federation)
    assert decode_json(Task, link.get(DEADLINE_S).payload).round == 1
    revoke_enrolment(secured_broker.directory, "stolen")
    device = start_enrolled_device(secured_broker, federation, toys, "honest")
    assert aggregator.end() == 0, aggregator.err
    assert device.end() == 0, device.err


def test_masked_round_is_drawn_again_after_a_revocation(
    secured_broker, federate, toys, connect_stolen_device
):
    """The journal has the cohort of three. One of them is revoked while the aggregator is down, and
    another device is enrolled.
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
    link = connect_stolen_device(federation)
    devices = [start_enrolled_device(secured_broker, federation, toys, f"pi-{number}") for number in (1, 2)]
    assert decode_json(Task, link.get(DEADLINE_S).payload).round == 1
    aggregator.popen.kill()
    aggregator.popen.wait()
    revoke_enrolment(secured_broker.directory, "stolen")
    aggregator = federation.aggregator(*options)
    aggregator.wait_for("is drawn again")
    devices.append(start_enrolled_device(secured_broker, federation, toys, "pi-3"))
    assert aggregator.end() == 0, aggregator.err
    assert [device.end() for device in devices] == [0, 0, 0], [device.err for device in devices]
    assert [row["id"] for row in federation.result()["clients"]] == ["pi-1", "pi-2", "pi-3"]
    assert federation.result()["losses"] != [None]


def test_random_sample_is_not_refilled_after_a_revocation(
    secured_broker, federate, toys, connect_stolen_device
):
    """Epsilon depends on the probability of being drawn, so a client that was not drawn must not take
    part.
    """
    pytest.importorskip("dp_accounting", reason="the extra dp is not installed")
    table = "[privacy]\nclip = 0.5\nnoise_multiplier = 2.0\npopulation = 1\n"
    federation = federate(
        secured_broker.url, rounds=1, min_clients=1, quorum=1.0, deadline_s=5.0, tables=table
    )
    aggregator = federation.aggregator("--security", secured_broker.directory, "--broker", secured_broker.url)
    aggregator.wait_for("waiting for devices")
    link = connect_stolen_device(federation)
    assert decode_json(Task, link.get(DEADLINE_S).payload).round == 1
    device = start_enrolled_device(secured_broker, federation, toys, "honest")
    aggregator.wait_for("honest is online")
    revoke_enrolment(secured_broker.directory, "stolen")
    assert aggregator.end() == 0, aggregator.err
    assert device.end() == 0, device.err
    assert federation.result()["losses"] == [None], "a client that was not drawn took part"
    assert "round 1 federate" not in device.err
    assert [row["id"] for row in federation.result()["clients"]] == ["honest"]


ABSURD = np.float32(3.4e38)


def make_deltas(toys, value):
    """Return an update that changes every weight by this value."""
    return {
        "global": {name: np.full(array.shape, value, np.float32) for name, array in toys.weights().items()}
    }


def wait_for_task(client, seconds):
    """Return the next task of a client, or None if it gets none in time."""
    deadline = time.monotonic() + seconds
    while not client.inbox["task"] and time.monotonic() < deadline:
        event = client.link.get(max(0.0, deadline - time.monotonic()))
        if event is not None:
            client.inbox[parse_topic(event.topic).kind].append(event.payload)
    return client.next("task") if client.inbox["task"] else None


@pytest.mark.parametrize("samples", [10**9, pytest.param(100, marks=pytest.mark.slow)])
def test_one_absurd_update_does_not_ruin_the_model(federate, own_broker, puppet, toys, samples):
    """A device can train on the model at the end: it ends without an error, and its own training has
    improved the model.
    """
    federation = federate(
        f"mqtt://127.0.0.1:{own_broker.port}", algorithm="fedavg", rounds=3, min_clients=10, quorum=0.5
    )
    hostile, *honest = (puppet(federation, name) for name in ("a-hostile", *(f"pi-{i}" for i in range(8))))
    aggregator = federation.aggregator()
    device = federation.device("real", toys.shard(1))
    for round in range(1, 4):
        if task := hostile.next("task") if round == 1 else wait_for_task(hostile, 0.5):
            hostile.send(task, encode_models(make_deltas(toys, ABSURD)), num_samples=samples)
        for each in honest:
            assert each.send(each.next("task"), encode_models(make_deltas(toys, 0.01))).outcome == "ok"
    for each in (hostile, *honest):
        if task := wait_for_task(each, 20.0):
            each.send(task, encode_models({}))
    assert aggregator.end() == 0, aggregator.err
    assert device.end() == 0, device.err
    model = load_state(federation.out).models["global"]
    assert all(np.isfinite(array).all() and np.abs(array).max() < 100 for array in model.values())
    if samples == 100:
        assert "round 1: skipped" in aggregator.err and "Left out from now on: a-hostile" in aggregator.err
        assert aggregator.err.count("skipped") == 1
    else:
        assert "num_samples is 1000000000, expected 1 to 100000" in aggregator.err


def test_killed_aggregator_resumes_with_the_same_bits_after_absurd_update(federate, own_broker, puppet, toys):
    from edgefl.protocol.server.plausibility import list_left_out_clients, with_plausibility_check

    federation = federate(
        f"mqtt://127.0.0.1:{own_broker.port}", algorithm="fedavg", rounds=2, min_clients=3, quorum=0.5
    )
    clients = {name: puppet(federation, name) for name in ("a-hostile", "pi-1", "pi-2")}
    sent = {"a-hostile": ABSURD, "pi-1": 0.25, "pi-2": 0.5}
    aggregator = federation.aggregator()
    for name, client in clients.items():
        assert client.send(client.next("task"), encode_models(make_deltas(toys, sent[name]))).outcome == "ok"
    aggregator.wait_for("round 1: skipped")
    aggregator.popen.kill()
    aggregator.popen.wait()
    for client in clients.values():  # nobody waits for the answer to a task of the killed process
        while wait_for_task(client, 0.3):
            pass
    aggregator = federation.aggregator()
    for name in ("pi-1", "pi-2"):
        task = clients[name].next("task")
        assert task.round == 2
        assert clients[name].send(task, encode_models(make_deltas(toys, sent[name]))).outcome == "ok"
    for client in clients.values():
        task = client.next("task")
        while task.phase != "personalize":
            task = client.next("task")
        client.send(task, encode_models({}))
    assert aggregator.end() == 0, aggregator.err
    algorithm = with_plausibility_check(
        make_algorithm("fedavg", None, federation.plan.spec.options), FederationConfig()
    )
    state = algorithm.init(toys.weights(), derive_rng(1, 0, "init"))
    state = algorithm.aggregate(
        state,
        [
            Update(client_id=name, round=1, num_samples=10, deltas=make_deltas(toys, sent[name]))
            for name in sorted(sent)
        ],
    )
    assert list_left_out_clients(state) == {"a-hostile"}
    state = algorithm.aggregate(
        state,
        [
            Update(client_id=name, round=2, num_samples=10, deltas=make_deltas(toys, sent[name]))
            for name in ("pi-1", "pi-2")
        ],
    )
    found = load_state(federation.out)
    assert list_left_out_clients(found) == {"a-hostile"}
    assert {key: array.tobytes() for key, array in found.models["global"].items()} == {
        key: array.tobytes() for key, array in state.models["global"].items()
    }
