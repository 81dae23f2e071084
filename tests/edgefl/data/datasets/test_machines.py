import hashlib
from dataclasses import replace

import numpy as np
import pytest

from edgefl.base.config import PartitionConfig
from edgefl.base.errors import ConfigError, DataError
from edgefl.base.rng import derive_rng
from edgefl.base.types import Array
from edgefl.data import Dataset, list_datasets, load_dataset, make_shards
from edgefl.data.datasets.bearing import (
    BEARINGS,
    FAULTS,
    KINDS,
    SAMPLE_RATE_HZ,
    OperatingPoint,
    RotatingMachine,
    Signal,
    draw_machine,
    draw_operating_point,
    simulate_vibration,
)
from edgefl.data.datasets.machines import compute_spectrum
from edgefl.learning.client.validation import hold_out_validation

MOTOR = RotatingMachine(
    kind="motor",
    bearing=BEARINGS[0],
    speed_hz=30.0,
    load=1.0,
    noise_g=0.02,
    corner_hz=4000.0,
    resonance_hz=3000.0,
    damping=0.04,
    resonance_gain=1.0,
    harmonics_g=(0.05, 0.01, 0.01),
    phases=(0.0, 0.0, 0.0),
    source_count=0,
    source_hz=3000.0,
    source_level_db=0.0,
)
"""Shaft at 30 Hz with the bearing 6205-2RS JEM and a resonance at 3 kHz."""


def compute_envelope_spectrum(signal: Array, centre_hz: float) -> tuple[Signal, Signal]:
    """Return frequencies and relative amplitudes of the squared envelope in a band of 1 kHz."""
    spectrum = np.fft.fft(signal)
    bins_hz = np.fft.fftfreq(len(signal), 1 / SAMPLE_RATE_HZ)
    analytic = np.fft.ifft(np.where(abs(bins_hz - centre_hz) < 500, 2 * spectrum, 0))
    squared = abs(analytic) ** 2
    amplitudes = abs(np.fft.rfft((squared - squared.mean()) * np.hanning(len(signal))))
    hz = np.fft.rfftfreq(len(signal), 1 / SAMPLE_RATE_HZ).astype(np.float64)
    return hz, amplitudes / np.median(amplitudes[hz < 500])


def find_peak(hz: Signal, amplitudes: Signal, low: float, high: float) -> tuple[float, float]:
    """Return frequency and height of the highest peak between two frequencies."""
    rows = np.flatnonzero((hz >= low) & (hz <= high))
    peak = rows[amplitudes[rows].argmax()]
    return float(hz[peak]), float(amplitudes[peak])


def digest_parts(dataset: Dataset) -> str:
    return hashlib.sha256(dataset.x_train.tobytes() + dataset.x_test.tobytes()).hexdigest()[:16]


def simulate(fault: int) -> Array:
    point = OperatingPoint(speed_hz=30.0, load=1.0, noise_g=0.02, fault=fault, severity_db=6.0)
    return simulate_vibration(MOTOR, point, 60_000, derive_rng(3, fault, "test"))


@pytest.mark.parametrize(
    ("bearing", "balls", "ball_inch", "pitch_inch"), [(0, 9, 0.3126, 1.537), (1, 8, 0.2656, 1.122)]
)
def test_published_fault_frequencies_follow_from_the_geometry(
    bearing: int, balls: int, ball_inch: float, pitch_inch: float
) -> None:
    ratio = ball_inch / pitch_inch  # contact angle 0
    published = BEARINGS[bearing]
    assert published.inner_race == pytest.approx(balls / 2 * (1 + ratio), abs=3e-4)
    assert published.outer_race == pytest.approx(balls / 2 * (1 - ratio), abs=3e-4)
    assert published.rolling_element == pytest.approx((1 - ratio**2) / ratio, abs=3e-4)
    assert published.cage == pytest.approx((1 - ratio) / 2, abs=3e-4)


# 30 Hz times 5.4152, 3.5848 and 4.7135.
@pytest.mark.parametrize(("fault", "expected_hz"), [(1, 162.456), (2, 107.544), (3, 141.405)])
def test_envelope_shows_the_fault_frequency(fault: int, expected_hz: float) -> None:
    hz, amplitudes = compute_envelope_spectrum(simulate(fault), 3000.0)
    peak_hz, height = find_peak(hz, amplitudes, 100.0, 180.0)
    assert peak_hz == pytest.approx(expected_hz, rel=0.01)  # slip adds up over 5 s
    assert height > 10
    hz, amplitudes = compute_envelope_spectrum(simulate(0), 3000.0)
    assert find_peak(hz, amplitudes, expected_hz - 3, expected_hz + 3)[1] < 5


