"""What a federation is to learn: the shape of a sample and the number of classes, read off data, and a model that fits them."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgefl.config import ModelConfig, nearest
from edgefl.errors import ConfigError, DataError

SMALLEST_PICTURE = 8
SHORTEST_WINDOW = 16
LENET = ((28, 28), (32, 32))


@dataclass(frozen=True)
class Task:
    """input_shape: of one sample. dataset: a name of `edgefl datasets` or npz:PATH, empty where devices alone have data.

    own: what a device takes as --data. said: what was found, for a person.
    """

    input_shape: tuple[int, ...]
    num_classes: int
    dataset: str = ""
    own: str = ""
    said: str = ""


def model_for(shape: tuple[int, ...]) -> str:
    """Return the name of a small model that takes samples of this shape."""
    if len(shape) == 3 and shape[:2] in LENET:
        return "lenet5"
    if len(shape) == 3 and min(shape[:2]) >= SMALLEST_PICTURE:
        return "five-conv"
    return "cnn1d" if len(shape) == 2 and shape[0] >= SHORTEST_WINDOW else "softmax"


def find_task(text: str, num_classes: int | None = None, **csv: Any) -> Task:
    """Return the task of a data set's name, or of what a device takes as --data. Raises ConfigError, DataError.

    num_classes: in place of what the data say; csv: how a CSV is read, see `make_source`.
    """
    from edgefl.data.sources import OWN, SOURCES

    name = text.strip()
    if name in SOURCES or name.startswith(OWN):
        return _of_dataset(name, num_classes)
    return _of_device(name, num_classes, csv)


def _of_dataset(name: str, num_classes: int | None) -> Task:
    from edgefl.data import load_dataset

    found = load_dataset(name)
    return _task(found.x_train.shape, num_classes or found.num_classes, dataset=name)


def _of_device(name: str, num_classes: int | None, csv: dict[str, Any]) -> Task:
    from edgefl.data.device import FUNCTION, load_source, make_source
    from edgefl.data.sources import SOURCES

    if not Path(name).exists() and not FUNCTION.fullmatch(name):
        known = [each for each in SOURCES if each != "npz:PATH"]
        raise ConfigError(
            f"no file, folder or data set {name!r}, expected the data of one device or a name of `edgefl datasets`; {nearest(name, known)}"
        )
    source = make_source(name, **csv)
    shard = load_source(source)
    dataset = f"npz:{name}" if Path(name).suffix == ".npz" else ""
    return _task(shard.x_train.shape, num_classes or shard.num_classes, dataset=dataset, own=name)


def _task(shape: tuple[int, ...], num_classes: int, *, dataset: str = "", own: str = "") -> Task:
    each = shape[1:]
    said = f"{shape[0]:,} samples of {'x'.join(map(str, each))} to train on, {num_classes} classes"
    if own:
        said += "; --num-classes says so if other devices know more"
    return Task(each, num_classes, dataset, own, said)


def check_task(task: Task, model: str) -> ModelConfig:
    """Return the table [model]; ConfigError for a model that is not known, DataError for a task of one class."""
    from edgefl.models import list_models

    if model not in list_models() and ":" not in model and not model.endswith(".keras"):
        raise ConfigError(f"no model {model!r}; {nearest(model, list(list_models()))}; a .keras file or module:function is taken too")
    if task.num_classes < 2:
        raise DataError(f"{task.num_classes} class, expected two or more; say how many there are by --num-classes")
    return ModelConfig(model, task.input_shape, task.num_classes)
