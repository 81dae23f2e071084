"""`edgefl report`: a folder as one page, or a figure of a paper from run folders."""

from pathlib import Path

import click

from edgefl.errors import ConfigError, StateError
from edgefl.files import write_atomic
from edgefl.report.folder import read_folder


@click.command(short_help="A run as one HTML page, or a paper's figure of runs.")
@click.argument("folders", nargs=-1, type=click.Path(path_type=Path))
@click.option(
    "-o", "--out", type=click.Path(path_type=Path, dir_okay=False), help="The file to write  [default: report.html in the folder]"
)
def report(folders: tuple[Path, ...], out: Path | None) -> None:
    """Write a folder of `edgefl simulate`, `edgefl demo`, or an aggregator's --out as one page that needs no other file and no network.

    \b
    Examples:
      edgefl report runs/x -o report.html
    """
    from edgefl.report.page import to_html

    if len(folders) != 1:
        raise ConfigError(f"{len(folders)} folders, expected one for a page")
    path = out or folders[0] / "report.html"
    text = to_html(read_folder(folders[0])).encode()
    try:
        write_atomic(path, text)
    except OSError as error:
        raise StateError(f"cannot write {path}: {error.strerror}; free some space, or give another -o") from error
    click.echo(f"report   {path} ({len(text) / 1e3:,.0f} KB)")
