"""Formats the inspection of samples as text for a terminal."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from edgefl.base.config.schema import MIN_STD
from edgefl.base.system.format import NO_VALUE, align_columns, escape_unprintable, truncate
from edgefl.data.forms import format_shape
from edgefl.data.inspection.records import DeviceSamples, Inspection, ValueRange
from edgefl.data.partitions.heatmap import render_heatmap
from edgefl.data.split import RULES

MAX_NUMBER_COLUMNS = 12
MAX_TARGET_COLUMNS = 4
MAX_CLASSES_DRAWN = 2_000
NAME_WIDTH = 24
MAX_SHORT_DEVICES = 8
MAX_SHORT_FINDINGS = 12
NOTHING_UNUSUAL = "nothing unusual found"


def summarize_samples(inspection: Inspection) -> str:
    """Return the number of devices, samples and classes or targets, and the shape of a sample."""
    count = sum(device.num_samples + device.num_test for device in inspection.devices)
    shapes = {device.shape for device in inspection.devices if device.shape}
    form = f" of {format_shape(next(iter(shapes)))}" if len(shapes) == 1 else ""
    devices = len(inspection.devices)
    return (
        f"{devices} device{'s' if devices != 1 else ''}, {count:,} samples{form}, "
        f"{_describe_labels(inspection)}"
    )


def _describe_labels(inspection: Inspection) -> str:
    if not any(device.has_labels for device in inspection.devices):
        return "no labels"
    targets = count_targets(inspection)
    parts = [f"{inspection.num_classes} classes"] if inspection.num_classes or not targets else []
    parts += [f"{targets} number{'s' if targets > 1 else ''} to predict"] if targets else []
    return ", ".join(parts)


def count_targets(inspection: Inspection) -> int:
    """Return the largest number of values to predict of a device, 0 without such values."""
    return max((len(device.targets) for device in inspection.devices), default=0)


def format_sample_findings(inspection: Inspection) -> list[str]:
    """Return a line per finding: severity, devices and text."""
    return [
        escape_unprintable(
            f"{finding.severity}: {_format_devices(inspection, finding.devices)}: {finding.text}"
        )
        for finding in inspection.findings
    ]


def describe_splits(inspection: Inspection) -> list[str]:
    """Return a line per rule of holding out test samples, with the devices that use it."""
    names: dict[str, list[str]] = {}
    for device in inspection.devices:
        if device.split is not None:
            names.setdefault(device.split.rule, []).append(device.name)
    by_class = "" if inspection.classes else " of each class"
    return [
        escape_unprintable(
            f"held out on {_format_devices(inspection, devices)} by {rule}: "
            f"{RULES[rule].replace(by_class, '') if by_class else RULES[rule]}"
        )
        for rule, devices in names.items()
    ]


def describe_normalization(inspection: Inspection) -> list[str]:
    """Return a line with the mean and std of each channel over all devices, in the form of `[model]`.

    The list is empty if the devices have different shapes, too many channels or a constant channel.
    """
    devices = [device for device in inspection.devices if device.channels]
    if not devices or len({device.shape for device in inspection.devices}) > 1:
        return []
    counts = np.array([device.num_samples + device.num_test for device in devices], np.float64)
    weights = counts[:, None] / counts.sum()
    means, spreads = (
        np.array([[getattr(channel, key) for channel in device.channels] for device in devices])
        for key in ("mean", "spread")
    )
    mean = (weights * means).sum(axis=0)
    std = np.sqrt(np.maximum((weights * (spreads**2 + means**2)).sum(axis=0) - mean**2, 0))
    if (std < MIN_STD).any():
        return []
    mean_text, std_text = (", ".join(f"{value:.4g}" for value in values) for values in (mean, std))
    return [f"normalization in [model]: mean = [{mean_text}], std = [{std_text}]"]


def _format_devices(inspection: Inspection, names: Sequence[str]) -> str:
    """Return the names of devices in at most 60 characters."""
    everywhere = [device.name for device in inspection.devices]
    if len(everywhere) > 1 and list(names) == everywhere:
        return "all devices"
    return truncate(", ".join(names), 60)


def format_short_inspection(inspection: Inspection) -> str:
    """Return a line for each of the first devices, and the first findings."""
    shown = replace(inspection, devices=inspection.devices[:MAX_SHORT_DEVICES])
    left = len(inspection.devices) - len(shown.devices)
    more = [f"and {left} more devices"] if left else []
    findings = format_sample_findings(inspection)
    rest = len(findings) - MAX_SHORT_FINDINGS
    if rest > 0:
        findings[MAX_SHORT_FINDINGS:] = [f"and {rest} more findings; `edgefl data show` prints all"]
    return "\n".join([align_columns(_build_rows(shown)), *more, *describe_splits(inspection), *findings])


def format_inspection(inspection: Inspection) -> str:
    """Return the inspection: a table of devices, the class balance or targets, and the findings."""
    parts = [summarize_samples(inspection), align_columns(_build_rows(inspection))]
    if len(inspection.classes) > MAX_NUMBER_COLUMNS:
        parts.append("\n".join(_draw_balance(inspection)))
    lines = [*describe_splits(inspection), *describe_normalization(inspection)]
    parts += ["\n".join(lines)] if lines else []
    parts.append("\n".join(format_sample_findings(inspection)) or NOTHING_UNUSUAL)
    return "\n\n".join(parts)


def format_range(values: ValueRange | None) -> str:
    """Return a range such as `0 to 1`."""
    return NO_VALUE if values is None else f"{values.low:.3g} to {values.high:.3g}"


def format_sample_counts(device: DeviceSamples) -> tuple[str, str]:
    """Return the numbers of training and test samples, or dashes for a device that rejects the samples."""
    split = device.split
    return (NO_VALUE, NO_VALUE) if split is None else (f"{split.train:,}", f"{split.test:,}")


def name_class(inspection: Inspection, label: int) -> str:
    """Return the name of a class, or its number if it has no name.

    Args:
        inspection: the inspection, which lists the class names.
        label: number of the class, from 0.
    """
    names = inspection.class_names
    return escape_unprintable(names[label]) if 0 <= label < len(names) else str(label)


def _build_rows(inspection: Inspection) -> Sequence[Sequence[str]]:
    shown = inspection.classes if len(inspection.classes) <= MAX_NUMBER_COLUMNS else ()
    names = [truncate(name_class(inspection, label), 10) for label in shown]
    names[:1] = [f"class {name}" for name in names[:1]]
    targets = count_targets(inspection)
    target_heads = (
        ["target"] if targets == 1 else [f"target {i}" for i in range(min(targets, MAX_TARGET_COLUMNS))]
    )
    head = ["device", "training", "test", *names, *target_heads, "values", "copies", "shared", "outliers"]
    rows = [head]
    for device in inspection.devices:
        counts = dict(device.class_counts)
        rows.append(
            [
                truncate(escape_unprintable(device.name), NAME_WIDTH),
                *format_sample_counts(device),
                *(f"{counts[label]:,}" if label in counts else NO_VALUE for label in shown),
                *(
                    format_range(device.targets[index] if index < len(device.targets) else None)
                    for index in range(len(target_heads))
                ),
                format_range(device.values),
                str(device.num_copies),
                str(device.num_shared),
                str(len(device.outliers)),
            ]
        )
    if len(inspection.devices) > 1:
        splits = [device.split for device in inspection.devices if device.split is not None]
        totals = Counter[int]()
        for device in inspection.devices:
            totals.update(dict(device.class_counts))
        rows.append(
            [
                "all",
                f"{sum(split.train for split in splits):,}",
                f"{sum(split.test for split in splits):,}",
                *(f"{totals[label]:,}" for label in shown),
                *("" for _ in target_heads),
                "",
                str(sum(device.num_copies for device in inspection.devices)),
                str(sum(device.num_shared for device in inspection.devices)),
                str(sum(len(device.outliers) for device in inspection.devices)),
            ]
        )
    return rows


def _draw_balance(inspection: Inspection) -> list[str]:
    """Return the share of each class on each device as shades."""
    classes = [label for label in inspection.classes if label >= 0]
    if not classes or classes[-1] >= MAX_CLASSES_DRAWN:
        return [f"{len(inspection.classes)} classes, too many to draw"]
    labelled = [
        device for device in inspection.devices if any(label >= 0 for label, _ in device.class_counts)
    ]
    counts = np.zeros((len(labelled), classes[-1] + 1), np.int64)
    for row, device in enumerate(labelled):
        for label, count in device.class_counts:
            if label >= 0:
                counts[row, label] = count
    names = [truncate(escape_unprintable(device.name), NAME_WIDTH) for device in labelled]
    return render_heatmap(counts, names, [-1] * len(names), "class")
