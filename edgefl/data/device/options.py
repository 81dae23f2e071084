"""The options by which a command is told where the samples are."""

import functools
from collections.abc import Callable
from typing import Any

import click

from edgefl.data.device import make_source


def data_options(text: str, *, required: bool) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Give a command `--data` and what belongs to it; the command gets `source`, a DataSource, or None without `--data`."""

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(command)
        def with_source(data: str | None, window: int, step: int, label: str, channels: str, **rest: Any) -> Any:
            picked = tuple(name.strip() for name in channels.split(",") if name.strip())
            if data is None and (window or step or label or picked):
                raise click.UsageError("--window, --step, --label and --channels say how to read --data, which is missing")
            source = make_source(data, window=window, step=step, label=label, channels=picked) if data is not None else None
            return command(source=source, **rest)

        options = (
            click.option("--data", required=required, help=text),
            click.option("--window", type=click.IntRange(0), default=0, help="CSV: rows in a window."),
            click.option("--step", type=click.IntRange(0), default=0, help="CSV: rows from one window to the next  [default: --window]"),
            click.option("--label", default="", help="CSV: the column of labels; a window's is that of most of its rows."),
            click.option("--channels", default="", help="CSV: the columns to take, A,B,C  [default: all numeric ones but the label]"),
        )
        for option in reversed(options):
            with_source = option(with_source)
        return with_source

    return decorate
