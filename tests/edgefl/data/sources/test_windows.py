"""Windows by hand, then as properties. A stream of readings gives the same windows as the whole recording."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from devices.readings import SensorTopics, WindowCutter
from edgefl.data.sources.windows import count_windows, cut_windows, find_majority


def test_six_rows_by_hand():
    rows = np.arange(12, dtype=np.float32).reshape(6, 2)
    x, y = cut_windows(rows, np.array([0, 0, 1, 1, 1, 2]), window=3, step=2)
    np.testing.assert_array_equal(x, [[[0, 1], [2, 3], [4, 5]], [[4, 5], [6, 7], [8, 9]]])
    assert y.tolist() == [0, 1]
    assert cut_windows(rows, np.zeros(6, int), window=7, step=1)[0].shape == (0, 7, 2)


def test_of_labels_that_are_as_frequent_the_smallest_counts():
    assert find_majority(np.array([5, 2, 5, 2])) == 2
    assert find_majority(np.array([7, 999_999_999, 999_999_999])) == 999_999_999


sizes = {"rows": st.integers(0, 40), "window": st.integers(1, 12), "step": st.integers(1, 15)}


def recording(rows):
    rng = np.random.default_rng(rows)
    return rng.normal(size=(rows, 2)).astype(np.float32), rng.integers(0, 3, rows)


@given(**sizes)
def test_each_window_is_the_rows_at_its_place(rows, window, step):
    values, labels = recording(rows)
    x, y = cut_windows(values, labels, window, step)
    starts = [start for start in range(0, rows, step) if start + window <= rows]
    assert len(x) == len(y) == len(starts) == count_windows(rows, window, step)
    for each, label, start in zip(x, y, starts, strict=True):
        np.testing.assert_array_equal(each, values[start : start + window])
        inside = labels[start : start + window].tolist()
        assert inside.count(label) == max(map(inside.count, inside))


@given(**sizes)
def test_a_stream_gives_the_windows_of_the_whole_recording(rows, window, step):
    values, labels = recording(rows)
    got = []
    cutter = WindowCutter(SensorTopics("s", "label"), window, step, got.append)
    for row, label in zip(values, labels, strict=True):
        cutter.take("label", str(label).encode())
        cutter.take("s", str([float(value) for value in row]).encode())
    x, y = cut_windows(values, labels, window, step)
    assert [each.label for each in got] == y.tolist()
    assert [each.first_row for each in got] == [number * step for number in range(len(x))]
    for each, expected in zip(got, x, strict=True):
        np.testing.assert_array_equal(each.values, expected)
