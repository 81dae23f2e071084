"""Commands of the documentation, typed: in a shell, in a directory of their own, with real processes."""

import importlib.util
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]
DEADLINE_S = 120
FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.DOTALL | re.MULTILINE)
SHELLS = {"sh", "bash", "shell", "console", "zsh"}
JQ = shutil.which("jq")
# An indented line is a command when it begins with one of these.
PROGRAMS = {
    ".", "apt-get", "cmake", "docker", "edgefl", "git", "jq", "make", "mosquitto", "mosquitto_sub", "nats-server", "pip", "python",
    "python3", "scp", "ssh", "sudo", "systemctl",
}  # fmt: skip


def load(name: str) -> ModuleType:
    """Return a module that lies beside this file."""
    key = f"edgefl_tests_typed_{name}"
    if key not in sys.modules:
        spec = importlib.util.spec_from_file_location(key, Path(__file__).with_name(f"{name}.py"))
        assert spec is not None and spec.loader is not None
        sys.modules[key] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[key])
    return sys.modules[key]


NOT_HERE: dict[str, dict[str, str]] = load("not_here").NOT_HERE


def joined(text: str) -> list[str]:
    """Return the commands of a shell's text: what a backslash or a loop spreads over lines is one."""
    found: list[str] = []
    for line in text.replace("\\\n", " ").splitlines():
        if found and found[-1].startswith("for ") and not found[-1].endswith("done") and "; done" not in found[-1]:
            found[-1] += "\n" + line
        elif line.strip() and not line.strip().startswith("#"):
            found.append(re.sub(r"  +", " ", line.strip()))
    return found


def commands(text: str) -> list[str]:
    """Return the shell commands of a page, those of fences before those of indented blocks."""
    fenced = [command for kind, body in FENCE.findall(text) if kind in SHELLS for command in joined(body)]
    indented = re.findall(r"^(?: {4}.*\n?)+", FENCE.sub("", text), re.MULTILINE)
    return fenced + [command for body in indented for command in joined(body) if command.split()[0] in PROGRAMS]


class Page:
    """A page of the documentation: its commands, of which a test takes one after the other."""

    def __init__(self, name: str) -> None:
        self.name, self.text = name, (ROOT / name).read_text()
        self.left = commands(self.text)

    def take(self, start: str) -> str:
        """Return the next command that begins so."""
        found = next((line for line in self.left if line.startswith(start)), None)
        assert found is not None, f"{self.name} has no further command {start!r}; left are {self.left}"
        self.left.remove(found)
        return found

    def blocks(self, language: str) -> list[str]:
        return [body for found, body in FENCE.findall(self.text) if found == language]

    @property
    def listed(self) -> dict[str, str]:
        """What not_here.py says of this page."""
        return NOT_HERE.get(self.name, {})

    def slipped(self) -> list[str]:
        """Return the commands that no test took and that not_here.py does not list."""
        return [line for line in self.left if not any(line.startswith(start) for start in self.listed)]


class Running:
    """A command that runs, and what it said so far."""

    def __init__(self, line: str, directory: Path, environment: dict[str, str]) -> None:
        self.line, self.said, self._changed = line, "", threading.Condition()
        self.process = subprocess.Popen(
            ["bash", "-c", f"exec {line}"], cwd=directory, env=environment, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
        )  # fmt: skip
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

    def reload(self) -> None:
        """Have a mosquitto read its lists anew, as `systemctl reload` does."""
        self.process.send_signal(signal.SIGHUP)
        self.until("Reloading config")

    def stop(self) -> str:
        """End it as a service is ended, which is no error."""
        self.process.send_signal(signal.SIGTERM)
        return self.ended()

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                os.killpg(self.process.pid, signal.SIGKILL)
                self.process.wait()
        self._reader.join(20)
        assert self.process.stdout is not None
        self.process.stdout.close()


class Desk:
    """A directory in which commands are typed. `instead`: what stands in them for something else here, such as a port."""

    def __init__(self, directory: Path) -> None:
        self.root, self.directory, self.instead, self._running = ROOT, directory / "desk", dict[str, str](), list[Running]()
        self.directory.mkdir()
        programs = directory / "bin"
        programs.mkdir()
        for name, words in {"edgefl": "-m edgefl", "python": "", "python3": ""}.items():
            (programs / name).write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} {words} "$@"\n')
            (programs / name).chmod(0o755)
        self.environment = {
            **os.environ, "PATH": f"{programs}:{os.environ['PATH']}:/usr/sbin", "PYTHONUNBUFFERED": "1", "HOME": str(directory),
        }  # fmt: skip

    def __truediv__(self, name: str) -> Path:
        return self.directory / name

    def typed(self, line: str, instead: dict[str, str] | None = None) -> str:
        for text, other in {**self.instead, **(instead or {})}.items():
            line = line.replace(text, other)
        return line if JQ else line.partition(" | jq")[0]

    def run(self, line: str, instead: dict[str, str] | None = None, code: int = 0) -> str:
        """Type a command and wait for its end; return its standard output. What is in `instead` must be in the line."""
        assert all(text in line for text in instead or {}), f"{line} has none of {instead}"
        done = subprocess.run(
            ["bash", "-o", "pipefail", "-c", self.typed(line, instead)], cwd=self.directory, env=self.environment,
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=DEADLINE_S, check=False,
        )  # fmt: skip
        assert done.returncode == code, f"{self.typed(line, instead)}\nexpected {code}, got {done.returncode}\n{done.stdout}{done.stderr}"
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
        self.instead |= {f"{host}:1883": url.removeprefix("mqtt://") for host in ("192.168.1.10", "localhost")}
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
def read() -> Callable[[str], Page]:
    """Read a page, of which nothing is to be typed."""
    return Page


@pytest.fixture
def page() -> Iterator[Callable[[str], Page]]:
    """Open pages; at the end every command of them was taken, or not_here.py says why it was not."""
    opened: list[Page] = []

    def open_page(name: str) -> Page:
        opened.append(Page(name))
        return opened[-1]

    yield open_page
    for each in opened:
        assert not each.slipped(), f"{each.name}: neither typed nor in not_here.py: {each.slipped()}"
