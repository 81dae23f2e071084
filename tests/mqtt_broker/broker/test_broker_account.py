"""The broker's account: it runs the broker, and can read neither the authority's key nor the aggregator's."""

import contextlib
import os
import pwd
import re
import shlex
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from devices.commands import device as device_commands
from edgefl.base.errors import ConfigError, LinkError
from edgefl.protocol.security.authority import create_enrolment, revoke_enrolment
from edgefl.protocol.security.enrolment import load_enrolment, make_tls_context
from edgefl.protocol.transport.link import Link
from mqtt_broker.broker.dev_broker import find_mosquitto
from mqtt_broker.commands import broker as broker_commands
from tests.support.ports import choose_port

SECRETS = ("ca.key", "aggregator.enrol", "devices.json", "route.key")
TIMEOUT_S = 30.0


@pytest.fixture
def open_directory():
    """A directory that every account of this machine can reach, unlike pytest's own directory."""
    with tempfile.TemporaryDirectory(prefix="edgefl-account-") as made:
        Path(made).chmod(0o755)
        yield Path(made)


def init(directory, *arguments):
    port = str(choose_port())
    command = [
        "init",
        str(directory),
        "--host",
        "localhost",
        "--port",
        port,
        "--bind",
        "127.0.0.1",
        *arguments,
    ]
    made = CliRunner().invoke(broker_commands, command)
    if made.exception and not isinstance(made.exception, SystemExit):
        raise made.exception
    return made, port


def can_read(user, path):
    """Return whether a process of this account can read a file."""
    return (
        subprocess.run(
            ["cat", path], user=user, group=pwd.getpwnam(user).pw_gid, extra_groups=[], capture_output=True
        ).returncode
        == 0
    )


def can_connect(port, context):
    """Return whether the broker accepts a client within the time that its start may take."""
    deadline = time.monotonic() + TIMEOUT_S
    while time.monotonic() < deadline:
        with contextlib.suppress(LinkError):
            Link(f"mqtts://localhost:{port}", "probe", timeout_s=2.0, context=context).close(1.0)
            return True
    return False


@pytest.mark.skipif(
    find_mosquitto() is None or os.getuid() != 0,
    reason="mosquitto and root are needed to run a process of another account",
)
def test_broker_account_cannot_read_the_authoritys_key(open_directory):
    """The test starts the broker as systemd does, with User= and ExecStart= of the unit."""
    directory = open_directory / "keys"
    made, port = init(directory)
    assert made.exit_code == 0, made.output
    unit = (directory / "mosquitto.service").read_text()
    user = re.search(r"^User=(.+)$", unit, re.MULTILINE)[1]
    assert [
        name for name in SECRETS if (directory / name).exists() and can_read(user, directory / name)
    ] == []
    entry = pwd.getpwnam(user)
    board = make_tls_context(create_enrolment(directory, "pi-1", 30))
    command = shlex.split(re.search(r"^ExecStart=(.+)$", unit, re.MULTILINE)[1])
    with (open_directory / "log").open("w") as log:
        process = subprocess.Popen(command, stderr=log, user=user, group=entry.pw_gid, extra_groups=[])
    try:
        assert can_connect(port, board), (open_directory / "log").read_text()
        # the broker can read the list that root rewrites, and owns the files that it stores
        revoke_enrolment(directory, "pi-1")
        other = make_tls_context(create_enrolment(directory, "pi-2", 30))
        process.send_signal(1)
        assert can_connect(port, other)
        deadline = time.monotonic() + TIMEOUT_S
        refused = False
        while not refused and time.monotonic() < deadline:
            try:
                Link(f"mqtts://localhost:{port}", "revoked", timeout_s=2.0, context=board).close(0.0)
            except LinkError:
                refused = True
        assert refused
    finally:
        process.terminate()
        process.wait()
    stored = directory / "data/mosquitto.db"
    assert stored.stat().st_uid == entry.pw_uid


