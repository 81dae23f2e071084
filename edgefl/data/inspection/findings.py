"""Finds probable mistakes in the samples of devices."""

import re
from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgefl.base.system.format import shorten_names
from edgefl.data.forms import (
    LOW_MAXIMUM,
    MAX_PICTURE_CHANNELS,
    MIN_PICTURE_SIDE,
    PART_SUFFIXES,
    Arrays,
    describe_shape_change,
    format_shape,
    guess_input_shape,
)
from edgefl.data.inspection.records import (
    CHANGE,
    ERROR,
    WARNING,
    DeviceSamples,
    ReadableSamples,
    SampleFinding,
    ValueRange,
)
from edgefl.data.npz import read_group_array, read_sample_array
from edgefl.data.recordings import find_overlapping_rows, find_recordings, join_groups
from edgefl.data.sources.classes import parse_number
from edgefl.data.sources.csv_windows import MIN_GROWING_SHARE, MIN_GROWING_STEPS, find_other_rates
from edgefl.data.unit import BLOCK_ROWS

MAX_WINDOW_CHANNELS = 12
MIN_WINDOW_ROWS = 16
RECOMMENDED_SAMPLES = 20
RECOMMENDED_CLASS_SAMPLES = 5
MAX_GROWING_WINDOWS = 256
MAX_TARGET = 10.0
"""With larger numbers to predict, the usual learning rates may be too large for a loss of squares."""
MAX_SCALE_RATIO = 5.0
"""Values of devices in one unit vary less differently. 1 g is 9.81 m/s^2."""
PLACEHOLDERS = ("none", "null", "na", "-", "?", "unlabelled", "unlabeled", "undefined")
"""Names that often mean that a label is missing."""
MAX_STANDARD_DEVIATION = 30.0
MIN_STANDARD_DEVIATION = 1e-3
MAX_CLASSES_FOR_GAPS = 10_000
MIN_VALUES_FOR_COPIES = 16
"""Samples with fewer values may be equal by chance."""


def check_sample_shape(name: str, arrays: Arrays, input_shape: tuple[int, ...] | None) -> list[SampleFinding]:
    """Check how the shape of the samples is interpreted.

    Args:
        name: name of the device.
        input_shape: input shape of the model, None if unknown.
    """
    x = arrays.get("x")
    if x is None or x.dtype.kind not in "buif" or x.ndim < 2 or 0 in x.shape:
        return []
    shape = x.shape[1:]
    by = format_shape(shape)
    if shape == input_shape:
        return []
    if change := describe_shape_change(shape, input_shape or guess_input_shape(shape)):
        if len(shape) == 2 and input_shape is None:
            change += (
                f"; for {shape[0]} readings of {shape[1]} channels use `edgefl init --input-shape "
                f"{shape[0]},{shape[1]}`"
            )
        return [
            SampleFinding(
                kind="channel-axis" if len(shape) == 2 else "channels-first",
                severity=CHANGE,
                devices=(name,),
                text=change,
            )
        ]
    if len(shape) == 2 and min(shape) > MAX_WINDOW_CHANNELS and _are_grey_levels(x):
        return [
            SampleFinding(
                kind="channel-axis",
                severity=WARNING,
                devices=(name,),
                text=f"samples of {by} are read as {shape[0]} readings of {shape[1]} channels; if they are "
                "pictures, add the channel: x[..., None]",
            )
        ]
    window = (
        len(shape) == 2 and shape[0] <= MAX_WINDOW_CHANNELS and shape[1] >= max(MIN_WINDOW_ROWS, 4 * shape[0])
    )
    if window:
        return [
            SampleFinding(
                kind="channels-first",
                severity=WARNING,
                devices=(name,),
                text=f"samples of {by} are read as {shape[0]} readings of {shape[1]} channels; if they are "
                f"{shape[1]} readings of {shape[0]} channels, write x.transpose(0, 2, 1)",
            )
        ]
    picture = (
        len(shape) == 3 and shape[0] <= MAX_PICTURE_CHANNELS < shape[2] and min(shape[1:]) >= MIN_PICTURE_SIDE
    )
    if picture:
        return [
            SampleFinding(
                kind="channels-first",
                severity=WARNING,
                devices=(name,),
                text=f"samples of {by} seem to have their channels first, expected last; write "
                "x.transpose(0, 2, 3, 1)",
            )
        ]
    return []


