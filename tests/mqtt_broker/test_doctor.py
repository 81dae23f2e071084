"""`edgefl doctor` against real brokers."""

import json
import subprocess

import pytest
from click.testing import CliRunner

from edgefl.cli.commands.doctor import doctor
from mqtt_broker.broker.dev_broker import find_mosquitto
from tests.support.ports import choose_port


def run_doctor(*arguments):
    result = CliRunner().invoke(doctor, [*map(str, arguments), "--json"])
    return result.exit_code, {check["check"]: check for check in json.loads(result.stdout)["findings"]}


def test_doctor_reports_absent_running_and_stopped_federation(federate, any_url):
    federation = federate(any_url)
    code, checks = run_doctor("--broker", any_url, "--federation", federation.name)
    assert code == 0
    assert [checks[key]["level"] for key in ("broker", "access", "packets", "federation")] == [
        "ok",
        "ok",
        "ok",
        "warn",
    ]
    assert "is not running" in checks["federation"]["found"]
    aggregator = federation.aggregator()
    aggregator.wait_for("waiting for devices")
    code, checks = run_doctor("--broker", any_url, "--federation", federation.name)
    assert (code, checks["federation"]["level"]) == (0, "ok")
    assert f"{federation.name!r}: waiting for devices, 3 rounds to come" in checks["federation"]["found"]
    aggregator.popen.terminate()
    aggregator.end()
    code, checks = run_doctor("--broker", any_url, "--federation", federation.name)
    assert f"{federation.name!r}: stopped before the end of its 3 rounds" in checks["federation"]["found"]
    assert "start it again with the same --out" in checks["federation"]["remedy"]


def test_doctor_reports_unreachable_broker():
    code, checks = run_doctor("--broker", f"mqtt://127.0.0.1:{choose_port()}")
    assert (code, checks["broker"]["level"]) == (1, "fail")
    assert "Connection refused" in checks["broker"]["found"]
    assert "firewall" in checks["broker"]["remedy"]
    assert "access" not in checks


@pytest.mark.skipif(find_mosquitto() is None, reason="mosquitto is not installed")
@pytest.mark.parametrize("protocol", ["", pytest.param("?protocol=5", marks=pytest.mark.slow)])
def test_doctor_reports_small_packet_limit_and_denied_writing(protocol, tmp_path):
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
            code, checks = run_doctor("--broker", f"mqtt://127.0.0.1:{port}{protocol}")
            assert (code, checks[check]["level"]) == (1, "fail"), checks
            assert checks[check]["remedy"]
            # only MQTT 5 reports why nothing comes back
            assert ("Not authorized" in checks[check]["found"]) == (check == "access" and bool(protocol))
        finally:
            broker.terminate()
            broker.wait(10)
            broker.stderr.close()
