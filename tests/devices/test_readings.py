"""Sensor messages: readings, labels, their sensor, and invalid messages."""

import contextlib
import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from devices.readings import (
    MAX_SENSOR_CHANNELS,
    MAX_SENSORS,
    SensorTopics,
    WindowCutter,
    parse_label,
    parse_reading,
)
from edgefl.base.errors import ConfigError, DataError


@pytest.mark.parametrize(
    ("payload", "channels", "expected"),
    [
        (b"3", (), {"value": 3.0}),
        (b" -2.5e-1 ", (), {"value": -0.25}),
        (b"[1, 2.5]", (), {"0": 1.0, "1": 2.5}),
        (b'{"z": 3, "x": 1}', (), {"x": 1.0, "z": 3.0}),
        (b'{"z": 3, "x": 1, "ts": "noon"}', ("z", "x"), {"z": 3.0, "x": 1.0}),
        (b"[7, 8, 9]", ("2", "0"), {"2": 9.0, "0": 7.0}),
    ],
)
def test_reading_is_parsed_into_channels(payload, channels, expected):
    assert list(parse_reading(payload, channels).items()) == list(expected.items())


INVALID_READINGS = [
    (b"", (), "not JSON"),
    (b"\xff\x00", (), "not JSON"),
    (b"{", (), "not JSON"),
    (b"[" * 100_000, (), "not JSON"),
    (b"9" * 5000, (), "not JSON"),
    (b'"walk"', (), "value is 'walk', expected a finite number; name the channels to use with --channels"),
    (b'{"x": 1, "t": "12:00"}', (), "t is '12:00', expected a finite number; name the channels to use"),
    (b"true", (), "value is 'True'"),
    (b"null", (), "value is 'None'"),
    (b"NaN", (), "expected a finite number"),
    (b"[1, -Infinity]", (), "1 is 'None'"),
    (b"1e39", (), "1e\\+39"),
    (b"9" * 400, (), "expected a finite number"),
    (b"[[1, 2]]", (), "0 is"),
    (b"[]", (), "0 values, expected 1 to"),
    (b"{}", ("x",), "no channel 'x', expected it among none"),
    (b'{"x": {"y": 1}}', (), "x is"),
    (json.dumps([0] * (MAX_SENSOR_CHANNELS + 1)).encode(), (), f"{MAX_SENSOR_CHANNELS + 1} values"),
]


@pytest.mark.parametrize(("payload", "channels", "error"), INVALID_READINGS, ids=range(len(INVALID_READINGS)))
def test_invalid_reading_is_rejected(payload, channels, error):
    with pytest.raises(DataError, match=error):
        parse_reading(payload, channels)


@given(
    st.one_of(
        st.binary(max_size=40),
        st.recursive(st.none() | st.floats() | st.text(max_size=3), st.lists).map(
            lambda x: json.dumps(x).encode()
        ),
    )
)
def test_any_payload_gives_finite_numbers_or_an_error(payload):
    try:
        values = parse_reading(payload, ()).values()
    except DataError:
        return
    assert all(math.isfinite(np.float32(value)) for value in values)


def test_label_is_parsed_or_rejected():
    assert parse_label(b" 7\n", ()) == parse_label(b"7.0", ()) == 7
    assert parse_label(b'"run"', ("walk", "run")) == 1
    for payload, classes, error in [
        (b"walk", (), "is not a whole number .* --classes FILE"),
        (b"-1", (), "is not a whole number"),
        (b"1.5", (), "is not a whole number"),
        (b"99999999", (), "is not a whole number"),
        ("²".encode(), (), "is not a whole number"),
        (b"wlak", ("walk", "run"), "no class 'wlak'; did you mean 'walk'"),
        (b"\xff", (), "is not a whole number"),
    ]:
        with pytest.raises(DataError, match=error):
            parse_label(payload, classes)


