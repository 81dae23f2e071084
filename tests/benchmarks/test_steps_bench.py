"""Small parts of the instruction benchmark. A whole run needs an emulated board."""

from pathlib import Path

import pytest

from edgefl.errors import ConfigError, EdgeflError
from tests.benchmarks.steps.instructions import parse_marks, run_steps_bench


def test_parse_marks_counts_last_epoch():
    text = "MARK 0 100\nINFO: a runtime\nMARK 1 250\nMARK 2 300\nMARK 3 420\n"
    assert parse_marks(text) == 120


@pytest.mark.parametrize(
    ("text", "shown"), [("", "no output"), ("MARK 0 100\nSegmentation fault\n", "fault")]
)
def test_failed_process_is_explained(text, shown):
    with pytest.raises(EdgeflError, match=rf"{shown}.*emulate-an-arm-board"):
        parse_marks(text)


def make_board(root: Path) -> Path:
    for name in ("usr/bin", "opt/venv/lib/python3.11/site-packages", "proc"):
        (root / name).mkdir(parents=True)
    (root / "usr/bin/python3.11").touch()
    (root / "proc/cpuinfo").write_text("vendor_id : GenuineIntel\n")
    return root


@pytest.mark.parametrize("missing", ["usr/bin/python3.11", "proc/cpuinfo"])
def test_incomplete_board_is_refused(missing, tmp_path):
    (make_board(tmp_path) / missing).unlink()
    with pytest.raises(ConfigError, match=rf"has no {missing}; make it as"):
        run_steps_bench(tmp_path, ["lenet5-b10"], "steps", print)


def test_board_with_x86_cpuinfo_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"expected one of ARM; copy the cpuinfo"):
        run_steps_bench(make_board(tmp_path), ["lenet5-b10"], "steps", print)
