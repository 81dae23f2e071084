"""The unit of `edgefl device install`: with known values, as properties, and checked by systemd's own parser
where it is installed.
"""

import configparser
import getpass
import json
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from devices.boards import detect_machine
from devices.commands.device import device, start
from devices.install import format_path_setting, quote_argument, render_device_unit
from edgefl.base.errors import ConfigError

REQUIRED_OPTIONS = ("--broker", "mqtt://broker.local:1883", "--id", "pi-7")


def install(*arguments):
    ran = CliRunner().invoke(device, ["install", *map(str, arguments)])
    if ran.exception and not isinstance(ran.exception, SystemExit):
        raise ran.exception
    return ran


def install_as_json(*arguments):
    return json.loads(install(*REQUIRED_OPTIONS, *arguments, "--user", "pi", "--json").stdout)


def parse_unit(text):
    parser = configparser.ConfigParser(strict=False, interpolation=None, comment_prefixes=("#",))
    parser.optionxform = str
    parser.read_string(text)
    return parser


def test_unit_contains_command_and_hardening(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = install_as_json(
        "--data",
        "shard.npz",
        "--state",
        "/var/lib/edgefl",
        "--between",
        "22:00-06:00",
        "--only-when",
        "idle",
        "--no-export",
    )
    unit = parse_unit(result["unit"])
    service = unit["Service"]
    arguments = shlex.split(service["ExecStart"])
    assert arguments[1:5] == ["-m", "edgefl", "device", "start"]
    assert arguments[5:] == [
        *REQUIRED_OPTIONS,
        "--data",
        str(tmp_path / "shard.npz"),
        "--state",
        "/var/lib/edgefl",
        "--only-when",
        "idle",
        "--between",
        "22:00-06:00",
        "--no-export",
    ]
    assert {
        key: service[key]
        for key in ("User", "Restart", "NoNewPrivileges", "ProtectSystem", "StateDirectory", "Nice")
    } == {
        "User": "pi",
        "Restart": "on-failure",
        "NoNewPrivileges": "true",
        "ProtectSystem": "strict",
        "StateDirectory": "edgefl",
        "Nice": "10",
    }
    hardened = {
        "SystemCallFilter": "@system-service",
        "PrivateDevices": "true",
        "RestrictAddressFamilies": "AF_INET AF_INET6 AF_UNIX AF_NETLINK",
    }
    assert hardened.items() <= dict(service).items()
    assert service["MemoryMax"] == f"{int(detect_machine().memory_mb * 1e6 / 2**20 * 3 / 4)}M"
    # the trial of a plan that takes too much memory must not end the device
    assert service.get("OOMPolicy") == "continue"
    assert unit["Install"]["WantedBy"] == "multi-user.target"
    assert result["path"] is None
    assert result["commands"][-1] == "sudo systemctl enable --now edgefl-pi-7.service"
    assert len(result["commands"]) == 3


def test_unit_uses_memory_of_given_board_and_custom_state_directory(tmp_path):
    result = install_as_json(
        "--data", tmp_path / "x.npz", "--state", tmp_path / "my state", "--board", "pi-zero-2-w"
    )
    service = parse_unit(result["unit"])["Service"]
    assert (service["MemoryMax"], service["ReadWritePaths"]) == ("384M", f'"{tmp_path}/my state"')
    assert "StateDirectory" not in service
    assert result["commands"][0].startswith("mkdir -p ")
    assert "MemoryMax" not in render_device_unit("pi-7", ["true"], Path("/var/lib/e"), "pi", "any", 0)


def test_start_parses_the_command_line_of_the_unit(tmp_path):
    """The options of install are the options that start's own parser reads from the unit."""
    options = [
        *REQUIRED_OPTIONS,
        "--data",
        str(tmp_path / "a $b %c.npz"),
        "--state",
        "/var/lib/edgefl",
        "--threads",
        "2",
        "--keepalive",
        "30",
        "--wait",
        "5.0",
        "--only-when",
        "mains",
        "--only-when",
        "idle",
        "--learner",
        "keras",
        "--json",
    ]
    line = parse_unit(json.loads(install(*options).stdout)["unit"])["Service"]["ExecStart"]
    arguments = shlex.split(line.replace("%%", "%").replace("$$", "$"))[5:]
    parsed = start.make_context("start", arguments).params
    assert (parsed["threads"], parsed["wait_s"], parsed["only_when"], parsed["learner"]) == (
        2,
        5.0,
        ("mains", "idle"),
        "keras",
    )
    assert parsed["data"] == str(tmp_path / "a $b %c.npz")
    assert not parsed["as_json"]  # --json applies to install only


def test_unit_passes_allowed_names_and_sets_working_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    options = (
        *REQUIRED_OPTIONS,
        "--data",
        "x.npz",
        "--state",
        "/var/lib/edgefl",
        "--algorithm",
        "mine:rounds",
        "--model",
        "mine:net",
        "--json",
    )
    service = parse_unit(json.loads(install(*options).stdout)["unit"])["Service"]
    assert service["WorkingDirectory"] == str(tmp_path)
    assert "--algorithm mine:rounds --model mine:net" in service["ExecStart"]


def test_data_function_sets_the_working_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    unit = parse_unit(
        json.loads(
            install(*REQUIRED_OPTIONS, "--data", "mine:load", "--state", "/var/lib/edgefl", "--json").stdout
        )["unit"]
    )
    assert unit["Service"]["WorkingDirectory"] == str(tmp_path)
    assert "--data mine:load " in unit["Service"]["ExecStart"]


@given(st.text(st.characters(min_codepoint=32, exclude_characters="\x7f"), min_size=1))
def test_quoted_argument_stays_one_word_with_escaped_specifiers(word):
    assert shlex.split(quote_argument(word)) == [word.replace("%", "%%").replace("$", "$$")]


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("--broker", "mqtt://h"), "no --id"),
        (("--broker", "mqtts://pi-7:secret@h", "--id", "pi-7"), "contains a password"),
        (("--broker", "mqtt://h", "--id", "../x"), "client id"),
        (("--broker", "mqtt://h", "--id", "pi-7", "--board", "pi-6"), "no board 'pi-6'"),
        (("--broker", "mqtt://h", "--id", "pi-7", "--between", "22-6"), "expected two times of day"),
    ],
)
def test_invalid_install_options_are_rejected(arguments, error):
    with pytest.raises(ConfigError, match=error) as caught:
        install(*arguments, "--data", "x.npz", "--state", "/var/lib/edgefl")
    assert "secret" not in str(caught.value)
    with pytest.raises(ConfigError, match="control character"):
        quote_argument("a\nExecStartPre=/bin/sh")


