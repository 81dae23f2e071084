"""Home Assistant's discovery: with known values, then with a real federation whose messages go through
the templates as Home Assistant evaluates them.
"""

import contextlib
import json
import math
import re
import secrets

import pytest

from edgefl.base.verdict import judge_federation
from edgefl.protocol.security.authority import enrol_watcher, revoke_enrolment
from edgefl.protocol.transport.link import Link, Message
from edgefl.protocol.wire.messages import Anomaly, State, Status
from edgefl.protocol.wire.strict_json import encode_json
from edgefl.protocol.wire.topics import matches_filter
from edgefl.protocol.wire.verdict_message import make_verdict_message
from mqtt_broker.integrations.home_assistant import (
    Announcer,
    make_board_entities,
    make_federation_entities,
    make_node_id,
)

# the keys that https://www.home-assistant.io/integrations/mqtt/ and its pages on sensor and binary_sensor
# document
SENSOR = {
    "availability",
    "availability_mode",
    "device",
    "device_class",
    "enabled_by_default",
    "encoding",
    "entity_category",
    "entity_picture",
    "expire_after",
    "force_update",
    "icon",
    "json_attributes_template",
    "json_attributes_topic",
    "last_reset_value_template",
    "name",
    "options",
    "origin",
    "qos",
    "state_class",
    "state_topic",
    "suggested_display_precision",
    "unique_id",
    "unit_of_measurement",
    "value_template",
}
BINARY = (SENSOR | {"off_delay", "payload_off", "payload_on"}) - {
    "state_class",
    "unit_of_measurement",
    "options",
    "last_reset_value_template",
}
DEVICE = {
    "configuration_url",
    "connections",
    "hw_version",
    "identifiers",
    "manufacturer",
    "model",
    "model_id",
    "name",
    "serial_number",
    "suggested_area",
    "sw_version",
    "via_device",
}
TOPIC = re.compile(r"homeassistant/(sensor|binary_sensor)/[a-zA-Z0-9_-]+/[a-zA-Z0-9_-]+/config")


def check_entity(topic, entity):
    match = TOPIC.fullmatch(topic)
    assert match, topic
    assert entity.keys() <= (SENSOR if match[1] == "sensor" else BINARY), topic
    assert {"name", "unique_id", "state_topic", "value_template", "device", "origin"} <= entity.keys()
    assert entity["device"].keys() <= DEVICE
    assert entity["device"]["identifiers"]
    assert entity["origin"].keys() <= {"name", "sw_version", "support_url"}
    for each in entity.get("availability", ()):
        assert each.keys() <= {"topic", "payload_available", "payload_not_available", "value_template"}
    assert ("unit_of_measurement" in entity) <= ("state_class" in entity)


def render_template(template, payload):
    """Return the rendered template. Home Assistant's templates are Jinja templates with the message as
    `value` and, if it is JSON, as `value_json`.
    """
    values = {"value": payload.decode()}
    with contextlib.suppress(ValueError):
        values["value_json"] = json.loads(payload)
    jinja2 = pytest.importorskip("jinja2")
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    environment = ImmutableSandboxedEnvironment(undefined=jinja2.StrictUndefined)
    return environment.from_string(template).render(values)


def index_by_key(entities):
    return {topic.rsplit("/", 2)[1].removeprefix("pi-1_"): entity for topic, entity in entities.items()}


def test_entities_follow_the_home_assistant_documentation():
    entities = make_federation_entities("a.b_c-1") | make_board_entities("a.b_c-1", "pi_1", "0.1.0")
    for topic, entity in entities.items():
        check_entity(topic, entity)
    assert len({entity["unique_id"] for entity in entities.values()}) == len(entities) == 18
    assert make_node_id("a.b_c-1") == "edgefl_aDb_c-1"
    names = {make_node_id(name) for name in ("a.b", "a_b", "a-b", "adb", "ab")}
    assert len(names) == 5
    online = make_board_entities("f", "pi-1", "1", "ha/x")["ha/x/binary_sensor/edgefl_f/pi-1_online/config"]
    assert online["state_topic"] == "edgefl/v2/f/device/pi-1/status"
    assert (
        online["device"]["via_device"]
        in make_federation_entities("f")["homeassistant/sensor/edgefl_f/round/config"]["device"][
            "identifiers"
        ]
    )


