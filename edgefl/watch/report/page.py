"""Renders a report as one HTML file.

The page has no script and loads no other file. The same folder always gives the same bytes.
"""

import math
import re
from html import escape
from pathlib import Path

from edgefl import __version__
from edgefl.base.verdict import make_table_rows
from edgefl.watch.report import clusters, confusion, curves, distribution, gates
from edgefl.watch.report.chart import Chart, MissingChart, Section, Table
from edgefl.watch.report.drawing import PAGE_COLOURS, THEME_COLOURS, draw_figure, encode_figure
from edgefl.watch.report.folder import Folder
from edgefl.watch.report.outcome import build_headlines, find_verdict

_PREAMBLE = re.compile(r"^.*?(?=<svg )", re.DOTALL)
_METADATA = re.compile(r"<metadata>.*?</metadata>", re.DOTALL)
_NAMESPACES = re.compile(r'\s(?:xmlns(?::\w+)?|version)="[^"]*"')
_IDS = re.compile(r'(\bid="|url\(#|href="#)')
_ID = re.compile(r'\sid="([^"]*)"')
_REFERENCE = re.compile(r'(?:url\(#|href="#)([^")]+)')
_FONT = re.compile(r"font:\s*([^;\"]*?)'DejaVu Sans'[^;\"]*")
_VARIABLES = {colour: f"var(--{name})" for name, (colour, _) in THEME_COLOURS.items()}
_COLOUR = re.compile("|".join(_VARIABLES))


def build_sections(folder: Folder) -> tuple[Section, ...]:
    """Return the sections of the page, with charts and explanations of missing charts.

    Raises:
        StateError: the data of the folder are damaged.
    """
    return tuple(
        module.build_section(folder) for module in (distribution, curves, clusters, gates, confusion)
    )


def list_charts(section: Section) -> list[Chart]:
    """Return the charts of a section, without missing ones."""
    return [part for part in section.parts if isinstance(part, Chart)]


def summarize_folder(folder: Folder) -> str:
    """Return the algorithm, model, data set, and numbers of clients and rounds as one line."""
    facts = folder.facts
    counts = [f"{facts[key]} {key}" for key in ("clients", "rounds") if facts.get(key)]
    names = [str(facts[key]).split(" ", 1)[0] for key in ("algorithm", "model", "data") if facts.get(key)]
    return ", ".join([*names, *counts])


def render_svg(chart: Chart, prefix: str) -> str:
    """Return the chart as an <svg> element with the colours of the page.

    Args:
        prefix: start of all ids in the element, unique on the page.
    """
    text = encode_figure(
        draw_figure(chart.draw, chart.width, chart.height), "svg", background="none"
    ).decode()
    text = _METADATA.sub("", _PREAMBLE.sub("", text))
    text = _NAMESPACES.sub("", text)
    text = re.sub(
        r'(<svg\b[^>]*?) height="[^"]*"',
        r"\1",
        re.sub(r'(<svg\b[^>]*?) width="[^"]*"', r"\1", text, count=1),
        count=1,
    )
    text = _COLOUR.sub(lambda match: _VARIABLES[match[0]], _FONT.sub(r"font: \1system-ui, sans-serif", text))
    text = _IDS.sub(rf"\g<1>{prefix}-", _strip_unused_ids(text))
    return text.replace(
        "<svg ", f'<svg role="img" aria-label="{escape(chart.title)}: {escape(chart.alt)}" ', 1
    )


def _strip_unused_ids(text: str) -> str:
    """Return an SVG with only the ids that it refers to, each of them once."""
    used = set(_REFERENCE.findall(text))

    def keep_used(match: re.Match[str]) -> str:
        if match[1] not in used:
            return ""
        used.discard(match[1])
        return match[0]

    return _ID.sub(keep_used, text)


def to_html(folder: Folder) -> str:
    """Return the page of a folder.

    Raises:
        ModuleNotFoundError: matplotlib or jinja2 is not installed.
        StateError: the data of the folder are damaged.
    """
    from jinja2 import Environment, FileSystemLoader, StrictUndefined
    from markupsafe import Markup

    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["text"] = _format_cell
    all_sections = build_sections(folder)
    verdict = find_verdict(folder)
    return environment.get_template("page.html").render(
        title=f"{folder.facts.get('federation') or folder.name}: {folder.algorithm or 'a federation'}",
        kind=f"{_KINDS[folder.kind]}, folder {folder.name}",
        note=folder.facts.get("note", ""),
        head=summarize_folder(folder),
        facts={
            key: value for key, value in folder.facts.items() if key != "note" and value not in (None, "", 0)
        },
        verdict=verdict,
        headlines=build_headlines(verdict) if verdict else [],
        verdict_table=make_table_rows(verdict) if verdict else [],
        sections=[section for section in all_sections if list_charts(section)],
        missing=[
            part for section in all_sections for part in section.parts if isinstance(part, MissingChart)
        ],
        svg=lambda chart, prefix: Markup(render_svg(chart, prefix)),
        number_columns=_find_number_columns,
        colours={**PAGE_COLOURS, **THEME_COLOURS},
        version=__version__,
    )


_KINDS = {
    "simulation": "A simulated federation",
    "aggregator": "A federation over MQTT",
    "demo": "A demo: a federation over MQTT on one machine",
}


def _find_number_columns(table: Table) -> list[bool]:
    return [all(not isinstance(row[i], str) for row in table.rows) for i in range(len(table.head))]


def _format_cell(cell: object) -> str:
    if cell is None or (isinstance(cell, float) and not math.isfinite(cell)):
        return "-"
    if isinstance(cell, int) and not isinstance(cell, bool):
        return f"{cell:,}"
    return f"{cell:.6g}" if isinstance(cell, float) else str(cell)
