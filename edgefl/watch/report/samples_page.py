"""Renders the inspection of samples as one HTML page without scripts or other files.

A device has only the base install, so this module uses neither jinja2 nor matplotlib.
"""

import base64
import struct
import zlib
from collections.abc import Sequence
from html import escape
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from edgefl import __version__
from edgefl.base.system.format import shorten_names
from edgefl.data.forms import format_shape
from edgefl.data.inspection.records import DeviceSamples, Inspection, SampleExample, ValueRange
from edgefl.watch.report.drawing import PAGE_COLOURS, THEME_COLOURS
from edgefl.watch.report.samples_text import (
    NOTHING_UNUSUAL,
    count_targets,
    describe_splits,
    format_range,
    format_sample_counts,
    name_class,
    summarize_samples,
)

MAX_DEVICES_SHOWN = 24
MAX_CLASS_COLUMNS = 200
RANGE_HEADS = ("range", "lowest to highest", "mean", "standard deviation")
MAX_SIDE_PIXELS = 96
MAX_TRACE_POINTS = 256
MAX_TRACES = 6
TRACE_WIDTH = 160
TRACE_HEIGHT = 80
STYLESHEETS = ("page.css", "samples_page.css")
SERIES_COLOURS = ("blue", "vermilion", "green", "purple", "orange", "sky")


