"""Learners run a plan's signatures. One interface: LiteRT (default), Keras (the oracle, GPU boards), numpy
softmax (tests).
"""

from edgefl.learner.base import Learner, Metrics, evaluate

__all__ = ["Learner", "Metrics", "evaluate"]
