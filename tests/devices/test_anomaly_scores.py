"""Scores of an exported detector, and the rate of its messages."""

from dataclasses import replace

import numpy as np
import pytest

from devices.anomaly_scores import AlarmTracker, load_window_scorer
from devices.readings import MAX_SENSORS
from edgefl.base.errors import ConfigError, DataError, StateError
from edgefl.base.storage.device_directory import DeviceFiles
from tests.devices.detectors import save_detector


def test_scores_are_losses_of_the_exported_model(tmp_path):
    scorer = load_window_scorer(DeviceFiles(save_detector(tmp_path / "pi-1")).model)
    assert (scorer.input_shape, scorer.threshold) == ((2, 2), 1.0)
    windows = np.array([[[1, 2], [3, 4]], [[-4, 2], [0, 0]], [[-4, -4], [4, 4]]], np.float32)
    assert scorer.score_windows(windows).tolist() == [0.0, 1.0, 2.0]
    assert len(scorer.score_windows(windows[:0])) == 0
    with pytest.raises(DataError, match="a window is 2x3, expected 2x2"):
        scorer.score_windows(np.zeros((1, 2, 3), np.float32))


def test_windows_of_one_reading_or_one_channel_fit_a_flat_model(tmp_path):
    scorer = load_window_scorer(DeviceFiles(save_detector(tmp_path / "pi-1")).model)
    flat = replace(scorer, input_shape=(4,), score=lambda x: x.sum(axis=1))
    assert flat.score_windows(np.ones((2, 1, 4), np.float32)).tolist() == [4, 4]
    assert flat.score_windows(np.ones((2, 4, 1), np.float32)).tolist() == [4, 4]
    with pytest.raises(DataError, match="a window is 2x2, expected 4"):
        flat.score_windows(np.ones((1, 2, 2), np.float32))


def test_window_and_model_give_the_number_of_channels(tmp_path):
    scorer = load_window_scorer(DeviceFiles(save_detector(tmp_path / "pi-1")).model)
    assert scorer.count_channels(2) == 2
    for window in (1, 3, 4, 5):
        with pytest.raises(ConfigError, match=f"--window is {window}, which does not fit .* 2x2; omit"):
            scorer.count_channels(window)
    flat = replace(scorer, input_shape=(4,))
    assert [flat.count_channels(window) for window in (1, 4)] == [4, 1]
    assert replace(scorer, input_shape=(8, 3, 1)).count_channels(8) == 3


def test_a_state_without_a_detector_is_an_error(tmp_path):
    with pytest.raises(StateError, match=r"cannot read the detector .*nowhere.*kind = 'anomaly'"):
        load_window_scorer(tmp_path / "nowhere")
    model = DeviceFiles(save_detector(tmp_path / "pi-1", kind="regression")).model
    with pytest.raises(StateError, match="is regression, expected anomaly"):
        load_window_scorer(model)


def test_a_message_is_due_for_each_change_and_at_most_once_per_interval():
    tracker = AlarmTracker(client_id="pi-1", threshold=1.0, interval_s=10.0)
    scores = [
        ("a", 0.5, 0.0),
        ("a", 0.5, 9.0),
        ("a", 2.0, 9.5),
        ("b", 0.5, 9.7),
        ("a", 0.5, 9.9),
        ("a", 0.5, 19.0),
    ]
    assert [tracker.add_score(*score) for score in scores] == [True, False, True, False, True, False]
    assert tracker.add_score("b", 0.75, 20.0)
    message = tracker.make_message(5.0)
    assert (message.score, message.alarm, message.windows, message.alarms) == (0.75, False, 7, 1)


def test_the_alarm_of_one_sensor_outlasts_normal_windows_of_another():
    tracker = AlarmTracker(client_id="pi-1", threshold=1.0, interval_s=10.0)
    assert tracker.add_score("a", 1.5, 0.0)
    assert not tracker.add_score("b", 0.5, 1.0)
    assert tracker.make_message(1.0).alarm
    tracker.forget_sensors()
    assert tracker.add_score("c", 0.5, 2.0)
    assert not tracker.make_message(2.0).alarm


def test_scores_of_many_sensors_take_limited_space():
    tracker = AlarmTracker(client_id="pi-1", threshold=1.0, interval_s=10.0)
    tracker.add_score("idle", 3.0, 0.0)
    for number in range(MAX_SENSORS):
        tracker.add_score(str(number), 0.5, 1.0)
    assert not tracker.make_message(2.0).alarm
