"""DP-FedAvg over MQTT: the simulator's bits under the aggregator's key, also after a kill, and nothing
without noise for all to read.
"""

import json
import stat
from dataclasses import replace

import pytest

from edgefl.config import FederationConfig, PrivacyConfig
from edgefl.errors import ConfigError, StateError
from edgefl.privacy.accountant import compute_epsilon
from edgefl.server.events import OpenedRound
from edgefl.simulation.simulate import simulate
from edgefl.storage.checkpoint import decode_server_state, encode_server_state
from mqtt_broker.aggregator.journal import FederationStart, Journal
from mqtt_broker.aggregator.noise_key import load_noise_key
from mqtt_broker.aggregator.resume import resume_or_start, select_fixed_settings
from tests.support.numpy_learner.softmax import SoftmaxLearner

IDS = ("pi-0", "pi-1", "pi-2")
ROUNDS = 6
TABLE = "[privacy]\nclip = 0.5\nnoise_multiplier = 0.8\npopulation = 3\ndelta = 1e-5\n"
CONFIG = FederationConfig(
    rounds=ROUNDS, clients_per_round=1, seed=7, privacy=PrivacyConfig(0.5, 0.8, 3, 1e-5)
)


@pytest.mark.parametrize("kill_after", [None, 12], ids=["undisturbed", "killed"])
def test_the_bits_are_those_of_the_simulator_with_the_aggregators_key(
    kill_after, federate, mosquitto_url, toys, listen
):
    pytest.importorskip("dp_accounting", reason="the extra dp is not installed")
    federation = federate(
        mosquitto_url, rounds=ROUNDS, clients_per_round=1, min_clients=3, seed=7, tables=TABLE, quorum=1.0
    )
    heard = listen(federation)
    shards = {client_id: toys.shard(i, 20 + 10 * i) for i, client_id in enumerate(IDS)}
    devices = [federation.device(client_id, shard) for client_id, shard in shards.items()]
    aggregator = federation.aggregator()
    if kill_after:
        aggregator.wait_for_lines(kill_after)
        aggregator.popen.kill()
        aggregator.popen.wait()
        aggregator = federation.aggregator()
    assert aggregator.end() == 0, aggregator.said
    assert [device.end() for device in devices] == [0, 0, 0], [device.said for device in devices]
    said = heard.until_phase("done")

    assert not (federation.out / "rounds.jsonl").exists(), "losses have no noise"
    result = federation.result()
    file = federation.out / "noise.key"
    key = load_noise_key(federation.out, result["session"])
    end, own = (
        simulate(
            federation.plan,
            toys.weights(),
            shards,
            CONFIG,
            learner=SoftmaxLearner(federation.plan.spec),
            noise_key=each,
        )
        for each in (key, None)
    )
    state = decode_server_state((federation.out / "server_state.safetensors").read_bytes())
    assert encode_server_state(state) == encode_server_state(end.state)
    # Which the seed, known to every device, would give
    assert encode_server_state(state) != encode_server_state(own.state)

    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    spent = compute_epsilon(1 / 3, 0.8, ROUNDS, 1e-5)
    assert result["privacy"]["epsilon"] == spent
    assert len(result["losses"]) == ROUNDS
    assert f"privacy: epsilon {spent:.3f} at delta 1e-05 after {ROUNDS} rounds" in aggregator.said
    assert not [message.topic for message in said if message.topic.endswith("/summary")]
    states = [json.loads(message.payload) for message in said if message.topic.endswith("/state")]
    assert {each["cohort_size"] for each in states if each["phase"] == "federate"} == {1}
    secrets = (file.read_bytes(), key, file.read_bytes().hex().encode(), key.hex().encode())
    assert not any(secret in message.payload for message in said for secret in secrets)


def test_an_algorithm_that_cannot_be_private_says_so_before_anything_is_sent(federate, mosquitto_url):
    aggregator = federate(mosquitto_url, algorithm="clustered", tables=TABLE).aggregator()
    assert aggregator.end() == 1
    assert "[privacy] does not work with clustered" in aggregator.said


def test_other_noise_is_another_federation(federate, mosquitto_url):
    pytest.importorskip("dp_accounting", reason="the extra dp is not installed")
    federation = federate(mosquitto_url, tables=TABLE)
    first = federation.aggregator()
    first.wait_for("waiting for devices")
    first.popen.kill()
    first.popen.wait()
    federation.tables = TABLE.replace("0.8", "0.1")
    second = federation.aggregator()
    assert second.end() == 1
    assert "holds a federation that is not done, with privacy" in second.said


def test_a_key_is_kept_for_a_session_and_no_two_sessions_share_one(tmp_path):
    key = load_noise_key(tmp_path, "a")
    assert (load_noise_key(tmp_path, "a"), len(key)) == (key, 32)
    assert load_noise_key(tmp_path, "b") != key
    assert load_noise_key(tmp_path / "other", "a") != key
    assert stat.S_IMODE((tmp_path / "noise.key").stat().st_mode) == 0o600
    (tmp_path / "noise.key").write_bytes(b"short")
    with pytest.raises(StateError, match="has 5 bytes, expected 32"):
        load_noise_key(tmp_path, "a")


def test_a_round_without_a_cohort_is_closed_in_the_journal(tmp_path):
    with Journal(tmp_path) as journal:
        journal.start(FederationStart("s", "{}", 1.0))
        opened = journal.open_round(OpenedRound(1, "federate", "n", ()))
        assert journal.read_round(1, "federate") == opened
        journal.close_round(opened, None, [])
        assert (journal.read_losses("personalize"), journal.read_round(1, "federate").is_closed) == (
            [None],
            True,
        )


def test_a_federation_ends_before_it_spends_more_than_it_may(federate, mosquitto_url, toys):
    pytest.importorskip("dp_accounting", reason="the extra dp is not installed")
    most = compute_epsilon(1.0, 2.0, 2, 1e-5) + 0.01
    table = f"[privacy]\nclip = 0.5\nnoise_multiplier = 2.0\npopulation = 1\nmax_epsilon = {most}\n"
    federation = federate(mosquitto_url, rounds=50, min_clients=1, tables=table)
    aggregator = federation.aggregator()
    device = federation.device("pi-1", toys.shard(1))
    assert aggregator.end() == 0, aggregator.said
    assert device.end() == 0, device.said
    assert "ends the federation after 2 of 50 rounds" in aggregator.said
    result = federation.result()
    assert (len(result["losses"]), result["rounds"]) == (2, 2)
    assert result["privacy"]["epsilon"] < most


def test_a_federation_of_a_version_that_did_not_know_a_key_of_the_table_is_gone_on_with(tmp_path):
    settings = select_fixed_settings(CONFIG, "p")
    del settings["privacy"]["max_epsilon"]
    with Journal(tmp_path) as journal:
        journal.start(FederationStart("s", json.dumps(settings), 1.0))
        assert resume_or_start(journal, CONFIG, "p", tmp_path, False) == (journal.read_start(), True)
        with pytest.raises(ConfigError, match="with privacy"):
            resume_or_start(
                journal,
                replace(CONFIG, privacy=PrivacyConfig(0.5, 0.8, 3, 1e-5, max_epsilon=3.0)),
                "p",
                tmp_path,
                False,
            )
