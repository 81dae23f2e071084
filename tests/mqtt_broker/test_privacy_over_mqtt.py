"""DP-FedAvg over MQTT: the bits match the simulator with the aggregator's key, also after a kill, and no
value without noise is public.
"""

import json
import stat

import pytest

from edgefl.base.config import FederationConfig, PrivacyConfig
from edgefl.base.errors import StateError
from edgefl.learning.checkpoint import decode_server_state, encode_server_state
from edgefl.learning.privacy.accountant import compute_epsilon
from edgefl.protocol.server.events import OpenedRound
from edgefl.simulation.simulate import simulate
from mqtt_broker.aggregator.journal import FederationStart, Journal
from mqtt_broker.aggregator.noise_key import load_noise_key
from tests.support.numpy_learner.softmax import SoftmaxLearner

IDS = ("pi-0", "pi-1", "pi-2")
ROUNDS = 6
TABLE = "[privacy]\nclip = 0.5\nnoise_multiplier = 0.8\npopulation = 3\ndelta = 1e-5\n"
CONFIG = FederationConfig(
    rounds=ROUNDS,
    clients_per_round=1,
    seed=7,
    privacy=PrivacyConfig(clip=0.5, noise_multiplier=0.8, population=3, delta=1e-5),
)


@pytest.mark.parametrize(
    "kill_after", [pytest.param(None, marks=pytest.mark.slow), 12], ids=["undisturbed", "killed"]
)
def test_private_federation_matches_the_simulator_with_the_aggregators_key(
    kill_after, federate, mosquitto_url, toys, listen
):
    pytest.importorskip("dp_accounting", reason="the extra dp is not installed")
    federation = federate(
        mosquitto_url, rounds=ROUNDS, clients_per_round=1, min_clients=3, seed=7, tables=TABLE, quorum=1.0
    )
    listener = listen(federation)
    shards = {client_id: toys.shard(i, 20 + 10 * i) for i, client_id in enumerate(IDS)}
    devices = [federation.device(client_id, shard) for client_id, shard in shards.items()]
    aggregator = federation.aggregator()
    if kill_after:
        aggregator.wait_for_lines(kill_after)
        aggregator.popen.kill()
        aggregator.popen.wait()
        aggregator = federation.aggregator()
    assert aggregator.end() == 0, aggregator.err
    assert [device.end() for device in devices] == [0, 0, 0], [device.err for device in devices]
    messages = listener.wait_for_phase("done")

    assert not (federation.out / "rounds.jsonl").exists(), "losses have no noise"
    result = federation.result()
    file = federation.out / "noise.key"
    key = load_noise_key(federation.out, result["session"])
    end, seeded = (
        simulate(
            federation.plan,
            toys.weights(),
            shards,
            CONFIG,
            open_learner=lambda plan: SoftmaxLearner(federation.plan.spec),
            noise_key=each,
        )
        for each in (key, None)
    )
    state = decode_server_state((federation.out / "server_state.safetensors").read_bytes())
    assert encode_server_state(state) == encode_server_state(end.state)
    # The seed, which every device knows, would give other bits
    assert encode_server_state(state) != encode_server_state(seeded.state)

    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    spent = compute_epsilon(1 / 3, 0.8, ROUNDS, 1e-5)
    assert result["privacy"]["epsilon"] == spent
    assert len(result["losses"]) == ROUNDS
    assert f"privacy: epsilon {spent:.3f} at delta 1e-05 after {ROUNDS} rounds" in aggregator.err
    assert not [message.topic for message in messages if message.topic.endswith("/summary")]
    states = [json.loads(message.payload) for message in messages if message.topic.endswith("/state")]
    assert {each["cohort_size"] for each in states if each["phase"] == "federate"} == {1}
    secrets = (file.read_bytes(), key, file.read_bytes().hex().encode(), key.hex().encode())
    assert not any(secret in message.payload for message in messages for secret in secrets)


def test_algorithm_without_privacy_support_is_refused_at_start(federate, mosquitto_url):
    aggregator = federate(mosquitto_url, algorithm="clustered", tables=TABLE).aggregator()
    assert aggregator.end() == 1
    assert "[privacy] does not work with clustered" in aggregator.err


def test_changed_noise_does_not_resume_the_federation(federate, mosquitto_url):
    pytest.importorskip("dp_accounting", reason="the extra dp is not installed")
    federation = federate(mosquitto_url, tables=TABLE)
    first = federation.aggregator()
    first.wait_for("waiting for devices")
    first.popen.kill()
    first.popen.wait()
    federation.tables = TABLE.replace("0.8", "0.1")
    second = federation.aggregator()
    assert second.end() == 1
    assert "holds a federation that is not done, with privacy" in second.err


def test_noise_key_is_stored_for_one_session(tmp_path):
    key = load_noise_key(tmp_path, "a")
    assert (load_noise_key(tmp_path, "a"), len(key)) == (key, 32)
    assert load_noise_key(tmp_path, "b") != key
    assert load_noise_key(tmp_path / "other", "a") != key
    assert stat.S_IMODE((tmp_path / "noise.key").stat().st_mode) == 0o600
    (tmp_path / "noise.key").write_bytes(b"short")
    with pytest.raises(StateError, match="has 5 bytes, expected 32"):
        load_noise_key(tmp_path, "a")


def test_round_without_a_cohort_is_closed_in_the_journal(tmp_path):
    with Journal(tmp_path) as journal:
        journal.start(FederationStart(session="s", settings="{}", started=1.0))
        opened = journal.open_round(OpenedRound(number=1, phase="federate", nonce="n", cohort=()))
        assert journal.read_round(1, "federate") == opened
        journal.close_round(opened, None, [])
        assert (journal.read_losses("personalize"), journal.read_round(1, "federate").is_closed) == (
            [None],
            True,
        )


def test_federation_ends_before_it_exceeds_max_epsilon(federate, mosquitto_url, toys):
    pytest.importorskip("dp_accounting", reason="the extra dp is not installed")
    max_epsilon = compute_epsilon(1.0, 2.0, 2, 1e-5) + 0.01
    table = f"[privacy]\nclip = 0.5\nnoise_multiplier = 2.0\npopulation = 1\nmax_epsilon = {max_epsilon}\n"
    federation = federate(mosquitto_url, rounds=50, min_clients=1, tables=table)
    aggregator = federation.aggregator()
    device = federation.device("pi-1", toys.shard(1))
    assert aggregator.end() == 0, aggregator.err
    assert device.end() == 0, device.err
    assert "ends the federation after 2 of 50 rounds" in aggregator.err
    result = federation.result()
    assert (len(result["losses"]), result["rounds"]) == (2, 2)
    assert result["privacy"]["epsilon"] < max_epsilon
