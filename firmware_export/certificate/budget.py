"""The budget of a model in RAM, flash and instructions, and the error for a model that exceeds it."""

from collections.abc import Sequence
from dataclasses import dataclass

from edgefl.base.errors import ExportError
from firmware_export.certificate.resource_usage import TargetCost
from firmware_export.codegen.c_source import LayerCost

FLASH_REMEDIES = (
    "fewer --members of a blend, or --weights 3 or 4, which stores 3 or 4 bits of a dense layer's weight",
    "fewer experts (num_experts of [algorithm]), or pfl-mfe, whose experts share their convolutions",
    "a smaller layer (options of [model]: filters, hidden) and a new federation, or a part with more flash",
)
TIME_REMEDIES = (
    "a larger --instructions, if the part is fast enough",
    "fewer members of a blend: --members",
    "fewer filters, or a larger stride or pooling (options of [model]), and a new federation",
)
RAM_REMEDIES = (
    "fewer filters, or a larger stride or pooling, in that layer (options of [model]), and a new federation",
    "smaller samples (input_shape of [model])",
    "--optimize ram, or a part with more RAM",
)
IMPORTED_FLASH_REMEDIES = (
    "a larger --flash, if the part has more flash for the model",
    "a smaller model: fewer filters or units in these layers, then train and convert it again",
    "a part with more flash, with another --target if its core differs",
)
IMPORTED_RAM_REMEDIES = (
    "--optimize ram, or a larger --ram, if the part has more RAM for the model",
    "a smaller model: fewer filters, a larger stride or pooling in these layers, or smaller samples, then "
    "train and convert it again",
    "a part with more RAM, with another --target if its core differs",
)


@dataclass(frozen=True)
class Budget:
    """What the model may need on its target. 0 is no limit.

    Attributes:
        ram_bytes: maximum RAM, including the stack.
        flash_bytes: maximum flash.
        instructions: maximum number of instructions of an inference, as a mean over samples.
    """

    ram_bytes: int = 0
    flash_bytes: int = 0
    instructions: int = 0


def check_budget(
    budget: Budget, cost: TargetCost, layers: Sequence[LayerCost], *, imported: bool = False
) -> None:
    """Check that a model fits its budget.

    Args:
        budget: what the model may need.
        cost: resources that the model needs on its target.
        layers: cost of each layer of the generated C.
        imported: whether the model is a given .tflite, so that no federation can train a smaller one.

    Raises:
        ExportError: the model exceeds the budget. The error names the excess, the largest layers and
            three remedies.
    """
    problems = []
    if budget.flash_bytes and cost.flash_bytes > budget.flash_bytes:
        largest = sorted(layers, key=lambda layer: -layer.weight_bytes)
        listed = ", ".join(f"{layer.name} {layer.weight_bytes:,}" for layer in largest[:3])
        problems.append(
            _describe_problem(
                "flash",
                cost.target,
                cost.flash_bytes,
                budget.flash_bytes,
                f"most weights, bytes: {listed}",
                IMPORTED_FLASH_REMEDIES if imported else FLASH_REMEDIES,
            )
        )
    needed = cost.ram_bytes + cost.stack_bytes
    if budget.ram_bytes and needed > budget.ram_bytes:
        largest = sorted(layers, key=lambda layer: -layer.output_bytes)
        listed = ", ".join(f"{layer.name} {layer.output_bytes:,}" for layer in largest[:3])
        problems.append(
            _describe_problem(
                "RAM",
                cost.target,
                needed,
                budget.ram_bytes,
                f"largest outputs, bytes: {listed}",
                IMPORTED_RAM_REMEDIES if imported else RAM_REMEDIES,
            )
        )
    if budget.instructions and cost.instructions_mean > budget.instructions:
        problems.append(
            f"an inference needs {cost.instructions_mean:,} instructions on {cost.target}, expected at most "
            f"{budget.instructions:,}: {cost.instructions_mean - budget.instructions:,} too many."
            f"{_list_remedies(TIME_REMEDIES)}"
        )
    if problems:
        raise ExportError("\n".join(problems))


def _describe_problem(
    kind: str, target: str, needed: int, allowed: int, where: str, remedies: Sequence[str]
) -> str:
    return (
        f"the model needs {needed:,} bytes of {kind} on {target}, expected at most {allowed:,}: "
        f"{needed - allowed:,} too many ({where}).{_list_remedies(remedies)}"
    )


def _list_remedies(remedies: Sequence[str]) -> str:
    return " Three remedies:" + "".join(f"\n  {i}. {remedy}" for i, remedy in enumerate(remedies, 1))
