"""What an inspection of samples finds: frozen records."""

from dataclasses import dataclass

from edgefl.data.split import SplitRecord
from edgefl.types import Array, Labels

ERROR = "error"
"""A device cannot train on these samples."""
WARNING = "warning"
"""Training works, but this is probably a mistake."""
CHANGE = "change"
"""The stored form has one meaning, and edgefl changes it when it reads the samples."""
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
    """Lowest, highest and mean value, and standard deviation."""

    low: float
    high: float
    mean: float
    spread: float


@dataclass(frozen=True)
class SampleExample:
    """One sample to look at.

    Attributes:
        row: index into `x`; indices beyond its end continue in `x_test`.
        label: class number, None where labels cannot be read.
        is_outlier: whether the sample is far from the others of its class.
        values: float32, in the shape that a model takes.
    """

    row: int
    label: int | None
    is_outlier: bool
    values: Array


@dataclass(frozen=True)
class DeviceSamples:
    """What was found in the samples of one device.

    Attributes:
        name: name of the device.
        stored: type and shape of `x` as stored, such as `uint8[200, 28, 28, 1]`.
        shape: shape in which a model takes one sample, empty when `x` cannot be read.
        num_samples: number of samples in `x`.
        num_test: number of samples in `x_test`.
        class_counts: (class, number of samples) for each class that the device has, in order.
        values: range of all finite values, None without any.
        usual: range without outliers, None without any value.
        channels: range of each channel, empty when there are too many.
        num_copies: number of samples that equal an earlier sample of the same device.
        num_shared: number of samples that another device has too.
        num_blank: number of samples that hold one value only.
        outliers: rows of outliers.
        examples: samples to look at.
        split: how test samples are held out, by the seed of a federation without its own seed; None when a
            device refuses the samples.
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


@dataclass(frozen=True)
class Inspection:
    """What was found in the samples of all devices.

    Attributes:
        devices: in the order in which they were given.
        classes: every class that a device has, in order.
        class_names: names of the classes, empty when they have numbers only.
        num_classes: how many classes a federation of these devices has, 0 when no label can be read.
        findings: errors first, then warnings, then changes.
    """

    devices: tuple[DeviceSamples, ...]
    classes: tuple[int, ...]
    class_names: tuple[str, ...]
    num_classes: int
    findings: tuple[SampleFinding, ...]


@dataclass(frozen=True)
class ReadableSamples:
    """The part of a device's arrays that can be read: rows of x, then of x_test."""

    name: str
    x: Array
    y: Labels | None
    rows: Labels
    num_samples: int
    num_test: int
    stored: str
    num_classes: int
    class_names: tuple[str, ...]
