"""The microcontroller cores that firmware is made for, with their options for GCC and QEMU.

Ticks and machines were measured with QEMU 7.2. Under `-icount shift=0` one instruction takes one nanosecond
of the machine's time. On Arm, SysTick counts the core's clock: 25 MHz on the MPS2 boards, 20 MHz on the MPS2
with the M33, 32 MHz on the MPS3, 16 MHz on the micro:bit. On RISC-V, mcycle counts the instructions. On
Xtensa, CCOUNT counts the core's clock, 40 MHz.
"""

import re
from dataclasses import dataclass
from fractions import Fraction

from edgefl.base.errors import ConfigError
from edgefl.base.options import suggest_nearest
from firmware_export.firmware.toolchain import CC

HOST_TARGET = "host"
COMPILER_OPTIONS = (
    "-std=c99",
    "-O2",
    "-Wall",
    "-Wextra",
    "-Werror",
    "-pedantic",
    "-ffunction-sections",
    "-fdata-sections",
)


@dataclass(frozen=True)
class Architecture:
    """A family of cores with its tools.

    Attributes:
        name: name for readers.
        triple: Clang's name of the architecture, for bare metal.
        tool_prefix: prefix of the names of GNU tools.
        qemu: name of QEMU's program.
        qemu_options: QEMU's options for all machines of the family.
        counter: the counter of `board_ticks`, for readers.
    """

    name: str
    triple: str
    tool_prefix: str
    qemu: str
    qemu_options: tuple[str, ...]
    counter: str

    @property
    def gcc(self) -> str:
        """Name of the compiler."""
        return f"{self.tool_prefix}gcc"

    @property
    def size(self) -> str:
        """Name of the program that prints the sizes of sections."""
        return f"{self.tool_prefix}size"


ARM = Architecture(
    name="Arm",
    triple="arm-none-eabi",
    tool_prefix="arm-none-eabi-",
    qemu="qemu-system-arm",
    qemu_options=(),
    counter="SysTick",
)
RISCV = Architecture(
    name="RISC-V",
    triple="riscv32-unknown-elf",
    tool_prefix="riscv64-unknown-elf-",
    qemu="qemu-system-riscv32",
    qemu_options=("-bios", "none"),
    counter="mcycle",
)
XTENSA = Architecture(
    name="Xtensa",
    triple="xtensa",
    tool_prefix="xtensa-lx106-elf-",
    qemu="qemu-system-xtensa",
    qemu_options=("-cpu", "lx106"),
    counter="CCOUNT",
)


@dataclass(frozen=True)
class Target:
    """One core, or this computer.

    Attributes:
        name: name of the target.
        flags: GCC's options for the core.
        machine: QEMU's machine. Empty for this computer.
        flash: origin and size in bytes of the machine's flash.
        ram: origin and size in bytes of the machine's RAM.
        tick: instructions per tick of `board_ticks`.
        dsp: whether the core has the instruction SMLAD.
        small: whether the machine runs only some of the samples, because it is small or slow.
        architecture: the core's family. It has no meaning for this computer.
    """

    name: str
    flags: tuple[str, ...]
    machine: str
    flash: tuple[int, int]
    ram: tuple[int, int]
    tick: Fraction
    dsp: bool
    small: bool = False
    architecture: Architecture = ARM

    @property
    def is_host(self) -> bool:
        """Whether the target is this computer rather than a core."""
        return self.name == HOST_TARGET

    @property
    def tools(self) -> tuple[str, ...]:
        """The programs that compile and run firmware of the target."""
        return (CC,) if self.is_host else (self.architecture.gcc, self.architecture.qemu)

    def list_qemu_options(self, serial: str = "none") -> list[str]:
        """Return QEMU's options: no window, access to the host's files, one instruction per nanosecond.

        `serial` is what the machine's serial port is connected to.
        """
        display_options = ["-display", "none", "-serial", serial, "-monitor", "none"]
        return [
            "-machine",
            self.machine,
            *self.architecture.qemu_options,
            *display_options,
            "-semihosting-config",
            "enable=on,target=native",
            "-icount",
            "shift=0,sleep=off",  # with sleep=on the time at the start varies, and counts of lx106 with it
        ]


_HARD_FLOAT = ("-mfloat-abi=hard",)


