"""Flash, RAM and instructions of a model on a core, in total and by layer, from the compiler and QEMU."""

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from firmware_export.certificate.parity import ParityResult
from firmware_export.codegen.c_source import LayerCost
from firmware_export.firmware.firmware import build_firmware, profile_firmware
from firmware_export.firmware.targets import TARGETS


@dataclass(frozen=True)
class TargetCost:
    """Resources that a model needs on a target.

    Attributes:
        target: name of the target.
        flash_bytes: flash of the model's code and constants.
        ram_bytes: RAM of the model's buffers.
        stack_bytes: stack that an inference needs.
        instructions_mean: instructions of an inference, the mean over the samples. 0 on the host, which
            cannot count them.
        instructions_worst: the maximum over the samples. 0 on the host.
        program_flash_bytes: flash of the whole program.
        program_ram_bytes: RAM of the whole program.
    """

    target: str
    flash_bytes: int
    ram_bytes: int
    stack_bytes: int
    instructions_mean: int
    instructions_worst: int
    program_flash_bytes: int
    program_ram_bytes: int


def extract_cost(result: ParityResult) -> TargetCost | None:
    """Return the cost that a target's run measured. None if the target was not run."""
    built = result.built
    ran = result.ran
    if built is None or ran is None:
        return None
    target = built.target
    mean, worst = (
        (0, 0)
        if target.is_host
        else (float(ticks) * float(target.tick) for ticks in (ran.ticks.mean(), ran.ticks.max()))
    )
    return TargetCost(
        target=target.name,
        flash_bytes=built.model.flash,
        ram_bytes=built.model.ram,
        stack_bytes=ran.stack,
        instructions_mean=round(mean),
        instructions_worst=round(worst),
        program_flash_bytes=built.image.flash,
        program_ram_bytes=built.image.ram,
    )


def profile_layers(
    model: Mapping[str, str], layers: Sequence[LayerCost], target: str, inputs: Any
) -> tuple[LayerCost, ...]:
    """Count the instructions of each layer in QEMU.

    Args:
        model: model.h, model.c and model_weights.c, by name.
        layers: the layers of the C.
        target: name of the core.
        inputs: quantized samples, shape (n, ...), int8.

    Returns:
        The layers with their instructions, as in `profile_firmware`.

    Raises:
        ExportError: the target cannot be built or run.
    """
    with tempfile.TemporaryDirectory(prefix="edgefl-profile-") as work:
        built = build_firmware(model, TARGETS[target], Path(work))
        return add_instructions(layers, profile_firmware(built, inputs, Path(work)))


def add_instructions(layers: Sequence[LayerCost], instructions: Mapping[int, int]) -> tuple[LayerCost, ...]:
    """Return the layers with their instructions.

    Args:
        layers: the layers of the C.
        instructions: instructions of each layer by its number. A missing layer has 0.
    """
    return tuple(replace(layer, instructions=instructions.get(i, 0)) for i, layer in enumerate(layers))