def test_board_templates_render_metrics():
    board = index_by_key(make_board_entities("f", "pi-1", "1"))
    metrics = {
        "client_id": "pi-1",
        "round": 7,
        "values": {"accuracy": 0.25, "loss": 0.123456},
        "rss_mb": 44.44,
        "temperature_c": 51.25,
    }

    def render_metric(key, **values):
        message = {**metrics, "values": {**metrics["values"], **values}}
        return render_template(board[key]["value_template"], json.dumps(message).encode())

    assert [
        render_metric(key) for key in ("accuracy", "accuracy_int8", "loss", "round", "temperature", "memory")
    ] == [
        "25.0",
        "",
        "0.1235",
        "7",
        "51.2",
        "44.4",
    ]
    assert render_metric("accuracy", accuracy_shipped=0.987, accuracy_shipped_int8=0.98) == "98.7"
    assert render_metric("accuracy_int8", accuracy_shipped_int8=0.98) == "98.0"
    assert render_metric("accuracy", accuracy_shipped=None) == render_metric("loss", loss=None) == ""
    empty_metrics = json.dumps({**metrics, "values": {}, "temperature_c": None, "rss_mb": None}).encode()
    assert {
        render_template(board[key]["value_template"], empty_metrics)
        for key in ("accuracy", "accuracy_int8", "loss", "temperature", "memory")
    } == {""}


VERDICT_KEYS = ("verdict", "verdict_local", "verdict_federated", "verdict_shipped", "verdict_int8")


def render_verdict(payload):
    """Return the states of the five verdict entities and the attributes of the first one."""
    entities = index_by_key(make_federation_entities("f"))
    states = [render_template(entities[key]["value_template"], payload) for key in VERDICT_KEYS]
    return states, json.loads(render_template(entities["verdict"]["json_attributes_template"], payload))


def test_verdict_templates_render_the_verdict():
    """A figure without a report is unknown, which Home Assistant reads as None."""
    figures = {"accuracy_local": 0.5, "accuracy_shipped": 0.8, "test_gained": 10.0, "test_lost": 0.0}
    other = {"accuracy_local": 0.75, "accuracy_shipped": 0.8, "test_gained": 2.0, "test_lost": 1.0}
    verdict = judge_federation([{"id": "pi-1", **figures}, {"id": "pi-2", **other}])
    states, attributes = render_verdict(encode_json(make_verdict_message(verdict, "s", 1.0, with_rows=True)))
    assert states == ["1 better, 1 as good, 0 worse", "62.5", "None", "80.0", "None"]
    assert attributes == {
        "sentence": verdict.sentence,
        "devices": 2,
        "better": 1,
        "as_good": 1,
        "worse": 0,
        "gain_points": 17.5,
    }
    verdict = judge_federation([{"id": "pi-1", "accuracy_shipped": 0.8}])
    states, attributes = render_verdict(encode_json(make_verdict_message(verdict, "s", 1.0, with_rows=True)))
    assert states == ["not compared", "None", "None", "80.0", "None"]
    assert attributes["gain_points"] is None
    # a new federation publishes an empty message on the topic
    assert render_verdict(b"") == (["not ended", "None", "None", "None", "None"], {})


def encode_status(client_id, version="1", online=True):
    return encode_json(
        Status(
            client_id=client_id, boot_id="b", online=online, born=1.0, num_samples=10, version=version, ts=2.0
        )
    )


def test_announcer_announces_once_and_withdraws_revoked_devices():
    revoked = set()
    announcer = Announcer("f", "homeassistant", revoked.__contains__)
    assert len(list(announcer.collect_due())) == 11
    assert not list(announcer.collect_due())
    for payload in (encode_status("pi-1"), encode_status("pi-1", online=False), b"", b"{", b"[]"):
        announcer.take("edgefl/v2/f/device/pi-1/status", payload, 0.0)
    for topic in ("edgefl/v2/f/state", "else/where", "edgefl/v2/f/device/pi-2/metrics"):
        announcer.take(topic, b"{}", 0.0)
    made = list(announcer.collect_due())
    assert len(made) == 7
    assert all(message.retained and message.payload for message in made)
    announcer.take("edgefl/v2/f/device/pi-1/status", encode_status("pi-1", "2"), 0.0)
    assert {json.loads(message.payload)["device"]["sw_version"] for message in announcer.collect_due()} == {
        "2"
    }
    revoked.add("pi-1")
    assert sorted(message.topic for message in announcer.collect_due() if not message.payload) == sorted(
        message.topic for message in made
    )
    assert not list(announcer.collect_due())
    revoked.clear()
    assert len([message for message in announcer.collect_due() if message.payload]) == 7
    announcer.reset()
    assert len(list(announcer.collect_due())) == 18
    assert {message.payload for message in announcer.withdraw()} == {b""}


