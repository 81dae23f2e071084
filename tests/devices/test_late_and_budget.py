"""A device whose answer is late, and one that trains for a time budget, against an aggregator that the test
plays.
"""

from edgefl.base.rng import derive_rng
from edgefl.base.types import Broadcast, ClientState
from edgefl.learning.algorithms import make_algorithm
from edgefl.protocol.wire.tensors import encode_models
from tests.support.numpy_learner.softmax import SoftmaxLearner


def encode_trained_update(federation, toys, shard, round, epochs):
    """Return the encoded update of a training of this many epochs."""
    learner = SoftmaxLearner(federation.plan.spec)
    algorithm = make_algorithm("pfl-mfe", learner, {**federation.plan.spec.options, "epochs": epochs})
    broadcast = Broadcast(round=round, phase="federate", models={"global": toys.weights()})
    return encode_models(
        algorithm.local_update(broadcast, ClientState(), shard, "pi-1", derive_rng(1, round, "pi-1"))[
            0
        ].deltas
    )


def test_late_update_is_sent_within_staleness_then_newest_task_runs(
    federate, mosquitto_url, toys, fake_aggregator
):
    federation = federate(mosquitto_url)
    aggregator = fake_aggregator(federation)
    shard = toys.shard(1)
    device = federation.device("pi-1", shard)
    aggregator.next("status")
    aggregator.send_task(1, max_staleness=2)
    first = aggregator.next("begin")
    aggregator.send_task(2, nonce="n2", max_staleness=2)
    aggregator.send_task(3, nonce="n3", max_staleness=2)
    again = aggregator.next("begin")
    assert (again.round, again.sha256, again.nonce) == (1, first.sha256, "n1")
    assert aggregator.accept_update(again) == encode_trained_update(federation, toys, shard, 1, 2)
    third = aggregator.next("begin")
    while third.round == 1:  # the task of round 3 may have repeated the announcement
        aggregator.send_receipt(third, "ok")
        third = aggregator.next("begin")
    assert third.round == 3, "of two tasks that came meanwhile the newest"
    aggregator.send_task(6, nonce="n6", max_staleness=2)
    sixth = aggregator.next("begin")
    while sixth.round == 3:
        sixth = aggregator.next("begin")
    assert sixth.round == 6, "three rounds are too many"
    assert "round 3: stopped, because the round is over" in device.err
    aggregator.send_task(7, "personalize")
    last = aggregator.next("begin")
    while last.round == 6:
        last = aggregator.next("begin")
    assert last.round == 7, "nothing is late for the last phase"


def test_epochs_follow_time_budget_and_measured_pace(federate, mosquitto_url, toys, fake_aggregator):
    federation = federate(mosquitto_url, options={"epochs": 4})
    aggregator = fake_aggregator(federation)
    shard = toys.shard(1)
    device = federation.device("pi-1", shard)
    aggregator.next("status")
    aggregator.send_task(1, budget_s=25.0)
    first = aggregator.next("begin")
    assert first.metrics["epochs"] == 1.0, "nothing is measured yet"
    assert aggregator.accept_update(first) == encode_trained_update(federation, toys, shard, 1, 1)
    for round, budget_s, epochs in ((2, 25.0, 4), (3, 1e-9, 1)):
        aggregator.send_task(round, nonce=f"n{round}", budget_s=budget_s)
        begin = aggregator.next("begin")
        assert begin.metrics["epochs"] == epochs
        assert aggregator.accept_update(begin) == encode_trained_update(
            federation, toys, shard, round, epochs
        )
    aggregator.send_task(4, nonce="n4")
    begin = aggregator.next("begin")
    assert "epochs" not in begin.metrics
    assert aggregator.accept_update(begin) == encode_trained_update(federation, toys, shard, 4, 4)
    device.popen.terminate()
    assert device.end() == 0


def test_device_killed_before_upload_sends_its_update_late(federate, mosquitto_url, toys, fake_aggregator):
    federation = federate(mosquitto_url)
    aggregator = fake_aggregator(federation)
    shard = toys.shard(1)
    device = federation.device("pi-1", shard)

    def restart_device():
        device.popen.kill()
        assert not aggregator.next("status").online
        again = federation.device("pi-1")
        while not aggregator.next("status").online:
            pass
        return again

    def receive_begin(number):
        """Acknowledge earlier announcements and return the one of this round."""
        begin = aggregator.next("begin")
        while begin.round < number:
            aggregator.send_receipt(begin, "ok")
            begin = aggregator.next("begin")
        return begin

    aggregator.next("status")
    aggregator.send_task(1, max_staleness=1)
    first = aggregator.next("begin")
    device = restart_device()
    aggregator.send_task(2, nonce="n2", max_staleness=1)
    late = aggregator.next("begin")
    assert (late.round, late.sha256, late.nonce, late.metrics) == (1, first.sha256, "n1", first.metrics)
    assert aggregator.accept_update(late) == encode_trained_update(federation, toys, shard, 1, 2)
    second = receive_begin(2)
    assert second.nonce == "n2"
    device = restart_device()
    aggregator.send_task(4, nonce="n4", max_staleness=1)
    assert aggregator.next("begin").round == 4, "two rounds are too many"
    aggregator.accept_update(receive_begin(4))
    device.wait_for("round 4 federate")
    assert not (federation.directory / "state-pi-1" / "unsent.json").exists()
