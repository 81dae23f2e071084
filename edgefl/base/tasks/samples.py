"""Unit and layout of the samples of a federation: `[samples]` of federation.toml, a plan and a model."""

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from edgefl.base.errors import ConfigError
from edgefl.base.tasks.config import REGRESSION, TaskConfig

GREY_SCALE = 255.0
"""What divides the values of an 8-bit picture: its largest grey level."""
MAX_SAMPLE_VALUE = 1e15
"""Largest scale and largest value. Its square is finite in float32."""
MIN_SAMPLE_SCALE = 1e-15
"""Smallest scale and smallest largest value. Its inverse is finite in float32."""
NAME_KEYS = ("channels", "classes", "targets")
"""Keys whose values are lists of names."""
SAMPLES_METADATA_NAME = "EDGEFL_SAMPLES"
"""Name of the metadata entry of a model that contains unit and layout of its samples."""


def is_scale(value: float) -> bool:
    """Return whether samples can be divided by this number."""
    return MIN_SAMPLE_SCALE <= value <= MAX_SAMPLE_VALUE


@dataclass(frozen=True)
class SamplesConfig:
    """`[samples]`: unit and layout of the samples. Every device reads its own file in this way.

    A device whose file does not fit is refused. Raises ConfigError if a value is out of range.

    Attributes:
        scale: every device divides its stored values by this number. 0 divides uint8 values by 255 and leaves
            floats as they are. 1 leaves all values as they are, for a model that scales its own input.
        max_value: largest value of a sample after this division, such as 1 for pictures from 0 to 1. A device
            whose samples are in another unit is refused. 0: unknown.
        min_value: smallest value of a picture after this division, such as -1 for pictures from -1 to 1. 0
            for pictures without negative values. It counts if `max_value` is known.
        channels: names of the channels in order. A device with CSV data reads the columns of these names. An
            empty list names none.
        classes: names of the classes in order, from class 0. A device numbers its labels by these names. An
            empty list means that labels are numbers.
        targets: names of the numbers to predict in order. A device with CSV data reads the columns of these
            names. An empty list names none.
    """

    scale: float = 0.0
    max_value: float = 0.0
    min_value: float = 0.0
    channels: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()
    targets: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for key in ("scale", "max_value"):
            value = getattr(self, key)
            if type(value) not in (int, float) or not (value == 0 or is_scale(value)):
                raise ConfigError(
                    f"[samples] {key} is {value!r}, expected 0 or a number from {MIN_SAMPLE_SCALE:g} to "
                    f"{MAX_SAMPLE_VALUE:g}"
                )
        if type(self.min_value) not in (int, float) or not (self.min_value == 0 or is_scale(-self.min_value)):
            raise ConfigError(
                f"[samples] min_value is {self.min_value!r}, expected 0 or a number from "
                f"-{MAX_SAMPLE_VALUE:g} to -{MIN_SAMPLE_SCALE:g}"
            )
        for key in NAME_KEYS:
            names = getattr(self, key)
            if not all(isinstance(name, str) and name.strip() == name != "" for name in names):
                raise ConfigError(
                    f"[samples] {key} is {list(names)!r}, expected texts without spaces at their ends, such "
                    f"as {key[0]!r}"
                )
            if double := next((name for name in names if names.count(name) > 1), None):
                raise ConfigError(f"[samples] {key} names {double!r} twice; name each one once")

    def check_model(self, input_shape: tuple[int, ...], num_classes: int, task: TaskConfig) -> None:
        """Check that the names fit a model.

        Args:
            input_shape: shape of one sample.
            task: the table `[task]`.

        Raises:
            ConfigError: the number of names differs from the channels, the classes or the outputs of the
                model.
        """
        if self.channels and len(self.channels) != input_shape[-1]:
            raise ConfigError(
                f"[samples] channels names {len(self.channels)}, expected {input_shape[-1]}, the "
                f"channels of input_shape {list(input_shape)}; change one of them"
            )
        if self.classes and (not task.is_classification or len(self.classes) != num_classes):
            expected = f"{num_classes}, as num_classes" if task.is_classification else "none"
            raise ConfigError(
                f"[samples] classes names {len(self.classes)}, expected {expected}; change one of them"
            )

        if self.targets and (task.kind != REGRESSION or len(self.targets) != task.outputs):
            expected = f"{task.outputs}, as outputs of [task]" if task.kind == REGRESSION else "none"
            raise ConfigError(
                f"[samples] targets names {len(self.targets)}, expected {expected}; change one of them"
            )

    def as_plan_entry(self) -> dict[str, Any]:
        """Return the table as an entry of a plan. It is empty if nothing is set."""
        values = {key: list(value) if isinstance(value, tuple) else value for key, value in self.list_items()}
        return values if any(values.values()) else {}

    def list_items(self) -> Iterator[tuple[str, Any]]:
        """Yield key and value of the table. Records without targets are those of earlier versions."""
        yield from ((key, value) for key, value in asdict(self).items() if value or key != "targets")


def encode_samples(samples: SamplesConfig) -> bytes:
    """Encode unit and layout as JSON."""
    return json.dumps(dict(samples.list_items()), separators=(",", ":")).encode()


def decode_samples(content: bytes) -> SamplesConfig | None:
    """Decode unit and layout, or return None if the record is missing, damaged or of another version."""
    try:
        values = json.loads(content)
        names = {key: tuple(values[key]) for key in NAME_KEYS if key in values or key != "targets"}
        return SamplesConfig(**{**values, **names})
    except (ValueError, TypeError, KeyError, ConfigError, RecursionError):
        return None
