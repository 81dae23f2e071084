"""Algorithms: one paper, one file; pure functions on the two sides of the wire."""

from edgefl.algorithms.base import DONE, FEDERATE, PERSONALIZE, Algorithm, canonical
from edgefl.algorithms.registry import REGISTRY, full_options, make_algorithm, objectives

__all__ = [
    "DONE", "FEDERATE", "PERSONALIZE", "REGISTRY", "Algorithm", "canonical", "full_options", "make_algorithm", "objectives",
]  # fmt: skip
