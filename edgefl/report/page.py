"""A report as one HTML file: no script, nothing that is fetched, the same folder gives the same bytes."""

import math
import re
from html import escape
from pathlib import Path

from edgefl import __version__
from edgefl.report import clusters, confusion, curves, distribution, gates
from edgefl.report.chart import Chart, Missing, Section, Table
from edgefl.report.drawing import COLOURS, GROUNDS, drawn, encoded
from edgefl.report.folder import Folder
from edgefl.report.outcome import headlines, verdict_of
from edgefl.verdict import table_rows

_PREAMBLE = re.compile(r"^.*?(?=<svg )", re.DOTALL)
_METADATA = re.compile(r"<metadata>.*?</metadata>", re.DOTALL)
_NAMESPACES = re.compile(r'\s(?:xmlns(?::\w+)?|version)="[^"]*"')
_IDS = re.compile(r'(\bid="|url\(#|href="#)')
_ID = re.compile(r'\sid="([^"]*)"')
_REFERENCE = re.compile(r'(?:url\(#|href="#)([^")]+)')
_FONT = re.compile(r"font:\s*([^;\"]*?)'DejaVu Sans'[^;\"]*")
_VARIABLES = {light: f"var(--{name})" for name, (light, _) in COLOURS.items()}
_COLOUR = re.compile("|".join(_VARIABLES))


def sections(folder: Folder) -> tuple[Section, ...]:
    """Return all that the page shows of a folder, and what it cannot show."""
    return tuple(each.section(folder) for each in (distribution, curves, clusters, gates, confusion))


def charts_of(section: Section) -> list[Chart]:
    """Return the pictures of a section."""
    return [part for part in section.parts if isinstance(part, Chart)]


def head(folder: Folder) -> str:
    """Return what the federation was, in a few words: the rest of its facts stands below the results."""
    facts = folder.facts
    counts = [f"{facts[key]} {key}" for key in ("clients", "rounds") if facts.get(key)]
    names = [str(facts[key]).split(" ", 1)[0] for key in ("algorithm", "model", "data") if facts.get(key)]
    return ", ".join([*names, *counts])


def inline_svg(chart: Chart, prefix: str) -> str:
    """Return the chart as an <svg> element for a page: its colours follow the page's, its ids begin with the
    prefix.
    """
    text = encoded(drawn(chart.draw, chart.width, chart.height), "svg", ground="none").decode()
    text = _METADATA.sub("", _PREAMBLE.sub("", text))
    text = _NAMESPACES.sub("", text)
    text = re.sub(
        r'(<svg\b[^>]*?) height="[^"]*"',
        r"\1",
        re.sub(r'(<svg\b[^>]*?) width="[^"]*"', r"\1", text, count=1),
        count=1,
    )
    text = _COLOUR.sub(lambda found: _VARIABLES[found[0]], _FONT.sub(r"font: \1system-ui, sans-serif", text))
    text = _IDS.sub(rf"\g<1>{prefix}-", _without_ids(text))
    return text.replace(
        "<svg ", f'<svg role="img" aria-label="{escape(chart.title)}: {escape(chart.alt)}" ', 1
    )


def _without_ids(text: str) -> str:
    """Return an SVG without the ids that nothing in it refers to, each of the others once."""
    left = set(_REFERENCE.findall(text))

    def kept(found: re.Match[str]) -> str:
        if found[1] not in left:
            return ""
        left.discard(found[1])
        return found[0]

    return _ID.sub(kept, text)


def to_html(folder: Folder) -> str:
    """Return the page."""
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
    environment.filters["text"] = _text
    found = sections(folder)
    verdict = verdict_of(folder)
    return environment.get_template("page.html").render(
        title=f"{folder.facts.get('federation') or folder.name}: {folder.algorithm or 'a federation'}",
        kind=f"{_KINDS[folder.kind]}, folder {folder.name}",
        note=folder.facts.get("note", ""),
        head=head(folder),
        facts={
            key: value for key, value in folder.facts.items() if key != "note" and value not in (None, "", 0)
        },
        verdict=verdict,
        headlines=headlines(verdict) if verdict else [],
        verdict_table=table_rows(verdict) if verdict else [],
        sections=[section for section in found if charts_of(section)],
        missing=[part for section in found for part in section.parts if isinstance(part, Missing)],
        svg=lambda chart, prefix: Markup(inline_svg(chart, prefix)),
        number_columns=_number_columns,
        colours={**GROUNDS, **COLOURS},
        version=__version__,
    )


_KINDS = {
    "simulation": "A simulated federation",
    "aggregator": "A federation over MQTT",
    "demo": "A demo: a federation over MQTT on one machine",
}


def _number_columns(table: Table) -> list[bool]:
    return [all(not isinstance(row[i], str) for row in table.rows) for i in range(len(table.head))]


def _text(cell: object) -> str:
    if cell is None or (isinstance(cell, float) and not math.isfinite(cell)):
        return "-"
    if isinstance(cell, int) and not isinstance(cell, bool):
        return f"{cell:,}"
    return f"{cell:.6g}" if isinstance(cell, float) else str(cell)
