"""Commands of the documentation, typed: in a shell, in a directory of their own, with real processes."""

import contextlib
import importlib.util
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]
DEADLINE_S = 120
JQ = shutil.which("jq")


def load(name: str) -> ModuleType:
    """Return a module that lies beside this file."""
    key = f"edgefl_tests_typed_{name}"
    if key not in sys.modules:
        spec = importlib.util.spec_from_file_location(key, Path(__file__).with_name(f"{name}.py"))
        assert spec is not None and spec.loader is not None
        sys.modules[key] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[key])
    return sys.modules[key]


pages = load("pages")
NOT_HERE: dict[str, dict[str, str]] = load("not_here").NOT_HERE


class Running:
    """A command that runs, and what it said so far."""

    def __init__(self, line: str, directory: Path, environment: dict[str, str]) -> None:
        self.line = line
        self.said = ""
        self._changed = threading.Condition()
        self.process = subprocess.Popen(
            ["bash", "-c", f"exec {line}"],
            cwd=directory,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._changed:
                self.said += line
                self._changed.notify_all()
        self.process.wait()
        with self._changed:
            self._changed.notify_all()

    def until(self, text: str) -> None:
        """Wait until it has said so."""
        with self._changed:
            self._changed.wait_for(lambda: text in self.said or self.process.poll() is not None, DEADLINE_S)
        self._reader.join(5 if self.process.poll() is not None else 0)
        assert text in self.said, f"{self.line}\nexpected it to say {text!r}; it said\n{self.said}"

    def ended(self, code: int = 0) -> str:
        """Wait for its end; return what it said."""
        assert self.process.wait(DEADLINE_S) == code, f"{self.line}\n{self.said}"
        self._reader.join(20)
        return self.said

    def stop(self) -> str:
        """End it as a service is ended, which is no error."""
        self.process.send_signal(signal.SIGTERM)
        return self.ended()

    def close(self) -> None:
        """End it and all that it started."""
        for signal_number in (signal.SIGTERM, signal.SIGKILL):
            if self.process.poll() is None:
                os.killpg(self.process.pid, signal_number)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self.process.wait(20)
        self._reader.join(20)
        assert self.process.stdout is not None
        self.process.stdout.close()


class Desk:
    """A directory in which commands are typed. `instead`: what stands in them for something else here, such
    as a port.
    """

    def __init__(self, directory: Path) -> None:
        self.root = ROOT
        self.directory = directory / "desk"
        self.instead = dict[str, str]()
        self._running = list[Running]()
        self.directory.mkdir()
        programs = directory / "bin"
        programs.mkdir()
        for name, words in {"edgefl": "-m edgefl", "python": "", "python3": ""}.items():
            (programs / name).write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} {words} "$@"\n')
            (programs / name).chmod(0o755)
        self.environment = {
            **os.environ,
            "PATH": f"{programs}:{os.environ['PATH']}:/usr/sbin",
            "PYTHONUNBUFFERED": "1",
            "HOME": str(directory),
        }

    def __truediv__(self, name: str) -> Path:
        return self.directory / name

    def typed(self, line: str, instead: dict[str, str] | None = None) -> str:
        for text, other in {**self.instead, **(instead or {})}.items():
            line = line.replace(text, other)
        return line if JQ else line.partition(" | jq")[0]

    def run(self, line: str, instead: dict[str, str] | None = None, code: int = 0) -> str:
        """Type a command and wait for its end; return its standard output. What is in `instead` must be in
        the line.
        """
        assert all(text in line for text in instead or {}), f"{line} has none of {instead}"
        done = subprocess.run(
            ["bash", "-o", "pipefail", "-c", self.typed(line, instead)],
            cwd=self.directory,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            check=False,
        )
        assert done.returncode == code, (
            f"{self.typed(line, instead)}\nexpected {code}, got {done.returncode}\n{done.stdout}{done.stderr}"
        )
        assert "Traceback" not in done.stderr, done.stderr
        return done.stdout

    def start(self, line: str, instead: dict[str, str] | None = None) -> Running:
        """Type a command into a terminal of its own."""
        assert all(text in line for text in instead or {}), f"{line} has none of {instead}"
        self._running.append(Running(self.typed(line, instead), self.directory, self.environment))
        return self._running[-1]

    def deal(self, *names: str) -> None:
        """Write the shards of those names: four numbers a sample, three classes."""
        rng = np.random.default_rng(1)
        for name in names:
            y = np.arange(60) % 3
            x = np.eye(3, 4)[y] * 2 + rng.normal(0, 0.5, (60, 4))
            np.savez(self / name, x=x.astype(np.float32), y=y)

    def broker(self) -> str:
        """Start a broker on a free port; it stands for those of the pages."""
        started = self.start("edgefl broker start --port 0 --json")
        started.until("url")
        url = str(json.loads(started.said)["url"])
        self.instead |= {
            f"{host}:1883": url.removeprefix("mqtt://") for host in ("192.168.1.10", "localhost")
        }
        return url

    def close(self) -> None:
        for each in reversed(self._running):
            each.close()


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    if importlib.util.find_spec("tensorflow") is None:
        pytest.skip("TensorFlow is not installed")
    made = Desk(tmp_path)
    yield made
    made.close()


@pytest.fixture
def read() -> Callable[[str], Any]:
    """Read a page, of which nothing is to be typed."""
    return lambda name: pages.Page(name, NOT_HERE.get(name, {}))


PASSED = pytest.StashKey[bool]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.when == "call":
        item.stash[PASSED] = report.passed
    return report


@pytest.fixture
def page(request: pytest.FixtureRequest, read: Callable[[str], Any]) -> Iterator[Callable[[str], Any]]:
    """Open pages; at the end of a test that passed every command of them was taken, or not_here.py says why
    it was not.
    """
    opened = []

    def open_page(name: str) -> Any:
        opened.append(read(name))
        return opened[-1]

    yield open_page
    for each in opened if request.node.stash.get(PASSED, False) else ():
        assert not each.slipped(), f"{each.name}: neither typed nor in not_here.py: {each.slipped()}"
