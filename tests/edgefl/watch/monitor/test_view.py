"""The view of a federation after hand-written messages."""

import math
from itertools import permutations

import pytest

from edgefl.base.verdict import as_dict, judge_federation
from edgefl.protocol.wire.messages import (
    Anomaly,
    Begin,
    Clusters,
    Metrics,
    Receipt,
    State,
    Status,
    Summary,
    Task,
)
from edgefl.protocol.wire.strict_json import encode_json
from edgefl.protocol.wire.topics import FederationTopics, matches_filter
from edgefl.protocol.wire.verdict_message import make_verdict_message
from edgefl.watch.monitor.view import FederationView, list_view_subscriptions, snapshot

TOPICS = FederationTopics("kitchen")
SHA = "ab" * 32


def state(phase="federate", round=1, session="s1", ts=100.0, deadline_s=60.0, **settings):
    message = State(
        federation="kitchen",
        session=session,
        phase=phase,
        round=round,
        rounds=20,
        cohort_size=2,
        deadline_s=deadline_s,
        plan=SHA,
        ts=ts,
        settings=settings,
    )
    return TOPICS.state, encode_json(message)


def status(client_id="pi-1", online=True, boot="b1", ts=90.0, **more):
    return TOPICS.format_device(client_id, "status"), encode_json(
        Status(
            client_id=client_id,
            boot_id=boot,
            online=online,
            born=90.0,
            num_samples=40,
            version="0.1.0",
            ts=ts,
            **more,
        )
    )


def task(client_id="pi-1", round=1, session="s1", codec="fp32"):
    message = Task(
        session=session,
        round=round,
        phase="federate",
        plan=SHA,
        models={"global": SHA},
        scalars={},
        seed=1,
        deadline_s=60.0,
        codec=codec,
        max_staleness=0,
        budget_s=0.0,
        nonce="n",
        ts=100.0,
    )
    return TOPICS.format_device(client_id, "task"), encode_json(message)


def begin(client_id="pi-1", round=1, session="s1", size=1000, sha=SHA, **metrics):
    message = Begin(
        client_id=client_id,
        session=session,
        round=round,
        plan=SHA,
        sha256=sha,
        size=size,
        count=1,
        chunk_bytes=65536,
        num_samples=40,
        metrics=metrics or {"loss": 0.5},
        nonce="n",
        ts=110.0,
    )
    return TOPICS.format_upload(client_id, sha, "begin"), encode_json(message)


def receipt(client_id="pi-1", round=1, outcome="ok", reason=""):
    return TOPICS.format_device(client_id, "receipt"), encode_json(
        Receipt(round=round, sha256=SHA, outcome=outcome, missing=(), reason=reason, nonce="n", ts=111.0)
    )


def metrics(client_id="pi-1", round=1, **values):
    return TOPICS.format_device(client_id, "metrics"), encode_json(
        Metrics(
            client_id=client_id,
            round=round,
            values=values,
            rss_mb=45.0,
            peak_rss_mb=70.0,
            temperature_c=math.nan,
            seconds=1.5,
            ts=112.0,
        )
    )


def summary(round=1, loss=0.4, dropped=(), **metrics):
    return TOPICS.format_summary(round), encode_json(
        Summary(
            round=round,
            phase="federate",
            updates=2,
            loss=loss,
            accuracy_mean=math.nan,
            accuracy_p10=0.8,
            accuracy_p90=1.0,
            bytes_up=300,
            bytes_down=700,
            seconds=2.5,
            dropped=dropped,
            ts=113.0,
            metrics=metrics,
        )
    )


def clusters(round=1, session="s1", **assignment):
    return TOPICS.clusters, encode_json(
        Clusters(
            session=session,
            round=round,
            assignment=assignment,
            layer="",
            clients=(),
            matrix=(),
            linkage=(),
            cut=math.nan,
            ts=114.0,
        )
    )


VERDICT = judge_federation([{"id": "pi-1", "accuracy_local": 0.5, "accuracy_shipped": 0.75, "shipped": 3.0}])


