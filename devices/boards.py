"""Board profiles: the properties of known boards, and the detection of this board.

Memory and cores come from the manufacturers (`source`), for the smallest model of a board. `threads` is half
the cores, so that a board can do its other work while it trains. This number is a choice, not a measurement.
Results have the same bits for any number of threads. `pyproject.toml` selects the TFLite runtime of a system:
ai-edge-litert and ai-edge-quantizer exist only for 64 bits, and a 32-bit system has tflite-runtime 2.14.
"""

import os
import re
import sys
from dataclasses import dataclass
from pathlib import Path

from edgefl.base.errors import ConfigError
from edgefl.base.system.host import ROOT, read_board_model, read_text, read_total_memory_mb

PROCESS_SHARE = 0.75
"""Share of a board's memory that the process of a device may use. The system needs the rest."""
RUNTIMES_BY_BITS = {64: "ai-edge-litert", 32: "tflite-runtime"}


@dataclass(frozen=True)
class Board:
    """A board profile.

    Attributes:
        name: name of the profile in options.
        title: name of the board for a person.
        ram_mb: memory of the smallest model in MB of 2^20 bytes, 0 if unknown.
        cores: number of cores, 0 if unknown.
        threads: number of threads of the learner.
        bits: word sizes of the systems that the manufacturer offers.
        pattern: regular expression that finds the board in the model name of the device tree.
        source: web page of the manufacturer.
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
        """The TFLite runtime by word size of the system."""
        return {bits: RUNTIMES_BY_BITS[bits] for bits in self.bits}


RASPBERRY_PI_URL = "https://www.raspberrypi.com/products"
BOARDS = (
    Board(
        name="pi-zero-2-w",
        title="Raspberry Pi Zero 2 W",
        ram_mb=512,
        cores=4,
        threads=2,
        bits=(64, 32),
        pattern=r"Raspberry Pi Zero 2\b",
        source=f"{RASPBERRY_PI_URL}/raspberry-pi-zero-2-w/",
    ),
    Board(
        name="pi-3",
        title="Raspberry Pi 3",
        ram_mb=512,
        cores=4,
        threads=2,
        bits=(64, 32),
        pattern=r"Raspberry Pi (Compute Module )?3\b",
        source=f"{RASPBERRY_PI_URL}/raspberry-pi-3-model-a-plus/",
    ),
    Board(
        name="pi-4",
        title="Raspberry Pi 4",
        ram_mb=1024,
        cores=4,
        threads=2,
        bits=(64, 32),
        pattern=r"Raspberry Pi (Compute Module )?(4S?|400)\b",
        source=f"{RASPBERRY_PI_URL}/raspberry-pi-4-model-b/",
    ),
    Board(
        name="pi-5",
        title="Raspberry Pi 5",
        ram_mb=1024,
        cores=4,
        threads=2,
        bits=(64, 32),
        pattern=r"Raspberry Pi (Compute Module )?(5|500)\b",
        source=f"{RASPBERRY_PI_URL}/raspberry-pi-5/",
    ),
    Board(
        name="jetson-orin",
        title="NVIDIA Jetson Orin (Nano)",
        ram_mb=4096,
        cores=6,
        threads=3,
        bits=(64,),
        pattern=r"\bOrin\b",
        source="https://developer.nvidia.com/embedded/jetson-modules",
    ),
    Board(
        name="jetson-nano",
        title="NVIDIA Jetson Nano",
        ram_mb=2048,
        cores=4,
        threads=2,
        bits=(64,),
        pattern=r"Jetson Nano\b",
        source="https://developer.nvidia.com/embedded/jetson-modules",
    ),
)
GENERIC_BOARD = Board(
    name="generic",
    title="any other Linux machine",
    ram_mb=0,
    cores=0,
    threads=1,
    bits=(64, 32),
    pattern="",
    source="",
)


@dataclass(frozen=True)
class Machine:
    """The properties of this machine.

    Attributes:
        board: profile of the board.
        model: model name of the device tree, or empty.
        memory_mb: memory in MB of 10^6 bytes, NaN if unknown.
        cores: number of cores.
        bits: word size of the Python interpreter, which may be 32 on a 64-bit kernel.
    """

    board: Board
    model: str
    memory_mb: float
    cores: int
    bits: int

    @property
    def runtime(self) -> str:
        """The TFLite runtime of the base install on this machine."""
        return RUNTIMES_BY_BITS[self.bits]

    @property
    def can_quantize(self) -> bool:
        """Whether this machine can make the int8 model. ai-edge-quantizer exists only for 64 bits."""
        return self.bits == 64


def match_board(model: str) -> Board:
    """Return the profile of a board, or the generic profile if the board is unknown.

    Args:
        model: model name of the device tree.
    """
    return next((board for board in BOARDS if re.search(board.pattern, model)), GENERIC_BOARD)


def find_board(name: str) -> Board:
    """Return the profile with a name.

    Raises:
        ConfigError: no profile has the name.
    """
    profiles = {board.name: board for board in (*BOARDS, GENERIC_BOARD)}
    if name not in profiles:
        raise ConfigError(f"no board {name!r}, expected one of {', '.join(profiles)}; change --board")
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
        board=match_board(model),
        model=model,
        memory_mb=read_total_memory_mb(root),
        cores=cores,
        bits=64 if sys.maxsize > 2**32 else 32,
    )
