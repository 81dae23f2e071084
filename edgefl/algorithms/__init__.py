"""Federated algorithms, cut at the wire into five pure functions. `papers` has one file or folder a paper."""

from edgefl.algorithms.base import (
    CLUSTER,
    DONE,
    FEDERATE,
    PERSONALIZE,
    PRETRAIN,
    Algorithm,
    assignments,
    canonical,
)
from edgefl.algorithms.registry import (
    REGISTRY,
    full_options,
    make_algorithm,
    objectives,
    resolved_options,
)

__all__ = [
    "CLUSTER",
    "DONE",
    "FEDERATE",
    "PERSONALIZE",
    "PRETRAIN",
    "REGISTRY",
    "Algorithm",
    "assignments",
    "canonical",
    "full_options",
    "make_algorithm",
    "objectives",
    "resolved_options",
]
