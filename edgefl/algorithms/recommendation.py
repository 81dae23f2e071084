"""Which algorithm fits the data of devices.

The rule was fixed on runs of the federations of `edgefl reproduce outcomes` with other seeds than those of
`docs/results/outcomes.md`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

USUAL_ALGORITHM = "pfl-mfe"
"""The algorithm whose models gained most over training alone where devices have 70 samples or more."""
FEW_SAMPLES_ALGORITHM = "fedmix"
"""The algorithm whose models gained most where devices have 40 samples."""
FEW_SAMPLES = 60
MIN_DEVICES = 4
"""FedMix trains four experts, which need as many devices."""
MIN_CLASS_SHARE = 0.05
"""A device has a class if at least this share of its samples are of it; fewer may be mistakes."""
FEW_CLASSES = 2
MANY_SAMPLES = 800


@dataclass(frozen=True)
class Recommendation:
    """An algorithm for the data of devices.

    Attributes:
        algorithm: its name.
        reason: why, as a sentence without a full stop.
        caution: why a federation may bring little, as a sentence; empty where nothing speaks against it.
    """

    algorithm: str
    reason: str
    caution: str = ""


def recommend(devices: Sequence[Mapping[int, int]]) -> Recommendation:
    """Return the algorithm that fits.

    Args:
        devices: of each device the number of samples by class. At least one device.
    """
    samples = [sum(counts.values()) for counts in devices]
    caution = _caution(samples, [_classes(counts) for counts in devices])
    if _median(samples) < FEW_SAMPLES and len(devices) >= MIN_DEVICES:
        reason = (
            f"half of the devices have {_median(samples)} samples or fewer; with so few its models were up "
            f"to 6 points better than those of {USUAL_ALGORITHM}, and it sends four times as much"
        )
        return Recommendation(FEW_SAMPLES_ALGORITHM, reason, caution)
    reason = "its models were better than training alone in six of nine federations of real data"
    return Recommendation(USUAL_ALGORITHM, reason, caution)


def _classes(counts: Mapping[int, int]) -> frozenset[int]:
    least = MIN_CLASS_SHARE * sum(counts.values())
    return frozenset(label for label, count in counts.items() if label >= 0 and 0 < count >= least)


def _caution(samples: Sequence[int], classes: Sequence[frozenset[int]]) -> str:
    if _median(samples) >= MANY_SAMPLES:
        return (
            f"Half of the devices have {_median(samples):,} samples or more: with that many, a model trained "
            "alone was as good"
        )
    known = len(frozenset().union(*classes))
    if known > 2 * FEW_CLASSES and _median([len(own) for own in classes]) <= FEW_CLASSES:
        return (
            f"Half of the devices have one or two of the {known} classes: with so few, a model trained alone "
            "was as good"
        )
    return ""


def _median(values: Sequence[int]) -> int:
    return sorted(values)[(len(values) - 1) // 2]
