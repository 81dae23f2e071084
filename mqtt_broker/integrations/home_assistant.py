"""Home Assistant's MQTT discovery: retained messages that describe a federation and its boards.

Home Assistant creates devices and entities from them. Each entity has one message on the topic
PREFIX/COMPONENT/NODE/OBJECT/config, which every version of Home Assistant reads. Templates in the messages
read the values from edgefl's topics, so no other message is published. The functions are pure. `Announcer`
turns statuses of boards into messages.

Source: https://www.home-assistant.io/integrations/mqtt/#mqtt-discovery
"""

import json
from collections.abc import Callable, Iterator
from typing import Any

from edgefl import __version__
from edgefl.base.errors import WireError
from edgefl.base.tasks.config import ANOMALY, CLASSIFICATION, REGRESSION, TASK_KINDS
from edgefl.protocol.transport.link import Message
from edgefl.protocol.wire.messages import STOPPED_PHASE, Anomaly, State, Status
from edgefl.protocol.wire.strict_json import decode_json
from edgefl.protocol.wire.topics import FederationTopics, parse_topic
from mqtt_broker.integrations.tool_options import DISCOVERY_PREFIX

ORIGIN = {"name": "edgefl", "sw_version": __version__}
MAX_BOARDS = 10_000
# `value_json.values` would be the method of a dict. An empty string leaves an entity unchanged if a message
# lacks the metric.
METRIC_TEMPLATE = "{%% set a = value_json['values'].get('%s') %%}{{ '' if a is none else %s }}"
ACCURACY_TEMPLATE = (
    "{% set v = value_json['values'] %}{% set a = v.get('accuracy_shipped') if 'accuracy_shipped' in v "
    "else v.get('accuracy') %}{{ '' if a is none else (100 * a) | round(1) }}"
)
# For regressions and anomalies, the AUC goes before R2, and the final model before the model of a round.
MEASURE_TEMPLATE = (
    "{% set v = value_json['values'] %}{% set a = v.get('auc_shipped', v.get('r2_shipped', v.get('r2'))) %}"
    "{{ '' if a is none else (100 * a) | round(1) }}"
)
MEASURE_INT8_TEMPLATE = (
    "{% set v = value_json['values'] %}{% set a = v.get('auc_shipped_int8', v.get('r2_shipped_int8')) %}"
    "{{ '' if a is none else (100 * a) | round(1) }}"
)
FIELD_TEMPLATE = "{{ '' if value_json.%s is none else value_json.%s | round(%d) }}"
SHARE_TEMPLATE = "{{ '' if value_json.%s is none else (100 * value_json.%s) | round(1) }}"
# Home Assistant ignores an empty text, and shows None as an unknown number.
VERDICT_MEAN_TEMPLATE = (
    "{%% set a = value_json.means.get('%s') %%}{{ 'None' if a is none else (100 * a) | round(1) }}"
)
VERDICT_STATE_TEMPLATE = (
    "{% if value_json.better + value_json.as_good + value_json.worse %}{{ value_json.better }} better, "
    "{{ value_json.as_good }} as good, {{ value_json.worse }} worse{% else %}not compared{% endif %}"
)
VERDICT_ATTRIBUTES_TEMPLATE = (
    "{{ {'sentence': value_json.sentence, 'devices': value_json.devices, 'better': value_json.better, "
    "'as_good': value_json.as_good, 'worse': value_json.worse, 'gain_points': value_json.gain_points} "
    "| tojson }}"
)
VERDICT_MEAN_NAMES = {
    "local": "alone",
    "federated": "federated",
    "shipped": "shipped",
    "int8": "shipped int8",
}
"""Last words of the names of the entities with the verdict's means, by key of the means."""
MEASURE_NAMES = {CLASSIFICATION: "Accuracy", REGRESSION: "R2", ANOMALY: "AUC or R2"}
"""First words of the names of entities, by kind of task."""
ALARM_TEMPLATE = "{{ 'ON' if value_json.alarm else 'OFF' }}"
SCORE_TEMPLATE = "{{ 'None' if value_json.score is none else value_json.score | round(6) }}"
SCORE_ATTRIBUTES_TEMPLATE = (
    "{{ {'threshold': value_json.threshold, 'windows': value_json.windows, 'alarms': value_json.alarms} "
    "| tojson }}"
)
PERCENT = {"unit_of_measurement": "%", "state_class": "measurement"}
MEASUREMENT = {"state_class": "measurement"}


