"""Free Spoken Digit Dataset: recordings of the digits 0 to 9 at 8 kHz, 50 takes a digit, by six speakers.

Reads the folder `recordings` of the published repository, or a `spoken_digits.npz` with `audio`, int16, and
with `ends`, `y`, `speaker` and `take` of each recording.

Source: Z. Jackson et al., Jakobovski/free-spoken-digit-dataset, doi:10.5281/zenodo.1342401.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from edgefl.base.errors import DataError
from edgefl.base.types import Array
from edgefl.data.arrays import read_arrays
from edgefl.data.dataset import Dataset, divide_samples
from edgefl.data.datasets.fetch import find_file, list_data_folders
from edgefl.data.datasets.held_out import hold_out_last
from edgefl.data.datasets.joined import split_recordings
from edgefl.data.sources.sample_files import read_sample

FOLDER = "free-spoken-digit-dataset"
NUM_DIGITS = 10
FULL_SCALE = np.float32(2**15)
RATE_KIND = "a WAV at 8000 Hz"
FILE_NAME = re.compile(r"(\d)_([a-z]+)_(\d+)")
MANUAL_DOWNLOAD = (
    "run `git clone https://github.com/Jakobovski/free-spoken-digit-dataset` in the first of these folders"
)


@dataclass(frozen=True)
class Recording:
    """One recording of one digit.

    Attributes:
        digit: the digit.
        speaker: name of the speaker.
        take: number of the recording, from 0, for this digit and speaker.
        sound: the values, shape (n,), float32, from -1 to 1.
    """

    digit: int
    speaker: str
    take: int
    sound: Array


def load(*, window: int = 8000, takes: int = 0, test_share: float = 0.2) -> Dataset:
    """Load the recordings, with speakers as groups in the order of their names.

    The recordings are 0.14 to 2.3 seconds long. A shorter one than the window has zeros on both sides, and a
    longer one is cut on both sides.

    Args:
        window: values of a sample, 8,000 in a second.
        takes: training recordings of each digit of a speaker, the first ones. 0 uses all but the
            held-out ones.
        test_share: share of the recordings of each digit of a speaker to hold out, the last takes, between 0
            and 1.

    Returns:
        The data set. Sounds have shape (n, window, 1), float32, from -1 to 1.

    Raises:
        DataError: an option is out of range, or the files are missing or damaged.
    """
    if window < 1 or takes < 0:
        raise DataError(f"window is {window} and takes is {takes}, expected 1 or more and 0 or more")
    file, folder = find_file("spoken_digits.npz"), find_file(f"{FOLDER}/recordings")
    if file:
        recordings = list(_read_npz(file))
    elif folder:
        recordings = list(_read_folder(folder))
    else:
        raise DataError(
            f"no {FOLDER}/recordings in {' or '.join(map(str, list_data_folders()))}; {MANUAL_DOWNLOAD}"
        )
    if not recordings:
        raise DataError(f"{folder} has no recordings named DIGIT_SPEAKER_TAKE.wav; {MANUAL_DOWNLOAD}")
    recordings.sort(key=lambda recording: (recording.speaker, recording.digit, recording.take))
    speakers = sorted({recording.speaker for recording in recordings})
    x = np.stack([fit_window(recording.sound, window) for recording in recordings])[..., None]
    y = np.array([recording.digit for recording in recordings], np.int64)
    speaker = np.array([speakers.index(recording.speaker) for recording in recordings], np.int64)
    pair = speaker * NUM_DIGITS + y
    train, test = hold_out_last(pair, test_share)
    if takes:
        first = np.searchsorted(pair[train], pair[train])  # the recordings are sorted by pair
        train = train[np.arange(len(train)) - first < takes]
    return divide_samples(x, y, train, test, num_classes=NUM_DIGITS, group=speaker)


def fit_window(sound: Array, window: int) -> Array:
    """Return a sound with zeros on both sides, or cut on both sides, so that it has the length of a window.

    Args:
        sound: the values, shape (n,), float32.
        window: number of values to return.
    """
    cut = max(0, len(sound) - window) // 2
    middle = sound[cut : cut + window]
    before = (window - len(middle)) // 2
    return np.pad(middle, (before, window - len(middle) - before))


def _read_npz(path: Path) -> Iterator[Recording]:
    audio, ends, digits, speakers, takes = read_arrays(
        path, ("audio", "ends", "y", "speaker", "take")
    ).values()
    sounds = split_recordings(path, audio.astype(np.float32) / FULL_SCALE, ends, digits, speakers, takes)
    for sound, digit, speaker, take in zip(sounds, digits, speakers, takes, strict=True):
        yield Recording(digit=int(digit), speaker=f"{speaker:02d}", take=int(take), sound=sound)


def _read_folder(folder: Path) -> Iterator[Recording]:
    """Yield the recordings of files that are named `DIGIT_SPEAKER_TAKE.wav`."""
    for path in sorted(folder.glob("*.wav")):
        match = FILE_NAME.fullmatch(path.stem)
        if match is None:
            raise DataError(
                f"{path} is not named as a recording, expected DIGIT_SPEAKER_TAKE.wav; remove the folder "
                "and clone it again"
            )
        sample = read_sample(path)
        if sample.kind != RATE_KIND or sample.values.shape[1] != 1:
            raise DataError(
                f"{path} is {sample.kind} with {sample.values.shape[1]} channels, expected {RATE_KIND} "
                "with one; remove the folder and clone it again"
            )
        yield Recording(digit=int(match[1]), speaker=match[2], take=int(match[3]), sound=sample.values[:, 0])