def encode_state(task):
    settings = {} if task is None else {"task": task}
    return encode_json(
        State(
            federation="f",
            session="s",
            phase="federate",
            round=1,
            rounds=3,
            cohort_size=2,
            deadline_s=9.0,
            plan="p",
            ts=1.0,
            settings=settings,
        )
    )


def test_board_with_a_detector_has_its_alarm_and_its_score():
    announcer = Announcer("f", "homeassistant", lambda _: False)
    anomaly = Anomaly(client_id="pi-1", score=0.5, threshold=0.25, alarm=True, windows=40, alarms=3, ts=1.0)
    announcer.take("edgefl/v2/f/device/pi-1/anomaly", encode_json(anomaly), 0.0)
    announcer.take("edgefl/v2/f/device/pi-2/anomaly", b"{}", 0.0)
    for client_id in ("pi-1", "pi-2"):
        announcer.take(f"edgefl/v2/f/device/{client_id}/status", encode_status(client_id), 0.0)
    made = {message.topic: json.loads(message.payload) for message in announcer.collect_due()}
    assert len(made) == 11 + 7 + 2 + 7
    for topic, entity in made.items():
        check_entity(topic, entity)
    alarm = made["homeassistant/binary_sensor/edgefl_f/pi-1_anomaly/config"]
    score = made["homeassistant/sensor/edgefl_f/pi-1_anomaly_score/config"]
    assert (alarm["device_class"], alarm["state_topic"]) == ("problem", "edgefl/v2/f/device/pi-1/anomaly")
    payload = encode_json(anomaly)
    assert render_template(alarm["value_template"], payload) == "ON"
    assert render_template(score["value_template"], payload) == "0.5"
    attributes = json.loads(render_template(score["json_attributes_template"], payload))
    assert attributes == {"threshold": 0.25, "windows": 40, "alarms": 3}
    for entity in (alarm, score):
        assert render_template(entity["value_template"], b"") == "None"
    quiet = encode_json(
        Anomaly(client_id="pi-1", score=0.125, threshold=0.25, alarm=False, windows=40, alarms=3, ts=1.0)
    )
    assert render_template(alarm["value_template"], quiet) == "OFF"
    announcer.take("edgefl/v2/f/device/pi-1/anomaly", quiet, 0.0)
    assert not list(announcer.collect_due())


def test_entities_of_another_task_have_its_measure():
    announcer = Announcer("f", "homeassistant", lambda _: False)
    announcer.take("edgefl/v2/f/device/pi-1/status", encode_status("pi-1"), 0.0)
    assert len(list(announcer.collect_due())) == 18
    for task in (None, 0.0, math.nan, 9.0):
        announcer.take("edgefl/v2/f/state", encode_state(task), 0.0)
        assert not list(announcer.collect_due())
    names = {}
    for task in (1.0, 2.0):
        announcer.take("edgefl/v2/f/state", encode_state(task), 0.0)
        made = {message.topic: json.loads(message.payload) for message in announcer.collect_due()}
        names[task] = {entity["name"] for entity in made.values()}
        assert not [name for name in names[task] if "ccuracy" in name]
    assert {"R2", "R2 alone", "R2 int8"} <= names[1.0]
    assert {"AUC or R2", "AUC or R2 alone", "Anomaly", "Anomaly score"} <= names[2.0]
    template = made["homeassistant/sensor/edgefl_f/pi-1_accuracy/config"]["value_template"]
    rendered = [
        render_template(template, json.dumps({"values": values}).encode())
        for values in ({"r2": 0.25}, {"r2": 0.25, "auc_shipped": 0.75, "r2_shipped": 0.5}, {"loss": 1.0})
    ]
    assert rendered == ["25.0", "75.0", ""]


def read_retained(url, topic):
    """Return the retained messages under a filter: all messages before the answer to the test's own
    message.
    """
    link = Link(url, f"reader-{secrets.token_hex(4)}")
    marker = f"marker/{secrets.token_hex(4)}"
    try:
        link.subscribe(topic, marker)
        link.publish(marker, b"end")
        found = {}
        while isinstance(event := link.get(20.0), Message) and event.topic != marker:
            if event.retained:
                found[event.topic] = event.payload
        return found
    finally:
        link.close()


