"""Valid messages of an enrolled device that no algorithm can use: they end neither a round nor the
aggregator.
"""

import hashlib
import json
import sqlite3
from contextlib import closing

import numpy as np
import pytest

from edgefl.base.storage.aggregator_directory import AggregatorFiles
from edgefl.protocol.server.plausibility import read_left_out_rounds
from edgefl.protocol.wire.tensors import encode_models
from mqtt_broker.aggregator.results import load_state

FEDPER = {"algorithm": "fedper", "options": {"personal_layers": 1}}
"""Each broadcast has the model `start`, which no update may hold."""


def make_update(toys, *models):
    shared = {name: np.full_like(array, 0.5) for name, array in toys.weights().items()}
    personal = {name: shared.pop(name) for name in ("head/kernel", "head/bias")}
    deltas = {"global": shared, "start": personal}
    return encode_models({name: deltas[name] for name in models})


def await_task(puppet, round, phase="federate"):
    """Return the task of a round. Tasks before it, such as repeated ones, are skipped."""
    while (task := puppet.next("task")).round != round or task.phase != phase:
        pass
    return task


def finish(puppets):
    for puppet in puppets:
        assert puppet.send(await_task(puppet, 3, "personalize"), encode_models({})).outcome == "ok"


def test_update_with_other_models_than_the_task_allows_is_rejected(federate, mosquitto_url, puppet, toys):
    federation = federate(mosquitto_url, rounds=2, min_clients=3, quorum=0.5, **FEDPER)
    aggregator = federation.aggregator()
    honest, others, hostile = (puppet(federation, f"pi-{i}") for i in range(3))
    for models in (("start",), ("start", "global")):
        tasks = [each.next("task") for each in (honest, others, hostile)]
        receipt = hostile.send(tasks[2], make_update(toys, *models))
        assert receipt.outcome == "rejected"
        assert receipt.reason.endswith("expected global; update or restart it")
        assert honest.send(tasks[0], make_update(toys, "global")).outcome == "ok"
        assert others.send(tasks[1], make_update(toys, "global")).outcome == "ok"
    finish((honest, others, hostile))
    assert aggregator.end() == 0, aggregator.err
    assert {row["id"] for row in federation.result()["clients"]} == {"pi-0", "pi-1", "pi-2"}


def test_journal_with_an_unusable_update_is_continued_without_its_client(
    federate, mosquitto_url, puppet, toys
):
    federation = federate(mosquitto_url, rounds=2, min_clients=3, quorum=1.0, **FEDPER)
    aggregator = federation.aggregator()
    first, second, hostile = (puppet(federation, f"pi-{i}") for i in range(3))
    tasks = [each.next("task") for each in (first, second, hostile)]
    for each, task in ((first, tasks[0]), (hostile, tasks[2])):
        assert each.send(task, make_update(toys, "global")).outcome == "ok"
    aggregator.popen.kill()
    aggregator.popen.wait()
    # An earlier version stored an update with any of the broadcast's models
    content = make_update(toys, "start")
    with closing(sqlite3.connect(AggregatorFiles(federation.out).journal)) as database, database:
        (encoded,) = database.execute("select begin from accepted where client_id = 'pi-2'").fetchone()
        begin = {**json.loads(encoded), "sha256": hashlib.sha256(content).hexdigest(), "size": len(content)}
        database.execute(
            "update accepted set begin = ? where client_id = 'pi-2'", (json.dumps(begin).encode(),)
        )
        database.execute("update tensors set content = ? where client_id = 'pi-2'", (content,))
    again = federation.aggregator()
    assert second.send(second.next("task"), make_update(toys, "global")).outcome == "ok"
    again.wait_for("the update of pi-2 cannot be aggregated (KeyError: 'global')")
    for each in (first, second):
        assert each.send(await_task(each, 2), make_update(toys, "global")).outcome == "ok"
    finish((first, second, hostile))
    assert again.end() == 0, again.err
    assert read_left_out_rounds(load_state(federation.out)) == {"pi-2": 1}
    assert federation.result()["left_out"] == [{"round": 1, "id": "pi-2"}]


LIES = {
    "loss": 1e300,
    "accuracy": -24999930.0,
    "accuracy_shipped": 0.0,
    "r2_shipped": 1.0,
    "id": 7.0,
    "test_gained": 0.0,
    "test_lost": 2.0**53 - 1,
}


@pytest.mark.slow
def test_devices_get_their_models_beside_a_board_with_absurd_figures(federate, mosquitto_url, puppet, toys):
    """The median of the honest devices decides, so the training does not count as diverged."""
    rounds = 5
    federation = federate(
        mosquitto_url, rounds=rounds, min_clients=4, algorithm="fedavg", evaluate=True, upload_slots=1
    )
    aggregator = federation.aggregator()
    aggregator.wait_for("waiting for devices")
    hostile = puppet(federation, "pi-0")
    devices = [federation.device(f"pi-{i}", toys.shard(i)) for i in (1, 2, 3)]
    zeros = {"global": {name: np.zeros_like(array) for name, array in toys.weights().items()}}
    for number in range(1, rounds + 1):
        task = await_task(hostile, number)
        receipt = hostile.send(task, encode_models(zeros), num_samples=100_000, metrics=LIES)
        assert receipt.outcome == "ok", receipt
    last = await_task(hostile, rounds + 1, "personalize")
    assert hostile.send(last, encode_models({}), metrics=LIES).outcome == "ok"
    assert [process.end() for process in (aggregator, *devices)] == [0, 0, 0, 0], aggregator.err
    result = federation.result()
    assert [row["id"] for row in result["clients"]] == ["pi-0", "pi-1", "pi-2", "pi-3"]
    assert all(loss < 2.0 for loss in result["losses"])
    assert "accuracy -" not in aggregator.err and "diverged" not in aggregator.err
    assert result["verdict"]["measure"] == "accuracy"
    assert result["verdict"]["overall"] != "worse"
    for device in devices:
        assert json.loads(device.out.splitlines()[-1])["metrics"]["accuracy_mixture"] > 0.5
