"""Estimates of milliseconds, by hand and against the evidence in the lab notes."""

import math
import re
from pathlib import Path

import pytest

from firmware_export.firmware.latency import (
    PUBLISHED_BOARDS,
    PublishedBoard,
    estimate_latencies,
    estimate_latency,
    format_milliseconds_range,
)
from firmware_export.firmware.targets import TARGETS

NOTES = Path(__file__).parents[3] / "docs" / "results" / "lab-notes" / "microcontrollers.md"
EVIDENCE = re.compile(
    r"^\| (?P<board>[^|]+) \| (?P<mhz>\d+) \| (?P<engine>[^|]+) \| (?P<model>[a-z]+) "
    r"\| (?P<ms>[\d.]+) \| (?P<instructions>[\d,]+) \| (?P<cycles>[\d.]+) \|$",
    re.MULTILINE,
)
BOARD = PublishedBoard(
    name="A",
    target="cortex-m4",
    mhz=100,
    cycles_low=1.5,
    cycles_high=2.0,
    flash_bytes=1000,
    ram_bytes=500,
    source="hand",
)


def test_milliseconds_are_instructions_times_cycles_over_the_clock() -> None:
    # 3,000,000 instructions x 1.5 cycles = 4,500,000 cycles; 100 MHz is 100,000 cycles a millisecond
    estimate = estimate_latency(3_000_000, BOARD)
    assert (estimate.ms_low, estimate.ms_high) == (45.0, 60.0)
    assert (estimate.board, estimate.instructions, estimate.source) == ("A", 3_000_000, "hand")


@pytest.mark.parametrize(
    ("target", "instructions", "flash", "ram", "names"),
    [
        ("cortex-m4", 7, 1000, 500, ["A"]),
        ("cortex-m7", 7, 1000, 500, []),
        ("cortex-m4", 0, 1000, 500, []),
        ("cortex-m4", 7, 1001, 500, []),
        ("cortex-m4", 7, 1000, 501, []),
    ],
)
def test_only_boards_with_the_core_and_enough_memory_are_estimated(
    target: str, instructions: int, flash: int, ram: int, names: list[str]
) -> None:
    assert [each.board for each in estimate_latencies(target, instructions, flash, ram, [BOARD])] == names


@pytest.mark.parametrize(
    ("low", "high", "text"),
    [
        (211.086, 1263.09, "211 to 1,263 ms"),
        (66.3, 82.7, "66 to 83 ms"),
        (5.231, 6.52, "5.2 to 6.5 ms"),
        (0.0123, 0.0153, "0.012 to 0.015 ms"),
    ],
)
def test_a_range_has_about_two_digits(low: float, high: float, text: str) -> None:
    assert format_milliseconds_range(low, high) == text


def test_cycles_of_boards_follow_from_the_evidence_in_the_lab_notes() -> None:
    rows = [match.groupdict() for match in EVIDENCE.finditer(NOTES.read_text())]
    assert {row["board"] for row in rows} == {board.name for board in PUBLISHED_BOARDS}
    for board in PUBLISHED_BOARDS:
        cycles = []
        for row in rows:
            if row["board"] != board.name:
                continue
            assert int(row["mhz"]) == board.mhz
            exact = float(row["ms"]) * 1000 * board.mhz / int(row["instructions"].replace(",", ""))
            assert float(row["cycles"]) == round(exact, 2)
            cycles.append(exact)
        assert board.target in TARGETS
        assert board.cycles_low == math.floor(100 * min(cycles)) / 100
        assert board.cycles_high == math.ceil(100 * max(cycles)) / 100
