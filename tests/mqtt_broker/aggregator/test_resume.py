"""A killed aggregator resumes with the bits of an undisturbed run."""

import json
import sqlite3
from contextlib import closing
from dataclasses import replace

import pytest

from edgefl.base.config import FederationConfig, TrainingConfig
from edgefl.base.errors import ConfigError, StateError
from edgefl.base.rng import derive_rng
from edgefl.base.storage.aggregator_directory import AggregatorFiles
from edgefl.learning.checkpoint import decode_server_state, decode_stored_mixture
from edgefl.protocol.server.events import DroppedClient, OpenedRound, StoreUpdate
from edgefl.protocol.wire.messages import Begin
from edgefl.protocol.wire.tensors import encode_models
from edgefl.simulation.simulate import simulate
from mqtt_broker.aggregator.journal import FederationStart, Journal
from mqtt_broker.aggregator.resume import resume_or_start, select_fixed_settings
from tests.support.numpy_learner.softmax import SoftmaxLearner

BEGIN = Begin(
    client_id="pi-1",
    session="s",
    round=1,
    plan="p",
    sha256="ab" * 32,
    size=10,
    count=1,
    chunk_bytes=65536,
    num_samples=5,
    metrics={"loss": 0.5},
    nonce="n1",
    ts=0.0,
)


def make_stored_update(begin):
    return StoreUpdate(begin=begin, blob=b"0123456789", expected={}, codec="fp32", deltas={})


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2, 3))])
def test_killed_and_restarted_aggregator_gives_the_same_bits(seed, federate, mosquitto_url, toys):
    federation = federate(mosquitto_url, rounds=4, min_clients=3, clients_per_round=2, seed=5, quorum=1.0)
    shards = {f"pi-{i}": toys.shard(i, 20 + 10 * i) for i in range(3)}
    devices = {client_id: federation.device(client_id, shard) for client_id, shard in shards.items()}
    federation.run_aggregator_with_kills(derive_rng(seed, 0, "kills"), 1, 14)
    assert [device.end() for device in devices.values()] == [0, 0, 0], [
        device.err for device in devices.values()
    ]

    config = FederationConfig(rounds=4, min_clients=3, clients_per_round=2, seed=5)
    end = simulate(
        federation.plan,
        toys.weights(),
        shards,
        config,
        open_learner=lambda plan: SoftmaxLearner(federation.plan.spec),
    )
    state = decode_server_state((federation.out / "server_state.safetensors").read_bytes())
    assert (state.round, state.phase) == (5, "done")
    for name, array in end.state.models["global"].items():
        assert state.models["global"][name].tobytes() == array.tobytes()
    for client_id, mixture in end.mixtures.items():
        found = decode_stored_mixture(
            (federation.directory / f"state-{client_id}" / "mixture.safetensors").read_bytes()
        ).mixture
        assert all(
            found.weights[name].tobytes() == array.tobytes() for name, array in mixture.weights.items()
        )
    result = federation.result()
    assert [row["id"] for row in result["clients"]] == sorted(shards)
    assert (len(result["losses"]), result["dropped"]) == (4, [])


def test_update_damaged_on_disk_is_requested_again(federate, mosquitto_url, toys, puppet):
    federation = federate(mosquitto_url, rounds=1, quorum=1.0)
    aggregator = federation.aggregator()
    device = federation.device("pi-1", toys.shard(1))
    other = puppet(federation, "pi-2")
    task = other.next("task")
    aggregator.wait_for("pi-1 reported (1 of 2)")
    aggregator.popen.kill()
    aggregator.popen.wait()
    with closing(sqlite3.connect(AggregatorFiles(federation.out).journal)) as database, database:
        assert database.execute("update tensors set content = substr(content, 6)").rowcount == 1
    again = federation.aggregator()
    again.wait_for("pi-1 reported (1 of 2)")
    assert other.next("task").nonce == task.nonce
    assert (
        other.send(
            task, encode_models({"global": {name: 0 * array for name, array in toys.weights().items()}})
        ).outcome
        == "ok"
    )
    while (task := other.next("task")).phase != "personalize":
        pass  # online clients get the task of the first round again
    assert other.send(task, encode_models({})).outcome == "ok"
    assert again.end() == 0, again.err
    assert device.end() == 0, device.err
    assert federation.result()["dropped"] == []