@pytest.fixture
def play_federation(federate, mosquitto_url, toys, listen):
    """Returns a function that plays a federation of two devices with discovery and returns all messages."""
    prefix = f"ha-{secrets.token_hex(4)}"

    def play(*more):
        federation = federate(mosquitto_url, rounds=2)
        listener = listen(federation)
        aggregator = federation.aggregator("--home-assistant", prefix, *more)
        devices = [federation.device(f"pi-{i}", toys.shard(i)) for i in (1, 2)]
        assert aggregator.end() == 0, aggregator.err
        assert [device.end() for device in devices] == [0, 0]
        return (
            federation,
            read_retained(mosquitto_url, f"{prefix}/#"),
            listener.wait_for_phase("done"),
            prefix,
        )

    return play


def test_every_entity_of_a_real_federation_gets_values(play_federation):
    federation, found, messages, prefix = play_federation()
    entities = {
        topic.replace(prefix, "homeassistant", 1): json.loads(payload) for topic, payload in found.items()
    }
    assert len(entities) == 11 + 2 * 7
    values_of = {}
    for topic, entity in entities.items():
        check_entity(topic, entity)
        values = [
            render_template(entity["value_template"], m.payload)
            for m in messages
            if m.payload and matches_filter(entity["state_topic"], m.topic)
        ]
        assert values, f"nothing is said on {entity['state_topic']}"
        # Home Assistant ignores an empty value
        values_of["/".join(topic.split("/")[3:4])] = [value for value in values if value]
        for each in entity.get("availability", ()):
            states = [
                render_template(each["value_template"], m.payload)
                for m in messages
                if m.topic == each["topic"]
            ]
            assert states
            assert set(states) <= {"online", "offline"}
    assert values_of["phase"] == ["joining", "federate", "federate", "personalize", "done"]
    assert values_of["round"] == ["0", "1", "2", "3", "3"]
    verdict = federation.result()["verdict"]
    assert values_of["verdict"] == ["not compared"], "these devices do not train alone"
    assert verdict["means"]["local"] is None
    assert values_of["verdict_local"] == ["None"]
    assert [float(value) for value in values_of["verdict_shipped"]] == [
        pytest.approx(100 * verdict["means"]["shipped"], abs=0.06)
    ]
    assert [float(value) for value in values_of["loss"]] == [
        round(loss, 4) for loss in federation.result()["losses"]
    ]
    assert values_of["pi-1_round"] == ["1", "2", "3"]
    (row,) = (each for each in federation.result()["clients"] if each["id"] == "pi-1")
    assert [float(value) for value in values_of["pi-1_accuracy"]] == [round(100 * row["accuracy_shipped"], 1)]
    assert [20 < float(value) < 100 for value in values_of["pi-1_memory"]] == [True] * 3
    assert (values_of["pi-1_online"][0], len(values_of["pi-1_loss"])) == ("ON", 2)


def test_entities_are_withdrawn_at_the_end_on_request(play_federation):
    _, found, _, _ = play_federation("--home-assistant-clear")
    assert found == {}


def test_revoked_device_is_withdrawn_and_only_aggregator_writes_discovery(secured_broker, federate, toys):
    """Only the aggregator may write discovery messages. A monitor may read them, a device may not."""
    federation = federate(secured_broker.url, min_clients=3)
    aggregator = federation.aggregator(
        "--security", secured_broker.directory, "--broker", secured_broker.url, "--home-assistant"
    )
    watcher = secured_broker.link(enrol_watcher(secured_broker.directory, 30))
    watcher.subscribe("homeassistant/#")
    enrolled = {
        name: secured_broker.enrol(name, federation.directory / f"{name}.enrol") for name in ("pi-1", "pi-2")
    }
    federation.device("pi-1", toys.shard(1), "--enrol", federation.directory / "pi-1.enrol")
    thief = secured_broker.link(enrolled["pi-2"])
    thief.publish("homeassistant/sensor/edgefl_x/forged/config", b"{}", retain=True)
    thief.subscribe("homeassistant/#", timeout_s=0)

    def wait_for_messages(ready):
        found = {}
        while not ready(found):
            event = watcher.get(40.0)
            assert isinstance(event, Message), (sorted(found), aggregator.err)
            found[event.topic] = event.payload
        return found

    seen = wait_for_messages(lambda found: len(found) == 18)
    assert all(seen.values())
    assert not [topic for topic in seen if "forged" in topic]
    assert thief.get(0.5) is None
    revoke_enrolment(secured_broker.directory, "pi-1")
    removed = wait_for_messages(lambda found: len(found) == 7)
    assert set(removed.values()) == {b""}
    assert {topic.split("/")[3].partition("_")[0] for topic in removed} == {"pi-1"}
    for link in (watcher, thief):
        link.close()
