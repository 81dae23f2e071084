"""Shows the progress of a long command on stderr: permanent lines and, on a terminal, one live line.

Standard output contains only the result. There is no live line if stderr is not a terminal, or a terminal
that cannot redraw (TERM=dumb).
"""

import os
import shutil
import sys
import threading
import time
from collections.abc import Mapping
from typing import IO, Self

import click

from edgefl.base.system.format import escape_unprintable, format_duration
from edgefl.base.system.logs import LogOptions, show_logs

BAR_WIDTH = 20
REDRAW_INTERVAL_S = 0.5
PLAIN_INTERVAL_S = 2.0
QUIET_BEFORE_DRAW_S = 1.0
WARNINGS_ONLY = LogOptions("warning")


def is_live() -> bool:
    """Return whether stderr is a terminal that can redraw a line."""
    return sys.stderr.isatty() and os.environ.get("TERM", "dumb") != "dumb"


def draw_progress_bar(done: int, total: int) -> str:
    """Return a progress bar such as `[#####-----] `, or an empty string if `total` is 0.

    Args:
        done: number of finished units.
        total: number of all units. 0 if it is unknown.
    """
    filled = BAR_WIDTH * min(done, total) // total if total else 0
    return f"[{'#' * filled}{'-' * (BAR_WIDTH - filled)}] " if total else ""


class Progress:
    """Shows progress while its context is open.

    Call it with a line to print the line. Log records of edgefl are printed as lines, too. `update` and
    `update_live` set the text of the live line.

    The live line is the last line of a terminal. It shows the current work, a bar if the total is known, and
    the seconds since the last line. It is removed when the context ends.

    Args:
        interval_s: minimum seconds between two progress lines if there is no live line.
        log: which log records are shown, and how.
        log_fields: fields that are added to every JSON record.
    """

    def __init__(
        self,
        interval_s: float = PLAIN_INTERVAL_S,
        log: LogOptions = WARNINGS_ONLY,
        log_fields: Mapping[str, object] | None = None,
    ) -> None:
        self._logs = show_logs(self, log, log_fields or {})
        self._interval_s = interval_s
        self._text = ""
        self._done = 0
        self._total = 0
        self._quiet_since = time.monotonic()
        self._printed_at = -interval_s
        self._drawn = False
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._stream: IO[str] | None = None

    def __enter__(self) -> Self:
        if is_live():
            # A copy, because `edgefl.base.system.stderr` redirects the original descriptor
            self._stream = os.fdopen(os.dup(sys.stderr.fileno()), "w", errors="replace")
            self._thread = threading.Thread(target=self._redraw_periodically, daemon=True)
            self._thread.start()
        self._logs.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._logs.__exit__(None, None, None)
        if self._stream is not None:
            self._ended.set()
            self._thread.join()
            with self._lock, self._stream:
                self._clear()
                self._stream.flush()
            self._stream = None

    def __call__(self, line: str) -> None:
        """Print a permanent line.

        Line breaks are escaped, so that a message from the network cannot forge a second line.
        """
        line = escape_unprintable(line)
        with self._lock:
            self._quiet_since = time.monotonic()
            if self._stream is None:
                click.echo(line, err=True)
                return
            self._clear()
            self._stream.write(f"{line}\n")
            self._stream.flush()

    def update(self, text: str, done: int = 0, total: int = 0) -> None:
        """Show the current work and how much of it is done.

        Without a live line, this prints a line at most every `interval_s` seconds.

        Args:
            text: the current work.
            done: finished units of work.
            total: all units of work. 0 shows no bar and always prints a line.
        """
        self.update_live(text, done, total)
        now = time.monotonic()
        if self._stream is None and (
            not total or done >= total or now - self._printed_at >= self._interval_s
        ):
            self._printed_at = now
            self(text)

    def update_live(self, text: str, done: int = 0, total: int = 0) -> None:
        """Show the current work in the live line only, because permanent lines already report it.

        Args:
            text: the current work.
            done: finished units of work.
            total: all units of work. 0 shows no bar.
        """
        text = escape_unprintable(text)
        with self._lock:
            if text.partition(":")[0] != self._text.partition(":")[0]:
                self._quiet_since = time.monotonic()
            self._text = text
            self._done = done
            self._total = total

    def _redraw_periodically(self) -> None:
        while not self._ended.wait(REDRAW_INTERVAL_S):
            with self._lock:
                self._draw()

    def _draw(self) -> None:
        quiet_s = time.monotonic() - self._quiet_since
        if self._stream is None or (quiet_s < QUIET_BEFORE_DRAW_S and not self._total):
            return
        bar = draw_progress_bar(self._done, self._total)
        separator = ", " if self._text else ""
        line = f"{bar}{self._text}{separator}{format_duration(quiet_s)}"
        self._stream.write(f"\r\x1b[K{line[: shutil.get_terminal_size().columns - 1]}")
        self._stream.flush()
        self._drawn = True

    def _clear(self) -> None:
        if self._drawn and self._stream is not None:
            self._stream.write("\r\x1b[K")
            self._drawn = False
