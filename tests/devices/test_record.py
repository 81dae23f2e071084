"""`edgefl device record` over a real mosquitto: it is killed and restarted, and its file is a shard."""

import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from edgefl.data.npz import load_shard
from edgefl.protocol.transport.link import Link, Message
from mqtt_broker.broker.dev_broker import LOOPBACK_HOST
from tests.support.broker import mosquitto
from tests.support.ports import choose_port


@pytest.fixture
def topic_root(tmp_path):
    return f"home{os.getpid()}/{tmp_path.name}"


@pytest.fixture
def sensor(mosquitto_url):
    link = Link(mosquitto_url, f"sensor-{os.urandom(4).hex()}")
    yield link
    link.close()


@pytest.fixture
def record(start, mosquitto_url, topic_root, tmp_path):
    def make(*more, out=tmp_path / "ring.npz", listening=True, window=2, capacity=5):
        process = start(
            "device",
            "record",
            "--broker",
            mosquitto_url,
            "--topic",
            f"{topic_root}/+/accel",
            "--window",
            window,
            "--capacity",
            capacity,
            "--save",
            "0",
            "--json",
            "-o",
            out,
            *(more or ("--label-topic", f"{topic_root}/+/label")),
        )
        if listening:
            process.wait_for("listening on")
        return process

    return make


