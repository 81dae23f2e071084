"""Synthetic vibration of rotating machines with bearing faults, for the detection of anomalies per machine.

No machine was measured. `edgefl.data.datasets.bearing` simulates the vibration, and states its sources. All
parameters were fixed before any model was trained on the data. Each machine differs in speed, load, noise and
resonance, and has one of four kinds of normal vibration beside its shaft. Gear mesh, valve impacts and
cavitation of a normal machine can be in the frequency band where another machine shows its faults.
"""

from collections.abc import Iterator

import numpy as np

from edgefl.base.errors import DataError
from edgefl.base.rng import derive_rng
from edgefl.base.types import Array, Labels
from edgefl.data.dataset import Dataset
from edgefl.data.datasets.bearing import FAULTS, draw_machine, draw_operating_point, simulate_vibration

WINDOW_SAMPLES = 1024
"""85 ms at 12 kHz, two to four revolutions of the shaft."""
RECORDING_WINDOWS = 10
NUM_BANDS = 128
BAND_BINS = WINDOW_SAMPLES // 2 // NUM_BANDS
MIN_POWER_G2 = 1e-8
"""Power in g² that is added to each band. Without vibration, the level of a band is 0."""
SPECTRUM_STEP = 2.0**-12
MAX_MACHINES = 1000
MAX_WINDOWS = 10_000
MIN_WINDOWS = 2

FEATURES = ("spectrum", "raw")


def load(
    *,
    machines: int = 8,
    windows: int = 400,
    test_windows: int = 200,
    features: str = "spectrum",
    seed: int = 1,
) -> Dataset:
    """Generate the windows, with machines as groups. The data are synthetic.

    All training windows are normal. Label 0 is normal, 1 a fault of the inner race, 2 of the outer race, and
    3 of a rolling element. Ten consecutive windows make a recording with one speed, load, fault and severity.
    Windows do not overlap, and no recording is in both parts. The first machines are the same for any number
    of machines, and the first windows of a machine for any number of windows.

    Args:
        machines: number of machines, from 1 to 1,000.
        windows: normal training windows of each machine, from 2 to 10,000.
        test_windows: normal test windows of each machine, from 2 to 10,000. Each machine has the same number
            of faulty test windows. The kind of fault changes with each recording.
        features: `spectrum` for levels in 128 frequency bands, see `compute_spectrum`. `raw` for the
            acceleration in g.
        seed: random seed, 0 or above. Other seeds draw other machines.

    Returns:
        The data set. Windows have shape (n, 128) for `spectrum` and (n, 1024, 1) for `raw`, float32.

    Raises:
        DataError: an option is out of range.
    """
    _check_range("machines", machines, 1, MAX_MACHINES)
    _check_range("windows", windows, MIN_WINDOWS, MAX_WINDOWS)
    _check_range("test_windows", test_windows, MIN_WINDOWS, MAX_WINDOWS)
    if features not in FEATURES:
        raise DataError(f"features is {features!r}, expected 'spectrum' or 'raw'")
    if seed < 0:
        raise DataError(f"seed is {seed}, expected 0 or above")
    parts = {"train": windows, "normal": test_windows, "faulty": test_windows}
    x: dict[str, list[Array]] = {part: [] for part in parts}
    y: dict[str, list[Labels]] = {part: [] for part in parts}
    for number in range(machines):
        for part, count in parts.items():
            for samples, fault in _generate_recordings(seed, number, part, count):
                x[part].append(compute_spectrum(samples) if features == "spectrum" else samples[..., None])
                y[part].append(np.full(len(samples), fault, np.int64))
    train_groups = np.repeat(np.arange(machines, dtype=np.int64), windows)
    test_groups = np.repeat(np.arange(machines, dtype=np.int64), test_windows)
    recordings = np.repeat(np.arange(len(y["train"]), dtype=np.int64), [len(labels) for labels in y["train"]])
    return Dataset(
        x_train=np.concatenate(x["train"]),
        y_train=np.concatenate(y["train"]),
        x_test=np.concatenate(x["normal"] + x["faulty"]),
        y_test=np.concatenate(y["normal"] + y["faulty"]),
        num_classes=1 + len(FAULTS),
        group_train=train_groups,
        group_test=np.concatenate([test_groups, test_groups]),
        note="synthetic vibration of simulated machines",
        recording_train=recordings,
    )


def compute_spectrum(windows: Array) -> Array:
    """Return the power in 128 frequency bands of 46.9 Hz, scaled by fixed constants.

    The level of a power p in g² is 1 + log10(p + 1e-8) / 8. A device can apply the same constants. Levels are
    rounded to 1/4096, so that they do not depend on the FFT of a processor.

    Args:
        windows: acceleration in g, shape (n, 1024), float32.

    Returns:
        Band levels, shape (n, 128), float32. Values are at least 0 and rarely above 1.
    """
    taper = np.hanning(WINDOW_SAMPLES + 1)[:-1]
    bins = np.fft.rfft(windows.astype(np.float64) * taper)[:, 1:]
    scale = 2 / (WINDOW_SAMPLES * (taper**2).sum())
    power = (np.abs(bins) ** 2 * scale).reshape(len(windows), NUM_BANDS, BAND_BINS).sum(axis=-1)
    level = 1 - np.log10(power + MIN_POWER_G2) / np.log10(MIN_POWER_G2)
    return np.asarray(np.rint(level / SPECTRUM_STEP) * SPECTRUM_STEP, np.float32)


def _check_range(name: str, value: int, low: int, high: int) -> None:
    if not low <= value <= high:
        raise DataError(f"{name} is {value}, expected a number from {low} to {high}")


def _generate_recordings(seed: int, number: int, part: str, count: int) -> Iterator[tuple[Array, int]]:
    """Yield the windows and the fault of each recording of a machine, `count` windows in total.

    Windows have shape (n, 1024), float32, in g. A recording has ten windows, and the last one may have fewer.
    """
    machine = draw_machine(number, derive_rng(seed, 0, f"machine-{number}"))
    for index, start in enumerate(range(0, count, RECORDING_WINDOWS)):
        fault = 1 + index % len(FAULTS) if part == "faulty" else 0
        rng = derive_rng(seed, index + 1, f"machine-{number}/{part}")
        point = draw_operating_point(machine, fault, rng)
        vibration = simulate_vibration(machine, point, RECORDING_WINDOWS * WINDOW_SAMPLES, rng)
        yield vibration.reshape(RECORDING_WINDOWS, WINDOW_SAMPLES)[: count - start], fault
