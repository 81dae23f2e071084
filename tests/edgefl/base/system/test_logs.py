"""Log records as lines: text, the systemd journal, and JSON."""

import json
import logging
import math
import os
import subprocess
import sys

import pytest

from edgefl.base.system.logs import (
    JournalFormatter,
    LogOptions,
    TextFormatter,
    format_journal_line,
    show_logs,
)


def make_record(level=logging.INFO, message="round 3: done", **fields):
    made = logging.makeLogRecord({"name": "edgefl.device", "levelno": level, "msg": message, **fields})
    made.levelname = logging.getLevelName(level)
    return made


@pytest.mark.parametrize(
    ("level", "line", "journal"),
    [
        (logging.DEBUG, "debug: round 3: done", "<7>debug: round 3: done"),
        (logging.INFO, "round 3: done", "<6>round 3: done"),
        (logging.WARNING, "warning: round 3: done", "<4>warning: round 3: done"),
        (logging.ERROR, "error: round 3: done", "<3>error: round 3: done"),
    ],
)
def test_text_and_journal_lines_show_the_level(level, line, journal):
    assert TextFormatter().format(make_record(level)) == line
    assert JournalFormatter().format(make_record(level)) == journal


def test_intermediate_level_has_the_priority_of_the_lower_level():
    assert format_journal_line(logging.CRITICAL, "x") == "<3>x"
    assert format_journal_line(logging.WARNING + 1, "x") == "<4>x"
    assert format_journal_line(1, "x") == "<7>x"


def test_json_line_contains_fields_of_record_and_service():
    lines = []
    logger = logging.getLogger("edgefl.device")
    with show_logs(lines.append, LogOptions(log_format="json"), {"client_id": "pi-1"}):
        logger.info(
            'said "100%%"\nand %s',
            "more",
            extra={"round": 3, "metrics": {"loss": 0.5, "gap": math.nan}, "_ns": 7},
        )
    [line] = lines
    content = json.loads(line)
    assert content.pop("time").endswith("+00:00")
    assert content == {
        "level": "info",
        "logger": "edgefl.device",
        "message": 'said "100%"\nand more',
        "client_id": "pi-1",
        "round": 3,
        "metrics": {"loss": 0.5, "gap": None},
    }
    assert "\n" not in line


def test_message_is_not_used_as_a_format_string():
    lines = []
    with show_logs(lines.append, LogOptions()):
        logging.getLogger("edgefl.device").warning("ignored: %s %d {} from a client")
    assert lines == ["warning: ignored: %s %d {} from a client"]


@pytest.mark.parametrize(
    ("level", "expected"),
    [("debug", ["d", "i", "w"]), ("info", ["i", "w"]), ("warning", ["w"]), ("error", [])],
)
def test_records_below_the_level_are_dropped(level, expected):
    lines = []
    logger = logging.getLogger("edgefl.aggregator")
    before = logging.getLogger("edgefl").level
    with show_logs(lines.append, LogOptions(level)):
        logger.debug("d")
        logger.info("i")
        logger.warning("w")
    logger.warning("after the end")
    assert [line[-1] for line in lines] == expected
    assert logging.getLogger("edgefl").level == before


def test_a_failing_terminal_does_not_stop_the_service(capsys):
    def show(line):
        raise BrokenPipeError("no terminal")

    with show_logs(show, LogOptions()):
        logging.getLogger("edgefl.device").info("round 3")
    assert "no terminal" in capsys.readouterr().err


PROGRAM = """
import logging, sys
from edgefl.base.system.logs import LogOptions
from edgefl.base.system.progress import Progress
with Progress(log=LogOptions()):
    logging.getLogger("edgefl.device").warning("paused")
"""


@pytest.mark.parametrize("is_named", [True, False])
def test_priorities_are_written_to_the_journal_only(is_named, tmp_path):
    """JOURNAL_STREAM has device and inode of the stream that systemd created, see systemd.exec(5)."""
    path = tmp_path / "stderr"
    with path.open("w") as stream:
        status = os.fstat(stream.fileno())
        name = f"{status.st_dev}:{status.st_ino}" if is_named else f"{status.st_dev}:1"
        environment = {**os.environ, "JOURNAL_STREAM": name}
        subprocess.run([sys.executable, "-c", PROGRAM], env=environment, stderr=stream, check=True)
    assert path.read_text() == ("<4>" if is_named else "") + "warning: paused\n"


def test_a_command_that_fails_logs_an_error_to_the_journal(tmp_path):
    path = tmp_path / "stderr"
    with path.open("w") as stream:
        status = os.fstat(stream.fileno())
        environment = {**os.environ, "JOURNAL_STREAM": f"{status.st_dev}:{status.st_ino}"}
        command = [sys.executable, "-m", "edgefl", "device", "start", "--data", "none.npz"]
        ended = subprocess.run(command, env=environment, stderr=stream, cwd=tmp_path, check=False)
    assert ended.returncode == 1
    assert path.read_text().startswith("<3>edgefl: no --id; pass")