def test_topic_gives_kind_and_sensor():
    topics = SensorTopics("home/+/accel/#", "home/+/label/#")
    assert topics.match("home/pi/accel/left/x") == ("readings", ("pi", "left/x"))
    assert topics.match("home/pi/label/left/x") == ("labels", ("pi", "left/x"))
    assert topics.match("home/pi/other") is None
    assert SensorTopics("#", "label").match("label") == ("labels", ())
    assert SensorTopics("a.c/+").match("abc/d") is None
    for topic_filter in ("a/#/b", "a+/b", "#a", "a/b#", "a\0"):
        with pytest.raises(ConfigError, match="is not an MQTT filter"):
            SensorTopics(topic_filter)
    with pytest.raises(ConfigError, match="has 1 wildcards, --topic 'a' 0"):
        SensorTopics("a", "label/+")


SENSORS = SensorTopics("s/+", "label/+")


class WindowCollector:
    def __init__(self, topics=SENSORS, window=2, **options):
        self.windows = []
        self.cutter = WindowCutter(
            topics=topics, window=window, step=options.pop("step", window), on_window=self.collect, **options
        )

        self.positions = []

    def collect(self, window):
        self.windows.append((window.values.tolist(), window.label))
        self.positions.append((window.recording, window.first_row))

    def send(self, *messages):
        for topic, payload in messages:
            self.cutter.take(topic, payload.encode())


def test_sensors_have_separate_windows_and_labels():
    collector = WindowCollector()
    collector.send(
        ("label/a", "1"), ("label/b", "2"), ("s/a", "10"), ("s/b", "20"), ("s/a", "11"), ("s/b", "21")
    )
    assert collector.windows == [([[10.0], [11.0]], 1), ([[20.0], [21.0]], 2)]
    assert collector.positions == [(0, 0), (1, 0)]


def test_windows_store_their_position_and_gap_starts_new_recording():
    collector = WindowCollector(window=2, step=1, label=1)
    collector.send(*(("s/a", str(value)) for value in range(4)))
    collector.cutter.restart_windows()
    collector.send(*(("s/a", str(value)) for value in range(3)))
    assert collector.positions == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1)]


def test_label_topic_without_wildcards_applies_to_all_sensors():
    collector = WindowCollector(SensorTopics("s/+", "label"))
    collector.send(
        ("label", "1"),
        ("s/a", "10"),
        ("s/b", "20"),
        ("label", "0"),
        ("s/a", "11"),
        ("label", "3"),
        ("s/b", "21"),
    )
    # a tie of labels: the smaller one is used
    assert collector.windows == [([[10.0], [11.0]], 0), ([[20.0], [21.0]], 1)]


def test_window_has_only_consecutive_labelled_rows():
    collector = WindowCollector()
    collector.send(("s/a", "9"), ("label/a", "1"), ("s/a", "10"))
    assert (collector.cutter.unlabelled, collector.windows) == (1, [])
    collector.cutter.restart_windows()
    collector.send(("s/a", "11"))
    assert collector.windows == []
    collector.send(("s/a", "12"))
    assert collector.windows == [([[11.0], [12.0]], 1)]


def test_retained_reading_is_ignored_and_retained_label_counts():
    collector = WindowCollector(label=None)
    collector.cutter.take("label/a", b"4", retained=True)
    collector.cutter.take("s/a", b"8", retained=True)
    collector.send(("s/a", "10"), ("s/a", "11"))
    assert collector.windows == [([[10.0], [11.0]], 4)]


@pytest.mark.parametrize("ending", ["", "stroll", "7", "\xff"], ids=["empty", "no-class", "number", "odd"])
def test_label_ends_when_its_topic_has_no_class(ending):
    """Readings 10 and 11 have no label. Reading 1 and reading 20 are not consecutive, although both walk."""
    collector = WindowCollector(classes=("walk", "sit"))
    collector.send(("label/a", "walk"), ("s/a", "0"), ("s/a", "1"), ("s/a", "2"))
    if ending:
        with pytest.raises(DataError, match="no class"):
            collector.send(("label/a", ending))
    else:
        collector.send(("label/a", ending))
    collector.send(("s/a", "10"), ("s/a", "11"), ("label/a", "walk"), ("s/a", "20"))
    assert (collector.windows, collector.cutter.unlabelled) == ([([[0.0], [1.0]], 0)], 2)
    collector.send(("s/a", "21"))
    assert collector.windows[1:] == [([[20.0], [21.0]], 0)]
    assert collector.positions == [(0, 0), (1, 0)]