def _are_grey_levels(x: NDArray[Any]) -> bool:
    """Return whether all values are 8-bit grey levels, from 0 to 255 or divided by 255.

    Floats must have more than `LOW_MAXIMUM` different levels, because a few whole numbers may be counts or
    marks.
    """
    if x.dtype == np.uint8:
        return True
    if x.dtype.kind != "f" or not (x.min() >= 0 and x.max() <= 255):
        return False
    divided = bool(x.max() <= 1)
    factor = 255 if divided else 1
    tolerance = max(1e-3, 255 * float(np.finfo(x.dtype).eps)) if divided else 0  # in levels
    present = np.zeros(256, bool)
    for start in range(0, len(x), BLOCK_ROWS):
        levels = x[start : start + BLOCK_ROWS].astype(np.float64) * factor
        whole = np.round(levels)
        if (np.abs(levels - whole) > tolerance).any():
            return False
        present[whole.astype(np.int64)] = True
    return int(present.sum()) > LOW_MAXIMUM


def check_recordings(name: str, arrays: Arrays) -> list[SampleFinding]:
    """Find windows of different groups that overlap, and windows of `x_test` that overlap windows of `x`.

    Args:
        name: name of the device.
        arrays: samples in the training form that a device accepts.
    """
    x = read_sample_array(arrays, "")
    group = read_group_array(arrays, len(x))
    findings: list[SampleFinding] = []
    recordings = find_recordings(x) if group is not None else None
    if group is not None and recordings is not None:
        before, after = (len(np.unique(groups)) for groups in (group, join_groups(group, recordings.group)))
        if after < before:
            text = (
                f"windows of different groups overlap, so {before} groups count as {after}; give all windows "
                "of one recording the same name in `group`"
            )
            findings.append(SampleFinding(kind="joined-groups", severity=WARNING, devices=(name,), text=text))
    if "x_test" in arrays:
        rows = find_overlapping_rows(read_sample_array(arrays, "_test"), x, copies=False)
        if len(rows):
            text = (
                f"{len(rows)} of {len(arrays['x_test'])} windows of x_test overlap windows of x: row"
                f"{'s' if len(rows) > 1 else ''} {shorten_names([str(row) for row in rows])} of x_test; "
                "parts of them are used for training; remove them from x_test, or test on another recording"
            )
            findings.append(
                SampleFinding(kind="test-overlaps-training", severity=WARNING, devices=(name,), text=text)
            )
    return findings


def check_label_form(name: str, arrays: Arrays, formed: Arrays) -> list[SampleFinding]:
    """Find labels that are read as numbers to predict, because they are not classes.

    Args:
        name: name of the device.
        formed: the arrays in training form, from `edgefl.data.forms.split_targets`.
    """
    if "target" in arrays or "target" not in formed:
        return []
    stored = [arrays[f"y{part}"] for part in PART_SUFFIXES if f"y{part}" in arrays]
    values = np.concatenate([y.ravel().astype(np.float64) for y in stored])
    broken = values[(values != np.round(values)) | (values < 0)]
    is_whole = bool((values == np.round(values)).all())
    example = f", such as {broken[0]:g}" if len(broken) else ""
    columns = f"{stored[0].shape[1]} columns of " if stored[0].ndim > 1 and stored[0].shape[1] > 1 else ""
    text = f"y holds {columns}numbers that are not classes{example}; they are read as values to predict"
    if is_whole:
        text += " by a regression; for a classification, number the classes from 0 in one column"
        return [SampleFinding(kind="numbers", severity=WARNING, devices=(name,), text=text)]
    return [
        SampleFinding(
            kind="numbers", severity=CHANGE, devices=(name,), text=f"{text} (kind = 'regression' in [task])"
        )
    ]


