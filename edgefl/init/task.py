"""What a federation is to learn: the shape of a sample and the number of classes, read off data, and a model
that fits them.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from edgefl.config import ModelConfig, nearest
from edgefl.errors import ConfigError, DataError
from edgefl.types import Array, Labels

SMALLEST_PICTURE = 8
MOST_CHANNELS = 4
SHORTEST_WINDOW = 16
LENET = ((28, 28), (32, 32))


@dataclass(frozen=True)
class Task:
    """input_shape: of one sample. dataset: a name of `edgefl datasets` or npz:PATH, empty where devices alone
    have data.

    own: what each device takes as --data. samples: how many are trained on. said: what was found, for a
    person. hints: probable mistakes.
    """

    input_shape: tuple[int, ...]
    num_classes: int
    dataset: str = ""
    own: tuple[str, ...] = ()
    samples: int = 0
    said: str = ""
    hints: tuple[str, ...] = ()


def model_for(shape: tuple[int, ...]) -> str:
    """Return the name of a small model that takes samples of this shape."""
    if len(shape) == 3 and shape[:2] in LENET:
        return "lenet5"
    if len(shape) == 3 and min(shape[:2]) >= SMALLEST_PICTURE:
        return "five-conv"
    return "cnn1d" if len(shape) == 2 and shape[0] >= SHORTEST_WINDOW else "softmax"


def find_task(names: Sequence[str], num_classes: int | None = None, **csv: Any) -> Task:
    """Return the task of a data set's name, or of what one device or several take as --data.

    Raises ConfigError, DataError.

    num_classes: in place of what the data say, the most that a device knows; csv: how a CSV is read, see
    `make_source`.
    """
    from edgefl.data.datasets.catalog import OWN, SOURCES

    for name in names:
        if name in SOURCES or name.startswith(OWN):
            if len(names) > 1:
                raise ConfigError(
                    f"{name} is a whole data set, expected the data of {len(names)} devices; give it alone, "
                    "or leave it out"
                )
            return _of_dataset(name, num_classes)
    found = [_of_device(name, num_classes, csv) for name in names]
    each = [task for task, _ in found]
    first = each[0]
    most = max(task.num_classes for task in each)
    for task in each[1:]:
        if task.input_shape != first.input_shape:
            raise DataError(
                f"{task.own[0]} has samples of {_by(task.input_shape)}, {first.own[0]} of "
                f"{_by(first.input_shape)}; expected one shape"
            )
    own = tuple(name for task in each for name in task.own)
    dataset = (
        f"npz:{','.join(own)}"
        if all(task.dataset for task in each) and not any("," in name for name in own)
        else ""
    )
    whole = _task(sum(task.samples for task in each), first.input_shape, most, dataset=dataset, own=own)
    return replace(
        whole,
        hints=tuple(
            dict.fromkeys(
                [*(hint for task in each for hint in task.hints), *hints_of_labels([y for _, y in found])]
            )
        ),
    )


def _of_dataset(name: str, num_classes: int | None) -> Task:
    from edgefl.data import load_dataset

    try:
        found = load_dataset(name)
    except DataError as error:
        raise DataError(f"{error}; or say --input-shape and --num-classes") from error
    return _task(len(found.x_train), found.x_train.shape[1:], num_classes or found.num_classes, dataset=name)


def _of_device(name: str, num_classes: int | None, csv: dict[str, Any]) -> tuple[Task, Labels]:
    from edgefl.data.datasets.catalog import SOURCES
    from edgefl.data.sources import FUNCTION, load_source, make_source

    if not Path(name).exists() and not FUNCTION.fullmatch(name):
        known = [each for each in SOURCES if each != "npz:PATH"]
        raise ConfigError(
            f"no file, folder or data set {name!r}, expected the data of one device or a name of `edgefl "
            f"datasets`; {nearest(name, known)}"
        )
    source = make_source(name, **csv)
    shard = load_source(source)
    dataset = f"npz:{name}" if Path(name).suffix == ".npz" else ""
    task = _task(
        len(shard.x_train),
        shard.x_train.shape[1:],
        num_classes or shard.num_classes,
        dataset=dataset,
        own=(name,),
    )
    return replace(task, hints=tuple(hints_of_samples(shard.x_train))), np.concatenate(
        [shard.y_train, shard.y_test]
    )


def _task(
    samples: int, shape: tuple[int, ...], num_classes: int, *, dataset: str = "", own: tuple[str, ...] = ()
) -> Task:
    said = f"{samples:,} samples of {_by(shape)} to train on, {num_classes} classes"
    if own:
        said += (
            f" in {'one device' if len(own) == 1 else f'{len(own)} devices'}; --num-classes says so if "
            "others know more"
        )
    return Task(shape, num_classes, dataset, own, samples, said)


def _by(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape))


def check_task(task: Task, model: str) -> ModelConfig:
    """Return the table [model].

    ConfigError for a model that is not known, DataError for a task of one class.
    """
    from edgefl.models import list_models
    from edgefl.models.keras_file import explain_format

    if explanation := explain_format(model):
        raise ConfigError(explanation)
    if model not in list_models() and ":" not in model and not model.endswith(".keras"):
        raise ConfigError(
            f"no model {model!r}; {nearest(model, list(list_models()))}; a .keras file or module:function is "
            "taken too"
        )
    if task.num_classes < 2:
        raise DataError(
            f"{task.num_classes} class, expected two or more; say how many there are by --num-classes"
        )
    return ModelConfig(model, task.input_shape, task.num_classes)


def hints_of_samples(x: Array) -> list[str]:
    """Return a line for each probable mistake in samples x float32[n, *shape], as they are trained on."""
    shape = x.shape[1:]
    found = []
    by = "x".join(map(str, shape))
    if len(shape) == 2 and shape[0] == shape[1] >= SMALLEST_PICTURE:
        found.append(
            f"samples of {by} are taken as {shape[0]} readings of {shape[1]} channels; if they are pictures, "
            "add the channel: x[..., None]"
        )
    picture = len(shape) == 3
    if picture and shape[0] in (1, 3) and min(shape[1:]) >= SMALLEST_PICTURE and shape[2] > MOST_CHANNELS:
        found.append(
            f"samples of {by} seem to have their channels first, expected last; write x.transpose(0, 2, 3, 1)"
        )
    square = len(shape) == 2 and shape[0] == shape[1]
    low, high = (float(x.min()), float(x.max())) if x.size else (0.0, 0.0)
    if (picture or square) and low >= 0 and 16 < high <= 255 and bool(np.all(x == np.round(x))):
        found.append(
            f"the values go up to {high:g} as floats, expected 0 to 1; write x / 255, or keep them as uint8, "
            "which is scaled"
        )
    return found


def hints_of_labels(labels: Sequence[Labels]) -> list[str]:
    """Return a line when no device has a label 0. labels: int64[n] of each device."""
    lowest = min(int(y.min()) for y in labels)
    highest = max(int(y.max()) for y in labels)
    if lowest == 0:
        return []
    return [
        f"labels go from {lowest} to {highest}: that makes {highest + 1} classes, and nobody here has a "
        f"sample of the first {lowest}; number them from 0, y - {lowest}, unless other devices have these"
    ]
