"""Look at the samples of devices: a pure function from arrays to findings."""

from collections.abc import Mapping, Sequence
from hashlib import blake2b
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from edgefl.data.forms import PARTS, Arrays, likely_input_shape, to_input_shape, to_training_form
from edgefl.data.inspection.findings import (
    ROWS_AT_ONCE,
    cross_device_findings,
    device_findings,
    label_findings,
    recording_findings,
    shape_findings,
)
from edgefl.data.inspection.outliers import MAX_DESCRIBED_CHANNELS, find_outliers
from edgefl.data.inspection.records import (
    CHANGE,
    ERROR,
    SEVERITIES,
    DeviceSamples,
    Example,
    Finding,
    Inspection,
    Range,
    ReadableSamples,
)
from edgefl.data.npz import make_shard_and_split
from edgefl.data.split import Split
from edgefl.errors import DataError
from edgefl.types import Array, Labels

MAX_CLASSES_SHOWN = 10
MAX_OUTLIERS_SHOWN = 6


def inspect_samples(devices: Mapping[str, Arrays], input_shape: tuple[int, ...] | None = None) -> Inspection:
    """Look at the samples of devices.

    Args:
        devices: by name, what `edgefl.data.sources.read_source` returns. No array makes this function fail.
        input_shape: the input shape of the model where it is known, else the likely one.
    """
    findings: list[Finding] = []
    readable = []
    splits: list[Split | None] = []
    for name, arrays in devices.items():
        formed, changes = to_training_form(arrays)
        findings += [Finding(_kind_of_change(each), CHANGE, (name,), each) for each in changes]
        try:
            splits.append(make_shard_and_split(formed, name, count_overlapping=True)[1])
        except DataError as error:
            splits.append(None)
            findings.append(Finding("unusable", ERROR, (name,), str(error).removeprefix(f"{name}: ")))
        else:
            findings += recording_findings(name, formed)
        readable.append(_read(name, arrays, formed, input_shape))
        findings += shape_findings(name, arrays, input_shape)
    digests = [[blake2b(row.tobytes(), digest_size=16).digest() for row in each.x + 0] for each in readable]
    outliers = find_outliers(readable)
    found = []
    for index, each in enumerate(readable):
        others = {digest for other, own in enumerate(digests) if other != index for digest in own}
        found.append(_describe(each, digests[index], others, outliers[index], splits[index]))
    for each, device in zip(readable, found, strict=True):
        findings += device_findings(each, device)
    findings += cross_device_findings(readable, found, digests)
    classes = sorted({label for device in found for label, _ in device.class_counts})
    num_classes = max(
        [*(each.num_classes for each in readable), *(label + 1 for label in classes)], default=0
    )
    findings += label_findings(found, classes, num_classes)
    names = next((each.class_names for each in readable if each.class_names), ())
    merged = _merged(findings)
    return Inspection(tuple(found), tuple(classes), names, num_classes, merged)


def device_names(sources: Sequence[str]) -> list[str]:
    """Return a name for each source: the file's name where no other source has the same, else the source."""
    stems = [Path(each).stem or each for each in sources]
    names = stems if len(set(stems)) == len(stems) else list(sources)
    return [
        name if names.index(name) == index else f"{name} ({index + 1})" for index, name in enumerate(names)
    ]


def _kind_of_change(change: str) -> str:
    if "one-hot" in change:
        return "one-hot"
    return "unscaled" if change.startswith("x") else "label-type"


def _read(name: str, arrays: Arrays, formed: Arrays, input_shape: tuple[int, ...] | None) -> ReadableSamples:
    parts = [_samples(formed.get(f"x{part}")) for part in PARTS]
    shape = next((x.shape[1:] for x in parts if x is not None), (0,))
    x_parts = [
        x if x is not None and x.shape[1:] == shape else np.empty((0, *shape), np.float32) for x in parts
    ]
    labels = [_labels(formed.get(f"y{part}"), len(x)) for part, x in zip(PARTS, x_parts, strict=True)]
    known = [y for y in labels if y is not None]
    x = np.concatenate(x_parts) if len(x_parts[1]) else x_parts[0]
    y = np.concatenate(known) if len(known) == len(labels) else None
    finite = np.isfinite(x.reshape(len(x), -1)).all(axis=1) if x.size else np.zeros(len(x), bool)
    shaped = to_input_shape(x if finite.all() else x[finite], input_shape or likely_input_shape(shape))
    stored = arrays.get("x")
    names = arrays.get("class_names")
    listed = tuple(map(str, names.ravel())) if names is not None and names.dtype.kind == "U" else ()
    return ReadableSamples(
        name,
        shaped,
        None if y is None else y[finite],
        np.flatnonzero(finite).astype(np.int64),
        len(x_parts[0]),
        len(x_parts[1]),
        "nothing" if stored is None else f"{stored.dtype}{list(stored.shape)}",
        max(len(listed), _whole_number(formed.get("num_classes"))),
        listed,
    )


