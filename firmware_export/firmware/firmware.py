"""Compile a firmware project for a target and run it: in QEMU, or on this computer for the target `host`."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from edgefl.errors import ExportError
from firmware_export.firmware.limits import PROGRAM_LIMITS
from firmware_export.firmware.project import input_bytes, output_bytes, project_files
from firmware_export.firmware.targets import OPTIONS, Target
from firmware_export.firmware.toolchain import ARM, CC, DEADLINE_S, QEMU, missing, qemu_sandbox, run

MODEL = ("model", "model_weights")
SIZES = re.compile(r"^\s*(\d+)\s+(\d+)\s+(\d+)\s", re.MULTILINE)
SAMPLE = re.compile(r"^sample \d+: class \d+, ticks (\d+)$", re.MULTILINE)
LAYER = re.compile(r"^layer (\d+): ticks (\d+)$", re.MULTILINE)
OVERFLOW = re.compile(r"region `(FLASH|RAM)' overflowed by (\d+) bytes")
DONE = re.compile(r"^done: samples (\d+), stack (\d+)$", re.MULTILINE)


class TooLarge(ExportError):
    """A program that does not fit into the memory of its target's QEMU machine."""


@dataclass(frozen=True)
class Size:
    """Bytes of each section, as `size` counts them: read-only data are in text."""

    text: int
    data: int
    bss: int

    @property
    def flash(self) -> int:
        """Bytes of flash: what is read only, and the start values of data."""
        return self.text + self.data

    @property
    def ram(self) -> int:
        """Bytes of RAM, the stack not counted."""
        return self.data + self.bss


@dataclass(frozen=True)
class Built:
    """A program that can be run. model: sections of the model's own files; image: of the whole program."""

    target: Target
    program: Path
    model: Size
    image: Size
    output_bytes: int


@dataclass(frozen=True)
class Ran:
    """What a program gave. outputs: int8[n, m]; ticks: int64[n], of each inference; stack: bytes that an
    inference needs of it; layers: ticks of each layer over all samples, where the program was built to count
    them.
    """

    outputs: Any
    ticks: Any
    stack: int
    layers: Mapping[int, int]


def not_runnable(target: Target) -> str:
    """Return why this target cannot be built and run here, with the remedy; "" when it can."""
    return missing(CC) if target.is_host else missing(ARM, QEMU)


def build(model: Mapping[str, str], target: Target, work: Path, *, profile: bool = False) -> Built:
    """Write the project of `target` into the directory `work` and compile it there.

    Raises ExportError when the compiler refuses it.
    """
    for name, text in project_files(model, target).items():
        if not name.startswith("ports/"):
            (work / name).parent.mkdir(parents=True, exist_ok=True)
            (work / name).write_text(text)
    compiler, sizer = (CC, "size") if target.is_host else (ARM, "arm-none-eabi-size")
    own = ("main", "host") if target.is_host else ("main", "semihosting", "startup")
    flags = [
        *target.flags,
        *OPTIONS,
        *([] if target.is_host else ["-ffreestanding"]),
        *(["-DMODEL_PROFILE"] if profile else []),
    ]
    objects = []
    for name in (*(f"model/{each}" for each in MODEL), *own):
        extra = ["-fno-tree-loop-distribute-patterns"] if name == "startup" else []
        objects.append(f"{Path(name).name}.o")
        run(
            [compiler, *flags, *extra, "-Imodel", "-c", f"{name}.c", "-o", objects[-1]],
            work,
            what=f"{compiler} for {target.name}",
        )
    link = [] if target.is_host else ["-nostdlib", "-Wl,--gc-sections", "-T", "link.ld"]
    command = [
        compiler,
        *flags,
        *link,
        *objects,
        *([] if target.is_host else ["-lgcc"]),
        "-o",
        "firmware.elf",
    ]
    try:
        run(command, work, what=f"linker for {target.name}")
    except ExportError as error:
        if found := OVERFLOW.search(str(error)):
            room = target.flash[1] if found[1] == "FLASH" else target.ram[1]
            raise TooLarge(
                f"the program needs {found[2]} bytes more than the {room:,} of {found[1]} of QEMU's "
                f"{target.machine}"
            ) from error
        if "left for the stack" in str(error):
            raise TooLarge(
                f"less than 2 KB of the {target.ram[1]:,} bytes of RAM of QEMU's {target.machine} are left"
            ) from error
        raise
    sizes = [
        Size(*map(int, found)) for found in SIZES.findall(run([sizer, *objects[:2], "firmware.elf"], work))
    ]
    of_model = Size(*(sum(getattr(size, key) for size in sizes[:2]) for key in ("text", "data", "bss")))
    return Built(target, work / "firmware.elf", of_model, sizes[2], output_bytes(model["model.h"]))


def run_built(built: Built, inputs: Any, work: Path, deadline_s: float = DEADLINE_S) -> Ran:
    """Run the program on inputs int8[n, ...] in the directory `work`.

    Raises ExportError when it stops early or passes the deadline.
    """
    (work / "samples.bin").write_bytes(np.ascontiguousarray(inputs, np.int8).tobytes())
    target = built.target
    command = (
        [str(built.program)]
        if target.is_host
        else [QEMU, *qemu_sandbox(), *target.qemu(), "-kernel", str(built.program)]
    )
    text = run(command, work, deadline_s, f"the firmware of {target.name}", PROGRAM_LIMITS)
    ticks = SAMPLE.findall(text)
    done = DONE.search(text)
    blob = (work / "outputs.bin").read_bytes()
    if (
        done is None
        or int(done[1]) != len(inputs)
        or len(ticks) != len(inputs)
        or len(blob) != len(inputs) * built.output_bytes
    ):
        raise ExportError(
            f"the firmware of {target.name} ran {len(ticks)} of {len(inputs)} samples; it printed last: "
            f"{text[-300:]!r}"
        )
    return Ran(
        np.frombuffer(blob, np.int8).reshape(len(inputs), built.output_bytes),
        np.array([int(each) for each in ticks], np.int64),
        int(done[2]),
        {int(layer): int(each) for layer, each in LAYER.findall(text)},
    )


def build_and_run(
    model: Mapping[str, str], target: Target, inputs: Any, work: Path, *, profile: bool = False
) -> tuple[Built, Ran]:
    """Compile for the target in the directory `work` and run the inputs int8[n, ...]."""
    if inputs.size != len(inputs) * input_bytes(model["model.h"]):
        raise ExportError(
            f"the inputs are {inputs.shape}, the model takes {input_bytes(model['model.h'])} bytes a sample; "
            "give samples of this model"
        )
    work.mkdir(parents=True, exist_ok=True)
    built = build(model, target, work, profile=profile)
    return built, run_built(built, inputs, work)