def verdict(session="s1"):
    return TOPICS.verdict, encode_json(make_verdict_message(VERDICT, session, 115.0, with_rows=True))


def take_snapshot(*messages, now=120.0):
    """Return the snapshot at `now` after some messages. A number sets the time of the messages after it."""
    view = FederationView("kitchen")
    at = 100.0
    for message in messages:
        if isinstance(message, float):
            at = message
        else:
            view.take(*message, at)
    return snapshot(view, now)


def find_device(client_id, tree):
    return next(device for device in tree["devices"] if device["id"] == client_id)


def test_snapshot_describes_an_open_round():
    tree = take_snapshot(
        state(phase="joining", round=0),
        status(),
        status("pi-2"),
        101.0,
        state(ts=101.0),
        task(),
        task("pi-2"),
        103.5,
        begin(),
        receipt(outcome="wait"),
        receipt(),
        metrics(loss=0.5, seconds=1.5),
        now=104.0,
    )
    assert {
        key: tree[key]
        for key in (
            "federation",
            "session",
            "phase",
            "round",
            "rounds",
            "cohort_size",
            "deadline_s",
            "broken",
        )
    } == {
        "federation": "kitchen",
        "session": "s1",
        "phase": "federate",
        "round": 1,
        "rounds": 20,
        "cohort_size": 2,
        "deadline_s": 60.0,
        "broken": 0,
    }
    assert (tree["round_started_ts"], tree["ts"], tree["history"]) == (101.0, 104.0, [])
    assert find_device("pi-1", tree) == {
        "id": "pi-1",
        "state": "sent",
        "why": "",
        "slow": False,
        "samples": 40,
        "version": "0.1.0",
        "last_seen_ts": 103.5,
        "round": 1,
        "measure": "accuracy",
        "accuracy": None,
        "loss": 0.5,
        "accuracy_local": None,
        "accuracy_federated": None,
        "accuracy_mixture": None,
        "accuracy_shipped": None,
        "accuracy_int8": None,
        "shipped": None,
        "rss_mb": 45.0,
        "peak_rss_mb": 70.0,
        "temperature_c": None,
        "seconds": 1.5,
        "expert": None,
        "gate": None,
        "bytes_up": 1000,
        "rejected": 0,
        "last_error": "",
        "anomaly": None,
        "trace": [[1, 0.5]],
        "trace_of": "loss",
    }
    assert (
        find_device("pi-2", tree)["state"],
        find_device("pi-2", tree)["why"],
        find_device("pi-2", tree)["last_seen_ts"],
    ) == (
        "training",
        "",
        90.0,
    )


def test_snapshot_has_what_was_measured_before_round_1():
    measured = {"learning_rate": 0.03, "mean_0": 0.5, "std_0": 2.0}
    assert take_snapshot(state("federate", 1, **measured))["recipe"] == "learning_rate 0.03, mean 0.5, std 2"
    assert take_snapshot(state("federate", 1))["recipe"] == take_snapshot(status())["recipe"] == ""


def test_snapshot_shows_whether_differential_privacy_is_on():
    assert take_snapshot(state("done", 21, differential_privacy=1.0))["differential_privacy"] is True
    assert take_snapshot(state("done", 21))["differential_privacy"] is False
    assert take_snapshot(status())["differential_privacy"] is False


def test_late_view_reads_finished_devices_from_the_verdict():
    offline = [status(client_id, online=False) for client_id in ("pi-1", "pi-2")]
    tree = take_snapshot(*offline, state("done", 21), verdict())
    assert [(device["id"], device["state"]) for device in tree["devices"]] == [
        ("pi-1", "finished"),
        ("pi-2", "idle"),
    ]
    assert find_device("pi-1", take_snapshot(*offline, state("federate", 2), verdict()))["state"] == "offline"
    late_messages = status("pi-2"), task("pi-2", round=21), begin("pi-2", round=21, accuracy_shipped=0.9)
    device = find_device(
        "pi-2", take_snapshot(state("personalize", 21), *late_messages, state("done", 21), verdict())
    )
    assert (device["state"], device["why"]) == ("finished", "its model arrived too late for the verdict")


