"""A device whose answer is late, and one that trains as long as a budget says, against an aggregator that the
test plays.
"""

from edgefl.algorithms import make_algorithm
from edgefl.rng import derive_rng
from edgefl.types import Broadcast, ClientState
from edgefl.wire.tensors import encode_models
from tests.support.numpy_learner.softmax import SoftmaxLearner


def trained(federation, toys, shard, round, epochs):
    """Return the update of so many epochs as it travels."""
    learner = SoftmaxLearner(federation.plan.spec)
    algorithm = make_algorithm("pfl-mfe", learner, {**federation.plan.spec.options, "epochs": epochs})
    broadcast = Broadcast(round, "federate", {"global": toys.weights()})
    return encode_models(
        algorithm.local_update(broadcast, ClientState(), shard, "pi-1", derive_rng(1, round, "pi-1"))[
            0
        ].deltas
    )


def test_a_late_update_is_sent_as_long_as_its_task_says_and_then_the_newest_task_is_done(
    federate, mosquitto_url, toys, lead
):
    federation = federate(mosquitto_url)
    aggregator = lead(federation)
    shard = toys.shard(1)
    device = federation.device("pi-1", shard)
    aggregator.next("status")
    aggregator.task(1, max_staleness=2)
    first = aggregator.next("begin")
    aggregator.task(2, nonce="n2", max_staleness=2)
    aggregator.task(3, nonce="n3", max_staleness=2)
    again = aggregator.next("begin")
    assert (again.round, again.sha256, again.nonce) == (1, first.sha256, "n1")
    assert aggregator.take(again) == trained(federation, toys, shard, 1, 2)
    third = aggregator.next("begin")
    while third.round == 1:  # the task of round 3 may have made it announce itself once more
        aggregator.receipt(third, "ok")
        third = aggregator.next("begin")
    assert third.round == 3, "of two tasks that came meanwhile the newest"
    aggregator.task(6, nonce="n6", max_staleness=2)
    sixth = aggregator.next("begin")
    while sixth.round == 3:
        sixth = aggregator.next("begin")
    assert sixth.round == 6, "three rounds are too many"
    assert "round 3: stopped, because the round is over" in device.said
    aggregator.task(7, "personalize")
    last = aggregator.next("begin")
    while last.round == 6:
        last = aggregator.next("begin")
    assert last.round == 7, "nothing is late for the last phase"


def test_a_budget_becomes_epochs_by_the_pace_of_the_round_before(federate, mosquitto_url, toys, lead):
    federation = federate(mosquitto_url, options={"epochs": 4})
    aggregator = lead(federation)
    shard = toys.shard(1)
    device = federation.device("pi-1", shard)
    aggregator.next("status")
    aggregator.task(1, budget_s=25.0)
    first = aggregator.next("begin")
    assert first.metrics["epochs"] == 1.0, "nothing is measured yet"
    assert aggregator.take(first) == trained(federation, toys, shard, 1, 1)
    for round, budget_s, epochs in ((2, 25.0, 4), (3, 1e-9, 1)):
        aggregator.task(round, nonce=f"n{round}", budget_s=budget_s)
        begin = aggregator.next("begin")
        assert begin.metrics["epochs"] == epochs
        assert aggregator.take(begin) == trained(federation, toys, shard, round, epochs)
    aggregator.task(4, nonce="n4")
    begin = aggregator.next("begin")
    assert "epochs" not in begin.metrics
    assert aggregator.take(begin) == trained(federation, toys, shard, 4, 4)
    device.popen.terminate()
    assert device.end() == 0


def test_a_device_that_was_killed_before_it_sent_its_update_sends_it_late(
    federate, mosquitto_url, toys, lead
):
    federation = federate(mosquitto_url)
    aggregator = lead(federation)
    shard = toys.shard(1)
    device = federation.device("pi-1", shard)

    def killed():
        device.popen.kill()
        assert not aggregator.next("status").online
        again = federation.device("pi-1")
        while not aggregator.next("status").online:
            pass
        return again

    def begin_of(number):
        """Return what the device announces for a round, once it is through with the one before."""
        begin = aggregator.next("begin")
        while begin.round < number:
            aggregator.receipt(begin, "ok")
            begin = aggregator.next("begin")
        return begin

    aggregator.next("status")
    aggregator.task(1, max_staleness=1)
    first = aggregator.next("begin")
    device = killed()
    aggregator.task(2, nonce="n2", max_staleness=1)
    late = aggregator.next("begin")
    assert (late.round, late.sha256, late.nonce, late.metrics) == (1, first.sha256, "n1", first.metrics)
    assert aggregator.take(late) == trained(federation, toys, shard, 1, 2)
    second = begin_of(2)
    assert second.nonce == "n2"
    device = killed()
    aggregator.task(4, nonce="n4", max_staleness=1)
    assert aggregator.next("begin").round == 4, "two rounds are too many"
    aggregator.take(begin_of(4))
    device.wait_for("round 4 federate")
    assert not (federation.directory / "state-pi-1" / "unsent.json").exists()
