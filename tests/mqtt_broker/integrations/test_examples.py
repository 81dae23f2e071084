"""The examples for other tools: every topic, field, metric and label that they name is one that a real
federation says.
"""

import json
import math
import re
import shutil
import subprocess
import tomllib

import pytest

from edgefl.cli.main import run_command as edgefl
from edgefl.wire.topics import matches_filter
from mqtt_broker.commands.examples import EXAMPLE_DESCRIPTIONS, read_examples
from mqtt_broker.integrations.prometheus import FederationMetrics

TEXTS = read_examples()
NODE = """
const flow = JSON.parse(require('fs').readFileSync(0));
const kept = {};
for (const [code, topic, payload] of flow.calls) {
  const kept_of = kept[code] ??= new Map();
  const context = { get: (key) => kept_of.get(key), set: (key, value) => kept_of.set(key, value) };
  const said = new Function('msg', 'context', code)({ topic, payload: JSON.parse(payload) }, context);
  console.log(JSON.stringify(said ? said.payload : null));
}
"""


@pytest.fixture(scope="module")
def said(tmp_path_factory, services, mosquitto_url, ear):
    """What two real devices and their aggregator said: (topic, payload)."""
    heard = ear(mosquitto_url)
    started = []

    def start(*arguments):
        started.append(services.Process(*arguments))
        return started[-1]

    federation = services.Federation(
        mosquitto_url, tmp_path_factory.mktemp("said"), start, rounds=2, min_clients=2
    )
    aggregator = federation.aggregator()
    devices = [federation.device(f"pi-{i}", services.shard(i)) for i in (1, 2)]
    assert aggregator.end() == 0, aggregator.said
    assert [device.end() for device in devices] == [0, 0]
    messages = heard.until_phase("done", f"/{federation.name}/state")
    heard.link.close()
    for process in started:
        process.close()
    return [
        (m.topic, m.payload)
        for m in messages
        if m.payload and m.topic.startswith(f"{federation.topics.root}/") and "/blob/" not in m.topic
    ]


def test_the_command_writes_all_and_overwrites_none(tmp_path, capfd):
    assert edgefl(["broker", "examples", str(tmp_path / "x")]) == 0
    told = capfd.readouterr().out
    for name, text in TEXTS.items():
        assert (tmp_path / "x" / name).read_text() == text
        assert f"{name}: {EXAMPLE_DESCRIPTIONS[name]}" in told
    assert EXAMPLE_DESCRIPTIONS.keys() == TEXTS.keys()
    (tmp_path / "x" / "telegraf" / "telegraf.conf").write_text("mine")
    assert edgefl(["broker", "examples", str(tmp_path / "x")]) == 1
    assert "already exists" in capfd.readouterr().err
    assert (tmp_path / "x" / "telegraf" / "telegraf.conf").read_text() == "mine"
    assert edgefl(["broker", "examples", str(tmp_path / "y"), "--json"]) == 0
    assert len(json.loads(capfd.readouterr().out)) == len(TEXTS)


def flattened(value, name=""):
    """Return the fields that Telegraf's JSON parser makes: nested names joined by _, no nulls."""
    if isinstance(value, dict):
        return {
            key: each
            for part, found in value.items()
            for key, each in flattened(found, f"{name}_{part}".strip("_")).items()
        }
    if isinstance(value, list):
        return flattened({str(i): each for i, each in enumerate(value)}, name)
    return {} if value is None else {name: value}


