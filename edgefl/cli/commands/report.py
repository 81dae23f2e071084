"""`edgefl report`: writes a run as one HTML page, or draws a figure of a paper from runs."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from edgefl.base.errors import ConfigError
from edgefl.base.storage.aggregator_directory import AggregatorFiles
from edgefl.base.storage.run_directory import RunFiles
from edgefl.base.system.files import write_errors, write_state
from edgefl.base.verdict import as_dict
from edgefl.watch.report.chart import Chart, SectionPart
from edgefl.watch.report.drawing import draw_figure, parse_image_format, save_figure
from edgefl.watch.report.folder import Folder, read_folder

REPORT_REMEDY = "free some space, or give another -o"


@click.command(short_help="Write a run as one HTML page, or draw a paper's figure.")
@click.argument("folders", nargs=-1, type=click.Path(path_type=Path))
@click.option(
    "-o",
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Output file  [default: report.html in the folder, NAME.svg for a figure]",
)
@click.option("--figure", "name", metavar="NAME", help="Draw this figure of a paper as .svg, .png or .pdf.")
@click.option("--list", "listing", is_flag=True, help="List the figures and the runs that they need.")
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Print the data of the charts as one JSON object. A file is written only with -o.",
)
def report(
    folders: tuple[Path, ...], out: Path | None, name: str | None, listing: bool, as_json: bool
) -> None:
    """Write the folder of a run as one HTML page that needs no other file and no network, or draw a figure of
    a paper.

    A folder is the --out of `edgefl simulate`, `edgefl demo` or `edgefl aggregator start`. A figure takes
    several folders, or the folder of `edgefl reproduce` that contains them.

    \b
    Examples:
      edgefl report runs/x -o report.html
      edgefl report --figure aem-6 runs/aem-reduced -o aem-6.pdf
    """
    if listing:
        _list(as_json)
    elif name is not None:
        _write_figure(name, folders, out, as_json)
    else:
        _write_page(folders, out, as_json)


def _write_page(folders: Sequence[Path], out: Path | None, as_json: bool) -> None:
    from edgefl.watch.report.outcome import find_verdict
    from edgefl.watch.report.page import build_sections, to_html

    if len(folders) != 1:
        raise ConfigError(
            f"{len(folders)} folders, expected one for a page; --figure takes several, and `edgefl compare` "
            "compares runs"
        )
    folder = read_folder(folders[0])
    if as_json:
        verdict = find_verdict(folder)
        content = {
            section.name: [_describe_part(part) for part in section.parts]
            for section in build_sections(folder)
        }
        click.echo(
            json.dumps(
                {
                    "folder": str(folder.path),
                    "facts": dict(folder.facts),
                    "verdict": as_dict(verdict) if verdict else None,
                    "sections": content,
                },
                allow_nan=False,
            )
        )
        if out is None:
            return
    path = out or RunFiles(folders[0]).report
    text = to_html(folder).encode()
    write_state(path, text, remedy=REPORT_REMEDY)
    click.echo(f"report   {path} ({len(text) / 1e3:,.0f} KB)", err=as_json)


def _write_figure(name: str, paths: Sequence[Path], out: Path | None, as_json: bool) -> None:
    from edgefl.lab.figures import find_figure, make_figure

    paper_figure = find_figure(name)
    path = out or Path(f"{name}.svg")
    parse_image_format(path)
    chart = make_figure(
        name, [folder for run_path in paths for folder in _read_runs(run_path, paper_figure.algorithms)]
    )
    if as_json:
        click.echo(json.dumps({"figure": name, **_describe_part(chart)}, allow_nan=False))
        if out is None:
            return
    with write_errors(path, REPORT_REMEDY):
        save_figure(draw_figure(chart.draw, chart.width, chart.height), path)
    click.echo(f"{chart.title}: {chart.alt}\npicture  {path}", err=as_json)


def _read_runs(path: Path, algorithms: Sequence[str]) -> list[Folder]:
    """Return the folder itself, or the runs in it that use one of the algorithms."""
    inside = (
        sorted(child for child in path.iterdir() if RunFiles(child).note.exists()) if path.is_dir() else []
    )
    if not inside or RunFiles(path).note.exists() or AggregatorFiles(path).result.exists():
        return [read_folder(path)]
    runs = [folder for folder in map(read_folder, inside) if not algorithms or folder.algorithm in algorithms]
    if not runs:
        raise ConfigError(
            f"{path} contains no run of {' or '.join(algorithms)}; give the folder of such a run"
        )
    return runs


def _describe_part(part: SectionPart) -> dict[str, Any]:
    if not isinstance(part, Chart):
        return {"title": part.title, "missing": part.why}
    rows = [list(row) for row in part.table.rows]
    return {
        "name": part.name,
        "title": part.title,
        "alt": part.alt,
        "head": list(part.table.head),
        "rows": rows,
        "left": part.table.left,
    }


def _list(as_json: bool) -> None:
    from edgefl.lab.figures import PAPER_FIGURES

    if as_json:
        click.echo(
            json.dumps(
                {
                    name: {"paper": f.paper, "shows": f.shows, "needs": f.needs}
                    for name, f in PAPER_FIGURES.items()
                }
            )
        )
        return
    paper = ""
    for name, figure in PAPER_FIGURES.items():
        if figure.paper != paper:
            paper = figure.paper
            click.echo(f"{paper}")
        click.echo(f"  {name:<12} {figure.shows}\n{'':15}needs {figure.needs}")