def make_node_id(federation: str) -> str:
    """Return a federation's node id for discovery topics, which may contain letters, digits, - and _ only.

    Names of federations are lower case, so an upper-case D for each dot is unique.
    """
    return f"edgefl_{federation.replace('.', 'D')}"


def make_federation_entities(
    federation: str, prefix: str = DISCOVERY_PREFIX, task: str = CLASSIFICATION
) -> dict[str, dict[str, Any]]:
    """Return the discovery messages of a federation's entities by topic.

    The entities are phase, round, cohort, loss, accuracy, updates, and the verdict with its mean accuracies.

    Args:
        federation: name of the federation.
        task: kind of the task, which decides the name of the accuracy.
    """
    topics = FederationTopics(federation)
    summary = f"{topics.root}/round/+/summary"
    phase = f"{{{{ 'offline' if value_json.phase == '{STOPPED_PHASE}' else 'online' }}}}"
    led = {"availability": [{"topic": topics.state, "value_template": phase}]}
    entities: dict[str, dict[str, Any]] = {
        "phase": {
            "name": "Phase",
            "state_topic": topics.state,
            "value_template": "{{ value_json.phase }}",
            "icon": "mdi:state-machine",
        },
        "round": {
            "name": "Round",
            "state_topic": topics.state,
            "value_template": "{{ value_json.round }}",
            **MEASUREMENT,
            **led,
        },
        "cohort": {
            "name": "Cohort",
            "state_topic": topics.state,
            "value_template": "{{ value_json.cohort_size }}",
            **MEASUREMENT,
            **led,
        },
        "loss": {
            "name": "Loss",
            "state_topic": summary,
            "value_template": FIELD_TEMPLATE % ("loss", "loss", 4),
            **MEASUREMENT,
        },
        "accuracy": {
            "name": MEASURE_NAMES[task],
            "state_topic": summary,
            "value_template": SHARE_TEMPLATE % (("accuracy_mean",) * 2),
            **PERCENT,
        },
        "updates": {
            "name": "Updates",
            "state_topic": summary,
            "value_template": "{{ value_json.updates }}",
            **MEASUREMENT,
        },
    }
    entities["verdict"] = {
        "name": "Verdict",
        "state_topic": topics.verdict,
        "value_template": _wrap_template(VERDICT_STATE_TEMPLATE, "not ended"),
        "json_attributes_topic": topics.verdict,
        "json_attributes_template": _wrap_template(VERDICT_ATTRIBUTES_TEMPLATE, "{}"),
        "icon": "mdi:scale-balance",
    }
    for figure, name in VERDICT_MEAN_NAMES.items():
        entities[f"verdict_{figure}"] = {
            "name": f"{MEASURE_NAMES[task]} {name}",
            "state_topic": topics.verdict,
            "value_template": _wrap_template(VERDICT_MEAN_TEMPLATE % figure, "None"),
            **PERCENT,
        }
    node = make_node_id(federation)
    device = {
        "identifiers": [node],
        "name": f"edgefl {federation}",
        "manufacturer": "edgefl",
        "model": "federation",
    }
    return {
        f"{prefix}/sensor/{node}/{key}/config": _make_entity(f"{node}_{key}", device, fields)
        for key, fields in entities.items()
    }


