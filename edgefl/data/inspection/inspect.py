"""Inspects the samples of devices: a pure function from arrays to findings."""

from collections.abc import Mapping, Sequence
from hashlib import blake2b
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from edgefl.base.errors import DataError
from edgefl.base.tasks.samples import SamplesConfig
from edgefl.base.types import Array, Labels
from edgefl.data.forms import (
    PART_SUFFIXES,
    Arrays,
    guess_input_shape,
    has_label_arrays,
    split_targets,
    to_input_shape,
    to_training_form,
)
from edgefl.data.inspection.findings import (
    check_across_devices,
    check_class_labels,
    check_class_names,
    check_device_samples,
    check_growing_channels,
    check_label_form,
    check_recordings,
    check_sample_shape,
    compare_channels,
    compare_intervals,
)
from edgefl.data.inspection.outliers import MAX_DESCRIBED_CHANNELS, find_outliers
from edgefl.data.inspection.records import (
    CHANGE,
    ERROR,
    SEVERITIES,
    WARNING,
    DeviceSamples,
    Inspection,
    ReadableSamples,
    SampleExample,
    SampleFinding,
    ValueRange,
)
from edgefl.data.npz import make_samples
from edgefl.data.sources.csv_windows import (
    COUNTS_ROWS,
    LEAVE_OUT_REMEDY,
    NO_NAME,
    NO_NUMBER,
    PAUSE_REMEDY,
    RATE_REMEDY,
)
from edgefl.data.split import SplitRecord
from edgefl.data.unit import (
    BLOCK_ROWS,
    copy_class_names,
    describe_unit_conflict,
    list_class_names,
    suggest_unit,
)

MAX_CLASS_EXAMPLES = 10
MAX_OUTLIER_EXAMPLES = 6
DOUBTFUL_COLUMNS = (COUNTS_ROWS, NO_NAME, NO_NUMBER, LEAVE_OUT_REMEDY, PAUSE_REMEDY, RATE_REMEDY)
"""Parts of a note on columns at which the owner should look."""


def inspect_samples(
    devices: Mapping[str, Arrays],
    input_shape: tuple[int, ...] | None = None,
    samples: SamplesConfig | None = None,
) -> Inspection:
    """Inspect the samples of devices.

    Arrays of any form are accepted. Arrays that cannot be used for training are reported as findings.

    Args:
        devices: by device name, the arrays that `edgefl.data.sources.read_source` returns.
        input_shape: input shape of the model. None guesses a likely shape.
        samples: unit and layout of the federation. None takes what `edgefl init` would write.
    """
    findings: list[SampleFinding] = []
    is_proposed = samples is None
    if samples is None:
        samples, sentences = suggest_unit(devices)
        findings += [
            SampleFinding(kind="unscaled", severity=CHANGE, devices=tuple(devices), text=sentence)
            for sentence in sentences
        ]
    if conflict := describe_unit_conflict(devices):
        findings.append(SampleFinding(kind="units", severity=ERROR, devices=tuple(devices), text=conflict))
    readable = []
    splits: list[SplitRecord | None] = []
    for name, arrays in devices.items():
        formed, changes = to_training_form(split_targets(arrays), samples)
        kinds = {item: _classify_change(item) for item in changes}
        findings += [
            SampleFinding(
                kind=kind,
                severity=WARNING if any(part in item for part in DOUBTFUL_COLUMNS) else CHANGE,
                devices=(name,),
                text=item,
            )
            for item, kind in kinds.items()
            if not (is_proposed and kind == "unscaled")  # the proposed unit says it for all devices
        ]
        try:
            layout = copy_class_names(samples, arrays)
            made = make_samples(arrays, name, samples=layout, count_overlapping=True, any_task=True)
            splits.append(made.split)
        except DataError as error:
            splits.append(None)
            findings.append(
                SampleFinding(
                    kind="unusable",
                    severity=ERROR,
                    devices=(name,),
                    text=str(error).removeprefix(f"{name}: "),
                )
            )
        else:
            findings += check_recordings(name, formed)
        readable.append(_read_device(name, arrays, formed, input_shape))
        findings += check_label_form(name, arrays, formed)
        findings += check_sample_shape(name, arrays, input_shape)
    digests = [[blake2b(row.tobytes(), digest_size=16).digest() for row in item.x + 0] for item in readable]
    outliers = find_outliers(readable)
    summaries = []
    for index, item in enumerate(readable):
        others = {
            digest
            for other, device_digests in enumerate(digests)
            if other != index
            for digest in device_digests
        }
        summaries.append(_describe_device(item, digests[index], others, outliers[index], splits[index]))
    for item, summary in zip(readable, summaries, strict=True):
        findings += check_device_samples(item, summary) + check_class_names(item)
        findings += check_growing_channels(item, devices[item.name])
    findings += check_across_devices(readable, summaries, digests)
    findings += compare_channels(devices) + compare_intervals(devices)
    classes = sorted({label for summary in summaries for label, _ in summary.class_counts})
    num_classes = max(
        [*(item.num_classes for item in readable), *(label + 1 for label in classes)], default=0
    )
    findings += check_class_labels(summaries, classes, num_classes)
    names = next((item.class_names for item in readable if item.class_names), ())
    merged = _merge_findings(findings)
    return Inspection(
        devices=tuple(summaries),
        classes=tuple(classes),
        class_names=names,
        num_classes=num_classes,
        findings=merged,
    )


