"""What sensor messages say: readings, labels, which sensor, and all that is none."""

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
from edgefl.errors import ConfigError, DataError


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
def test_a_reading(payload, channels, expected):
    assert list(parse_reading(payload, channels).items()) == list(expected.items())


BAD = [
    (b"", (), "not JSON"),
    (b"\xff\x00", (), "not JSON"),
    (b"{", (), "not JSON"),
    (b"[" * 100_000, (), "not JSON"),
    (b"9" * 5000, (), "not JSON"),
    (b'"walk"', (), "value is 'walk', expected a finite number"),
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


@pytest.mark.parametrize(("payload", "channels", "says"), BAD, ids=range(len(BAD)))
def test_what_is_no_reading(payload, channels, says):
    with pytest.raises(DataError, match=says):
        parse_reading(payload, channels)


@given(
    st.one_of(
        st.binary(max_size=40),
        st.recursive(st.none() | st.floats() | st.text(max_size=3), st.lists).map(
            lambda x: json.dumps(x).encode()
        ),
    )
)
def test_any_bytes_are_finite_numbers_or_refused(payload):
    try:
        values = parse_reading(payload, ()).values()
    except DataError:
        return
    assert all(math.isfinite(np.float32(value)) for value in values)


def test_labels():
    assert parse_label(b" 7\n", ()) == 7
    assert parse_label(b'"run"', ("walk", "run")) == 1
    for payload, classes, says in [
        (b"walk", (), "is not a whole number .* --classes FILE"),
        (b"-1", (), "is not a whole number"),
        (b"99999999", (), "is not a whole number"),
        ("²".encode(), (), "is not a whole number"),
        (b"wlak", ("walk", "run"), "no class 'wlak'; did you mean 'walk'"),
        (b"\xff", (), "is not a whole number"),
    ]:
        with pytest.raises(DataError, match=says):
            parse_label(payload, classes)


def test_which_sensor_a_topic_is_of():
    topics = SensorTopics("home/+/accel/#", "home/+/label/#")
    assert topics.match("home/pi/accel/left/x") == ("readings", ("pi", "left/x"))
    assert topics.match("home/pi/label/left/x") == ("labels", ("pi", "left/x"))
    assert topics.match("home/pi/other") is None
    assert SensorTopics("#", "label").match("label") == ("labels", ())
    assert SensorTopics("a.c/+").match("abc/d") is None
    for bad in ("a/#/b", "a+/b", "#a", "a/b#", "a\0"):
        with pytest.raises(ConfigError, match="is not an MQTT filter"):
            SensorTopics(bad)
    with pytest.raises(ConfigError, match="has 1 wildcards, --topic 'a' 0"):
        SensorTopics("a", "label/+")


SENSORS = SensorTopics("s/+", "label/+")


class Heard:
    def __init__(self, topics=SENSORS, window=2, **options):
        self.windows = []
        self.cutter = WindowCutter(topics, window, options.pop("step", window), self.keep, **options)

        self.places = []

    def keep(self, window):
        self.windows.append((window.values.tolist(), window.label))
        self.places.append((window.recording, window.first_row))

    def say(self, *messages):
        for topic, payload in messages:
            self.cutter.take(topic, payload.encode())


def test_each_sensor_has_windows_and_a_label_of_its_own():
    heard = Heard()
    heard.say(("label/a", "1"), ("label/b", "2"), ("s/a", "10"), ("s/b", "20"), ("s/a", "11"), ("s/b", "21"))
    assert heard.windows == [([[10.0], [11.0]], 1), ([[20.0], [21.0]], 2)]
    assert heard.places == [(0, 0), (1, 0)]


def test_windows_know_their_place_in_a_recording_and_a_gap_begins_another():
    heard = Heard(window=2, step=1, label=1)
    heard.say(*(("s/a", str(value)) for value in range(4)))
    heard.cutter.restart_windows()
    heard.say(*(("s/a", str(value)) for value in range(3)))
    assert heard.places == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1)]


def test_a_label_without_wildcards_is_of_all_sensors():
    heard = Heard(SensorTopics("s/+", "label"))
    heard.say(
        ("label", "1"),
        ("s/a", "10"),
        ("s/b", "20"),
        ("label", "0"),
        ("s/a", "11"),
        ("label", "3"),
        ("s/b", "21"),
    )
    assert heard.windows == [([[10.0], [11.0]], 0), ([[20.0], [21.0]], 1)]  # half each: the smaller


def test_rows_of_a_window_follow_on_one_another():
    heard = Heard()
    heard.say(("s/a", "9"), ("label/a", "1"), ("s/a", "10"))
    assert (heard.cutter.unlabelled, heard.windows) == (1, [])
    heard.cutter.restart_windows()
    heard.say(("s/a", "11"))
    assert heard.windows == []
    heard.say(("s/a", "12"))
    assert heard.windows == [([[11.0], [12.0]], 1)]


def test_a_retained_reading_is_of_an_earlier_time_but_a_retained_label_counts():
    heard = Heard(label=None)
    heard.cutter.take("label/a", b"4", retained=True)
    heard.cutter.take("s/a", b"8", retained=True)
    heard.say(("s/a", "10"), ("s/a", "11"))
    assert heard.windows == [([[10.0], [11.0]], 4)]


def test_a_reading_of_another_form_is_refused_and_disturbs_nothing():
    heard = Heard(SensorTopics("s"), label=5)
    heard.say(("s", '{"x": 1, "y": 2}'))
    for payload in ("[1, 2]", '{"x": 1}', '{"x": 1, "y": 2, "z": 3}', "oops"):
        with pytest.raises(DataError):
            heard.say(("s", payload))
    heard.say(("s", '{"y": 4, "x": 3}'))
    assert heard.windows == [([[1.0, 2.0], [3.0, 4.0]], 5)]
    assert heard.cutter.readings == 2


def test_sensors_are_limited():
    heard = Heard(SensorTopics("s/+"), label=0)
    for index in range(MAX_SENSORS):
        heard.say((f"s/{index}", "1"))
    with pytest.raises(DataError, match="narrower --topic"):
        heard.say(("s/more", "1"))
    labels = Heard()
    for index in range(MAX_SENSORS):
        labels.say((f"label/{index}", "1"))
    with pytest.raises(DataError, match="narrower --label-topic"):
        labels.say(("label/more", "1"))
