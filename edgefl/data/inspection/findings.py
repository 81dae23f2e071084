"""Probable mistakes in the samples of devices, each as one finding."""

from collections.abc import Sequence
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgefl.data.forms import (
    LOW_MAXIMUM,
    MAX_CHANNELS,
    SMALLEST_PICTURE,
    Arrays,
    likely_input_shape,
    shape_change,
    shape_text,
)
from edgefl.data.inspection.records import (
    CHANGE,
    ERROR,
    WARNING,
    DeviceSamples,
    Finding,
    Range,
    ReadableSamples,
)
from edgefl.data.npz import groups_of, samples_of
from edgefl.data.recordings import find_recordings, join, overlapping_rows
from edgefl.system.format import some_of

MAX_WINDOW_CHANNELS = 12
SHORTEST_WINDOW = 16
FEW_SAMPLES = 20
FEW_OF_A_CLASS = 5
DIFFERENT_SCALE = 10.0
LARGE_SPREAD = 30.0
SMALL_SPREAD = 1e-3
MAX_CLASSES_FOR_GAPS = 10_000
ROWS_AT_ONCE = 1024
"""Number of samples that are converted to float64 at a time: a board has little memory."""
LEAST_VALUES_FOR_COPIES = 16
"""Samples of fewer values may well be equal by chance."""


def shape_findings(name: str, arrays: Arrays, input_shape: tuple[int, ...] | None) -> list[Finding]:
    """Return how the shape of samples is understood, and what speaks against it."""
    x = arrays.get("x")
    if x is None or x.dtype.kind not in "buif" or x.ndim < 2 or 0 in x.shape:
        return []
    shape = x.shape[1:]
    by = shape_text(shape)
    if shape == input_shape:
        return []
    if change := shape_change(shape, input_shape or likely_input_shape(shape)):
        if len(shape) == 2 and input_shape is None:
            change += (
                f"; for {shape[0]} readings of {shape[1]} channels give `edgefl init --input-shape "
                f"{shape[0]},{shape[1]}`"
            )
        return [Finding("channel-axis" if len(shape) == 2 else "channels-first", CHANGE, (name,), change)]
    if len(shape) == 2 and min(shape) > MAX_WINDOW_CHANNELS and _are_grey_levels(x):
        return [
            Finding(
                "channel-axis",
                WARNING,
                (name,),
                f"samples of {by} are read as {shape[0]} readings of {shape[1]} channels; if they are "
                "pictures, add the channel: x[..., None]",
            )
        ]
    window = (
        len(shape) == 2 and shape[0] <= MAX_WINDOW_CHANNELS and shape[1] >= max(SHORTEST_WINDOW, 4 * shape[0])
    )
    if window:
        return [
            Finding(
                "channels-first",
                WARNING,
                (name,),
                f"samples of {by} are read as {shape[0]} readings of {shape[1]} channels; if they are "
                f"{shape[1]} readings of {shape[0]} channels, write x.transpose(0, 2, 1)",
            )
        ]
    picture = len(shape) == 3 and shape[0] <= MAX_CHANNELS < shape[2] and min(shape[1:]) >= SMALLEST_PICTURE
    if picture:
        return [
            Finding(
                "channels-first",
                WARNING,
                (name,),
                f"samples of {by} seem to have their channels first, expected last; write "
                "x.transpose(0, 2, 3, 1)",
            )
        ]
    return []


def _are_grey_levels(x: NDArray[Any]) -> bool:
    """Return whether all values are grey levels of 8 bits, from 0 to 255 or divided by 255.

    Floats must have more than `LOW_MAXIMUM` different levels: whole numbers may be counts or marks.
    """
    if x.dtype == np.uint8:
        return True
    if x.dtype.kind != "f" or not (x.min() >= 0 and x.max() <= 255):
        return False
    divided = bool(x.max() <= 1)
    factor = 255 if divided else 1
    tolerance = max(1e-3, 255 * float(np.finfo(x.dtype).eps)) if divided else 0  # in levels
    present = np.zeros(256, bool)
    for start in range(0, len(x), ROWS_AT_ONCE):
        levels = x[start : start + ROWS_AT_ONCE].astype(np.float64) * factor
        whole = np.round(levels)
        if (np.abs(levels - whole) > tolerance).any():
            return False
        present[whole.astype(np.int64)] = True
    return int(present.sum()) > LOW_MAXIMUM


