"""`edgefl device detect` over a real mosquitto: alarms of sensor topics, and one run over a file."""

import json
import os

import numpy as np
import pytest

from devices.detector import Detector, DetectSettings
from edgefl.base.errors import DataError
from edgefl.base.tasks.samples import SamplesConfig
from edgefl.data.sources import DataSource
from edgefl.protocol.transport.link import Link, Message
from edgefl.protocol.wire.messages import Anomaly
from edgefl.protocol.wire.strict_json import decode_json
from edgefl.protocol.wire.topics import FederationTopics
from tests.devices.detectors import encode_reading, save_detector
from tests.support.broker import mosquitto
from tests.support.ports import choose_port

NORMAL, ANOMALY = (1.0, 2.0), (-4.0, -4.0)


@pytest.fixture
def link(mosquitto_url):
    link = Link(mosquitto_url, f"sensor-{os.urandom(4).hex()}")
    yield link
    link.close()


def decode_strictly(text):
    def refuse(constant):
        raise AssertionError(f"{constant} is not JSON")

    return json.loads(text, parse_constant=refuse)


def wait_for_anomaly(link):
    while True:
        event = link.get(20.0)
        assert event is not None, "no message"
        if isinstance(event, Message) and event.payload:
            return decode_json(Anomaly, event.payload), event


def test_alarms_of_a_sensor_are_published_and_retained(link, start, mosquitto_url, tmp_path):
    federation = f"f{os.urandom(4).hex()}"
    state = save_detector(tmp_path / "pi-1", federation)
    topic = f"home{os.getpid()}/+/accel"
    anomaly_topic = FederationTopics(federation).format_device("pi-1", "anomaly")
    link.subscribe(f"{FederationTopics(federation).root}/#")
    options = ("--broker", mosquitto_url, "--topic", topic, "--every", "3600", "--json")
    process = start("device", "detect", "--state", state, *options)
    process.wait_for("listening on")
    received = []
    for reading, messages in ((NORMAL, 1), (NORMAL, 0), (ANOMALY, 1), (ANOMALY, 0), (NORMAL, 1)):
        for _ in range(2):
            link.publish(topic.replace("+", "pi"), encode_reading(*reading))
        received += [wait_for_anomaly(link) for _ in range(messages)]
    link.publish(topic.replace("+", "pi"), b"oops")
    process.wait_for("readings that cannot be used: 1")
    process.popen.terminate()
    assert process.end() == 0, process.err
    assert {event.topic for _, event in received} == {anomaly_topic}
    shown = [(message.alarm, message.windows, message.alarms) for message, _ in received]
    assert shown == [(False, 1, 0), (True, 3, 1), (False, 5, 2)]
    assert received[1][0].score == 4.0
    assert set(json.loads(received[1][1].payload)) == {
        *("client_id", "score", "threshold", "alarm", "windows", "alarms", "ts")
    }
    figures = json.loads(process.out)
    assert (figures["windows"], figures["alarms"], figures["published"], figures["malformed"]) == (5, 2, 3, 1)
    late = Link(mosquitto_url, f"late-{os.urandom(4).hex()}")
    try:
        late.subscribe(anomaly_topic)
        message, event = wait_for_anomaly(late)
        assert event.retained and message == received[-1][0]
    finally:
        late.close()
    link.publish(anomaly_topic, b"", retain=True)
    assert link.wait_in_flight(1, 20)


def test_a_file_is_scored_once_and_without_a_broker(start, tmp_path):
    state = save_detector(tmp_path / "pi-1")
    x = np.array([[NORMAL] * 2, [ANOMALY] * 2, [ANOMALY] * 2, [NORMAL] * 2], np.float32)
    np.savez(tmp_path / "new.npz", x=x, y=np.array([0, 1, 0, 0]))
    process = start("device", "detect", "--state", state, "--data", tmp_path / "new.npz", "--json")
    assert process.end() == 0, process.err
    figures = json.loads(process.out)
    assert (figures["windows"], figures["alarms"], figures["published"]) == (4, 2, 0)
    assert (figures["precision"], figures["recall"]) == (0.5, 1.0)
    assert figures["false_alarm_rate"] == pytest.approx(1 / 3)
    np.savez(tmp_path / "new.npz", x=x, x_test=x[:1])
    process = start("device", "detect", "--state", state, "--data", tmp_path / "new.npz", "--json")
    assert process.end() == 0, process.err
    figures = json.loads(process.out)
    assert (figures["windows"], "recall" in figures) == (1, False), "only the test samples"