def _make_mps2_target(name: str, machine: str, dsp: bool, *flags: str) -> Target:
    """Return a core of Arm's MPS2 board."""
    return Target(
        name=name,
        flags=(f"-mcpu={name}", "-mthumb", *flags),
        machine=machine,
        flash=(0, 4 << 20),
        ram=(0x20000000, 4 << 20),
        tick=Fraction(40),
        dsp=dsp,
    )


def _make_microbit_target(name: str) -> Target:
    """Return a core of ARMv6-M. The M0 of QEMU's micro:bit also runs the code of an M0+."""
    return Target(
        name=name,
        flags=(f"-mcpu={name}", "-mthumb"),
        machine="microbit",
        flash=(0, 256 << 10),
        ram=(0x20000000, 16 << 10),
        tick=Fraction(125, 2),
        dsp=False,
        small=True,
    )


TARGETS = {
    target.name: target
    for target in (
        _make_microbit_target("cortex-m0"),
        _make_microbit_target("cortex-m0plus"),
        _make_mps2_target("cortex-m3", "mps2-an385", False),
        _make_mps2_target("cortex-m4", "mps2-an386", True, *_HARD_FLOAT, "-mfpu=fpv4-sp-d16"),
        _make_mps2_target("cortex-m7", "mps2-an500", True, *_HARD_FLOAT, "-mfpu=fpv5-sp-d16"),
        Target(
            name="cortex-m33",
            flags=("-mcpu=cortex-m33", "-mthumb", *_HARD_FLOAT, "-mfpu=fpv5-sp-d16"),
            machine="mps2-an505",
            flash=(0x10000000, 4 << 20),
            ram=(0x38000000, 4 << 20),
            tick=Fraction(50),
            dsp=True,
            small=True,
        ),
        Target(
            name="cortex-m55",
            flags=("-mcpu=cortex-m55", "-mthumb", *_HARD_FLOAT),
            machine="mps3-an547",
            flash=(0, 512 << 10),
            ram=(0x20000000, 512 << 10),
            tick=Fraction(125, 4),
            dsp=True,
            small=True,
        ),
        Target(
            name="rv32imc",
            flags=("-march=rv32imc", "-mabi=ilp32"),
            machine="virt",
            flash=(0x80000000, 4 << 20),
            ram=(0x80400000, 4 << 20),
            tick=Fraction(1),
            dsp=False,
            small=True,
            architecture=RISCV,
        ),
        Target(
            name="lx106",
            flags=("-mlongcalls", "-mtext-section-literals"),
            machine="sim",
            flash=(0x50000000, 4 << 20),
            ram=(0x60000000, 4 << 20),
            tick=Fraction(25),
            dsp=False,
            small=True,
            architecture=XTENSA,
        ),
        Target(name=HOST_TARGET, flags=(), machine="", flash=(0, 0), ram=(0, 0), tick=Fraction(1), dsp=False),
    )
}


def find_target(name: str) -> Target:
    """Return the target with this name.

    Raises:
        ConfigError: no target has this name. The error suggests the nearest name.
    """
    if name not in TARGETS:
        raise ConfigError(f"no target {name!r}; {suggest_nearest(name, list(TARGETS))}")
    return TARGETS[name]


def parse_count(text: str) -> int:
    """Parse a number of instructions such as "4M", "800K" or "4000000". K is 1,000.

    Raises:
        ConfigError: the text is not a positive number.
    """
    match = re.fullmatch(r"([0-9]+)\s*([km]?)", text.strip().lower())
    count = int(match[1]) * {"": 1, "k": 10**3, "m": 10**6}[match[2]] if match else 0
    if count < 1:
        raise ConfigError(f"{text!r} is not a number of instructions, expected one such as 4M or 800K")
    return count


def parse_bytes(text: str) -> int:
    """Parse a number of bytes such as "64K", "1M", "0x8000" or "65536". K is 1,024.

    Raises:
        ConfigError: the text is not a positive size.
    """
    match = re.fullmatch(r"(0x[0-9a-f]+|[0-9]+)\s*([km]?)(?:i?b)?", text.strip().lower())
    size = (
        int(match[1], 0 if match[1].startswith("0x") else 10) << {"": 0, "k": 10, "m": 20}[match[2]]
        if match
        else 0
    )
    if size < 1:
        raise ConfigError(f"{text!r} is not a size, expected bytes such as 64K, 1M or 65536")
    return size
