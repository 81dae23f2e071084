"""What a long command tells of itself on stderr: lines that stay, and on a terminal one that follows what is
being done.

Standard output is the result's alone. Where stderr is no terminal, or one that cannot redraw (TERM=dumb),
there are plain lines only.
"""

import os
import shutil
import sys
import threading
import time
from collections.abc import Mapping
from typing import IO, Self

import click

from edgefl.system.format import escape_unprintable, format_duration
from edgefl.system.logs import LogOptions, show_logs

BAR_WIDTH = 20
REDRAW_INTERVAL_S = 0.5
PLAIN_INTERVAL_S = 2.0
QUIET_BEFORE_DRAW_S = 1.0
WARNINGS_ONLY = LogOptions("warning")


def is_live() -> bool:
    """Return whether a line of stderr can be drawn again."""
    return sys.stderr.isatty() and os.environ.get("TERM", "dumb") != "dumb"


def draw_progress_bar(done: int, total: int) -> str:
    """Return `[#####-----] `, or an empty string without a total."""
    filled = BAR_WIDTH * min(done, total) // total if total else 0
    return f"[{'#' * filled}{'-' * (BAR_WIDTH - filled)}] " if total else ""


class Progress:
    """`telling(line)` tells a line. The log records of edgefl are shown as lines, too.

    `telling.doing(text, done, total)` what is being done; a context, at whose end nothing is left.

    On a terminal the last line shows what is being done, a bar where there is a total, and for how long
    nothing was told.

    Args:
        every_s: shortest time between two lines of progress where a line cannot be drawn again.
        log: which log records are shown, and how.
        log_fields: fields that are added to every record in JSON.
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
            # a copy, for `edgefl.system.stderr` sends what libraries write elsewhere, and this is not theirs
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
        """Print a line that stays, as one line: a message from the network cannot forge a second one."""
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
        """Say what is being done, and how much of it is done.

        Where it cannot be drawn again, a line every two seconds at most.
        """
        self.update_live(text, done, total)
        now = time.monotonic()
        if self._stream is None and (
            not total or done >= total or now - self._printed_at >= self._interval_s
        ):
            self._printed_at = now
            self(text)

    def update_live(self, text: str, done: int = 0, total: int = 0) -> None:
        """Say what is being done where it can be drawn again, and nowhere else: the lines that are told say
        it too.
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
