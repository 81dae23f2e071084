"""Drift of a mixture in the field, measured by how often the gate uses each expert.

It compares the counters of templates/drift/drift.c with the gate's use at export:

    PSI = sum_k (p_k - q_k) ln(p_k / q_k)

p holds the experts' shares now, q those at export. Half a count is added to each.

The population stability index is the symmetric Kullback-Leibler divergence. Without drift, n and m counts
give it (1/n + 1/m) times a chi-squared value of k - 1 degrees of freedom. A small sample alone therefore does
not raise an alarm.

Source: Jeffreys, 1946, for the divergence. Siddiqi, 2006, for the threshold of 0.25.
"""

import struct
from dataclasses import dataclass
from typing import Any

import numpy as np

from edgefl.base.errors import ExportError

COUNTERS_HEADER = struct.Struct("<4sIII")
COUNTERS_MAGIC = b"EFLD"
MAX_EXPERTS = 256
LARGE_PSI = 0.25
"""Index above which a change of population counts as large (Siddiqi, 2006)."""
ALARM_QUANTILE = 3.09
"""Normal quantile for one false alarm in a thousand."""


@dataclass(frozen=True)
class GateUsage:
    """How often a gate used each expert.

    Attributes:
        inferences: number of inferences.
        chosen: number of inferences in which each expert had the largest gate value.
        shares: mean gate value of each expert.
        entropy_bits: entropy of the gate values in bits, the mean over inferences.
        ties: number of inferences with several largest values.
    """

    inferences: int
    chosen: tuple[int, ...]
    shares: tuple[float, ...]
    entropy_bits: float
    ties: int


@dataclass(frozen=True)
class DriftResult:
    """The drift between two counts.

    Attributes:
        psi: population stability index.
        noise: the index that chance exceeds once in a thousand counts.
        entropy_change_bits: change of the mean entropy in bits.
        drifted: whether the index is above `noise` and above LARGE_PSI.
    """

    psi: float
    noise: float
    entropy_change_bits: float
    drifted: bool


def read_counters(content: bytes) -> GateUsage:
    """Read the counters of a firmware.

    Args:
        content: the bytes of the firmware's `struct drift`.

    Raises:
        ExportError: the bytes are not such a struct, or its counts contradict each other.
    """
    if len(content) < COUNTERS_HEADER.size or content[:4] != COUNTERS_MAGIC:
        raise ExportError(
            f"{len(content)} bytes are not drift counters: expected the mark EFLD; dump the firmware's "
            "struct drift"
        )
    _, experts, inferences, ties = COUNTERS_HEADER.unpack_from(content)
    size = COUNTERS_HEADER.size + 8 * experts + 8
    if not 1 <= experts <= MAX_EXPERTS or len(content) != size:
        raise ExportError(
            f"drift counters of {experts} experts have {size} bytes, got {len(content)}; dump the whole "
            "struct drift"
        )
    values = np.frombuffer(content, "<u4", 2 * experts, COUNTERS_HEADER.size)
    (entropy,) = struct.unpack_from("<Q", content, size - 8)
    chosen = values[:experts]
    weight = values[experts:]
    if chosen.sum() != inferences or ties > inferences:
        raise ExportError(
            f"drift counters of {inferences} inferences chose {chosen.sum()} experts; the dump is damaged, "
            "read it again"
        )
    per = max(1, inferences)
    return GateUsage(
        inferences=inferences,
        chosen=tuple(map(int, chosen)),
        shares=tuple(float(w) / 256 / per for w in weight),
        entropy_bits=entropy / 65536 / per,
        ties=ties,
    )


def measure_drift(now: GateUsage, before: GateUsage) -> DriftResult:
    """Return the drift between two counts of the same gate.

    Args:
        now: use of the gate in the field, from `read_counters`.
        before: use of the gate at export, from `measure_gate_usage`.

    Raises:
        ExportError: a count has no inferences, or the counts have different numbers of experts.
    """
    if len(now.chosen) != len(before.chosen):
        raise ExportError(
            f"the counters are for {len(now.chosen)} experts, the export has {len(before.chosen)}; dump the "
            "counters of this export's firmware"
        )
    if not now.inferences or not before.inferences:
        raise ExportError("no inferences were counted, expected at least one; let the firmware run first")
    p, q = ((np.array(u.chosen) + 0.5) / (u.inferences + 0.5 * len(u.chosen)) for u in (now, before))
    psi = float(((p - q) * np.log(p / q)).sum())
    noise = _estimate_chi_squared(len(p) - 1) * (1 / now.inferences + 1 / before.inferences)
    return DriftResult(
        psi=psi,
        noise=noise,
        entropy_change_bits=now.entropy_bits - before.entropy_bits,
        drifted=psi > max(LARGE_PSI, noise),
    )


def _estimate_chi_squared(degrees: int) -> float:
    """Return the 0.999 quantile of a chi-squared value (Wilson and Hilferty, 1931)."""
    if not degrees:
        return 0.0
    part = 2 / (9 * degrees)
    return float(degrees * (1 - part + ALARM_QUANTILE * part**0.5) ** 3)


def as_values(usage: GateUsage, drift: DriftResult) -> dict[str, Any]:
    """Return the figures by name, as `edgefl export drift --json` prints them.

    The figures are counts and means over all inferences. They contain no samples.

    Args:
        usage: use of the gate in the field, from `read_counters`.
        drift: result of `measure_drift` for `usage`.
    """
    return {
        "inferences": usage.inferences,
        "ties": usage.ties,
        "entropy_bits": usage.entropy_bits,
        "chosen": list(usage.chosen),
        "shares": list(usage.shares),
        "psi": drift.psi,
        "noise": drift.noise,
        "entropy_change_bits": drift.entropy_change_bits,
        "drifted": drift.drifted,
    }
