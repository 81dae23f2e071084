"""The examples for other tools: a real federation publishes every topic, field, metric and label that
they name.
"""

import json
import math
import re
import shutil
import subprocess
import tomllib

import pytest

from edgefl.cli.main import run_command as edgefl
from edgefl.protocol.wire.topics import matches_filter
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
def published(tmp_path_factory, services, mosquitto_url, listen_to_all):
    """The messages of two real devices and their aggregator: (topic, payload)."""
    listener = listen_to_all(mosquitto_url)
    started = []

    def start(*arguments):
        started.append(services.Process(*arguments))
        return started[-1]

    federation = services.Federation(
        mosquitto_url, tmp_path_factory.mktemp("said"), start, rounds=2, min_clients=2
    )
    aggregator = federation.aggregator()
    devices = [federation.device(f"pi-{i}", services.shard(i)) for i in (1, 2)]
    assert aggregator.end() == 0, aggregator.err
    assert [device.end() for device in devices] == [0, 0]
    expected = {"pi-1", "pi-2", "done"}

    def is_last(message):
        """Return whether the federation is done and the last status of both devices has arrived."""
        if message.topic == federation.topics.state and b'"done"' in message.payload:
            expected.discard("done")
        own = message.topic.startswith(f"{federation.topics.root}/")  # others use the broker too
        if own and message.topic.endswith("/status") and not json.loads(message.payload)["online"]:
            expected.discard(message.topic.split("/")[-2])
        return not expected

    messages = listener.wait_for(is_last)
    listener.link.close()
    for process in started:
        process.close()
    return [
        (m.topic, m.payload)
        for m in messages
        if m.payload and m.topic.startswith(f"{federation.topics.root}/") and "/blob/" not in m.topic
    ]


def test_examples_command_writes_all_files_and_overwrites_none(tmp_path, capfd):
    assert edgefl(["broker", "examples", str(tmp_path / "x")]) == 0
    output = capfd.readouterr().out
    for name, text in TEXTS.items():
        assert (tmp_path / "x" / name).read_text() == text
        assert f"{name}: {EXAMPLE_DESCRIPTIONS[name]}" in output
    assert EXAMPLE_DESCRIPTIONS.keys() == TEXTS.keys()
    (tmp_path / "x" / "telegraf" / "telegraf.conf").write_text("mine")
    assert edgefl(["broker", "examples", str(tmp_path / "x")]) == 1
    assert "already exists" in capfd.readouterr().err
    assert (tmp_path / "x" / "telegraf" / "telegraf.conf").read_text() == "mine"
    assert edgefl(["broker", "examples", str(tmp_path / "y"), "--json"]) == 0
    assert len(json.loads(capfd.readouterr().out)) == len(TEXTS)


def flatten(value, name=""):
    """Return the fields that Telegraf's JSON parser makes: nested names are joined by _, nulls are
    omitted.
    """
    if isinstance(value, dict):
        return {
            key: each
            for part, found in value.items()
            for key, each in flatten(found, f"{name}_{part}".strip("_")).items()
        }
    if isinstance(value, list):
        return flatten({str(i): each for i, each in enumerate(value)}, name)
    return {} if value is None else {name: value}


def collect_telegraf_metrics(published):
    """Return the metrics of Telegraf's Prometheus output for these messages, with their labels."""
    found = {}
    for plugin in tomllib.loads(TEXTS["telegraf/telegraf.conf"])["inputs"]["mqtt_consumer"]:
        assert plugin["data_format"] == "json"
        (topic_filter,), (parsing,) = plugin["topics"], plugin["topic_parsing"]
        assert parsing["topic"] == topic_filter
        assert len(parsing["tags"].split("/")) == len(topic_filter.split("/"))
        texts = plugin.get("json_string_fields", [])
        included_fields = plugin.get("fieldinclude")
        payloads = [
            (topic, json.loads(payload))
            for topic, payload in published
            if matches_filter(topic_filter, topic)
        ]
        assert payloads, f"nothing is said on {topic_filter}"
        for topic, payload in payloads:
            tags = {
                tag: part
                for tag, part in zip(parsing["tags"].split("/"), topic.split("/"), strict=True)
                if tag != "_"
            }
            assert isinstance(payload.pop(plugin["json_time_key"]), float)
            fields = flatten(payload)
            assert set(texts) <= fields.keys()
            assert set(included_fields or ()) <= fields.keys()
            for name, value in fields.items():
                numeric = isinstance(value, int | float) and (not isinstance(value, bool) or name in texts)
                if numeric and (included_fields is None or name in included_fields):
                    found[f"{plugin['name_override']}_{name}"] = {*tags, "job"}
    return found


def collect_aggregator_metrics(published):
    """Return the metrics of `--metrics-port` after these messages, with their labels."""
    pytest.importorskip("prometheus_client")
    figures = FederationMetrics(published[0][0].split("/")[2])
    for topic, payload in published:
        figures.take(topic, payload, 2e9)
    samples = [sample for family in figures.collect() for sample in family.samples]
    assert all(math.isfinite(sample.value) for sample in samples)
    return {sample.name: {*sample.labels, "job"} for sample in samples}


def test_telegraf_configuration_matches_the_published_fields(published):
    found = collect_telegraf_metrics(published)
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


