"""Measures exports of one member of a blend, of two, and so on, and chooses how many an export takes."""

import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from edgefl.base.errors import ExportError
from edgefl.base.system.format import align_columns, format_percent
from edgefl.base.types import Array, Labels
from firmware_export.certificate.budget import Budget
from firmware_export.certificate.bundle import MODEL_FILE
from firmware_export.certificate.certificate import ExportRequest
from firmware_export.certificate.golden import make_golden
from firmware_export.certificate.parity import run_everywhere
from firmware_export.certificate.resource_usage import TargetCost, extract_cost
from firmware_export.firmware.targets import TARGETS
from firmware_export.quantize.report import ExportReport

COUNTED_SAMPLES = 5
"""Number of samples whose instructions are counted."""


@dataclass(frozen=True)
class MemberExport:
    """The measured export of some members of a blend.

    Attributes:
        names: the members.
        score_int8: accuracy of the int8 model on the samples of the export's report, or R2 in a regression.
            None if the model cannot be exported.
        cost: what the model needs on the target. None if the target's tools are missing, or if the model does
            not fit or cannot be exported.
    """

    names: tuple[str, ...]
    score_int8: float | None
    cost: TargetCost | None


def measure_member_exports(
    export: Callable[[Path, int], ExportReport],
    names: Sequence[tuple[str, ...]],
    x: Array,
    y: Labels,
    request: ExportRequest,
) -> tuple[MemberExport, ...]:
    """Export a blend with one member, with two, and so on, and measure each model on a target.

    Args:
        export: writes the export with at most this number of members to a folder.
        names: the members of each export.
        x: samples, shape (n, ...), float32. The first `COUNTED_SAMPLES` are run.
        y: their labels, shape (n,), int64.
    """
    exports = []
    for number, members in enumerate(names, 1):
        score, cost = None, None
        with suppress(ExportError), tempfile.TemporaryDirectory(prefix="edgefl-members-") as work:
            report = export(Path(work), number)
            score = report.accuracy_int8 if report.task is None else report.task["r2_int8"]
            model = (Path(work) / MODEL_FILE).read_bytes()
            source = request.generate_source(model)
            golden = make_golden(model, x[:COUNTED_SAMPLES], y[:COUNTED_SAMPLES])
            # No target is the export's own here, so a model that does not fit is no error
            (result,) = run_everywhere(source.files, golden, [TARGETS[request.target]], "")
            cost = extract_cost(result)
        exports.append(MemberExport(members, score, cost))
    return tuple(exports)


def choose_member_count(exports: Sequence[MemberExport], budget: Budget) -> int:
    """Return the largest number of members within a budget. It is one without all three limits.

    Args:
        exports: the exports with one member, with two, and so on.
        budget: what the model may need.
    """
    if not (budget.ram_bytes and budget.flash_bytes and budget.instructions):
        return 1
    return max((len(export.names) for export in exports if _fits(export.cost, budget)), default=1)


def _fits(cost: TargetCost | None, budget: Budget) -> bool:
    return (
        cost is not None
        and cost.flash_bytes <= budget.flash_bytes
        and cost.ram_bytes + cost.stack_bytes <= budget.ram_bytes
        and 0 < cost.instructions_mean <= budget.instructions
    )


def describe_member_exports(exports: Sequence[MemberExport], chosen: int, score: str = "accuracy") -> str:
    """Return a table of the exports with a star at the chosen one, and how to choose another one.

    Args:
        exports: the exports with one member, with two, and so on.
        score: name of the score, such as accuracy.
    """
    rows: list[tuple[str, ...]] = [
        ("members", f"int8 {score}", "flash bytes", "RAM and stack bytes", "instructions", "")
    ]
    for export in exports:
        cost = export.cost
        costs = (
            (cost.flash_bytes, cost.ram_bytes + cost.stack_bytes, cost.instructions_mean)
            if cost
            else (0,) * 3
        )
        rows.append(
            (
                ", ".join(export.names),
                format_percent(export.score_int8),
                *(f"{value:,}" if value else "-" for value in costs),
                "*" if len(export.names) == chosen else "",
            )
        )
    return (
        f"{align_columns(rows)}\n* exported: {chosen} of {len(exports)} members. --members takes another "
        "number. With --ram, --flash and --instructions together, the export takes as many as fit."
    )
