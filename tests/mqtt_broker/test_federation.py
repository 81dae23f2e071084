"""A complete federation of real processes over real brokers gives the bits of the simulator."""

import json
import sqlite3
import time
from contextlib import closing

import numpy as np
import pytest
from click.testing import CliRunner

from edgefl.base.config import FederationConfig, load_config
from edgefl.cli.commands.init import init
from edgefl.learning.checkpoint import decode_server_state, decode_stored_mixture
from edgefl.simulation.runs.pipeline import open_partitioned_dataset
from edgefl.simulation.simulate import simulate
from mqtt_broker.aggregator.journal import Journal
from tests.support.numpy_learner.softmax import SoftmaxLearner


def test_mqtt_and_simulator_give_the_same_bits(federate, any_url, toys):
    """Two of three clients train in each round. Server state and every mixture are compared byte for byte."""
    federation = federate(any_url, rounds=4, min_clients=3, clients_per_round=2, seed=5)
    shards = {f"pi-{i}": toys.shard(i, 20 + 10 * i) for i in range(3)}
    aggregator = federation.aggregator("--json")
    devices = {client_id: federation.device(client_id, shard) for client_id, shard in shards.items()}
    assert aggregator.end() == 0, aggregator.err
    assert [device.end() for device in devices.values()] == [0, 0, 0]

    config = FederationConfig(rounds=4, min_clients=3, clients_per_round=2, seed=5)
    end = simulate(
        federation.plan,
        toys.weights(),
        shards,
        config,
        open_learner=lambda plan: SoftmaxLearner(federation.plan.spec),
    )
    state = decode_server_state((federation.out / "server_state.safetensors").read_bytes())
    assert (state.round, state.phase) == (end.state.round, end.state.phase) == (5, "done")
    for name, array in end.state.models["global"].items():
        assert state.models["global"][name].tobytes() == array.tobytes()
    assert np.abs(end.state.models["global"]["head/kernel"]).max() > 0.01
    for client_id, mixture in end.mixtures.items():
        found = decode_stored_mixture(
            (federation.directory / f"state-{client_id}" / "mixture.safetensors").read_bytes()
        ).mixture
        assert set(found.weights) == set(mixture.weights)
        assert all(
            found.weights[name].tobytes() == array.tobytes() for name, array in mixture.weights.items()
        )

    result = federation.result()
    assert result == json.loads(aggregator.out)
    assert (result["rounds"], result["dropped"]) == (4, [])
    assert [row["id"] for row in result["clients"]] == sorted(shards)
    for row in result["clients"]:
        assert row["accuracy_mixture"] == end.metrics[row["id"]]["accuracy_mixture"]
        assert row["n_train"] == len(shards[row["id"]].y_train)
        assert row["bytes_up"] > 0
        assert row["bytes_down"] > 0
        assert 20 < row["peak_rss_mb"] < 70
    for device in devices.values():
        assert json.loads(device.out)["tensorflow_loaded"] is False
    with closing(sqlite3.connect(federation.out / "journal.sqlite")) as journal:
        assert journal.execute("select count(*) from tensors").fetchone() == (0,)


def test_simulation_of_a_configuration_of_init_gives_the_bits_of_its_devices(
    federate, mosquitto_url, toys, tmp_path
):
    """`edgefl init` counts the data of three devices. The files contain no test samples."""
    federation = federate(mosquitto_url, rounds=3, min_clients=3)
    ids = [f"pi-{number}" for number in range(1, 4)]
    for number, client_id in enumerate(ids):
        shard = toys.shard(number, 20 + 10 * number)
        np.savez(tmp_path / f"{client_id}.npz", x=shard.x_train, y=shard.y_train)
    data = [option for client_id in ids for option in ("--data", str(tmp_path / f"{client_id}.npz"))]
    path = tmp_path / "made" / "federation.toml"
    made = CliRunner().invoke(init, [str(path), "--yes", "--rounds", "3", *data])
    assert made.exit_code == 0, made.output
    for client_id in ids:
        assert f"--id {client_id} --data {tmp_path / client_id}.npz" in made.output
    config = load_config(path)
    assert config.algorithm == federation.algorithm

    aggregator = federation.aggregator()
    devices = [federation.device(client_id) for client_id in ids]
    assert [process.end() for process in (aggregator, *devices)] == [0, 0, 0, 0], aggregator.err
    with open_partitioned_dataset(config) as partitioned:
        assert list(partitioned.shards) == ids
        learner = SoftmaxLearner(federation.plan.spec)
        end = simulate(
            federation.plan, toys.weights(), partitioned.shards, config, open_learner=lambda plan: learner
        )
    for client_id in ids:
        stored = (tmp_path / f"state-{client_id}" / "mixture.safetensors").read_bytes()
        weights = decode_stored_mixture(stored).mixture.weights
        assert {name: array.tobytes() for name, array in weights.items()} == {
            name: array.tobytes() for name, array in end.mixtures[client_id].weights.items()
        }
    for row in federation.result()["clients"]:
        assert row["accuracy_mixture"] == end.metrics[row["id"]]["accuracy_mixture"]