def test_install_writes_the_unit_only_when_asked(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shown = install(*REQUIRED_OPTIONS, "--data", "x.npz", "--state", "/var/lib/edgefl")
    assert list(tmp_path.iterdir()) == []
    assert shown.stdout.startswith("# ")
    assert "sudo systemctl enable --now edgefl-pi-7.service" in shown.stderr
    wrote = install(*REQUIRED_OPTIONS, "--data", "x.npz", "--state", "/var/lib/edgefl", "-o", "units")
    path = tmp_path / "units" / "edgefl-pi-7.service"
    assert path.read_text() == shown.stdout.rstrip("\n") + "\n"
    assert path.stat().st_mode & 0o777 == 0o644
    assert f"sudo install -m 644 {path}" in wrote.stdout


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
@pytest.mark.parametrize("state", ["/var/lib/edgefl", "/srv/my edgefl%"])
def test_systemd_verifies_the_unit_without_warnings(tmp_path, state):
    install(
        *REQUIRED_OPTIONS,
        "--data",
        tmp_path / "x.npz",
        "--state",
        state,
        "--user",
        getpass.getuser(),
        "-o",
        tmp_path,
    )
    verified = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(tmp_path / "edgefl-pi-7.service")],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (verified.returncode, verified.stderr) == (0, "")


def test_install_uses_the_local_broker_by_default(tmp_path):
    """`edgefl device start` takes the broker of this machine by default, so its unit does too."""
    (tmp_path / "x.npz").write_bytes(b"")
    arguments = (
        "--id",
        "pi-7",
        "--data",
        str(tmp_path / "x.npz"),
        "--state",
        "/var/lib/edgefl",
        "--user",
        "pi",
        "--json",
    )
    done = install(*arguments)
    assert done.exit_code == 0, done.output
    assert "--id pi-7" in json.loads(done.stdout)["unit"]


@pytest.mark.parametrize("user", ["pi\nExecStartPre=/bin/sh", "pi root", "", "%i", "-pi", "a" * 300])
def test_user_that_is_no_account_is_refused(user, tmp_path, monkeypatch):
    monkeypatch.setenv("SUDO_USER", user)
    arguments = (*REQUIRED_OPTIONS, "--data", "s.npz", "--state", str(tmp_path / "s"))
    for named in (("--user", user), ()) if user else ():
        with pytest.raises(ConfigError, match="expected the name of an account"):
            install(*arguments, *named)
    assert "User=pi-2.x" in install(*arguments, "--user", "pi-2.x").stdout


def test_path_with_a_line_break_is_refused():
    with pytest.raises(ConfigError, match="has a control character"):
        format_path_setting("WorkingDirectory", "/home/pi\nUser=root")
