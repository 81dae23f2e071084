"""The five commands of the README, run in real processes, produce two personal int8 models."""

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from edgefl.cli.demo.processes import Children

README = (Path(__file__).parents[1] / "README.md").read_text()
LIMIT_S = 240


def find_block(language: str, text: str) -> str:
    return next(
        body
        for body in re.findall(rf"^```{language}\n(.*?)^```", README, re.DOTALL | re.MULTILINE)
        if text in body
    )


def run_edgefl(*arguments: str, cwd: Path, answers: str = "") -> str:
    command = [sys.executable, "-m", "edgefl", *arguments]
    ran = subprocess.run(
        command, cwd=cwd, input=answers, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def test_five_readme_commands_produce_two_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("tensorflow")
    monkeypatch.chdir(tmp_path)
    for line in find_block("sh", "edgefl data split").splitlines():
        run_edgefl(*shlex.split(line)[1:], cwd=tmp_path)
    assert "class 0, row" in (tmp_path / "data.html").read_text()
    lines = find_block("sh", "edgefl init").splitlines()
    assert len(lines) == 5
    init, broker, aggregator, *devices = (shlex.split(line)[1:] for line in lines)
    with Children(logs=tmp_path / "logs", echo=lambda line: None) as children:
        # The commands of the README, but with a free port and three rounds instead of twenty
        process, lines_of_broker = children.start("broker", *broker, "--port", "0", "--json")
        url = json.loads(children.wait_for_line(process, lines_of_broker, "mqtt://", 60))["url"]
        output = run_edgefl(*init, "--broker", url, "--rounds", "3", cwd=tmp_path, answers="\n\n\n")
        assert [line.split() for line in output.splitlines() if "edgefl device start" in line] == [
            ["edgefl", *device[:2], "--broker", url, *device[2:]] for device in devices
        ]
        started = [children.start("aggregator", *aggregator)[0]]
        started += [
            children.start(f"device{i}", *device, "--broker", url)[0] for i, device in enumerate(devices)
        ]
        for child in started:
            assert child.process.wait(LIMIT_S) == 0, child.read_log_tail()
    for name in ("pi-1", "pi-2"):
        assert (tmp_path / name / "model" / "model.tflite").stat().st_size > 50_000
    infer = next(line for line in find_block("sh", "edgefl infer").splitlines() if "infer" in line)
    answer = re.search(r"accuracy (0\.\d+)", run_edgefl(*shlex.split(infer, comments=True)[1:], cwd=tmp_path))
    assert answer is not None
    assert float(answer[1]) > 0.8  # three rounds on real digits. Twenty rounds reach 0.98


def test_the_readme_is_short() -> None:
    assert len(README.splitlines()) <= 94