def name_devices(sources: Sequence[str]) -> list[str]:
    """Return a name for each source: its file name if that is unique, or else the whole source."""
    stems = [Path(source).stem or source for source in sources]
    names = stems if len(set(stems)) == len(stems) else list(sources)
    return [
        name if names.index(name) == index else f"{name} ({index + 1})" for index, name in enumerate(names)
    ]


def _classify_change(change: str) -> str:
    if "one-hot" in change:
        return "one-hot"
    if change.startswith("channels "):
        return "channels"
    if "windows have an empty cell" in change:
        return "empty-cells"
    return "unscaled" if change.startswith("x") else "label-type"


def _read_device(
    name: str, arrays: Arrays, formed: Arrays, input_shape: tuple[int, ...] | None
) -> ReadableSamples:
    parts = [_read_samples(formed.get(f"x{part}")) for part in PART_SUFFIXES]
    shape = next((x.shape[1:] for x in parts if x is not None), (0,))
    x_parts = [
        x if x is not None and x.shape[1:] == shape else np.empty((0, *shape), np.float32) for x in parts
    ]
    labels = [
        _read_labels(formed.get(f"y{part}"), len(x)) for part, x in zip(PART_SUFFIXES, x_parts, strict=True)
    ]
    label_parts = [y for y in labels if y is not None]
    x = np.concatenate(x_parts) if len(x_parts[1]) else x_parts[0]
    has_classes = len(label_parts) == len(labels) and has_label_arrays(arrays) and "target" not in formed
    y = np.concatenate(label_parts) if has_classes else None
    targets = [
        _read_targets(formed.get(f"target{part}"), len(x))
        for part, x in zip(PART_SUFFIXES, x_parts, strict=True)
    ]
    target_parts = [part for part in targets if part is not None and part.size]
    widths = {part.shape[1] for part in target_parts}
    target = np.concatenate(target_parts) if len(widths) == 1 else None
    finite = np.isfinite(x.reshape(len(x), -1)).all(axis=1) if x.size else np.zeros(len(x), bool)
    shaped = to_input_shape(x if finite.all() else x[finite], input_shape or guess_input_shape(shape))
    stored = arrays.get("x")
    listed = list_class_names(arrays)
    return ReadableSamples(
        name=name,
        x=shaped,
        y=None if y is None else y[finite],
        rows=np.flatnonzero(finite).astype(np.int64),
        num_samples=len(x_parts[0]),
        num_test=len(x_parts[1]),
        stored="nothing" if stored is None else f"{stored.dtype}{list(stored.shape)}",
        num_classes=max(len(listed), _read_whole_number(formed.get("num_classes"))),
        class_names=listed,
        has_labels=has_label_arrays(arrays),
        target=None if target is None or len(target) != len(x) else target[finite],
    )


def _read_samples(x: NDArray[np.generic] | None) -> Array | None:
    """Return float32 samples, or None if the array cannot be read as samples."""
    if x is None or x.dtype.kind not in "buif" or x.ndim < 2 or 0 in x.shape[1:]:
        return None
    with np.errstate(over="ignore", invalid="ignore"):
        return np.asarray(x, np.float32)


def _read_labels(y: NDArray[np.generic] | None, count: int) -> Labels | None:
    if y is None:
        return np.empty(0, np.int64) if not count else None
    return y.astype(np.int64) if y.shape == (count,) and y.dtype.kind in "iu" else None