def recording_findings(name: str, arrays: Arrays) -> list[Finding]:
    """Return which windows of different groups overlap, and which windows of `x_test` overlap windows of `x`.

    Args:
        name: name of the device.
        arrays: samples in the training form, which a device accepts.
    """
    x = samples_of(arrays, "")
    group = groups_of(arrays, len(x))
    findings: list[Finding] = []
    found = find_recordings(x) if group is not None else None
    if group is not None and found is not None:
        before, after = (len(np.unique(each)) for each in (group, join(group, found.group)))
        if after < before:
            text = (
                f"windows of different groups overlap, so {before} groups count as {after}; give windows of "
                "one recording the same name in `group`"
            )
            findings.append(Finding("joined-groups", WARNING, (name,), text))
    if "x_test" in arrays:
        rows = overlapping_rows(samples_of(arrays, "_test"), x, copies=False)
        if len(rows):
            text = (
                f"{len(rows)} of {len(arrays['x_test'])} windows of x_test overlap windows of x: row"
                f"{'s' if len(rows) > 1 else ''} {some_of([str(row) for row in rows])} of x_test; a part of "
                "them is trained on; leave them out of x_test, or test on another recording"
            )
            findings.append(Finding("test-overlaps-training", WARNING, (name,), text))
    return findings


def device_findings(device: ReadableSamples, found: DeviceSamples) -> list[Finding]:
    """Return what is unusual about one device by itself."""
    name = (device.name,)
    count = len(device.x)
    findings: list[Finding] = []

    def warn(kind: str, text: str) -> None:
        findings.append(Finding(kind, WARNING, name, text))

    if 0 < count < FEW_SAMPLES:
        warn("few-samples", f"{count} samples, expected {FEW_SAMPLES} or more; collect more")
    if len(found.class_counts) == 1 and count > 1:
        label = found.class_counts[0][0]
        warn(
            "one-class",
            f"all {count} samples are of class {label}; the device can take part, but a model that always "
            f"answers {label} is right on all of them",
        )
    if device.y is not None and count >= FEW_SAMPLES and 2 * len(found.class_counts) > count:
        warn(
            "many-classes",
            f"{count} samples have {len(found.class_counts)} different labels, expected a few classes; are "
            "the labels measurements or times?",
        )
    if device.x[:1].size >= LEAST_VALUES_FOR_COPIES and found.num_copies:
        warn(
            "copies",
            f"{found.num_copies} of {count} samples equal an earlier one; remove copies, because a copy "
            "that is held out is no test",
        )
    if found.num_blank:
        warn("blank", f"{found.num_blank} of {count} samples hold one value only; was the sensor off?")
    if found.outliers:
        warn(
            "outliers",
            f"{len(found.outliers)} of {count} samples are far from the others of their class: "
            f"row{'s' if len(found.outliers) > 1 else ''} "
            f"{some_of([str(row) for row in found.outliers])}; look at them",
        )
    constant = [str(i) for i, channel in enumerate(found.channels) if channel.low == channel.high]
    if constant and count > 1 and len(found.channels) > 1:
        plural = "s" if len(constant) > 1 else ""
        warn(
            "constant-channel",
            f"channel{plural} {some_of(constant)} of {len(found.channels)} (counted from 0) never "
            f"change{'' if plural else 's'}; leave {'them' if plural else 'it'} out, or check the sensor",
        )
    findings += _value_findings(device, found.usual)
    return findings


def _value_findings(device: ReadableSamples, values: Range | None) -> list[Finding]:
    if values is None:
        return []
    picture = device.x.ndim == 4
    if picture and values.low >= 0 and LOW_MAXIMUM < values.high <= 255:
        text = f"pictures hold values from {values.low:g} to {values.high:g}, expected 0 to 1; write x / 255"
        return [Finding("unscaled", WARNING, (device.name,), text)]
    if values.spread > LARGE_SPREAD or 0 < values.spread < SMALL_SPREAD:
        text = (
            f"values go from {values.low:.4g} to {values.high:.4g} with a standard deviation of "
            f"{values.spread:.3g}, expected about 1; scale them alike on every device, such as (x - "
            f"{values.mean:.3g}) / {values.spread:.3g}"
        )
        return [Finding("unscaled", WARNING, (device.name,), text)]
    return []