def test_snapshot_shows_the_required_number_of_devices():
    assert take_snapshot(state("joining", 0, min_clients=3.0), status())["needed"] == 3
    for settings in ({}, {"min_clients": 0.0}, {"min_clients": math.nan}, {"min_clients": 1e300}):
        assert take_snapshot(state("joining", 0, **settings))["needed"] is None
    assert take_snapshot(status())["needed"] is None


@pytest.mark.parametrize(
    ("num_local", "experts", "names"),
    [
        (1.0, 2, ["global", "local"]),
        (1.0, 3, ["expert 0", "expert 1", "local"]),
        (0.0, 2, ["expert 0", "expert 1"]),
        (1.0, 0, []),
    ],
)
def test_gate_experts_have_the_same_names_as_in_a_simulation(num_local, experts, names):
    gate = {f"gate_{index}": 1 / experts for index in range(experts)}
    assert take_snapshot(state(own_experts=num_local), status(), metrics(**gate))["experts"] == names


def test_late_view_reads_device_results_from_the_verdict():
    """The order of the retained messages does not matter."""
    offline, done = status(online=False), state("done", 21)
    for messages in permutations((offline, done, verdict())):
        device = find_device("pi-1", take_snapshot(*messages))
        assert (device["state"], device["accuracy"], device["accuracy_local"]) == ("finished", 0.75, 0.5)
    with_metrics = take_snapshot(done, offline, metrics(accuracy_shipped=0.5), verdict())
    assert find_device("pi-1", with_metrics)["accuracy_shipped"] == 0.5
    assert (
        find_device("pi-2", take_snapshot(done, verdict(), status("pi-2", online=False)))["state"] == "idle"
    )
    assert (
        find_device("pi-1", take_snapshot(done, verdict(), offline, state(session="s2")))["accuracy_local"]
        is None
    )


def test_only_the_verdict_of_the_current_session_is_shown():
    assert take_snapshot(state())["verdict"] is None
    done = state("done", 21)
    for messages in ((done, verdict()), (verdict(), done), (verdict("s0"), done, verdict())):
        assert take_snapshot(*messages)["verdict"] == as_dict(VERDICT)
    next_session = state("joining", 0, session="s2")
    cleared = TOPICS.verdict, b""
    for messages in (
        (verdict(),),
        (done, verdict("s0")),
        (verdict("s0"), done),
        (done, verdict(), next_session),
        (done, verdict(), cleared),
    ):
        assert take_snapshot(*messages)["verdict"] is None
    assert TOPICS.verdict in list_view_subscriptions("kitchen")


def anomaly(score=0.5, alarm=True, client_id="pi-1"):
    message = Anomaly(
        client_id=client_id, score=score, threshold=0.25, alarm=alarm, windows=40, alarms=3, ts=90.0
    )
    return TOPICS.format_device("pi-1", "anomaly"), encode_json(message)


def test_anomaly_outlasts_a_session_until_it_is_cleared():
    expected = {"alarm": True, "score": 0.5, "threshold": 0.25, "windows": 40, "alarms": 3, "ts": 90.0}
    tree = take_snapshot(anomaly(math.nan), status(), anomaly(), state(), state(session="s2"))
    assert find_device("pi-1", tree)["anomaly"] == expected
    cleared = (TOPICS.format_device("pi-1", "anomaly"), b"")
    assert find_device("pi-1", take_snapshot(anomaly(), cleared))["anomaly"] is None
    assert take_snapshot(anomaly(client_id="pi-2"))["broken"] == 1


def test_figures_of_another_task_have_its_measure():
    tree = take_snapshot(state(), begin(loss=0.5, r2=0.25), summary(r2_mean=0.25), metrics(round=2, r2=0.5))
    device = find_device("pi-1", tree)
    assert (tree["measure"], tree["history"][0]["measure"], device["measure"]) == ("R2", "R2", "R2")
    assert (device["accuracy"], device["trace_of"], device["trace"]) == (0.5, "r2", [[1, 0.25], [2, 0.5]])
    final = metrics(round=3, auc_local=0.5, auc_shipped=0.75, r2_local=0.1, r2_shipped=0.2)
    tree = take_snapshot(
        state(), metrics(r2=0.25), summary(r2_mean=0.25), final, summary(2, auc_shipped_mean=0.75)
    )
    device = find_device("pi-1", tree)
    assert (tree["measure"], [row["measure"] for row in tree["history"]]) == ("AUC", ["R2", "AUC"])
    assert (device["measure"], device["accuracy"], device["accuracy_local"]) == ("AUC", 0.75, 0.5)