def by_telegraf(said):
    """Return the metrics that Telegraf's Prometheus output would have of these messages, with their
    labels.
    """
    found = {}
    for plugin in tomllib.loads(TEXTS["telegraf/telegraf.conf"])["inputs"]["mqtt_consumer"]:
        assert plugin["data_format"] == "json"
        (wanted,), (parsing,) = plugin["topics"], plugin["topic_parsing"]
        assert parsing["topic"] == wanted
        assert len(parsing["tags"].split("/")) == len(wanted.split("/"))
        texts = plugin.get("json_string_fields", [])
        kept = plugin.get("fieldinclude")
        payloads = [(topic, json.loads(payload)) for topic, payload in said if matches_filter(wanted, topic)]
        assert payloads, f"nothing is said on {wanted}"
        for topic, payload in payloads:
            tags = {
                tag: part
                for tag, part in zip(parsing["tags"].split("/"), topic.split("/"), strict=True)
                if tag != "_"
            }
            assert isinstance(payload.pop(plugin["json_time_key"]), float)
            fields = flattened(payload)
            assert set(texts) <= fields.keys()
            assert set(kept or ()) <= fields.keys()
            for name, value in fields.items():
                numeric = isinstance(value, int | float) and (not isinstance(value, bool) or name in texts)
                if numeric and (kept is None or name in kept):
                    found[f"{plugin['name_override']}_{name}"] = {*tags, "job"}
    return found


def by_aggregator(said):
    """Return the metrics of `--metrics-port` after these messages, with their labels."""
    pytest.importorskip("prometheus_client")
    figures = FederationMetrics(said[0][0].split("/")[2])
    for topic, payload in said:
        figures.take(topic, payload, 2e9)
    samples = [sample for family in figures.collect() for sample in family.samples]
    assert all(math.isfinite(sample.value) for sample in samples)
    return {sample.name: {*sample.labels, "job"} for sample in samples}


def test_telegraf_finds_every_field(said):
    found = by_telegraf(said)
    assert {
        "edgefl_device_rss_mb",
        "edgefl_device_values_accuracy_shipped",
        "edgefl_status_online",
        "edgefl_summary_loss",
    } <= found.keys()
    assert all(
        labels == {"federation", "device", "job"}
        for name, labels in found.items()
        if not name.startswith("edgefl_summary")
    )
    settings = tomllib.loads(TEXTS["telegraf/telegraf.conf"])
    assert settings.keys() == {"agent", "inputs", "outputs"}
    port = settings["outputs"]["prometheus_client"][0]["listen"]
    assert f"127.0.0.1{port}" in TEXTS["prometheus/prometheus.yml"]


def test_grafana_asks_for_metrics_that_there_are(said):
    board = json.loads(TEXTS["grafana/edgefl.json"])
    # the board's temperature is null on a machine without a sensor
    known = (
        by_aggregator(said)
        | by_telegraf(said)
        | {"edgefl_device_temperature_c": {"federation", "device", "job"}}
    )
    known["process_resident_memory_bytes"] = {"job"}
    asked = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    asked += [each["query"]["query"] for each in board["templating"]["list"] if each["type"] == "query"]
    for panel in board["panels"]:
        for target in panel["targets"]:
            names = re.findall(r"\b(?:edgefl|process)_\w+", target["expr"])
            assert len(names) == 1, target
            labels = re.findall(r"{(?:{)?(\w+)(?:=|}})", target["expr"] + target["legendFormat"])
            assert names[0] in known, target
            assert set(labels) <= known[names[0]], target
    assert "edgefl_round, federation" in asked[-1]
    declared = {each["name"] for each in board["templating"]["list"]}
    assert set(re.findall(r"\$\{?(\w+)", json.dumps(board))) == declared == {"datasource", "federation"}


