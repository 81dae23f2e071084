"""The demo as a user runs it: the command in its own process, its exit code and its files."""

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgefl.base.errors import EdgeflError
from edgefl.base.storage.demo_directory import DemoFiles
from edgefl.cli import main as cli
from edgefl.cli.demo.processes import Children
from edgefl.cli.demo.run import (
    CLIENT_KEYS,
    DemoSettings,
    average_accuracies,
    draw_samples,
    format_client_table,
    select_client_fields,
    write_shards,
)
from edgefl.data.dataset import Dataset
from edgefl.data.npz import load_shard

DEMO = (sys.executable, "-m", "edgefl", "demo")


def list_descendants(pid: int) -> set[int]:
    pids: set[int] = set()
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in map(int, (task / "children").read_text().split()):
                pids |= {child} | list_descendants(child)
    return pids


def is_running(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


@given(st.integers(1, 30), st.integers(1, 30), st.integers(0, 9), st.integers(1, 40), st.integers(0, 2**32))
def test_no_sample_is_drawn_twice(train_size: int, test_size: int, train: int, test: int, seed: int) -> None:
    numbers = np.arange(train_size + test_size)
    x = numbers.astype(np.float32)[:, None]
    dataset = Dataset(
        x_train=x[:train_size],
        y_train=2 * numbers[:train_size],
        x_test=x[train_size:],
        y_test=2 * numbers[train_size:],
        num_classes=10,
    )
    drawn = draw_samples(dataset, train, test, seed)
    total = train_size + test_size
    assert len(drawn.y_train) == min(train, total)
    assert len(drawn.y_test) == min(test, max(total - train, 0))
    labels = np.concatenate([drawn.y_train, drawn.y_test])
    assert len(set(labels.tolist())) == len(labels)
    assert np.array_equal(2 * np.concatenate([drawn.x_train, drawn.x_test])[:, 0], labels)
    assert np.array_equal(draw_samples(dataset, train, test, seed).y_train, drawn.y_train)


def test_demo_clients_have_few_training_and_many_test_samples(tmp_path: Path) -> None:
    settings = DemoSettings(
        dataset="digits", clients=4, rounds=1, seed=1, broker="auto", port=0, out=tmp_path
    )
    write_shards(settings)
    shards = [load_shard(DemoFiles(tmp_path).shard(client=name)) for name in settings.ids]
    assert sum(len(shard.y_train) for shard in shards) == 4 * 60
    assert all(len(shard.y_train) >= 20 for shard in shards)
    # 1,797 scans minus the training samples
    assert sum(len(shard.y_test) for shard in shards) == 1557
    assert all(len(np.unique(shard.y_train)) > 5 for shard in shards)


def test_demo_federation_beats_local_training_and_writes_models(tmp_path: Path) -> None:
    out = tmp_path / "out"
    completed = subprocess.run(
        [*DEMO, "--out", str(out), "--json"], capture_output=True, text=True, timeout=280
    )
    assert completed.returncode == 0, completed.stderr
    summary = json.loads((out / "summary.json").read_text())
    assert json.loads(completed.stdout) == summary
    assert {"rounds", "seconds", "broker", "dataset", "algorithm", "clients"} <= set(summary)
    assert (summary["rounds"], summary["dataset"], summary["algorithm"]) == (20, "digits", "pfl-mfe")
    assert summary["broker"] in ("mosquitto", "amqtt")
    assert [client["id"] for client in summary["clients"]] == ["pi-1", "pi-2", "pi-3", "pi-4"]
    for client in summary["clients"]:
        assert tuple(client) == CLIENT_KEYS
        assert None not in client.values()
        assert (out / "clients" / client["id"] / "model.tflite").stat().st_size == client["tflite_bytes"]
        assert min(client["bytes_up"], client["bytes_down"]) > 20 * 61_706 * 4
    mean = average_accuracies(summary["clients"])
    assert mean["accuracy_shipped"] is not None
    assert mean["accuracy_federated"] is not None
    assert mean["accuracy_shipped_int8"] is not None
    assert mean["accuracy_local"] is not None
    assert mean["accuracy_federated"] > mean["accuracy_local"] > 0.5
    assert mean["accuracy_shipped"] > mean["accuracy_local"]
    assert abs(mean["accuracy_shipped_int8"] - mean["accuracy_shipped"]) <= 0.01
    assert summary["verdict"]["devices"] == 4
    assert summary["verdict"]["better"] >= 1
    assert summary["verdict"]["worse"] == 0
    assert summary["verdict"]["gain_points"] > 1
    # The demo hides the aggregator's table and prints its own
    assert "done in" in completed.stderr
    assert summary["verdict"]["sentence"] not in completed.stderr
    second_run = subprocess.run([*DEMO, "--out", str(out)], capture_output=True, text=True, timeout=60)
    assert second_run.returncode == 1
    assert "is in use, expected a new or empty directory" in second_run.stderr


@pytest.mark.parametrize(
    ("number", "progress"),
    [
        (signal.SIGINT, "building the plan"),
        pytest.param(signal.SIGTERM, "of 2 online", marks=pytest.mark.slow),
    ],
)
def test_an_interrupted_demo_leaves_no_process(tmp_path: Path, number: signal.Signals, progress: str) -> None:
    demo = subprocess.Popen(
        [*DEMO, "--clients", "2", "--out", str(tmp_path / "out")], stderr=subprocess.PIPE, text=True
    )
    assert demo.stderr is not None
    for line in demo.stderr:
        if progress in line:
            break
    started = list_descendants(demo.pid)
    assert len(started) >= 4
    demo.send_signal(number)
    rest = demo.stderr.read()
    assert demo.wait(60) == 130
    assert "stopped; the processes of the demo have ended" in rest
    assert not [pid for pid in started if is_running(pid)]


def test_port_in_use_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import socket

    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        assert cli.run_command(["demo", "--port", str(port), "--out", str(tmp_path / "out")]) == 1
    assert f"port {port} of 127.0.0.1 cannot be used: Address already in use" in capsys.readouterr().err


def test_missing_data_set_is_reported_with_a_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("edgefl.data.datasets.fashion_mnist.SYSTEM_FOLDER", tmp_path / "nowhere")
    monkeypatch.delenv("EDGEFL_DATA", raising=False)
    assert cli.run_command(["demo", "--dataset", "fashion-mnist", "--out", str(tmp_path / "out")]) == 1
    assert "apt-get install dataset-fashion-mnist" in capsys.readouterr().err


def test_full_disk_is_reported_with_a_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("edgefl.cli.demo.run.MIN_FREE_BYTES", 1 << 60)
    assert cli.run_command(["demo", "--out", str(tmp_path / "out")]) == 1
    assert "give an --out on another disk" in capsys.readouterr().err


def test_missing_extra_is_reported_with_a_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert cli.run_command(["demo", "--out", str(tmp_path / "out")]) == 1
    assert "pip install -e '.[aggregator]'" in capsys.readouterr().err


def make_children(tmp_path: Path, code: str) -> Children:
    return Children(logs=tmp_path / "logs", echo=lambda line: None, command=(sys.executable, "-c", code))


def test_failed_process_is_reported_with_its_log(tmp_path: Path) -> None:
    with make_children(tmp_path, "import sys; print('one'); sys.exit('no space left, free some')") as group:
        child, lines = group.start("pi-7")
        child.process.wait(30)
        with pytest.raises(EdgeflError, match=r"pi-7 exited with 1") as caught:
            group.wait_for_line(child, lines, "never said", 30)
    assert str(tmp_path / "logs" / "pi-7.log") in str(caught.value)


def test_a_process_that_ends_too_early_is_an_error(tmp_path: Path) -> None:
    with make_children(tmp_path, "pass") as group:
        child, _ = group.start("broker")
        child.process.wait(30)
        group.check(ended=(child,))
        with pytest.raises(EdgeflError, match="broker exited with 0"):
            group.check()


def test_a_process_that_ignores_sigterm_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edgefl.cli.demo.processes.GRACE_S", 0.2)
    code = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('ready'); signal.pause()"
    with make_children(tmp_path, code) as group:
        child, lines = group.start("stubborn")
        assert lines.get(timeout=30) == "ready"
    assert child.process.returncode == -signal.SIGKILL


def test_output_of_a_shown_process_is_passed_on(tmp_path: Path) -> None:
    shown: queue.Queue[str] = queue.Queue()
    with Children(logs=tmp_path / "logs", echo=shown.put, command=(sys.executable, "-c")) as group:
        group.start("a", "print('hello')", show=True)
        assert shown.get(timeout=30) == "hello"
    assert os.listdir(tmp_path / "logs") == ["a.log"]


def test_client_table_matches_hand_calculation() -> None:
    row = {
        "id": "pi-1",
        "n_train": 235.0,
        "accuracy_local": 0.5,
        "accuracy_federated": 0.75,
        "accuracy_shipped": 1.0,
        "accuracy_shipped_int8": float("nan"),
        "tflite_bytes": 139168.0,
        "peak_rss_mb": 61.7,
        "bytes_up": 1234567,
        "bytes_down": 0,
    }
    one = select_client_fields(row)
    two = select_client_fields({**row, "id": "pi-2", "accuracy_local": 1.0})
    assert one["accuracy_shipped_int8"] is None
    assert (one["n_train"], one["tflite_bytes"]) == (235, 139168)
    assert average_accuracies([one, two])["accuracy_local"] == 0.75
    assert average_accuracies([one, two])["accuracy_shipped_int8"] is None
    lines = format_client_table([one, two]).splitlines()
    assert lines[2].split() == ["pi-1", "235", "50.0%", "75.0%", "100.0%", "-", "139", "62", "1,235", "0"]
    assert lines[-1].split() == ["mean", "75.0%", "75.0%", "100.0%", "-"]
    assert len({len(line) for line in lines}) == 1
