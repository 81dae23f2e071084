"""Rules for every command: help, exit codes, only JSON on standard output, errors without a traceback."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from edgefl.cli import main as cli
from tests.support.broker import mosquitto
from tests.support.ports import choose_port

WIDTH = 80
# Commands whose output is not data for programs.
WITHOUT_JSON = {
    "aggregator pause",
    "aggregator resume",
    "broker watcher",
    "completion",
    "device enrol",
    "device pause",
    "device resume",
    "device revoke",
    "export key",
}
# Arguments, by command, that make it read a missing file.
MISSING = {
    "aggregator pause": "--out nowhere pi-1",
    "aggregator resume": "--out nowhere pi-1",
    "aggregator start": "--config nowhere.toml",
    "aggregator status": "--out nowhere",
    "audit labels": "--config nowhere.toml",
    "bench device": "--plan nowhere",
    "broker vouch": "--security nowhere",
    "compare": "nowhere",
    "data show": "nowhere.npz --html out.html",
    "device detect": "--state nowhere --data x.npz",
    "device enrol": "pi-1 --security nowhere",
    "export fleet": "nowhere",
    "device install": "--enrol nowhere.enrol --data x.npz --state state",
    "device pause": "--state nowhere",
    "device resume": "--state nowhere",
    "device revoke": "pi-1 --security nowhere",
    "device start": "--id pi-1 --data nowhere.npz --state state",
    "device status": "--state nowhere",
    "doctor": "--enrol nowhere.enrol",
    "export": "--state nowhere -o out",
    "export drift": "nowhere nowhere.bin",
    "export profile": "nowhere",
    "export update": "nowhere nowhere --key nowhere.key -o out.bin",
    "export tflite": "nowhere.tflite -o out --target host",
    "export verify": "nowhere",
    "infer": "nowhere.tflite --data nowhere.npz",
    "init": "--yes --data nowhere.npz",
    "monitor": "--enrol nowhere.enrol",
    "personalize": "nowhere --data nowhere.npz",
    "partitions show": "--data npz:nowhere.npz",
    "plan build": "--config nowhere.toml -o out",
    "plan inspect": "nowhere",
    "report": "nowhere",
    "simulate": "nowhere.toml",
    "tune": "nowhere.toml --out out",
    "watch": "--enrol nowhere.enrol",
}
TABLES = [
    "algorithms --json",
    "datasets --json",
    "device boards --json",
    "models --json",
    "partitions --json",
    "partitions show --clients 3 --json",
    "doctor --json",
    "init --yes --input-shape 8 --num-classes 2 --json",
    "device install --broker mqtt://b:1 --id pi-1 --data x.npz --state /var/lib/edgefl --json",
    "broker init keys --host h --json",
]


def walk(
    command: click.Command, arguments: tuple[str, ...] = (), parent: click.Context | None = None
) -> Iterator[tuple[str, click.Context]]:
    context = click.Context(
        command,
        info_name=arguments[-1] if arguments else "edgefl",
        parent=parent,
        terminal_width=WIDTH,
        max_content_width=WIDTH,
    )
    yield " ".join(arguments), context
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            subcommand = command.get_command(context, name)
            assert subcommand is not None
            if subcommand.hidden:  # an old name of a command, which points to the new name
                continue
            yield from walk(subcommand, (*arguments, name), context)


COMMANDS = dict(walk(cli.cli))
LEAVES = [
    name
    for name, context in COMMANDS.items()
    if not isinstance(context.command, click.Group) or context.command.invoke_without_command
][1:]


@pytest.mark.parametrize("name", COMMANDS)
def test_help_fits_and_has_an_example(name: str) -> None:
    text = COMMANDS[name].command.get_help(COMMANDS[name])
    example = re.split(r"Examples?:", text)[-1]
    assert example != text
    assert f"edgefl {name}".rstrip() in " ".join(example.split())
    assert [line for line in text.splitlines() if len(line) > WIDTH] == []


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_has_a_help_text(name: str) -> None:
    options = [
        option
        for option in COMMANDS[name].command.params
        if isinstance(option, click.Option) and not option.hidden
    ]
    assert [
        option.opts[-1] for option in options if not re.sub(r"\[.*?\]", "", option.help or "").strip()
    ] == []


def test_commands_without_json_are_listed() -> None:
    commands = {
        name
        for name in LEAVES
        if not any("--json" in option.opts for option in COMMANDS[name].command.params)
    }
    assert commands == WITHOUT_JSON


@pytest.mark.parametrize("arguments", TABLES)
def test_json_output_has_no_other_text_on_standard_output(
    arguments: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    if "show" in arguments:
        pytest.importorskip("sklearn")
    monkeypatch.chdir(tmp_path)
    with contextlib.suppress(SystemExit):  # doctor exits this way when a check fails
        assert cli.run_command(arguments.split()) == 0
    assert json.loads(capfd.readouterr().out)


@pytest.mark.parametrize("name", LEAVES)
def test_unknown_option_exits_with_2(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run_command([*name.split(), "--no-such-option"]) == 2
    out, err = capsys.readouterr()
    assert (out, "no such option" in err.lower(), "Traceback" in err) == ("", True, False)


def test_every_command_that_reads_files_has_a_missing_file_test() -> None:
    def reads_file(option: click.Parameter) -> bool:
        return isinstance(option.type, click.Path) and not {"--out", "--keep", "--output"} & set(option.opts)

    readers = {name for name in LEAVES if any(reads_file(option) for option in COMMANDS[name].command.params)}
    writers = {
        "broker examples",
        "broker init",
        "broker watcher",
        "device record",
        "bench firmware",
        "dashboard",
        "export key",
        "reproduce",
    }
    assert readers - writers <= set(MISSING)


@pytest.mark.parametrize("name", MISSING)
def test_missing_file_exits_with_1_and_a_message(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    try:
        code = cli.run_command([*name.split(), *MISSING[name].split()])
    except SystemExit as ended:
        code = int(ended.code or 0)
    out, err = capsys.readouterr()
    assert code == 1, err
    assert "Traceback" not in err
    assert "nowhere" in out + err or name == "device status"
    assert name == "device status" or out == ""


@pytest.mark.parametrize(
    "arguments", ["", "--help", "algorithms", "models --json", "doctor", "completion bash"]
)
def test_full_disk_on_standard_output_gives_one_error_line(arguments: str) -> None:
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-m", "edgefl", *arguments.split()]
        ran = subprocess.run(
            command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=120, check=False
        )
    assert (ran.returncode, ran.stderr) == (
        1,
        "edgefl: No space left on device; free some space, or write to another disk\n",
    )


@pytest.fixture
def full_disk(tmp_path: Path) -> Iterator[Path]:
    """Mount a full file system of 16 KB."""
    folder = tmp_path / "full"
    folder.mkdir()
    if (
        os.geteuid()
        or subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=16k", "tmpfs", folder], check=False, capture_output=True
        ).returncode
    ):
        pytest.skip("mounting a full disk needs root")
    try:
        with contextlib.suppress(OSError):
            (folder / "fill").write_bytes(bytes(16384))
        yield folder
    finally:
        subprocess.run(["umount", folder], check=True)


@pytest.mark.parametrize(
    "arguments",
    [
        "init --yes --input-shape 8 --num-classes 2 FULL/x.toml",
        "broker init FULL/b --host h",
        "export key FULL/k/k",
        "partitions show --clients 3 --out FULL/x.png",
        "demo --out FULL/d",
    ],
)
def test_full_disk_error_names_file_and_remedy(
    arguments: str, full_disk: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("sklearn")
    assert cli.run_command([argument.replace("FULL", str(full_disk)) for argument in arguments.split()]) == 1
    err = capsys.readouterr().err
    assert "Traceback" not in err
    assert str(full_disk) in err
    assert re.search(r"free some|another (path|place|disk|directory)", err), err


@pytest.mark.parametrize("environment", [{"NO_COLOR": "1"}, {"TERM": "dumb"}, {}])
def test_colours_are_off_with_no_color_or_dumb_terminal(
    environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for key in ("NO_COLOR", "TERM"):
        monkeypatch.delenv(key, raising=False)
    for key, value in environment.items():
        monkeypatch.setenv(key, value)
    seen = []
    monkeypatch.setattr(cli.cli, "main", lambda *_, **options: seen.append(options["color"]))
    cli.run_command(["doctor"])
    assert seen == [False if environment else None]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 0)])
def test_stopped_service_exits_with_the_expected_code(number: int, code: int, tmp_path: Path) -> None:
    """Ctrl-C reaches all processes of a terminal, and the exit code is 130.

    SIGTERM is not a failure, because a service manager uses it to stop a service.
    """
    (tmp_path / "federation.toml").write_text("")
    port = choose_port()
    with mosquitto(port):  # the aggregator connects before it compiles the plan
        command = [
            sys.executable,
            "-m",
            "edgefl",
            "aggregator",
            "start",
            "--broker",
            f"mqtt://127.0.0.1:{port}",
        ]
        process = subprocess.Popen(
            command, cwd=tmp_path, stderr=subprocess.PIPE, text=True, start_new_session=True
        )
        assert process.stderr is not None
        assert "building the plan" in process.stderr.readline()
        os.killpg(process.pid, number)
        output = process.stderr.read()
        assert (process.wait(60), "Traceback" in output) == (code, False), output
    assert "stopped\n" in output