def test_finished_federation_restarts_only_with_fresh(federate, mosquitto_url, toys):
    federation = federate(mosquitto_url, rounds=1, min_clients=1)
    first = federation.aggregator()
    device = federation.device("pi-1", toys.shard(1))
    assert (first.end(), device.end()) == (0, 0)
    result = (federation.out / "result.json").read_bytes()
    again = federation.aggregator("--json")
    assert again.end() == 0
    assert "is done, its result is" in again.err
    assert json.loads(again.out) == json.loads(result)
    assert (federation.out / "result.json").read_bytes() == result
    federation.settings["rounds"] = 2
    other = federation.aggregator()
    assert other.end() == 1
    assert (
        "holds a federation that is done, with rounds '1', this one has '2'; pass another --out" in other.err
    )
    federation.aggregator("--fresh").wait_for("waiting for devices: 0 of 1")
    assert not (federation.out / "result.json").exists()


def test_directory_serves_one_aggregator_and_one_federation(federate, mosquitto_url):
    federation = federate(mosquitto_url)
    first = federation.aggregator()
    first.wait_for("waiting for devices")
    second = federation.aggregator()
    assert second.end() == 1
    assert "another aggregator uses" in second.err
    first.popen.kill()
    first.popen.wait()
    federation.settings["rounds"] = 7
    other = federation.aggregator()
    assert other.end() == 1
    assert "with rounds '3', this one has '7'" in other.err
    assert "--fresh" in other.err
    federation.aggregator("--fresh").wait_for("waiting for devices: 0 of 2")


def test_journal_restores_rounds_and_accepted_updates(tmp_path):
    with Journal(tmp_path) as journal:
        assert journal.read_start() is None
        journal.start(FederationStart(session="s", settings=json.dumps({"seed": 1}), started=12.5))
        opened = journal.open_round(
            OpenedRound(number=1, phase="federate", nonce="n1", cohort=("pi-1", "pi-2"))
        )
        journal.accept(opened, [make_stored_update(BEGIN)])
        with pytest.raises(StateError, match="another aggregator uses"):
            Journal(tmp_path)
    with Journal(tmp_path) as journal:
        assert journal.read_start() == FederationStart(session="s", settings='{"seed": 1}', started=12.5)
        assert journal.read_round(1, "federate") == opened
        assert journal.read_round(1, "personalize") is None
        assert list(journal.read_accepted(opened)) == [BEGIN]
        journal.close_round(opened, 0.25, [DroppedClient(1, "pi-2", "too late")])
        journal.close_round(opened, 9.0, [])  # closing a round again after a restart changes nothing
        assert journal.read_losses("personalize") == [0.25]
        assert journal.read_losses("federate") == []
        assert journal.read_dropped() == [DroppedClient(1, "pi-2", "too late")]
        journal.finish()
        assert journal.read_start().is_done
        journal.start(FederationStart(session="t", settings="{}", started=13.0))
        assert list(journal.read_accepted(opened)) == []
        assert journal.read_round(1, "federate") is None


def test_journal_keeps_rounds_with_accepted_updates(tmp_path):
    with Journal(tmp_path) as journal:
        journal.start(FederationStart(session="s", settings="{}", started=1.0))
        first, second = (
            journal.open_round(
                OpenedRound(number=number, phase="federate", nonce=f"n{number}", cohort=("pi-1",))
            )
            for number in (1, 2)
        )
        journal.accept(first, [make_stored_update(BEGIN)])
        for each in (first, second):
            journal.forget_round(each)
        assert (journal.read_round(1, "federate"), journal.read_round(2, "federate")) == (first, None)
        other = journal.open_round(replace(second, nonce="n3", cohort=("pi-2",)))
        assert journal.read_round(2, "federate") == other


def test_journal_yields_the_updates_of_the_last_rounds(tmp_path):
    with Journal(tmp_path) as journal:
        assert list(journal.read_latest_updates(2, "personalize")) == []
        for number in range(1, 5):
            phase = "personalize" if number == 4 else "federate"
            opened = journal.open_round(
                OpenedRound(number=number, phase=phase, nonce=f"n{number}", cohort=("pi-1",))
            )
            journal.accept(opened, [make_stored_update(replace(BEGIN, round=number))])
        assert [begin.round for begin in journal.read_latest_updates(2, "personalize")] == [2, 3]
        assert [begin.round for begin in journal.read_latest_updates(9, "personalize")] == [1, 2, 3]


@pytest.fixture
def connections(monkeypatch):
    """The connections to SQLite that the test opens, in order."""
    opened = []
    connect = sqlite3.connect

    def record_connection(*arguments, **settings):
        opened.append(connect(*arguments, **settings))
        return opened[-1]

    monkeypatch.setattr(sqlite3, "connect", record_connection)
    return opened


def test_late_update_lookup_reads_only_relevant_rounds(tmp_path, connections):
    steps = {}
    with Journal(tmp_path) as journal:
        for number in range(1, 301):
            opened = journal.open_round(
                OpenedRound(number=number, phase="federate", nonce=f"n{number}", cohort=("pi-1",))
            )
            steps[number] = 0

            def count_step(number=number):
                steps[number] += 1

            connections[0].set_progress_handler(count_step, 1)
            late = {(number - 1, "pi-1"): BEGIN.sha256} if number > 1 else {}
            assert journal.read_settled(opened, number) == {}
            assert journal.read_settled(opened, number - 1) == late
            connections[0].set_progress_handler(None, 1)
            journal.accept(opened, [make_stored_update(replace(BEGIN, round=number))])
    assert steps[300] == steps[10] > 0


