"""A device whose samples are not in an .npz file: the update has the same bits, and the note names the
source.
"""

import json
import subprocess
import sys

import numpy as np
import pytest

from edgefl.base.config import DataConfig, PartitionConfig
from edgefl.data import load_data, make_shards
from edgefl.data.npz import save_shard
from edgefl.data.sources import load_samples, parse_source

FUNCTION = """
import numpy as np
def load():
    return np.load("values.npy"), np.load("labels.npy")
"""


def join_samples(shard):
    """Return all samples of a shard, and their classes."""
    return np.concatenate([shard.x_train, shard.x_test]), np.concatenate([shard.y_train, shard.y_test])


def save_by_class(x, y, folder, names):
    for index, (values, label) in enumerate(zip(x, y, strict=True)):
        (folder / names[label]).mkdir(parents=True, exist_ok=True)
        np.save(folder / names[label] / f"{index:03}.npy", values)


@pytest.fixture
def train_once(federate, mosquitto_url, fake_aggregator):
    """Return a function that trains one round on a device. It returns the sha256 of the update, its number of
    samples, and the device's note.
    """

    def run(*more):
        federation = federate(mosquitto_url)
        aggregator = fake_aggregator(federation)
        device = federation.device("pi-1", None, *more)
        assert aggregator.next("status").online, device.err
        aggregator.send_task(1)
        begin = aggregator.next("begin")
        aggregator.accept_update(begin)
        device.popen.terminate()
        assert device.end() == 0, device.err
        note = json.loads((federation.directory / "state-pi-1" / "device.json").read_text())
        return begin.sha256, begin.num_samples, note

    return run


def test_folder_function_and_npz_give_the_same_update(train_once, toys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    x, y = join_samples(toys.shard(1))
    order = np.argsort(y, kind="stable")
    x = x[order]
    y = y[order]
    save_by_class(x, y, tmp_path / "samples", ["0", "1", "2"])
    np.savez(tmp_path / "same.npz", x=x, y=y)
    np.save(tmp_path / "values.npy", x)
    np.save(tmp_path / "labels.npy", y)
    (tmp_path / "own_board.py").write_text(FUNCTION)
    hashes, counts, notes = zip(
        *(train_once("--data", data) for data in ("same.npz", "samples", "own_board:load")), strict=True
    )
    assert len(set(hashes)) == 1
    assert counts == (32, 32, 32)
    shards = [load_samples(parse_source(note), seed=note["seed"]).shard for note in notes]
    for shard in shards[1:]:
        assert shard.x_test.tobytes() == shards[0].x_test.tobytes()
    assert notes[2]["source"] == {"folder": str(tmp_path)}


def test_device_and_simulation_split_samples_alike(train_once, toys, tmp_path):
    """The second file contains the test samples that the simulation holds out of the first file."""
    x, y = join_samples(toys.shard(1))
    np.savez(tmp_path / "own.npz", x=x, y=y, group=np.arange(len(y)) // 3)
    split_by_group = train_once("--data", str(tmp_path / "own.npz"))
    seed = split_by_group[2]["seed"]
    dataset = load_data(DataConfig(name=f"npz:{tmp_path / 'own.npz'},{tmp_path / 'own.npz'}"), seed)
    simulated = make_shards(dataset, PartitionConfig(name="group", num_clients=2), seed)["client-000"]
    assert simulated.group_train is not None and len(simulated.y_test) == len(y) - split_by_group[1]
    save_shard(tmp_path / "simulated.npz", simulated)
    assert train_once("--data", str(tmp_path / "simulated.npz"))[:2] == split_by_group[:2]
    np.savez(tmp_path / "other.npz", x=x, y=y)
    assert train_once("--data", str(tmp_path / "other.npz"))[0] != split_by_group[0]


def test_one_hot_labels_and_class_numbers_give_the_same_update(train_once, toys, tmp_path):
    x, y = join_samples(toys.shard(1))
    np.savez(tmp_path / "numbers.npz", x=x, y=y)
    np.savez(tmp_path / "one-hot.npz", x=x, y=np.eye(3)[y])
    hashes = [train_once("--data", tmp_path / f"{name}.npz")[0] for name in ("numbers", "one-hot")]
    assert hashes[0] == hashes[1]


def test_class_names_that_the_federation_does_not_state_end_the_device(
    federate, mosquitto_url, toys, fake_aggregator, tmp_path
):
    federation = federate(mosquitto_url)
    aggregator = fake_aggregator(federation)
    x, y = join_samples(toys.shard(1))
    save_by_class(x[y != 1], y[y != 1], tmp_path / "samples", ["ant", "bee", "cat"])
    device = federation.device("pi-1", None, "--data", tmp_path / "samples")
    assert aggregator.next("status").online
    while aggregator.next("status").online:
        pass
    assert device.end() == 1
    assert "have names ('ant', 'cat'), the federation has numbers" in device.err
    assert "into [samples] of federation.toml" in device.err


def test_windows_that_do_not_fit_the_plan_end_the_device(federate, mosquitto_url, fake_aggregator, tmp_path):
    federation = federate(mosquitto_url)
    aggregator = fake_aggregator(federation)
    (tmp_path / "a.csv").write_text("x,label\n" + "".join(f"{i},{i // 4 % 3}\n" for i in range(60)))
    device = federation.device(
        "pi-1", None, "--data", tmp_path / "a.csv", "--window", "4", "--label", "label"
    )
    assert aggregator.next("status").online
    while aggregator.next("status").online:
        pass
    assert device.end() == 1
    assert "a sample of this device has the shape (4, 1), the plan expects (4,)" in device.err


@pytest.mark.parametrize(
    ("more", "error"),
    [
        (("--data", "none.npz"), "no shard at"),
        (("--data", "none.csv"), "add --window ROWS and --label COLUMN"),
        (("--data", "no_module_of_this_name:load"), "importing no_module_of_this_name failed"),
    ],
)
def test_missing_data_source_is_an_error(tmp_path, more, error):
    command = [
        "device",
        "start",
        "--broker",
        "mqtt://127.0.0.1:1",
        "--id",
        "pi-1",
        "--state",
        str(tmp_path / "state"),
        *more,
    ]
    done = subprocess.run(
        [sys.executable, "-m", "edgefl", *command], capture_output=True, text=True, cwd=tmp_path, check=False
    )
    assert done.returncode == 1
    assert error in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("arrives_first", ["state", "task"])
def test_state_of_a_running_federation_refuses_other_samples(
    arrives_first, federate, mosquitto_url, toys, fake_aggregator, tmp_path
):
    federation = federate(mosquitto_url)
    aggregator = fake_aggregator(federation)
    for number in (1, 2):
        x, y = join_samples(toys.shard(number))
        np.savez(tmp_path / f"{number}.npz", x=x, y=y)
    first = federation.device("pi-1", None, "--data", tmp_path / "1.npz")
    assert aggregator.next("status").online, first.err
    aggregator.send_task(1)
    aggregator.accept_update(aggregator.next("begin"))
    first.wait_for("round 1 federate")
    first.popen.terminate()
    assert first.end() == 0, first.err
    if arrives_first == "task":
        aggregator.send_state("stopped", 1)
    while aggregator.next("status").online:
        pass
    other = federation.device("pi-1", None, "--data", tmp_path / "2.npz")
    if arrives_first == "task":
        assert aggregator.next("status").online, other.err
        aggregator.send_task(2)
    assert other.end() == 1
    assert "0 of 32 compared samples of the last start are still in" in other.err