def test_summary_becomes_a_history_row_without_nan():
    tree = take_snapshot(state(), summary(dropped=("pi-9",)), summary(2, math.nan, auc_mean=0.5, x=math.inf))
    assert tree["history"][0] == {
        "round": 1,
        "phase": "federate",
        "updates": 2,
        "loss": 0.4,
        "measure": "accuracy",
        "accuracy_mean": None,
        "accuracy_p10": 0.8,
        "accuracy_p90": 1.0,
        "bytes_up": 300,
        "bytes_down": 700,
        "seconds": 2.5,
        "dropped": ["pi-9"],
        "metrics": {},
    }
    assert (tree["history"][1]["round"], tree["history"][1]["loss"]) == (2, None)
    assert tree["history"][1]["metrics"] == {"auc_mean": 0.5, "x": None}
    again = take_snapshot(state(), summary(), summary(2), summary(2, 0.1))["history"]
    assert [(row["round"], row["loss"]) for row in again] == [(1, 0.4), (2, 0.1)]


JOINING = state(phase="joining", round=0)
MEASURED = (state("personalize", 21), status(), task(round=21), begin(round=21, accuracy_mixture=0.9))


@pytest.mark.parametrize(
    ("messages", "now", "expected", "why"),
    [
        ([status()], 120.0, "idle", "no aggregator is running this federation"),
        ([JOINING, status()], 120.0, "idle", "the first round has not started"),
        ([state("stopped", 0), status()], 120.0, "idle", "the aggregator has stopped"),
        ([state("done", 21), status()], 120.0, "idle", "the federation is done"),
        ([state("done", 21), status(online=False)], 120.0, "idle", "offline; the federation is done"),
        ([*MEASURED, state("done", 21)], 120.0, "finished", ""),
        ([*MEASURED, state("done", 21), status(online=False)], 120.0, "finished", ""),
        ([*MEASURED, status(online=False)], 120.0, "offline", "offline"),
        (
            [state(), status(), task(), status(online=False), state("done", 21)],
            120.0,
            "offline",
            "offline: it left before the end and has no model of its own",
        ),
        ([*MEASURED, state("done", 21, session="s2")], 120.0, "idle", "the federation is done"),
        ([state(), status()], 120.0, "idle", "no task seen: this view opened after the round had started"),
        ([JOINING, status(), state()], 120.0, "idle", "not selected for this round"),
        ([state(), status(online=False)], 120.0, "offline", "offline"),
        ([state(), status(paused="on battery")], 120.0, "paused", "paused: on battery"),
        ([state(), status(paused="operator")], 120.0, "paused", "paused: by its operator"),
        ([state(), status(paused="busy", draining=True), task()], 120.0, "training", ""),
        ([state(), status(), task()], 160.0, "training", ""),
        ([state(), status(), task()], 160.5, "silent", "silent: no answer to round 1 for 60 s"),
        (
            [state(), status(), task(), 130.0, state(round=2), task(round=2)],
            160.5,
            "silent",
            "silent: no answer to round 2 for 60 s",
        ),
        ([state(), status(), task(), 130.0, begin(), state(round=2), task(round=2)], 160.5, "training", ""),
        (
            [state(), status(), task(), begin(), receipt(outcome="rejected", reason="no kernel")],
            120.0,
            "rejected",
            "rejected: no kernel",
        ),
        ([state(), status(), task(), begin(), receipt(outcome="rejected"), task()], 120.0, "training", ""),
        ([state(), status(), task(), begin(), task()], 120.0, "sent", ""),
        ([state(), status(), task(), 110.0, begin()], 170.0, "sent", ""),
        (
            [state(), status(), task(), 110.0, begin()],
            170.5,
            "silent",
            "silent: its update of round 1 is missing for 60 s",
        ),
        ([state(), status(), task(), 110.0, begin(), 150.0, begin()], 170.5, "sent", ""),
        ([state(), status(), task(), 110.0, begin(), receipt()], 170.5, "sent", ""),
        ([state(), status(), task(), receipt()], 120.0, "sent", ""),
        (
            [state(), status(), task(), state(round=2)],
            120.0,
            "training",
            "late: still working on round 1, for 20 s",
        ),
        (
            [state(), status(), task(), begin(), receipt(), state(round=2)],
            120.0,
            "idle",
            "not selected for this round",
        ),
        (
            [state(), status(), task(), begin(), state(session="s2")],
            120.0,
            "idle",
            "not selected for this round",
        ),
    ],
)
def test_device_has_a_state_and_a_reason_for_missing_the_round(messages, now, expected, why):
    device = find_device("pi-1", take_snapshot(*messages, now=now))
    assert (device["state"], device["why"]) == (expected, why)


