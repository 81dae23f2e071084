"""Arrays of sample files whose test samples are held out by different rules."""

import numpy as np


def windows_of(count: int, step: int, seed: int) -> np.ndarray:
    """Return float32[count, 16, 2], windows that were cut from noise each `step` rows."""
    signal = np.random.default_rng(seed).normal(size=(count * step + 16, 2)).astype(np.float32)
    return np.stack([signal[start : start + 16] for start in range(0, count * step, step)])


SAMPLE_FILES = {
    "recordings": {"x": windows_of(60, 4, 1), "y": np.arange(60) // 20},
    "groups": {
        "x": windows_of(60, 16, 2),
        "y": np.arange(60) % 3,
        "group": np.array([f"r{number}" for number in np.arange(60) // 5]),
    },
    "time": {"x": windows_of(60, 16, 3), "y": np.arange(60) % 3},
    "ring": {
        "x": windows_of(100, 8, 4),
        "y": np.arange(100) % 3,
        "window_number": np.arange(100) + 7,
        "recording": np.full(100, 7),
        "first_row": np.arange(100) * 8,
    },
}
