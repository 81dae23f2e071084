"""Reads one sample from one file: `.npy`, `.png` or `.jpg` (with Pillow), or `.wav`."""

import struct
import tokenize
import wave
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgefl.base.errors import DataError
from edgefl.data.arrays import explain_read_error
from edgefl.data.dataset import resize_pictures

SUFFIXES = (".npy", ".png", ".jpg", ".jpeg", ".wav")
PICTURE_SUFFIXES = (".png", ".jpg", ".jpeg")
# Bytes per value of a WAV file: stored type, zero, full scale.
WAV_FORMATS = {1: ("u1", 128, 2.0**7), 2: ("<i2", 0, 2.0**15), 4: ("<i4", 0, 2.0**31)}

MIN_CHECKED_PIXELS = 2**20
MAX_PIXELS_PER_BYTE = 100
"""Larger pictures have at most this many pixels per byte of their file. A photo has about 10."""


@dataclass(frozen=True)
class Sample:
    """A sample and the kind of its file.

    Attributes:
        values: the sample. Pictures are uint8 and are scaled later. Other samples are uint8 or float32.
        kind: a property that all samples of a folder must share, such as the sample rate.
        channels: names of the channels, which contain the rate of a sound. Empty for other samples.
    """

    values: NDArray[Any]
    kind: str
    channels: tuple[str, ...] = ()


def read_sample(path: Path, size: tuple[int, ...] = ()) -> Sample:
    """Read a sample from a file.

    Args:
        size: rows and columns to which a picture is resized, empty to keep its size.

    Raises:
        DataError: the suffix is unknown, or the file is damaged or does not match its suffix.
    """
    readers = dict(zip(SUFFIXES, (_read_npy, _read_png, _read_jpeg, _read_jpeg, _read_wav), strict=True))
    reader = readers.get(path.suffix.lower())
    if reader is None or not path.is_file():
        raise DataError(
            f"{path} is not a sample, expected a file named {', '.join(SUFFIXES)}; move it to another folder"
        )
    if size and path.suffix.lower() not in PICTURE_SUFFIXES:
        raise DataError(f"{path} is no picture, so --resize cannot resize it; leave --resize out")
    sample = reader(path)
    if not size:
        return sample
    return Sample(resize_pictures(sample.values[None], *size)[0], sample.kind)


def _read_npy(path: Path) -> Sample:
    try:
        # Mapped, so that a damaged header with a huge shape allocates no memory.
        values = np.load(path, mmap_mode="r", allow_pickle=False)
    except (
        OSError,
        ValueError,
        EOFError,
        TypeError,
        SyntaxError,
        OverflowError,
        tokenize.TokenError,
    ) as error:
        raise DataError(
            f"{path} cannot be read as .npy: {explain_read_error(error)}; write it with numpy.save"
        ) from error
    if (
        not isinstance(values, np.ndarray)
        or (values.dtype != np.uint8 and values.dtype.kind != "f")
        or values.ndim == 0
    ):
        received = f"{values.dtype}{list(values.shape)}" if isinstance(values, np.ndarray) else "an archive"
        raise DataError(
            f"{path} is {received}, expected an array of uint8 or floats; convert it with x.astype('float32')"
        )
    if values.dtype == np.uint8:
        return Sample(values, "uint8")
    with np.errstate(over="ignore"):
        floats = np.asarray(values, np.float32)
    if not np.isfinite(floats).all():
        raise DataError(f"{path} holds NaN or infinite values; clean it, or remove it")
    return Sample(floats, "floats")


def _read_png(path: Path) -> Sample:
    return _read_picture(path, "PNG")


def _read_jpeg(path: Path) -> Sample:
    return _read_picture(path, "JPEG")


def _read_picture(path: Path, form: str) -> Sample:
    try:
        from PIL import Image, ImageOps
    except ImportError as error:
        raise DataError(
            f"{path} is a picture, which needs Pillow; run pip install 'edgefl-tinyml[images]'"
        ) from error
    try:
        with Image.open(path, formats=[form]) as image:
            _check_picture_size(path, image.width * image.height)
            mode = {"1": "L", "P": "RGB"}.get(image.mode, image.mode)
            if mode not in ("L", "RGB") or "transparency" in image.info:
                transparent = " with transparency" if "transparency" in image.info else ""
                raise DataError(
                    f"{path} is a {form} of mode {image.mode}{transparent}, expected 8-bit grey or RGB; "
                    "convert it, without transparency"
                )
            # A camera that is held sideways stores the picture sideways, and how to turn it
            values = np.asarray(ImageOps.exif_transpose(image).convert(mode))
    except (
        OSError,
        SyntaxError,
        ValueError,
        EOFError,
        zlib.error,
        struct.error,
        Image.DecompressionBombError,
    ) as error:
        raise DataError(f"{path} cannot be read as {form}: {error}; copy it again") from error
    return Sample(values if values.ndim == 3 else values[:, :, None], "a picture")


def _check_picture_size(path: Path, pixels: int) -> None:
    """Refuse a small file that decodes to a huge picture, before it is decoded."""
    size = path.stat().st_size
    if pixels > max(MIN_CHECKED_PIXELS, MAX_PIXELS_PER_BYTE * size):
        raise DataError(
            f"{path} has {pixels} pixels in {size} bytes, expected at most {MAX_PIXELS_PER_BYTE} per byte; "
            "save a smaller picture"
        )


def _read_wav(path: Path) -> Sample:
    try:
        with wave.open(str(path), "rb") as file:
            width = file.getsampwidth()
            channels = file.getnchannels()
            rate = file.getframerate()
            count = file.getnframes()
            content = file.readframes(count)
    except (OSError, EOFError, RuntimeError, wave.Error, struct.error) as error:
        raise DataError(
            f"{path} cannot be read as WAV: {error or 'it is cut off'}; write it as PCM of 16 bits"
        ) from error
    if width not in WAV_FORMATS:
        raise DataError(f"{path} has {8 * width} bits per value, expected 8, 16 or 32; convert it to 16 bits")
    if not count or len(content) != count * channels * width:
        raise DataError(
            f"{path} contains {len(content)} bytes of sound, expected {count * channels * width} as in its "
            "header, and more than 0: it was cut off, or recorded as a stream, whose header has no length; "
            "copy it again, or rewrite it with `ffmpeg -i OLD.wav NEW.wav`"
        )
    stored, zero, scale = WAV_FORMATS[width]
    values = (np.frombuffer(content, stored).astype(np.float64) - zero) / scale
    numbers = [f" {number}" for number in range(1, channels + 1)] if channels > 1 else [""]
    return Sample(
        values.astype(np.float32).reshape(count, channels),
        f"a WAV at {rate} Hz",
        tuple(f"sound{number} at {rate} Hz" for number in numbers),
    )
