"""Rounds: each way to close, each rejection, and invariants under any order of events."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgefl.base.errors import RoundError
from edgefl.protocol.server import rounds


def open_round(cohort=("a", "b", "c", "d"), quorum=0.5, deadline_s=100.0, grace_s=10.0, now=0.0, number=3):
    return rounds.open_round(number, cohort, quorum=quorum, deadline_s=deadline_s, grace_s=grace_s, now=now)


def add_updates(round, *clients):
    for client in clients:
        round, verdict = rounds.receive_update(round, round.number, client, f"sha-{client}")
        assert verdict.kind == "accepted"
    return round


def test_round_of_two_clients_closes_after_both_updates():
    round = open_round(("b", "a"), quorum=1.0)
    assert (round.cohort, round.needed, round.closes) == (("a", "b"), 2, 100.0)
    round = add_updates(round, "a")
    assert rounds.list_missing(round) == ("b",)
    assert not rounds.is_closed(round, 99.0)
    round = add_updates(round, "b")
    assert rounds.is_closed(round, 1.0)


@pytest.mark.parametrize(
    ("clients", "quorum", "needed"),
    [(4, 0.5, 2), (5, 0.5, 3), (1, 0.1, 1), (30, 0.1, 3), (10, 0.7, 7), (3, 1.0, 3)],
)
def test_quorum_is_rounded_up_to_clients(clients, quorum, needed):
    assert open_round([f"c{i}" for i in range(clients)], quorum).needed == needed


def test_deadline_closes_a_round_only_with_quorum():
    short = add_updates(open_round(), "a")
    enough = add_updates(open_round(), "a", "b")
    assert not rounds.is_closed(enough, 99.9)
    assert rounds.is_closed(enough, 100.0)
    assert not rounds.is_closed(short, 100.0)
    assert rounds.is_overdue(short, 100.0)
    assert not rounds.is_overdue(enough, 100.0)


def test_round_with_quorum_closes_after_grace_period_of_offline_clients():
    round = add_updates(open_round(), "a", "b")
    round = rounds.mark_offline(rounds.mark_offline(round, "c", 5.0), "d", 8.0)
    assert rounds.get_timeout(round, 9.0) == 6.0
    assert not rounds.is_closed(round, 17.9)
    assert rounds.is_closed(round, 18.0)
    assert not rounds.is_closed(rounds.mark_online(round, "d"), 18.0)


def test_outstanding_updates_match_hand_count():
    round = add_updates(open_round(), "a")
    assert rounds.count_outstanding(round) == 3
    round = rounds.mark_offline(rounds.mark_offline(round, "a", 1.0), "b", 1.0)
    assert rounds.count_outstanding(round) == 2
    assert rounds.count_outstanding(rounds.mark_failed(round, "c", "NaN")) == 1
    over_selected = rounds.open_round(
        3, "abcd", quorum=0.5, deadline_s=100.0, grace_s=10.0, now=0.0, enough=2
    )
    assert rounds.count_outstanding(add_updates(over_selected, "d")) == 1


def test_repeated_offline_event_does_not_restart_the_grace_period():
    round = rounds.mark_offline(rounds.mark_offline(open_round(), "c", 5.0), "c", 50.0)
    assert round.away == {"c": 5.0}


@pytest.mark.parametrize(
    ("number", "client", "sha", "kind", "message"),
    [
        (2, "b", "x", "rejected", "stale: an update of round 2, round 3 is open"),
        (4, "b", "x", "rejected", "an update of round 4, round 3 is open"),
        (3, "z", "x", "rejected", "z is not in the cohort"),
        (3, "a", "sha-a", "repeated", ""),
        (3, "a", "other", "rejected", "duplicate"),
        (3, "b", "x", "accepted", ""),
    ],
)
def test_verdict_of_each_update_has_kind_and_reason(number, client, sha, kind, message):
    before = add_updates(open_round(), "a")
    after, verdict = rounds.receive_update(before, number, client, sha)
    assert verdict.kind == kind
    assert message in verdict.reason
    assert (after == before) == (kind != "accepted")


def test_failed_client_is_not_awaited_but_may_still_report():
    round = add_updates(open_round(), "a", "b")
    round = rounds.mark_failed(rounds.mark_failed(round, "c", "NaN"), "d", "wrong shape")
    assert rounds.is_closed(round, 1.0)
    round = add_updates(round, "c")
    assert "c" not in round.failed
    assert rounds.mark_failed(round, "c", "late fault") == round


def test_round_without_reachable_quorum_is_extended_three_times():
    round = add_updates(open_round(), "a")
    for client in "bcd":
        round = rounds.mark_failed(round, client, "NaN weights")
    for turn in range(3):
        assert rounds.is_overdue(round, 1.0 + turn)
        round = rounds.extend_round(round, 1.0 + turn)
        assert round.closes == 101.0 + turn
        assert not rounds.is_overdue(round, 2.0 + turn)
        for client in "bcd":
            round = rounds.mark_failed(round, client, "NaN weights")
    with pytest.raises(
        RoundError,
        match=r"1 of 4 updates, expected 2, after 4 deadlines of 100 s; missing: b \(NaN weights\)",
    ):
        rounds.extend_round(round, 9.0)


def test_an_extension_may_be_shorter_than_the_deadline():
    """A personalization of hours is not extended by hours three times."""
    round = rounds.open_round(
        4, ("a",), quorum=1.0, deadline_s=3600.0, extension_s=60.0, grace_s=10.0, now=0.0
    )
    for turn in range(3):
        assert rounds.is_overdue(round, 3600.0 + 60 * turn)
        round = rounds.extend_round(round, 3600.0 + 60 * turn)
        assert round.closes == 3660.0 + 60 * turn
    with pytest.raises(RoundError, match=r"after a deadline of 3600 s and 3 more of 60 s; missing: a"):
        rounds.extend_round(round, 3780.0)


def test_late_admitted_client_is_awaited_without_changing_the_quorum():
    round = add_updates(rounds.admit_client(open_round(("a",)), "b"), "a")
    assert (round.needed, rounds.is_closed(round, 1.0)) == (1, False)
    assert rounds.is_closed(add_updates(round, "b"), 1.0)


def test_removed_client_is_not_awaited_and_lowers_unreachable_quorum():
    """The quorum is three of three. One client reports and another leaves, so it becomes two of two."""
    round = add_updates(open_round(("a", "b", "c"), quorum=1.0), "a")
    round = rounds.remove_client(round, "b")
    assert (round.cohort, round.needed) == (("a", "c"), 2)
    assert rounds.remove_client(round, "a") == round
    assert rounds.remove_client(round, "unknown") == round
    assert not rounds.is_closed(round, 1.0)
    assert rounds.is_closed(add_updates(round, "c"), 1.0)


def test_quorum_stays_while_enough_clients_remain():
    round = rounds.remove_client(open_round(("a", "b", "c", "d"), quorum=0.5), "d")
    assert (len(round.cohort), round.needed) == (3, 2)


def test_round_without_clients_waits_until_deadline_for_another_client():
    round = rounds.remove_client(open_round(("a",), quorum=1.0, deadline_s=100.0), "a")
    assert not rounds.is_overdue(round, 99.0) and rounds.is_overdue(round, 100.0)
    round = rounds.admit_client(round, "b")
    assert rounds.is_closed(add_updates(round, "b"), 1.0)


def test_an_empty_cohort_is_an_error():
    with pytest.raises(RoundError, match="start a device"):
        open_round(())


EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["receive", "stale", "fail", "offline", "online"]),
        st.sampled_from("abcdx"),
        st.floats(0, 30),
    ),
    max_size=30,
)


@given(EVENTS, st.floats(0.01, 1))
@settings(deadline=None, max_examples=150)
def test_round_invariants_hold_under_any_events(events, quorum):
    round = open_round(quorum=quorum)
    now = 0.0
    for kind, client, seconds in events:
        now += seconds
        before = round
        if kind == "receive":
            round, _ = rounds.receive_update(round, 3, client, "sha")
        elif kind == "stale":
            round, _ = rounds.receive_update(round, 2, client, "sha")
            assert round == before
        elif kind == "fail":
            round = rounds.mark_failed(round, client, "why")
        elif kind == "offline":
            round = rounds.mark_offline(round, client, now)
        else:
            round = rounds.mark_online(round, client)
        assert set(before.received) <= set(round.received) <= set(round.cohort)
        assert not set(round.received) & set(round.failed)
        assert not (rounds.is_closed(round, now) and rounds.is_overdue(round, now))
        assert rounds.is_closed(round, now) <= rounds.has_quorum(round)
        # a round always closes or is overdue at its deadline, and does not close before get_timeout
        assert rounds.is_closed(round, round.closes) or rounds.is_overdue(round, round.closes)
        if now < round.closes and not rounds.is_closed(round, now) and not rounds.is_overdue(round, now):
            wait = rounds.get_timeout(round, now)
            assert wait > 0
            assert not rounds.is_closed(round, now + wait * 0.99)