def check_device_samples(device: ReadableSamples, summary: DeviceSamples) -> list[SampleFinding]:
    """Find unusual properties of the samples of one device.

    Args:
        summary: the inspected samples of the same device.
    """
    name = (device.name,)
    count = len(device.x)
    findings: list[SampleFinding] = []

    def warn(kind: str, text: str) -> None:
        findings.append(SampleFinding(kind=kind, severity=WARNING, devices=name, text=text))

    if 0 < count < RECOMMENDED_SAMPLES:
        warn("few-samples", f"{count} samples, expected {RECOMMENDED_SAMPLES} or more; collect more")
    if len(summary.class_counts) == 1 and count > 1:
        label = summary.class_counts[0][0]
        warn(
            "one-class",
            f"all {count} samples are of class {label}; the device can take part, but a model that always "
            f"predicts {label} is right on all of them",
        )
    if device.y is not None and count >= RECOMMENDED_SAMPLES and 2 * len(summary.class_counts) > count:
        warn(
            "many-classes",
            f"{count} samples have {len(summary.class_counts)} different labels, expected a few classes; are "
            "the labels measurements or times?",
        )
    if device.x[:1].size >= MIN_VALUES_FOR_COPIES and summary.num_copies:
        warn(
            "copies",
            f"{summary.num_copies} of {count} samples equal an earlier one; remove copies, because a "
            "held-out copy tests nothing",
        )
    if summary.num_blank:
        warn("blank", f"all values are equal in {summary.num_blank} of {count} samples; was the sensor off?")
    if summary.outliers:
        warn(
            "outliers",
            f"{len(summary.outliers)} of {count} samples are far from the others"
            f"{'' if device.y is None else ' of their class'}: "
            f"row{'s' if len(summary.outliers) > 1 else ''} "
            f"{shorten_names([str(row) for row in summary.outliers])}; look at them",
        )
    constant = [str(i) for i, channel in enumerate(summary.channels) if channel.low == channel.high]
    if constant and count > 1 and len(summary.channels) > 1:
        plural = "s" if len(constant) > 1 else ""
        warn(
            "constant-channel",
            f"channel{plural} {shorten_names(constant)} of {len(summary.channels)} (counted from 0) never "
            f"change{'' if plural else 's'}; leave {'them' if plural else 'it'} out, or check the sensor",
        )
    for number, values in enumerate(summary.targets):
        if max(abs(values.low), abs(values.high)) > MAX_TARGET:
            column = f", column {number}" if len(summary.targets) > 1 else ""
            warn(
                "unscaled-targets",
                f"the numbers to predict{column} go from {values.low:.4g} to {values.high:.4g}, expected "
                "about -1 to 1, because training may diverge otherwise; scale them by the same numbers on "
                "every device, so that the usual ones lie there",
            )
    findings += _check_values(device, summary.usual)
    return findings


def check_growing_channels(device: ReadableSamples, arrays: Arrays) -> list[SampleFinding]:
    """Find channels of windows that grow like a time or a counter.

    The reader of CSV files reports its own.
    """
    x = device.x[:MAX_GROWING_WINDOWS]
    is_csv = "recording" in arrays and "window_number" not in arrays
    if is_csv or x.ndim != 3 or x.shape[1] <= MIN_GROWING_STEPS or not len(x):
        return []
    shares = (np.diff(x, axis=1) > 0).mean(axis=(0, 1))
    names = arrays.get("channels", np.zeros(0))
    if len(names) != x.shape[2]:
        names = np.arange(x.shape[2])
    growing = [str(name) for name, share in zip(names, shares, strict=True) if share >= MIN_GROWING_SHARE]
    if not growing or len(growing) == x.shape[2]:
        return []
    text = f"channel {shorten_names(growing)} grows like a time or a counter; leave it out"
    return [SampleFinding(kind="growing-channel", severity=WARNING, devices=(device.name,), text=text)]


def _check_values(device: ReadableSamples, values: ValueRange | None) -> list[SampleFinding]:
    if values is None:
        return []
    picture = device.x.ndim == 4
    if picture and values.low >= 0 and LOW_MAXIMUM < values.high <= 255:
        text = f"pictures hold values from {values.low:g} to {values.high:g}, expected 0 to 1; write x / 255"
        return [SampleFinding(kind="unscaled", severity=WARNING, devices=(device.name,), text=text)]
    if values.spread > MAX_STANDARD_DEVIATION or 0 < values.spread < MIN_STANDARD_DEVIATION:
        text = (
            f"values go from {values.low:.4g} to {values.high:.4g} with a standard deviation of "
            f"{values.spread:.3g}, expected about 1; scale them in the same way on every device, such as (x "
            f"- {values.mean:.3g}) / {values.spread:.3g}"
        )
        return [SampleFinding(kind="unscaled", severity=WARNING, devices=(device.name,), text=text)]
    return []


