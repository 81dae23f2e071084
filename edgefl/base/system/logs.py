"""Shows log records of edgefl as lines: text for users and the systemd journal, JSON for log collectors.

Services log with loggers such as `logging.getLogger("edgefl.device")`, and pass fields such as the round as
`extra`. A program that runs a service itself can configure `logging` without this module.
"""

import json
import logging
import math
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import click

LOG_LEVELS = ("debug", "info", "warning", "error")
LOG_FORMATS = ("text", "json")
_STANDARD_ATTRIBUTES = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
_SYSLOG_PRIORITIES = ((logging.ERROR, 3), (logging.WARNING, 4), (logging.INFO, 6))
_SYSLOG_DEBUG = 7


@dataclass(frozen=True, slots=True)
class LogOptions:
    """The values of `--log-level` and `--log-format`.

    Attributes:
        level: one of `LOG_LEVELS`. Records below it are dropped.
        log_format: one of `LOG_FORMATS`.
    """

    level: str = "info"
    log_format: str = "text"


def add_log_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--log-level` and `--log-format` to a command. It receives `log_level` and `log_format`."""
    level = click.option(
        "--log-level",
        type=click.Choice(LOG_LEVELS),
        default="info",
        show_default=True,
        help="Log only records of this level and above.",
    )
    log_format = click.option(
        "--log-format",
        type=click.Choice(LOG_FORMATS),
        default="text",
        show_default=True,
        help="Format of the log on stderr. json: one object per line, with fields such as round.",
    )
    return level(log_format(command))


class TextFormatter(logging.Formatter):
    """Formats a record as its message. All levels but `info` come first, as in `warning: ...`."""

    def format(self, record: logging.LogRecord) -> str:
        """Return one record as a line."""
        level = "" if record.levelno == logging.INFO else f"{record.levelname.lower()}: "
        return f"{level}{record.getMessage()}"


class JournalFormatter(TextFormatter):
    """Adds the priority prefix of sd-daemon(3), so that `journalctl -p warning` selects by level."""

    def format(self, record: logging.LogRecord) -> str:
        """Return one record as a line."""
        return format_journal_line(record.levelno, super().format(record))


class JsonFormatter(logging.Formatter):
    """Formats a record as a JSON object: time, level, logger, message and the fields of the record.

    Args:
        fields: fields that are added to every record, such as the client id.
    """

    def __init__(self, fields: Mapping[str, object]) -> None:
        super().__init__()
        self._fields = dict(fields)

    def format(self, record: logging.LogRecord) -> str:
        """Return one record as a line."""
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        extra = {
            name: value
            for name, value in vars(record).items()
            if name not in _STANDARD_ATTRIBUTES
            and not name.startswith("_")  # set by other libraries, such as Ray
        }
        content = {
            "time": time,
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **self._fields,
            **extra,
        }
        return json.dumps(_replace_nonfinite(content), default=str)


def _replace_nonfinite(value: object) -> object:
    """Return a value with None in place of NaN and infinity, which JSON cannot represent."""
    if isinstance(value, Mapping):
        return {name: _replace_nonfinite(item) for name, item in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value


def format_journal_line(level: int, line: str) -> str:
    """Return a line with the priority prefix that the systemd journal reads.

    Args:
        level: a level of `logging`, such as `logging.INFO`.
        line: the line without a prefix.

    Source:
        sd-daemon(3).
    """
    priorities = (priority for lowest, priority in _SYSLOG_PRIORITIES if level >= lowest)
    return f"<{next(priorities, _SYSLOG_DEBUG)}>{line}"


def is_journal() -> bool:
    """Return whether stderr is connected to the systemd journal.

    Source:
        systemd.exec(5), JOURNAL_STREAM: the device and inode numbers of the stream.
    """
    stream = os.environ.get("JOURNAL_STREAM", "")
    try:
        status = os.fstat(sys.stderr.fileno())
    except (OSError, ValueError):
        return False
    return stream == f"{status.st_dev}:{status.st_ino}"


@contextmanager
def show_logs(
    show: Callable[[str], None],
    options: LogOptions,
    fields: Mapping[str, object] | None = None,
) -> Iterator[None]:
    """Show the log records of edgefl while this context is open.

    Args:
        show: prints one line. It is called from any thread.
        options: which records to show, and their format.
        fields: fields that are added to every JSON record.
    """
    handler = _LinePrinter(show)
    if options.log_format == "json":
        handler.setFormatter(JsonFormatter(fields or {}))
    else:
        handler.setFormatter(JournalFormatter() if is_journal() else TextFormatter())
    logger = logging.getLogger("edgefl")
    level = logger.level
    logger.setLevel(options.level.upper())
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)


class _LinePrinter(logging.Handler):
    def __init__(self, show: Callable[[str], None]) -> None:
        super().__init__()
        self._show = show

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._show(self.format(record))
        except Exception:
            self.handleError(record)
