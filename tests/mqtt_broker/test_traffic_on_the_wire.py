"""The communication cost that the simulator reports is the number of bytes that a real federation sends
over a broker.
"""

import json
from collections import Counter

from edgefl.base.config import FederationConfig
from edgefl.protocol.wire.topics import parse_topic
from edgefl.simulation.simulate import simulate
from tests.support.numpy_learner.softmax import SoftmaxLearner

IDS = ("pi-0", "pi-1", "pi-2")
ROUNDS = 3
DEVICE_METRICS = ("seconds", "peak_rss_mb")
TIME_DIGITS = 6
"""A message contains the time of day. JSON omits its last digits if they are zeros."""


def test_simulated_communication_cost_matches_a_real_federation(federate, mosquitto_url, toys, listen):
    federation = federate(mosquitto_url, rounds=ROUNDS, min_clients=3, seed=7, algorithm="fedavg")
    listener = listen(federation)
    shards = {client_id: toys.shard(i, 20 + 10 * i) for i, client_id in enumerate(IDS)}
    aggregator = federation.aggregator()
    devices = [federation.device(client_id, shard) for client_id, shard in shards.items()]
    assert aggregator.end() == 0, aggregator.err
    assert [device.end() for device in devices] == [0, 0, 0], [device.err for device in devices]

    records = []
    end = simulate(
        federation.plan,
        toys.weights(),
        shards,
        FederationConfig(rounds=ROUNDS, min_clients=3, seed=7),
        open_learner=lambda plan: SoftmaxLearner(federation.plan.spec),
        progress=lambda state, record: records.append(record),
    )
    messages = [(parse_topic(message.topic), message.payload) for message in listener.wait_for_phase("done")]
    # Each blob is one chunk
    blobs = {
        address.sha256: len(payload)
        for address, payload in messages
        if payload and address.kind in ("blob", "chunk")
    }
    up = Counter()
    down = Counter()
    received = set()
    for address, payload in messages:
        if address.kind == "task":
            task = json.loads(payload)
            lacking = {(address.client_id, sha256) for sha256 in task["models"].values()} - received
            down[task["round"]] += len(payload) + sum(blobs[sha256] for _, sha256 in lacking)
            received |= lacking
        elif address.kind == "begin":
            begin = json.loads(payload)
            begin["metrics"] = {
                key: value for key, value in begin["metrics"].items() if key not in DEVICE_METRICS
            }
            up[begin["round"]] += len(json.dumps(begin, separators=(",", ":"))) + blobs[address.sha256]
    for record in records:
        for counted, real in ((record.bytes_up, up[record.round]), (record.bytes_down, down[record.round])):
            assert 0 <= counted - real <= TIME_DIGITS * len(IDS), (record, real)
    assert 0 <= end.bytes_down - down[ROUNDS + 1] <= TIME_DIGITS * len(IDS), (end.bytes_down, down)