def _read_targets(target: NDArray[np.generic] | None, count: int) -> Array | None:
    if target is None or target.ndim not in (1, 2) or len(target) != count:
        return None
    with np.errstate(over="ignore"):
        return target.reshape(count, target.size // max(1, count)).astype(np.float32)


def _read_whole_number(stored: NDArray[np.generic] | None) -> int:
    return int(stored.item()) if stored is not None and stored.size == 1 and stored.dtype.kind in "iu" else 0


def _measure_range(x: Array) -> ValueRange:
    mean = float(x.mean(dtype=np.float64))
    parts = (x[start : start + BLOCK_ROWS] for start in range(0, len(x), BLOCK_ROWS))
    squares = sum(float(np.square(part.astype(np.float64) - mean).sum()) for part in parts)
    return ValueRange(low=float(x.min()), high=float(x.max()), mean=mean, spread=(squares / x.size) ** 0.5)


def _describe_device(
    device: ReadableSamples,
    digests: Sequence[bytes],
    other_digests: set[bytes],
    outliers: NDArray[np.bool_],
    split: SplitRecord | None,
) -> DeviceSamples:
    x = device.x
    y = device.y
    shape = x.shape[1:] if x.ndim > 1 and 0 not in x.shape[1:] else ()
    counts: tuple[tuple[int, int], ...] = ()
    if y is not None:
        labels, numbers = np.unique(y, return_counts=True)
        counts = tuple(zip(labels.tolist(), numbers.tolist(), strict=True))
    described = bool(x.size) and shape[-1] <= MAX_DESCRIBED_CHANNELS
    values = _measure_range(x) if x.size else None
    usual = x[~outliers] if outliers.any() else x
    blank = np.zeros(len(x), bool)
    if x[:1].size > 1:
        flat = x.reshape(len(x), -1)
        blank = (flat == flat[:, :1]).all(axis=1)
    return DeviceSamples(
        name=device.name,
        stored=device.stored,
        shape=shape,
        num_samples=device.num_samples,
        num_test=device.num_test,
        class_counts=counts,
        values=values,
        usual=_measure_range(usual) if usual is not x and usual.size else values,
        channels=tuple(_measure_range(x[..., c]) for c in range(shape[-1])) if described else (),
        num_copies=len(digests) - len(set(digests)),
        num_shared=sum(digest in other_digests for digest in digests),
        num_blank=int(blank.sum()),
        outliers=tuple(device.rows[outliers].tolist()),
        examples=_choose_examples(device, outliers),
        split=split,
        has_labels=device.has_labels,
        targets=() if device.target is None else _measure_targets(device.target),
    )


def _measure_targets(target: Array) -> tuple[ValueRange, ...]:
    """Return the range of the finite values of each column, none for a column without any."""
    columns = (column[np.isfinite(column)] for column in target.T)
    return tuple(_measure_range(column) for column in columns if len(column))


def _choose_examples(device: ReadableSamples, outliers: NDArray[np.bool_]) -> tuple[SampleExample, ...]:
    """Return the first sample of each class, or the first samples without classes, then outliers."""
    if not len(device.x) or not device.x.size:
        return ()
    usual = np.flatnonzero(~outliers)
    if device.y is None:
        first = usual[:MAX_CLASS_EXAMPLES]
    else:
        _, at = np.unique(device.y[usual], return_index=True)
        first = usual[at[:MAX_CLASS_EXAMPLES]]
    chosen = [*first.tolist(), *np.flatnonzero(outliers)[:MAX_OUTLIER_EXAMPLES].tolist()]
    return tuple(
        SampleExample(
            row=int(device.rows[i]),
            label=None if device.y is None else int(device.y[i]),
            is_outlier=bool(outliers[i]),
            values=device.x[i].copy(),
            target=() if device.target is None else tuple(device.target[i].tolist()),
        )
        for i in chosen
    )


def _merge_findings(findings: Sequence[SampleFinding]) -> tuple[SampleFinding, ...]:
    """Return errors, warnings and changes. Findings with the same text are merged, with all their devices."""
    devices: dict[tuple[str, str, str], dict[str, None]] = {}
    for finding in findings:
        devices.setdefault((finding.severity, finding.kind, finding.text), {}).update(
            dict.fromkeys(finding.devices)
        )
    merged = [
        SampleFinding(kind=kind, severity=severity, devices=tuple(names), text=text)
        for (severity, kind, text), names in devices.items()
    ]
    return tuple(sorted(merged, key=lambda finding: SEVERITIES.index(finding.severity)))