def test_grafanas_panels_lie_side_by_side():
    board = json.loads(TEXTS["grafana/edgefl.json"])
    assert {
        "uid",
        "title",
        "tags",
        "timezone",
        "editable",
        "time",
        "templating",
        "annotations",
        "schemaVersion",
        "panels",
    } <= board.keys()
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"]) == 17
    taken = set()
    for panel in board["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        assert place["x"] + place["w"] <= 24
        taken |= cells
        assert {"type", "title", "datasource", "targets", "fieldConfig", "options"} <= panel.keys()


def test_grafanas_own_model_takes_the_dashboard_and_keeps_all_of_it():
    dashboard = pytest.importorskip(
        "grafana_foundation_sdk.models.dashboard", reason="the tools extra is not installed"
    )
    from grafana_foundation_sdk.cog.encoder import JSONEncoder
    from grafana_foundation_sdk.cog.plugins import register_default_plugins

    register_default_plugins()
    board = json.loads(TEXTS["grafana/edgefl.json"])
    kept = json.loads(JSONEncoder().encode(dashboard.Dashboard.from_json(board)))

    def lost(given, found, path=""):
        if isinstance(given, dict) and isinstance(found, dict):
            return [each for key in given for each in lost(given[key], found.get(key), f"{path}/{key}")]
        if isinstance(given, list) and isinstance(found, list) and len(given) == len(found):
            return [
                each
                for i, (one, other) in enumerate(zip(given, found, strict=True))
                for each in lost(one, other, f"{path}/{i}")
            ]
        return [] if given == found else [path]

    assert lost(board, kept) == []
    assert lost({**board, "panles": []}, kept) == ["/panles"]


def test_provisioning_and_prometheus_are_yaml():
    yaml = pytest.importorskip("yaml")
    (source,) = yaml.safe_load(TEXTS["grafana/provisioning/datasources/edgefl.yml"])["datasources"]
    assert (source["type"], source["url"]) == ("prometheus", "http://127.0.0.1:9090")
    (provider,) = yaml.safe_load(TEXTS["grafana/provisioning/dashboards/edgefl.yml"])["providers"]
    assert (provider["type"], set(provider["options"])) == ("file", {"path"})
    jobs = {job["job_name"] for job in yaml.safe_load(TEXTS["prometheus/prometheus.yml"])["scrape_configs"]}
    assert jobs == {"edgefl", "edgefl-boards"}
    assert 'job="edgefl"' in TEXTS["grafana/edgefl.json"].replace("\\", "")


def test_node_reds_flow_is_whole(said):
    nodes = {node["id"]: node for node in json.loads(TEXTS["node-red/flow.json"])}
    assert len(nodes) == len(json.loads(TEXTS["node-red/flow.json"]))
    for node in nodes.values():
        assert node["type"] in {"tab", "mqtt-broker", "mqtt in", "function", "debug"}
        assert node.get("z", node["id"]) in nodes
        assert all(target in nodes for wires in node.get("wires", ()) for target in wires)
        if node["type"] == "mqtt in":
            assert nodes[node["broker"]]["type"] == "mqtt-broker"
            assert any(matches_filter(node["topic"], topic) for topic, _ in said)


def test_node_reds_functions_say_what_was_said(said):
    node_js = shutil.which("node")
    if node_js is None:
        pytest.skip("Node.js is not installed")
    nodes = {node["id"]: node for node in json.loads(TEXTS["node-red/flow.json"])}
    calls = []
    hot = json.dumps({"temperature_c": 81.5, "values": {}})
    for topic, payload in [*said, ("edgefl/v2/f/device/pi-9/metrics", hot.encode())]:
        for source in (
            node
            for node in nodes.values()
            if node["type"] == "mqtt in" and matches_filter(node["topic"], topic)
        ):
            calls += [(nodes[target], topic, payload.decode()) for target in source["wires"][0]]
    given = json.dumps({"calls": [(node["func"], topic, payload) for node, topic, payload in calls]})
    ran = subprocess.run([node_js, "-e", NODE], input=given, capture_output=True, text=True, timeout=60)
    assert ran.returncode == 0, ran.stderr
    told = [
        (node["name"], json.loads(line))
        for (node, _, _), line in zip(calls, ran.stdout.splitlines(), strict=True)
    ]
    boards = [each for name, each in told if name == "one board" and each["device"] == "pi-1"]
    assert [each["round"] for each in boards] == [1, 2, 3]
    assert all(each["loss"] > 0 for each in boards[:2])
    assert 0 < boards[2]["accuracy"] <= 1
    rounds = [each for name, each in told if name == "one round"]
    assert [(each["round"], each["updates"]) for each in rounds] == [(1, 2), (2, 2), (3, 2)]
    assert [each for name, each in told if name == "hot" and each] == ["f: pi-9 has 81.5 °C"]
    offline = {each.split(": ")[1] for name, each in told if name == "went offline" and each}
    assert offline == {"pi-1 went offline", "pi-2 went offline"}
