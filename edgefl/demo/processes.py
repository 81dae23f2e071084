"""The demo's own processes: each started by the public command line, each ended by its id."""

import contextlib
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Self

from edgefl.errors import EdgeflError, LinkError

GRACE_S = 10.0


@dataclass
class Child:
    """One running command; everything it says goes to its log."""

    name: str
    process: subprocess.Popen[str]
    log: Path
    output_thread: threading.Thread

    def read_log_tail(self) -> str:
        """Return the end of its log, without the frames of a traceback."""
        self.output_thread.join(2)
        lines = [
            line
            for line in self.log.read_text(errors="replace").splitlines()
            if line.strip() and not line.startswith(" ")
        ]
        return "\n  ".join(lines[-3:]) or "(it said nothing)"


@dataclass
class Children:
    """A group of commands that ends as a whole, whatever happened.

    `echo` receives the lines of what is started with `show`; `command` is put before the arguments of all.
    """

    logs: Path
    echo: Callable[[str], None]
    command: tuple[str, ...] = (sys.executable, "-m", "edgefl")
    children: list[Child] = field(default_factory=list)

    def __enter__(self) -> Self:
        self.logs.mkdir(parents=True, exist_ok=True)
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def start(self, name: str, *arguments: str, show: bool = False) -> tuple[Child, "queue.Queue[str]"]:
        """Start `COMMAND ARGUMENTS`; the queue receives its lines.

        It runs in its own session: Ctrl-C in the terminal reaches the demo only, which then ends its children
        in order.
        """
        path = self.logs / f"{name}.log"
        log = path.open("w", buffering=1)
        process = subprocess.Popen(
            [*self.command, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
            start_new_session=True,
        )
        assert process.stdout is not None
        lines: queue.Queue[str] = queue.Queue()
        output_thread = threading.Thread(
            target=self._copy_output, args=(process.stdout, log, lines, show), daemon=True
        )
        child = Child(name, process, path, output_thread)
        self.children.append(child)
        output_thread.start()
        return child, lines

    def _copy_output(self, stream: IO[str], log: IO[str], lines: "queue.Queue[str]", show: bool) -> None:
        with contextlib.suppress(OSError), stream, log:
            for line in stream:
                # A full disk must not block the command: it meets the same error itself
                with contextlib.suppress(OSError):
                    log.write(line)
                lines.put(line.rstrip("\n"))
                if show:
                    self.echo(line.rstrip("\n"))

    def check(self, *, ended: tuple[Child, ...] = ()) -> None:
        """Raise EdgeflError when a command has failed, or ended although it is not among `ended`."""
        for child in self.children:
            code = child.process.poll()
            if code not in (None, 0) or (code == 0 and child not in ended):
                raise EdgeflError(
                    f"{child.name} ended with code {code}:\n  {child.read_log_tail()}\nits log is {child.log}"
                )

    def wait_for_line(self, child: Child, lines: "queue.Queue[str]", text: str, timeout_s: float) -> str:
        """Return the first line that contains `has`.

        An error when the command ends or says nothing in time.
        """
        until = time.monotonic() + timeout_s
        while time.monotonic() < until:
            try:
                line = lines.get(timeout=0.1)
            except queue.Empty:
                self.check()
                continue
            if text in line:
                return line
        raise LinkError(f"{child.name} did not say {text!r} within {timeout_s:.0f} s; its log is {child.log}")

    def end(self) -> None:
        """End all that still run, the last started first: SIGTERM, then SIGKILL to what is left of its
        group.
        """
        for child in reversed(self.children):
            if child.process.poll() is None:
                child.process.send_signal(signal.SIGTERM)
        until = time.monotonic() + GRACE_S
        for child in reversed(self.children):
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.process.wait(max(0.1, until - time.monotonic()))
            # Also what a command that was killed has left behind
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.process.pid, signal.SIGKILL)
            child.process.wait()
            child.output_thread.join(GRACE_S)
