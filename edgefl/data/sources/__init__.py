"""Sample sources of a device, one module per source. All of them are read into the arrays of a shard."""

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from edgefl.data.npz import make_shard, read_shard
from edgefl.errors import ConfigError, DataError
from edgefl.types import Shard

CSV_OPTION_NAMES = "--window, --step, --label, --target and --channels"
CSV_REMEDY = "add --window ROWS and --label COLUMN, or --target COLUMN for numbers to predict"
FUNCTION_PATTERN = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")


@dataclass(frozen=True)
class DataSource:
    """Everything that is needed to open a sample source again.

    Attributes:
        data: an absolute path, or `module:function`.
        window: rows of a window of a CSV source, else 0.
        step: rows from one window to the next of a CSV source, else 0.
        label: the column of labels of a CSV source. Empty without labels.
        channels: the columns to use of a CSV source. Empty uses all other numeric columns.
        folder: a folder that is also searched for the module of a function. Empty for files.
        target: the columns of numbers to predict of a CSV source. Empty without such columns.
    """

    data: str
    window: int = 0
    step: int = 0
    label: str = ""
    channels: tuple[str, ...] = ()
    folder: str = ""
    target: tuple[str, ...] = ()

    @property
    def is_function(self) -> bool:
        """Whether the source is a function of the owner."""
        return bool(self.folder)

    def to_json(self) -> dict[str, Any]:
        """Return the source as a JSON object: `data`, and `source` with the options that are set."""
        options = {key: value for key, value in asdict(self).items() if key != "data" and value}
        return {"data": self.data, **({"source": options} if options else {})}


def parse_source(record: Mapping[str, Any]) -> DataSource:
    """Parse the JSON object of `DataSource.to_json`.

    Raises:
        KeyError: `data` is missing.
        TypeError: there is an unknown option.
        ValueError: a value has the wrong type.
    """
    options = dict(record.get("source", {}))
    columns = {key: tuple(options.get(key, ())) for key in ("channels", "target")}
    source = DataSource(str(record["data"]), **(options | columns))
    types = [type(value) for value in asdict(source).values()]
    names = (*source.channels, *source.target)
    if types != [str, int, int, str, tuple, str, tuple] or not all(type(name) is str for name in names):
        raise ValueError("the data source has a value of the wrong type")
    return source


def make_source(
    data: str,
    *,
    window: int = 0,
    step: int = 0,
    label: str = "",
    channels: tuple[str, ...] = (),
    target: tuple[str, ...] = (),
) -> DataSource:
    """Make the source that a user has named.

    The source is not opened, so a missing file is not noticed here.

    Args:
        data: a path, or `module:function`. A relative path becomes absolute.
        window: rows of a window, for CSV.
        step: rows from one window to the next, for CSV. 0 uses the length of a window.
        label: the column of labels, for CSV. Empty reads windows without labels.
        channels: the columns to use, for CSV. Empty uses all other numeric columns.
        target: the columns of numbers to predict, for CSV.

    Raises:
        ConfigError: the options do not fit the kind of source, or do not fit together.
    """
    path = Path(data)
    windows = bool(window or step or label or channels or target)
    if FUNCTION_PATTERN.fullmatch(data) and not path.exists():
        if windows:
            raise ConfigError(
                f"{CSV_OPTION_NAMES} are for CSV, but --data {data} is a function; cut the windows in the "
                "function"
            )
        return DataSource(data, folder=str(Path.cwd()))
    if path.suffix == ".csv" or (windows and path.is_dir()):
        if window < 1:
            raise ConfigError(f"{data} is CSV; {CSV_REMEDY}")
        _check_columns(label, channels, target)
        return DataSource(str(path.resolve()), window, step or window, label, channels, target=target)
    if windows:
        raise ConfigError(
            f"{CSV_OPTION_NAMES} are for a .csv file or a folder of them, received {data}; leave them out"
        )
    return DataSource(str(path.resolve()))


def _check_columns(label: str, channels: tuple[str, ...], target: tuple[str, ...]) -> None:
    if label and target:
        raise ConfigError(
            f"--label is {label!r} and --target is {','.join(target)!r}, expected at most one of them: a "
            "window has a class, or numbers to predict; leave one out"
        )
    if double := next((name for name in target if target.count(name) > 1), None):
        raise ConfigError(f"--target names {double!r} twice; name each column once")
    if double := next((name for name in target if name in channels), None):
        raise ConfigError(
            f"the column {double!r} is in --channels and in --target, expected one of them: a model that "
            "reads the number has nothing to predict; leave it out of --channels"
        )


def read_source(source: DataSource) -> dict[str, NDArray[Any]]:
    """Read the arrays of a source: `x`, `y`, and other arrays that `edgefl.data.npz` describes.

    There is no `y` if the samples have no labels. `target` replaces it for numbers to predict of a CSV
    source.

    Raises:
        DataError: the source is missing or cannot be read.
    """
    path = Path(source.data)
    # Only the required reader is imported, because a board has little memory.
    if source.is_function:
        read = import_module("edgefl.data.sources.function").read_function
    elif source.window:
        read = import_module("edgefl.data.sources.csv_windows").read_csv_windows
    elif path.is_dir():
        read = import_module("edgefl.data.sources.class_folder").read_class_folder
    else:
        return read_shard(path)
    try:
        return dict(read(source))
    except OSError as error:
        raise DataError(
            f"{source.data} cannot be read: {error}; check the path, and whether this account may read it"
        ) from error


def load_source(
    source: DataSource,
    *,
    seed: int = 1,
    num_classes: int | None = None,
    input_shape: tuple[int, ...] | None = None,
) -> Shard:
    """Read a shard from any source.

    See `edgefl.data.npz.make_shard` for scaling, split, classes and shape.

    Args:
        source: the source.
        seed: random seed of the split.
        num_classes: number of classes. None uses the number in the source, or else the largest label + 1.
        input_shape: input shape of the model, None if unknown.

    Raises:
        DataError: the source cannot be read or cannot be used for training.
    """
    return make_shard(
        read_source(source), source.data, seed=seed, num_classes=num_classes, input_shape=input_shape
    )