def test_a_device_that_takes_twice_the_median_time_is_slow():
    open_round = [state(), *(message for i in range(4) for message in (status(f"pi-{i}"), task(f"pi-{i}")))]
    # Answers after 4, 10 and 12 s: the median is 10
    answers = [
        104.0,
        begin("pi-0"),
        110.0,
        begin("pi-1"),
        112.0,
        begin("pi-2"),
    ]
    before, after = (
        find_device("pi-3", take_snapshot(*open_round, *answers, now=now)) for now in (120.0, 121.0)
    )
    assert (before["state"], before["slow"], before["why"]) == ("training", False, "")
    assert (after["state"], after["slow"]) == ("training", True)
    assert after["why"] == "slow: working for 21 s, the median of the others is 10 s"


def test_only_the_last_will_of_the_current_boot_takes_a_device_offline():
    assert (
        find_device("pi-1", take_snapshot(status(boot="b2"), status(online=False, boot="b1")))["state"]
        == "idle"
    )
    assert (
        find_device("pi-1", take_snapshot(status(boot="b2"), status(online=False, boot="b2")))["state"]
        == "offline"
    )
    assert (
        find_device(
            "pi-1", take_snapshot(status(boot="b1"), status(online=False, boot="b1"), status(boot="b2"))
        )["state"]
        == "idle"
    )


def test_errors_are_counted_and_the_last_one_is_shown():
    refusal = receipt(outcome="rejected", reason="x" * 500)
    device = find_device("pi-1", take_snapshot(state(), status(), task(), refusal, refusal))
    assert (device["rejected"], device["last_error"]) == (2, "round 1: " + "x" * 300)
    assert (
        find_device("pi-1", take_snapshot(state(), status(), task(), summary(dropped=("pi-1",))))[
            "last_error"
        ]
        == "round 1 ended without its update"
    )


def test_an_update_announced_twice_is_counted_once():
    again = begin(sha="cd" * 32, size=50)
    assert (
        find_device("pi-1", take_snapshot(state(), status(), task(), begin(), begin(), again))["bytes_up"]
        == 1050
    )
    assert find_device("pi-1", take_snapshot(state(), status(), metrics(bytes_up=5000.0)))["bytes_up"] == 5000


def test_personalized_device_shows_its_mixture_and_gate():
    values = {
        "accuracy_federated": 0.8,
        "accuracy_mixture": 0.9,
        "accuracy_shipped_int8": 0.88,
        "gate_0": 0.25,
        "gate_1": 0.75,
        "gate_3": 1.0,
    }
    device = find_device(
        "pi-1",
        take_snapshot(
            state(),
            status(),
            metrics(round=1, loss=0.5),
            metrics(round=2, loss=0.4),
            metrics(round=21, **values),
        ),
    )
    assert (device["accuracy"], device["accuracy_federated"], device["accuracy_int8"]) == (0.9, 0.8, 0.88)
    assert (device["gate"], device["expert"], device["round"]) == ([0.25, 0.75], 1, 21)
    assert (device["trace"], device["trace_of"]) == ([[1, 0.5], [2, 0.4]], "loss")
    device = find_device("pi-1", take_snapshot(state(), status(), begin(**{"q/0": 0.6, "q/1": 0.4})))
    assert (device["expert"], device["gate"]) == (0, None)


