"""Examples and properties of windows. A stream of readings gives the same windows as the whole recording."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from devices.readings import SensorTopics, WindowCutter
from edgefl.data.sources.windows import count_windows, cut_windows, find_majority


def test_six_rows_are_cut_into_two_windows():
    rows = np.arange(12, dtype=np.float32).reshape(6, 2)
    x, y = cut_windows(rows, np.array([0, 0, 1, 1, 1, 2]), window=3, step=2)
    np.testing.assert_array_equal(x, [[[0, 1], [2, 3], [4, 5]], [[4, 5], [6, 7], [8, 9]]])
    assert y.tolist() == [0, 1]
    assert cut_windows(rows, np.zeros(6, int), window=7, step=1)[0].shape == (0, 7, 2)


def test_smallest_of_equally_frequent_labels_wins():
    assert find_majority(np.array([5, 2, 5, 2])) == 2
    assert find_majority(np.array([7, 999_999_999, 999_999_999])) == 999_999_999


sizes = {"rows": st.integers(0, 40), "window": st.integers(1, 12), "step": st.integers(1, 15)}


def make_recording(rows):
    rng = np.random.default_rng(rows)
    return rng.normal(size=(rows, 2)).astype(np.float32), rng.integers(0, 3, rows)


@given(**sizes)
def test_each_window_contains_the_rows_from_its_start(rows, window, step):
    values, labels = make_recording(rows)
    x, y = cut_windows(values, labels, window, step)
    starts = [start for start in range(0, rows, step) if start + window <= rows]
    assert len(x) == len(y) == len(starts) == count_windows(rows, window, step)
    for window_values, label, start in zip(x, y, starts, strict=True):
        np.testing.assert_array_equal(window_values, values[start : start + window])
        inside = labels[start : start + window].tolist()
        assert inside.count(label) == max(map(inside.count, inside))


@given(**sizes)
def test_stream_gives_the_same_windows_as_the_whole_recording(rows, window, step):
    values, labels = make_recording(rows)
    cut_from_stream = []
    cutter = WindowCutter(
        topics=SensorTopics("s", "label"), window=window, step=step, on_window=cut_from_stream.append
    )
    for row, label in zip(values, labels, strict=True):
        cutter.take("label", str(label).encode())
        cutter.take("s", str([float(value) for value in row]).encode())
    x, y = cut_windows(values, labels, window, step)
    assert [item.label for item in cut_from_stream] == y.tolist()
    assert [item.first_row for item in cut_from_stream] == [number * step for number in range(len(x))]
    for item, expected in zip(cut_from_stream, x, strict=True):
        np.testing.assert_array_equal(item.values, expected)
