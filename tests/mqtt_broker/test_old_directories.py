"""Directories of an older version: unfinished work is refused with the remedy, and finished work can be
read.

`old_directories.tar.gz` was written before the file names moved to `edgefl.storage`. It contains a
federation and a run that were killed after their second round, and a finished federation.
"""

import re
import sqlite3
import tarfile
from contextlib import closing
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest

from devices.store import DeviceStore, read_last_round
from edgefl.config import FederationConfig
from edgefl.data.npz import load_shard
from edgefl.errors import PlanError
from edgefl.report.folder import read_folder
from edgefl.runs.directory import RunDirectory
from edgefl.runs.pipeline import load_or_build_plan
from edgefl.server.events import OpenedRound, StoreUpdate
from edgefl.simulation.simulate import simulate
from edgefl.storage.aggregator_directory import AggregatorFiles
from edgefl.storage.device_directory import DeviceFiles, load_personal_model
from edgefl.storage.run_directory import RunFiles
from edgefl.system.files import SECRET_MODE
from edgefl.wire.messages import Begin
from edgefl.wire.strict_json import encode_json
from edgefl.wire.topics import FederationTopics
from firmware_export.quantize.device_state import read_state
from mqtt_broker.aggregator.journal import Journal
from mqtt_broker.aggregator.noise_key import load_noise_key
from mqtt_broker.aggregator.pauses import read_paused_clients
from mqtt_broker.aggregator.results import load_result, load_state
from tests.support.numpy_learner.softmax import SoftmaxLearner

KEY = "975a8f08348a272024c0a7d150d5d6c231b32cd6d56811c7963640c0ac55b051"
ARCHIVE = Path(__file__).with_name("old_directories.tar.gz")
IDS = ("pi-0", "pi-1")
KINDS = {"aggregator": AggregatorFiles, "finished": AggregatorFiles, "run": RunFiles}


@pytest.fixture
def old(tmp_path):
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(tmp_path, filter="tar")
    return tmp_path


@pytest.fixture
def shards(old):
    return {each: load_shard(DeviceFiles(RunFiles(old / "run").mixture(client=each)).shard) for each in IDS}


def close(found, expected):
    return all(np.allclose(found[name], array, atol=1e-5) for name, array in expected.items())


def whole(plan, initial, shards, **settings):
    config = FederationConfig(rounds=4, seed=5, **settings)
    return simulate(plan, initial, shards, config, learner=SoftmaxLearner(plan.spec))


def test_unfinished_federation_of_older_version_is_refused_with_remedy(federate, mosquitto_url, old):
    """Its plan has format 1 and a removed option. A federation must end with the version that started it."""
    federation = federate(
        mosquitto_url, rounds=4, min_clients=2, seed=5, quorum=1.0, grace_s=0.3, max_staleness=0
    )
    federation.name = "old"
    federation.topics = FederationTopics("old")
    federation.out = old / "aggregator"
    aggregator = federation.aggregator()
    assert aggregator.end() == 1
    assert "holds a federation that is not done" in aggregator.err
    assert "start again with --fresh" in aggregator.err


def test_federation_with_plan_of_older_version_is_refused_with_remedy(federate, mosquitto_url, old, start):
    federation = federate(mosquitto_url, rounds=4, min_clients=2, seed=5)
    federation.name = "old"
    *_, config = federation.command("aggregator", mosquitto_url)[:4]
    out = old / "aggregator"
    (out / "plan").mkdir(exist_ok=True)
    for file in (old / "run" / "plan").iterdir():
        (out / "plan" / file.name).write_bytes(file.read_bytes())
    config.write_text(config.read_text().replace('"pfl-mfe"', '"ditto"'))
    aggregator = start("aggregator", "start", "--config", config, "--out", out)
    assert aggregator.end() == 1
    assert "'baseline_epochs', which this version of edgefl does not know" in aggregator.err
    assert "continue with the version that started this federation" in aggregator.err
    assert "start a new one with --fresh" in aggregator.err


