"""Estimates of the milliseconds of an inference on boards, from instructions that QEMU counted.

QEMU counts instructions and no cycles. The cycles per instruction of a board come from an engine whose
latency on this board is published and whose code can be compiled and counted in QEMU. A board is listed only
with such evidence: `docs/results/lab-notes/microcontrollers.md` has the table.
"""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class PublishedBoard:
    """A board with published latencies of a countable engine.

    Attributes:
        name: name of the board.
        target: name of its core's target.
        mhz: clock in MHz at which the latencies were measured.
        cycles_low: lowest cycles per instruction of the models with a published latency.
        cycles_high: highest cycles per instruction of these models.
        flash_bytes: flash of the board.
        ram_bytes: RAM of the board.
        source: origin of the latencies.
    """

    name: str
    target: str
    mhz: int
    cycles_low: float
    cycles_high: float
    flash_bytes: int
    ram_bytes: int
    source: str


@dataclass(frozen=True)
class LatencyEstimate:
    """The estimated duration of an inference on a board, which ran nothing.

    Attributes:
        board: name of the board.
        target: name of its core's target.
        mhz: clock in MHz.
        instructions: instructions of an inference.
        cycles_low: lowest cycles per instruction.
        cycles_high: highest cycles per instruction.
        ms_low: duration in milliseconds at `cycles_low`.
        ms_high: duration in milliseconds at `cycles_high`.
        source: origin of the cycles per instruction.
    """

    board: str
    target: str
    mhz: int
    instructions: int
    cycles_low: float
    cycles_high: float
    ms_low: float
    ms_high: float
    source: str


PUBLISHED_BOARDS = (
    PublishedBoard(
        name="NUCLEO-L4R5ZI",
        target="cortex-m4",
        mhz=120,
        cycles_low=1.38,
        cycles_high=1.72,
        flash_bytes=2 << 20,
        ram_bytes=640 << 10,
        source="MLPerf Tiny v1.0, OctoML: microTVM with CMSIS-NN and alone",
    ),
    PublishedBoard(
        name="nRF5340 DK",
        target="cortex-m33",
        mhz=128,
        cycles_low=1.15,
        cycles_high=1.36,
        flash_bytes=1 << 20,
        ram_bytes=512 << 10,
        source="MLPerf Tiny v1.0, OctoML: microTVM with CMSIS-NN",
    ),
    PublishedBoard(
        name="EK-RA6M4",
        target="cortex-m33",
        mhz=200,
        cycles_low=1.22,
        cycles_high=1.42,
        flash_bytes=1 << 20,
        ram_bytes=256 << 10,
        source="MLPerf Tiny v0.7, Renesas: TensorFlow Lite Micro with CMSIS-NN",
    ),
)
"""Boards with evidence. The cycles are rounded outward to two decimals."""


def estimate_latency(instructions: int, board: PublishedBoard) -> LatencyEstimate:
    """Estimate the duration of an inference on a board.

    Milliseconds are instructions x cycles per instruction / (1,000 x MHz).
    """
    return LatencyEstimate(
        board=board.name,
        target=board.target,
        mhz=board.mhz,
        instructions=instructions,
        cycles_low=board.cycles_low,
        cycles_high=board.cycles_high,
        ms_low=round(instructions * board.cycles_low / (1000 * board.mhz), 3),
        ms_high=round(instructions * board.cycles_high / (1000 * board.mhz), 3),
        source=board.source,
    )


def estimate_latencies(
    target: str,
    instructions: int,
    flash_bytes: int,
    ram_bytes: int,
    boards: Sequence[PublishedBoard] = PUBLISHED_BOARDS,
) -> tuple[LatencyEstimate, ...]:
    """Estimate the duration of an inference on each board with a core.

    A board whose memory is too small for the model is left out.

    Args:
        target: name of the core's target.
        instructions: instructions of an inference on this core. 0 if they were not counted.
        flash_bytes: flash of the model.
        ram_bytes: RAM of the model with its stack.
        boards: the boards to choose from.
    """
    return tuple(
        estimate_latency(instructions, board)
        for board in boards
        if instructions
        and board.target == target
        and flash_bytes <= board.flash_bytes
        and ram_bytes <= board.ram_bytes
    )


def format_milliseconds_range(low: float, high: float) -> str:
    """Format a range of milliseconds with about two digits, such as `66 to 83 ms`.

    Args:
        low: the lower end in milliseconds.
        high: the upper end in milliseconds.
    """
    decimals = 0 if low >= 10 else 1 if low >= 1 else 3
    return f"{low:,.{decimals}f} to {high:,.{decimals}f} ms"
