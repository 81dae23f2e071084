"""Federated algorithms, each split at the network into five pure functions.

The package `papers` has one module or package for each paper.
"""

from edgefl.learning.algorithms.base import (
    PHASE_CLUSTER,
    PHASE_DONE,
    PHASE_FEDERATE,
    PHASE_MEASURE,
    PHASE_PERSONALIZE,
    PHASE_PRETRAIN,
    Algorithm,
    TrainedModels,
    canonicalize_updates,
    read_assignments,
)
from edgefl.learning.algorithms.registry import (
    REGISTRY,
    build_objectives,
    complete_algorithm_options,
    make_algorithm,
    resolve_algorithm_options,
)

__all__ = [
    "PHASE_CLUSTER",
    "PHASE_DONE",
    "PHASE_FEDERATE",
    "PHASE_MEASURE",
    "PHASE_PERSONALIZE",
    "PHASE_PRETRAIN",
    "REGISTRY",
    "Algorithm",
    "TrainedModels",
    "build_objectives",
    "canonicalize_updates",
    "complete_algorithm_options",
    "make_algorithm",
    "read_assignments",
    "resolve_algorithm_options",
]
