"""The logs of real services: one JSON object per line, with fields by which a log collector can select."""

import json


def read_records(process):
    return [json.loads(line) for line in process.err.splitlines()]


def test_services_log_json_with_rounds_clients_and_levels(federate, mosquitto_url, toys):
    federation = federate(mosquitto_url, rounds=2, min_clients=1)
    aggregator = federation.aggregator("--log-format", "json")
    device = federation.device("pi-1", toys.shard(1), "--log-format", "json")
    assert aggregator.end() == 0, aggregator.err
    assert device.end() == 0, device.err

    records = read_records(aggregator)
    assert {record["federation"] for record in records} == {federation.name}
    assert {record["logger"] for record in records} == {"edgefl.aggregator"}
    assert [record["round"] for record in records if record.get("phase") == "federate"] == [1, 2]
    assert {record.get("client_id") for record in records} == {None, "pi-1"}
    warnings = [record["message"] for record in records if record["level"] == "warning"]
    assert warnings and all("the plan's value is used" in message for message in warnings)

    records = read_records(device)
    assert {record["client_id"] for record in records} == {"pi-1"}
    rounds = [record for record in records if "metrics" in record]
    assert [(record["round"], record["phase"]) for record in rounds] == [
        (1, "federate"),
        (2, "federate"),
        (3, "personalize"),
    ]
    assert all(record["metrics"]["loss"] > 0 for record in rounds[:2])


def test_log_level_limits_the_log_to_warnings_or_errors(federate, mosquitto_url, toys, start):
    federation = federate(mosquitto_url, rounds=1, min_clients=1)
    aggregator = federation.aggregator("--log-level", "warning")
    device = federation.device("pi-1", toys.shard(1), "--log-level", "error")
    assert aggregator.end() == 0, aggregator.err
    assert device.end() == 0, device.err
    assert device.err == ""
    lines = aggregator.err.splitlines()
    assert lines and all(line.startswith("warning: ") for line in lines)
