"""The unit of samples: what a federation should state, and whether the samples of a device are in its unit.

A device never guesses its unit. `edgefl init` proposes one from the samples of all devices, and writes it.
"""

import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgefl.base.errors import ConfigError, DataError
from edgefl.base.system.format import shorten_names
from edgefl.base.tasks.samples import GREY_SCALE, MAX_SAMPLE_VALUE, SamplesConfig
from edgefl.data.forms import (
    LOW_MAXIMUM,
    MIN_PICTURE_SIDE,
    PART_SUFFIXES,
    Arrays,
    find_scale,
)

BLOCK_ROWS = 1024
"""Number of samples that are converted at a time, because a board has little memory."""
MAX_UNIT_RATIO = 2.0
"""How far samples may exceed the largest value of the federation. Other units differ far more."""

MAX_OVERSHOOT = 0.1
"""How far resampling takes a picture below 0, as a share of its largest value."""
BYTES = "uint8 values"
SIGNED = "negative numbers"
FRACTIONS = "fractions"
LEVELS = "whole numbers"
NUMBERS = "numbers"
WIDE = "larger numbers"
DARK = "0 and 1"
"""What stored values show of their unit. 0 and 1 have every unit."""
ONE_UNIT = (
    {BYTES, LEVELS},
    {BYTES, FRACTIONS},
    {LEVELS, WIDE},
    {FRACTIONS, NUMBERS},
    {LEVELS, NUMBERS},
    {WIDE, NUMBERS},
)
"""Pairs of forms that can be one unit."""


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
    def unit(self) -> str:
        """The unit that the values show, such as `FRACTIONS`."""
        if self.is_byte:
            return BYTES
        if self.is_signed:
            return SIGNED
        if self.high <= (1 if self.is_whole else MAX_UNIT_RATIO):
            return DARK if self.is_whole else FRACTIONS
        if self.are_grey_levels:
            return LEVELS
        return WIDE if self.high > LOW_MAXIMUM else NUMBERS

    @property
    def is_signed(self) -> bool:
        """Whether values below 0 belong to the unit. Resampled pictures have small ones."""
        return self.low < -MAX_OVERSHOOT * max(self.high, 0)

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


def _list_values(devices: Mapping[str, Arrays]) -> dict[str, StoredValues]:
    """Return the finite stored values of each part of each device that states no scale."""
    parts = {
        f"{name} (x_test)" if part else name: {"x": arrays[f"x{part}"]}
        for name, arrays in devices.items()
        for part in PART_SUFFIXES
        if "scale" not in arrays and f"x{part}" in arrays
    }
    return {name: values for name, part in parts.items() if (values := read_stored_values(part))}


def suggest_unit(devices: Mapping[str, Arrays]) -> tuple[SamplesConfig, tuple[str, ...]]:
    """Return the unit that a federation of these devices should state.

    - uint8 pictures and float pictures of whole grey levels: the scale is 255.
    - Pictures from 0 to 1, and uint8 samples of any form: no scale, and the largest value is 1.
    - Pictures with negative or larger values: no scale, and powers of ten as their bounds.
    - Other samples: nothing. They are taken as they are.

    Args:
        devices: by device name, the stored arrays.

    Returns:
        The unit, and a sentence for each decision that the owner should know.
    """
    values = list(_list_values(devices).values())
    units = {item.unit for item in values} - {DARK}
    are_bytes = bool(values) and all(item.is_byte for item in values)
    if not values or not (are_bytes or all(item.is_picture for item in values)) or _find_conflict(units):
        return SamplesConfig(), ()
    if units & {SIGNED, WIDE, NUMBERS}:
        largest = max(max(item.high, -item.low) for item in values)
        if largest > MAX_SAMPLE_VALUE:
            return SamplesConfig(), ()
        bound = 10.0 ** max(0, math.ceil(math.log10(largest)))
        return SamplesConfig(max_value=bound, min_value=-bound if SIGNED in units else 0.0), ()
    if units == {BYTES}:
        high = max(item.high for item in values if item.is_byte)
        sentence = (
            f"uint8 samples hold no value above {high:g}; they are divided by 255 on every device; if they "
            "are no grey levels up to 255, store them as floats"
        )
        return SamplesConfig(scale=GREY_SCALE, max_value=1.0), (sentence,) if high <= LOW_MAXIMUM else ()
    if LEVELS not in units:
        return SamplesConfig(max_value=1.0), ()
    high = max(item.high for item in values if item.unit == LEVELS)
    if high <= LOW_MAXIMUM and BYTES not in units:
        text = (
            f"float pictures hold whole numbers up to {high:g}, which are taken as they are; if they are "
            "grey levels up to 255, set scale = 255 in [samples] of federation.toml"
        )
        return SamplesConfig(), (text,)
    text = (
        f"float pictures hold whole grey levels up to {high:g}; they are divided by 255 on every device: "
        "scale = 255 in [samples] of federation.toml"
    )
    return SamplesConfig(scale=GREY_SCALE, max_value=1.0), (text,)


