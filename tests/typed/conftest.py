"""Runs the commands of the documentation in a shell, in an empty directory, with real processes."""

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
DEADLINE_S = 900
JQ = shutil.which("jq")


def load_module(name: str) -> ModuleType:
    """Return a module from the folder of this file."""
    key = f"edgefl_tests_typed_{name}"
    if key not in sys.modules:
        spec = importlib.util.spec_from_file_location(key, Path(__file__).with_name(f"{name}.py"))
        assert spec is not None and spec.loader is not None
        sys.modules[key] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[key])
    return sys.modules[key]


pages = load_module("pages")
digests = load_module("digests")
UNTYPED_COMMANDS: dict[str, dict[str, str]] = load_module("untyped_commands").UNTYPED_COMMANDS


class Running:
    """A running command and its output so far."""

    def __init__(self, line: str, directory: Path, environment: dict[str, str]) -> None:
        self.line = line
        self.output = ""
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
                self.output += line
                self._changed.notify_all()
        self.process.wait()
        with self._changed:
            self._changed.notify_all()

    def wait_for_output(self, text: str) -> None:
        """Wait until the output contains the text."""
        with self._changed:
            self._changed.wait_for(lambda: text in self.output or self.process.poll() is not None, DEADLINE_S)
        self._reader.join(5 if self.process.poll() is not None else 0)
        assert text in self.output, f"{self.line}\nexpected {text!r} in the output\n{self.output}"

    def wait_for_end(self, code: int = 0) -> str:
        """Wait for the end of the command, and return its output."""
        assert self.process.wait(DEADLINE_S) == code, f"{self.line}\n{self.output}"
        self._reader.join(20)
        return self.output

    def stop(self) -> str:
        """Stop the command as a service manager does, which is no error."""
        self.process.send_signal(signal.SIGTERM)
        return self.wait_for_end()

    def close(self) -> None:
        """Stop the command and all processes that it started."""
        for signal_number in (signal.SIGTERM, signal.SIGKILL):
            if self.process.poll() is None:
                os.killpg(self.process.pid, signal_number)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self.process.wait(20)
        self._reader.join(20)
        assert self.process.stdout is not None
        self.process.stdout.close()


class Workspace:
    """A directory in which commands run.

    Attributes:
        replacements: texts to replace in every command, such as a port, and their replacements.
    """

    def __init__(self, directory: Path) -> None:
        self.root = ROOT
        self.directory = directory / "desk"
        self.replacements = dict[str, str]()
        self._commands = list[Running]()
        self.directory.mkdir()
        programs = directory / "bin"
        programs.mkdir()
        for name, arguments in {"edgefl": "-m edgefl", "python": "", "python3": ""}.items():
            (programs / name).write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} {arguments} "$@"\n')
            (programs / name).chmod(0o755)
        self.environment = {
            **os.environ,
            "PATH": f"{programs}:{os.environ['PATH']}:/usr/sbin",
            "PYTHONUNBUFFERED": "1",
            "HOME": str(directory),
        }

    def __truediv__(self, name: str) -> Path:
        return self.directory / name

    def prepare_command(self, line: str, replacements: dict[str, str] | None = None) -> str:
        for text, other in {**self.replacements, **(replacements or {})}.items():
            line = line.replace(text, other)
        return line if JQ else line.partition(" | jq")[0]

    def run(self, line: str, replacements: dict[str, str] | None = None, code: int = 0) -> str:
        """Run a command, and return its standard output. The line must have all keys of `replacements`."""
        assert all(text in line for text in replacements or {}), f"{line} has none of {replacements}"
        done = subprocess.run(
            ["bash", "-o", "pipefail", "-c", self.prepare_command(line, replacements)],
            cwd=self.directory,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            check=False,
        )
        assert done.returncode == code, (
            f"{self.prepare_command(line, replacements)}\nexpected {code}, got {done.returncode}\n"
            f"{done.stdout}{done.stderr}"
        )
        assert "Traceback" not in done.stderr, done.stderr
        return done.stdout

    def start(self, line: str, replacements: dict[str, str] | None = None) -> Running:
        """Start a command in the background."""
        assert all(text in line for text in replacements or {}), f"{line} has none of {replacements}"
        self._commands.append(
            Running(self.prepare_command(line, replacements), self.directory, self.environment)
        )
        return self._commands[-1]

    def write_shards(self, *names: str) -> None:
        """Write shards with these names. A sample has four numbers, and there are three classes."""
        rng = np.random.default_rng(1)
        for name in names:
            y = np.arange(60) % 3
            x = np.eye(3, 4)[y] * 2 + rng.normal(0, 0.5, (60, 4))
            np.savez(self / name, x=x.astype(np.float32), y=y)

    def start_broker(self) -> str:
        """Start a broker on a free port, which replaces the brokers of the pages. Returns its URL."""
        started = self.start("edgefl broker start --port 0 --json")
        started.wait_for_output("url")
        url = str(json.loads(started.output)["url"])
        self.replacements |= {
            f"{host}:1883": url.removeprefix("mqtt://") for host in ("192.168.1.10", "localhost")
        }
        return url

    def close(self) -> None:
        for command in reversed(self._commands):
            command.close()


@pytest.fixture
def workspace(tmp_path: Path) -> Iterator[Workspace]:
    if importlib.util.find_spec("tensorflow") is None:
        pytest.skip("TensorFlow is not installed")
    made = Workspace(tmp_path)
    yield made
    made.close()


@pytest.fixture
def read() -> Callable[[str], Any]:
    """A function that reads a page without checking that its commands are typed."""
    return lambda name: pages.Page(name, UNTYPED_COMMANDS.get(name, {}))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of unchanged pages and commands as slow, before `-m "not slow"` selects."""
    unchanged = digests.list_unchanged()
    for item in items:
        if (
            f"{item.path.name}::{getattr(item, 'originalname', '')}" in unchanged
            and item.path.parent == Path(__file__).parent
        ):
            item.add_marker(pytest.mark.slow)


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
    """A function that opens a page.

    At the end of a passed test, every command of the opened pages must be typed or listed in
    untyped_commands.py.
    """
    opened = []

    def open_page(name: str) -> Any:
        opened.append(read(name))
        return opened[-1]

    yield open_page
    for opened_page in opened if request.node.stash.get(PASSED, False) else ():
        assert not opened_page.list_unlisted(), (
            f"{opened_page.name}: neither typed nor in untyped_commands.py: {opened_page.list_unlisted()}"
        )