def check_across_devices(
    devices: Sequence[ReadableSamples], summaries: Sequence[DeviceSamples], digests: Sequence[Sequence[bytes]]
) -> list[SampleFinding]:
    """Find samples that several devices have, and devices whose samples do not match.

    Args:
        devices: the readable samples of each device.
        summaries: the inspected samples of each device.
        digests: the digest of each readable sample, by device.
    """
    findings: list[SampleFinding] = []
    for device, device_digests in zip(devices, digests, strict=True):
        training = {
            digest
            for digest, row in zip(device_digests, device.rows, strict=True)
            if row < device.num_samples
        }
        leaked = sum(
            digest in training
            for digest, row in zip(device_digests, device.rows, strict=True)
            if row >= device.num_samples
        )
        if leaked and device.x[:1].size >= MIN_VALUES_FOR_COPIES:
            text = (
                f"{leaked} of {device.num_test} samples of x_test are also in x; remove them, because a "
                "training sample tests nothing"
            )
            findings.append(
                SampleFinding(kind="test-in-training", severity=WARNING, devices=(device.name,), text=text)
            )
    findings += _find_shared_samples(devices, digests)
    findings += _find_contradictions(devices, digests)
    shapes = {summary.name: summary.shape for summary in summaries if summary.shape}
    if len(set(shapes.values())) > 1:
        listed = ", ".join(f"{name} {format_shape(shape)}" for name, shape in list(shapes.items())[:8])
        text = f"samples have different shapes: {listed}; expected one shape"
        findings.append(SampleFinding(kind="shapes", severity=ERROR, devices=tuple(shapes), text=text))
    findings += _compare_label_forms(summaries)
    findings += _compare_classes(devices, summaries)
    scales = {
        device.name: device.usual.spread for device in summaries if device.usual and device.usual.spread > 0
    }
    findings += _compare_spreads("values", scales)
    for column in range(max((len(device.targets) for device in summaries), default=0)):
        spreads = {
            device.name: device.targets[column].spread for device in summaries if len(device.targets) > column
        }
        findings += _compare_spreads("numbers to predict", spreads)
    return findings


def _compare_spreads(what: str, spreads: Mapping[str, float]) -> list[SampleFinding]:
    varying = {name: spread for name, spread in spreads.items() if spread > 0}
    if len(varying) < 2:
        return []
    low, high = (choose(varying, key=lambda name: varying[name]) for choose in (min, max))
    if varying[high] <= MAX_SCALE_RATIO * varying[low]:
        return []
    text = (
        f"{what} of {high} vary {varying[high] / varying[low]:.3g} times as much as those of {low}; do all "
        "devices use the same unit?"
    )
    return [SampleFinding(kind="scales", severity=WARNING, devices=(low, high), text=text)]


def compare_channels(devices: Mapping[str, Arrays]) -> list[SampleFinding]:
    """Find devices whose channels have other names or another order than those of other devices.

    Args:
        devices: by device name, the stored arrays. CSV data, rings and sounds have names of channels.
    """
    names, columns = (
        {name: tuple(map(str, arrays[key])) for name, arrays in devices.items() if key in arrays}
        for key in ("channels", "columns")
    )
    listed = "; ".join(f"{name}: {', '.join(items)}" for name, items in list(columns.items())[:4])
    if len(set(names.values())) > 1:
        text = (
            f"channels differ, so a channel means different sensors ({listed}); record the same channels on "
            "every device, or choose columns of CSV files with --channels"
        )
        return [SampleFinding(kind="channel-names", severity=ERROR, devices=tuple(names), text=text)]
    if len(set(columns.values())) > 1:
        text = (
            f"columns have different orders ({listed}); the channels of every device are in the order "
            f"{', '.join(next(iter(names.values())))}"
        )
        return [SampleFinding(kind="channel-names", severity=WARNING, devices=tuple(names), text=text)]
    if names and (unnamed := tuple(name for name in devices if name not in names)):
        text = (
            f"the channels of {', '.join(unnamed)[:80]} have no names; their order may differ from "
            f"{', '.join(next(iter(names.values())))[:80]}; add the array channel_names"
        )
        return [SampleFinding(kind="channel-names", severity=WARNING, devices=unnamed, text=text)]
    return []


def compare_intervals(devices: Mapping[str, Arrays]) -> list[SampleFinding]:
    """Find devices that record at another rate than others.

    Args:
        devices: by device name, the stored arrays. CSV data with a column of times have an interval.
    """
    intervals = {name: float(arrays["interval"]) for name, arrays in devices.items() if "interval" in arrays}
    others = find_other_rates(intervals)
    if others is None:
        return []
    low, high = others
    text = (
        f"rows are {intervals[low]:.3g} s apart on {low} and {intervals[high]:.3g} s on {high}, so a window "
        "has another length in time; record at one rate"
    )
    return [SampleFinding(kind="rates", severity=WARNING, devices=(low, high), text=text)]


