"""Sample sources of a device, one module per source. All of them are read into the arrays of a shard."""

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from edgefl.base.errors import ConfigError, DataError
from edgefl.base.tasks.samples import SamplesConfig, is_scale
from edgefl.data.npz import LoadedSamples, make_samples, order_channels, read_shard
from edgefl.data.sources.classes import number_text_labels
from edgefl.program.plan.spec import PlanSpec, read_num_classes, read_samples_config

CSV_OPTION_NAMES = "--window, --step, --label, --target, --channels and --skip-empty"
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
        scale: what divides the stored values. 0 leaves it to the federation.
        skip_empty: leave out windows with an empty cell of a CSV source.
        resize: rows and columns to which the pictures of a folder are resized. Empty keeps their size.
    """

    data: str
    window: int = 0
    step: int = 0
    label: str = ""
    channels: tuple[str, ...] = ()
    folder: str = ""
    target: tuple[str, ...] = ()
    scale: float = 0.0
    skip_empty: bool = False
    resize: tuple[int, ...] = ()

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
    columns = {key: tuple(options.get(key, ())) for key in ("channels", "target", "resize")}
    source = DataSource(data=str(record["data"]), **(options | columns))
    types = [type(value) for value in asdict(source).values()]
    names = (*source.channels, *source.target)
    sizes = [type(size) for size in source.resize]
    if types != [str, int, int, str, tuple, str, tuple, float, bool, tuple] or not all(
        type(name) is str for name in names
    ):
        raise ValueError("the data source has a value of the wrong type")
    if sizes not in ([], [int, int]):
        raise ValueError("the data source has a size of pictures that is no pair of whole numbers")
    return source


def make_source(
    data: str,
    *,
    window: int = 0,
    step: int = 0,
    label: str = "",
    channels: tuple[str, ...] = (),
    target: tuple[str, ...] = (),
    scale: float = 0.0,
    skip_empty: bool = False,
    resize: tuple[int, ...] = (),
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
        scale: what divides the stored values. 0 leaves it to the federation.
        skip_empty: leave out windows with an empty cell, for CSV.
        resize: rows and columns of a picture, for a folder of pictures.

    Raises:
        ConfigError: the options do not fit the kind of source, or do not fit together.
    """
    path = Path(data)
    if scale and not is_scale(scale):
        raise ConfigError(f"--scale is {scale:g}, expected a number such as 255 that divides the values")
    windows = bool(window or step or label or channels or target or skip_empty)
    if resize and (windows or (FUNCTION_PATTERN.fullmatch(data) and not path.exists())):
        raise ConfigError(f"--resize is for a folder of pictures, received {data}; leave it out")
    if FUNCTION_PATTERN.fullmatch(data) and not path.exists():
        if windows:
            raise ConfigError(
                f"{CSV_OPTION_NAMES} are for CSV, but --data {data} is a function; cut the windows in the "
                "function"
            )
        return DataSource(data=data, folder=str(Path.cwd()), scale=scale)
    if is_csv(path) or (windows and path.is_dir()):
        if window < 1:
            raise ConfigError(f"{data} is CSV; {CSV_REMEDY}")
        _check_columns(label, channels, target)
        return DataSource(
            data=str(path.resolve()),
            window=window,
            step=step or window,
            label=label,
            channels=channels,
            target=target,
            scale=scale,
            skip_empty=skip_empty,
        )
    if windows:
        raise ConfigError(
            f"{CSV_OPTION_NAMES} are for a .csv file or a folder of them, received {data}; leave them out, "
            "or give a table of text a name that ends in .csv"
        )
    if resize and not path.is_dir():
        raise ConfigError(f"--resize is for a folder of pictures, received {data}; leave it out")
    return DataSource(data=str(path.resolve()), scale=scale, resize=resize)


def is_csv(path: Path) -> bool:
    """Return whether the name of a file says that it is CSV."""
    return path.suffix.lower() == ".csv"


def _check_columns(label: str, channels: tuple[str, ...], target: tuple[str, ...]) -> None:
    if label and target:
        raise ConfigError(
            f"--label is {label!r} and --target is {','.join(target)!r}, expected at most one of them: a "
            "window has a class, or numbers to predict; leave one out"
        )
    for option, names in (("--target", target), ("--channels", channels)):
        if double := next((name for name in names if names.count(name) > 1), None):
            raise ConfigError(f"{option} names {double!r} twice; name each column once")
    if label in channels:
        raise ConfigError(
            f"the column {label!r} is in --channels and in --label, expected one of them: a model that reads "
            "the label has nothing to predict; leave it out of --channels"
        )
    if double := next((name for name in target if name in channels), None):
        raise ConfigError(
            f"the column {double!r} is in --channels and in --target, expected one of them: a model that "
            "reads the number has nothing to predict; leave it out of --channels"
        )


