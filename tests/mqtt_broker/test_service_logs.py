"""The logs of real services: one JSON object a line, with fields that a log collector can select by."""

import json


def records(process):
    return [json.loads(line) for line in process.said.splitlines()]


def test_a_federation_logs_json_with_rounds_clients_and_levels(federate, mosquitto_url, toys):
    federation = federate(mosquitto_url, rounds=2, min_clients=1)
    aggregator = federation.aggregator("--log-format", "json")
    device = federation.device("pi-1", toys.shard(1), "--log-format", "json")
    assert aggregator.end() == 0, aggregator.said
    assert device.end() == 0, device.said

    logged = records(aggregator)
    assert {record["federation"] for record in logged} == {federation.name}
    assert {record["logger"] for record in logged} == {"edgefl.aggregator"}
    assert [record["round"] for record in logged if record.get("phase") == "federate"] == [1, 2]
    assert {record.get("client_id") for record in logged} == {None, "pi-1"}
    warnings = [record["message"] for record in logged if record["level"] == "warning"]
    assert warnings and all("the plan's value is used" in message for message in warnings)

    logged = records(device)
    assert {record["client_id"] for record in logged} == {"pi-1"}
    rounds = [record for record in logged if "metrics" in record]
    assert [(record["round"], record["phase"]) for record in rounds] == [
        (1, "federate"),
        (2, "federate"),
        (3, "personalize"),
    ]
    assert all(record["metrics"]["loss"] > 0 for record in rounds[:2])


def test_only_what_needs_attention_is_logged_from_warning_on(federate, mosquitto_url, toys, start):
    federation = federate(mosquitto_url, rounds=1, min_clients=1)
    aggregator = federation.aggregator("--log-level", "warning")
    device = federation.device("pi-1", toys.shard(1), "--log-level", "error")
    assert aggregator.end() == 0, aggregator.said
    assert device.end() == 0, device.said
    assert device.said == ""
    assert all(line.startswith("warning: ") for line in aggregator.said.splitlines())
