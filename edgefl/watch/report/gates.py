"""Charts of the weights that clients' gates give their experts."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgefl.base.errors import StateError
from edgefl.base.storage.run_directory import RunFiles
from edgefl.watch.report.chart import Chart, MissingChart, Section, SectionPart, make_table
from edgefl.watch.report.drawing import GROUND, PALETTE, draw_grey_matrix, shorten_name
from edgefl.watch.report.folder import SIMULATION_FOLDER, Folder, JsonObject, find_mapping, to_number

Matrix = NDArray[np.float64]
USAGE_KINDS = {
    "gate": "mean gate weight of each expert over a client's samples: training samples in a simulation, "
    "held-out samples on a device",
    "responsibility": "q(expert given the client)",
}
LOCAL_EXPERT_ALGORITHMS = ("aem", "pfl-mf", "pfl-mfe")
"""Algorithms with a local expert of the client, which is the last one of the gate."""
HATCHES = ("", "///", "...", "xxx", "\\\\\\", "++", "oo", "--")


def read_usage(clients: Sequence[JsonObject], kind: str = "gate") -> tuple[list[str], list[str], Matrix]:
    """Return the gate weights of the clients that report them.

    Args:
        clients: one row per client. A simulation has keys such as gate/local, a device such as gate_0.
        kind: `gate` or `responsibility`.

    Returns:
        The experts, the client ids, and the weights, shape (clients, experts), float64. A missing weight is
            0.
    """
    rows = {}
    for row in clients:
        figures = {**row, **find_mapping(row, "diagnostics")}
        shares = {
            key[len(kind) + 1 :]: to_number(value)
            for key, value in figures.items()
            if key.startswith((f"{kind}/", f"{kind}_"))
        }
        if shares and np.isfinite(list(shares.values())).all():
            rows[row["id"]] = shares
    experts = sorted(
        {expert for shares in rows.values() for expert in shares},
        key=lambda name: (not name[-1:].isdecimal(), len(name), name),
    )
    matrix = np.array(
        [[shares.get(expert, 0.0) for expert in experts] for shares in rows.values()], np.float64
    )
    return experts, list(rows), matrix.reshape(len(rows), len(experts))


def label_expert(expert: str, experts: Sequence[str], algorithm: str) -> str:
    """Return the simulation's name of an expert that a device reports only by its number.

    Args:
        expert: one of `experts`.
        experts: the experts of the gate, as `read_usage` returns them.
    """
    if not expert.isdecimal() or list(experts) != [str(index) for index in range(len(experts))]:
        return expert
    has_local_expert = algorithm in LOCAL_EXPERT_ALGORITHMS
    if has_local_expert and int(expert) == len(experts) - 1:
        return "local"
    return "global" if has_local_expert and len(experts) == 2 else f"expert{expert}"


def build_section(folder: Folder) -> Section:
    """Return the section on gates."""
    parts = [
        part
        for part in (*(_chart_usage(folder, kind) for kind in USAGE_KINDS), chart_gate_by_class(folder))
        if part is not None
    ]
    if not parts:
        where = (
            "" if folder.kind == SIMULATION_FOLDER else ", or its devices did not report how they use them"
        )
        parts = [
            MissingChart(
                "Gate usage",
                f"{folder.algorithm or 'the algorithm'} has no gate over experts{where}. The algorithms aem, "
                "fedmix, pfl-mf and pfl-mfe have one",
            )
        ]
    return Section("gates", "Gates", tuple(parts))


def _chart_usage(folder: Folder, kind: str) -> SectionPart | None:
    numbered, ids, weights = read_usage(folder.clients, kind)
    if not ids:
        return None
    experts = [label_expert(expert, numbered, folder.algorithm) for expert in numbered]
    title = "Gate usage" if kind == "gate" else "Responsibilities"

    def draw(figure: Any) -> None:
        axes = figure.subplots()
        left = np.zeros(len(ids))
        positions = np.arange(len(ids))
        for i, expert in enumerate(experts):
            part = 100 * weights[:, i]
            name = shorten_name(expert)
            face = PALETTE[i % len(PALETTE)]
            if len(ids) > 40:
                axes.fill_betweenx(
                    positions, left, left + part, step="mid", color=face, label=name, linewidth=0
                )
            else:
                hatch = HATCHES[i % len(HATCHES)]
                axes.barh(
                    positions,
                    part,
                    left=left,
                    color=face,
                    label=name,
                    hatch=hatch,
                    edgecolor=GROUND,
                    linewidth=0.4,
                )
            left = left + 100 * weights[:, i]
        if len(ids) <= 30:
            axes.set_yticks(positions, [shorten_name(client, 16) for client in ids], fontsize=7)
        axes.set(
            xlabel="per cent",
            ylabel="" if len(ids) <= 30 else "clients",
            xlim=(0, max(100.0, float(left.max()))),
            ylim=(len(ids) - 0.4, -0.6),
        )
        axes.grid(axis="y", visible=False)
        axes.legend(ncols=4, loc="lower left", bbox_to_anchor=(0, 1.0), borderaxespad=0.2, handlelength=1.2)

    means = ", ".join(f"{expert} {100 * weights[:, i].mean():.1f}" for i, expert in enumerate(experts))
    rows: list[Any] = [
        (client, *(round(100 * float(v), 2) for v in row)) for client, row in zip(ids, weights, strict=True)
    ]
    return Chart(
        name=kind,
        title=title,
        alt=f"Mean over {len(ids)} clients, per cent: {means}.",
        table=make_table(("client", *experts), rows, RunFiles.summary.name),
        draw=draw,
        height=min(2.0 + 0.16 * len(ids), 6.0),
        note=f"{USAGE_KINDS[kind][0].upper()}{USAGE_KINDS[kind][1:]}.",
    )


def average_class_weights(clients: Sequence[JsonObject]) -> tuple[list[int], Matrix]:
    """Return the mean gate weights by class, over the held-out samples of all clients.

    Returns:
        The classes, and the weights, shape (classes, experts), float64. Both are empty if no client reports
            them.

    Raises:
        StateError: the rows of a client do not have the form [class, samples, weights...], or differ in
            length.
    """
    all_rows = [row for client in clients for row in _read_rows(client)]
    if len({len(row) for row in all_rows}) > 1:
        raise StateError(f"{RunFiles.gates.name} has rows of several lengths; simulate again")
    rows = np.array(all_rows, np.float64).reshape(-1, max(map(len, all_rows), default=2))
    classes = sorted({int(row[0]) for row in rows})
    return classes, np.array(
        [
            np.average(class_rows[:, 2:], axis=0, weights=class_rows[:, 1])
            for c in classes
            if len(class_rows := rows[rows[:, 0] == c])
        ]
    )


def _read_rows(client: JsonObject) -> list[list[float]]:
    stored = client.get("gates")
    if stored is None:
        return []
    rows = (
        [[to_number(value) for value in row] if isinstance(row, list) else [] for row in stored]
        if isinstance(stored, list)
        else [[]]
    )
    if any(len(row) < 3 or not np.isfinite(row).all() or row[1] <= 0 for row in rows):
        raise StateError(
            f"the gates of {shorten_name(client['id'])} are not a list of [class, samples, weights]; "
            "simulate again"
        )
    return rows


def chart_gate_by_class(
    folder: Folder, name: str = "gate-class", title: str = "Gate by class"
) -> Chart | None:
    """Return a chart of classes by experts, or None if the folder has no gates by class.

    Args:
        folder: the folder of a run.
        title: its heading.
    """
    classes, weights = average_class_weights(folder.clients)
    if not classes:
        return None
    experts = range(weights.shape[1])
    numbers = [str(expert) for expert in experts]
    names = [label_expert(number, numbers, folder.algorithm) for number in numbers]

    def draw(figure: Any) -> None:
        axes = figure.subplots()
        image = draw_grey_matrix(axes, weights)
        axes.set(xlabel="expert", ylabel="class")
        axes.set_xticks(experts, names)
        if len(classes) <= 20:
            axes.set_yticks(range(len(classes)), classes)
        figure.colorbar(image, ax=axes, label="mean weight", fraction=0.05)

    top_expert = int(weights.mean(axis=0).argmax())
    share = 100 * weights[:, top_expert].mean()
    lowest = 100 * weights[:, top_expert].min()
    alt = (
        f"The expert {names[top_expert]} has a mean weight of {share:.1f} per cent over the classes, and "
        f"{lowest:.1f} per cent in its lowest class."
    )
    rows: list[Any] = [
        (label, *(round(float(v), 4) for v in row)) for label, row in zip(classes, weights, strict=True)
    ]
    data = make_table(("class", *names), rows, RunFiles.gates.name)
    return Chart(
        name=name,
        title=title,
        alt=alt,
        table=data,
        draw=draw,
        width=2.4 + 0.4 * len(experts),
        height=3.2,
        note="Held-out samples of all clients. In aem and PFL-MoE the last expert is local to each client.",
    )