def read_source(source: DataSource, samples: SamplesConfig | None = None) -> dict[str, NDArray[Any]]:
    """Read the arrays of a source: `x`, `y`, and other arrays that `edgefl.data.npz` describes.

    There is no `y` if the samples have no labels. `target` replaces it for numbers to predict of a CSV
    source.

    Args:
        samples: unit and layout of the federation, whose channels and targets are read. None without a
            federation.

    Raises:
        DataError: the source is missing or cannot be read, or lacks a channel or a target of the federation.
    """
    channels = () if samples is None else samples.channels
    if source.window and channels:
        _check_federation_columns(source, "--channels", source.channels, channels)
        source = replace(source, channels=channels)
    if source.window and samples is not None and samples.targets and not source.label:
        _check_federation_columns(source, "--target", source.target, samples.targets)
        source = replace(source, target=samples.targets)
    path = Path(source.data)
    # Only the required reader is imported, because a board has little memory.
    if source.is_function:
        read = import_module("edgefl.data.sources.function").read_function
    elif source.window:
        read = import_module("edgefl.data.sources.csv_windows").read_csv_windows
    elif path.is_dir():
        read = import_module("edgefl.data.sources.class_folder").read_class_folder
    else:
        arrays = number_text_labels(read_shard(path), path.parent)
        return order_channels(arrays, channels, source.data)
    try:
        arrays = dict(read(source))
    except OSError as error:
        raise DataError(
            f"{source.data} cannot be read: {error}; check the path, and whether this account may read it"
        ) from error
    if source.is_function:
        return number_text_labels(arrays, Path(source.folder))
    return arrays if source.window else order_channels(arrays, channels, source.data)


def _check_federation_columns(
    source: DataSource, option: str, requested: tuple[str, ...], names: tuple[str, ...]
) -> None:
    """Raise DataError if the owner of CSV data names other columns than the federation."""
    if requested and set(requested) != set(names):
        raise DataError(
            f"{source.data}: {option} is {', '.join(requested)}, the federation has {', '.join(names)}; "
            f"leave {option} out"
        )


def load_samples(
    source: DataSource,
    samples: SamplesConfig | None = None,
    *,
    seed: int = 1,
    num_classes: int | None = None,
    input_shape: tuple[int, ...] | None = None,
    count_overlapping: bool = False,
    any_task: bool = False,
) -> LoadedSamples:
    """Read the samples of any source, in the unit and layout of a federation.

    See `edgefl.data.npz.make_samples` for scale, split, classes and shape.

    Args:
        samples: unit and layout of the federation, None without a federation.
        num_classes: number of classes. None uses the number in the source, or else the largest label + 1.
        input_shape: input shape of the model, None if unknown.
        count_overlapping: count the windows of `x_test` that overlap training windows.
        any_task: accept samples without labels, and labels that are no classes.

    Raises:
        DataError: the source cannot be read, cannot be used for training, or does not fit the federation.
    """
    return make_samples(
        read_source(source, samples),
        source.data,
        samples=samples,
        scale=source.scale,
        seed=seed,
        num_classes=num_classes,
        input_shape=input_shape,
        count_overlapping=count_overlapping,
        any_task=any_task,
    )


def load_samples_for_plan(
    source: DataSource, spec: PlanSpec, *, seed: int, count_overlapping: bool = False
) -> LoadedSamples:
    """Read the samples of any source for a plan: in its unit, layout, input shape and classes.

    Args:
        seed: random seed of the split, which is the seed of the federation.
        count_overlapping: count the windows of `x_test` that overlap training windows.

    Raises:
        DataError: the source cannot be read, cannot be used for training, or does not fit the plan.
        PlanError: this version of edgefl does not know how the plan reads samples.
    """
    return load_samples(
        source,
        read_samples_config(spec),
        seed=seed,
        num_classes=read_num_classes(spec),
        input_shape=tuple(spec.input_shape),
        count_overlapping=count_overlapping,
        any_task=True,
    )
