import json
import sys
from pathlib import Path

import click
import numpy as np
import pytest
from click.testing import CliRunner

from edgefl.base.config import PartitionConfig
from edgefl.base.errors import ConfigError, DataError
from edgefl.cli.commands.datasets import datasets, partitions
from edgefl.cli.commands.samples import data as samples
from edgefl.data import PARTITIONS, load_dataset, make_client_partitions
from edgefl.data.npz import read_shard
from edgefl.data.partitions.heatmap import render_heatmap
from edgefl.data.sources import load_samples, make_source


@pytest.fixture
def npz_data(tmp_path: Path) -> str:
    np.savez(tmp_path / "a.npz", x=np.zeros((400, 5, 5, 1), np.uint8), y=np.arange(400) % 4)
    return f"npz:{tmp_path / 'a.npz'}"


def run(command: click.Command, *args: str) -> str:
    result = CliRunner().invoke(command, args, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_lists_show_all_data_sets_and_partitions() -> None:
    text = run(datasets)
    assert "uci-har" in text and "CC BY-NC 4.0" in text and "standardise=true" in text
    rows = json.loads(run(datasets, "--json"))
    assert {"name", "about", "licence", "home", "options", "here"} == set(rows[0])
    assert "alpha=0.5" in run(partitions)
    names = [row["name"] for row in json.loads(run(partitions, "--json"))]
    assert names[:3] == ["iid", "dirichlet", "client-dirichlet"] and len(names) == 12


def test_heatmap_has_one_line_per_client() -> None:
    counts = np.array([[8, 0, 1], [0, 4, 0]])
    lines = render_heatmap(counts, ["a", "bc"], [-1, -1], "class")
    assert lines[0].split() == ["client", "samples", "class", "0", "to", "2"]
    assert lines[1] == "a        9 ▕██  ░░▏" and lines[2] == "bc       4 ▕  ██  ▏"
    assert lines[3].startswith("░ to 25%, ▒ to 50%, ▓ to 75%, █ to 100%")
    wide = render_heatmap(
        np.eye(300, 200, dtype=np.int64) + 1, [f"client-{i:03d}" for i in range(300)], [1] * 300, "class"
    )
    assert len(wide) == 26 and max(map(len, wide)) <= 80
    assert "client-000 #1" in wide[1]
    assert wide[-1].endswith("(#: true cluster)") and "true cluster" not in lines[3]
    assert "3 per column" in wide[0] or "4 per column" in wide[0]


def test_show_prints_samples_of_each_client(npz_data: str) -> None:
    args = ("show", "--data", npz_data, "--clients", "30", "-o", "alpha=0.3", "--partition", "dirichlet")
    text = run(partitions, *args)
    assert max(map(len, text.splitlines()[1:])) <= 100
    assert "client-029" in text and "used: 320 of 320 training samples, 80 of 80 test samples" in text
    shown = json.loads(run(partitions, *args, "--json"))
    assert len(shown["clients"]) == 30 and np.sum(shown["train"]) == 320 and shown["clusters"] == [-1] * 30
    assert json.loads(run(partitions, *args, "--json", "--seed", "2"))["train"] != shown["train"]
    rotated = run(
        partitions,
        "show",
        "--data",
        npz_data,
        "--partition",
        "rotation",
        "--clients",
        "4",
        "-o",
        "fixed=true",
        "-o",
        "angles=2",
    )
    assert "steps turned 0 to 1" in rotated and "#1" in rotated
    subset = run(
        partitions, "show", "--data", npz_data, "-d", "classes=0,2", "--num-train", "100", "--clients", "2"
    )
    assert "used: 100 of 100 training samples" in subset and "class 0 to 1" in subset


def test_permuted_labels_are_shown_as_the_client_sees_them(tmp_path: Path) -> None:
    y = np.r_[np.zeros(80, int), np.ones(20, int)]
    np.savez(tmp_path / "a.npz", x=np.zeros((100, 2)), y=y)
    options = ("--partition", "permutation", "--clients", "4", "-o", "permutations=2")
    shown = json.loads(run(partitions, "show", "--data", f"npz:{tmp_path / 'a.npz'}", *options, "--json"))
    majority_classes = [int(np.argmax(row)) for row in shown["train"]]
    assert sorted(majority_classes) == [0, 0, 1, 1]
    assert (
        len({(cluster, label) for cluster, label in zip(shown["clusters"], majority_classes, strict=True)})
        == 2
    )


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("-o", "alhpa=1"), "did you mean 'alpha'"),
        (("-o", "alpha"), "expected key=value"),
        (("-o", "alpha=much"), "alpha is 'much', expected a number"),
        (("-d", "classes=a"), "classes is 'a', expected a list of whole numbers"),
        (("--partition", "irichlet"), "did you mean 'dirichlet'"),
        (("--clients", "0"), "num_clients is 0"),
    ],
)
def test_wrong_options_are_refused(npz_data: str, args: tuple[str, ...], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        run(partitions, "show", "--data", npz_data, *args)


def test_show_writes_a_png(npz_data: str, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="the plots extra is not installed")
    run(partitions, "show", "--data", npz_data, "--out", str(tmp_path / "heat.png"))
    assert (tmp_path / "heat.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"


def test_png_requires_matplotlib(npz_data: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ConfigError, match=r"--out needs matplotlib.*\[plots\]"):
        run(partitions, "show", "--data", npz_data, "--out", str(tmp_path / "heat.png"))
    assert not (tmp_path / "heat.png").exists()


@pytest.fixture
def numeric_data(tmp_path: Path) -> str:
    x = np.random.default_rng(0).random((200, 5)).astype(np.float32)
    np.savez(tmp_path / "numbers.npz", x=x, y=np.arange(200) / 4)
    return f"npz:{tmp_path / 'numbers.npz'}"


@pytest.fixture
def unlabelled_data(tmp_path: Path) -> str:
    np.savez(tmp_path / "normal.npz", x=np.random.default_rng(0).random((200, 5)).astype(np.float32))
    return f"npz:{tmp_path / 'normal.npz'}"


@pytest.mark.parametrize("name", [name for name in PARTITIONS if name not in ("iid", "quantity", "group")])
def test_partitions_by_class_refuse_data_without_classes(
    name: str, numeric_data: str, unlabelled_data: str
) -> None:
    for data, message in (
        (numeric_data, "numbers to predict and no classes"),
        (unlabelled_data, "no labels"),
    ):
        dataset = load_dataset(data)
        with pytest.raises(DataError, match=f"{name}.* has {message}, expected one of iid, quantity, group;"):
            make_client_partitions(dataset, PartitionConfig(name=name, num_clients=2), 1)


def test_partitions_without_classes_are_shown_without_a_class_table(numeric_data: str) -> None:
    for name in ("iid", "quantity"):
        text = run(partitions, "show", "--data", numeric_data, "--partition", name, "--clients", "4")
        assert "class 0" not in text and "classes\n" not in text and "4 clients, each with" in text
    result = CliRunner().invoke(
        partitions, ["show", "--data", numeric_data, "--partition", "iid", "--out", "a.png"]
    )
    assert isinstance(result.exception, ConfigError) and "has no classes" in str(result.exception)


def test_split_writes_numbers_and_samples_without_labels(
    numeric_data: str, unlabelled_data: str, tmp_path: Path
) -> None:
    for data, name in ((numeric_data, "numbers"), (unlabelled_data, "normal")):
        text = run(samples, "split", data, "--partition", "iid", "--clients", "3", "-o", str(tmp_path / name))
        assert "samples of" not in text
    source = make_source(str(tmp_path / "numbers" / "pi-2.npz"))
    shard = load_samples(source, any_task=True).shard
    assert shard.target_train is not None and shard.target_train.shape[1] == 1
    dataset = load_dataset(numeric_data)
    assert dataset.target_train is not None
    values = {
        tuple(x): float(y[0]) for x, y in zip(dataset.x_train.tolist(), dataset.target_train, strict=True)
    }
    assert [values[tuple(x)] for x in shard.x_train.tolist()] == shard.target_train[:, 0].tolist()
    assert sorted(read_shard(tmp_path / "normal" / "pi-1.npz")) == ["group", "scale", "x", "x_test"]
    assert not load_samples(
        make_source(str(tmp_path / "normal" / "pi-1.npz")), any_task=True
    ).shard.has_labels


def test_split_by_group_names_files_by_their_clients(tmp_path: Path) -> None:
    numbers = np.repeat([1, 2, 10], 12)
    names = np.array([f"pi-{number}" for number in numbers])
    np.savez(tmp_path / "all.npz", x=numbers[:, None] + np.zeros((36, 1)), y=np.arange(36) % 2, client=names)
    arguments = ("split", f"npz:{tmp_path}/all.npz", "--partition", "group", "--clients", "3", "-o")
    run(samples, *arguments, str(tmp_path / "split"))
    means = {path.stem: float(read_shard(path)["x"].mean()) for path in (tmp_path / "split").iterdir()}
    assert means == {"pi-1": 1, "pi-2": 2, "pi-10": 10}
    result = CliRunner().invoke(samples, [*arguments, str(tmp_path / "split")])
    assert "pi-1.npz already exists" in str(result.exception)
