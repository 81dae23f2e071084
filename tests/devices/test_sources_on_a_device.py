"""A device whose samples are no .npz: it trains on the same bits, and its note opens them again."""

import json
import subprocess
import sys

import numpy as np
import pytest

from edgefl.config import DataConfig, PartitionConfig
from edgefl.data import load_data, make_shards
from edgefl.data.npz import save_shard
from edgefl.data.sources import load_source, parse_source

FUNCTION = """
import numpy as np
def load():
    return np.load("values.npy"), np.load("labels.npy")
"""


def all_of(shard):
    """Return a shard's samples, and its classes."""
    return np.concatenate([shard.x_train, shard.x_test]), np.concatenate([shard.y_train, shard.y_test])


def by_class(x, y, folder, names):
    for index, (values, label) in enumerate(zip(x, y, strict=True)):
        (folder / names[label]).mkdir(parents=True, exist_ok=True)
        np.save(folder / names[label] / f"{index:03}.npy", values)


@pytest.fixture
def trained(federate, mosquitto_url, lead):
    """Have one device train one round; returns the update's sha256, how many samples it told of, and its
    note.
    """

    def run(*more):
        federation = federate(mosquitto_url)
        aggregator = lead(federation)
        device = federation.device("pi-1", None, *more)
        assert aggregator.next("status").online, device.said
        aggregator.task(1)
        begin = aggregator.next("begin")
        aggregator.take(begin)
        device.popen.terminate()
        assert device.end() == 0, device.said
        note = json.loads((federation.directory / "state-pi-1" / "device.json").read_text())
        return begin.sha256, begin.num_samples, note

    return run


def test_a_folder_and_a_function_train_to_the_bits_of_the_npz(trained, toys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    x, y = all_of(toys.shard(1))
    order = np.argsort(y, kind="stable")
    x = x[order]
    y = y[order]
    by_class(x, y, tmp_path / "samples", ["ant", "bee", "cat"])
    np.savez(tmp_path / "same.npz", x=x, y=y)
    np.save(tmp_path / "values.npy", x)
    np.save(tmp_path / "labels.npy", y)
    (tmp_path / "own_board.py").write_text(FUNCTION)
    shas, counts, notes = zip(
        *(trained("--data", data) for data in ("same.npz", "samples", "own_board:load")), strict=True
    )
    assert len(set(shas)) == 1
    assert counts == (32, 32, 32)
    shards = [load_source(parse_source(note), seed=note["seed"]) for note in notes]
    for shard in shards[1:]:
        assert shard.x_test.tobytes() == shards[0].x_test.tobytes()
    assert notes[2]["source"] == {"folder": str(tmp_path)}


def test_a_device_trains_on_the_samples_that_a_simulation_gives_its_client(trained, toys, tmp_path):
    """The second file names the test samples that the simulation holds out of the first one."""
    x, y = all_of(toys.shard(1))
    np.savez(tmp_path / "own.npz", x=x, y=y, group=np.arange(len(y)) // 3)
    by_rule = trained("--data", str(tmp_path / "own.npz"))
    seed = by_rule[2]["seed"]
    dataset = load_data(DataConfig(f"npz:{tmp_path / 'own.npz'},{tmp_path / 'own.npz'}"), seed)
    simulated = make_shards(dataset, PartitionConfig("group", 2), seed)["client-000"]
    assert simulated.group_train is not None and len(simulated.y_test) == len(y) - by_rule[1]
    save_shard(tmp_path / "simulated.npz", simulated)
    assert trained("--data", str(tmp_path / "simulated.npz"))[:2] == by_rule[:2]
    np.savez(tmp_path / "other.npz", x=x, y=y)
    assert trained("--data", str(tmp_path / "other.npz"))[0] != by_rule[0]


def test_one_hot_labels_train_to_the_bits_of_class_numbers(trained, toys, tmp_path):
    x, y = all_of(toys.shard(1))
    np.savez(tmp_path / "numbers.npz", x=x, y=y)
    np.savez(tmp_path / "one-hot.npz", x=x, y=np.eye(3)[y])
    shas = [trained("--data", tmp_path / f"{name}.npz")[0] for name in ("numbers", "one-hot")]
    assert shas[0] == shas[1]


def test_a_folder_that_lacks_a_class_ends_the_device_with_the_remedy(
    federate, mosquitto_url, toys, lead, tmp_path
):
    federation = federate(mosquitto_url)
    aggregator = lead(federation)
    x, y = all_of(toys.shard(1))
    by_class(x[y != 1], y[y != 1], tmp_path / "samples", ["ant", "bee", "cat"])
    device = federation.device("pi-1", None, "--data", tmp_path / "samples")
    assert aggregator.next("status").online
    while aggregator.next("status").online:
        pass
    assert device.end() == 1
    assert "this board has 2 classes (ant, cat), the federation has 3" in device.said
    assert "classes.txt" in device.said


def test_windows_that_do_not_fit_the_plan(federate, mosquitto_url, lead, tmp_path):
    federation = federate(mosquitto_url)
    aggregator = lead(federation)
    (tmp_path / "a.csv").write_text("x,label\n" + "".join(f"{i},{i // 4 % 3}\n" for i in range(60)))
    device = federation.device(
        "pi-1", None, "--data", tmp_path / "a.csv", "--window", "4", "--label", "label"
    )
    assert aggregator.next("status").online
    while aggregator.next("status").online:
        pass
    assert device.end() == 1
    assert "a sample of this device has the shape (4, 1), the plan expects (4,)" in device.said


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (("--data", "none.npz"), "no shard at"),
        (("--data", "none.csv"), "add --window ROWS and --label COLUMN"),
        (("--data", "no_module_of_this_name:load"), "importing no_module_of_this_name failed"),
    ],
)
def test_sources_that_are_not_there(tmp_path, more, says):
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
    assert says in done.stderr
    assert "Traceback" not in done.stderr
