"""Draws an audit: true and inferred class shares, with one row per scenario and one column per client.

Source: arXiv:2107.06724, figures 9 and 10.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from edgefl.watch.audit.scenarios import AuditFinding
from edgefl.watch.report.drawing import PALETTE, draw_figure, save_figure, shorten_name

MAX_PLOTTED_CLIENTS = 8


def plot_labels(findings: Sequence[AuditFinding], path: Path) -> None:
    """Draw the first eight clients into an image. The number above each plot is the distance.

    Args:
        findings: one finding per scenario.
        path: the file. Its suffix selects the format.

    Raises:
        ModuleNotFoundError: matplotlib is not installed.
    """
    clients = sorted(findings[0].clients)[:MAX_PLOTTED_CLIENTS]

    def draw(figure: Any) -> None:
        grid = figure.subplots(len(findings), len(clients), squeeze=False, sharex=True, sharey=True)
        for row, finding in zip(grid, findings, strict=True):
            for axes, client_id in zip(row, clients, strict=True):
                leak = finding.clients[client_id]
                classes = np.arange(len(leak.truth))
                axes.bar(classes - 0.2, leak.truth, 0.4, color=PALETTE[1], label="true")
                axes.bar(classes + 0.2, leak.reading.shares, 0.4, color=PALETTE[0], label="read")
                axes.set_title(f"{leak.distance:.2f}", loc="right", fontsize="x-small", pad=2)
                axes.tick_params(labelsize="x-small")
                axes.set_xticks(classes if len(classes) <= 10 else [0, len(classes) - 1])
            row[0].set_title(finding.scenario.name, loc="left", fontsize="small", pad=2)
        for axes, client_id in zip(grid[-1], clients, strict=True):
            axes.set_xlabel(shorten_name(client_id), fontsize="x-small")
        grid[0][-1].legend(loc="upper left", fontsize="xx-small", frameon=False)

    save_figure(draw_figure(draw, 1.7 * len(clients) + 0.6, 1.25 * len(findings) + 0.7), path)
