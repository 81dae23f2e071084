"""The options by which a command is told where the samples are."""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import click

from edgefl.data.sources import make_source

SOURCE_OPTIONS = ("data", "window", "step", "label", "channels")


def parse_source_options(params: Mapping[str, Any]) -> Any:
    """Return the DataSource of a command's parameters, None without `--data`.

    Raises ConfigError, click.UsageError.
    """
    picked = tuple(name.strip() for name in params["channels"].split(",") if name.strip())
    window = params["window"]
    step = params["step"]
    label = params["label"]
    if params["data"] is None and (window or step or label or picked):
        raise click.UsageError(
            "--window, --step, --label and --channels say how to read --data, which is missing; give it"
        )
    return (
        make_source(params["data"], window=window, step=step, label=label, channels=picked)
        if params["data"] is not None
        else None
    )


def add_data_options(text: str, *, required: bool) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Give a command `--data` and what belongs to it.

    The command gets `source`, a DataSource, or None without `--data`.
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
            click.option("--window", type=click.IntRange(0), default=0, help="CSV: rows in a window."),
            click.option(
                "--step",
                type=click.IntRange(0),
                default=0,
                help="CSV: rows from one window to the next  [default: --window]",
            ),
            click.option(
                "--label",
                default="",
                help="CSV: the column of labels; a window's is that of most of its rows.",
            ),
            click.option(
                "--channels",
                default="",
                help="CSV: the columns to take, A,B,C  [default: all numeric ones but the label]",
            ),
        )
        for option in reversed(options):
            with_source = option(with_source)
        return with_source

    return decorate
