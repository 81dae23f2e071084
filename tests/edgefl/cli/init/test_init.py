"""`edgefl init` with options, with answers and with invalid input."""

import contextlib
import json
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from edgefl.base.config import AugmentationConfig, load_config
from edgefl.base.names import check_federation
from edgefl.base.tasks.config import ANOMALY, REGRESSION, TaskConfig
from edgefl.cli import main as cli
from edgefl.cli.commands.init import init
from edgefl.cli.init.questions import to_federation_name
from edgefl.cli.init.task import choose_model, choose_settings
from edgefl.data import load_data, make_shards
from edgefl.data.task_form import TaskShards


@pytest.fixture
def working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def save_samples(path: Path, shape: tuple[int, ...], classes: int = 3, count: int = 30) -> None:
    x = np.random.default_rng(0).random((count, *shape), np.float32)
    np.savez(path, x=x, y=np.arange(count) % classes)


@pytest.mark.parametrize(
    ("shape", "model"),
    [
        ((28, 28, 1), "lenet5"),
        ((32, 32, 3), "lenet5"),
        ((24, 40, 3), "five-conv"),
        ((8, 8, 1), "five-conv"),
        ((7, 8, 1), "softmax"),
        ((128, 9), "cnn1d"),
        ((15, 9), "softmax"),
        ((40,), "softmax"),
    ],
)
def test_model_is_chosen_by_input_shape(shape: tuple[int, ...], model: str) -> None:
    assert choose_model(shape) == model


def test_federation_name_is_made_from_any_text() -> None:
    for text in ("Küche 7", "..", "", "-a-", "A" * 99, "x/y"):
        assert check_federation(to_federation_name(text))