def _find_conflict(units: Collection[str]) -> tuple[str, ...]:
    """Return two units that cannot be one, or nothing."""
    return next((pair for pair in combinations(sorted(units), 2) if set(pair) not in ONE_UNIT), ())


def describe_unit_conflict(devices: Mapping[str, Arrays]) -> str:
    """Return why the pictures of devices are in different units, or "" if they may be in one.

    Args:
        devices: by device name, the stored arrays.
    """
    values = {name: item for name, item in _list_values(devices).items() if item.is_picture}
    conflict = _find_conflict({item.unit for item in values.values()} - {DARK})
    if not conflict:
        return ""
    described = []
    for unit in conflict:
        members = {name: item for name, item in values.items() if item.unit == unit}
        low = min(item.low for item in members.values())
        high = max(item.high for item in members.values())
        described.append(f"{shorten_names(list(members))} hold {unit} from {low:g} to {high:g}")
    return (
        f"pictures of {described[0]}, those of {described[1]}: two units; store all of them in one unit, or "
        "state the divisor of a file by an array scale in it"
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
    if not samples.max_value:
        return
    stated, _ = find_scale(arrays, samples, scale)
    is_stated = bool(scale) or "scale" in arrays
    for part in PART_SUFFIXES:
        values = read_stored_values({"x": arrays[f"x{part}"]}) if f"x{part}" in arrays else None
        if values is not None:
            _check_part(f"x{part}", values, samples, stated, is_stated)


def _check_part(
    name: str, values: StoredValues, samples: SamplesConfig, stated: float, is_stated: bool
) -> None:
    divisor = stated or (GREY_SCALE if values.is_byte else 1.0)
    high = max(abs(values.low), abs(values.high)) / divisor
    unit = f"the samples of the federation go {_describe_bounds(samples)} after the division"
    read_as = (
        f"{name} holds {'uint8' if values.is_byte else 'floats'} from {values.low:g} to {values.high:g}, "
        + (f"which are divided by {divisor:g}" if divisor != 1 else "which are taken as they are")
    )
    remedy = "store them in the unit of the federation, or give --scale, the number to divide them by"
    if high > MAX_UNIT_RATIO * samples.max_value:
        raise DataError(f"{read_as}; {unit}; {remedy}")
    is_small = values.is_byte and MAX_UNIT_RATIO * GREY_SCALE / divisor < samples.max_value
    if is_small or (values.are_fractions and values.high > 0 and divisor * samples.max_value > LOW_MAXIMUM):
        raise DataError(
            f"{read_as}, as if they had been divided before; {unit}; {remedy} (1 for samples that are in it)"
        )
    if not values.is_picture or is_stated:
        return
    if values.is_signed > (samples.min_value < 0) or (samples.min_value < 0 <= values.low < values.high):
        raise DataError(f"{read_as}; {unit}; {remedy} (1 for samples that are in it)")


def _describe_bounds(samples: SamplesConfig) -> str:
    return (
        f"from {samples.min_value:g} to {samples.max_value:g}"
        if samples.min_value
        else f"up to {samples.max_value:g}"
    )


def suggest_samples(devices: Mapping[str, Arrays]) -> tuple[SamplesConfig, tuple[str, ...]]:
    """Return unit, channels, targets and class names that a federation of these devices should state.

    See `suggest_unit` for the unit. Class names are stated if all devices name the same classes in the same
    order, and channels and targets if all devices with names of them have the same.

    Args:
        devices: by device name, the stored arrays.

    Raises:
        DataError: a device names a class twice, or a name is empty.
    """
    samples, sentences = suggest_unit(devices)
    lists = {copy_class_names(samples, arrays) for arrays in devices.values()}
    if len(lists) == 1:
        samples = lists.pop()
    channels, targets = (
        {tuple(map(str, arrays[key])) for arrays in devices.values() if key in arrays}
        for key in ("channels", "targets")
    )
    if len(channels) == 1:
        samples = replace(samples, channels=channels.pop())
    if len(targets) == 1:
        samples = replace(samples, targets=targets.pop())
    return samples, sentences


def list_class_names(arrays: Arrays) -> tuple[str, ...]:
    """Return the class names that a source states, empty if its labels are numbers."""
    names = arrays.get("class_names")
    return tuple(map(str, names.ravel())) if names is not None and names.dtype.kind in "USiu" else ()


def copy_class_names(samples: SamplesConfig, arrays: Arrays) -> SamplesConfig:
    """Return the same unit with the class names of a source, for a federation that is not known yet.

    Args:
        samples: unit and layout.

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
            "store numbers, for anomalies 0 for a normal sample; or, for a classification, write all names "
            "in order into [samples] of federation.toml, such as classes = "
            f"[{listed.replace(chr(39), chr(34))}]"
        )
    expected = ", ".join(samples.classes[:20])
    if not names:
        raise DataError(
            f"the classes of these samples have numbers, the federation has names ({expected}); "
            "label the samples with these names; if these numbers are names, list all names in classes.txt "
            "beside the samples"
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
