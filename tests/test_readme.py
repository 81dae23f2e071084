"""What the README promises a newcomer, in real processes: its five commands end in two personal int8
models.
"""

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from edgefl.demo.processes import Children

README = (Path(__file__).parents[1] / "README.md").read_text()
LIMIT_S = 240


def block(language: str, has: str) -> str:
    return next(
        body
        for body in re.findall(rf"^```{language}\n(.*?)^```", README, re.DOTALL | re.MULTILINE)
        if has in body
    )


def edgefl(*arguments: str, cwd: Path, answers: str = "") -> str:
    command = [sys.executable, "-m", "edgefl", *arguments]
    ran = subprocess.run(
        command, cwd=cwd, input=answers, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def test_five_commands_lead_to_two_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("tensorflow")
    monkeypatch.chdir(tmp_path)
    for line in block("sh", "edgefl data split").splitlines():
        edgefl(*shlex.split(line)[1:], cwd=tmp_path)
    assert "class 0, row" in (tmp_path / "data.html").read_text()
    lines = block("sh", "edgefl init").splitlines()
    assert len(lines) == 5
    init, broker, aggregator, *devices = (shlex.split(line)[1:] for line in lines)
    with Children(tmp_path / "logs", lambda line: None) as children:
        # as the README says it, but for a port of its own and three rounds in place of twenty
        process, said = children.start("broker", *broker, "--port", "0", "--json")
        url = json.loads(children.wait_for_line(process, said, "mqtt://", 60))["url"]
        told = edgefl(*init, "--broker", url, "--rounds", "3", cwd=tmp_path, answers="\n\n\n")
        assert [line.split() for line in told.splitlines() if "edgefl device start" in line] == [
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
    infer = next(line for line in block("sh", "edgefl infer").splitlines() if "infer" in line)
    answer = re.search(r"accuracy (0\.\d+)", edgefl(*shlex.split(infer, comments=True)[1:], cwd=tmp_path))
    assert answer is not None
    assert float(answer[1]) > 0.8  # real digits, though three rounds only: twenty give 0.98


def test_the_readme_is_short() -> None:
    assert len(README.splitlines()) <= 94