def test_load_zone_modulates_inner_race_and_rolling_element() -> None:
    # Sidebands: the shaft at 30 Hz around the inner race, the cage at 30 x 0.39828 = 11.948 Hz.
    for fault, centre, distance in ((1, 162.456, 30.0), (3, 141.405, 11.948)):
        hz, amplitudes = compute_envelope_spectrum(simulate(fault), 3000.0)
        for side in (centre - distance, centre + distance):
            assert find_peak(hz, amplitudes, side - 2.5, side + 2.5)[1] > 5
    hz, amplitudes = compute_envelope_spectrum(simulate(2), 3000.0)
    assert find_peak(hz, amplitudes, 28, 32)[1] < 5  # the outer race does not turn


def test_raw_windows_show_the_fault_frequency() -> None:
    dataset = load_dataset("machines", {"machines": 1, "windows": 10, "test_windows": 30, "features": "raw"})
    machine = draw_machine(0, derive_rng(1, 0, "machine-0"))
    outer = dataset.x_test[dataset.y_test == 2, :, 0].reshape(-1)  # ten windows of one recording
    point = draw_operating_point(machine, 2, derive_rng(1, 2, "machine-0/faulty"))
    expected_hz = 3.5848 * point.speed_hz
    hz, amplitudes = compute_envelope_spectrum(outer, machine.resonance_hz)
    peak_hz, height = find_peak(hz, amplitudes, expected_hz - 30, expected_hz + 30)
    assert peak_hz == pytest.approx(expected_hz, rel=0.02) and height > 8
    normal = dataset.x_test[:10, :, 0].reshape(-1)
    hz, amplitudes = compute_envelope_spectrum(normal, machine.resonance_hz)
    assert find_peak(hz, amplitudes, expected_hz - 4, expected_hz + 4)[1] < 5


def test_shaft_harmonics_have_their_amplitude() -> None:
    signal = simulate(0)
    hz = np.fft.rfftfreq(len(signal), 1 / SAMPLE_RATE_HZ)
    power = 2 * abs(np.fft.rfft(signal) / len(signal)) ** 2
    rms = np.sqrt(power[(hz > 28) & (hz < 32)].sum())
    assert rms == pytest.approx(0.05 / 2**0.5, rel=0.05)


def test_severity_is_the_level_over_the_noise() -> None:
    # Noise, hum and fault have 0.02, 0.02 and 0.04 g RMS, harmonics 0.0514 / sqrt(2) g.
    expected = np.sqrt(0.02**2 + 0.02**2 + 0.02**2 * 10**0.6 + (0.05**2 + 2 * 0.01**2) / 2)
    assert simulate(2).std() == pytest.approx(expected, rel=0.03)


def test_samples_are_steps_of_the_sensor() -> None:
    loud = replace(MOTOR, harmonics_g=(20.0, 0.0, 0.0))
    point = OperatingPoint(speed_hz=30.0, load=1.0, noise_g=0.02, fault=0, severity_db=0.0)
    signal = simulate_vibration(loud, point, 4096, derive_rng(1, 0))
    assert (signal.min(), signal.max()) == (-8, 8 - 2**-12)
    assert (signal * 4096 == np.rint(signal * 4096)).all()


def test_spectrum_of_a_sine_is_its_power() -> None:
    time = np.arange(1024) / SAMPLE_RATE_HZ
    # Bin 42 is in band 10, which has the bins 41 to 44. An amplitude of sqrt(2) g has the power 1 g².
    sine = np.sqrt(2) * np.sin(2 * np.pi * 42 * SAMPLE_RATE_HZ / 1024 * time)
    windows = np.stack([sine, sine / 100, np.zeros(1024)]).astype(np.float32)
    spectrum = compute_spectrum(windows)
    assert spectrum.shape == (3, 128) and spectrum.dtype == np.float32
    assert spectrum[0, 10] == pytest.approx(1, abs=2**-12)
    assert spectrum[1, 10] == pytest.approx(0.5, abs=2**-11)  # -40 of -80 dB
    assert spectrum[0].argmax() == 10 and spectrum[0, 20] < 0.2
    assert (spectrum[2] == 0).all()


def test_data_set_is_called_synthetic_and_needs_no_files() -> None:
    row = next(row for row in list_datasets() if row["name"] == "machines")
    assert "synthetic" in row["about"] and row["here"]
    assert "synthetic" in load_dataset("machines", {"machines": 1, "windows": 2, "test_windows": 2}).note


