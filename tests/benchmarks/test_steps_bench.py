"""Small parts of the instruction benchmark. A whole run needs an emulated board."""

from pathlib import Path

import pytest

from edgefl.base.errors import ConfigError, EdgeflError
from tests.benchmarks.steps.instructions import parse_marks, run_steps_bench

COUNTS = (10, 90, 95, 180, 185, 305)
MARKS = "INFO: a runtime\n" + "".join(f"MARK {i} {count}\n" for i, count in enumerate(COUNTS))


def test_parse_marks_counts_last_epoch():
    assert parse_marks(MARKS, 0) == 120


@pytest.mark.parametrize(
    ("text", "status", "shown"),
    [
        ("", 0, "status 0 and 0 marks.*no output"),
        (MARKS.rpartition("MARK")[0] + "Segmentation fault\n", 139, "status 139 and 5 marks.*fault"),
        (MARKS, 1, "status 1 and 6 marks"),
    ],
)
def test_failed_process_is_explained(text, status, shown):
    with pytest.raises(EdgeflError, match=rf"{shown}.*emulate-an-arm-board"):
        parse_marks(text, status)


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
    with pytest.raises(ConfigError, match=r"expected an ARM processor; copy the cpuinfo"):
        run_steps_bench(make_board(tmp_path), ["lenet5-b10"], "steps", print)
