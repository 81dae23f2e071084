"""The processes of the demo. Each is started by the public command line and ended by its process id."""

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

from edgefl.base.errors import EdgeflError, LinkError

GRACE_S = 10.0


@dataclass
class Child:
    """A running command.

    Attributes:
        log: file that receives the output of the command.
        output_thread: copies the output to the log.
    """

    name: str
    process: subprocess.Popen[str]
    log: Path
    output_thread: threading.Thread

    def read_log_tail(self) -> str:
        """Return the last three lines of the log, without the frames of a traceback."""
        self.output_thread.join(2)
        lines = [
            line
            for line in self.log.read_text(errors="replace").splitlines()
            if line.strip() and not line.startswith(" ")
        ]
        return "\n  ".join(lines[-3:]) or "(no output)"


@dataclass
class Children:
    """A group of commands that all end when the context ends.

    Attributes:
        logs: directory for the log files.
        echo: receives the output lines of the commands that are started with `show`.
        command: the program and its first arguments, put before the arguments of each command.
        children: the started commands, in order.
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
        """Start a command.

        It runs in its own session, so that Ctrl-C in the terminal reaches only the demo. The demo then ends
        its children in order.

        Args:
            name: name of the command, for errors and the log file.
            *arguments: arguments after `command`.
            show: pass the output lines to `echo`.

        Returns:
            The child, and a queue that receives its output lines.
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
        child = Child(name=name, process=process, log=path, output_thread=output_thread)
        self.children.append(child)
        output_thread.start()
        return child, lines

    def _copy_output(self, stream: IO[str], log: IO[str], lines: "queue.Queue[str]", show: bool) -> None:
        with contextlib.suppress(OSError), stream, log:
            for line in stream:
                # A full disk must not block the command, which reports the same error itself
                with contextlib.suppress(OSError):
                    log.write(line)
                lines.put(line.rstrip("\n"))
                if show:
                    self.echo(line.rstrip("\n"))

    def check(self, *, ended: tuple[Child, ...] = ()) -> None:
        """Check that no command has ended unexpectedly.

        Args:
            ended: the commands that may have ended without an error.

        Raises:
            EdgeflError: a command has failed, or has ended although it is not in `ended`.
        """
        for child in self.children:
            code = child.process.poll()
            if code not in (None, 0) or (code == 0 and child not in ended):
                raise EdgeflError(
                    f"{child.name} exited with {code}:\n  {child.read_log_tail()}\nits log is {child.log}"
                )

    def wait_for_line(self, child: Child, lines: "queue.Queue[str]", text: str, timeout_s: float) -> str:
        """Wait for a line of output that contains a text, and return the line.

        Args:
            child: the command.
            lines: its output lines, see `start`.
            text: the text to look for.
            timeout_s: seconds to wait.

        Raises:
            EdgeflError: a command ended.
            LinkError: the line did not come in time.
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
        raise LinkError(
            f"{child.name} did not print {text!r} within {timeout_s:.0f} s; its log is {child.log}"
        )

    def end(self) -> None:
        """End all running commands, the last one first.

        Each command gets SIGTERM. After `GRACE_S` seconds the rest of its process group gets SIGKILL.
        """
        for child in reversed(self.children):
            if child.process.poll() is None:
                child.process.send_signal(signal.SIGTERM)
        until = time.monotonic() + GRACE_S
        for child in reversed(self.children):
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.process.wait(max(0.1, until - time.monotonic()))
            # A killed command may have left processes in its group
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.process.pid, signal.SIGKILL)
            child.process.wait()
            child.output_thread.join(GRACE_S)
