"""The order of tasks with known values, and what the owner allows a device to send."""

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgefl.base.errors import WireError
from edgefl.protocol.device.order import MASKED_ONLY_REASON, SharingRules, TaskOrder, check_session
from edgefl.protocol.wire.masked import MASKED_CODEC
from edgefl.protocol.wire.messages import State, Task


def make_task(started, round, session="", codec="fp32", phase="federate"):
    return Task(
        session=session or f"s{started}",
        round=round,
        phase=phase,
        plan="p",
        models={},
        scalars={},
        seed=1,
        deadline_s=30.0,
        codec=codec,
        max_staleness=0,
        budget_s=0.0,
        nonce="n",
        ts=0.0,
        started=started,
    )


def make_state(started, session="", phase="joining"):
    return State(
        federation="f",
        session=session or f"s{started}",
        phase=phase,
        round=0,
        rounds=3,
        cohort_size=0,
        deadline_s=30.0,
        plan="p",
        ts=0.0,
        started=started,
    )


def accepts(order, message, lines=None):
    """Return whether the order accepts a message, and add the line about a refusal to `lines`."""
    reason = order.explain_refusal(message)
    line = order.describe_new_refusal(message, reason) if reason else ""
    if lines is not None and line:
        lines.append(line)
    return not reason


def test_order_accepts_repeated_and_newer_tasks_only():
    """The order accepts the same task again, a later round, a restart of the aggregator and a later
    federation.
    """
    order = TaskOrder()
    lines = []
    accepted = [
        (make_task(1000, 1), True),
        (make_task(1000, 1), True),
        (make_task(1000, 3), True),
        (make_task(1000, 2), False),
        (make_task(999, 4), False),
        (make_task(1001, 2, "s1000"), True),  # the aggregator was restarted from a backup of round 1
        (make_task(1000, 5), False),
        (make_state(2000), True),
        (make_task(1001, 3, "s1000"), False),
        (make_state(1000, phase="done"), False),
        (make_task(2000, 1, "another"), False),
        (make_task(2000, 1), True),
    ]
    for message, expected in accepted:
        assert accepts(order, message, lines) is expected, message
    assert len(lines) == 6
    assert all("restart this device" in line or "restart the aggregator" in line for line in lines)
    # the same holds after a restart of the device with the stored order, but not for another federation
    restarted = TaskOrder(order.newest)
    assert not accepts(restarted, make_task(1001, 9, "s1000"))
    assert accepts(restarted, make_task(2000, 1))
    assert accepts(TaskOrder(), make_task(1, 1))


def test_refused_task_is_logged_once():
    order = TaskOrder()
    lines = []
    accepts(order, make_task(5, 1), lines)
    for _ in range(3):
        accepts(order, make_task(4, 1), lines)
    assert len(lines) == 1
    for started in range(-500, 4):
        accepts(order, make_task(started, 1), lines)
    assert len(lines) == 100, "a flood of recordings must not fill the disk"


def test_masked_session_stays_masked():
    order = TaskOrder()
    assert accepts(order, make_task(1, 1))
    assert accepts(order, make_task(1, 1, codec=MASKED_CODEC))
    for each in (order, TaskOrder(order.newest)):
        assert not accepts(each, make_task(1, 1))
        assert not accepts(each, make_task(2, 1, "s1")), "nor after a restart of the aggregator"
        assert each.should_withhold(make_task(1, 1))
        assert accepts(each, make_task(2, 2, "s1", phase="personalize")), "its answer holds no tensor"
        assert accepts(each, make_task(2, 2, "s1", phase="unmask"))
        assert each.pause_reason == ""
    assert accepts(order, make_task(3, 1)), "another session may be unmasked, unless the owner says otherwise"


def test_masked_only_device_pauses_until_masked_task_or_new_federation():
    for solution in (make_task(1, 1, codec=MASKED_CODEC), make_state(2)):
        order = TaskOrder(sharing=SharingRules(masked_only=True))
        assert not accepts(order, make_task(1, 1))
        assert order.pause_reason == MASKED_ONLY_REASON
        assert accepts(order, make_state(1))
        assert order.pause_reason == MASKED_ONLY_REASON
        assert accepts(order, solution)
        assert order.pause_reason == ""


@pytest.mark.parametrize(
    "codec", ["int99", "int99+masked", "int8+masked", "fp32+deflate+masked", "top-60", "", "x" * 1000]
)
def test_device_refuses_a_codec_that_it_lacks_before_it_trains(codec):
    order = TaskOrder()
    lines = []
    assert not accepts(order, make_task(1, 1, codec=codec), lines)
    assert f"codec {codec[:40]!r}: expected fp32, fp16, int8" in lines[0]
    assert "update edgefl on this device" in lines[0]
    assert order.pause_reason.startswith(f"refuses this federation: codec {codec[:40]!r}")
    assert len(order.pause_reason) < 300
    for solution in (make_task(1, 2), make_task(2, 1)):
        order.pause_reason = order.pause_reason or "refuses this federation: " + lines[0].partition(": ")[2]
        assert accepts(order, solution), "a later round or federation has another codec"
        assert order.pause_reason == ""


def test_combined_sharing_rules_are_the_stricter_of_both():
    for (a, b), (m, n) in product(product((False, True), repeat=2), product((0, 4, 9), repeat=2)):
        assert SharingRules(a, m).combine(SharingRules(b, n)) == SharingRules(a or b, max(m, n))


def test_least_clients_implies_masked_only():
    order = TaskOrder(sharing=SharingRules(least_clients=4))
    lines = []
    assert not accepts(order, make_task(1, 1), lines), "a plain update is the sum of one client"
    assert order.pause_reason == MASKED_ONLY_REASON
    assert order.should_withhold(make_task(1, 1))
    assert "--least-clients 4" in lines[0]
    assert accepts(order, make_task(1, 1, codec=MASKED_CODEC))


def test_refusal_after_future_state_names_clock_and_remedy():
    for order, remedy in (
        (TaskOrder(reset_remedy="remove order-f.json"), "remove order-f.json"),
        (TaskOrder(), "restart this device"),
    ):
        accepts(order, make_state(2**60))
        reason = order.explain_refusal(make_task(1, 1))
        assert "set the clock" in reason and "years ahead" in reason and remedy in reason


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), max_size=12))
@settings(deadline=None)
def test_accepted_tasks_never_go_backwards(pairs):
    order = TaskOrder()
    accepted = []
    for started, round in pairs:
        if accepts(order, make_task(started, round)):
            accepted.append((started, round))
    assert accepted == sorted(accepted)
    assert not pairs or accepted[0] == pairs[0]
    assert max(accepted, default=None) == max(pairs[:1] + accepted, default=None)


@pytest.mark.parametrize("session", ["a" * 65, "\x7f", "two words", "a\n", "../x"])
def test_session_that_cannot_be_stored_is_refused(session):
    for message in (make_task(1, 1, session), make_state(1, session)):
        with pytest.raises(WireError, match=r"names the session .*, expected up to 64 letters"):
            check_session(message)
