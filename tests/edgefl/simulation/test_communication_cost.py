"""Bytes of a round against hand-made messages: JSON for tasks, safetensors for models and updates."""

import hashlib

import numpy as np

from edgefl.base.config import FederationConfig
from edgefl.base.types import Broadcast, Shard, Update
from edgefl.program.plan.spec import Plan
from edgefl.protocol.wire.tensors import encode_weights
from edgefl.simulation.communication_cost import CommunicationCost
from edgefl.simulation.simulate import simulate
from tests.support.numpy_learner.softmax import SoftmaxLearner, softmax_spec

ZEROS = "0" * 64
# 57 bytes, padded with blanks to a multiple of 8
HEADER = b'{"w":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]}}'
BLOB = (64).to_bytes(8, "little") + HEADER.ljust(64) + bytes(24)
"""A tensor of two by three zeros: 8 bytes of header size, the header, 24 bytes of values."""


def make_weights(value=0.0):
    return {"w": np.full((2, 3), value, np.float32)}


def format_task(number=1, phase="federate", /, **models):
    """Return the JSON text of the task of a round."""
    hashes = ",".join(f'"{name}":"{hashlib.sha256(blob).hexdigest()}"' for name, blob in models.items())
    return f'{{"session":"{"0" * 16}","round":{number},"phase":"{phase}","plan":"{ZEROS}","models":{{{hashes}}},"scalars":{{}},"seed":1,"deadline_s":120.0,"codec":"fp32","max_staleness":0,"budget_s":0.0,"nonce":"{"0" * 16}","ts":1763737200.1234567,"signature":"","granted":true,"started":1763737200123,"chunk_bytes":245760,"settings":{{}}}}'  # noqa: E501


def test_model_is_sent_once_to_each_client():
    cost = CommunicationCost()
    same = make_weights()
    broadcast = Broadcast(round=1, phase="federate", models={"global": same})
    task = len(format_task(**{"global": BLOB}))
    assert len(BLOB) == 96
    assert [cost.count_bytes_down(broadcast, client_id) for client_id in ("a", "b", "a")] == [
        task + 96,
        task + 96,
        task,
    ]
    cost.close_round({"global": same})
    assert cost.count_bytes_down(broadcast, "a") == task, "what did not change is not sent again"
    assert (
        cost.count_bytes_down(Broadcast(round=1, phase="federate", models={"global": make_weights()}), "a")
        == task
    ), "nor is what has the same bytes"
    assert cost.count_bytes_down(broadcast, "c") == task + 96
    assert (
        cost.count_bytes_down(Broadcast(round=1, phase="federate", models={"global": make_weights(1)}), "a")
        == task + 96
    )


def test_only_missing_models_are_sent():
    cost = CommunicationCost()
    one = make_weights()
    two = make_weights(1)
    cost.count_bytes_down(Broadcast(round=1, phase="federate", models={"expert0": one}), "a")
    both = len(format_task(expert0=BLOB, expert1=b"another"))
    assert (
        cost.count_bytes_down(
            Broadcast(round=1, phase="federate", models={"expert0": one, "expert1": two}), "a"
        )
        == both + 96
    )


def test_upload_counts_tensors_and_announcement():
    update = Update(
        client_id="pi-1", round=1, num_samples=30, deltas={"global": make_weights()}, metrics={"loss": 0.5}
    )
    header = b'{"global/w":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]}}'  # 64 bytes
    announcement = f'{{"client_id":"pi-1","session":"{"0" * 16}","round":1,"plan":"{ZEROS}","sha256":"{ZEROS}","size":96,"count":1,"chunk_bytes":245760,"num_samples":30,"metrics":{{"loss":0.5}},"nonce":"{"0" * 16}","ts":1763737200.1234567,"signature":"","follows":true}}'  # noqa: E501
    assert len(header) == 64
    assert CommunicationCost().count_bytes_up(update) == 8 + 64 + 24 + len(announcement)


def test_sent_models_forget_replaced_models_and_can_be_resumed():
    cost = CommunicationCost()
    unchanged = make_weights(1)
    replaced = make_weights(2)
    for client_id in ("b", "a"):
        cost.count_bytes_down(
            Broadcast(round=1, phase="federate", models={"expert0": unchanged, "expert1": replaced}),
            client_id,
        )
    cost.close_round({"expert0": unchanged, "expert1": make_weights(3)})
    assert list(cost.sent_models) == ["a", "b"]
    assert all(len(models) == 1 for models in cost.sent_models.values())
    broadcast = Broadcast(
        round=2, phase="federate", models={"expert0": unchanged, "expert1": make_weights(3)}
    )
    assert (
        CommunicationCost(cost.sent_models).count_bytes_down(broadcast, "a")
        == cost.count_bytes_down(broadcast, "a")
        == CommunicationCost().count_bytes_down(broadcast, "a") - 96
    )


def test_personalization_broadcast_is_counted():
    """After one round, two clients get a task and the new model with 31 float32 values and a header."""
    plan = Plan(spec=softmax_spec("fedavg", inputs=4, features=4, classes=3), program=b"", template=b"")
    initial = {
        "trunk/kernel": np.eye(4, dtype=np.float32),
        "head/kernel": np.zeros((4, 3), np.float32),
        "head/bias": np.zeros(3, np.float32),
    }
    x = np.ones((2, 4), np.float32)
    y = np.array([0, 1])
    shards = {
        client_id: Shard(x_train=x, y_train=y, x_test=x, y_test=y, num_classes=3) for client_id in ("a", "b")
    }
    records = []
    end = simulate(
        plan,
        initial,
        shards,
        FederationConfig(rounds=1),
        open_learner=lambda plan: SoftmaxLearner(plan.spec),
        progress=lambda state, record: records.append(record),
    )
    model = encode_weights(end.state.models["global"])
    header = int.from_bytes(model[:8], "little")
    assert len(model) == 8 + header + 4 * (4 * 4 + 4 * 3 + 3)
    settings = '"settings":{"accuracy":1.0}'
    task = len(format_task(2, "personalize", **{"global": model}).replace('"settings":{}', settings))
    assert end.bytes_down == 2 * (task + len(model))
    assert records[0].bytes_down == end.bytes_down - 2 * (len("personalize") - len("federate"))
