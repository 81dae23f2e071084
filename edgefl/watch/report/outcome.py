"""The result of a federation: the verdict, and the models of each client side by side."""

from collections.abc import Mapping, Sequence
from typing import Any, get_args

import numpy as np

from edgefl.base.system.format import format_percent
from edgefl.base.tasks.config import CLASSIFICATION
from edgefl.base.verdict import (
    DEVICE_FIGURES,
    Comparison,
    DeviceFigures,
    FederationVerdict,
    from_dict,
    judge_federation,
)
from edgefl.watch.report.chart import Chart, Table
from edgefl.watch.report.drawing import MUTED, PALETTE, shorten_name
from edgefl.watch.report.folder import Folder, find_mapping, to_number

MAX_CLIENT_ROWS = 40
"""Maximum number of clients with a row of marks each. Larger federations get a distribution."""
HEADLINES = (
    ("local", "Alone", "each device trained by itself"),
    ("federated", "Together", "one model for all devices"),
    ("shipped", "Yours", "the model that each device keeps"),
)
MODEL_MARKERS = {"local": "s", "federated": "^", "shipped": "o"}
MODEL_LABELS = {"local": "alone", "federated": "together", "shipped": "yours"}
MODEL_COLOURS = {"local": PALETTE[1], "federated": PALETTE[3], "shipped": PALETTE[0]}
_DIRECTIONS: Mapping[Comparison, str] = {"better": "up", "as good": "same", "worse": "down", "": ""}
_COMPARISON_COLOURS: Mapping[Comparison, str] = {
    "better": PALETTE[2],
    "as good": MUTED,
    "worse": PALETTE[1],
    "": MUTED,
}
MIN_MARKER_GAP_SHARE = 0.02
"""Marks closer than this share of the axis would overlap."""


def find_verdict(folder: Folder) -> FederationVerdict | None:
    """Return the verdict on a folder's federation, or None if no client has measured its own model.

    It is the verdict that the run has stored. Runs of older versions may have none. Then the verdict is
    computed from the figures of the clients.
    """
    verdict = _read_stored_verdict(folder) or _compute_verdict(folder)
    return verdict if verdict.means["shipped"] is not None else None


def _compute_verdict(folder: Folder) -> FederationVerdict:
    classes = to_number(find_mapping(folder.config, "model").get("num_classes"))
    is_classification = find_mapping(folder.config, "task").get("kind", CLASSIFICATION) == CLASSIFICATION
    num_classes = int(classes) if np.isfinite(classes) and is_classification else 0
    select = find_mapping(folder.config, "personalization").get("select") is not False
    return judge_federation(
        folder.clients, algorithm=folder.algorithm, num_classes=num_classes, select=select
    )


def _read_stored_verdict(folder: Folder) -> FederationVerdict | None:
    """Return the verdict in the result of the folder, or None if it is missing or malformed."""
    try:
        verdict = from_dict(folder.summary["verdict"])
        shares = [item.get(name) for item in (verdict.means, verdict.worst) for name in DEVICE_FIGURES]
        shares += [getattr(row, name) for row in verdict.rows for name in DEVICE_FIGURES]
        points = verdict.gain_points
        texts = [verdict.sentence, *(text for row in verdict.rows for text in (row.id, row.kind))]
        comparisons = [verdict.overall, *(row.comparison for row in verdict.rows)]
        is_sound = (
            all(share is None or 0 <= share <= 1 for share in shares)
            and (points is None or -100 <= points <= 100)
            and all(isinstance(text, str) for text in texts)
            and all(item in get_args(Comparison) for item in comparisons)
        )
    except (KeyError, TypeError, AttributeError):
        return None
    return verdict if is_sound else None


def build_headlines(verdict: FederationVerdict) -> list[dict[str, str]]:
    """Return the three large figures of a page.

    Returns:
        A dict per figure with `name`, `figure` and `note`. The last one also has `gain`, the gain over
            training alone, and `way`: `up` or `down` for a significant difference, `same` within chance, and
            empty without a test.
    """
    cards = [
        {
            "kind": kind,
            "name": name,
            "figure": format_percent(verdict.means[kind]),
            "note": note if verdict.means[kind] is not None else "not measured",
            "gain": "",
            "way": "",
            "int8": "",
        }
        for kind, name, note in HEADLINES
    ]
    shipped = cards[-1]
    if verdict.means["int8"] is not None:
        shipped["int8"] = f"as int8: {format_percent(verdict.means['int8'])}"
    if verdict.gain_points is not None:
        shipped["gain"] = _format_gain(verdict.gain_points, verdict.overall)
        # The test counts samples, the mean counts devices: they may point in opposite directions.
        is_opposite = {"better": verdict.gain_points < 0, "worse": verdict.gain_points > 0}
        shipped["way"] = "" if is_opposite.get(verdict.overall) else _DIRECTIONS[verdict.overall]
    return cards