def test_label_ends_with_an_oversize_message_and_with_lost_messages():
    collector = WindowCollector(SensorTopics("s/+", "label"))
    collector.send(("label", "1"))
    with pytest.raises(DataError, match="70000 bytes, expected one reading or label"):
        collector.cutter.take("label", b"", oversize=70_000)
    collector.send(("s/a", "0"), ("s/a", "1"))
    collector.send(("label", "1"))
    collector.cutter.forget_labels()
    collector.send(("s/a", "2"), ("s/a", "3"))
    assert (collector.windows, collector.cutter.unlabelled) == ([], 4)


def test_target_ends_when_its_topic_has_no_number():
    collector = WindowCollector(has_targets=True)
    collector.send(("label/a", "0.5"), ("s/a", "0"))
    with pytest.raises(DataError):
        collector.send(("label/a", "unavailable"))
    collector.send(("s/a", "1"), ("s/a", "2"), ("label/a", "1.5"), ("s/a", "3"), ("s/a", "4"))
    assert (collector.windows, collector.cutter.unlabelled) == ([([[3.0], [4.0]], 1.5)], 2)


@pytest.mark.parametrize("payload", ["oops", "null", "[1]", '{"x": 5}', ""])
def test_window_does_not_join_readings_around_an_unusable_reading(payload):
    collector = WindowCollector(channels=("x", "y"), label=5)
    collector.send(("s/a", '{"x": 1, "y": 2}'))
    with pytest.raises(DataError):
        collector.send(("s/a", payload))
    collector.send(("s/a", '{"x": 3, "y": 4}'), ("s/b", '{"x": 0, "y": 0}'), ("s/a", '{"x": 5, "y": 6}'))
    assert collector.windows == [([[3.0, 4.0], [5.0, 6.0]], 5)]
    assert collector.cutter.readings == 4


def test_oversize_reading_is_a_gap_and_retained_reading_is_none():
    collector = WindowCollector(label=1)
    collector.send(("s/a", "1"))
    collector.cutter.take("s/a", b"9", retained=True)
    collector.send(("s/a", "2"), ("s/a", "3"))
    with pytest.raises(DataError):
        collector.cutter.take("s/a", b"", oversize=70_000)
    collector.send(("s/a", "4"))
    assert collector.windows == [([[1.0], [2.0]], 1)]


@pytest.mark.parametrize("time", [1_764_000_000, 1_764_000_000.25, 1_764_000_000_123, 1_764_000_000_123_456])
def test_times_since_1970_are_left_out(time):
    collector = WindowCollector(label=1)
    collector.send(*(("s/a", f'{{"x": {value}, "ts": {time + value}}}') for value in range(2)))
    assert collector.windows == [([[0.0], [1.0]], 1)]
    assert collector.cutter.left_out == {"ts"}
    with pytest.raises(DataError, match="ts are times since 1970, expected readings; name the channels"):
        collector.send(("s/a", f'{{"ts": {time}}}'))
    named = WindowCollector(label=1, channels=("ts",), window=1)
    named.send(("s/a", f'{{"ts": {time}}}'))
    assert len(named.windows) == 1


def send_at(collector, *times):
    """Send the readings 0, 1 and so on of one sensor at these times."""
    for value, now in enumerate(times):
        collector.cutter.take("s/a", str(value).encode(), now=now)