def _samples(x: NDArray[np.generic] | None) -> Array | None:
    """Return float32 samples, uint8 scaled, or None when these are no numbers of samples."""
    if x is None or x.dtype.kind not in "buif" or x.ndim < 2 or 0 in x.shape[1:]:
        return None
    with np.errstate(over="ignore", invalid="ignore"):
        values = np.asarray(x, np.float32)
    return values / np.float32(255) if x.dtype == np.uint8 else values


def _labels(y: NDArray[np.generic] | None, count: int) -> Labels | None:
    if y is None:
        return np.empty(0, np.int64) if not count else None
    return y.astype(np.int64) if y.shape == (count,) and y.dtype.kind in "iu" else None


def _whole_number(stored: NDArray[np.generic] | None) -> int:
    return int(stored.item()) if stored is not None and stored.size == 1 and stored.dtype.kind in "iu" else 0


def _range(x: Array) -> Range:
    mean = float(x.mean(dtype=np.float64))
    parts = (x[start : start + ROWS_AT_ONCE] for start in range(0, len(x), ROWS_AT_ONCE))
    squares = sum(float(np.square(part.astype(np.float64) - mean).sum()) for part in parts)
    return Range(float(x.min()), float(x.max()), mean, (squares / x.size) ** 0.5)


def _describe(
    device: ReadableSamples,
    digests: Sequence[bytes],
    elsewhere: set[bytes],
    outliers: NDArray[np.bool_],
    split: Split | None,
) -> DeviceSamples:
    x = device.x
    y = device.y
    shape = x.shape[1:] if x.ndim > 1 and 0 not in x.shape[1:] else ()
    counts: tuple[tuple[int, int], ...] = ()
    if y is not None:
        labels, numbers = np.unique(y, return_counts=True)
        counts = tuple(zip(labels.tolist(), numbers.tolist(), strict=True))
    described = bool(x.size) and shape[-1] <= MAX_DESCRIBED_CHANNELS
    values = _range(x) if x.size else None
    usual = x[~outliers] if outliers.any() else x
    blank = np.zeros(len(x), bool)
    if x[:1].size > 1:
        flat = x.reshape(len(x), -1)
        blank = (flat == flat[:, :1]).all(axis=1)
    return DeviceSamples(
        device.name,
        device.stored,
        shape,
        device.num_samples,
        device.num_test,
        counts,
        values,
        _range(usual) if usual is not x and usual.size else values,
        tuple(_range(x[..., c]) for c in range(shape[-1])) if described else (),
        len(digests) - len(set(digests)),
        sum(digest in elsewhere for digest in digests),
        int(blank.sum()),
        tuple(device.rows[outliers].tolist()),
        _examples(device, outliers),
        split,
    )


def _examples(device: ReadableSamples, outliers: NDArray[np.bool_]) -> tuple[Example, ...]:
    """Return the first sample of each class, then outliers."""
    if not len(device.x) or not device.x.size:
        return ()
    usual = np.flatnonzero(~outliers)
    if device.y is None:
        first = usual[:MAX_CLASSES_SHOWN]
    else:
        _, at = np.unique(device.y[usual], return_index=True)
        first = usual[at[:MAX_CLASSES_SHOWN]]
    chosen = [*first.tolist(), *np.flatnonzero(outliers)[:MAX_OUTLIERS_SHOWN].tolist()]
    return tuple(
        Example(
            int(device.rows[i]),
            None if device.y is None else int(device.y[i]),
            bool(outliers[i]),
            device.x[i].copy(),
        )
        for i in chosen
    )


def _merged(findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """Return errors, warnings and changes, one of each text, with all devices that it is about."""
    devices: dict[tuple[str, str, str], dict[str, None]] = {}
    for each in findings:
        devices.setdefault((each.severity, each.kind, each.text), {}).update(dict.fromkeys(each.devices))
    merged = [
        Finding(kind, severity, tuple(names), text) for (severity, kind, text), names in devices.items()
    ]
    return tuple(sorted(merged, key=lambda each: SEVERITIES.index(each.severity)))
