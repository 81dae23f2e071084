"""The results of an inspection, as frozen records."""

from dataclasses import dataclass

from edgefl.base.types import Array, Labels
from edgefl.data.split import SplitRecord

ERROR = "error"
"""A device cannot train on these samples."""
WARNING = "warning"
"""Training works, but this is probably a mistake."""
CHANGE = "change"
"""edgefl converts the stored form when it reads the samples, because the form has one meaning."""
SEVERITIES = (ERROR, WARNING, CHANGE)


@dataclass(frozen=True)
class SampleFinding:
    """One fact that the owner of the samples should know.

    Attributes:
        kind: stable name of the fact, such as `one-hot`.
        severity: one of `SEVERITIES`.
        devices: names of the devices, in order.
        text: what was found, what is expected, and the remedy.
    """

    kind: str
    severity: str
    devices: tuple[str, ...]
    text: str


@dataclass(frozen=True)
class ValueRange:
    """Statistics of values: minimum, maximum, mean and standard deviation.

    Attributes:
        low: minimum.
        high: maximum.
        mean: mean.
        spread: standard deviation.
    """

    low: float
    high: float
    mean: float
    spread: float


@dataclass(frozen=True)
class SampleExample:
    """One sample for display.

    Attributes:
        row: index into `x`. Indices beyond its end continue in `x_test`.
        label: class number, None without classes or if labels cannot be read.
        is_outlier: whether the sample is far from the others of its class.
        values: the sample in the input shape of a model, float32.
        target: the numbers to predict. Empty without such numbers.
    """

    row: int
    label: int | None
    is_outlier: bool
    values: Array
    target: tuple[float, ...] = ()


@dataclass(frozen=True)
class DeviceSamples:
    """The inspected samples of one device.

    Attributes:
        name: name of the device.
        stored: type and shape of `x` as stored, such as `uint8[200, 28, 28, 1]`.
        shape: input shape of a model for these samples, empty if `x` cannot be read.
        num_samples: number of samples in `x`.
        num_test: number of samples in `x_test`.
        class_counts: (class, number of samples) for each class on the device, in order.
        values: range of all finite values, None without any.
        usual: range without outliers, None without any value.
        channels: range of each channel, empty if there are too many.
        num_copies: number of samples that equal an earlier sample of the same device.
        num_shared: number of samples that another device also has.
        num_blank: number of samples in which all values are equal.
        outliers: rows of outliers.
        examples: samples for display.
        split: how a federation with the default seed holds out test samples. None if a device rejects the
            samples.
        has_labels: whether the samples have labels: classes, or numbers to predict.
        targets: range of each number to predict, empty without such numbers.
    """

    name: str
    stored: str
    shape: tuple[int, ...]
    num_samples: int
    num_test: int
    class_counts: tuple[tuple[int, int], ...]
    values: ValueRange | None
    usual: ValueRange | None
    channels: tuple[ValueRange, ...]
    num_copies: int
    num_shared: int
    num_blank: int
    outliers: tuple[int, ...]
    examples: tuple[SampleExample, ...]
    split: SplitRecord | None
    has_labels: bool = True
    targets: tuple[ValueRange, ...] = ()


@dataclass(frozen=True)
class Inspection:
    """The inspected samples of all devices.

    Attributes:
        devices: the devices in the order of the input.
        classes: every class that occurs, in order.
        class_names: names of the classes, empty if they have numbers only.
        num_classes: number of classes of a federation of these devices, 0 without classes or if no label can
            be read.
        findings: errors first, then warnings, then changes.
    """

    devices: tuple[DeviceSamples, ...]
    classes: tuple[int, ...]
    class_names: tuple[str, ...]
    num_classes: int
    findings: tuple[SampleFinding, ...]


@dataclass(frozen=True)
class ReadableSamples:
    """The readable part of a device's arrays: rows of `x`, then rows of `x_test`.

    Attributes:
        name: name of the device.
        x: samples in the input shape of a model, shape (n, *input_shape), float32. Samples with values that
            are not finite are left out.
        y: labels, shape (n,), int64, None without classes or if they cannot be read.
        rows: row of each sample in `x` followed by `x_test`, shape (n,), int64.
        num_samples: number of samples in the stored `x`.
        num_test: number of samples in the stored `x_test`.
        stored: type and shape of `x` as stored.
        num_classes: number of classes that the arrays declare, 0 if they declare none.
        class_names: names of the classes, empty if they have numbers only.
        has_labels: whether the samples have labels: classes, or numbers to predict.
        target: numbers to predict, shape (n, columns), float32, None without such numbers.
    """

    name: str
    x: Array
    y: Labels | None
    rows: Labels
    num_samples: int
    num_test: int
    stored: str
    num_classes: int
    class_names: tuple[str, ...]
    has_labels: bool = True
    target: Array | None = None
