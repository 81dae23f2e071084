"""The doctor over real brokers."""

import json
import subprocess

import pytest
from click.testing import CliRunner

from edgefl.cli.commands.doctor import doctor
from mqtt_broker.broker.dev_broker import find_mosquitto
from tests.support.ports import choose_port


def ask(*arguments):
    ran = CliRunner().invoke(doctor, [*map(str, arguments), "--json"])
    return ran.exit_code, {finding["check"]: finding for finding in json.loads(ran.stdout)["findings"]}


def test_a_federation_that_runs_and_one_that_stopped(federate, any_url):
    federation = federate(any_url)
    code, found = ask("--broker", any_url, "--federation", federation.name)
    assert code == 0
    assert [found[key]["level"] for key in ("broker", "access", "packets", "federation")] == [
        "ok",
        "ok",
        "ok",
        "warn",
    ]
    assert "is not running" in found["federation"]["found"]
    aggregator = federation.aggregator()
    aggregator.wait_for("waiting for devices")
    code, found = ask("--broker", any_url, "--federation", federation.name)
    assert (code, found["federation"]["level"]) == (0, "ok")
    assert f"{federation.name!r}: waiting for devices, 3 rounds to come" in found["federation"]["found"]
    aggregator.popen.terminate()
    aggregator.end()
    code, found = ask("--broker", any_url, "--federation", federation.name)
    assert "start it again with the same --out" in found["federation"]["remedy"]


def test_no_broker():
    code, found = ask("--broker", f"mqtt://127.0.0.1:{choose_port()}")
    assert (code, found["broker"]["level"]) == (1, "fail")
    assert "Connection refused" in found["broker"]["found"]
    assert "firewall" in found["broker"]["remedy"]
    assert "access" not in found


@pytest.mark.skipif(find_mosquitto() is None, reason="mosquitto is not installed")
@pytest.mark.parametrize("protocol", ["", "?protocol=5"])
def test_a_broker_that_takes_small_packets_only_or_lets_nobody_write(protocol, tmp_path):
    port = choose_port()
    (tmp_path / "acl").write_text("topic read edgefl/v2/+/state\n")
    for extra, check in (("max_packet_size 20000", "packets"), (f"acl_file {tmp_path}/acl", "access")):
        user = f"user {tmp_path.owner()}"
        (tmp_path / "conf").write_text(
            f"{user}\nlistener {port} 127.0.0.1\nallow_anonymous true\nlog_dest stderr\nlog_type "
            f"all\n{extra}\n"
        )
        broker = subprocess.Popen(
            [find_mosquitto(), "-c", str(tmp_path / "conf")], stderr=subprocess.PIPE, text=True
        )
        try:
            assert any(" running" in line for line in iter(broker.stderr.readline, ""))
            code, found = ask("--broker", f"mqtt://127.0.0.1:{port}{protocol}")
            assert (code, found[check]["level"]) == (1, "fail"), found
            assert found[check]["remedy"]
            # only MQTT 5 says why nothing comes back
            assert ("Not authorized" in found[check]["found"]) == (check == "access" and bool(protocol))
        finally:
            broker.terminate()
            broker.wait(10)
            broker.stderr.close()