def render_samples_page(inspection: Inspection) -> str:
    """Return the HTML page. The same inspection always gives the same text."""
    title = f"Samples of {shorten_names([device.name for device in inspection.devices])}"
    has_targets = count_targets(inspection) > 0
    sections = [
        ("findings", "Findings", _render_findings(inspection)),
        ("devices", "Devices", _render_devices(inspection)),
        ("classes", "Class balance", _render_classes(inspection)),
        *([("targets", "Numbers to predict", _render_targets(inspection))] if has_targets else []),
        ("ranges", "Ranges", _render_ranges(inspection)),
        ("samples", "Samples", _render_samples(inspection)),
    ]
    links = "".join(f'<li><a href="#{name}">{head}</a></li>' for name, head, _ in sections)
    body = "\n".join(
        f'<section id="{name}">\n<h2>{head}</h2>\n{content}\n</section>' for name, head, content in sections
    )
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{_escape_text(title)}</title>
<style>
:root {{ color-scheme:light dark; {_format_variables(0)} }}
@media(prefers-color-scheme:dark) {{ :root {{ {_format_variables(1)} }} }}
{"".join((Path(__file__).parent / name).read_text() for name in STYLESHEETS)}</style>
</head>
<body>
<header>
<h1>{_escape_text(title)}</h1>
<p class="note">{_escape_text(summarize_samples(inspection))}</p>
</header>
<nav aria-label="Sections"><ul>{links}</ul></nav>
<main>
{body}
</main>
<footer>Written by edgefl {__version__}. Anyone who has this page can see the samples in it.</footer>
</body>
</html>
"""


def _format_variables(theme: int) -> str:
    return "".join(f"--{name}:{pair[theme]};" for name, pair in {**PAGE_COLOURS, **THEME_COLOURS}.items())


def _escape_text(text: object) -> str:
    """Return text for HTML. Unprintable characters become a box."""
    return escape("".join(letter if letter.isprintable() else "\ufffd" for letter in str(text)))


def _render_findings(inspection: Inspection) -> str:
    if not inspection.findings:
        return f'<ul class="findings"><li class="none">{NOTHING_UNUSUAL.capitalize()}.</li></ul>'
    items = "\n".join(
        f'<li class="{finding.severity}"><b>{finding.severity}</b>, '
        f"{_escape_text(shorten_names(finding.devices))}: "
        f"{_escape_text(finding.text)}</li>"
        for finding in inspection.findings
    )
    return f'<ul class="findings">\n{items}\n</ul>'


def _render_table(head: Sequence[str], rows: Sequence[Sequence[str]], texts: int = 1) -> str:
    """Return a table of cells that are already HTML. The first `texts` columns are left-aligned."""

    def style_cell(index: int) -> str:
        return "" if index < texts else ' class="number"'

    heads = "".join(f'<th scope="col"{style_cell(i)}>{cell}</th>' for i, cell in enumerate(head))
    body = "\n".join(
        "<tr>"
        + "".join(
            cell if cell.startswith("<td") else f"<td{style_cell(i)}>{cell}</td>"
            for i, cell in enumerate(row)
        )
        + "</tr>"
        for row in rows
    )
    table = f"<table><thead><tr>{heads}</tr></thead><tbody>\n{body}\n</tbody></table>"
    return f'<div class="wide" tabindex="0">{table}</div>'


def _render_devices(inspection: Inspection) -> str:
    head = (
        "device",
        "stored as",
        "a sample",
        "training",
        "test",
        "copies",
        "shared",
        "one value",
        "outliers",
        "held out by",
    )
    rows = [
        (
            _escape_text(device.name),
            _escape_text(device.stored),
            format_shape(device.shape) or "-",
            *format_sample_counts(device),
            f"{device.num_copies:,}",
            f"{device.num_shared:,}",
            f"{device.num_blank:,}",
            f"{len(device.outliers):,}",
            "-" if device.split is None else device.split.rule,
        )
        for device in inspection.devices
    ]
    note = (
        "Copies equal an earlier sample of the same device. Shared samples are on another device too. "
        "Both count training and test samples"
    )
    notes = "".join(
        f'<p class="note">{_escape_text(line)}.</p>' for line in (note, *describe_splits(inspection))
    )
    return f"{_render_table(head, rows, 3)}\n{notes}"


def _render_classes(inspection: Inspection) -> str:
    shown = inspection.classes[:MAX_CLASS_COLUMNS]
    if not shown:
        return f'<p class="note">{_explain_missing_classes(inspection)}</p>'
    rows = []
    for device in inspection.devices:
        counts = dict(device.class_counts)
        total = max(1, sum(counts.values()))
        cells = [_render_share_cell(counts.get(label, 0), total) for label in shown]
        rows.append([_escape_text(device.name), *cells])
    left = len(inspection.classes) - len(shown)
    more = f" {left:,} more classes are not shown." if left else ""
    note = f"Number of samples by class. The coloured part is the share of the device's samples.{more}"
    head = ["device", *(_escape_text(name_class(inspection, label)) for label in shown)]
    return f'{_render_table(head, rows)}\n<p class="note">{note}</p>'


def _explain_missing_classes(inspection: Inspection) -> str:
    if not any(device.has_labels for device in inspection.devices):
        return "The samples have no labels."
    return "The labels are numbers, not classes." if count_targets(inspection) else "No labels could be read."


def _render_targets(inspection: Inspection) -> str:
    ranges = [values for device in inspection.devices for values in device.targets]
    low = min(values.low for values in ranges)
    high = max(values.high for values in ranges)
    rows = [
        [_escape_text(device.name), str(index), *_render_range_cells(values, low, high)]
        for device in inspection.devices
        for index, values in enumerate(device.targets)
    ]
    return _render_table(("device", "number", *RANGE_HEADS), rows, 2)


def _render_share_cell(count: int, total: int) -> str:
    fill = f"background-size:100% {100 * count / total:.0f}%"
    return f'<td class="number share" style="{fill}">{count or "-"}</td>'


def _render_ranges(inspection: Inspection) -> str:
    ranges = [device.values for device in inspection.devices if device.values]
    if not ranges:
        return '<p class="note">No values could be read.</p>'
    low = min(value_range.low for value_range in ranges)
    high = max(value_range.high for value_range in ranges)
    rows = []
    for device in inspection.devices:
        rows.append([_escape_text(device.name), "all", *_render_range_cells(device.values, low, high)])
        if len(device.channels) > 1:
            rows += [
                ["", str(channel), *_render_range_cells(values, low, high)]
                for channel, values in enumerate(device.channels)
            ]
    return _render_table(("device", "channel", *RANGE_HEADS), rows, 2)


def _render_range_cells(values: ValueRange | None, low: float, high: float) -> list[str]:
    if values is None:
        return ["-", "-", "-", "-"]
    width = max(high - low, 1e-30)
    start = 100 * (values.low - low) / width
    length = max(1.0, 100 * (values.high - values.low) / width)
    at = 100 * (values.mean - low) / width
    bar = (
        '<td class="bar"><svg viewBox="0 0 100 10" preserveAspectRatio="none" aria-hidden="true">'
        f'<rect x="{start:.2f}" y="3" width="{length:.2f}" height="4" fill="var(--sky)"/>'
        f'<rect x="{min(at, 99):.2f}" y="1" width="1" height="8" fill="var(--ink)"/></svg></td>'
    )
    return [bar, format_range(values), f"{values.mean:.4g}", f"{values.spread:.4g}"]


def _render_samples(inspection: Inspection) -> str:
    cards = []
    for device in inspection.devices[:MAX_DEVICES_SHOWN]:
        figures = "\n".join(_render_example(inspection, device, example) for example in device.examples)
        content = (
            f'<div class="samples">\n{figures}\n</div>' if figures else '<p class="note">No samples.</p>'
        )
        cards.append(f'<div class="card"><h3>{_escape_text(device.name)}</h3>\n{content}</div>')
    left = len(inspection.devices) - MAX_DEVICES_SHOWN
    more = f'\n<p class="note">{left} more devices are not shown.</p>' if left > 0 else ""
    first = "The first sample of each class" if inspection.classes else "The first samples"
    note = f"{first}, and framed outliers, in the usual range of their device."
    return f'<p class="note">{note}</p>\n<div class="grid">\n{chr(10).join(cards)}\n</div>{more}'


def _render_example(inspection: Inspection, device: DeviceSamples, example: SampleExample) -> str:
    label = "no label" if example.label is None else f"class {name_class(inspection, example.label)}"
    if example.target:
        label = f"target {', '.join(f'{value:.4g}' for value in example.target)}"
    caption = f"{label}, row {example.row}{', outlier' if example.is_outlier else ''}"
    values = example.values
    if values.ndim == 3:
        content = base64.b64encode(encode_png(_to_pixels(values, device.usual))).decode()
        picture = f'<img alt="{_escape_text(caption)}" src="data:image/png;base64,{content}">'
    elif values.ndim <= 2:
        picture = _draw_trace(values.reshape(len(values), -1), device.usual, caption)
    else:
        picture = f'<p class="note">{format_shape(values.shape)}: no picture</p>'
    kind = ' class="outlier"' if example.is_outlier else ""
    return f"<figure{kind}>{picture}<figcaption>{_escape_text(caption)}</figcaption></figure>"


def _to_pixels(values: NDArray[np.float32], device: ValueRange | None) -> NDArray[np.uint8]:
    """Return a sample as pixels, shape (height, width) or (height, width, 3), uint8."""
    steps = [-(-size // MAX_SIDE_PIXELS) for size in values.shape[:2]]
    picture = values[:: steps[0], :: steps[1]].astype(np.float64)
    picture = picture[..., :3] if picture.shape[2] in (3, 4) else picture.mean(axis=2)
    low, high = (0.0, 1.0) if device is None else (min(device.low, 0.0), max(device.high, 1.0))
    return np.clip(255 * (picture - low) / (high - low), 0, 255).round().astype(np.uint8)


def encode_png(pixels: NDArray[np.uint8]) -> bytes:
    """Return a PNG of 8-bit grey or RGB pixels.

    Args:
        pixels: shape (height, width) or (height, width, 3), uint8.

    Source: PNG specification, third edition, sections 5 and 11.
    """

    def encode_chunk(name: bytes, content: bytes) -> bytes:
        return (
            struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))
        )

    height, width = pixels.shape[:2]
    colour_type = 2 if pixels.ndim == 3 else 0
    header = struct.pack(">IIBBBBB", width, height, 8, colour_type, 0, 0, 0)
    rows = np.pad(pixels.reshape(height, -1), ((0, 0), (1, 0)))  # each row begins with its filter, 0 for none
    return (
        b"\x89PNG\r\n\x1a\n"
        + encode_chunk(b"IHDR", header)
        + encode_chunk(b"IDAT", zlib.compress(rows.tobytes(), 9))
        + encode_chunk(b"IEND", b"")
    )


def _draw_trace(values: NDArray[np.float32], device: ValueRange | None, caption: str) -> str:
    """Return values of shape (readings, channels) as an SVG with a line for each of the first channels."""
    shown = values[:: -(-len(values) // MAX_TRACE_POINTS), :MAX_TRACES].astype(np.float64)
    low, high = (float(shown.min()), float(shown.max())) if device is None else (device.low, device.high)
    y = np.full(shown.shape, 0.5) if high <= low else np.clip((shown - low) / (high - low), -0.1, 1.1)
    x = np.linspace(2, TRACE_WIDTH - 2, len(shown)) if len(shown) > 1 else np.array([TRACE_WIDTH / 2])
    lines = "".join(
        f'<polyline fill="none" stroke="var(--{SERIES_COLOURS[channel]})" stroke-width="1.2" points="'
        + " ".join(
            f"{a:.1f},{(1 - b) * (TRACE_HEIGHT - 6) + 3:.1f}" for a, b in zip(x, y[:, channel], strict=True)
        )
        + '"/>'
        for channel in range(shown.shape[1])
    )
    box = f'viewBox="0 0 {TRACE_WIDTH} {TRACE_HEIGHT}"'
    return f'<svg {box} role="img" aria-label="{_escape_text(caption)}">{lines}</svg>'
