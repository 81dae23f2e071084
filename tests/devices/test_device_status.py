"""`edgefl device status` while a device runs, and the lock that it reads."""

import fcntl
import json
import os
import threading

import pytest
from click.testing import CliRunner

from devices.availability import pause_device
from devices.commands import device as device_command
from devices.store import DeviceStore, is_in_use, read_last_round
from edgefl.base.errors import StateError
from edgefl.base.types import ClientState


def test_status_reports_running_and_paused_device(federate, mosquitto_url, toys):
    federation = federate(mosquitto_url)
    state = federation.directory / "state-pi-1"

    def read_status():
        result = CliRunner().invoke(device_command, ["status", "--state", str(state), "--json"])
        return result.exit_code, json.loads(result.stdout)

    assert read_status() == (1, {"running": False, "paused": False, "last": None})
    device = federation.device("pi-1", toys.shard(1))
    device.wait_for("pi-1 joined")
    assert read_status() == (0, {"running": True, "paused": False, "last": None})
    pause_device(state)
    device.wait_for("paused: operator")
    assert read_status() == (0, {"running": True, "paused": True, "last": None})
    device.popen.terminate()
    device.end()
    assert read_status()[0] == 1


def test_directory_in_use_and_last_round_are_reported(tmp_path):
    assert (is_in_use(tmp_path), read_last_round(tmp_path)) == (False, None)
    store = DeviceStore(tmp_path, "pi-1")
    assert is_in_use(tmp_path)
    store.finish_round("s", 3, "federate", 10, {}, b"update", ClientState())
    store.close()
    assert not is_in_use(tmp_path)
    assert read_last_round(tmp_path).round == 3
    newest = tmp_path / f"round-2-{'0' * 64}"
    newest.write_text("{")
    with pytest.raises(StateError, match=rf"{newest} is damaged: its sha256 is .*; restart this device"):
        read_last_round(tmp_path)


def test_checking_the_lock_does_not_block_device_start(tmp_path):
    DeviceStore(tmp_path, "pi-1").close()
    lock_file = os.open(tmp_path / "lock", os.O_RDONLY)
    fcntl.flock(lock_file, fcntl.LOCK_SH)
    release = threading.Timer(0.02, os.close, (lock_file,))
    release.start()
    DeviceStore(tmp_path, "pi-1").close()
    release.join()
