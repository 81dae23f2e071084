"""What a newcomer types, typed: the commands of two pages, with real processes, in a directory of their own."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from mqtt_broker.embedded import find_mosquitto, free_port

DOCS = Path(__file__).parents[1] / "docs"
FENCE = re.compile(r"^```(\w+)\n(.*?)^```", re.DOTALL | re.MULTILINE)
DEADLINE_S = 600


def blocks(page: str, language: str) -> list[str]:
    return [body for found, body in FENCE.findall((DOCS / page).read_text()) if found == language]


class Desk:
    """A directory in which commands are typed. `replaced`: what stands in them for something else here, such as a port."""

    def __init__(self, directory: Path, replaced: dict[str, str]) -> None:
        self.directory, self._replaced = directory, replaced
        self._running: list[subprocess.Popen[str]] = []

    def _words(self, line: str) -> list[str]:
        for text, other in self._replaced.items():
            line = line.replace(text, other)
        program, *words = shlex.split(line)
        return [sys.executable, *words] if program == "python" else [sys.executable, "-m", program, *words]

    def start(self, line: str) -> "subprocess.Popen[str]":
        log = (self.directory / f"terminal-{len(self._running)}").open("w")
        with log:
            begun = subprocess.Popen(
                self._words(line), cwd=self.directory, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, text=True,
                env={**os.environ, "PYTHONUNBUFFERED": "1"},
            )  # fmt: skip
        self._running.append(begun)
        return begun

    def said(self) -> str:
        return "\n".join(path.read_text() for path in sorted(self.directory.glob("terminal-*")))

    def run(self, line: str) -> str:
        done = subprocess.run(self._words(line), cwd=self.directory, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
        assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"
        return done.stdout

    def close(self) -> None:
        for each in self._running:
            if each.poll() is None:
                each.terminate()
        for each in self._running:
            try:
                each.wait(20)
            except subprocess.TimeoutExpired:
                each.kill()
                each.wait()


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    pytest.importorskip("tensorflow")
    made = Desk(tmp_path, {"1883": str(free_port())})
    yield made
    made.close()


@pytest.mark.timeout(3 * DEADLINE_S)
def test_two_boards(desk: Desk) -> None:
    if find_mosquitto() is None:
        pytest.importorskip("amqtt")
    page = "tutorial/two-boards.md"
    (script,), (config,) = blocks(page, "python"), blocks(page, "toml")
    deal, broker, aggregator, one, two, look = blocks(page, "sh")
    (desk.directory / "deal.py").write_text(script)
    (desk.directory / "federation.toml").write_text(config)
    desk.run(deal.strip())
    desk.start(broker.strip())
    leader = desk.start(aggregator.strip())
    devices = [desk.start(each.strip()) for each in (one, two)]
    for each in (leader, *devices):
        assert each.wait(DEADLINE_S) == 0, desk.said()
    rows = json.loads((desk.directory / "kitchen" / "result.json").read_text())["clients"]
    assert [row["id"] for row in rows] == ["pi-1", "pi-2"]
    assert {"accuracy_federated", "accuracy_mixture", "accuracy_mixture_int8", "accuracy_local"} <= rows[0].keys()
    assert min(row["accuracy_mixture_int8"] for row in rows) > 0.8, rows
    infer, export = look.strip().splitlines()
    desk.run(infer)
    if shutil.which("cc") is None:
        pytest.skip("no C compiler for the last line")
    desk.run(export)
    assert (desk.directory / "exported" / "c" / "model.h").exists()


@pytest.mark.timeout(3 * DEADLINE_S)
def test_two_runs_side_by_side(desk: Desk) -> None:
    config, lines = blocks("how-to/measure.md", "toml")[0], blocks("how-to/measure.md", "sh")[0]
    (desk.directory / "few.toml").write_text(config)
    *_, as_json = [desk.run(line) for line in lines.strip().splitlines()]
    assert sorted(json.loads(as_json)) == ["one", "two"]
    assert {"run.json", "rounds.jsonl", "summary.json"} <= {path.name for path in (desk.directory / "runs" / "one").iterdir()}
