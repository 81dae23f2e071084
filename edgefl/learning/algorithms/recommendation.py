"""Recommendation of an algorithm for the data of a set of devices.

The rule was derived from runs of the federations of `edgefl reproduce outcomes`. These runs had other seeds
than the runs in `docs/results/outcomes.md`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

USUAL_ALGORITHM = "pfl-mfe"
"""The algorithm whose models gained most over training alone when devices have 70 samples or more."""
FEW_SAMPLES_ALGORITHM = "fedmix"
"""The algorithm whose models gained most when devices have 40 samples."""
FEW_DEVICE_SAMPLES = 60
MIN_DEVICES = 4
"""Minimum number of devices for FedMix, which trains four experts."""
MIN_CLASS_SHARE = 0.05
"""Minimum share of a device's samples for a class to count. Fewer samples may be labelling mistakes."""
FEW_CLASSES = 2
MANY_DEVICE_SAMPLES = 800


@dataclass(frozen=True)
class Recommendation:
    """An algorithm for the data of a set of devices.

    Attributes:
        algorithm: name of the algorithm.
        reason: the reason, as a sentence without a full stop.
        caution: why a federation may gain little, as a sentence. Empty if nothing speaks against it.
    """

    algorithm: str
    reason: str
    caution: str = ""


def recommend(devices: Sequence[Mapping[int, int]]) -> Recommendation:
    """Return the algorithm that fits the data.

    Args:
        devices: number of samples by class, for each device. At least one device. Negative labels do not
            count as classes.
    """
    samples = [sum(counts.values()) for counts in devices]
    caution = _describe_caution(samples, [_list_classes(counts) for counts in devices])
    if _find_median(samples) < FEW_DEVICE_SAMPLES and len(devices) >= MIN_DEVICES:
        reason = (
            f"half of the devices have {_find_median(samples)} samples or fewer; with so few, its models "
            f"were 2 points better on average than the models of {USUAL_ALGORITHM}, but it sends four times "
            "as much"
        )
        return Recommendation(FEW_SAMPLES_ALGORITHM, reason, caution)
    reason = "its models were better than training alone in six of nine federations of real data"
    return Recommendation(USUAL_ALGORITHM, reason, caution)


def _list_classes(counts: Mapping[int, int]) -> frozenset[int]:
    min_count = MIN_CLASS_SHARE * sum(counts.values())
    return frozenset(label for label, count in counts.items() if label >= 0 and 0 < count >= min_count)


def _describe_caution(samples: Sequence[int], classes: Sequence[frozenset[int]]) -> str:
    if _find_median(samples) >= MANY_DEVICE_SAMPLES:
        return (
            f"Half of the devices have {_find_median(samples):,} samples or more: with that many, a model "
            "trained alone was as good"
        )
    num_classes = len(frozenset().union(*classes))
    if (
        num_classes > 2 * FEW_CLASSES
        and _find_median([len(device_classes) for device_classes in classes]) <= FEW_CLASSES
    ):
        return (
            f"Half of the devices have one or two of the {num_classes} classes: with so few, a model "
            "trained alone was as good"
        )
    return ""


def _find_median(values: Sequence[int]) -> int:
    return sorted(values)[(len(values) - 1) // 2]
