"""What a model takes of a core: flash, RAM and instructions, in all and by layer, as the compiler and QEMU
give them.
"""

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from firmware_export.certificate.parity import ParityResult
from firmware_export.codegen.c_source import LayerCost
from firmware_export.firmware.firmware import build_and_run
from firmware_export.firmware.targets import TARGETS, Target

MAX_PROFILED_SAMPLES = 20
"""Samples that a profile runs."""


@dataclass(frozen=True)
class TargetCost:
    """Bytes of the model's own code, constants and buffers (`flash`, `ram`), of stack that an inference
    needs, and of the whole program.

    instructions: of an inference; the mean and the most over the samples; 0 where they are not counted (on
    the host).
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
    """Return what a place measured; None where nothing ran."""
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
        target.name,
        built.model.flash,
        built.model.ram,
        ran.stack,
        round(mean),
        round(worst),
        built.image.flash,
        built.image.ram,
    )


def profile_layers(
    model: Mapping[str, str], layers: Sequence[LayerCost], target: str, inputs: Any
) -> tuple[LayerCost, ...]:
    """Return the layers with the instructions that each takes, the mean over at most 20 of the inputs int8[n,
    ...].

    A layer that the compiler merged into another has none of its own. Raises ExportError when the target
    cannot be built or run.
    """
    chosen: Target = TARGETS[target]
    samples = np.asarray(inputs)[:MAX_PROFILED_SAMPLES]
    with tempfile.TemporaryDirectory(prefix="edgefl-profile-") as work:
        _, ran = build_and_run(model, chosen, samples, Path(work), profile=True)
    scale = float(chosen.tick) / len(samples)
    return tuple(
        replace(layer, instructions=round(ran.layers.get(i, 0) * scale)) for i, layer in enumerate(layers)
    )
