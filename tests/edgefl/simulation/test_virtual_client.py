"""A simulated client answers the newest task, whatever arrived before."""

from edgefl.simulation.virtual_client import TrainedUpdate, VirtualClient
from edgefl.wire.messages import Receipt, Task


def make_task(number, phase="federate"):
    return Task("s1", number, phase, "p", {}, {}, 0, 60.0, "fp32", 2, 0.0, f"nonce{number}", 0.0)


def test_task_that_invalidates_an_update_also_replaces_the_task_that_waits():
    client = VirtualClient("c0", 10)
    client.connect(0.0)
    update = TrainedUpdate(b"update", 10, {})
    client.receive_task(make_task(2), 0.0)
    client.receive_task(make_task(3), 0.0)  # waits, because the answer to task 2 still counts
    (begin, *_) = client.finish_training(update, 0.0)
    personalize = make_task(4, "personalize")
    client.receive_task(personalize, 0.0)
    receipt = Receipt(2, begin.begin.sha256, "rejected", (), "stale", "nonce2", 0.0)
    assert not client.receive_receipt(receipt, 0.0)
    assert client.training_task == personalize
    (begin, *_) = client.finish_training(update, 0.0)
    assert begin.begin.round == 4
    assert client.training_task is None
