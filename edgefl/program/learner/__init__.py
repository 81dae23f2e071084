"""Learners that run a plan: LiteRT on a device, Keras where TensorFlow is installed."""

from edgefl.program.learner.base import Evaluation, Learner, evaluate

__all__ = ["Evaluation", "Learner", "evaluate"]