def test_yes_option_uses_the_defaults(working_directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("sklearn")
    assert cli.run_command(["init", "kitchen", "--yes"]) == 0
    config = load_config(working_directory / "kitchen" / "federation.toml")
    assert (config.name, config.algorithm, config.min_clients, config.rounds) == ("kitchen", "pfl-mfe", 2, 20)
    assert (config.model.name, config.model.input_shape, config.model.num_classes) == (
        "lenet5",
        (28, 28, 1),
        10,
    )
    out = capsys.readouterr().out
    assert "edgefl aggregator start --config kitchen/federation.toml\n" in out
    assert out.count("edgefl device start") == 2


@pytest.mark.parametrize(
    ("shape", "options", "crop"),
    [
        ((32, 32, 3), (), 4),
        ((96, 64, 3), (), 8),  # an eighth of the shorter side
        ((28, 28, 1), (), 0),  # grey
        ((16, 16, 3), (), 0),  # a small picture
        ((32, 32, 3), ("--task", "anomaly"), 0),
        ((128, 3), (), 0),  # a window
    ],
)
def test_colour_pictures_are_augmented(
    shape: tuple[int, ...],
    options: tuple[str, ...],
    crop: int,
    working_directory: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    text = ",".join(map(str, shape))
    classes = () if options else ("--num-classes", "4")
    assert cli.run_command(["init", "--yes", "--input-shape", text, *classes, *options]) == 0
    config = load_config(working_directory / "federation.toml")
    assert config.augmentation == AugmentationConfig(crop, bool(crop))
    assert ("remove flip from [augmentation]" in capsys.readouterr().err) == bool(crop)


@pytest.mark.parametrize(
    ("options", "normalize"),
    [
        (("--num-classes", "4"), True),
        (("--task", "regression"), True),
        (("--task", "anomaly"), False),
    ],
)
def test_devices_measure_mean_and_std_except_for_anomalies(
    options: tuple[str, ...], normalize: bool, working_directory: Path
) -> None:
    assert cli.run_command(["init", "--yes", "--input-shape", "64,3", *options]) == 0
    assert load_config(working_directory / "federation.toml").model.normalize is normalize


@pytest.mark.parametrize(
    ("options", "range_test"),
    [
        (("--num-classes", "4"), True),
        (("--num-classes", "4", "--algorithm", "clustered"), True),
        (("--num-classes", "4", "--algorithm", "fedmix"), False),  # it has a rate of its own
        (("--task", "regression", "--model", "autoencoder"), False),  # so has the recipe of this model
        (("--task", "anomaly"), False),
    ],
)
def test_devices_find_the_learning_rate_unless_it_is_set(
    options: tuple[str, ...], range_test: bool, working_directory: Path
) -> None:
    assert cli.run_command(["init", "--yes", "--input-shape", "64,3", *options]) == 0
    config = load_config(working_directory / "federation.toml")
    assert config.range_test is range_test
    assert not (range_test and "learning_rate" in config.options)


def test_options_answer_the_questions(working_directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_samples(working_directory / "pi-1.npz", (128, 9), 6)
    command = (
        "init --yes --name hall --data pi-1.npz --algorithm fedavg --clients 3 --rounds 7 --broker "
        "mqtt://pi:1884 --json"
    )
    assert cli.run_command(command.split()) == 0
    output = json.loads(capsys.readouterr().out)
    config = load_config(working_directory / "federation.toml")
    assert (config.name, config.algorithm, config.min_clients, config.rounds, config.broker) == (
        "hall",
        "fedavg",
        3,
        7,
        "mqtt://pi:1884",
    )
    assert (config.model.name, config.model.input_shape, config.model.num_classes) == ("cnn1d", (128, 9), 6)
    assert config.data.name == "npz:pi-1.npz"
    assert output["path"] == "federation.toml"
    assert output["next"][0] == "edgefl aggregator start"
    assert output["next"][1] == "edgefl device start --broker mqtt://pi:1884 --id pi-1 --data pi-1.npz"
    assert len(output["next"]) == 4


def test_the_classes_of_all_devices_are_counted(
    working_directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save_samples(working_directory / "pi-1.npz", (28, 28, 1), 3)
    save_samples(working_directory / "pi-2.npz", (28, 28, 1), 5)
    save_samples(working_directory / "pi-3.npz", (28, 28, 1), 4)
    arguments = [argument for i in (1, 2, 3) for argument in ("--data", f"pi-{i}.npz")]
    assert cli.run_command(["init", "--yes", *arguments, "--json"]) == 0
    out, err = capsys.readouterr()
    assert load_config(working_directory / "federation.toml").model.num_classes == 5
    assert load_config(working_directory / "federation.toml").min_clients == 3
    assert [line.split()[-1] for line in json.loads(out)["next"][2:]] == ["pi-1.npz", "pi-2.npz", "pi-3.npz"]
    assert "5 classes in 3 devices; give --num-classes if others have more" in err


def test_devices_with_different_shapes_are_refused(
    working_directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save_samples(working_directory / "a.npz", (8, 8, 1))
    save_samples(working_directory / "b.npz", (7,))
    assert cli.run_command(["init", "--yes", "--data", "a.npz", "--data", "b.npz"]) == 1
    assert "b.npz has samples of 7, a.npz of 8x8x1; expected one shape" in capsys.readouterr().err
    assert not (working_directory / "federation.toml").exists()


def test_invalid_answers_are_asked_again(working_directory: Path) -> None:
    save_samples(working_directory / "mine.npz", (28, 28, 1), 4)
    answers = "My Hall\nhall\nnothing-here\nmine.npz\nfedavgg\nifca\n0\nmany\n5\n"
    completed = CliRunner().invoke(init, ["x.toml"], input=answers)
    assert completed.exit_code == 0, completed.output
    config = load_config(working_directory / "x.toml")
    assert (config.name, config.algorithm, config.min_clients, config.model.num_classes) == (
        "hall",
        "ifca",
        5,
        4,
    )
    for message in (
        "my-hall would be valid",
        "no file, folder or data set 'nothing-here'",
        "did you mean 'fedavg'",
        "'0', expected a whole number",
    ):
        assert message in completed.stderr
    assert "1/4" not in completed.stdout


def test_option_skips_its_question(working_directory: Path) -> None:
    save_samples(working_directory / "mine.npz", (40,))
    completed = CliRunner().invoke(
        init, ["--name", "a", "--data", "mine.npz", "--clients", "2"], input="local\n"
    )
    assert completed.exit_code == 0, completed.output
    assert "One question for" in completed.stderr
    assert "1/1 Algorithm" in completed.stderr
    assert load_config(working_directory / "federation.toml").algorithm == "local"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--yes", "--name", "A b"], "a-b would be valid"),
        (["--yes", "--data", "nowhere.npz"], "no file, folder or data set 'nowhere.npz'"),
        (["--yes", "--data", "broken.npz"], "it is not a NumPy file; write it with numpy.savez"),
        (["--yes", "--data", "digits", "--data", "fashion-mnist"], "digits is a whole data set"),
        (["--yes", "--input-shape", "28,28"], "expected both"),
        (["--yes", "--input-shape", "28,x", "--num-classes", "3"], "such as 28,28,1"),
        (
            ["--yes", "--input-shape", "4,4,1", "--num-classes", "3", "--data", "digits"],
            "expected one of them",
        ),
        (["--yes", "--input-shape", "8", "--num-classes", "3", "--algorithm", "aemm"], "did you mean 'aem'"),
        (["--yes", "--input-shape", "8", "--num-classes", "3", "--clients", "0"], "1 or more"),
        (["--yes", "--input-shape", "8", "--num-classes", "3", "--model", "lenet"], "did you mean 'lenet5'"),
        (
            ["--yes", "--input-shape", "8", "--num-classes", "3", "--broker", "pi"],
            "expected mqtt://HOST:PORT",
        ),
        (["broken.npz", "--yes"], "is a file, expected a directory"),
        (["there.toml", "--yes"], "already exists"),
    ],
)
def test_invalid_arguments_are_refused_and_write_nothing(
    working_directory: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    (working_directory / "broken.npz").write_bytes(b"no zip")
    (working_directory / "there.toml").write_text("mine")
    assert cli.run_command(["init", *arguments]) == 1
    out, err = capsys.readouterr()
    assert (out, message in err) == ("", True), err
    assert sorted(path.name for path in working_directory.iterdir()) == ["broken.npz", "there.toml"]
    assert (working_directory / "there.toml").read_text() == "mine"


def test_end_of_input_is_an_error(working_directory: Path) -> None:
    completed = subprocess.run(
        [sys.executable, "-m", "edgefl", "init"], input="a\n", capture_output=True, text=True, timeout=120
    )
    assert completed.returncode == 1
    assert "no answer to question 2 of 4; give --data, or --yes for all defaults" in completed.stderr
    assert not list(working_directory.iterdir())


def restore_sigint() -> None:
    """Restore SIGINT, because processes that a background job of a shell starts ignore it."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def test_ctrl_c_at_a_question_writes_nothing(working_directory: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "edgefl", "init"],
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        preexec_fn=restore_sigint,
    )
    assert process.stderr is not None
    output = b""
    while b"1/4" not in output:
        output += process.stderr.read1()
    # Again, because a signal between the question and the wait for the answer is handled only later
    for _ in range(30):
        process.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(2)
            break
    assert process.returncode == 130
    assert b"Traceback" not in process.stderr.read()
    assert not list(working_directory.iterdir())


@pytest.mark.parametrize(
    ("shape", "kind", "model"),
    [
        ((40,), ANOMALY, "autoencoder"),
        ((128, 3), ANOMALY, "conv-autoencoder"),
        ((126, 3), ANOMALY, "autoencoder"),
        ((28, 28, 1), ANOMALY, "autoencoder"),
        ((128, 3), REGRESSION, "cnn1d"),
        ((40,), REGRESSION, "softmax"),
    ],
)
def test_model_is_chosen_by_task_and_input_shape(shape: tuple[int, ...], kind: str, model: str) -> None:
    assert choose_model(shape, kind) == model


def save_form(path: Path, form: str, shape: tuple[int, ...]) -> None:
    x = np.random.default_rng(0).random((60, *shape), np.float32)
    labels = {
        "numbers": np.arange(60) / 4,
        "pairs": np.stack([np.arange(60), np.arange(60) % 7], axis=1),
        "faults": (np.arange(60) % 10 == 9).astype(np.int64),
    }
    np.savez(path, **{"x": x} | ({"y": labels[form]} if form in labels else {}))


@pytest.mark.parametrize(
    ("form", "options", "shape", "task", "model"),
    [
        ("numbers", [], (32, 3), TaskConfig(kind=REGRESSION), ("cnn1d", 1)),
        ("pairs", [], (5,), TaskConfig(kind=REGRESSION, outputs=2), ("softmax", 2)),
        ("faults", ["--task", "regression"], (5,), TaskConfig(kind=REGRESSION), ("softmax", 1)),
        ("nothing", [], (32, 3), TaskConfig(kind=ANOMALY), ("conv-autoencoder", 96)),
        ("nothing", [], (5,), TaskConfig(kind=ANOMALY), ("autoencoder", 5)),
        ("faults", ["--task", "anomaly"], (5,), TaskConfig(kind=ANOMALY), ("autoencoder", 5)),
    ],
)
def test_yes_option_finds_the_task_of_a_file(
    working_directory: Path,
    capsys: pytest.CaptureFixture[str],
    form: str,
    options: list[str],
    shape: tuple[int, ...],
    task: TaskConfig,
    model: tuple[str, int],
) -> None:
    save_form(working_directory / "pi-1.npz", form, shape)
    assert cli.run_command(["init", "--yes", "--data", "pi-1.npz", "--json", *options]) == 0
    out, err = capsys.readouterr()
    config = load_config(working_directory / "federation.toml")
    assert config.task == task
    assert (config.model.name, config.model.num_classes) == model
    assert (config.algorithm, config.partition.name) == ("fedavg", "iid")
    assert "fedavg is recommended: it works for every task" in err
    assert json.loads(out)["task"] == task.kind
    dataset = load_data(config.data, config.seed)
    shards = TaskShards(make_shards(dataset, config.partition, config.seed), config.task)
    assert all(len(shards[client_id].y_train) for client_id in shards)


def test_autoencoders_get_the_settings_of_the_benchmark(working_directory: Path) -> None:
    """With the defaults of classifiers, an autoencoder learns little in 20 rounds."""
    save_form(working_directory / "pi-1.npz", "nothing", (32,))
    assert cli.run_command(["init", "--yes", "--data", "pi-1.npz"]) == 0
    config = load_config(working_directory / "federation.toml")
    assert config.model.name == "autoencoder" and config.model.options == {"hidden": 64, "depth": 1}
    assert config.options == {"epochs": 20, "learning_rate": 1.0, "momentum": 0.9}, "48 samples are few"
    assert choose_settings("autoencoder", 100).algorithm_options == {"learning_rate": 0.3, "momentum": 0.9}
    assert config.personalization.learning_rate == 0.01
    command = ["init", "other.toml", "--yes", "--data", "pi-1.npz", "--algorithm", "ditto"]
    assert cli.run_command(command) == 0
    assert load_config(working_directory / "other.toml").options == {}


def test_devices_without_labels_are_simulated_as_groups(working_directory: Path) -> None:
    for name in ("pi-1", "pi-2"):
        save_form(working_directory / f"{name}.npz", "nothing", (32, 3))
    assert cli.run_command(["init", "--yes", "--data", "pi-1.npz", "--data", "pi-2.npz"]) == 0
    config = load_config(working_directory / "federation.toml")
    assert (config.task.kind, config.partition.name, config.partition.num_clients) == (ANOMALY, "group", 2)
    assert config.options == {"learning_rate": 0.1, "momentum": 0.9}
    assert len(make_shards(load_data(config.data, config.seed), config.partition, config.seed)) == 2


def test_columns_of_a_csv_file_become_targets(
    working_directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = "".join(f"{i % 7},{i / 4}\n" for i in range(800))
    (working_directory / "a.csv").write_text(f"ax,watt\n{rows}")
    command = ["init", "--yes", "--data", "a.csv", "--window", "16", "--target", "watt"]
    assert cli.run_command(command) == 0
    assert "--data a.csv --window 16 --target watt" in capsys.readouterr().out
    config = load_config(working_directory / "federation.toml")
    assert (config.task.kind, config.model.input_shape) == (REGRESSION, (16, 1))
    assert config.samples.targets == ("watt",)


def test_npz_file_of_several_clients_states_its_unit_and_class_names(working_directory: Path) -> None:
    rng = np.random.default_rng(1)
    x, y = rng.integers(0, 256, (60, 12, 12)).astype(np.float32), np.array(["cat", "dog"] * 30)
    np.savez("all.npz", x=x, y=y, client=np.repeat(["a", "b"], 30))
    assert cli.run_command(["init", "--yes", "--data", "npz:all.npz"]) == 0
    config = load_config(working_directory / "federation.toml")
    assert (config.samples.scale, config.samples.classes) == (255, ("cat", "dog"))
    assert config.model.input_shape == (12, 12, 1)
    data = load_data(config.data, config.seed, samples=config.samples)
    assert data.class_names == ("cat", "dog") and data.x_train.max() <= 1


@pytest.mark.parametrize(
    ("labels", "options", "message"),
    [
        (np.arange(60) % 2, (), ""),
        (
            np.array(["cat", "dog"] * 30),
            ("--num-classes", "3"),
            "--num-classes is 3, the data name 2 classes",
        ),
        (np.array(["cat", "dog"] * 30), ("--task", "anomaly"), "labels are names (cat, dog)"),
    ],
)
def test_names_of_an_npz_file_that_do_not_fit_are_left_out_or_refused(
    labels: np.ndarray,
    options: tuple[str, ...],
    message: str,
    working_directory: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Twelve names of columns are no channels of pictures of 12 x 12 x 1."""
    x = np.random.default_rng(1).random((60, 12, 12))
    np.savez("a,b.npz", x=x, y=labels, channel_names=np.array([f"c{i}" for i in range(12)]))
    code = cli.run_command(["init", "--yes", "--data", "npz:a,b.npz", *options])
    assert (code, message in capsys.readouterr().err) == (int(bool(message)), True)
    if not message:
        assert load_config(working_directory / "federation.toml").samples.channels == ()


def test_input_shape_replaces_the_data_of_every_task(working_directory: Path) -> None:
    assert cli.run_command(["init", "--yes", "--input-shape", "32,3", "--task", "anomaly"]) == 0
    config = load_config(working_directory / "federation.toml")
    assert (config.model.name, config.task.kind) == ("conv-autoencoder", ANOMALY)


@pytest.mark.parametrize(
    ("form", "options", "message"),
    [
        ("nothing", ["--task", "regression"], "pi-1.npz: the samples have no labels y"),
        ("numbers", ["--task", "anomaly"], "pi-1.npz: the labels y hold 0.25, expected 0 for a normal"),
        ("numbers", ["--task", "classification"], "which is not a class"),
        ("numbers", ["--algorithm", "aem"], "expected a classification"),
        ("numbers", ["--task", "regression", "--num-classes", "3"], "only for a classification"),
    ],
)
def test_task_that_does_not_fit_the_data_is_refused(
    working_directory: Path, capsys: pytest.CaptureFixture[str], form: str, options: list[str], message: str
) -> None:
    save_form(working_directory / "pi-1.npz", form, (5,))
    assert cli.run_command(["init", "--yes", "--data", "pi-1.npz", *options]) == 1
    assert message in capsys.readouterr().err
    assert not (working_directory / "federation.toml").exists()


@pytest.mark.parametrize(
    ("labels", "options", "message"),
    [
        (["a", "b", "c"], ["--num-classes", "5"], "--num-classes is 5, the data name 3 classes (a, b, c)"),
        (["a", "b", "c"], ["--num-classes", "2"], "--num-classes is 2, the data name 3 classes"),
        ([0, 1, 2], ["--num-classes", "2"], "--num-classes is 2, expected 3 or more, as in the data"),
        (
            ["a", "b", "c"],
            ["--task", "regression"],
            "the labels are names (a, b, c), expected numbers for the",
        ),
        (["a", "b", "c"], ["--task", "anomaly"], "the labels are names (a, b, c), expected numbers for the"),
        (["a", "b", "c"], ["--num-classes", "3"], None),
        ([0, 1, 2], ["--num-classes", "5"], None),
        ([0, 1, 2], ["--task", "regression"], None),
    ],
)
def test_federation_that_would_refuse_its_own_data_is_not_written(
    working_directory: Path,
    capsys: pytest.CaptureFixture[str],
    labels: list,
    options: list,
    message: str | None,
) -> None:
    x = np.random.default_rng(0).random((30, 5), np.float32)
    np.savez("pi-1.npz", x=x, y=np.array(labels)[np.arange(30) % 3])
    assert cli.run_command(["init", "--yes", "--data", "pi-1.npz", *options]) == (1 if message else 0)
    printed = capsys.readouterr().err
    assert (message or "") in printed
    if message is None and "a" in labels:
        assert "3 classes in one device; list all names in classes.txt beside the data if others" in printed
    assert (working_directory / "federation.toml").exists() == (message is None)