def _compare_classes(
    devices: Sequence[ReadableSamples], summaries: Sequence[DeviceSamples]
) -> list[SampleFinding]:
    """Find devices on which a class number means another class than on other devices."""
    findings: list[SampleFinding] = []
    lists = {device.name: device.class_names for device in devices if device.class_names}
    labelled = {summary.name: summary.class_counts for summary in summaries if summary.class_counts}
    numbered = [name for name in labelled if name not in lists]
    if len(set(lists.values())) > 1:
        listed = "; ".join(f"{name}: {', '.join(names[:8])}" for name, names in list(lists.items())[:4])
        text = (
            f"class names differ between {shorten_names(list(lists))}, so a class number means different "
            f"classes ({listed}); use the same classes.txt, class_names or --classes on every device"
        )
        findings.append(SampleFinding(kind="class-names", severity=ERROR, devices=tuple(lists), text=text))
    if lists and numbered:
        name = next(iter(lists))
        text = (
            f"classes have names on {shorten_names(list(lists))} ({', '.join(lists[name][:8])}) and numbers "
            f"on {shorten_names(numbered)}, so a class number means different classes; use names or numbers "
            "on every device"
        )
        findings.append(
            SampleFinding(kind="class-names", severity=ERROR, devices=(*lists, *numbered), text=text)
        )
    counts = {
        device.name: device.num_classes
        for device in devices
        if device.num_classes and device.name in labelled
    }
    largest = {name: classes[-1][0] for name, classes in labelled.items()}
    lowest = min(counts.values(), default=0)
    beyond = [name for name, label in largest.items() if counts and label >= lowest]
    if (len(set(counts.values())) > 1 or beyond) and len(set(lists.values())) < 2:
        stated = ", ".join(f"{name} {count}" for name, count in list(counts.items())[:8])
        labels = ", ".join(f"{name} {largest[name]}" for name in beyond[:8])
        text = (
            f"devices state different numbers of classes ({stated}"
            + (f"; largest label of {labels}" if labels else "")
            + "), expected one number; state it alike on every device"
        )
        findings.append(
            SampleFinding(kind="num-classes", severity=ERROR, devices=(*counts, *beyond), text=text)
        )
    return findings


def check_class_names(device: ReadableSamples) -> list[SampleFinding]:
    """Find names of classes that are probably one class in two spellings, or no class."""
    spellings: dict[str, list[str]] = {}
    for name in device.class_names:
        spellings.setdefault(re.sub(r"[\s_-]+", "", name.casefold()) or name, []).append(name)
    findings = []
    if doubles := [names for names in spellings.values() if len(names) > 1]:
        listed = "; ".join(", ".join(map(repr, names)) for names in doubles[:8])
        text = (
            f"class names differ only in capitals, spaces or dashes ({listed}); write each class in one way"
        )
        findings.append(
            SampleFinding(kind="class-names", severity=WARNING, devices=(device.name,), text=text)
        )
    numbers = [name for name in device.class_names if parse_number(name) is not None]
    others = [name for name in device.class_names if name not in numbers]
    if numbers and others:
        text = (
            f"classes are named by numbers ({shorten_names(numbers)}) and by other names "
            f"({shorten_names(others)}); correct the labels, unless all of them are classes"
        )
        findings.append(
            SampleFinding(kind="class-names", severity=WARNING, devices=(device.name,), text=text)
        )
    if placeholders := [name for name in device.class_names if name.casefold() in PLACEHOLDERS]:
        text = (
            f"the class {', '.join(map(repr, placeholders))} may stand for missing labels; remove such "
            "samples, unless it is a class"
        )
        findings.append(
            SampleFinding(kind="class-names", severity=WARNING, devices=(device.name,), text=text)
        )
    return findings


def _compare_label_forms(summaries: Sequence[DeviceSamples]) -> list[SampleFinding]:
    """Find devices whose samples have another form of labels than those of other devices."""
    findings: list[SampleFinding] = []
    widths = {device.name: len(device.targets) for device in summaries if device.targets}
    classes = [device.name for device in summaries if device.class_counts]
    unlabelled = [device.name for device in summaries if not device.has_labels]
    if len(set(widths.values())) > 1:
        listed = ", ".join(f"{name} {count}" for name, count in list(widths.items())[:8])
        text = f"devices have different numbers of values to predict: {listed}; expected one number"
        findings.append(SampleFinding(kind="label-forms", severity=ERROR, devices=tuple(widths), text=text))
    if widths and classes:
        text = (
            f"labels are whole numbers on {shorten_names(classes)}, and numbers that are not classes on "
            f"{shorten_names(list(widths))}; a regression predicts both, a classifier accepts only classes"
        )
        findings.append(
            SampleFinding(kind="label-forms", severity=WARNING, devices=(*classes, *widths), text=text)
        )
    if unlabelled and len(unlabelled) < len(summaries):
        text = (
            "the samples have no labels, those of other devices have; an anomaly detector takes them as "
            "normal, every other task needs labels"
        )
        findings.append(
            SampleFinding(kind="no-labels", severity=WARNING, devices=tuple(unlabelled), text=text)
        )
    return findings


