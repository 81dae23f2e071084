"""The command-line options that name the sample source of a command."""

import functools
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import click

from edgefl.base.errors import ConfigError
from edgefl.data.sources import CSV_OPTION_NAMES, make_source

TARGET_OPTIONS = ("--target", "--target-column")
SOURCE_OPTIONS = (
    "data",
    "window",
    "step",
    "label",
    "channels",
    "target_columns",
    "scale",
    "skip_empty",
    "resize",
)


def parse_source_options(params: Mapping[str, Any]) -> Any:
    """Return the DataSource of the parameters of a command, or None without `--data`.

    Raises:
        ConfigError: the options do not fit the kind of source.
        click.UsageError: a CSV option is used without `--data`.
    """
    channels, target = (split_column_names(params[key]) for key in ("channels", "target_columns"))
    window = params["window"]
    step = params["step"]
    label = params["label"]
    if params["data"] is None and (window or step or label or channels or target):
        raise click.UsageError(f"{CSV_OPTION_NAMES} describe --data, which is missing; add --data")
    for option in ("scale", "skip_empty", "resize"):
        if params["data"] is None and params[option]:
            name = option.replace("_", "-")
            raise click.UsageError(f"--{name} describes --data, which is missing; add --data")
    if params["data"] is None:
        return None
    return make_source(
        params["data"],
        window=window,
        step=step,
        label=label,
        channels=channels,
        target=target,
        scale=params["scale"],
        skip_empty=params["skip_empty"],
        resize=parse_picture_size(params["resize"]),
    )


def parse_picture_size(text: str) -> tuple[int, ...]:
    """Return rows and columns of a picture such as `28x28`, or an empty tuple for an empty text.

    Raises:
        ConfigError: the text is no such size.
    """
    if not text:
        return ()
    size = re.fullmatch(r"(\d{1,5})x(\d{1,5})", text, re.ASCII)
    if size is None or 0 in (sizes := (int(size[1]), int(size[2]))):
        raise ConfigError(f"--resize is {text!r}, expected rows and columns above 0 such as 28x28")
    return sizes


def split_column_names(text: str) -> tuple[str, ...]:
    """Return the names of a list such as `A,B,C`, without spaces around them."""
    return tuple(name.strip() for name in text.split(",") if name.strip())


def add_form_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that say how stored samples become usable: `--skip-empty`, `--resize` and `--scale`."""
    options = (
        click.option("--skip-empty", is_flag=True, help="CSV: leave out windows with an empty cell."),
        click.option(
            "--resize",
            default="",
            metavar="HxW",
            help="Folder of pictures: resize to H rows and W columns.",
        ),
        click.option(
            "--scale",
            type=click.FloatRange(0),
            default=0.0,
            help="Number that divides the stored values  [default: as the federation says]",
        ),
    )
    for option in reversed(options):
        command = option(command)
    return command


def add_data_options(
    text: str, *, required: bool, target_options: Sequence[str] = TARGET_OPTIONS
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Add `--data` and its CSV options to a command.

    The command gets `source`, a DataSource, or None without `--data`.

    Args:
        text: help text of `--data`.
        required: whether `--data` is required.
        target_options: names of the option for columns to predict. `edgefl export` has another `--target`.
    """

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(command)
        def read_source_options(**params: Any) -> Any:
            source = parse_source_options(params)
            return command(
                source=source, **{name: value for name, value in params.items() if name not in SOURCE_OPTIONS}
            )

        options = (
            click.option("--data", required=required, help=text),
            click.option("--window", type=click.IntRange(0), default=0, help="CSV: rows per window."),
            click.option(
                "--step",
                type=click.IntRange(0),
                default=0,
                help="CSV: rows from one window to the next  [default: --window]",
            ),
            click.option(
                "--label",
                default="",
                help="CSV: column of labels. A window gets the most frequent label of its rows. Leave it out "
                "for samples without labels.",
            ),
            click.option(
                *target_options,
                "target_columns",
                default="",
                help="CSV: columns of numbers to predict, A,B. A window gets the values of its last row.",
            ),
            click.option(
                "--channels",
                default="",
                help="CSV: columns to use, A,B,C  [default: all numeric columns except labels and targets]",
            ),
        )
        with_source = add_form_options(read_source_options)
        for option in reversed(options):
            with_source = option(with_source)
        return with_source

    return decorate
