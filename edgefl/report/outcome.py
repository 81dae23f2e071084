"""What a federation gave its clients: the verdict, and each client's models side by side."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from edgefl.report.chart import Chart, Table
from edgefl.report.drawing import PALETTE, shortened
from edgefl.report.folder import Folder, mapping_at, number
from edgefl.system.format import percent
from edgefl.verdict import DeviceFigures, Verdict, judge

MAX_ROWS = 40
"""A row of dots each for at most so many clients; a distribution shows more."""
HEADLINES = (
    ("local", "Alone", "each device trained by itself"),
    ("federated", "Together", "one model for all devices"),
    ("shipped", "Yours", "the model that each device keeps"),
)
MARKS = {"local": "s", "federated": "^", "shipped": "o"}
LABELS = {"local": "alone", "federated": "together", "shipped": "yours"}
COLOURS = {"local": PALETTE[1], "federated": PALETTE[3], "shipped": PALETTE[0]}
CROWDED_POINTS = 0.02
"""Marks closer than this share of the axis would hide each other."""


def verdict_of(folder: Folder) -> Verdict | None:
    """Return the verdict on a folder's federation, None where no client has measured a model of its own."""
    classes = number(mapping_at(folder.config, "model").get("num_classes"))
    num_classes = int(classes) if np.isfinite(classes) else 0
    select = mapping_at(folder.config, "personalization").get("select") is not False
    verdict = judge(folder.clients, algorithm=folder.algorithm, num_classes=num_classes, select=select)
    return verdict if verdict.means["shipped"] is not None else None


def headlines(verdict: Verdict) -> list[dict[str, str]]:
    """Return the three large figures of a page: name, figure, note; the last says what was gained."""
    found = [
        {
            "kind": kind,
            "name": name,
            "figure": percent(verdict.means[kind]),
            "note": note if verdict.means[kind] is not None else "not measured",
            "gain": "",
            "way": "",
            "int8": "",
        }
        for kind, name, note in HEADLINES
    ]
    shipped = found[-1]
    if verdict.means["int8"] is not None:
        shipped["int8"] = f"as int8: {percent(verdict.means['int8'])}"
    if (points := verdict.gain_points) is not None:
        shipped["way"] = "same" if round(abs(points), 1) == 0 else "up" if points > 0 else "down"
        gains = {
            "same": "the same as alone",
            "up": f"▲ {abs(points):.1f} points above alone",
            "down": f"▼ {abs(points):.1f} points below alone",
        }
        shipped["gain"] = gains[shipped["way"]]
    return found


def client_chart(verdict: Verdict, data: Table) -> Chart:
    """Return a row of marks for each client: alone, together, and the model that it keeps.

    Args:
        verdict: the verdict, with a row for each client.
        data: the table behind the picture.
    """
    rows = verdict.rows
    kinds = [kind for kind in MARKS if any(getattr(row, kind) is not None for row in rows)]
    means = ", ".join(f"{LABELS[kind]} {percent(verdict.means[kind])}" for kind in kinds)

    def draw(figure: Any) -> None:
        draw_clients(figure.subplots(), rows, kinds)

    return Chart(
        "each",
        "Accuracy of each client",
        f"Mean over {len(rows)} clients: {means}.",
        data,
        draw,
        height=1.1 + 0.27 * len(rows),
        note="On each client's own held-out samples; further to the right is better.",
    )


def draw_clients(axes: Any, rows: Sequence[DeviceFigures], kinds: Sequence[str]) -> None:
    """Draw a row of marks for each client, from top to bottom. Marks that would hide each other part."""
    found = np.array(
        [[np.nan if (value := getattr(row, kind)) is None else 100 * value for kind in kinds] for row in rows]
    )
    low, high = float(np.nanmin(found)), float(np.nanmax(found))
    margin = max(2.0, 0.06 * (high - low))
    places = np.arange(len(rows), dtype=float)
    offsets = np.array([lanes(row, CROWDED_POINTS * (high - low + 2 * margin)) for row in found])
    for y, row in zip(places, rows, strict=True):
        if row.local is not None and row.shipped is not None:
            way = PALETTE[2] if row.shipped >= row.local else PALETTE[1]
            axes.plot([100 * row.local, 100 * row.shipped], [y, y], color=way, linewidth=2.2, alpha=0.55)
    for column, kind in enumerate(kinds):
        axes.plot(
            found[:, column],
            places + 0.24 * offsets[:, column],
            MARKS[kind],
            color=COLOURS[kind],
            markerfacecolor="none" if kind == "local" else COLOURS[kind],
            label=LABELS[kind],
        )
    axes.set(
        xlabel="accuracy, per cent",
        xlim=(max(0.0, low - margin), min(100.0, high + margin) + (margin / 3 if high > 99 else 0)),
        ylim=(len(rows) - 0.4, -0.6),
    )
    axes.set_yticks(places, [shortened(row.id, 16) for row in rows])
    axes.grid(axis="y", visible=False)
    axes.legend(ncols=3, loc="lower left", bbox_to_anchor=(0, 1.0), borderaxespad=0.2, handletextpad=0.2)


def lanes(values: Sequence[float], crowded: float) -> list[float]:
    """Return how far each mark of a row leaves its middle: 0 where it stands alone."""
    lanes = [0.0] * len(values)
    order = [i for i in np.argsort(values) if np.isfinite(values[i])]
    crowds: list[list[int]] = []
    for i in order:
        if crowds and values[i] - values[crowds[-1][-1]] < crowded:
            crowds[-1].append(int(i))
        else:
            crowds.append([int(i)])
    for crowd in crowds:
        for lane, i in enumerate(sorted(crowd)):
            lanes[i] = lane - (len(crowd) - 1) / 2
    return lanes
