"""The files of an aggregator for a report: its rounds, the similarity of its clients, and its start
options.
"""

import json

import pytest

from edgefl.base.config import FederationConfig
from edgefl.simulation.simulate import simulate
from edgefl.watch.report.folder import read_folder
from tests.support.numpy_learner.softmax import SoftmaxLearner


def test_clustered_federation_has_a_report(federate, mosquitto_url, toys):
    """The clusters match the simulator. A federation that starts afresh in the same directory has only
    its own lines.
    """
    federation = federate(
        mosquitto_url, rounds=3, min_clients=3, seed=7, algorithm="clustered", options={"learning_rate": 0.1}
    )
    shards = {f"pi-{i}": toys.shard(i, 20 + 10 * i) for i in range(3)}
    for more in ((), ("--fresh",)):
        aggregator = federation.aggregator(*more)
        # So that no device mistakes the end of the previous federation for its own
        aggregator.wait_for("waiting for devices")
        devices = [federation.device(client_id, shard) for client_id, shard in shards.items()]
        assert aggregator.end(120) == 0, aggregator.err
        assert [device.end(120) for device in devices] == [0, 0, 0], [device.err for device in devices]

    records = []
    learner = SoftmaxLearner(federation.plan.spec)
    config = FederationConfig(rounds=3, min_clients=3, seed=7)
    simulate(
        federation.plan,
        toys.weights(),
        shards,
        config,
        open_learner=lambda plan: learner,
        progress=lambda state, record: records.append(record),
    )
    lines = [json.loads(line) for line in (federation.out / "rounds.jsonl").read_text().splitlines()]
    assert [(line["round"], line["phase"]) for line in lines] == [
        (1, "cluster"),
        (2, "federate"),
        (3, "federate"),
        (4, "personalize"),
    ]
    assert [line["loss"] for line in lines[:3]] == pytest.approx([record.loss for record in records])
    assert lines[0]["updates"].keys() == shards.keys()
    assert lines[0]["updates"]["pi-2"]["num_samples"] == len(shards["pi-2"].y_train)
    clusters = json.loads((federation.out / "clusters.json").read_text())
    assert clusters == records[0].similarity
    assert set(clusters["assignment"]) == set(shards)

    folder = read_folder(federation.out)
    assert (folder.kind, folder.algorithm, len(folder.records), len(folder.clients)) == (
        "aggregator",
        "clustered",
        3,
        3,
    )
    assert folder.facts["machine"]
    assert "127.0.0.1" not in json.dumps(folder.facts)
    pytest.importorskip("matplotlib")
    from edgefl.watch.report.page import to_html

    text = to_html(folder)
    for title in ("Training loss", "Communication cost", "Similarity of clients", "Accuracy of each client"):
        assert f"<h3>{title}</h3>" in text
