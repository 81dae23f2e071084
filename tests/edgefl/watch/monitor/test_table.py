"""A snapshot as text: summary, rows, order, filter, the page of a device, and line widths."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgefl.base.system import format as text_format
from edgefl.base.verdict import as_dict, judge_federation
from edgefl.watch.monitor.device_page import format_device_page
from edgefl.watch.monitor.table import (
    SORT_COLUMNS,
    choose_columns,
    format_head,
    format_header,
    format_row,
    format_snapshot,
    select_devices,
)


def make_device(name, state="idle", **more):
    empty = dict.fromkeys(
        (
            "samples",
            "last_seen_ts",
            "round",
            "accuracy",
            "loss",
            "accuracy_federated",
            "accuracy_mixture",
            "accuracy_local",
            "accuracy_shipped",
            "accuracy_int8",
            "rss_mb",
            "peak_rss_mb",
            "temperature_c",
            "seconds",
            "expert",
            "gate",
            "anomaly",
        )
    )
    defaults = {
        "bytes_up": 0,
        "rejected": 0,
        "last_error": "",
        "trace": [],
        "trace_of": "",
        "measure": "accuracy",
        "version": "",
        "why": "",
        "slow": False,
    }
    return {**empty, **defaults, "id": name, "state": state, **more}


def make_snapshot(*devices, **more):
    return {
        "federation": "kitchen",
        "session": "s",
        "phase": "federate",
        "round": 7,
        "rounds": 20,
        "measure": "accuracy",
        "cohort_size": 4,
        "deadline_s": 60.0,
        "round_started_ts": 978.0,
        "ts": 1000.0,
        "broken": 0,
        "stopped_because": "",
        "differential_privacy": False,
        "recipe": "",
        "verdict": None,
        "needed": None,
        "experts": [],
        "history": [],
        "devices": list(devices),
        "clusters": {"rounds": [], "similarity": None},
        **more,
    }


ROUND = {
    "round": 6,
    "phase": "federate",
    "updates": 4,
    "loss": 0.421,
    "measure": "accuracy",
    "accuracy_mean": 0.912,
    "accuracy_p10": 0.84,
    "accuracy_p90": 0.971,
    "bytes_up": 2_500_000,
    "bytes_down": 950,
    "seconds": 3.0,
    "dropped": [],
}


def test_alarm_of_a_device_is_shown():
    anomaly = {"alarm": True, "score": 0.5, "threshold": 0.25, "windows": 40, "alarms": 3, "ts": 990.0}
    alarmed = make_device("a", "finished", anomaly=anomaly)
    quiet = make_device("b", "finished", anomaly=anomaly | {"alarm": False, "score": 0.125})
    lines = format_snapshot(make_snapshot(alarmed, quiet), 160)
    assert "2 devices: 2 finished, 1 with an ALARM" in lines
    text = "ALARM: score 0.5000 above 0.2500, 3 alarms in 40 windows"
    assert [text in line for line in lines[-2:]] == [True, False]
    assert f"{'anomaly':18} {text}, 10 s" in format_device_page(alarmed, 1000.0, 100)
    assert any("normal: score 0.1250" in line for line in format_device_page(quiet, 1000.0, 100))


def test_table_of_a_regression_names_r2():
    device = make_device("a", "sent", accuracy=0.75, measure="R2", trace_of="r2", trace=[[1, 0.5], [2, 0.75]])
    tree = make_snapshot(device, measure="R2", history=[ROUND | {"measure": "R2"}])
    lines = format_snapshot(tree, 80)
    assert any("R2 mean 91.2%, p10 84.0%, p90 97.1%" in line for line in lines)
    assert not any("acc" in line for line in lines)
    assert "R2" in lines[-2].split() and "75.0%" in lines[-1].split()
    page = format_device_page(device, 1000.0, 80)
    assert next(line for line in page if line.startswith("R2 ")).endswith("75.0%")
    assert not any(line.startswith(("accuracy", "r2")) for line in page)


def test_head_shows_round_devices_and_accuracy():
    devices = [
        make_device("a", "sent"),
        make_device("b", "training", slow=True),
        make_device("c", "training"),
        make_device("d", "offline"),
    ]
    assert format_head(make_snapshot(*devices, history=[ROUND]), 80) == [
        "kitchen: round 7 of 20, federate, 1 of 4 updates, 22 of 60 s █████░░░░░░░░░░░░░░",
        "4 devices: 1 offline, 1 slow, 1 training, 1 sent",
        "round 6: loss 0.4210, accuracy mean 91.2%, p10 84.0%, p90 97.1%",
        "2.5 MB up, 950 B down in 1 rounds, loss ▄",
    ]
    assert format_head(make_snapshot(), 80)[1] == "no message from a device yet"
    assert (
        format_head(make_snapshot(phase="", round=0), 80)[0] == "kitchen: no message from an aggregator yet"
    )
    assert format_head(make_snapshot(phase="joining"), 80)[0] == "kitchen: waiting for devices"
    joined = make_device("a", "idle"), make_device("b", "paused")
    assert (
        format_head(make_snapshot(*joined, phase="joining", needed=3), 80)[0]
        == "kitchen: waiting for 2 of 3 devices; start them with `edgefl device start`"
    )
    assert (
        format_head(make_snapshot(*joined, phase="joining", needed=1), 80)[0]
        == "kitchen: waiting for devices"
    )
    assert format_head(make_snapshot(phase="done"), 80)[0] == "kitchen: done after 20 rounds"
    assert format_head(make_snapshot(phase="personalize", round=21), 80)[0].startswith(
        "kitchen: personalize, 0 of 4 updates"
    )
    history = [ROUND | {"round": 5, "accuracy_mean": 0.5}, ROUND, ROUND | {"round": 21, "accuracy_mean": 0}]
    assert format_head(make_snapshot(history=history), 80)[2].endswith("mean 0.0%, p10 84.0%, p90 97.1% ▁█")
    spread = format_head(make_snapshot(*(make_device(f"d{i}", accuracy=i / 10) for i in range(11))), 80)[2]
    assert spread == "accuracy mean 50.0%, p10 10.0%, p90 90.0%"
    rounds = [{"round": 3, "assignment": {"a": 0, "b": 1, "c": 0}}]
    assert (
        format_head(make_snapshot(clusters={"rounds": rounds, "similarity": None}), 80)[-1]
        == "clusters after round 3: 0 has 2, 1 has 1"
    )


@pytest.mark.parametrize("phase", ["\u202e\u2066train", "\x1b[2J", "a\nb"])
def test_phase_cannot_control_the_terminal(phase):
    for snapshot in (make_snapshot(phase=phase), make_snapshot(phase=phase, round=21)):
        assert all(line.isprintable() for line in format_head(snapshot, 80))


def test_verdict_is_shown_above_the_devices():
    rows = [
        {"id": f"pi-{i}", "accuracy_local": 0.5, "accuracy_shipped": 0.75, "shipped": 3.0} for i in range(3)
    ]
    ended = make_snapshot(make_device("pi-0"), phase="done", verdict=as_dict(judge_federation(rows)))
    lines = format_head(ended, 80)
    assert lines[1:5] == [
        "device  local  federated  shipped  int8  model  against local",
        "mean    50.0%          -    75.0%     -",
        "worst   50.0%          -    75.0%     -",
        "On average accuracy rises by 25.0 points. The devices did not report for how",
    ]
    assert all(len(line) <= 80 for line in lines)
    once = format_snapshot(ended, 80)
    assert once[2] == "pi-0    50.0%          -    75.0%     -  mixture  -"
    assert once[:8][-1].startswith("On average accuracy rises")
    assert not any("rises" in line for line in format_snapshot(make_snapshot(phase="done"), 80))


def test_head_shows_what_was_measured_before_round_1():
    assert "recipe: learning_rate 0.03" in format_head(make_snapshot(recipe="learning_rate 0.03"), 80)
    assert not any("recipe" in line for line in format_head(make_snapshot(), 80))


def test_head_explains_missing_figures():
    def get_reason(**more):
        return " ".join(format_head(make_snapshot(**more), 80)[1:-1])

    private = {"differential_privacy": True}
    assert get_reason(**private) == (
        "Differential privacy is on, so the aggregator publishes no figures for the rounds."
    )
    assert get_reason(phase="done", **private) == (
        "Differential privacy is on, so the aggregator publishes no figures and no verdict. `edgefl report` "
        "shows them from the aggregator's folder."
    )
    assert get_reason(phase="done").startswith("The broker has no verdict for this federation")
    masked = {**as_dict(judge_federation([{"id": "pi-1", "accuracy_shipped": 0.5}])), "rows": []}
    assert get_reason(phase="done", verdict=masked).startswith("Updates are masked, so the verdict has no")
    assert get_reason() == get_reason(phase="joining") == get_reason(phase="stopped") == ""


def test_rows_show_figures_and_reasons_of_devices():
    row = make_device(
        "pi-1", "paused", round=6, accuracy=0.912, loss=0.25, last_seen_ts=940.0, why="paused: on battery"
    )
    columns = choose_columns(80)
    assert (
        format_header(columns, 80)
        == "device         state    round    acc    loss   seen why not in the round"
    )
    assert (
        format_row(row, columns, 80, 1000.0)
        == "pi-1           paused       6  91.2%  0.2500  1 min paused: on battery"
    )
    assert "°C" in format_header(choose_columns(120), 120)
    assert format_row(make_device("pi-2", why="\x1b[2J"), columns, 80, 0.0).isprintable()


def test_devices_are_sorted_and_filtered():
    devices = [
        make_device("a", "sent", loss=0.3),
        make_device("b", "training", loss=0.1),
        make_device("c", "offline"),
        make_device("d", "training", slow=True, loss=0.2),
    ]

    def select_ids(*arguments):
        return [row["id"] for row in select_devices(devices, *arguments)]

    assert select_ids("state", False, "") == ["c", "d", "b", "a"]
    assert select_ids("loss", False, "") == ["b", "d", "a", "c"]
    assert select_ids("loss", True, "") == ["a", "d", "b", "c"]
    assert select_ids("device", True, "") == ["d", "c", "b", "a"]
    assert select_ids("state", False, "slow") == ["d"]
    assert select_ids("state", False, "TRAIN b") == ["b"]


def test_device_page_shows_figures_gate_and_trace():
    row = make_device(
        "pi-1",
        "rejected",
        why="rejected: no kernel",
        last_seen_ts=993.0,
        gate=[0.25, 0.75],
        trace=[[1, 0.5], [2, 0.4], [4, 0.1]],
        trace_of="loss",
        rejected=2,
        last_error="round 4: no kernel",
        accuracy_int8=0.5,
        temperature_c=61.4,
        bytes_up=12_000,
    )
    lines = format_device_page(row, 1000.0, 78)
    assert lines[:2] == ["pi-1: rejected: no kernel", "last error: 2 updates rejected; round 4: no kernel"]
    for expected in (
        "last message       7 s",
        "processor          61 °C",
        "sent               12 KB",
        "int8               50.0%",
        "gate, expert 1     ███████████████░░░░░ 75.0%",
        "loss               █▆▁",
        "                   rounds 1 to 4, from 0.5000 to 0.1000",
    ):
        assert expected in lines
    assert all(len(line) <= 20 for line in format_device_page(row, 1000.0, 20))


@given(
    st.floats(0, 1e300) | st.none(),
    st.integers(0, 10**18),
    st.floats(-1e12, 1e12) | st.none(),
    st.integers(20, 200),
)
def test_no_line_exceeds_the_width(figure, count, last_seen_ts, width):
    row = make_device(
        "x" * 64,
        "training",
        loss=figure,
        accuracy=figure,
        seconds=figure,
        bytes_up=count,
        last_seen_ts=last_seen_ts,
        rss_mb=figure,
    )
    lines = format_snapshot(make_snapshot(row, history=[{**ROUND, "bytes_up": count, "loss": figure}]), width)
    assert all(len(line) <= width for line in lines)


@pytest.mark.parametrize("sort", SORT_COLUMNS)
def test_every_sort_column_accepts_devices_without_figures(sort):
    assert (
        len(
            select_devices(
                [make_device("a"), make_device("b", loss=1.0, accuracy=0.1, round=1, expert=2)],
                sort,
                False,
                "",
            )
        )
        == 2
    )


def test_numbers_ages_and_bars_are_formatted():
    assert [
        text_format.format_bytes(size) for size in (0, 999, 1000, 9_949, 12_345, 2_500_000, 3e9, 5e13)
    ] == [
        "0 B",
        "999 B",
        "1.0 KB",
        "9.9 KB",
        "12 KB",
        "2.5 MB",
        "3.0 GB",
        "50 TB",
    ]
    assert [text_format.format_age(1000 - age, 1000) for age in (0, 2, 59, 61, 3600, 100 * 3600)] == [
        "now",
        "2 s",
        "59 s",
        "1 min",
        "1 h",
        "4 d",
    ]
    assert (
        text_format.draw_sparkline([1, 2, 3], 2),
        text_format.draw_sparkline([], 5),
        text_format.draw_bar(0.5, 4),
    ) == ("▁█", "", "██░░")
    assert text_format.draw_sparkline([2, 2.0], 5) == "▄▄"
    assert [text_format.percentile([4, 1, 3, 2], share) for share in (0, 0.5, 1)] == [1, 2.5, 4]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([1, math.nan, 3], "▁·█"),
        ([math.inf, 1, -math.inf, 3], "·▁·█"),
        ([math.nan, 5], "·▄"),
        ([math.nan, math.inf], "··"),
        ([-1e308, 0, 1e308], "▁▅█"),
    ],
)
def test_sparkline_marks_values_that_are_not_finite(values, expected):
    assert text_format.draw_sparkline(values, 9) == expected