def test_clusters_of_other_sessions_are_ignored():
    first = clusters(1, **{"pi-1": 0})
    second = clusters(2, **{"pi-1": 1})
    old = clusters(9, session="s0", **{"pi-1": 5})
    expected = [{"round": 1, "assignment": {"pi-1": 0}}, {"round": 2, "assignment": {"pi-1": 1}}]
    for messages in ([state(), first, second, second], [first, second, state()]):
        tree = take_snapshot(status(), *messages)
        assert tree["clusters"] == {"rounds": expected, "similarity": None}
        assert find_device("pi-1", tree)["expert"] == 1
    assert (
        take_snapshot(old, state())["clusters"]["rounds"]
        == take_snapshot(state(), old)["clusters"]["rounds"]
        == []
    )
    assert take_snapshot(state(), first, state(session="s2"))["clusters"]["rounds"] == []


def test_similarity_is_shown_until_the_next_similarity():
    matrix = ((1.0, 0.5), (0.5, 1.0))
    linkage = ((0, 1, 0.5, 2),)
    message = Clusters(
        session="s1",
        round=1,
        assignment={"a": 0, "b": 0},
        layer="fc1",
        clients=("a", "b"),
        matrix=matrix,
        linkage=linkage,
        cut=math.nan,
        ts=1.0,
        compared=1,
    )
    tree = take_snapshot(state(), (TOPICS.clusters, encode_json(message)), clusters(2, a=0, b=0))
    assert tree["clusters"]["similarity"] == {
        "round": 1,
        "layer": "fc1",
        "clients": ["a", "b"],
        "matrix": [[1.0, 0.5], [0.5, 1.0]],
        "linkage": [[0, 1, 0.5, 2]],
        "cut": None,
    }


def test_new_session_resets_the_view_but_not_the_devices():
    tree = take_snapshot(
        state(),
        status(),
        task(),
        begin(),
        receipt(outcome="rejected"),
        summary(),
        130.0,
        state(session="s2", ts=130.0),
    )
    device = find_device("pi-1", tree)
    assert (tree["session"], tree["history"], tree["round_started_ts"]) == ("s2", [], 130.0)
    assert (device["samples"], device["rejected"], device["trace"], device["loss"], device["bytes_up"]) == (
        40,
        0,
        [],
        None,
        0,
    )


@pytest.mark.parametrize(
    "message",
    [
        (TOPICS.state, b"{"),
        (TOPICS.state, b"\xff"),
        ("edgefl/v2/kitchen/what", b"1"),
        ("x", b""),
        ("edgefl/v2/other/state", state()[1]),
        (TOPICS.format_device("pi-1", "status"), status("pi-2")[1]),
        (TOPICS.format_summary(2), summary(1)[1]),
        (TOPICS.format_device("pi-1", "task"), b"[]"),
        (TOPICS.format_device("pi-1", "metrics"), b'{"ts": 1' + b"0" * 400 + b"}"),
    ],
)
def test_invalid_messages_are_counted(message):
    assert take_snapshot(state(), message)["broken"] == 1


def test_cleared_status_removes_the_device():
    assert take_snapshot(status(), (TOPICS.format_device("pi-1", "status"), b""))["devices"] == []


def test_the_subscriptions_cover_all_processed_messages_and_no_chunks():
    filters = list_view_subscriptions("kitchen")
    for topic, _ in (state(), status(), task(), begin(), receipt(), metrics(), summary(), clusters()):
        assert any(matches_filter(pattern, topic) for pattern in filters)
    for topic in (
        TOPICS.format_blob(SHA, 0),
        TOPICS.format_manifest(SHA),
        TOPICS.format_upload("pi-1", SHA, 0),
        TOPICS.format_upload("pi-1", SHA, "end"),
    ):
        assert not any(matches_filter(pattern, topic) for pattern in filters)