@pytest.mark.parametrize(
    "codec", ["fp16", pytest.param("int8", marks=pytest.mark.slow), "top-10", "int8+deflate"]
)
def test_compressed_updates_match_the_simulator(codec, federate, mosquitto_url, toys):
    settings = {"rounds": 3, "min_clients": 2, "seed": 5, "codec": codec}
    federation = federate(mosquitto_url, **settings)
    shards = {f"pi-{i}": toys.shard(i, 20 + 10 * i) for i in range(2)}
    aggregator = federation.aggregator()
    devices = [federation.device(client_id, shard) for client_id, shard in shards.items()]
    assert aggregator.end() == 0, aggregator.err
    assert [device.end() for device in devices] == [0, 0]
    learner = SoftmaxLearner(federation.plan.spec)
    end = simulate(
        federation.plan,
        toys.weights(),
        shards,
        FederationConfig(**settings),
        open_learner=lambda plan: learner,
    )
    plain = simulate(
        federation.plan,
        toys.weights(),
        shards,
        FederationConfig(**{**settings, "codec": "fp32"}),
        open_learner=lambda plan: learner,
    )
    state = decode_server_state((federation.out / "server_state.safetensors").read_bytes())
    for name, array in end.state.models["global"].items():
        assert state.models["global"][name].tobytes() == array.tobytes()
    kernels = [each.state.models["global"]["head/kernel"] for each in (end, plain)]
    assert not np.array_equal(*kernels)


def test_unchanged_model_is_sent_only_once(federate, mosquitto_url, toys, listen):
    """The initial model belongs to round 1 and to the last broadcast. It goes to the broker once, and no
    device requests it.
    """
    federation = federate(mosquitto_url, rounds=1, min_clients=3)
    listener = listen(federation)
    aggregator = federation.aggregator()
    devices = [federation.device(f"pi-{i}", toys.shard(i)) for i in range(3)]
    assert aggregator.end() == 0
    assert [device.end() for device in devices] == [0, 0, 0]
    topics = [message.topic for message in listener.wait_for_phase("done")]
    assert not [topic for topic in topics if topic.endswith("/want")]
    sent_blobs = [
        m.topic.split("/")[4]
        for m in listener.messages
        if m.topic.endswith("/0") and "/blob/" in m.topic and m.payload
    ]
    # The plan, two models, and the message that shows which sizes the broker delivers
    assert len(set(sent_blobs)) == len(sent_blobs) == 4
    assert federation.plan.id in sent_blobs
    cleared = {m.topic.split("/")[4] for m in listener.messages if "/blob/" in m.topic and not m.payload}
    assert cleared == set(sent_blobs)


def test_sigterm_ends_every_service_without_error(federate, mosquitto_url, toys, listen, start):
    federation = federate(mosquitto_url, min_clients=3)
    listener = listen(federation)
    aggregator = federation.aggregator()
    device = federation.device("pi-1", toys.shard(1))
    aggregator.wait_for("pi-1 is online")
    device.wait_for("the federation is in phase joining")
    device.popen.terminate()
    assert device.end() == 0
    aggregator.wait_for("pi-1 is offline")
    aggregator.popen.terminate()
    assert aggregator.end() == 0
    assert json.loads(listener.wait_for_phase("stopped")[-1].payload)["phase"] == "stopped"
    broker = start("broker", "start", "--port", "0", "--kind", "mosquitto")
    assert broker.first_line().startswith("mqtt://127.0.0.1:")
    broker.popen.terminate()
    assert broker.end() == 0