def test_checkpoint_works_without_a_write_ahead_log(tmp_path, connections):
    with Journal(tmp_path) as journal:
        opened = journal.open_round(OpenedRound(number=1, phase="federate", nonce="n1", cohort=("pi-1",)))
        journal.close_round(opened, 0.25, [])
        journal.checkpoint()
        # the mode on a file system without shared memory
        connections[0].execute("pragma journal_mode=delete")
        journal.close_round(opened, 0.5, [])
        journal.checkpoint()
        assert journal.read_losses("personalize") == [0.25]


def test_damaged_journal_is_an_error_with_a_remedy(tmp_path):
    (tmp_path / "journal.sqlite").write_bytes(b"not a database" * 100)
    with pytest.raises(StateError, match=r"is damaged: .*remove it and start again with --fresh"):
        Journal(tmp_path)


@pytest.mark.parametrize("settings", ["{", "[]", "5"])
def test_damaged_settings_in_the_journal_are_an_error_with_a_remedy(settings, tmp_path):
    with Journal(tmp_path) as journal:
        journal.start(FederationStart(session="s", settings=settings, started=0.0))
        with pytest.raises(StateError, match=r"journal\.sqlite is damaged: .*start again with --fresh"):
            resume_or_start(journal, FederationConfig(), "p", tmp_path, fresh=False)
        assert not resume_or_start(journal, FederationConfig(), "p", tmp_path, fresh=True)[1]


@pytest.mark.parametrize(
    "change", [{"max_samples": 200_000}, {"chunk_bytes": 65536}, {"clients": ("pi-1", "pi-2")}]
)
def test_restart_accepts_changed_limits_and_clients(change, tmp_path):
    config = FederationConfig()
    with Journal(tmp_path) as journal:
        first, _ = resume_or_start(journal, config, "p", tmp_path, False)
        assert json.loads(AggregatorFiles(tmp_path).note.read_text())["config"]["rounds"] == config.rounds
        assert resume_or_start(journal, replace(config, **change), "p", tmp_path, False) == (first, True)


def test_directory_in_place_of_a_file_is_an_error_with_a_remedy(tmp_path):
    files = AggregatorFiles(tmp_path)
    with Journal(tmp_path) as journal:
        files.server_state.mkdir()
        with pytest.raises(
            StateError, match=r"cannot remove .*/server_state\S+: Is a directory; remove that directory, or"
        ):
            resume_or_start(journal, FederationConfig(), "p", tmp_path, fresh=True)
    other = tmp_path / "other"
    AggregatorFiles(other).journal.mkdir(parents=True)
    with pytest.raises(StateError, match=r"Is a directory: .*; remove that directory, or choose another"):
        Journal(other)


@pytest.mark.parametrize("damage", ["missing", "empty"])
@pytest.mark.parametrize("name", ["server_state", "result", "rounds"])
def test_results_without_a_journal_are_not_removed(name, damage, tmp_path):
    files = AggregatorFiles(tmp_path)
    path = getattr(files, name)
    path.write_bytes(b"of a federation")
    if damage == "empty":
        files.journal.write_bytes(b"")
    config = FederationConfig(rounds=3)
    with Journal(tmp_path) as journal:
        with pytest.raises(StateError, match=r"journal\.sqlite is missing or empty, but .*with --fresh"):
            resume_or_start(journal, config, "p", tmp_path, fresh=False)
        assert path.read_bytes() == b"of a federation"
        _, is_resumed = resume_or_start(journal, config, "p", tmp_path, fresh=True)
        assert not (is_resumed or path.exists())


def test_setting_that_an_older_edgefl_did_not_store_counts_as_its_default(tmp_path, monkeypatch):
    def select_older(config, plan):
        settings = select_fixed_settings(config, plan)
        del settings["training"]
        return settings

    config = FederationConfig()
    with Journal(tmp_path) as journal:
        with monkeypatch.context() as context:
            context.setattr("mqtt_broker.aggregator.resume.select_fixed_settings", select_older)
            resume_or_start(journal, config, "p", tmp_path, fresh=True)
        assert resume_or_start(journal, config, "p", tmp_path, fresh=False)[1]
        other = replace(config, training=TrainingConfig(micro_batch=4))
        with pytest.raises(ConfigError, match=r"with training .* 0}.*, this one has .* 4}"):
            resume_or_start(journal, other, "p", tmp_path, fresh=False)