@pytest.mark.skipif(
    find_mosquitto() is None or os.getuid() != 0,
    reason="mosquitto and root are needed to run a process of another account",
)
def test_broker_started_by_root_drops_privileges(open_directory):
    directory = open_directory / "keys"
    _, port = init(directory)
    process = subprocess.Popen(
        [find_mosquitto(), "-c", str(directory / "mosquitto.conf")], stderr=subprocess.DEVNULL
    )
    try:
        assert can_connect(port, make_tls_context(load_enrolment(directory / "aggregator.enrol")))
        uids = re.search(r"^Uid:\s+(.+)$", Path(f"/proc/{process.pid}/status").read_text(), re.MULTILINE)[
            1
        ].split()
        assert "0" not in uids
    finally:
        process.terminate()
        process.wait()


def test_unsuitable_broker_accounts_are_refused(tmp_path, open_directory):
    with pytest.raises(ConfigError, match="no account 'nobody-of-this-name'"):
        init(tmp_path / "keys", "--user", "nobody-of-this-name")
    tmp_path.chmod(0o700)
    if os.getuid() == 0:
        with pytest.raises(ConfigError, match=r"'nobody' cannot reach .*/srv/edgefl"):
            init(tmp_path / "keys", "--user", "nobody")
        made, _ = init(tmp_path / "keys")
        assert "runs as root; pass --user with an account" in made.stderr
    else:
        with pytest.raises(ConfigError, match=r"only root can give server.key to 'nobody'"):
            init(tmp_path / "keys", "--user", "nobody")
    assert not (open_directory / "keys").exists()


def test_authority_key_can_be_stored_elsewhere(tmp_path):
    """With --ca the key is never in the broker's directory, and commands without it report an error."""
    keys = tmp_path / "keys"
    ca_directory = tmp_path / "stick"
    made, _ = init(keys, "--ca", str(ca_directory))
    assert made.exit_code == 0, made.output
    assert re.search(r"account +\w+ runs the broker with at most \d+ MB of messages", made.output)
    assert [path.name for path in (*keys.rglob("ca.key"), *ca_directory.iterdir())] == ["ca.key"]
    assert (ca_directory / "ca.key").stat().st_mode & 0o777 == 0o600
    assert f"InaccessiblePaths=-{ca_directory}/ca.key" in (keys / "mosquitto.service").read_text()
    run = CliRunner().invoke
    security = ["--security", str(keys)]
    board = ["enrol", "pi-1", *security, "-o", str(tmp_path / "pi-1.enrol")]
    for group, command in (
        (device_commands, board),
        (broker_commands, ["watcher", *security, "-o", str(tmp_path / "w.enrol")]),
        (broker_commands, ["vouch", *security]),
    ):
        failed = run(group, command)
        assert failed.exit_code and "name the directory of ca.key with --ca" in str(failed.exception)
        again = run(group, [*command, "--ca", str(ca_directory)])
        assert again.exit_code == 0, again.output
    failed = run(device_commands, ["revoke", "pi-1", *security])
    assert "the broker still admits it" in str(failed.exception) and "--ca" in str(failed.exception)
    assert run(device_commands, ["revoke", "pi-1", *security, "--ca", str(ca_directory)]).exit_code == 0
    shutil.rmtree(keys)
    with pytest.raises(ConfigError, match="the key of another authority"):
        init(keys, "--ca", str(ca_directory))


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
def test_systemd_verifies_the_broker_unit(tmp_path):
    init(tmp_path / "keys")
    unit = tmp_path / "keys" / "mosquitto.service"
    checked = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(unit)], capture_output=True, text=True, timeout=60
    )
    assert (
        checked.returncode,
        [line for line in checked.stderr.splitlines() if "mosquitto.service" in line],
    ) == (0, [])
    service = unit.read_text().splitlines()
    inaccessible = [line.rpartition("/")[2] for line in service if line.startswith("InaccessiblePaths=")]
    assert set(SECRETS) <= set(inaccessible)
    assert {
        "SystemCallFilter=@system-service",
        "NoNewPrivileges=true",
        "PrivateDevices=true",
        "TasksMax=16",
    } <= set(service)
