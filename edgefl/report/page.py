"""A report as one HTML file: no script, nothing that is fetched, the same folder gives the same bytes."""

import math
import re
from collections.abc import Sequence
from html import escape

from edgefl import __version__
from edgefl.report import clusters, confusion, curves, distribution, gates
from edgefl.report.chart import Cell, Chart, Missing, Part, Section, Table
from edgefl.report.drawing import COLOURS, drawn, encoded
from edgefl.report.folder import Folder
from edgefl.report.page_style import STYLE

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
    return tuple(each.section(folder) for each in (curves, distribution, clusters, gates, confusion))


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
    found = sections(folder)
    title = f"{folder.facts.get('federation') or folder.name}: {folder.algorithm or 'a federation'}"
    links = "".join(f'<li><a href="#{each.name}">{escape(each.title)}</a></li>' for each in found)
    body = "\n".join(_section(each) for each in found)
    kind = f"{_KINDS[folder.kind]}, folder {folder.name}"
    return "\n".join(
        (
            '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{escape(title)}</title>\n<style>{STYLE}</style>\n</head>\n<body>",
            f"<header>\n<h1>{escape(title)}</h1>\n<p "
            f'class="note">{escape(kind)}</p>\n{_head(folder)}</header>',
            f'<nav aria-label="Sections"><ul>{links}</ul></nav>\n<main>\n{body}\n</main>',
            f"<footer>Written by edgefl {escape(__version__)}. {_FOOT}</footer>\n</body>\n</html>\n",
        )
    )


_FOOT = "Accuracies are of each client's own held-out samples unless said otherwise."
_KINDS = {
    "simulation": "A simulated federation",
    "aggregator": "A federation over MQTT",
    "demo": "A demo: a federation over MQTT on one machine",
}


def _head(folder: Folder) -> str:
    rows = "".join(
        f"<dt>{escape(key)}</dt><dd>{escape(_text(value if not isinstance(value, int) else str(value)))}</dd>"
        for key, value in folder.facts.items()
        if value not in (None, "", 0)
    )
    return f"<dl>{rows}</dl>\n"


def _section(section: Section) -> str:
    ordered = sorted(section.parts, key=lambda part: isinstance(part, Missing))
    parts = "\n".join(_part(part, f"{section.name}-{place}") for place, part in enumerate(ordered))
    return (
        f'<section id="{section.name}">\n<h2>{escape(section.title)}</h2>\n<div '
        f'class="grid">\n{parts}\n</div>\n</section>'
    )


def _part(part: Part, prefix: str) -> str:
    if isinstance(part, Missing):
        return (
            f'<div class="card missing"><h3>{escape(part.title)}</h3><p>Not here: '
            f"{escape(part.why)}.</p></div>"
        )
    note = f'<p class="note">{escape(part.note)}</p>' if part.note else ""
    return (
        f'<figure class="card">\n<h3>{escape(part.title)}</h3>\n{note}{inline_svg(part, prefix)}\n'
        f"<figcaption>{escape(part.alt)}</figcaption>\n"
        f"<details><summary>The data of {escape(part.title)}</summary>{_table(part.table)}</details>\n</figure>"  # noqa: E501
    )


def _table(table: Table) -> str:
    numeric = [all(not isinstance(row[i], str) for row in table.rows) for i in range(len(table.head))]

    def cells(tag: str, row: Sequence[Cell]) -> str:
        marks = (' class="number"' if each else "" for each in numeric)
        scope = ' scope="col"' if tag == "th" else ""
        return "".join(
            f"<{tag}{scope}{mark}>{escape(_text(cell))}</{tag}>"
            for mark, cell in zip(marks, row, strict=True)
        )

    body = "".join(f"<tr>{cells('td', row)}</tr>\n" for row in table.rows)
    left = f'<p class="note">{escape(table.left)}</p>' if table.left else ""
    head = f"<thead><tr>{cells('th', table.head)}</tr></thead>"
    return f'<div class="wide" tabindex="0"><table>{head}<tbody>\n{body}</tbody></table></div>{left}'


def _text(cell: object) -> str:
    if cell is None or (isinstance(cell, float) and not math.isfinite(cell)):
        return "-"
    if isinstance(cell, bool | str):
        return str(cell)
    return f"{cell:,}" if isinstance(cell, int) else f"{cell:.6g}" if isinstance(cell, float) else str(cell)