def _format_gain(points: float, overall: Comparison) -> str:
    if round(abs(points), 1) == 0:
        return "the same as alone"
    sign, relation = ("▲", "above") if points > 0 else ("▼", "below")
    chance = ", within chance" if overall == "as good" else ""
    return f"{sign} {abs(points):.1f} points {relation} alone{chance}"


def chart_clients(verdict: FederationVerdict, data: Table) -> Chart:
    """Return a chart with a row of marks per client: alone, together, and the model that it keeps.

    Args:
        data: the table behind the picture.
    """
    rows = verdict.rows
    kinds = [kind for kind in MODEL_MARKERS if any(getattr(row, kind) is not None for row in rows)]
    means = ", ".join(f"{MODEL_LABELS[kind]} {format_percent(verdict.means[kind])}" for kind in kinds)

    def draw(figure: Any) -> None:
        draw_clients(figure.subplots(), rows, kinds)

    return Chart(
        name="each",
        title="Accuracy of each client",
        alt=f"Mean over {len(rows)} clients: {means}.",
        table=data,
        draw=draw,
        height=1.1 + 0.27 * len(rows),
        note="On each client's own held-out samples. Further to the right is better. A line is green if the "
        "model that the client keeps is better than its model trained alone. It is red if that model is "
        "worse, and grey if the difference is within chance or was not tested.",
    )


def draw_clients(axes: Any, rows: Sequence[DeviceFigures], kinds: Sequence[str]) -> None:
    """Draw a row of marks per client, from top to bottom. Marks that would overlap move apart.

    Args:
        axes: matplotlib axes.
        rows: the figures of the clients, as shares of 1.
        kinds: the models to draw, keys of `MODEL_MARKERS`.
    """
    accuracies = np.array(
        [[np.nan if (value := getattr(row, kind)) is None else 100 * value for kind in kinds] for row in rows]
    )
    low, high = float(np.nanmin(accuracies)), float(np.nanmax(accuracies))
    margin = max(2.0, 0.06 * (high - low))
    positions = np.arange(len(rows), dtype=float)
    offsets = np.array(
        [assign_lanes(row, MIN_MARKER_GAP_SHARE * (high - low + 2 * margin)) for row in accuracies]
    )
    for y, row in zip(positions, rows, strict=True):
        if row.local is not None and row.shipped is not None:
            colour = _COMPARISON_COLOURS[row.comparison]
            axes.plot([100 * row.local, 100 * row.shipped], [y, y], color=colour, linewidth=2.2, alpha=0.55)
    for column, kind in enumerate(kinds):
        axes.plot(
            accuracies[:, column],
            positions + 0.24 * offsets[:, column],
            MODEL_MARKERS[kind],
            color=MODEL_COLOURS[kind],
            markerfacecolor="none" if kind == "local" else MODEL_COLOURS[kind],
            label=MODEL_LABELS[kind],
        )
    axes.set(
        xlabel="accuracy, per cent",
        xlim=(max(0.0, low - margin), min(100.0, high + margin) + (margin / 3 if high > 99 else 0)),
        ylim=(len(rows) - 0.4, -0.6),
    )
    axes.set_yticks(positions, [shorten_name(row.id, 16) for row in rows])
    axes.grid(axis="y", visible=False)
    axes.legend(ncols=3, loc="lower left", bbox_to_anchor=(0, 1.0), borderaxespad=0.2, handletextpad=0.2)


def assign_lanes(values: Sequence[float], min_gap: float) -> list[float]:
    """Return the vertical offset of each mark in a row, in lanes.

    A mark without close neighbours has the offset 0.

    Args:
        values: positions of the marks on the horizontal axis, NaN for a missing mark.
        min_gap: marks closer than this get different lanes.
    """
    offsets = [0.0] * len(values)
    order = [i for i in np.argsort(values) if np.isfinite(values[i])]
    crowds: list[list[int]] = []
    for i in order:
        if crowds and values[i] - values[crowds[-1][-1]] < min_gap:
            crowds[-1].append(int(i))
        else:
            crowds.append([int(i)])
    for crowd in crowds:
        for lane, i in enumerate(sorted(crowd)):
            offsets[i] = lane - (len(crowd) - 1) / 2
    return offsets