@pytest.mark.parametrize(
    ("times", "firsts"),
    [
        ([0, 1, 2, 3, 100, 101], [0, 2, 4]),
        ([0, 1, 2, 100, 101, 102], [0, 3]),  # reading 2 is alone
        ([0, 1, 2, 9, 10, 11], [0, 2, 4]),  # shorter than any gap
        ([0, 60, 120, 180, 240, 300], [0, 2, 4]),  # a slow sensor
        ([0, 0.1, 0.2, 60, 120, 180, 240], [0, 4]),  # a sensor that becomes slow: two gaps
        ([0, 60, 120, 180, 4000, 4060], [0, 2, 4]),
    ],
)
def test_window_does_not_join_readings_around_a_silence(times, firsts):
    collector = WindowCollector(label=1)
    send_at(collector, *times)
    assert [values[0][0] for values, _ in collector.windows] == firsts
    assert all(last[0] == first[0] + 1 for (first, last), _ in collector.windows)


def test_groups_of_readings_are_one_recording():
    """Four readings arrive together each minute. Only the first two pauses are gaps."""
    collector = WindowCollector(window=6, label=1)
    send_at(collector, *(60 * group + 0.01 * item for group in range(6) for item in range(4)))
    assert [values[0][0] for values, _ in collector.windows] == [8, 14]
    assert collector.cutter.silences == 2


def test_sensor_with_other_channels_does_not_affect_others():
    collector = WindowCollector(label=0)
    collector.send(("s/odd", "7"), ("s/a", "[1, 2]"), ("s/odd", "8"), ("s/a", "[3, 4]"))
    assert collector.windows == [([[7.0], [8.0]], 0), ([[1.0, 2.0], [3.0, 4.0]], 0)]


def test_change_of_channels_starts_a_new_recording():
    collector = WindowCollector(label=0)
    collector.send(("s/a", "7"), ("s/a", '{"x": 1, "y": 2}'), ("s/a", '{"y": 4, "x": 3}'))
    assert collector.windows == [([[1.0, 2.0], [3.0, 4.0]], 0)]


@pytest.mark.parametrize("expected", [{"channel_names": ("x", "y")}, {"channel_count": 2}])
def test_sensor_without_the_expected_channels_is_rejected(expected):
    collector = WindowCollector(label=0, **expected)
    for payload in ("7", '{"x": 1}', '{"x": 1, "y": 2, "z": 3}'):
        with pytest.raises(DataError, match=r"expected (x, y|2), the channels of"):
            collector.send(("s/odd", payload))
    collector.send(("s/a", '{"x": 1, "y": 2}'), ("s/a", '{"x": 3, "y": 4}'))
    assert collector.windows == [([[1.0, 2.0], [3.0, 4.0]], 0)]


def test_idle_sensor_is_replaced_and_used_sensors_and_labels_stay():
    collector = WindowCollector()
    collector.send(("label/a", "1"), ("s/a", "10"))
    for index in range(MAX_SENSORS):
        collector.send((f"label/{index}", "2"), (f"s/{index}", "0"))
        if index == MAX_SENSORS // 2:
            collector.send(("s/a", "11"))
    collector.send(("s/a", "12"), ("s/a", "13"))
    assert collector.windows == [([[10.0], [11.0]], 1), ([[12.0], [13.0]], 1)]
    assert collector.cutter.replaced == 1
    collector.send(("s/0", "1"))
    assert collector.cutter.unlabelled == 1, "the label of the idle sensor was replaced too"


@given(st.lists(st.sampled_from(["walk", "sit", "", "unknown", "reading", "bad"]), max_size=40))
def test_windows_are_runs_of_labelled_readings_without_a_gap(events):
    collector = WindowCollector(classes=("walk", "sit"))
    expected, run, label = [], [], None
    for number, event in enumerate(events):
        if event in ("reading", "bad"):
            payload = str(number) if event == "reading" else "oops"
            run = [*run, (number, label)] if event == "reading" and label is not None else []
            if len(run) == 2:
                expected.append(([[float(row)] for row, _ in run], min(row[1] for row in run)))
                run = []
        else:
            payload = event
            label = {"walk": 0, "sit": 1}.get(event)
        with contextlib.suppress(DataError):
            collector.send(("s/a" if event in ("reading", "bad") else "label/a", payload))
    assert collector.windows == expected
