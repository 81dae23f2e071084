"""Board profiles: the properties of known boards, and the detection of this board.

Figures are the manufacturers': memory and cores of the smallest model (`source`). `threads` is half the
cores, so that a board that trains can do its other work. It is a choice, not a measurement, and changes no
bit of the result. `pyproject.toml` decides the runtime of a system: ai-edge-litert and ai-edge-quantizer
exist only for 64 bits, and a 32-bit system has tflite-runtime 2.14.
"""

import os
import re
import sys
from dataclasses import dataclass
from pathlib import Path

from edgefl.errors import ConfigError
from edgefl.system.host import ROOT, read_board_model, read_text, read_total_memory_mb

RUNTIMES_BY_BITS = {64: "ai-edge-litert", 32: "tflite-runtime"}


@dataclass(frozen=True)
class Board:
    """One kind of board.

    Attributes:
        ram_mb: memory as sold in MB of 2^20 bytes, 0 if unknown.
        bits: word sizes of the systems that the manufacturer offers.
    """

    name: str
    title: str
    ram_mb: int
    cores: int
    threads: int
    bits: tuple[int, ...]
    pattern: str
    source: str

    @property
    def runtimes(self) -> dict[int, str]:
        """The TFLite runtime of each of its systems, by bits."""
        return {bits: RUNTIMES_BY_BITS[bits] for bits in self.bits}


RASPBERRY_PI_URL = "https://www.raspberrypi.com/products"
BOARDS = (
    Board(
        "pi-zero-2-w",
        "Raspberry Pi Zero 2 W",
        512,
        4,
        2,
        (64, 32),
        r"Raspberry Pi Zero 2\b",
        f"{RASPBERRY_PI_URL}/raspberry-pi-zero-2-w/",
    ),
    Board(
        "pi-3",
        "Raspberry Pi 3",
        512,
        4,
        2,
        (64, 32),
        r"Raspberry Pi (Compute Module )?3\b",
        f"{RASPBERRY_PI_URL}/raspberry-pi-3-model-a-plus/",
    ),
    Board(
        "pi-4",
        "Raspberry Pi 4",
        1024,
        4,
        2,
        (64, 32),
        r"Raspberry Pi (Compute Module )?(4S?|400)\b",
        f"{RASPBERRY_PI_URL}/raspberry-pi-4-model-b/",
    ),
    Board(
        "pi-5",
        "Raspberry Pi 5",
        1024,
        4,
        2,
        (64, 32),
        r"Raspberry Pi (Compute Module )?(5|500)\b",
        f"{RASPBERRY_PI_URL}/raspberry-pi-5/",
    ),
    Board(
        "jetson-orin",
        "NVIDIA Jetson Orin (Nano)",
        4096,
        6,
        3,
        (64,),
        r"\bOrin\b",
        "https://developer.nvidia.com/embedded/jetson-modules",
    ),
    Board(
        "jetson-nano",
        "NVIDIA Jetson Nano",
        2048,
        4,
        2,
        (64,),
        r"Jetson Nano\b",
        "https://developer.nvidia.com/embedded/jetson-modules",
    ),
)
GENERIC_BOARD = Board("generic", "any other Linux machine", 0, 0, 1, (64, 32), "", "")


@dataclass(frozen=True)
class Machine:
    """The properties of this machine.

    Attributes:
        memory_mb: memory in MB of 10^6 bytes, NaN if unknown.
        bits: word size of the Python interpreter, which may be 32 on a 64-bit kernel.
    """

    board: Board
    model: str
    memory_mb: float
    cores: int
    bits: int

    @property
    def runtime(self) -> str:
        """The TFLite runtime that the base install has here."""
        return RUNTIMES_BY_BITS[self.bits]

    @property
    def can_quantize(self) -> bool:
        """Whether the int8 model can be made here: ai-edge-quantizer exists for 64 bits alone."""
        return self.bits == 64


def match_board(model: str) -> Board:
    """Return the profile for a model name of a device tree, or the generic profile."""
    return next((board for board in BOARDS if re.search(board.pattern, model)), GENERIC_BOARD)


def find_board(name: str) -> Board:
    """Return the profile with a name.

    Raises:
        ConfigError: no profile has the name.
    """
    profiles = {board.name: board for board in (*BOARDS, GENERIC_BOARD)}
    if name not in profiles:
        raise ConfigError(f"no board {name!r}; known are {', '.join(profiles)}")
    return profiles[name]


def detect_machine(root: Path = ROOT) -> Machine:
    """Return the properties of this machine from /proc and /sys.

    Args:
        root: directory that contains `proc` and `sys`. Tests pass another one.
    """
    model = read_board_model(root)
    cores = (
        sum(row.startswith("processor") for row in read_text(root / "proc/cpuinfo").splitlines())
        or os.cpu_count()
        or 1
    )
    return Machine(
        match_board(model), model, read_total_memory_mb(root), cores, 64 if sys.maxsize > 2**32 else 32
    )
