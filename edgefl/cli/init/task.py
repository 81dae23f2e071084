"""Finds the learning task of a federation from data: kind, input shape, classes and a suitable model."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgefl.base.config import AugmentationConfig, ModelConfig, SamplesConfig
from edgefl.base.errors import ConfigError, DataError
from edgefl.base.options import suggest_nearest
from edgefl.base.system.format import shorten_names
from edgefl.base.tasks.config import ANOMALY, CLASSIFICATION, CLASSIFICATION_TASK, REGRESSION, TaskConfig
from edgefl.base.types import Array, Shard
from edgefl.data.datasets.catalog import DATASETS, NPZ_PREFIX
from edgefl.data.forms import (
    MIN_PICTURE_SIDE,
    Arrays,
    describe_shape_change,
    format_shape,
    guess_input_shape,
    has_label_arrays,
    split_targets,
)
from edgefl.data.inspection.inspect import inspect_samples, name_devices
from edgefl.data.inspection.records import ERROR, Inspection
from edgefl.data.npz import make_samples
from edgefl.data.sources import FUNCTION_PATTERN, make_source, read_source
from edgefl.data.task_form import to_task_form
from edgefl.data.unit import copy_class_names, list_class_names, suggest_samples

MIN_CNN1D_WINDOW = 16
LENET_SHAPES = ((28, 28), (32, 32))
COLOUR_CHANNELS = 3
MIN_PHOTOGRAPH_SIDE = 24
"""Shorter side in pixels from which a colour picture counts as a photograph."""


@dataclass(frozen=True)
class TrainingSettings:
    """Settings of a federation that differ from the defaults.

    Attributes:
        model_options: options of the model.
        algorithm_options: options of the algorithm.
        learning_rate: learning rate of Adam for models of one device. None keeps the default.
    """

    model_options: Mapping[str, Any] = field(default_factory=dict)
    algorithm_options: Mapping[str, Any] = field(default_factory=dict)
    learning_rate: float | None = None


FEW_SAMPLES = 100
"""Below this number of training samples of a device, an autoencoder takes larger steps."""
USUAL_RATE = 0.01
"""The default learning rate of most algorithms, from which a range test starts."""


@dataclass(frozen=True)
class LearningTask:
    """The learning task of a federation.

    Attributes:
        input_shape: shape of one sample.
        num_classes: number of classes. For another task than classification, the number of outputs of the
            model.
        dataset: a name of `edgefl datasets` or npz:PATH. Empty if only the devices have data.
        device_data: the --data of each device. Empty for a data set.
        samples: number of training samples.
        description: a line for the user.
        inspection: class counts and warnings of the devices' samples. None for a data set.
        config: the table [task].
        samples_config: the table [samples]: unit and layout of the devices' samples.
    """

    input_shape: tuple[int, ...]
    num_classes: int
    dataset: str = ""
    device_data: tuple[str, ...] = ()
    samples: int = 0
    description: str = ""
    inspection: Inspection | None = None
    config: TaskConfig = CLASSIFICATION_TASK
    samples_config: SamplesConfig = field(default_factory=SamplesConfig)


def choose_model(shape: tuple[int, ...], kind: str = CLASSIFICATION) -> str:
    """Return the name of a small model for samples of this shape.

    Args:
        shape: shape of one sample.
        kind: kind of the task, see `edgefl.base.tasks.config.TaskConfig`.
    """
    if kind == ANOMALY:
        return "conv-autoencoder" if len(shape) == 2 and shape[0] % 4 == 0 else "autoencoder"
    if len(shape) == 3 and shape[:2] in LENET_SHAPES:
        return "lenet5"
    if len(shape) == 3 and min(shape[:2]) >= MIN_PICTURE_SIDE:
        return "five-conv"
    return "cnn1d" if len(shape) == 2 and shape[0] >= MIN_CNN1D_WINDOW else "softmax"


def choose_settings(model: str, samples_per_device: float) -> TrainingSettings:
    """Return settings for a federation in which the defaults learn little.

    Autoencoders get the settings of docs/results/anomalies.md. A device with few samples makes few steps in a
    round, so its steps are larger.

    Args:
        model: name of the model.
        samples_per_device: mean number of training samples of a device. 0 if it is unknown.
    """
    is_few = 0 < samples_per_device < FEW_SAMPLES
    if model == "conv-autoencoder":
        return TrainingSettings({}, {"learning_rate": 0.1, "momentum": 0.9})
    if model != "autoencoder":
        return TrainingSettings()
    steps: Mapping[str, Any] = {"learning_rate": 0.3}
    if is_few:
        steps = {"epochs": 20, "learning_rate": 1.0}
    return TrainingSettings({"hidden": 64, "depth": 1}, {**steps, "momentum": 0.9}, learning_rate=0.01)


def choose_augmentation(task: LearningTask) -> AugmentationConfig:
    """Return how to change the pictures of a task during training.

    Colour pictures are shifted by up to an eighth of their shorter side and mirrored. Samples of other kinds
    stay unchanged.
    """
    rows, columns, channels = task.input_shape if len(task.input_shape) == 3 else (0, 0, 0)
    side = min(rows, columns)
    if channels != COLOUR_CHANNELS or side < MIN_PHOTOGRAPH_SIDE or not task.config.is_classification:
        return AugmentationConfig()
    return AugmentationConfig(crop=side // 8, flip=True)


def find_task(
    names: Sequence[str],
    num_classes: int | None = None,
    input_shape: tuple[int, ...] | None = None,
    kind: str | None = None,
    **csv: Any,
) -> LearningTask:
    """Return the learning task of a data set, or of the data of devices.

    Args:
        names: the name of one data set, or the --data of each device.
        num_classes: number of classes. None uses the largest number of classes of a device.
        input_shape: shape of one sample. None guesses it from the stored samples.
        kind: kind of the task. None takes a regression for numbers that are not classes, anomaly for samples
            without labels, and otherwise a classification.
        **csv: how to read CSV files, see `make_source`.

    Raises:
        ConfigError: a name does not exist, or the arguments do not fit together.
        DataError: the data cannot be read, or the shapes of the samples differ.
    """
    if num_classes is not None and kind not in (None, CLASSIFICATION):
        raise ConfigError(
            f"--num-classes with --task {kind}, expected it only for a classification; leave it out"
        )
    for name in names:
        if name in DATASETS or name.startswith(NPZ_PREFIX):
            if len(names) > 1:
                raise ConfigError(
                    f"{name} is a whole data set, expected the data of {len(names)} devices; give it alone, "
                    "or leave it out"
                )
            if input_shape is not None:
                raise ConfigError(f"--input-shape and {name}, expected one of them: the data set has a shape")
            return _make_dataset_task(name, num_classes, kind)
    arrays = [_read_device(name, csv) for name in names]
    kind = kind or _guess_kind(arrays)
    devices = dict(zip(name_devices(names), arrays, strict=True))
    samples, _ = suggest_samples(devices)
    if kind != CLASSIFICATION:
        _check_numbers(devices, kind)
        samples = replace(samples, classes=())
    shards = [
        make_samples(
            device_arrays,
            name,
            samples=copy_class_names(samples, device_arrays),
            any_task=kind != CLASSIFICATION,
        ).shard
        for device_arrays, name in zip(arrays, names, strict=True)
    ]
    config = CLASSIFICATION_TASK
    if kind != CLASSIFICATION:
        config = _make_task_config(kind, [shard.target_train for shard in shards])
        shards = [_form_shard(shard, name, config) for shard, name in zip(shards, names, strict=True)]
    stored = [shard.x_train.shape[1:] for shard in shards]
    shapes = [choose_input_shape(name, shape, input_shape) for name, shape in zip(names, stored, strict=True)]
    for name, shape in zip(names, shapes, strict=True):
        if shape != shapes[0]:
            raise DataError(
                f"{name} has samples of {format_shape(shape)}, {names[0]} of {format_shape(shapes[0])}; "
                "expected one shape"
            )
    files = all(Path(name).suffix == ".npz" and "," not in name for name in names)
    class_count = max(shard.num_classes for shard in shards)
    if num_classes is not None:
        _check_num_classes(num_classes, class_count, samples.classes)
        class_count = num_classes
    if kind != CLASSIFICATION:
        class_count = config.count_outputs(shapes[0], class_count)
    task = _make_task(
        sum(len(shard.y_train) for shard in shards),
        shapes[0],
        class_count,
        dataset=f"npz:{','.join(names)}" if files and len(set(stored)) == 1 else "",
        device_data=tuple(names),
        config=config,
        are_named=bool(samples.classes),
    )
    inspection = inspect_samples(devices, input_shape)
    for finding in inspection.findings:
        if finding.severity == ERROR:
            raise DataError(f"{', '.join(finding.devices)}: {finding.text}")
    return replace(task, inspection=inspection, samples_config=_limit_names(samples, shapes[0], config))


def _limit_names(samples: SamplesConfig, shape: tuple[int, ...], config: TaskConfig) -> SamplesConfig:
    """Return the unit with those names that fit the model."""
    return replace(
        samples,
        channels=samples.channels if len(samples.channels) == shape[-1] else (),
        classes=samples.classes if config.is_classification else (),
        targets=samples.targets if config.kind == REGRESSION else (),
    )


def _check_numbers(devices: Mapping[str, Arrays], kind: str) -> None:
    for name, arrays in devices.items():
        if names := list_class_names(arrays):
            raise DataError(
                f"{name}: the labels are names ({shorten_names(list(names))}), expected numbers for the task "
                f"{kind}; store numbers, or leave --task out"
            )


def _check_num_classes(requested: int, present: int, names: tuple[str, ...]) -> None:
    if names and requested != len(names):
        raise ConfigError(
            f"--num-classes is {requested}, the data name {len(names)} classes "
            f"({shorten_names(list(names))}), expected one number; list the names of all classes in "
            "classes.txt beside the data, or leave --num-classes out"
        )
    if requested < present:
        raise ConfigError(
            f"--num-classes is {requested}, expected {present} or more, as in the data; correct it, or "
            "leave it out"
        )


def _guess_kind(devices: Sequence[Arrays]) -> str:
    """Return the kind of task that fits the stored labels of all devices.

    Whole numbers below 0 are no reason for a regression, because they may be classes with a mistake.
    """
    targets = [formed["target"] for formed in map(split_targets, devices) if "target" in formed]
    sources = any("target" in arrays for arrays in devices)
    if sources or any(target.ndim > 1 or (target != np.round(target)).any() for target in targets):
        return REGRESSION
    return CLASSIFICATION if any(map(has_label_arrays, devices)) else ANOMALY


def _make_task_config(kind: str, targets: Sequence[Array | None]) -> TaskConfig:
    widths = [target.shape[1] for target in targets if target is not None]
    return TaskConfig(kind=kind, outputs=max(widths, default=1) if kind == REGRESSION else 1)


def _form_shard(shard: Shard, name: str, config: TaskConfig) -> Shard:
    try:
        return to_task_form(shard, config)
    except DataError as error:
        raise DataError(f"{name}: {error}") from error


def choose_input_shape(
    name: str, shape: tuple[int, ...], requested: tuple[int, ...] | None
) -> tuple[int, ...]:
    """Return the input shape of a model for the samples of a device.

    Args:
        name: the device's data, for errors.
        shape: stored shape of one sample.
        requested: shape that the user requests. None guesses the shape.

    Raises:
        DataError: the samples cannot have the requested shape.
    """
    if requested is None:
        return guess_input_shape(shape)
    if shape != requested and not describe_shape_change(shape, requested):
        likely = guess_input_shape(shape)
        either = "" if likely == shape else f" or {','.join(map(str, likely))}"
        raise DataError(
            f"{name} has samples of {format_shape(shape)}, --input-shape is {format_shape(requested)}; "
            f"expected {','.join(map(str, shape))}{either}, or leave it out"
        )
    return requested


def _make_dataset_task(name: str, num_classes: int | None, kind: str | None) -> LearningTask:
    from edgefl.data import load_dataset

    try:
        dataset = load_dataset(name)
    except DataError as error:
        raise DataError(f"{error}; or give --input-shape and --num-classes") from error
    if kind is None:
        labels = CLASSIFICATION if dataset.target_train is None else REGRESSION
        kind = labels if dataset.has_labels else ANOMALY
    config = CLASSIFICATION_TASK
    if kind != CLASSIFICATION:
        config = _make_task_config(kind, [dataset.target_train])
    samples = SamplesConfig()
    shape = dataset.x_train.shape[1:]
    if name.startswith(NPZ_PREFIX):
        shape = guess_input_shape(shape)
        path = name.removeprefix(NPZ_PREFIX)
        paths = [path] if Path(path).exists() else path.split(",")
        files = {path: _read_device(path, {}) for path in paths}
        samples, _ = suggest_samples(files)
        if kind != CLASSIFICATION:
            _check_numbers(files, kind)
        samples = _limit_names(samples, shape, config)
        if num_classes is not None:
            _check_num_classes(num_classes, dataset.num_classes, samples.classes)
    outputs = config.count_outputs(shape, num_classes or dataset.num_classes)
    task = _make_task(
        len(dataset.x_train),
        shape,
        outputs,
        dataset=name,
        config=config,
        are_named=bool(samples.classes),
    )
    return replace(task, samples_config=samples)


def _read_device(name: str, csv: dict[str, Any]) -> dict[str, NDArray[Any]]:
    if not Path(name).exists() and not FUNCTION_PATTERN.fullmatch(name):
        datasets = [dataset for dataset in DATASETS if dataset != "npz:PATH"]
        raise ConfigError(
            f"no file, folder or data set {name!r}, expected the data of one device or a name of `edgefl "
            f"datasets`; {suggest_nearest(name, datasets)}"
        )
    return read_source(make_source(name, **csv))


def _make_task(
    samples: int,
    shape: tuple[int, ...],
    num_classes: int,
    *,
    dataset: str = "",
    device_data: tuple[str, ...] = (),
    config: TaskConfig = CLASSIFICATION_TASK,
    are_named: bool = False,
) -> LearningTask:
    content = {
        CLASSIFICATION: f"{num_classes} classes",
        REGRESSION: f"{config.outputs} number{'s' if config.outputs > 1 else ''} to predict",
        ANOMALY: "to find anomalies",
    }[config.kind]
    description = f"{samples:,} training samples of {format_shape(shape)}, {content}"
    if device_data:
        description += f" in {'one device' if len(device_data) == 1 else f'{len(device_data)} devices'}"
    if device_data and config.is_classification:
        option = "list all names in classes.txt beside the data" if are_named else "give --num-classes"
        description += f"; {option} if others have more"
    return LearningTask(
        input_shape=shape,
        num_classes=num_classes,
        dataset=dataset,
        device_data=device_data,
        samples=samples,
        description=description,
        config=config,
    )


def check_task(task: LearningTask, model: str) -> ModelConfig:
    """Return the table [model] of a configuration.

    Args:
        model: a name of `edgefl models`, a .keras file or module:function.

    Raises:
        ConfigError: the model does not exist.
        DataError: the task has fewer than two classes.
    """
    from edgefl.program.models.keras_file import explain_format
    from edgefl.program.models.zoo.catalog import list_models

    if explanation := explain_format(model):
        raise ConfigError(explanation)
    if model not in list_models() and ":" not in model and not model.endswith(".keras"):
        raise ConfigError(
            f"no model {model!r}; {suggest_nearest(model, list(list_models()))}; a .keras file or "
            "module:function is accepted too"
        )
    if task.config.is_classification and task.num_classes < 2:
        raise DataError(f"{task.num_classes} class, expected two or more; give their number as --num-classes")
    return ModelConfig(name=model, input_shape=task.input_shape, num_classes=task.num_classes)