def test_unfinished_run_of_older_version_is_refused_with_remedy(old):
    config = FederationConfig(name="old", rounds=4, seed=5, algorithm="ditto")
    run = RunDirectory(old / "run", config, "edgefl simulate", resume=True)
    assert (run.state.round, list(run.states), len(run.read_records())) == (3, list(IDS), 2)
    plan, _ = run.read_plan()
    assert plan.spec.format == 1
    with pytest.raises(PlanError, match="'baseline_epochs', which this version of edgefl does not know"):
        load_or_build_plan(run, config)
    with pytest.raises(
        PlanError, match="continue with the version that started this run, or start again with an"
    ):
        load_or_build_plan(run, config)


def test_journal_without_tensors_waits_for_updates_of_open_round(old):
    """The version that wrote it stored the updates in a file beside the journal."""
    begin = Begin("pi-0", "s", 3, "p", "ab" * 32, 3, 1, 65536, 5, {}, "n", 0.0)
    with Journal(old / "aggregator") as journal:
        assert [
            begin.client_id for begin in journal.read_accepted(journal.read_round(2, "federate"))
        ] == list(IDS)
        opened = journal.open_round(OpenedRound(3, "federate", "n3", IDS))
    with closing(sqlite3.connect(AggregatorFiles(old / "aggregator").journal)) as database, database:
        row = (3, "federate", "pi-0", 3, encode_json(begin))
        database.execute("insert into accepted values (?, ?, ?, ?, ?)", row)
    with Journal(old / "aggregator") as journal:
        assert list(journal.read_intact(opened)) == []
        begin = replace(begin, sha256=sha256(b"abc").hexdigest())
        journal.accept(opened, [StoreUpdate(begin, b"abc", {}, "fp32", {})])
        assert list(journal.read_intact(opened)) == [(begin, "fp32")]
        journal.remove_tensors()


def test_finished_federation_of_older_version_is_read(old):
    result = load_result(old / "finished")
    assert load_state(old / "finished").phase == "done"
    assert [row["id"] for row in result["clients"]] == list(IDS)
    folder = read_folder(old / "finished")
    assert (folder.kind, len(folder.records), len(folder.clients)) == ("aggregator", 4, 2)
    state = old / "finished-pi-1"
    assert read_last_round(state).phase == "personalize"
    plan, mixture, has_digests = load_personal_model(DeviceFiles(state))
    assert (plan.spec.algorithm, has_digests) == ("pfl-mfe", True)
    assert len(mixture.weights) > 0
    store = DeviceStore(state, "pi-1")
    assert store.recovered == "" and store.read_update(store.read_progress())
    store.close()
    simulated = RunFiles(old / "run").mixture(client="pi-0")
    assert (read_state(simulated).client_id, len(read_state(simulated).read_shard().y_train)) == ("pi-0", 20)


def test_pauses_and_noise_key_of_older_version_are_read(old):
    assert read_paused_clients(old / "aggregator") == {"pi-7"}
    assert load_noise_key(old / "aggregator", "s").hex() == KEY


def test_files_of_older_version_are_declared_with_their_mode(old):
    for root in sorted(old.iterdir()):
        table = KINDS.get(root.name, DeviceFiles).list_files()
        for path in (path for path in root.rglob("*") if path.is_file()):
            name = str(path.relative_to(root)).removesuffix("-wal")
            rows = [row for row in table if re.match(make_pattern(row.name), name)]
            assert rows, f"{root.name}/{name} is not declared"
            if any(row.is_secret for row in rows):
                assert path.stat().st_mode & 0o777 == SECRET_MODE, f"{root.name}/{name} is not secret"


def make_pattern(name):
    return re.sub(r"\\\{\w+\\\}", "[^/]+", re.escape(name)) + ("" if name.endswith("/") else "$")
