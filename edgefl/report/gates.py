"""How much of each expert a client's gate takes."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgefl.drawing import GROUND, PALETTE, printable
from edgefl.report.chart import Chart, Missing, Part, Section, table
from edgefl.report.folder import SIMULATION, Folder, Row, mapping_at, number

Matrix = NDArray[np.float64]
KINDS = {
    "gate": "what the gate gives each expert, mean over a client's samples: in a simulation its training, on a device its held-out ones",
    "responsibility": "q(expert given the client)",
}
HATCHES = ("", "///", "...", "xxx", "\\\\\\", "++", "oo", "--")


def usage(clients: Sequence[Row], kind: str = "gate") -> tuple[list[str], list[str], Matrix]:
    """Return (experts, client ids, float64[clients, experts]) of the clients that tell it; a share that is not told is 0.

    A simulation's keys are such as gate/local, a device's such as gate_0.
    """
    rows = {}
    for row in clients:
        told = {**row, **mapping_at(row, "diagnostics")}
        own = {key[len(kind) + 1 :]: number(value) for key, value in told.items() if key.startswith((f"{kind}/", f"{kind}_"))}
        if own and np.isfinite(list(own.values())).all():
            rows[row["id"]] = own
    experts = sorted({expert for own in rows.values() for expert in own}, key=lambda name: (not name[-1:].isdecimal(), len(name), name))
    matrix = np.array([[own.get(expert, 0.0) for expert in experts] for own in rows.values()], np.float64)
    return experts, list(rows), matrix.reshape(len(rows), len(experts))


def section(folder: Folder) -> Section:
    """Return the gates of a folder."""
    found = [part for kind in KINDS if (part := _bars(folder, kind)) is not None]
    if not found:
        where = "" if folder.kind == SIMULATION else ", or its devices did not tell how they use them"
        found = [
            Missing(
                "Gate usage", f"{folder.algorithm or 'the algorithm'} has no gate over experts{where}; aem, fedmix, pfl-mf and pfl-mfe have"
            )
        ]
    return Section("gates", "Gates", tuple(found))


def _bars(folder: Folder, kind: str) -> Part | None:
    experts, ids, found = usage(folder.clients, kind)
    if not ids:
        return None
    title = "Gate usage" if kind == "gate" else "Responsibilities"

    def draw(figure: Any) -> None:
        axes = figure.subplots()
        left, places = np.zeros(len(ids)), np.arange(len(ids))
        for i, expert in enumerate(experts):
            part, name, face = 100 * found[:, i], printable(expert), PALETTE[i % len(PALETTE)]
            if len(ids) > 40:
                axes.fill_betweenx(places, left, left + part, step="mid", color=face, label=name, linewidth=0)
            else:
                hatch = HATCHES[i % len(HATCHES)]
                axes.barh(places, part, left=left, color=face, label=name, hatch=hatch, edgecolor=GROUND, linewidth=0.4)
            left = left + 100 * found[:, i]
        if len(ids) <= 30:
            axes.set_yticks(places, [printable(each, 16) for each in ids], fontsize=7)
        axes.set(
            xlabel="per cent",
            ylabel="" if len(ids) <= 30 else "clients",
            xlim=(0, max(100.0, float(left.max()))),
            ylim=(len(ids) - 0.4, -0.6),
        )
        axes.grid(axis="y", visible=False)
        axes.legend(ncols=4, loc="lower left", bbox_to_anchor=(0, 1.0), borderaxespad=0.2, handlelength=1.2)

    means = ", ".join(f"{expert} {100 * found[:, i].mean():.1f}" for i, expert in enumerate(experts))
    rows: list[Any] = [(each, *(round(100 * float(v), 2) for v in row)) for each, row in zip(ids, found, strict=True)]
    return Chart(kind, title, f"Mean over {len(ids)} clients, per cent: {means}.", table(("client", *experts), rows, "summary.json"), draw,
                 height=min(2.0 + 0.16 * len(ids), 6.0), note=f"{KINDS[kind][0].upper()}{KINDS[kind][1:]}.")  # fmt: skip
