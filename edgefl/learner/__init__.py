"""Learners run a plan: LiteRT on a device, Keras where TensorFlow is installed."""

from edgefl.learner.base import Learner, Metrics, evaluate

__all__ = ["Learner", "Metrics", "evaluate"]