def make_board_entities(
    federation: str,
    client_id: str,
    version: str,
    prefix: str = DISCOVERY_PREFIX,
    task: str = CLASSIFICATION,
    has_detector: bool = False,
) -> dict[str, dict[str, Any]]:
    """Return the discovery messages of a board's entities by topic.

    The entities are online, accuracy, int8 accuracy, loss, round, temperature and memory. While the board is
    offline, the model's metrics stay available, but temperature and memory do not. A board with an anomaly
    detector also has its alarm and its score.

    Args:
        federation: name of the federation.
        version: version of edgefl on the board.
        task: kind of the task, which decides the name of the accuracy.
        has_detector: whether the board has an anomaly detector.
    """
    topics = FederationTopics(federation)
    node = make_node_id(federation)
    status = topics.format_device(client_id, "status")
    metrics = topics.format_device(client_id, "metrics")
    online = "{{ 'online' if value_json.online else 'offline' }}"
    present = {"availability": [{"topic": status, "value_template": online}], "entity_category": "diagnostic"}
    sensors: dict[str, dict[str, Any]] = {
        "accuracy": {
            "name": MEASURE_NAMES[task],
            "value_template": ACCURACY_TEMPLATE if task == CLASSIFICATION else MEASURE_TEMPLATE,
            "icon": "mdi:bullseye-arrow",
            **PERCENT,
        },
        "accuracy_int8": {
            "name": f"{MEASURE_NAMES[task]} int8",
            "value_template": METRIC_TEMPLATE % ("accuracy_shipped_int8", "(100 * a) | round(1)")
            if task == CLASSIFICATION
            else MEASURE_INT8_TEMPLATE,
            **PERCENT,
        },
        "loss": {"name": "Loss", "value_template": METRIC_TEMPLATE % ("loss", "a | round(4)"), **MEASUREMENT},
        "round": {"name": "Round", "value_template": "{{ value_json.round }}", **MEASUREMENT},
        "temperature": {
            "name": "Temperature",
            "value_template": FIELD_TEMPLATE % ("temperature_c", "temperature_c", 1),
            "device_class": "temperature",
            "unit_of_measurement": "°C",
            **MEASUREMENT,
            **present,
        },
        "memory": {
            "name": "Memory",
            "value_template": FIELD_TEMPLATE % ("rss_mb", "rss_mb", 1),
            "device_class": "data_size",
            "unit_of_measurement": "MB",
            **MEASUREMENT,
            **present,
        },
    }
    entities = {
        f"{prefix}/sensor/{node}/{client_id}_{key}/config": (key, {"state_topic": metrics, **fields})
        for key, fields in sensors.items()
    }
    entities[f"{prefix}/binary_sensor/{node}/{client_id}_online/config"] = (
        "online",
        {
            "name": "Online",
            "state_topic": status,
            "device_class": "connectivity",
            "entity_category": "diagnostic",
            "value_template": "{{ 'ON' if value_json.online else 'OFF' }}",
        },
    )
    if has_detector:
        anomaly = topics.format_device(client_id, "anomaly")
        entities[f"{prefix}/binary_sensor/{node}/{client_id}_anomaly/config"] = (
            "anomaly",
            {
                "name": "Anomaly",
                "state_topic": anomaly,
                "device_class": "problem",
                "value_template": _wrap_template(ALARM_TEMPLATE, "None"),
            },
        )
        entities[f"{prefix}/sensor/{node}/{client_id}_anomaly_score/config"] = (
            "anomaly_score",
            {
                "name": "Anomaly score",
                "state_topic": anomaly,
                "icon": "mdi:pulse",
                "value_template": _wrap_template(SCORE_TEMPLATE, "None"),
                "json_attributes_topic": anomaly,
                "json_attributes_template": _wrap_template(SCORE_ATTRIBUTES_TEMPLATE, "{}"),
                **MEASUREMENT,
            },
        )
    device = {
        "identifiers": [f"{node} {client_id}"],
        "name": f"{federation} {client_id}",
        "manufacturer": "edgefl",
        "model": "board",
        "sw_version": version,
        "via_device": node,
    }
    return {
        topic: _make_entity(f"{node} {client_id}_{key}", device, fields)
        for topic, (key, fields) in entities.items()
    }


def _wrap_template(template: str, before: str) -> str:
    """Return a template that renders `before` while the verdict's message is empty."""
    return f"{{% if value_json is defined %}}{template}{{% else %}}{before}{{% endif %}}"


