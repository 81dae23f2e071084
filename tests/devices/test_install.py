"""The unit of `edgefl device install`: by hand, as properties, and by systemd's own parser where there is
one.
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
from devices.install import quote_argument, render_device_unit
from edgefl.errors import ConfigError

HERE = ("--broker", "mqtt://broker.local:1883", "--id", "pi-7")


def install(*arguments):
    ran = CliRunner().invoke(device, ["install", *map(str, arguments)])
    if ran.exception and not isinstance(ran.exception, SystemExit):
        raise ran.exception
    return ran


def made(*arguments):
    return json.loads(install(*HERE, *arguments, "--user", "pi", "--json").stdout)


def settings_of(text):
    parser = configparser.ConfigParser(strict=False, interpolation=None, comment_prefixes=("#",))
    parser.optionxform = str
    parser.read_string(text)
    return parser


def test_a_unit_by_hand(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    told = made(
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
    unit = settings_of(told["unit"])
    service = unit["Service"]
    words = shlex.split(service["ExecStart"])
    assert words[1:5] == ["-m", "edgefl", "device", "start"]
    assert words[5:] == [
        *HERE,
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
    assert told["path"] is None
    assert told["commands"][-1] == "sudo systemctl enable --now edgefl-pi-7.service"
    assert len(told["commands"]) == 3


def test_another_board_and_a_state_of_ones_own(tmp_path):
    told = made("--data", tmp_path / "x.npz", "--state", tmp_path / "my state", "--board", "pi-zero-2-w")
    service = settings_of(told["unit"])["Service"]
    assert (service["MemoryMax"], service["ReadWritePaths"]) == ("384M", f'"{tmp_path}/my state"')
    assert "StateDirectory" not in service
    assert told["commands"][0].startswith("mkdir -p ")
    assert "MemoryMax" not in render_device_unit("pi-7", ["true"], Path("/var/lib/e"), "pi", "any", 0)


def test_the_command_line_of_a_unit_is_one_that_start_takes(tmp_path):
    """What install was given comes out of start's own parser again."""
    given = [
        *HERE,
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
    line = settings_of(json.loads(install(*given).stdout)["unit"])["Service"]["ExecStart"]
    words = shlex.split(line.replace("%%", "%").replace("$$", "$"))[5:]
    parsed = start.make_context("start", words).params
    assert (parsed["threads"], parsed["wait_s"], parsed["only_when"], parsed["learner"]) == (
        2,
        5.0,
        ("mains", "idle"),
        "keras",
    )
    assert parsed["data"] == str(tmp_path / "a $b %c.npz")
    assert not parsed["as_json"]  # --json is install's own


def test_names_that_a_plan_may_use_stand_in_the_unit_and_are_looked_for_where_install_was_called(
    tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    given = (
        *HERE,
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
    service = settings_of(json.loads(install(*given).stdout)["unit"])["Service"]
    assert service["WorkingDirectory"] == str(tmp_path)
    assert "--algorithm mine:rounds --model mine:net" in service["ExecStart"]


def test_samples_of_a_function_are_looked_for_where_install_was_called(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    unit = settings_of(
        json.loads(install(*HERE, "--data", "mine:load", "--state", "/var/lib/edgefl", "--json").stdout)[
            "unit"
        ]
    )
    assert unit["Service"]["WorkingDirectory"] == str(tmp_path)
    assert "--data mine:load " in unit["Service"]["ExecStart"]


@given(st.text(st.characters(min_codepoint=32, exclude_characters="\x7f"), min_size=1))
def test_a_word_of_a_command_line_is_the_same_word_to_a_reader_of_units(word):
    assert shlex.split(quote_argument(word)) == [word.replace("%", "%%").replace("$", "$$")]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--broker", "mqtt://h"), "no --id"),
        (("--broker", "mqtts://pi-7:secret@h", "--id", "pi-7"), "contains a password"),
        (("--broker", "mqtt://h", "--id", "../x"), "client id"),
        (("--broker", "mqtt://h", "--id", "pi-7", "--board", "pi-6"), "no board 'pi-6'"),
        (("--broker", "mqtt://h", "--id", "pi-7", "--between", "22-6"), "expected two times of day"),
    ],
)
def test_what_cannot_be_installed_says_why(arguments, says):
    with pytest.raises(ConfigError, match=says) as caught:
        install(*arguments, "--data", "x.npz", "--state", "/var/lib/edgefl")
    assert "secret" not in str(caught.value)
    with pytest.raises(ConfigError, match="control character"):
        quote_argument("a\nExecStartPre=/bin/sh")


def test_nothing_is_written_unless_asked_and_then_where_asked(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shown = install(*HERE, "--data", "x.npz", "--state", "/var/lib/edgefl")
    assert list(tmp_path.iterdir()) == []
    assert shown.stdout.startswith("# ")
    assert "sudo systemctl enable --now edgefl-pi-7.service" in shown.stderr
    wrote = install(*HERE, "--data", "x.npz", "--state", "/var/lib/edgefl", "-o", "units")
    path = tmp_path / "units" / "edgefl-pi-7.service"
    assert path.read_text() == shown.stdout.rstrip("\n") + "\n"
    assert path.stat().st_mode & 0o777 == 0o644
    assert f"sudo install -m 644 {path}" in wrote.stdout


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
@pytest.mark.parametrize("state", ["/var/lib/edgefl", "/srv/my edgefl%"])
def test_systemd_takes_the_unit_without_a_word(tmp_path, state):
    install(
        *HERE, "--data", tmp_path / "x.npz", "--state", state, "--user", getpass.getuser(), "-o", tmp_path
    )
    asked = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(tmp_path / "edgefl-pi-7.service")],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (asked.returncode, asked.stderr) == (0, "")


def test_an_id_is_enough_as_for_start(tmp_path):
    """`edgefl device start` takes the broker of this machine by default, so its unit does too."""
    (tmp_path / "x.npz").write_bytes(b"")
    words = (
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
    done = install(*words)
    assert done.exit_code == 0, done.output
    assert "--id pi-7" in json.loads(done.stdout)["unit"]