def publish_readings(sensor, topic_root, first, count, name="pi"):
    """Publish readings. Two readings are a window, whose label is its number modulo 3."""
    for index in range(first, first + count):
        sensor.publish(f"{topic_root}/{name}/label", str(index // 2 % 3).encode())
        sensor.publish(f"{topic_root}/{name}/accel", json.dumps({"y": -index, "x": index}).encode())
    assert sensor.wait_in_flight(1, 20)


def test_recorder_resumes_after_kill_and_publishes_nothing(
    record, sensor, topic_root, listen, mosquitto_url, tmp_path
):
    class AnyTopic:
        url = mosquitto_url

    listener = listen(AnyTopic, f"{topic_root}/#")
    first = record()
    publish_readings(sensor, topic_root, 0, 7)
    first.wait_for("3 windows in")
    os.kill(first.popen.pid, signal.SIGKILL)
    first.popen.wait(20)
    with np.load(tmp_path / "ring.npz") as file:
        assert file["y"].tolist() == [0, 1, 2]

    (tmp_path / ".ring.npz.half").write_text("what a kill in the midst of a write leaves")
    restarted = record()
    restarted.wait_for("contains 3 windows; continuing")
    publish_readings(sensor, topic_root, 8, 8)
    restarted.wait_for("4 new")
    restarted.popen.terminate()
    assert restarted.end() == 0
    counts = json.loads(restarted.out)
    assert (counts["windows"], counts["new"], counts["readings"], counts["malformed"]) == (5, 4, 8, 0)
    with np.load(tmp_path / "ring.npz") as file:
        order = np.argsort(file["window_number"])
        assert file["window_number"][order].tolist() == [2, 3, 4, 5, 6]
        # the first reading of each window; reading 6 had no second one before the kill
        assert file["x"][order][:, 0].tolist() == [[4, -4], [8, -8], [10, -10], [12, -12], [14, -14]]
        assert file["y"][order].tolist() == [2, 1, 2, 0, 1]
        assert file["channel_names"].tolist() == ["x", "y"]
        assert file["recording"][order].tolist() == [0, 3, 3, 3, 3]
        assert file["first_row"][order].tolist() == [4, 0, 2, 4, 6]
    shard = load_shard(tmp_path / "ring.npz")
    assert sorted([len(shard.y_train), len(shard.y_test)]) == [1, 4]  # a recording is entirely in one part
    assert {path.name for path in tmp_path.iterdir()} == {"ring.npz", "ring.npz.lock"}
    assert (tmp_path / "ring.npz").stat().st_mode & 0o777 == 0o600

    sensor.publish(f"{topic_root}/end", b"end")
    messages = listener.wait_for_topic("end")
    assert len(messages) == 2 * 7 + 2 * 8 + 1  # only the messages of the sensor


def test_malformed_messages_are_counted_and_logged(record, sensor, topic_root, tmp_path):
    process = record("--label", "1", "--count", "2")
    for payload in (
        b"oops",
        b"[1]",
        b"[NaN]",
        b"[2]",
        b"x" * 100_000,
        b"[3]",
        b"",
        b"[4]",
        b"[5]",
        b"[6]",
        b"[7]",
    ):
        sensor.publish(f"{topic_root}/pi/accel", payload)
    process.wait_for(f"last: {topic_root}/pi/accel: not JSON")
    assert process.end() == 0
    counts = json.loads(process.out)
    assert counts == {
        "windows": 2,
        "new": 2,
        "readings": 7,
        "malformed": 4,
        "unlabelled": 0,
        "lost": 0,
        "other_channels": 0,
        "replaced_sensors": 0,
        "silences": 0,
        "file": str(tmp_path / "ring.npz"),
    }


def test_readings_before_a_label_are_logged_as_unlabelled(record, sensor, topic_root, tmp_path):
    process = record()
    for _ in range(4):
        sensor.publish(f"{topic_root}/pi/accel", b"1")
    process.wait_for("unlabelled; last: no label applies to a reading")
    process.popen.send_signal(signal.SIGINT)
    assert process.end() == 0
    assert not (tmp_path / "ring.npz").exists()


def test_class_names_are_stored_as_numbers(record, sensor, topic_root, tmp_path):
    (tmp_path / "classes.txt").write_text("stand\nwalk\n")
    process = record(
        "--label-topic", f"{topic_root}/label", "--classes", tmp_path / "classes.txt", "--count", "2"
    )
    for label in ("walk", "run", "stand"):
        sensor.publish(f"{topic_root}/label", label.encode())
        for _ in range(2 if label != "run" else 0):
            sensor.publish(f"{topic_root}/pi/accel", b"1")
    assert process.end() == 0
    assert json.loads(process.out)["malformed"] == 1
    with np.load(tmp_path / "ring.npz") as file:
        assert (file["y"].tolist(), file["class_names"].tolist()) == ([1, 0], ["stand", "walk"])


def test_readings_after_an_unknown_label_are_not_stored(record, sensor, topic_root, tmp_path):
    (tmp_path / "classes.txt").write_text("walk\nsit\n")
    labels = ("--label-topic", f"{topic_root}/+/activity", "--classes", tmp_path / "classes.txt")
    process = record(*labels, "--count", "4", window=4, capacity=50)
    for number, label in enumerate((b"walk", b"unknown", b"sit", b"", b"walk", b"\xff", b"sit")):
        sensor.publish(f"{topic_root}/pi/activity", label, retain=True)
        for reading in range(4):
            sensor.publish(f"{topic_root}/pi/accel", str(10 * number + reading).encode())
    sensor.publish(f"{topic_root}/pi/activity", b"", retain=True)
    assert process.end() == 0
    counts = json.loads(process.out)
    assert (counts["windows"], counts["unlabelled"], counts["malformed"]) == (4, 12, 2)
    with np.load(tmp_path / "ring.npz") as file:
        assert file["x"][:, :, 0].tolist() == [[n, n + 1, n + 2, n + 3] for n in (0, 20, 40, 60)]
        assert file["y"].tolist() == [0, 1, 0, 1]


def test_sensor_with_other_channels_blinds_no_other_sensor(record, sensor, topic_root, tmp_path):
    """The odd sensor is the first and sends as much as each of the two others."""
    process = record("--label", "1", "--count", "4")
    for number in range(4):
        for name, payload in (("odd", f"[{number}]"), ("a", f"[{number}, 1]"), ("b", f"[{number}, 2]")):
            sensor.publish(f"{topic_root}/{name}/accel", payload.encode())
    process.wait_for("pass --channels, or a narrower --topic")
    assert process.end() == 0
    counts = json.loads(process.out)
    assert (counts["windows"], counts["new"], counts["other_channels"]) == (4, 4, 2)
    with np.load(tmp_path / "ring.npz") as file:
        assert file["x"].tolist() == [[[n, s], [n + 1, s]] for n in (0, 2) for s in (1, 2)]
        assert file["recording"].tolist() == [0, 1, 0, 1]


def test_windows_are_recorded_without_labels(record, sensor, topic_root, tmp_path):
    process = record("--unlabelled", "--count", "2")
    publish_readings(sensor, topic_root, 0, 4)
    assert process.end() == 0
    assert json.loads(process.out)["unlabelled"] == 0
    with np.load(tmp_path / "ring.npz") as file:
        assert "y" not in file
        assert file["x"][:, 0, 0].tolist() == [0, 2]
    process = record("--label", "1", listening=False)
    assert process.end() == 1
    assert "holds windows without labels, expected windows with classes" in process.err


def test_target_of_a_window_is_the_number_at_its_last_reading(record, sensor, topic_root, tmp_path):
    process = record("--target-topic", f"{topic_root}/+/power", "--count", "2")
    for number in range(4):
        sensor.publish(f"{topic_root}/pi/power", str(number / 4 - 0.5).encode())
        sensor.publish(f"{topic_root}/pi/accel", str(number).encode())
    assert process.end() == 0
    with np.load(tmp_path / "ring.npz") as file:
        assert (file["y"].dtype, file["y"].tolist()) == (np.float32, [-0.25, 0.25])
    process = record("--target-topic", f"{topic_root}/+/power", "--count", "1")
    process.wait_for("contains 2 windows; continuing")
    for payload in (b"[1]", b"null", b"7.5"):
        sensor.publish(f"{topic_root}/pi/power", payload)
    for number in (4, 5):
        sensor.publish(f"{topic_root}/pi/accel", str(number).encode())
    assert process.end() == 0
    assert json.loads(process.out)["malformed"] == 2
    with np.load(tmp_path / "ring.npz") as file:
        assert file["y"].tolist() == [-0.25, 0.25, 7.5]


def test_second_recorder_of_a_file_is_refused(record, tmp_path):
    record("--label", "1")
    second = record("--label", "1", listening=False)
    assert second.end() == 1
    assert "another recorder writes" in second.err


def test_ring_with_other_windows_or_channels_stays_unchanged(record, sensor, topic_root, tmp_path):
    process = record("--label", "1", "--count", "1")
    publish_readings(sensor, topic_root, 0, 2)
    assert process.end() == 0
    before = (tmp_path / "ring.npz").read_bytes()
    for more, options, error in [
        ((), {"window": 3}, "holds windows of 2 rows"),
        (("--label", "1", "--channels", "x"), {}, "has the channels x, y, --channels is x"),
    ]:
        process = record(*more, listening=False, **options)
        assert process.end() == 1
        assert error in process.err
    assert (tmp_path / "ring.npz").read_bytes() == before


def test_restarted_recorder_rejects_readings_with_other_channels(record, sensor, topic_root, tmp_path):
    process = record("--label", "1", "--count", "1")
    publish_readings(sensor, topic_root, 0, 2)
    assert process.end() == 0
    process = record("--label", "1", "--count", "1")
    for payload in (b"[5]", b"[5, 6]", b'{"x": 7, "y": 8}', b'{"x": 9, "y": 10}'):
        sensor.publish(f"{topic_root}/pi/accel", payload)
    assert process.end() == 0
    assert json.loads(process.out)["malformed"] == 2
    with np.load(tmp_path / "ring.npz") as file:
        assert file["x"].tolist() == [[[0, 0], [1, -1]], [[7, 8], [9, 10]]]


def wait_for_subscriptions(url, count):
    """Wait until the broker has this many subscriptions, including the one to their number."""
    topic = "$SYS/broker/subscriptions/count"
    link = Link(url, "watcher")
    link.subscribe(topic)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        event = link.get(deadline - time.monotonic())
        if isinstance(event, Message) and int(event.payload) >= count:
            break
    else:
        pytest.fail(f"there are no {count} subscriptions")
    link.close()


def test_no_window_spans_a_broker_outage(start, tmp_path):
    port = choose_port()
    url = f"mqtt://{LOOPBACK_HOST}:{port}"

    def publish_numbers(*numbers):
        link = Link(url, "sensor")
        for number in numbers:
            link.publish("s", str(number).encode())
        assert link.close()

    with mosquitto(port):
        process = start(
            "device",
            "record",
            "--broker",
            url,
            "--topic",
            "s",
            "--label",
            "0",
            "--window",
            "2",
            "--capacity",
            "9",
            "--save",
            "0",
            "--count",
            "2",
            "-o",
            tmp_path / "r.npz",
        )
        process.wait_for("listening on")
        publish_numbers(0, 1, 2)
        process.wait_for("1 new")
    with mosquitto(port, "sys_interval 1"):
        process.wait_for("the link to the broker is up again")
        wait_for_subscriptions(url, 2)  # its own, and the one that the recorder renews after this line
        publish_numbers(3, 4)
        assert process.end() == 0
    with np.load(tmp_path / "r.npz") as file:
        assert file["x"].tolist() == [[[0], [1]], [[3], [4]]]


@pytest.mark.parametrize(
    ("more", "error"),
    [
        ((), "none of --label-topic, --label, --target-topic, --unlabelled given, expected one of them"),
        (("--unlabelled", "--label", "1"), "--label and --unlabelled of"),
        (("--unlabelled", "--classes", "none.txt"), "--classes with --unlabelled"),
        (("--label", "1", "--label-topic", "l"), "expected one of them"),
        (("--label", "walk"), "--classes FILE"),
        (("--label", "1", "--topic", "a/#/b"), "is not an MQTT filter"),
        (("--label", "1", "--classes", "none.txt"), "cannot be read"),
        (("--label", "1", "-o", "ring.csv"), "ends in .npz"),
        (("--label", "1", "--broker", "http://x"), "expected mqtt://"),
        (("--label", "1", "--capacity", "999999999"), "exceed the limit"),
    ],
)
def test_invalid_record_options_are_rejected(tmp_path, more, error):
    command = [
        sys.executable,
        "-m",
        "edgefl",
        "device",
        "record",
        "--broker",
        "mqtt://127.0.0.1:1",
        "--topic",
        "t",
        "--window",
        "2",
        "--capacity",
        "5",
        "-o",
        str(tmp_path / "r.npz"),
        *more,
    ]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 1
    assert error in done.stderr
    assert "Traceback" not in done.stderr