def test_grafana_queries_only_existing_metrics(published):
    board = json.loads(TEXTS["grafana/edgefl.json"])
    # the board's temperature is null on a machine without a sensor
    metrics = (
        collect_aggregator_metrics(published)
        | collect_telegraf_metrics(published)
        | {"edgefl_device_temperature_c": {"federation", "device", "job"}}
    )
    metrics["process_resident_memory_bytes"] = {"job"}
    queries = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    queries += [each["query"]["query"] for each in board["templating"]["list"] if each["type"] == "query"]
    for panel in board["panels"]:
        for target in panel["targets"]:
            names = re.findall(r"\b(?:edgefl|process)_\w+", target["expr"])
            assert len(names) == 1, target
            labels = re.findall(r"{(?:{)?(\w+)(?:=|}})", target["expr"] + target["legendFormat"])
            assert names[0] in metrics, target
            assert set(labels) <= metrics[names[0]], target
    assert "edgefl_round, federation" in queries[-1]
    declared = {each["name"] for each in board["templating"]["list"]}
    assert set(re.findall(r"\$\{?(\w+)", json.dumps(board))) == declared == {"datasource", "federation"}


def test_grafana_panels_do_not_overlap():
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
    occupied = set()
    for panel in board["panels"]:
        position = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(position["x"], position["x"] + position["w"])
            for y in range(position["y"], position["y"] + position["h"])
        }
        assert not cells & occupied, panel["title"]
        assert position["x"] + position["w"] <= 24
        occupied |= cells
        assert {"type", "title", "datasource", "targets", "fieldConfig", "options"} <= panel.keys()


def test_grafana_sdk_preserves_the_whole_dashboard():
    dashboard = pytest.importorskip(
        "grafana_foundation_sdk.models.dashboard", reason="the tools extra is not installed"
    )
    from grafana_foundation_sdk.cog.encoder import JSONEncoder
    from grafana_foundation_sdk.cog.plugins import register_default_plugins

    register_default_plugins()
    board = json.loads(TEXTS["grafana/edgefl.json"])
    preserved = json.loads(JSONEncoder().encode(dashboard.Dashboard.from_json(board)))

    def list_lost(original, preserved, path=""):
        if isinstance(original, dict) and isinstance(preserved, dict):
            return [
                each
                for key in original
                for each in list_lost(original[key], preserved.get(key), f"{path}/{key}")
            ]
        if isinstance(original, list) and isinstance(preserved, list) and len(original) == len(preserved):
            return [
                each
                for i, (first, second) in enumerate(zip(original, preserved, strict=True))
                for each in list_lost(first, second, f"{path}/{i}")
            ]
        return [] if original == preserved else [path]

    assert list_lost(board, preserved) == []
    assert list_lost({**board, "panles": []}, preserved) == ["/panles"]


def test_provisioning_and_prometheus_files_are_valid_yaml():
    yaml = pytest.importorskip("yaml")
    (source,) = yaml.safe_load(TEXTS["grafana/provisioning/datasources/edgefl.yml"])["datasources"]
    assert (source["type"], source["url"]) == ("prometheus", "http://127.0.0.1:9090")
    (provider,) = yaml.safe_load(TEXTS["grafana/provisioning/dashboards/edgefl.yml"])["providers"]
    assert (provider["type"], set(provider["options"])) == ("file", {"path"})
    jobs = {job["job_name"] for job in yaml.safe_load(TEXTS["prometheus/prometheus.yml"])["scrape_configs"]}
    assert jobs == {"edgefl", "edgefl-boards"}
    assert 'job="edgefl"' in TEXTS["grafana/edgefl.json"].replace("\\", "")


def test_node_red_flow_is_consistent(published):
    nodes = {node["id"]: node for node in json.loads(TEXTS["node-red/flow.json"])}
    assert len(nodes) == len(json.loads(TEXTS["node-red/flow.json"]))
    for node in nodes.values():
        assert node["type"] in {"tab", "mqtt-broker", "mqtt in", "function", "debug"}
        assert node.get("z", node["id"]) in nodes
        assert all(target in nodes for wires in node.get("wires", ()) for target in wires)
        if node["type"] == "mqtt in":
            assert nodes[node["broker"]]["type"] == "mqtt-broker"
            assert any(matches_filter(node["topic"], topic) for topic, _ in published)


def test_node_red_functions_report_the_published_values(published):
    node_js = shutil.which("node")
    if node_js is None:
        pytest.skip("Node.js is not installed")
    nodes = {node["id"]: node for node in json.loads(TEXTS["node-red/flow.json"])}
    calls = []
    hot = json.dumps({"temperature_c": 81.5, "values": {}})
    for topic, payload in [*published, ("edgefl/v2/f/device/pi-9/metrics", hot.encode())]:
        for source in (
            node
            for node in nodes.values()
            if node["type"] == "mqtt in" and matches_filter(node["topic"], topic)
        ):
            calls += [(nodes[target], topic, payload.decode()) for target in source["wires"][0]]
    calls_json = json.dumps({"calls": [(node["func"], topic, payload) for node, topic, payload in calls]})
    result = subprocess.run(
        [node_js, "-e", NODE], input=calls_json, capture_output=True, text=True, timeout=60
    )
    assert result.returncode == 0, result.stderr
    results = [
        (node["name"], json.loads(line))
        for (node, _, _), line in zip(calls, result.stdout.splitlines(), strict=True)
    ]
    boards = [each for name, each in results if name == "one board" and each["device"] == "pi-1"]
    assert [each["round"] for each in boards] == [1, 2, 3]
    assert all(each["loss"] > 0 for each in boards[:2])
    assert 0 < boards[2]["accuracy"] <= 1
    rounds = [each for name, each in results if name == "one round"]
    assert [(each["round"], each["updates"]) for each in rounds] == [(1, 2), (2, 2), (3, 2)]
    assert [each for name, each in results if name == "hot" and each] == ["f: pi-9 has 81.5 °C"]
    offline = [each.split(": ")[1] for name, each in results if name == "went offline" and each]
    assert sorted(offline) == ["pi-1 went offline", "pi-2 went offline"]  # at the end of the federation
