"""The unit of samples: what a federation should state, and whether the samples of a device are in its unit.

A device never guesses its unit. `edgefl init` proposes one from the samples of all devices, and writes it.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgefl.data.forms import (
    LOW_MAXIMUM,
    MIN_PICTURE_SIDE,
    PART_SUFFIXES,
    Arrays,
    find_scale,
)
from edgefl.errors import ConfigError, DataError
from edgefl.system.format import shorten_names
from edgefl.tasks.samples import GREY_SCALE, SamplesConfig

BLOCK_ROWS = 1024
"""Number of samples that are converted at a time, because a board has little memory."""
MAX_UNIT_RATIO = 2.0
"""How far samples may exceed the largest value of the federation. Other units differ far more."""


@dataclass(frozen=True)
class StoredValues:
    """The properties of the stored values of a device that show their unit.

    Attributes:
        is_byte: whether the values are uint8.
        is_picture: whether the samples have the form of pictures.
        is_whole: whether all values are whole numbers.
        low: smallest value.
        high: largest value.
    """

    is_byte: bool
    is_picture: bool
    is_whole: bool
    low: float
    high: float

    @property
    def are_grey_levels(self) -> bool:
        """Whether the values can be grey levels from 0 to 255 that are stored as floats."""
        return not self.is_byte and self.is_picture and self.is_whole and 0 <= self.low <= self.high <= 255

    @property
    def are_fractions(self) -> bool:
        """Whether the values go from 0 to 1 at most, with fractions: a picture that was divided before."""
        return not self.is_byte and not self.is_whole and 0 <= self.low <= self.high <= 1


def read_stored_values(arrays: Arrays) -> StoredValues | None:
    """Return the properties of stored values that show their unit, or None without finite values.

    Args:
        arrays: the stored arrays of a device, without any conversion.
    """
    parts = [arrays[f"x{part}"] for part in PART_SUFFIXES if f"x{part}" in arrays]
    parts = [x for x in parts if x.size and x.ndim > 1 and (x.dtype == np.uint8 or x.dtype.kind == "f")]
    is_byte = all(x.dtype == np.uint8 for x in parts)
    if not parts or not all(
        x.dtype == np.uint8 or np.isfinite(block).all() for x in parts for block in _cut(x)
    ):
        return None
    shape = parts[0].shape[1:]
    return StoredValues(
        is_byte=is_byte,
        is_picture=len(shape) == 3 or (len(shape) == 2 and shape[0] == shape[1] >= MIN_PICTURE_SIDE),
        is_whole=is_byte or all(bool((block == np.round(block)).all()) for x in parts for block in _cut(x)),
        low=min(float(x.min()) for x in parts),
        high=max(float(x.max()) for x in parts),
    )


def _cut(x: NDArray[Any]) -> Iterator[NDArray[Any]]:
    """Yield blocks of samples, because a board has little memory."""
    yield from (x[start : start + BLOCK_ROWS] for start in range(0, len(x), BLOCK_ROWS))


def suggest_unit(devices: Mapping[str, Arrays]) -> tuple[SamplesConfig, tuple[str, ...]]:
    """Return the unit that a federation of these devices should state.

    - uint8 pictures and float pictures of whole grey levels: the scale is 255.
    - Pictures from 0 to 1: no scale, and the largest value is 1.
    - Other samples: nothing. They are taken as they are.

    Args:
        devices: by device name, the stored arrays.

    Returns:
        The unit, and a sentence for each decision that the owner should know.
    """
    values = {name: read for name, arrays in devices.items() if (read := read_stored_values(arrays))}
    values = {name: item for name, item in values.items() if "scale" not in devices[name]}
    if not values or not all(item.is_picture for item in values.values()):
        return SamplesConfig(), ()
    levels = [item.high for item in values.values() if item.are_grey_levels and item.high > 1]
    divided = [item for item in values.values() if item.are_fractions]
    has_bytes = any(item.is_byte for item in values.values())
    others = [
        item for item in values.values() if not (item.is_byte or item.are_grey_levels or item.are_fractions)
    ]
    if others or (levels and divided):
        return SamplesConfig(), ()
    if not levels:
        return SamplesConfig(scale=GREY_SCALE if has_bytes and not divided else 0.0, max_value=1.0), ()
    if max(levels) <= LOW_MAXIMUM and not has_bytes:
        text = (
            f"float pictures hold whole numbers up to {max(levels):g}, which are taken as they are; if they "
            "are grey levels up to 255, set scale = 255 in [samples] of federation.toml"
        )
        return SamplesConfig(), (text,)
    text = (
        f"float pictures hold whole grey levels up to {max(levels):g}; they are divided by 255 on every "
        "device: scale = 255 in [samples] of federation.toml"
    )
    return SamplesConfig(scale=GREY_SCALE, max_value=1.0), (text,)


def describe_unit_conflict(devices: Mapping[str, Arrays]) -> str:
    """Return why the pictures of devices are in different units, or "" if they may be in one.

    Args:
        devices: by device name, the stored arrays.
    """
    values = {
        name: read
        for name, arrays in devices.items()
        if "scale" not in arrays and (read := read_stored_values(arrays)) and read.is_picture
    }
    levels = [name for name, item in values.items() if item.are_grey_levels and item.high > 1]
    divided = [name for name, item in values.items() if item.are_fractions]
    if not levels or not divided:
        return ""
    return (
        f"float pictures of {shorten_names(levels)} hold whole numbers up to "
        f"{max(values[name].high for name in levels):g}, those of {shorten_names(divided)} fractions up to "
        f"{max(values[name].high for name in divided):g}: two units; store all of them in one unit"
    )


def check_unit(arrays: Arrays, samples: SamplesConfig, scale: float = 0.0) -> None:
    """Check that stored samples are in the unit of the federation.

    Dark pictures and quiet sensors pass, because small values have every unit.

    Args:
        arrays: the stored arrays of a device, without any conversion.
        samples: unit and layout of the federation. Without a largest value, nothing is checked.
        scale: scale that the owner states. 0 states none.

    Raises:
        DataError: the samples are in another unit.
    """
    values = read_stored_values(arrays) if samples.max_value else None
    if values is None:
        return
    stated, _ = find_scale(arrays, samples, scale)
    divisor = stated or (GREY_SCALE if values.is_byte else 1.0)
    high = max(abs(values.low), abs(values.high)) / divisor
    unit = f"the samples of the federation go up to {samples.max_value:g}"
    read_as = (
        f"x holds {'uint8' if values.is_byte else 'floats'} from {values.low:g} to {values.high:g}, which "
        + (f"are divided by {divisor:g}" if divisor != 1 else "are taken as they are")
    )
    remedy = "store them in the unit of the federation, or give --scale, the number to divide them by"
    if high > MAX_UNIT_RATIO * samples.max_value:
        raise DataError(f"{read_as}; {unit} after the division; {remedy}")
    if values.are_fractions and values.high > 0 and divisor * samples.max_value > LOW_MAXIMUM:
        raise DataError(
            f"{read_as}, as if they had been divided before; {unit} after the division; {remedy} (1 for "
            "samples that are in it)"
        )


def suggest_samples(devices: Mapping[str, Arrays]) -> tuple[SamplesConfig, tuple[str, ...]]:
    """Return unit, channels and class names that a federation of these devices should state.

    See `suggest_unit` for the unit. Class names are stated if all devices name the same classes in the same
    order, and channels if all devices with named channels have the same.

    Args:
        devices: by device name, the stored arrays.

    Raises:
        DataError: a device names a class twice, or a name is empty.
    """
    samples, sentences = suggest_unit(devices)
    lists = {copy_class_names(samples, arrays) for arrays in devices.values()}
    if len(lists) == 1:
        samples = lists.pop()
    channels = {tuple(map(str, arrays["channels"])) for arrays in devices.values() if "channels" in arrays}
    return (replace(samples, channels=channels.pop()) if len(channels) == 1 else samples), sentences


def list_class_names(arrays: Arrays) -> tuple[str, ...]:
    """Return the class names that a source states, empty if its labels are numbers."""
    names = arrays.get("class_names")
    return tuple(map(str, names.ravel())) if names is not None and names.dtype.kind in "US" else ()


def copy_class_names(samples: SamplesConfig, arrays: Arrays) -> SamplesConfig:
    """Return the same unit with the class names of a source, for a federation that is not known yet.

    Args:
        samples: unit and layout.
        arrays: the stored arrays.

    Raises:
        DataError: the source names a class twice, or a name is empty.
    """
    try:
        return replace(samples, classes=list_class_names(arrays))
    except ConfigError as error:
        raise DataError(f"class_names cannot be used: {error}") from error


def to_federation_classes(arrays: Arrays, samples: SamplesConfig) -> dict[str, NDArray[Any]]:
    """Return arrays whose labels are numbered by the class names of the federation.

    Args:
        arrays: arrays in training form. Their labels are integers.
        samples: unit and layout of the federation.

    Raises:
        DataError: the device has names and the federation has numbers, or the other way round, or a name is
            not a class of the federation.
    """
    formed = dict(arrays)
    if "y" not in arrays or "target" in arrays:
        return formed
    names = list_class_names(arrays)
    listed = ", ".join(map(repr, names[:20]))
    if not names and not samples.classes:
        return formed
    if not samples.classes:
        raise DataError(
            f"the classes of these samples have names ({listed}), the federation has numbers; "
            "write the names of all classes in order into [samples] of federation.toml, such as classes = "
            f"[{listed.replace(chr(39), chr(34))}], or store numbers"
        )
    expected = ", ".join(samples.classes[:20])
    if not names:
        raise DataError(
            f"the classes of these samples have numbers, the federation has names ({expected}); "
            "label the samples with these names"
        )
    if unknown := [name for name in names if name not in samples.classes]:
        raise DataError(
            f"the class {unknown[0]!r} of these samples is unknown, the federation has {expected}; rename "
            "the class, or add it to classes in [samples] of federation.toml"
        )
    number = np.array([samples.classes.index(name) for name in names], np.int64)
    for part in PART_SUFFIXES:
        y = arrays.get(f"y{part}")
        if y is None or y.dtype.kind not in "iu" or not y.size or y.min() < 0:
            continue  # `edgefl.data.npz` refuses such labels
        if y.max() >= len(names):
            raise DataError(f"the label {y.max()} has no name, expected at most {len(names) - 1} ({listed})")
        formed[f"y{part}"] = number[y]
    formed["class_names"] = np.array(samples.classes)
    formed["num_classes"] = np.asarray(len(samples.classes))
    return formed