@pytest.mark.parametrize(
    ("scale", "options", "factor"), [(0.0, (), 10), (1000.0, (), 1000), (1000.0, ("--scale", "5"), 5)]
)
def test_readings_are_read_by_the_channels_and_the_scale_of_the_model(
    link, start, mosquitto_url, tmp_path, scale, options, factor
):
    """The scale of the command counts first, then the scale of the owner's samples, then the model's."""
    layout = SamplesConfig(scale=10, channels=("y", "x"))
    source = DataSource(data="/a.npz", scale=scale)
    state = save_detector(tmp_path / "pi-1", f"f{os.urandom(4).hex()}", samples=layout, source=source)
    topic = f"named{os.getpid()}/{factor}"
    process = start(
        *("device", "detect", "--state", state, "--broker", mosquitto_url, "--topic", topic),
        *("--count", "1", "--json", *options),
    )
    process.wait_for("listening on")
    link.publish(topic, b"[1, 2]")
    process.wait_for("the model reads y, x: pass --channels if the readings have other names")
    for _ in range(2):
        link.publish(topic, json.dumps({"battery": 90, "x": -4 * factor, "y": 0}).encode())
    assert process.end() == 0, process.err
    assert json.loads(process.out)["score"] == 2.0


def test_a_window_of_another_shape_and_a_missing_id_are_errors(link, start, mosquitto_url, tmp_path):
    state = save_detector(tmp_path / "pi-1")
    np.savez(tmp_path / "new.npz", x=np.zeros((1, 3, 2), np.float32))
    process = start("device", "detect", "--state", state, "--data", tmp_path / "new.npz")
    assert process.end() == 1
    assert "a window is 3x2, expected 2x2" in process.err
    options = ("--broker", mosquitto_url, "--topic", f"a{os.getpid()}/+")
    named = (*options, "--id", "pi-1", "--federation", "f")
    for wrong, error in (
        (("--window", "3"), "--window is 3, which does not fit the model's input 2x2; omit --window"),
        (("--channels", "x,y,z"), "--channels has 3 channels, expected 2, the channels of the model's input"),
    ):
        process = start("device", "detect", "--state", state, *named, *wrong)
        assert process.end() == 1
        assert error in process.err
    process = start("device", "detect", "--state", state, *options)
    assert process.end() == 1
    assert "no readable device.json with the id; pass --id" in process.err


def test_an_odd_sensor_blinds_no_other_and_an_alarm_ends_after_a_gap(link, start, mosquitto_url, tmp_path):
    """The odd sensor is the first. A reading that cannot be used follows the alarm of the other sensor."""
    state, topic = save_detector(tmp_path / "pi-1", f"f{os.urandom(4).hex()}"), f"odd{os.getpid()}"
    options = ("--broker", mosquitto_url, "--topic", f"{topic}/+", "--json", "--count", "2")
    process = start("device", "detect", "--state", state, *options)
    process.wait_for("listening on")
    for _ in range(4):
        link.publish(f"{topic}/odd", b"[1, 2, 3]")
    process.wait_for("odd: 3 channels, expected 2, the channels of the model's input")
    for payload in (*[encode_reading(*ANOMALY)] * 3, b"oops", *[encode_reading(*NORMAL)] * 2):
        link.publish(f"{topic}/pi", payload)
    assert process.end() == 0, process.err
    figures = json.loads(process.out)
    assert (figures["windows"], figures["alarms"], figures["malformed"], figures["score"]) == (2, 1, 5, 0.0)


def test_an_alarm_outlasts_a_restart_of_the_broker(start, tmp_path):
    state, port = save_detector(tmp_path / "pi-1", "plant"), choose_port()
    url = f"mqtt://localhost:{port}"
    with mosquitto(port):
        process = start("device", "detect", "--state", state, "--broker", url, "--topic", "accel")
        process.wait_for("listening on")
        sensor = Link(url, "sensor")
        for _ in range(2):
            sensor.publish("accel", encode_reading(*ANOMALY))
        process.wait_for("ALARM")
        sensor.close()
    with mosquitto(port):
        watcher = Link(url, "watcher")
        watcher.subscribe(FederationTopics("plant").format_device("pi-1", "anomaly"))
        message, _ = wait_for_anomaly(watcher)
        watcher.close()
    assert message.alarm and message.score == 4.0


def test_figures_without_anomalies_are_strict_json(start, tmp_path):
    state = save_detector(tmp_path / "pi-1")
    np.savez(tmp_path / "new.npz", x=np.ones((2, 2, 2), np.float32), y=np.zeros(2, np.int64))
    process = start("device", "detect", "--state", state, "--data", tmp_path / "new.npz", "--json")
    assert process.end() == 0, process.err
    figures = decode_strictly(process.out)
    assert figures["recall"] is None and figures["false_alarm_rate"] == 0


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (
            ["normal", "broken", "normal"],
            r"classes of these samples have names .* 0 for a normal",
        ),
        ([-1, 1, 1], "the labels y hold -1, expected 0 for a normal sample"),
        ([0, 1], "x has 3 samples and y has 2 labels"),
    ],
)
def test_labels_that_do_not_mark_anomalies_are_refused(labels, message, tmp_path):
    state = save_detector(tmp_path / "pi-1")
    np.savez(tmp_path / "new.npz", x=np.ones((3, 2, 2), np.float32), y=np.array(labels))
    detector = Detector(DetectSettings(state=state, data=DataSource(data=str(tmp_path / "new.npz"))))
    with pytest.raises(DataError, match=message):
        detector.run()
