"""Integer anomaly scores and their threshold, with values computed by hand."""

import numpy as np
import pytest

from edgefl.base.errors import ConfigError
from edgefl.base.tasks.detector import (
    AnomalyDetector,
    ModelTask,
    calibrate_threshold,
    decode_model_task,
    encode_model_task,
    make_score_rule,
    score_reconstructions,
)
from edgefl.base.tasks.scores import measure_sample_losses

LOSSES = ("mse", "mae", "huber")


def as_bytes(*rows: list[int]) -> np.ndarray:
    return np.array(rows, np.int8)


def test_equal_scales_count_steps() -> None:
    """Errors are 3 and 1 steps of 0.5: d = 192 and 64, e = 49152 and 16384."""
    inputs, outputs = as_bytes([10, 20]), as_bytes([12, 20])
    scales = (0.5, 1, 0.5, 0)
    mse, mae, huber = (make_score_rule(loss, *scales) for loss in LOSSES)
    assert (mse.input_multiplier, mse.output_multiplier, mse.delta) == (1 << 14, 1 << 14, 0)
    assert score_reconstructions(mse, inputs, outputs).tolist() == [(192**2 + 64**2) // 2]
    assert score_reconstructions(mae, inputs, outputs).tolist() == [(49152 + 16384) // 2]
    # delta 1 is 128 of 1/128: 128^2 + 2 * 128 * 64 for an error of 1.5, and 64^2 for one of 0.5
    assert huber.delta == 128
    assert score_reconstructions(huber, inputs, outputs).tolist() == [(128**2 + 2 * 128 * 64 + 64**2) // 2]
    # 1.5^2 / 2 + 0.5^2 / 2, and 1.5 / 2 + 0.5 / 2
    assert (192**2 + 64**2) // 2 * mse.unit == pytest.approx(1.25)
    assert (49152 + 16384) // 2 * mae.unit == pytest.approx(1.0)
    assert (128**2 + 2 * 128 * 64 + 64**2) // 2 * huber.unit == pytest.approx((1.0 + 0.125) / 2)


def test_other_scales_use_the_larger_one() -> None:
    """The input has half the scale: 4 steps of it are 2 of the output, so the error is 1 step, d = 64."""
    rule = make_score_rule("mse", 0.25, 0, 0.5, 0)
    assert (rule.input_multiplier, rule.output_multiplier) == (1 << 13, 1 << 14)
    assert score_reconstructions(rule, as_bytes([4]), as_bytes([1])).tolist() == [64**2]
    assert score_reconstructions(rule, as_bytes([4]), as_bytes([3])).tolist() == [64**2]


@pytest.mark.parametrize("loss", LOSSES)
def test_score_is_the_mean_loss_of_dequantized_bytes(loss: str) -> None:
    rng = np.random.default_rng(1)
    inputs, outputs = rng.integers(-128, 128, (2, 50, 4, 3), np.int8)
    rule = make_score_rule(loss, 0.031, -7, 0.044, 20)
    expected = measure_sample_losses(
        loss, (outputs.reshape(50, -1) - 20.0) * 0.044, (inputs.reshape(50, -1) + 7.0) * 0.031
    )
    scores = score_reconstructions(rule, inputs, outputs)
    np.testing.assert_allclose(scores * rule.unit, expected, rtol=2e-3)
    assert scores.max() < 1 << 30


def test_largest_error_fits_32_bits() -> None:
    for loss in LOSSES:
        for scale in (0.001, 0.5, 100.0):
            rule = make_score_rule(loss, scale, -128, scale, 127)
            scores = score_reconstructions(rule, as_bytes([127] * 9), as_bytes([-128] * 9))
            assert 0 < scores[0] < 1 << 32


def test_threshold_matches_hand_computed_ranks() -> None:
    """Of 19 scores and a rate of 0.1, rank 18 is the threshold. A rate of 0.05 needs 19, and 0.04 more."""
    scores = np.arange(19)[::-1] * 10
    assert calibrate_threshold(scores, 0.1) == (170, True)
    assert calibrate_threshold(scores, 0.05) == (180, True)
    assert calibrate_threshold(scores, 0.04) == (180, False)
    assert calibrate_threshold(np.array([7]), 0.01) == (7, False)


def test_threshold_keeps_the_false_alarm_rate_on_further_samples() -> None:
    rng = np.random.default_rng(2)
    shares = []
    for _ in range(400):
        scores = rng.integers(0, 1 << 30, 120)
        threshold, enough = calibrate_threshold(scores[:60], 0.05)
        assert enough
        shares.append((scores[60:] > threshold).mean())
    assert 0.03 < np.mean(shares) <= 0.052


def test_bins_are_powers_of_two_of_the_threshold() -> None:
    detector = AnomalyDetector(make_score_rule("mse", 1, 0, 1, 0), 33, 0.01)
    # limits 2, 4, 8, 16, 33, 66, 132
    scores = np.array([0, 2, 3, 4, 8, 9, 16, 17, 33, 34, 66, 67, 132, 133, 1 << 30])
    assert detector.count_bins(scores) == (2, 2, 1, 2, 2, 2, 2, 2)
    assert detector.is_alarm(scores).sum() == sum(detector.count_bins(scores)[5:]) == 6


def test_rule_of_unknown_loss_or_scale_is_refused() -> None:
    with pytest.raises(ConfigError, match="loss of the detector is 'l4', expected one of mse, mae, huber"):
        make_score_rule("l4", 1, 0, 1, 0)
    for scale in (0.0, 1e30, float("nan")):
        with pytest.raises(ConfigError, match="expected numbers above 0"):
            make_score_rule("mse", scale, 0, 1, 0)


def test_task_survives_its_encoding() -> None:
    task = ModelTask(kind="anomaly", loss="huber", anomalies=(1, 3), false_alarm_rate=0.02, threshold=12345)
    assert decode_model_task(encode_model_task(task)) == task
    assert decode_model_task(encode_model_task(ModelTask(kind="regression", loss="mae"))) == ModelTask(
        kind="regression", loss="mae"
    )


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]",
        b"{}",
        encode_model_task(ModelTask(kind="anomaly", loss="cross-entropy")),
        encode_model_task(
            ModelTask(kind="anomaly", loss="mse", anomalies=(), false_alarm_rate=0.01, threshold=-1)
        ),
        encode_model_task(
            ModelTask(kind="anomaly", loss="mse", anomalies=(), false_alarm_rate=0.01, threshold=1 << 32)
        ),
        encode_model_task(ModelTask(kind="anomaly", loss="mse", anomalies=(-1,), false_alarm_rate=0.01)),
        encode_model_task(ModelTask(kind="anomaly", loss="mse", anomalies=(), false_alarm_rate=float("nan"))),
        encode_model_task(ModelTask(kind="anomaly", loss="mse", anomalies=(), false_alarm_rate=10**400)),
    ],
)
def test_damaged_task_is_refused(content: bytes) -> None:
    with pytest.raises(ConfigError, match="record of its task cannot be read"):
        decode_model_task(content)
