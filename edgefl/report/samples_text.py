"""What an inspection of samples found, as text for a terminal."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from edgefl.data.forms import shape_text
from edgefl.data.inspection.records import DeviceSamples, Inspection, Range
from edgefl.data.partitions.heatmap import heat_text
from edgefl.data.split import RULES
from edgefl.system.format import NONE, columns, cut, printable

MAX_NUMBER_COLUMNS = 12
MAX_CLASSES_DRAWN = 2_000
NAME_WIDTH = 24
MAX_DEVICES_IN_SHORT = 8
MAX_FINDINGS_IN_SHORT = 12
NOTHING_UNUSUAL = "nothing unusual found"


def summary_line(inspection: Inspection) -> str:
    """Return numbers of devices, samples and classes, and the shape of a sample."""
    count = sum(device.num_samples + device.num_test for device in inspection.devices)
    shapes = {device.shape for device in inspection.devices if device.shape}
    form = f" of {shape_text(next(iter(shapes)))}" if len(shapes) == 1 else ""
    devices = len(inspection.devices)
    return (
        f"{devices} device{'s' if devices != 1 else ''}, {count:,} samples{form}, "
        f"{inspection.num_classes} classes"
    )


def finding_lines(inspection: Inspection) -> list[str]:
    """Return one line for each finding: its severity, its devices and its text."""
    return [
        printable(f"{each.severity}: {_devices(inspection, each.devices)}: {each.text}")
        for each in inspection.findings
    ]


def split_lines(inspection: Inspection) -> list[str]:
    """Return how test samples are held out: a line for each rule, with its devices."""
    names: dict[str, list[str]] = {}
    for device in inspection.devices:
        if device.split is not None:
            names.setdefault(device.split.rule, []).append(device.name)
    return [
        printable(f"held out on {_devices(inspection, own)} by {rule}: {RULES[rule]}")
        for rule, own in names.items()
    ]


def _devices(inspection: Inspection, names: Sequence[str]) -> str:
    """Return the names of devices in at most 60 characters."""
    everywhere = [device.name for device in inspection.devices]
    if len(everywhere) > 1 and list(names) == everywhere:
        return "all devices"
    return cut(", ".join(names), 60)


def short_text(inspection: Inspection) -> str:
    """Return one line for each of the first devices, and the first findings."""
    shown = replace(inspection, devices=inspection.devices[:MAX_DEVICES_IN_SHORT])
    left = len(inspection.devices) - len(shown.devices)
    more = [f"and {left} more devices"] if left else []
    findings = finding_lines(inspection)
    rest = len(findings) - MAX_FINDINGS_IN_SHORT
    if rest > 0:
        findings[MAX_FINDINGS_IN_SHORT:] = [f"and {rest} more findings; `edgefl data show` prints all"]
    return "\n".join([columns(_rows(shown)), *more, *split_lines(inspection), *findings])


def inspection_text(inspection: Inspection) -> str:
    """Return the inspection: a table of devices, class balance, and findings."""
    parts = [summary_line(inspection), columns(_rows(inspection))]
    if len(inspection.classes) > MAX_NUMBER_COLUMNS:
        parts.append("\n".join(_balance(inspection)))
    parts += ["\n".join(lines)] if (lines := split_lines(inspection)) else []
    parts.append("\n".join(finding_lines(inspection)) or NOTHING_UNUSUAL)
    return "\n\n".join(parts)


def range_text(values: Range | None) -> str:
    """Return a range as `0 to 1`."""
    return NONE if values is None else f"{values.low:.3g} to {values.high:.3g}"


def training_and_test(device: DeviceSamples) -> tuple[str, str]:
    """Return how many samples a device trains on and holds out, dashes when it refuses the samples."""
    split = device.split
    return (NONE, NONE) if split is None else (f"{split.train:,}", f"{split.test:,}")


def class_name(inspection: Inspection, label: int) -> str:
    """Return a class's name where it has one, else its number."""
    names = inspection.class_names
    return printable(names[label]) if 0 <= label < len(names) else str(label)


def _rows(inspection: Inspection) -> Sequence[Sequence[str]]:
    shown = inspection.classes if len(inspection.classes) <= MAX_NUMBER_COLUMNS else ()
    names = [cut(class_name(inspection, label), 10) for label in shown]
    names[:1] = [f"class {name}" for name in names[:1]]
    head = ["device", "training", "test", *names, "values", "copies", "shared", "outliers"]
    rows = [head]
    for device in inspection.devices:
        counts = dict(device.class_counts)
        rows.append(
            [
                cut(printable(device.name), NAME_WIDTH),
                *training_and_test(device),
                *(f"{counts[label]:,}" if label in counts else NONE for label in shown),
                range_text(device.values),
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
                "",
                str(sum(device.num_copies for device in inspection.devices)),
                str(sum(device.num_shared for device in inspection.devices)),
                str(sum(len(device.outliers) for device in inspection.devices)),
            ]
        )
    return rows


def _balance(inspection: Inspection) -> list[str]:
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
    names = [cut(printable(device.name), NAME_WIDTH) for device in labelled]
    return heat_text(counts, names, [-1] * len(names), "class")
