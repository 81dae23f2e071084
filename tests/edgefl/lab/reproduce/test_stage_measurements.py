"""Measurements of a finished stage, by hand."""

import math

import numpy as np
import pytest

from edgefl.lab.reproduce.stage_measurements import measure_predicted_precision


def test_precision_leaves_out_classes_that_are_never_predicted():
    """3 of 4 predictions of class 0 are right, class 1 is never predicted, and class 2 is foreign."""
    first = np.array([[0, 0, 3], [0, 2, 1], [1, 0, 1]])
    only_foreign = np.array([[2, 5, 4]])
    exact = np.array([[1, 1, 2]])
    assert measure_predicted_precision([first, only_foreign, exact]) == pytest.approx((0.75 + 1) / 2)
    assert math.isnan(measure_predicted_precision([only_foreign]))