def _find_shared_samples(
    devices: Sequence[ReadableSamples], digests: Sequence[Sequence[bytes]]
) -> list[SampleFinding]:
    """Find pairs of devices that have samples in common."""
    sets = {
        device.name: set(device_digests)
        for device, device_digests in zip(devices, digests, strict=True)
        if device_digests and device.x[:1].size >= MIN_VALUES_FOR_COPIES
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
        listed = shorten_names([f"{first} and {second}" for first, second in equal])
        text = f"devices have the same samples: {listed}; give each device different samples"
        findings.append(
            SampleFinding(kind="same-samples", severity=WARNING, devices=_list_names(equal), text=text)
        )
    if partly:
        listed = shorten_names([f"{pairs[pair]} in {pair[0]} and {pair[1]}" for pair in partly])
        text = f"devices share samples: {listed}; one device may train on samples that another holds out"
        findings.append(
            SampleFinding(kind="shared-samples", severity=WARNING, devices=_list_names(partly), text=text)
        )
    return findings


def _list_names(pairs: Sequence[tuple[str, str]]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for pair in pairs for name in pair))


def _find_contradictions(
    devices: Sequence[ReadableSamples], digests: Sequence[Sequence[bytes]]
) -> list[SampleFinding]:
    labels: dict[bytes, set[int]] = {}
    owners: dict[bytes, dict[str, None]] = {}
    for device, device_digests in zip(devices, digests, strict=True):
        if device.y is None or device.x[:1].size < MIN_VALUES_FOR_COPIES:
            continue
        for digest, label in zip(device_digests, device.y.tolist(), strict=True):
            labels.setdefault(digest, set()).add(label)
            owners.setdefault(digest, {})[device.name] = None
    wrong = [digest for digest, classes in labels.items() if len(classes) > 1]
    if not wrong:
        return []
    names = tuple(dict.fromkeys(name for digest in wrong for name in owners[digest]))
    text = f"{len(wrong)} samples occur more than once with different labels; correct the labels"
    return [SampleFinding(kind="contradictions", severity=WARNING, devices=names, text=text)]


def check_class_labels(
    devices: Sequence[DeviceSamples], classes: Sequence[int], num_classes: int
) -> list[SampleFinding]:
    """Find unusual properties of the classes of all devices together.

    Args:
        devices: the inspected samples of each device.
        classes: every class that occurs, in order.
        num_classes: number of classes of the federation.
    """
    names = tuple(device.name for device in devices if device.class_counts)
    if not classes or classes[0] < 0:
        return []
    findings = []
    if classes[0] > 0:
        text = (
            f"labels range from {classes[0]} to {classes[-1]}: that makes {classes[-1] + 1} classes, and "
            f"none of these devices has a sample of the first {classes[0]}; number them from 0, y - "
            f"{classes[0]}, unless other devices have them"
        )
        findings.append(SampleFinding(kind="first-label", severity=WARNING, devices=names, text=text))
    if num_classes - classes[0] > len(classes) and num_classes <= MAX_CLASSES_FOR_GAPS:
        present = set(classes)
        empty = [str(label) for label in range(classes[0], num_classes) if label not in present]
        text = (
            f"none of these devices has a sample of class {shorten_names(empty)}; number the classes "
            "without gaps, unless other devices have these"
        )
        findings.append(SampleFinding(kind="empty-classes", severity=WARNING, devices=names, text=text))
    totals: dict[int, int] = {}
    for device in devices:
        for label, count in device.class_counts:
            totals[label] = totals.get(label, 0) + count
    few = [f"{label} ({count})" for label, count in totals.items() if count < RECOMMENDED_CLASS_SAMPLES]
    if few and len(few) <= len(totals) / 2:
        text = (
            f"fewer than {RECOMMENDED_CLASS_SAMPLES} samples, over all devices, of class "
            f"{shorten_names(few)}; collect more"
        )
        findings.append(SampleFinding(kind="few-of-a-class", severity=WARNING, devices=names, text=text))
    return findings
