"""`edgefl device status` beside a device that runs, and the lock that it looks at."""

import fcntl
import json
import os
import threading

import pytest
from click.testing import CliRunner

from devices.availability import pause_device
from devices.commands import device as device_command
from devices.store import DeviceStore, is_in_use, read_last_round
from edgefl.errors import StateError
from edgefl.types import ClientState


def test_status_of_a_board_says_whether_it_runs(federate, mosquitto_url, toys):
    federation = federate(mosquitto_url)
    state = federation.directory / "state-pi-1"

    def ask():
        ran = CliRunner().invoke(device_command, ["status", "--state", str(state), "--json"])
        return ran.exit_code, json.loads(ran.stdout)

    assert ask() == (1, {"running": False, "paused": False, "last": None})
    device = federation.device("pi-1", toys.shard(1))
    device.wait_for("pi-1 joined")
    assert ask() == (0, {"running": True, "paused": False, "last": None})
    pause_device(state)
    device.wait_for("paused: operator")
    assert ask() == (0, {"running": True, "paused": True, "last": None})
    device.popen.terminate()
    device.end()
    assert ask()[0] == 1


def test_the_lock_and_the_last_round(tmp_path):
    assert (is_in_use(tmp_path), read_last_round(tmp_path)) == (False, None)
    store = DeviceStore(tmp_path, "pi-1")
    assert is_in_use(tmp_path)
    store.finish_round("s", 3, "federate", 10, {}, b"update", ClientState())
    store.close()
    assert not is_in_use(tmp_path)
    assert read_last_round(tmp_path).round == 3
    (tmp_path / "progress.json").write_text("{")
    with pytest.raises(StateError, match="is damaged"):
        read_last_round(tmp_path)


def test_a_look_at_the_lock_keeps_no_device_from_starting(tmp_path):
    DeviceStore(tmp_path, "pi-1").close()
    looking = os.open(tmp_path / "lock", os.O_RDONLY)
    fcntl.flock(looking, fcntl.LOCK_SH)
    done = threading.Timer(0.02, os.close, (looking,))
    done.start()
    DeviceStore(tmp_path, "pi-1").close()
    done.join()
