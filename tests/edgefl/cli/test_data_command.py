"""`edgefl data show` and `edgefl data split`: every kind of data source, and errors without a traceback."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from edgefl.cli import main as cli
from edgefl.data.npz import load_shard
from tests.support.sample_files import windows_of

# Modules that the base install of a device lacks, and learners that it must not load.
BLOCKED = """
import sys
class Block:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"tensorflow", "sklearn", "scipy", "jinja2", "matplotlib", "PIL"}:
            raise ModuleNotFoundError(name, name=name)
sys.meta_path.insert(0, Block())
from edgefl.cli.main import run_command
sys.exit(run_command(sys.argv[1:]))
"""


@pytest.fixture
def work_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def save_samples(name: str, seed: int = 0, **arrays) -> None:
    x = np.random.default_rng(seed).random((40, 9, 9, 1), np.float32)
    np.savez(name, **({"x": x, "y": np.arange(40) % 4} | arrays))


def test_show_prints_a_table_of_two_devices(work_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_samples("pi-1.npz")
    save_samples("pi-2.npz", 1, y=np.eye(4)[np.arange(40) % 2])
    assert cli.run_command(["data", "show", "pi-1.npz", "pi-2.npz"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "2 devices, 80 samples of 9x9x1, 4 classes"
    cells = [line.split() for line in lines if line.startswith(("pi-", "all"))]
    assert cells[0][:7] == ["pi-1", "32", "8", "10", "10", "10", "10"]
    assert cells[1][:7] == ["pi-2", "32", "8", "20", "20", "-", "-"]
    assert cells[2][:7] == ["all", "64", "16", "30", "30", "10", "10"]
    assert "held out on all devices by time: the last samples of each class are held out" in "\n".join(lines)
    assert lines[-1] == "change: pi-2: y is one-hot; the class is the column of the 1, out of 4 classes"
    assert max(len(line) for line in lines if line.startswith(("pi-", "device"))) <= 110


def test_show_warns_of_overlapping_windows(work_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Four groups of five windows are one recording. The last test window overlaps its last window."""
    x = windows_of(21, 4, 1)
    save_samples(
        "pi-1.npz",
        x=x[:20],
        y=np.arange(20) % 2,
        group=np.arange(20) // 5,
        x_test=np.concatenate([windows_of(4, 16, 2), x[20:]]),
        y_test=np.arange(5) % 2,
    )
    assert cli.run_command(["data", "show", "pi-1.npz"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if line.startswith("warning")] == [
        "warning: pi-1: windows of different groups overlap, so 4 groups count as 1; give all windows of one "
        "recording the same name in `group`",
        "warning: pi-1: 1 of 5 windows of x_test overlap windows of x: row 4 of x_test; parts of them are "
        "used for training; remove them from x_test, or test on another recording",
    ]


def test_show_prints_json_and_writes_html(work_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_samples("pi-1.npz", x=np.random.default_rng(0).random((40, 3, 9, 9)))
    assert cli.run_command(["data", "show", "pi-1.npz", "--json", "--html", "data.html"]) == 0
    out, err = capsys.readouterr()
    shown = json.loads(out)
    (device,) = shown["devices"]
    assert device["class_counts"] == {"0": 10, "1": 10, "2": 10, "3": 10}
    assert device["split"] == {"rule": "time", "seed": 1, "train": 32, "test": 8, "overlapping": 0}
    assert (device["shape"], device["stored"]) == ([9, 9, 3], "float64[40, 3, 9, 9]")
    assert [(finding["kind"], finding["severity"], finding["devices"]) for finding in shown["findings"]] == [
        ("channels-first", "change", ["pi-1"])
    ]
    assert "data.html" in err and Path("data.html").read_text().startswith("<!DOCTYPE html>")


def test_show_prints_many_classes_as_shades(work_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_samples("pi-1.npz", y=np.arange(40) % 20)
    assert cli.run_command(["data", "show", "pi-1.npz"]) == 0
    out = capsys.readouterr().out
    assert "class 0 to 19" in out and "▕" in out


def test_show_reads_every_kind_of_data_source(work_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    image = pytest.importorskip("PIL.Image")
    for number, animal in enumerate(("cat", "dog")):
        Path("pets", animal).mkdir(parents=True)
        for i in range(12):
            pixels = np.random.default_rng(12 * number + i).integers(0, 256, (10, 8, 3), np.uint8)
            image.fromarray(pixels).save(f"pets/{animal}/{i}.jpg")
    rows = [f"{i},{i % 7},{'walk' if i < 160 else 'run'}" for i in range(320)]
    Path("steps.csv").write_text("\n".join(["ax,ay,activity", *rows]) + "\n")
    Path("own.py").write_text("import numpy as np\ndef load():\n    return np.eye(30), np.arange(30) % 3\n")
    for arguments, shape, names in (
        (["pets"], [10, 8, 3], ["cat", "dog"]),
        (["steps.csv", "--window", "16", "--label", "activity"], [16, 2], ["run", "walk"]),
        (["own:load"], [30], []),
    ):
        assert cli.run_command(["data", "show", *arguments, "--json", "--html", "data.html"]) == 0
        shown = json.loads(capsys.readouterr().out)
        assert shown["devices"][0]["shape"] == shape
        assert shown["class_names"] == names


@pytest.mark.parametrize(
    ("content", "arguments", "message"),
    [
        (b"temperature,label\n20,1\n", ["x.npz"], "not a NumPy file; write it with numpy.savez"),
        (b"a,b\n1,2\n", ["x.csv"], "x.csv is CSV; add --window ROWS and --label COLUMN"),
        (b"", ["nowhere.npz"], "no shard at"),
        (b"", ["nowhere:load"], "importing nowhere failed"),
    ],
)
def test_unreadable_data_gives_a_one_line_error(work_dir, capsys, content, arguments, message) -> None:
    if content:
        Path(arguments[0]).write_bytes(content)
    assert cli.run_command(["data", "show", *arguments, "--html", "data.html"]) == 1
    out, err = capsys.readouterr()
    assert out == "" and message in err and "Traceback" not in err and err.count("\n") == 1
    assert not Path("data.html").exists()


@given(st.binary(max_size=200), st.integers(0, 2000), st.integers(0, 255))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_damaged_file_causes_no_traceback(tmp_path, capsys, noise, at, byte) -> None:
    path = tmp_path / "pi-1.npz"
    save_samples(str(path))
    content = bytearray(path.read_bytes())
    content[at % len(content)] = byte
    for damaged in (bytes(content), noise):
        path.write_bytes(damaged)
        assert cli.run_command(["data", "show", str(path)]) in (0, 1)
        assert "Traceback" not in capsys.readouterr().err


def test_show_needs_only_the_base_install(work_dir: Path) -> None:
    save_samples("pi-1.npz")
    result = subprocess.run(
        [sys.executable, "-c", BLOCKED, "data", "show", "pi-1.npz", "--html", "data.html"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert "nothing unusual found" in result.stdout and Path("data.html").exists()


def test_split_writes_digits_to_client_files(work_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("sklearn")
    assert cli.run_command(["data", "split", "digits", "--clients", "3", "-o", "dealt"]) == 0
    assert [line.partition(":")[0] for line in capsys.readouterr().out.splitlines()] == [
        f"dealt/pi-{number}.npz" for number in (1, 2, 3)
    ]
    shards = [load_shard(Path(f"dealt/pi-{number}.npz")) for number in (1, 2, 3)]
    assert sum(len(shard.y_train) for shard in shards) == 1438
    assert sum(len(shard.y_test) for shard in shards) == 359
    assert {shard.x_train.shape[1:] for shard in shards} == {(28, 28, 1)}
    assert {shard.num_classes for shard in shards} == {10}
    rows = np.concatenate([shard.x_train for shard in shards]).reshape(1438, -1)
    assert len(np.unique(rows, axis=0)) == 1438  # no sample is in two files

    before = Path("dealt/pi-2.npz").read_bytes()
    assert cli.run_command(["data", "split", "digits", "-o", "dealt"]) == 1
    assert "dealt/pi-1.npz already exists" in capsys.readouterr().err
    assert Path("dealt/pi-2.npz").read_bytes() == before


@pytest.mark.parametrize("with_test", [False, True])
def test_split_preserves_the_names_of_channels(work_dir: Path, with_test: bool) -> None:
    x = np.random.default_rng(1).normal(size=(40, 8, 2)).astype(np.float32)
    arrays = {"x": x, "y": np.arange(40) % 2, "channel_names": np.array(["left", "down"])}
    tests = {"x_test": x, "y_test": arrays["y"]} if with_test else {}
    np.savez("both.npz", **arrays, **tests)
    assert cli.run_command(["data", "split", "npz:both.npz", "--clients", "2", "-o", "."]) == 0
    for name in ("pi-1.npz", "pi-2.npz"):
        with np.load(name) as file:
            assert file["channel_names"].tolist() == ["down", "left"]
            samples = {row.tobytes() for row in x[..., ::-1]}
            assert {row.tobytes() for row in file["x"]} <= samples


def test_old_name_of_split_is_rejected(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run_command(["data", "deal", "digits", "--clients", "2"]) == 2
    assert "`edgefl data deal` is now `edgefl data split`" in capsys.readouterr().err


def test_split_accepts_partition_samples_and_seed(work_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_samples("all.npz", x=np.arange(400 * 4, dtype=np.float32).reshape(400, 4), y=np.arange(400) % 4)
    arguments = [
        "data",
        "split",
        "npz:all.npz",
        "--partition",
        "dirichlet",
        "--option",
        "alpha=0.3",
        "--samples",
        "30",
    ]
    shares = []
    for out, seed in (("a", "1"), ("b", "1"), ("c", "2")):
        assert cli.run_command([*arguments, "-o", out, "--seed", seed, "--json"]) == 0
        files = json.loads(capsys.readouterr().out)["files"]
        assert [Path(file["path"]).name for file in files] == ["pi-1.npz", "pi-2.npz"]
        assert sum(file["train"] for file in files) == 60
        assert sum(file["test"] for file in files) == 15
        shares.append([Path(file["path"]).read_bytes() for file in files])
    assert shares[0] == shares[1] != shares[2]
    assert Path("a/pi-1.npz").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["digitz"], "did you mean 'digits'"),
        (["digits", "--partition", "dirichlett"], "did you mean 'dirichlet'"),
        (["digits", "--option", "alpa=1"], "did you mean 'alpha'"),
        (["npz:nowhere.npz"], "no data set at nowhere.npz"),
    ],
)
def test_invalid_split_is_an_error(work_dir, capsys, arguments, message) -> None:
    assert cli.run_command(["data", "split", *arguments, "-o", "out"]) == 1
    out, err = capsys.readouterr()
    assert out == "" and message in err and "Traceback" not in err
    assert not Path("out").exists()


def test_show_exits_with_1_after_an_error(work_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_samples("pi-1.npz", y=np.array(["cat", "dog"])[np.arange(40) % 2])
    save_samples("pi-2.npz", 1)
    assert cli.run_command(["data", "show", "pi-1.npz"]) == 0
    assert cli.run_command(["data", "show", "pi-1.npz", "pi-2.npz"]) == 1
    assert "error: all devices: classes have names on pi-1 (cat, dog) and numbers on pi-2" in (
        capsys.readouterr().out
    )
    assert cli.run_command(["data", "show", "pi-1.npz", "pi-2.npz", "--json"]) == 1
    init = ["init", "--yes", "f.toml", "--data", "pi-1.npz", "--data", "pi-2.npz"]
    assert cli.run_command(init) == 1
    assert not Path("f.toml").exists()
