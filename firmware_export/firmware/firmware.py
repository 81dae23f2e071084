"""Compiles a firmware project for a target and runs it, in QEMU or on this computer."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from edgefl.base.errors import ExportError
from firmware_export.firmware.limits import PROGRAM_LIMITS
from firmware_export.firmware.project import (
    make_project_files,
    read_input_bytes,
    read_input_type,
    read_output_bytes,
    read_output_type,
)
from firmware_export.firmware.targets import COMPILER_OPTIONS, Target
from firmware_export.firmware.toolchain import (
    TOOL_DEADLINE_S,
    explain_missing_tools,
    find_sandbox_options,
    run_tool,
)

MODEL_SOURCES = ("model/model", "model/model_weights")
PROFILED_SOURCES = ("model/model", "main")
"""The sources that depend on the macro MODEL_PROFILE."""
MAX_PROFILED_SAMPLES = 20
"""Maximum number of samples that a profile runs."""
SIZES_PATTERN = re.compile(r"^\s*(\d+)\s+(\d+)\s+(\d+)\s", re.MULTILINE)
SAMPLE_PATTERN = re.compile(r"^sample \d+: (class|score|outputs)([\d -]+), ticks (\d+)$", re.MULTILINE)
LAYER_PATTERN = re.compile(r"^layer (\d+): ticks (\d+)$", re.MULTILINE)
OVERFLOW_PATTERN = re.compile(r"region `(FLASH|RAM)' overflowed by (\d+) bytes")
DONE_PATTERN = re.compile(r"^done: samples (\d+), stack (\d+)$", re.MULTILINE)


class FirmwareTooLargeError(ExportError):
    """A program does not fit into the memory of its target's QEMU machine."""


@dataclass(frozen=True)
class SectionSizes:
    """Sizes of a program's sections in bytes, as `size` counts them.

    Attributes:
        text: code and read-only data.
        data: initialized variables.
        bss: variables that start as zero.
    """

    text: int
    data: int
    bss: int

    @property
    def flash(self) -> int:
        """Bytes of flash: read-only sections and the initial values of variables."""
        return self.text + self.data

    @property
    def ram(self) -> int:
        """Bytes of RAM, without the stack."""
        return self.data + self.bss


@dataclass(frozen=True)
class BuiltFirmware:
    """A compiled program.

    Attributes:
        target: the target of the program.
        program: file of the program.
        model: sections of the model's own files.
        image: sections of the whole program.
        output_bytes: size of one output of the model.
        output_type: type of its values, such as int8.
    """

    target: Target
    program: Path
    model: SectionSizes
    image: SectionSizes
    output_bytes: int
    output_type: str = "int8"


@dataclass(frozen=True)
class FirmwareRun:
    """The results of running a program.

    Attributes:
        outputs: outputs, shape (n, m), in the type of the model.
        ticks: time of each inference in ticks, shape (n,), int64.
        stack: bytes of stack that an inference needs.
        layers: ticks of each layer over all samples, by the layer's number. Empty unless the program
            counts them.
        scores: anomaly scores, shape (n,), int64. None for a model that is no anomaly detector.
    """

    outputs: Any
    ticks: Any
    stack: int
    layers: Mapping[int, int]
    scores: Any = None


def explain_not_runnable(target: Target) -> str:
    """Return why a target cannot be built and run on this computer, with the remedy.

    Returns:
        The reason. Empty if the target can be run.
    """
    return explain_missing_tools(*target.tools)


def build_firmware(model: Mapping[str, str], target: Target, work: Path) -> BuiltFirmware:
    """Write the project of a target into a directory and compile it there.

    Args:
        model: model.h, model.c and model_weights.c, by name.

    Raises:
        FirmwareTooLargeError: the program does not fit the target's machine.
        ExportError: a tool is missing, or the compiler refuses the project.
    """
    for name, text in make_project_files(model, target).items():
        (work / name).parent.mkdir(parents=True, exist_ok=True)
        (work / name).write_text(text)
    sizer = "size" if target.is_host else target.architecture.size
    for source in _list_sources(target):
        _compile(target, source, work)
    program = _link(target, work, "firmware.elf")
    sized = [*map(_name_object, MODEL_SOURCES), program.name]
    sizes = [
        SectionSizes(*map(int, match)) for match in SIZES_PATTERN.findall(run_tool([sizer, *sized], work))
    ]
    of_model = SectionSizes(
        *(sum(getattr(size, key) for size in sizes[:2]) for key in ("text", "data", "bss"))
    )
    return BuiltFirmware(
        target=target,
        program=program,
        model=of_model,
        image=sizes[2],
        output_bytes=read_output_bytes(model["model.h"]),
        output_type=read_output_type(model["model.h"]),
    )


def profile_firmware(built: BuiltFirmware, inputs: Any, work: Path) -> dict[int, int]:
    """Count the instructions of each layer of a program.

    Only the sources that count them are compiled again.

    Args:
        built: the program, for a core.
        inputs: quantized samples, shape (n, ...), int8. At most MAX_PROFILED_SAMPLES are run.
        work: the directory in which it was built.

    Returns:
        Instructions of each layer by its number, the mean over the samples. A layer that the compiler merged
            into another one is missing.

    Raises:
        ExportError: as in `build_firmware` and `run_firmware`.
    """
    samples = inputs[:MAX_PROFILED_SAMPLES]
    for source in PROFILED_SOURCES:
        _compile(built.target, source, work, "-DMODEL_PROFILE")
    program = _link(built.target, work, "profile.elf")
    ran = run_firmware(replace(built, program=program), samples, work)
    scale = float(built.target.tick) / len(samples)
    return {layer: round(ticks * scale) for layer, ticks in ran.layers.items()}


