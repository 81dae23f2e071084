"""The command-line options that name the sample source of a command."""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import click

from edgefl.data.sources import make_source

SOURCE_OPTIONS = ("data", "window", "step", "label", "channels")


def parse_source_options(params: Mapping[str, Any]) -> Any:
    """Return the DataSource of the parameters of a command, or None without `--data`.

    Raises:
        ConfigError: the options do not fit the kind of source.
        click.UsageError: a CSV option is used without `--data`.
    """
    channels = tuple(name.strip() for name in params["channels"].split(",") if name.strip())
    window = params["window"]
    step = params["step"]
    label = params["label"]
    if params["data"] is None and (window or step or label or channels):
        raise click.UsageError(
            "--window, --step, --label and --channels describe --data, which is missing; add --data"
        )
    return (
        make_source(params["data"], window=window, step=step, label=label, channels=channels)
        if params["data"] is not None
        else None
    )


def add_data_options(text: str, *, required: bool) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Add `--data` and its CSV options to a command.

    The command gets `source`, a DataSource, or None without `--data`.

    Args:
        text: help text of `--data`.
        required: whether `--data` is required.
    """

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(command)
        def with_source(**params: Any) -> Any:
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
                help="CSV: column of labels. A window gets the most frequent label of its rows.",
            ),
            click.option(
                "--channels",
                default="",
                help="CSV: columns to use, A,B,C  [default: all numeric columns except the label]",
            ),
        )
        for option in reversed(options):
            with_source = option(with_source)
        return with_source

    return decorate