def cross_device_findings(
    devices: Sequence[ReadableSamples], found: Sequence[DeviceSamples], digests: Sequence[Sequence[bytes]]
) -> list[Finding]:
    """Return where devices hold the same samples, or do not fit together.

    Args:
        devices: their readable samples.
        found: what was found in each.
        digests: the digest of each readable sample, by device.
    """
    findings: list[Finding] = []
    for each, own in zip(devices, digests, strict=True):
        training = {digest for digest, row in zip(own, each.rows, strict=True) if row < each.num_samples}
        leaked = sum(
            digest in training for digest, row in zip(own, each.rows, strict=True) if row >= each.num_samples
        )
        if leaked and each.x[:1].size >= LEAST_VALUES_FOR_COPIES:
            text = (
                f"{leaked} of {each.num_test} samples of x_test are also in x; what was trained on is no test"
            )
            findings.append(Finding("test-in-training", WARNING, (each.name,), text))
    findings += _shared(devices, digests)
    findings += _contradictions(devices, digests)
    shapes = {device.name: device.shape for device in found if device.shape}
    if len(set(shapes.values())) > 1:
        listed = ", ".join(f"{name} {shape_text(shape)}" for name, shape in list(shapes.items())[:8])
        text = f"samples have different shapes: {listed}; expected one shape"
        findings.append(Finding("shapes", ERROR, tuple(shapes), text))
    lists = {each.name: each.class_names for each in devices if each.class_names}
    if len(set(lists.values())) > 1:
        text = (
            f"class names differ between {some_of(list(lists))}, so a class number means different classes; "
            "put the same classes.txt on every device"
        )
        findings.append(Finding("class-names", ERROR, tuple(lists), text))
    scales = {each.name: each.usual.spread for each in found if each.usual and each.usual.spread > 0}
    if len(scales) > 1:
        low, high = (choose(scales, key=lambda name: scales[name]) for choose in (min, max))
        if scales[high] > DIFFERENT_SCALE * scales[low]:
            text = (
                f"values of {high} vary {scales[high] / scales[low]:.3g} times as much as those of {low}; do "
                "all devices measure in one unit?"
            )
            findings.append(Finding("scales", WARNING, (low, high), text))
    return findings


def _shared(devices: Sequence[ReadableSamples], digests: Sequence[Sequence[bytes]]) -> list[Finding]:
    """Return which pairs of devices have samples in common."""
    sets = {
        each.name: set(own)
        for each, own in zip(devices, digests, strict=True)
        if own and each.x[:1].size >= LEAST_VALUES_FOR_COPIES
    }
    pairs = {
        (first, second): len(sets[first] & sets[second])
        for first, second in combinations(sets, 2)
        if sets[first] & sets[second]
    }
    equal = [pair for pair in pairs if sets[pair[0]] == sets[pair[1]]]
    partly = [pair for pair in pairs if pair not in equal]
    findings = []
    if equal:
        listed = some_of([f"{first} and {second}" for first, second in equal])
        text = f"devices hold the same samples: {listed}; give each device its own"
        findings.append(Finding("same-samples", WARNING, _names(equal), text))
    if partly:
        listed = some_of([f"{pairs[pair]} in {pair[0]} and {pair[1]}" for pair in partly])
        text = f"devices share samples: {listed}; one device may train on what the other holds out"
        findings.append(Finding("shared-samples", WARNING, _names(partly), text))
    return findings


def _names(pairs: Sequence[tuple[str, str]]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for pair in pairs for name in pair))


def _contradictions(devices: Sequence[ReadableSamples], digests: Sequence[Sequence[bytes]]) -> list[Finding]:
    labels: dict[bytes, set[int]] = {}
    owners: dict[bytes, dict[str, None]] = {}
    for each, own in zip(devices, digests, strict=True):
        if each.y is None or each.x[:1].size < LEAST_VALUES_FOR_COPIES:
            continue
        for digest, label in zip(own, each.y.tolist(), strict=True):
            labels.setdefault(digest, set()).add(label)
            owners.setdefault(digest, {})[each.name] = None
    wrong = [digest for digest, known in labels.items() if len(known) > 1]
    if not wrong:
        return []
    names = tuple(dict.fromkeys(name for digest in wrong for name in owners[digest]))
    text = f"{len(wrong)} samples are there more than once with different labels; correct the labels"
    return [Finding("contradictions", WARNING, names, text)]


def label_findings(
    devices: Sequence[DeviceSamples], classes: Sequence[int], num_classes: int
) -> list[Finding]:
    """Return what is unusual about the classes of all devices together."""
    names = tuple(device.name for device in devices if device.class_counts)
    if not classes or classes[0] < 0:
        return []
    findings = []
    if classes[0] > 0:
        text = (
            f"labels go from {classes[0]} to {classes[-1]}: that makes {classes[-1] + 1} classes, and no "
            f"device here has a sample of the first {classes[0]}; number them from 0, y - {classes[0]}, "
            "unless other devices have these"
        )
        findings.append(Finding("first-label", WARNING, names, text))
    if num_classes - classes[0] > len(classes) and num_classes <= MAX_CLASSES_FOR_GAPS:
        present = set(classes)
        empty = [str(label) for label in range(classes[0], num_classes) if label not in present]
        text = (
            f"no device here has a sample of class {some_of(empty)}; number the classes without gaps, unless "
            "other devices have these"
        )
        findings.append(Finding("empty-classes", WARNING, names, text))
    totals: dict[int, int] = {}
    for device in devices:
        for label, count in device.class_counts:
            totals[label] = totals.get(label, 0) + count
    few = [f"{label} ({count})" for label, count in totals.items() if count < FEW_OF_A_CLASS]
    if few and len(few) <= len(totals) / 2:
        text = f"fewer than {FEW_OF_A_CLASS} samples, over all devices, of class {some_of(few)}; collect more"
        findings.append(Finding("few-of-a-class", WARNING, names, text))
    return findings
