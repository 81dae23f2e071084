"""Progress: bars and clocks on a terminal, plain lines elsewhere, nothing on standard output."""

import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest

from edgefl.base.system.format import format_duration
from edgefl.base.system.progress import Progress, draw_progress_bar

PROGRAM = """
import sys, threading
from edgefl.base.system.progress import Progress
with Progress() as progress:
    progress("begun")
    progress.update("round 1/4: loss 2", 1, 4)
    threading.Event().wait(float(sys.argv[1]))
    progress.update("round 4/4: loss 1", 4, 4)
    progress("over")
print("result")
"""


def test_progress_bars_and_durations_are_formatted() -> None:
    assert draw_progress_bar(1, 4) == "[#####---------------] "
    assert draw_progress_bar(4, 4) == draw_progress_bar(9, 4) == f"[{'#' * 20}] "
    assert draw_progress_bar(0, 0) == ""
    assert [format_duration(s) for s in (8.4, 99, 180, 7500)] == ["8 s", "99 s", "3 min", "2 h 05 min"]


def test_output_without_a_terminal_is_plain_lines(capfd: pytest.CaptureFixture[str]) -> None:
    completed = subprocess.run(
        [sys.executable, "-c", PROGRAM, "0"], capture_output=True, text=True, timeout=60, check=True
    )
    assert completed.stdout == "result\n"
    assert completed.stderr == "begun\nround 1/4: loss 2\nround 4/4: loss 1\nover\n"


def test_progress_lines_are_limited_by_the_interval(capsys: pytest.CaptureFixture[str]) -> None:
    with Progress(interval_s=3600) as progress:
        for number in range(1, 1001):
            progress.update(f"round {number}", number, 1000)
            progress.update_live("never in a line")
    assert capsys.readouterr().err == "round 1\nround 1000\n"


def run_on_terminal(term: str, **env: str) -> str:
    master, terminal = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, "1.5"],
        stdin=terminal,
        stdout=subprocess.DEVNULL,
        stderr=terminal,
        env={**os.environ, "TERM": term, **env},
    )
    os.close(terminal)
    output = b""
    try:
        while part := os.read(master, 4096):
            output += part
    except OSError:  # Linux raises it at the end of the stream
        pass
    assert process.wait(60) == 0
    os.close(master)
    return output.decode()


def test_terminal_shows_a_bar_and_clears_it_at_the_end() -> None:
    output = run_on_terminal("xterm", NO_COLOR="1")
    assert "\r\x1b[K[#####---------------] round 1/4: loss 2, " in output
    assert output.startswith("begun\r\n")
    # The clearing code removes everything before it on its line. A live line may follow the last line.
    assert re.sub(r"[^\n]*\r\x1b\[K", "", output) == "begun\r\nover\r\n"
    assert "\x1b[3" not in output


def test_a_dumb_terminal_gets_lines() -> None:
    assert run_on_terminal("dumb") == "begun\r\nround 1/4: loss 2\r\nround 4/4: loss 1\r\nover\r\n"


def test_library_output_is_suppressed_but_the_bar_is_not(tmp_path: Path) -> None:
    code = """
import os, threading
from edgefl.base.system.stderr import suppress_stderr
from edgefl.base.system.progress import Progress
with Progress() as progress, suppress_stderr():
    progress.update_live("compiling")
    os.write(2, b"noise")
    threading.Event().wait(2)
    progress.update_live("compiling: head")
    threading.Event().wait(1.5)
"""
    master, terminal = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", code], stderr=terminal, env={**os.environ, "TERM": "xterm", "EDGEFL_DEBUG": ""}
    )
    os.close(terminal)
    output = b""
    try:
        while part := os.read(master, 4096):
            output += part
    except OSError:
        pass
    assert process.wait(60) == 0
    os.close(master)
    assert b"noise" not in output
    assert b"compiling, " in output
    # The clock goes on, because the text before the colon is the same.
    assert re.search(rb"compiling: head, ([2-9]|\d\d) s", output)