def _make_entity(unique_id: str, device: dict[str, Any], fields: dict[str, Any]) -> dict[str, Any]:
    return {"unique_id": unique_id, **fields, "device": device, "origin": ORIGIN}


class Announcer:
    """Turns statuses of boards into discovery messages.

    A board has the entities of an anomaly detector if the federation learns to detect anomalies, or after the
    first message of its detector.

    Args:
        federation: name of the federation.
        prefix: prefix of the discovery topics.
        is_revoked: returns whether a client was revoked. Entities of revoked boards are removed.
    """

    def __init__(self, federation: str, prefix: str, is_revoked: Callable[[str], bool]) -> None:
        self._federation = federation
        self._prefix = prefix
        self._is_revoked = is_revoked
        self._boards: dict[str, dict[str, dict[str, Any]]] = {
            "": make_federation_entities(federation, prefix)
        }
        self._announced: dict[str, bool] = {}
        self._versions: dict[str, str] = {}
        self._task = CLASSIFICATION
        self._detectors: set[str] = set()

    def take(self, topic: str, payload: bytes, now_s: float) -> None:
        """Read the status or the anomaly of a board, or the task in the state of the federation.

        Other messages and damaged messages are ignored.

        Args:
            topic: topic of the message.
            payload: content of the message.
            now_s: time of arrival, in seconds since 1970. It is not used.
        """
        try:
            address = parse_topic(topic)
            client_id = address.client_id
            if not payload or len(self._boards) > MAX_BOARDS:
                return
            if address.kind == "state":
                self._take_task(decode_json(State, payload))
            elif address.kind == "status":
                status = decode_json(Status, payload)
                if self._versions.get(client_id) != status.version:
                    self._versions[client_id] = status.version
                    self._make_board(client_id)
            elif address.kind == "anomaly" and client_id not in self._detectors:
                decode_json(Anomaly, payload)
                if len(self._detectors) < MAX_BOARDS:
                    self._detectors.add(client_id)
                    self._make_board(client_id)
        except WireError:
            return

    def _take_task(self, state: State) -> None:
        number = state.settings.get("task", 0.0)
        task = dict(enumerate(TASK_KINDS)).get(int(number), CLASSIFICATION) if number == number else ""
        if task and task != self._task and state.federation == self._federation:
            self._task = task
            self._boards[""] = make_federation_entities(self._federation, self._prefix, task)
            self._announced.pop("", None)
            for client_id in self._versions:
                self._make_board(client_id)

    def _make_board(self, client_id: str) -> None:
        """Make the entities of a board, to be published. A board without a status has no entities."""
        if client_id not in self._versions:
            return
        has_detector = self._task == ANOMALY or client_id in self._detectors
        self._boards[client_id] = make_board_entities(
            self._federation, client_id, self._versions[client_id], self._prefix, self._task, has_detector
        )
        self._announced.pop(client_id, None)

    def collect_due(self) -> Iterator[Message]:
        """Yield the messages to publish now.

        These are the entities of new boards and new versions, and empty messages for revoked boards.
        """
        for client_id, entities in self._boards.items():
            is_removed = bool(client_id) and self._is_revoked(client_id)
            if self._announced.get(client_id) != is_removed:
                yield from (
                    _make_message(topic, None if is_removed else entity) for topic, entity in entities.items()
                )
                self._announced[client_id] = is_removed

    def reset(self) -> None:
        """Publish all entities again with the next `collect_due`. A restarted broker may have lost them."""
        self._announced.clear()

    def withdraw(self) -> Iterator[Message]:
        """Yield the empty messages that remove every entity."""
        for entities in self._boards.values():
            yield from (_make_message(topic, None) for topic in entities)


def _make_message(topic: str, entity: dict[str, Any] | None) -> Message:
    return Message(
        topic=topic,
        payload=b""
        if entity is None
        else json.dumps(entity, ensure_ascii=False, separators=(",", ":")).encode(),
        retained=True,
    )