def _list_flags(target: Target) -> list[str]:
    return [*target.flags, *COMPILER_OPTIONS, *([] if target.is_host else ["-ffreestanding"])]


def _list_sources(target: Target) -> tuple[str, ...]:
    """Return the sources of a target's program, as paths without the suffix."""
    return (*MODEL_SOURCES, "main", *(("host",) if target.is_host else ("semihosting", "startup")))


def _name_object(source: str) -> str:
    return f"{Path(source).name}.o"


def _compile(target: Target, source: str, work: Path, *options: str) -> None:
    compiler = target.tools[0]
    extra = ["-fno-tree-loop-distribute-patterns"] if source == "startup" else []
    run_tool(
        [compiler, *_list_flags(target), *options, *extra, "-Imodel", "-c", f"{source}.c"],
        work,
        what=f"{compiler} for {target.name}",
    )


def _link(target: Target, work: Path, name: str) -> Path:
    """Link the objects of a program and return its file.

    Raises:
        FirmwareTooLargeError: the program does not fit the target's machine.
    """
    link = [] if target.is_host else ["-nostdlib", "-Wl,--gc-sections", "-T", "link.ld"]
    libraries = [] if target.is_host else ["-lgcc"]
    objects = map(_name_object, _list_sources(target))
    command = [target.tools[0], *_list_flags(target), *link, *objects, *libraries, "-o", name]
    try:
        run_tool(command, work, what=f"linker for {target.name}")
    except ExportError as error:
        if match := OVERFLOW_PATTERN.search(str(error)):
            room = target.flash[1] if match[1] == "FLASH" else target.ram[1]
            raise FirmwareTooLargeError(
                f"the program needs {match[2]} bytes more than the {room:,} of {match[1]} of QEMU's "
                f"{target.machine}"
            ) from error
        if "left for the stack" in str(error):
            raise FirmwareTooLargeError(
                f"less than 2 KB of the {target.ram[1]:,} bytes of RAM of QEMU's {target.machine} are left "
                "for the stack"
            ) from error
        raise
    return work / name


def run_firmware(
    built: BuiltFirmware, inputs: Any, work: Path, deadline_s: float = TOOL_DEADLINE_S
) -> FirmwareRun:
    """Run a program on inputs.

    Args:
        built: the program.
        inputs: quantized samples, shape (n, ...), in the type of the model's input.
        work: the directory in which it was built.
        deadline_s: maximum time of the run in seconds.

    Raises:
        ExportError: the program fails, exceeds a limit, or does not answer all samples.
    """
    (work / "samples.bin").write_bytes(np.ascontiguousarray(inputs).tobytes())
    target = built.target
    qemu = target.architecture.qemu
    command = (
        [str(built.program)]
        if target.is_host
        else [qemu, *find_sandbox_options(qemu), *target.list_qemu_options(), "-kernel", str(built.program)]
    )
    text = run_tool(command, work, deadline_s, f"the firmware of {target.name}", PROGRAM_LIMITS)
    printed = SAMPLE_PATTERN.findall(text)
    done = DONE_PATTERN.search(text)
    blob = (work / "outputs.bin").read_bytes()
    if (
        done is None
        or int(done[1]) != len(inputs)
        or len(printed) != len(inputs)
        or len(blob) != len(inputs) * built.output_bytes
    ):
        raise ExportError(
            f"the firmware of {target.name} ran {len(printed)} of {len(inputs)} samples; it printed last: "
            f"{text[-300:]!r}"
        )
    prints_scores = bool(printed) and printed[0][0] == "score"
    return FirmwareRun(
        outputs=np.frombuffer(blob, built.output_type).reshape(len(inputs), -1),
        ticks=np.array([int(ticks) for _, _, ticks in printed], np.int64),
        stack=int(done[2]),
        layers={int(layer): int(value) for layer, value in LAYER_PATTERN.findall(text)},
        scores=np.array([int(answer) for _, answer, _ in printed], np.int64) if prints_scores else None,
    )


def build_and_run(
    model: Mapping[str, str], target: Target, inputs: Any, work: Path
) -> tuple[BuiltFirmware, FirmwareRun]:
    """Compile a project for a target and run it on inputs.

    Args:
        model: model.h, model.c and model_weights.c, by name.
        inputs: quantized samples, shape (n, ...), in the type of the model's input.
        work: directory for the project. It is made if it does not exist.

    Raises:
        ExportError: the inputs have another size or type than the model's input, or as in `build_firmware`
            and `run_firmware`.
    """
    size, dtype = read_input_bytes(model["model.h"]), read_input_type(model["model.h"])
    if inputs.nbytes != len(inputs) * size or inputs.dtype != dtype:
        raise ExportError(
            f"the inputs are {inputs.dtype} of shape {inputs.shape}, the model takes {size} bytes of {dtype} "
            "per sample; pass samples for this model"
        )
    work.mkdir(parents=True, exist_ok=True)
    built = build_firmware(model, target, work)
    return built, run_firmware(built, inputs, work)