def test_same_options_give_the_same_bits() -> None:
    options = {"machines": 8, "windows": 10, "test_windows": 10}
    spectrum = load_dataset("machines", options)
    raw = load_dataset("machines", {**options, "features": "raw"})
    assert digest_parts(spectrum) == "87cda35c57fa06a6"
    assert digest_parts(raw) == "1da9030434a7fcc6"
    again = load_dataset("machines", options)
    np.testing.assert_array_equal(again.x_test, spectrum.x_test)
    np.testing.assert_array_equal(compute_spectrum(raw.x_test[..., 0]), spectrum.x_test)
    other = load_dataset("machines", {**options, "seed": 2})
    assert not np.array_equal(other.x_train, spectrum.x_train)


def test_longer_data_sets_begin_with_the_shorter_ones() -> None:
    short = load_dataset("machines", {"machines": 2, "windows": 15, "test_windows": 5})
    long = load_dataset("machines", {"machines": 3, "windows": 20, "test_windows": 10})
    for machine in range(2):
        expected = long.x_train[long.group_train == machine]
        np.testing.assert_array_equal(short.x_train[short.group_train == machine], expected[:15])
    np.testing.assert_array_equal(short.x_test[:5], long.x_test[:5])
    assert short.recording_train is not None
    assert short.recording_train.tolist() == [0] * 10 + [1] * 5 + [2] * 10 + [3] * 5


def test_machines_differ() -> None:
    machines = [draw_machine(number, derive_rng(1, 0, f"machine-{number}")) for number in range(8)]
    assert {(machine.kind, machine.bearing.name) for machine in machines} == {
        (kind, bearing.name) for kind in KINDS for bearing in BEARINGS
    }
    for name in ("speed_hz", "load", "noise_g", "resonance_hz"):
        assert len({getattr(machine, name) for machine in machines}) == 8
    dataset = load_dataset("machines", {"windows": 50, "test_windows": 2})
    means = np.stack([dataset.x_train[dataset.group_train == number].mean(axis=0) for number in range(8)])
    spread = np.stack([dataset.x_train[dataset.group_train == number].std(axis=0) for number in range(8)])
    distances = np.sqrt(((means[:, None] - means) ** 2).mean(axis=-1)) + np.eye(8)
    assert distances.min() > spread.mean() / 2


def test_each_client_has_one_machine_with_normal_and_faulty_test_windows() -> None:
    dataset = load_dataset("machines", {"windows": 40, "test_windows": 30})
    shards = make_shards(dataset, PartitionConfig(name="group", num_clients=8), seed=1)
    for number, shard in enumerate(shards.values()):
        assert shard.x_train.shape == (40, 128) and shard.x_test.shape == (60, 128)
        np.testing.assert_array_equal(shard.x_train, dataset.x_train[dataset.group_train == number])
        np.testing.assert_array_equal(shard.x_test, dataset.x_test[dataset.group_test == number])
        assert np.bincount(shard.y_train).tolist() == [40]
        assert np.bincount(shard.y_test).tolist() == [30, 10, 10, 10]
        assert shard.num_classes == 1 + len(FAULTS)
        assert shard.group_train is not None and len(np.unique(shard.group_train)) == 4
        split = hold_out_validation(
            shard, 0.25, 1, "client-000"
        )  # a whole recording, though there is one class
        assert split.group is not None and len(split.y) == 10 and len(np.unique(split.group)) == 1


def test_raw_windows_have_a_channel_axis() -> None:
    dataset = load_dataset("machines", {"machines": 2, "windows": 3, "test_windows": 4, "features": "raw"})
    assert dataset.x_train.shape == (6, 1024, 1) and dataset.x_test.shape == (16, 1024, 1)
    assert dataset.x_train.dtype == np.float32


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"machines": 0}, "machines is 0, expected a number from 1 to 1000"),
        ({"machines": 1001}, "machines is 1001"),
        ({"windows": 1}, "windows is 1, expected a number from 2 to 10000"),
        ({"test_windows": 0}, "test_windows is 0"),
        ({"features": "envelope"}, "features is 'envelope', expected 'spectrum' or 'raw'"),
        ({"seed": -1}, "seed is -1, expected 0 or above"),
    ],
)
def test_options_out_of_range_are_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(DataError, match=message):
        load_dataset("machines", options)


def test_unknown_options_are_refused() -> None:
    message = r"\[data\] machines has an unknown option 'machine'; did you mean 'machines'\?"
    with pytest.raises(ConfigError, match=message):
        load_dataset("machines", {"machine": 3})