def test_device_finds_the_only_federation_or_lists_all(federate, start, toys, tmp_path):
    broker = start("broker", "start", "--port", "0", "--json")
    url = json.loads(broker.first_line())["url"]
    federation = federate(url, rounds=1, min_clients=1)
    data = federation.directory / "pi-1.npz"
    toys.save(data, toys.shard(1))
    arguments = (
        "device",
        "start",
        "--broker",
        url,
        "--id",
        "pi-1",
        "--data",
        data,
        "--learner",
        "numpy",
        "--no-export",
        "--state",
    )
    early = start(*arguments, tmp_path / "early")
    early.wait_for("waiting for an aggregator")
    aggregator = federation.aggregator()
    assert aggregator.end() == 0
    assert early.end() == 0
    assert f"joined '{federation.name}'" in early.err

    names = []
    for _ in range(2):
        other = federate(url, min_clients=2)
        names.append(other.name)
        other.aggregator().wait_for("waiting for devices: 0 of 2")
    late = start(*arguments, tmp_path / "late")
    assert late.end() == 1
    assert all(name in late.err for name in names)
    assert "--federation" in late.err


def test_device_names_the_federations_that_run_beside_the_one_it_waits_for(federate, own_broker, toys):
    url = f"mqtt://127.0.0.1:{own_broker.port}"
    running = federate(url, min_clients=1)
    running.aggregator().wait_for("waiting for devices")
    other = federate(url, rounds=1, min_clients=1)
    device = other.device("pi-1", toys.shard(1))
    device.wait_for(f"no federation '{other.name}' runs at {url} yet, this device waits for it")
    assert f"running: {running.name}" in device.err
    assert (other.aggregator().end(), device.end()) == (0, 0), device.err


def test_device_says_that_its_aggregator_has_stopped_and_is_back(federate, mosquitto_url, toys, puppet):
    """The second client answers nothing, so that the first round lasts until the aggregator is killed."""
    federation = federate(mosquitto_url, rounds=1, min_clients=2, quorum=1.0)
    aggregator = federation.aggregator()
    device = federation.device("pi-1", toys.shard(1))
    puppet(federation, "pi-2").next("task")
    device.wait_for("round 1 federate")
    aggregator.popen.kill()
    device.wait_for("the aggregator has stopped; this device waits until it starts again")
    federation.aggregator()
    device.wait_for("the aggregator is back, in phase ")
    assert device.err.count("has stopped") == 1


@pytest.mark.parametrize("more", [(), ("--take-over",)])
def test_second_aggregator_of_a_federation_is_refused_unless_it_takes_over(
    federate, mosquitto_url, toys, more
):
    federation = federate(mosquitto_url)
    first = federation.aggregator()
    first.wait_for("waiting for devices")
    second = federation.aggregator("--out", federation.directory / "second", *more)
    if more:
        assert first.end() == 1
        assert "another aggregator leads" in first.err
        devices = [federation.device(f"pi-{number}", toys.shard(number)) for number in range(2)]
        assert [process.end() for process in (second, *devices)] == [0, 0, 0], second.err
    else:
        assert second.end() == 1
        assert "--take-over" in second.err
        assert first.popen.poll() is None


def test_takeover_from_an_aggregator_whose_clock_is_ahead(federate, mosquitto_url, toys):
    """The first aggregator began its run a day ahead of the clock. Devices follow the later run."""
    federation = federate(mosquitto_url, rounds=1)
    with Journal(federation.out) as journal:
        journal.begin_run(time.time_ns() // 10**6 + 86_400_000)
    first = federation.aggregator()
    devices = [federation.device("pi-0", toys.shard(0))]
    first.wait_for("1 of 2 online")
    second = federation.aggregator("--out", federation.directory / "second", "--take-over")
    assert first.end() == 1
    devices.append(federation.device("pi-1", toys.shard(1)))
    assert [process.end() for process in (second, *devices)] == [0, 0, 0], second.err
