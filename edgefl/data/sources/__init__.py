"""Where a device's samples come from: one file a source, all of them read into the arrays of a shard."""

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

FUNCTION_PATTERN = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")


@dataclass(frozen=True)
class DataSource:
    """What is needed to open it again. data: an absolute path, or `module:function`, which is looked for in
    `folder` too.

    window, step: rows, for CSV, else 0. label: the column of labels. channels: the columns to take; all other
    numeric ones when empty.
    """

    data: str
    window: int = 0
    step: int = 0
    label: str = ""
    channels: tuple[str, ...] = ()
    folder: str = ""

    @property
    def is_function(self) -> bool:
        """Whether it is the owner's own code."""
        return bool(self.folder)

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON knows it: `data`, and `source` with the options that are set."""
        options = {key: value for key, value in asdict(self).items() if key != "data" and value}
        return {"data": self.data, **({"source": options} if options else {})}


def parse_source(record: Mapping[str, Any]) -> DataSource:
    """Return what `as_note` wrote; KeyError, TypeError or ValueError for anything else."""
    options = dict(record.get("source", {}))
    source = DataSource(str(record["data"]), **(options | {"channels": tuple(options.get("channels", ()))}))
    if [type(value) for value in asdict(source).values()] != [str, int, int, str, tuple, str]:
        raise ValueError("the data's source has a value of another type")
    return source


def make_source(
    data: str, *, window: int = 0, step: int = 0, label: str = "", channels: tuple[str, ...] = ()
) -> DataSource:
    """Return the source of what a user wrote; relative names become absolute. `step` 0: the window's length.

    Raises ConfigError for options that do not fit; whether the source is there is seen when it is opened.
    """
    path = Path(data)
    windows = bool(window or step or label or channels)
    if FUNCTION_PATTERN.fullmatch(data) and not path.exists():
        if windows:
            raise ConfigError(
                f"--window, --step, --label and --channels are for CSV, --data {data} is a function; let it "
                "cut the windows"
            )
        return DataSource(data, folder=str(Path.cwd()))
    if path.suffix == ".csv" or (windows and path.is_dir()):
        if window < 1 or not label:
            raise ConfigError(f"{data} is CSV: give --window ROWS and --label COLUMN")
        return DataSource(str(path.resolve()), window, step or window, label, channels)
    if windows:
        raise ConfigError(
            "--window, --step, --label and --channels are for a .csv file or a folder of them, received "
            f"{data}; leave them out"
        )
    return DataSource(str(path.resolve()))


def read_source(source: DataSource) -> dict[str, NDArray[Any]]:
    """Return the arrays `x`, `y` and what else `edgefl.data.npz` knows of.

    DataError says what cannot be read.
    """
    path = Path(source.data)
    # only the reader that is needed is loaded: a board has little memory
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
            f"{source.data} cannot be read: {error}; is the path right, and may this account read it?"
        ) from error


def load_source(
    source: DataSource,
    *,
    seed: int = 1,
    num_classes: int | None = None,
    input_shape: tuple[int, ...] | None = None,
) -> Shard:
    """Read a shard of any source; see `edgefl.data.npz.make_shard` for scaling, split, classes and shape."""
    return make_shard(
        read_source(source), source.data, seed=seed, num_classes=num_classes, input_shape=input_shape
    )
