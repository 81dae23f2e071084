"""Which algorithm fits the data of devices.

The rule was fixed on runs of the federations of `edgefl reproduce outcomes` with other seeds than those of
`docs/results/outcomes.md`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

USUAL_ALGORITHM = "pfl-mfe"
"""The algorithm whose models gained most over training alone where devices do not form groups."""
GROUP_ALGORITHM = "clustered"
MIN_CLASS_SHARE = 0.05
"""A device has a class if at least this share of its samples are of it; fewer may be mistakes."""
MIN_GROUP = 2
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

    Where devices form groups that share no class, an average over all of them helps no group, so each group
    gets models of its own.

    Args:
        devices: of each device the number of samples by class. At least one device.
    """
    classes = [_classes(counts) for counts in devices]
    groups = _groups(classes)
    caution = _caution([sum(counts.values()) for counts in devices], classes)
    if len(groups) > 1 and all(len(group) >= MIN_GROUP for group in groups):
        reason = (
            f"the devices form {len(groups)} groups that share no class, and it trains a model for each group"
        )
        return Recommendation(GROUP_ALGORITHM, reason, caution)
    reason = "its models were better than training alone in six of nine federations of real data"
    return Recommendation(USUAL_ALGORITHM, reason, caution)


def _classes(counts: Mapping[int, int]) -> frozenset[int]:
    least = MIN_CLASS_SHARE * sum(counts.values())
    return frozenset(label for label, count in counts.items() if label >= 0 and 0 < count >= least)


def _groups(classes: Sequence[frozenset[int]]) -> list[list[int]]:
    """Return the devices in groups, so that no class is in two groups."""
    groups: list[tuple[frozenset[int], list[int]]] = []
    for device, own in enumerate(classes):
        apart = [each for each in groups if not each[0] & own]
        joined = [each for each in groups if each[0] & own]
        known = own.union(*(each[0] for each in joined))
        members = [member for each in joined for member in each[1]]
        groups = [*apart, (known, [*members, device])]
    return [members for _, members in groups]


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
