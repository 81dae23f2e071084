"""Bytes of a round by hand: a task is its JSON, a model and an update are their safetensors."""

import hashlib

import numpy as np

from edgefl.config import FederationConfig
from edgefl.plan.spec import Plan
from edgefl.simulation.communication_cost import CommunicationCost
from edgefl.simulation.simulate import simulate
from edgefl.types import Broadcast, Shard, Update
from edgefl.wire.tensors import encode_weights
from tests.support.numpy_learner.softmax import SoftmaxLearner, softmax_spec

ZEROS = "0" * 64
# 57 bytes, padded with blanks to a multiple of 8
HEADER = b'{"w":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]}}'
BLOB = (64).to_bytes(8, "little") + HEADER.ljust(64) + bytes(24)
"""Two by three zeros: 8 bytes of header size, the header, 24 bytes of values."""


def weights(value=0.0):
    return {"w": np.full((2, 3), value, np.float32)}


def task_of(number=1, phase="federate", /, **models):
    """Return the task of a round."""
    said = ",".join(f'"{name}":"{hashlib.sha256(blob).hexdigest()}"' for name, blob in models.items())
    return f'{{"session":"{"0" * 16}","round":{number},"phase":"{phase}","plan":"{ZEROS}","models":{{{said}}},"scalars":{{}},"seed":1,"deadline_s":120.0,"codec":"fp32","max_staleness":0,"budget_s":0.0,"nonce":"{"0" * 16}","ts":1763737200.1234567,"signature":"","granted":true,"started":1763737200123,"chunk_bytes":245760,"settings":{{}}}}'  # noqa: E501


def test_a_model_goes_down_once_to_each_client():
    traffic = CommunicationCost()
    same = weights()
    broadcast = Broadcast(1, "federate", {"global": same})
    task = len(task_of(**{"global": BLOB}))
    assert len(BLOB) == 96
    assert [traffic.count_bytes_down(broadcast, client_id) for client_id in ("a", "b", "a")] == [
        task + 96,
        task + 96,
        task,
    ]
    traffic.close_round({"global": same})
    assert traffic.count_bytes_down(broadcast, "a") == task, "what did not change is not sent again"
    assert traffic.count_bytes_down(Broadcast(1, "federate", {"global": weights()}), "a") == task, (
        "nor is what has the same bytes"
    )
    assert traffic.count_bytes_down(broadcast, "c") == task + 96
    assert traffic.count_bytes_down(Broadcast(1, "federate", {"global": weights(1)}), "a") == task + 96


def test_of_several_models_those_that_are_lacking_go_down():
    traffic = CommunicationCost()
    one = weights()
    two = weights(1)
    traffic.count_bytes_down(Broadcast(1, "federate", {"expert0": one}), "a")
    both = len(task_of(expert0=BLOB, expert1=b"another"))
    assert (
        traffic.count_bytes_down(Broadcast(1, "federate", {"expert0": one, "expert1": two}), "a") == both + 96
    )


def test_an_update_is_its_tensors_and_its_announcement():
    update = Update("pi-1", 1, 30, {"global": weights()}, {"loss": 0.5})
    header = b'{"global/w":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]}}'  # 64 bytes
    announcement = f'{{"client_id":"pi-1","session":"{"0" * 16}","round":1,"plan":"{ZEROS}","sha256":"{ZEROS}","size":96,"count":1,"chunk_bytes":245760,"num_samples":30,"metrics":{{"loss":0.5}},"nonce":"{"0" * 16}","ts":1763737200.1234567,"signature":"","follows":true}}'  # noqa: E501
    assert len(header) == 64
    assert CommunicationCost().count_bytes_up(update) == 8 + 64 + 24 + len(announcement)


def test_what_clients_hold_is_what_the_server_still_has_and_can_be_gone_on_with():
    traffic = CommunicationCost()
    kept = weights(1)
    replaced = weights(2)
    for client_id in ("b", "a"):
        traffic.count_bytes_down(Broadcast(1, "federate", {"expert0": kept, "expert1": replaced}), client_id)
    traffic.close_round({"expert0": kept, "expert1": weights(3)})
    assert list(traffic.sent_models) == ["a", "b"]
    assert all(len(models) == 1 for models in traffic.sent_models.values())
    broadcast = Broadcast(2, "federate", {"expert0": kept, "expert1": weights(3)})
    assert (
        CommunicationCost(traffic.sent_models).count_bytes_down(broadcast, "a")
        == traffic.count_bytes_down(broadcast, "a")
        == CommunicationCost().count_bytes_down(broadcast, "a") - 96
    )


def test_the_broadcast_of_the_personalization_is_counted():
    """After one round each of two clients gets a task and the new model: 31 float32 values and a header."""
    plan = Plan(softmax_spec("fedavg", inputs=4, features=4, classes=3), b"", b"")
    initial = {
        "trunk/kernel": np.eye(4, dtype=np.float32),
        "head/kernel": np.zeros((4, 3), np.float32),
        "head/bias": np.zeros(3, np.float32),
    }
    x = np.ones((2, 4), np.float32)
    y = np.array([0, 1])
    shards = {client_id: Shard(x, y, x, y, 3) for client_id in ("a", "b")}
    records = []
    end = simulate(
        plan,
        initial,
        shards,
        FederationConfig(rounds=1),
        learner=SoftmaxLearner(plan.spec),
        progress=lambda state, record: records.append(record),
    )
    model = encode_weights(end.state.models["global"])
    header = int.from_bytes(model[:8], "little")
    assert len(model) == 8 + header + 4 * (4 * 4 + 4 * 3 + 3)
    settings = '"settings":{"accuracy":1.0}'
    task = len(task_of(2, "personalize", **{"global": model}).replace('"settings":{}', settings))
    assert end.bytes_down == 2 * (task + len(model))
    assert records[0].bytes_down == end.bytes_down - 2 * (len("personalize") - len("federate"))
