"""How much of each expert a client's gate takes."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgefl.errors import StateError
from edgefl.report.chart import Chart, Missing, Part, Section, table
from edgefl.report.drawing import GROUND, PALETTE, grey, shortened
from edgefl.report.folder import SIMULATION, Folder, Row, mapping_at, number
from edgefl.storage.run_directory import RunFiles

Matrix = NDArray[np.float64]
KINDS = {
    "gate": "what the gate gives each expert, mean over a client's samples: in a simulation its training, "
    "on a device its held-out ones",
    "responsibility": "q(expert given the client)",
}
WITH_OWN_EXPERT = ("aem", "pfl-mf", "pfl-mfe")
"""Algorithms whose gate has the client's own expert, the last one."""
HATCHES = ("", "///", "...", "xxx", "\\\\\\", "++", "oo", "--")


def usage(clients: Sequence[Row], kind: str = "gate") -> tuple[list[str], list[str], Matrix]:
    """Return (experts, client ids, float64[clients, experts]) of the clients that tell it.

    A share that is not told is 0.

    A simulation's keys are such as gate/local, a device's such as gate_0.
    """
    rows = {}
    for row in clients:
        told = {**row, **mapping_at(row, "diagnostics")}
        own = {
            key[len(kind) + 1 :]: number(value)
            for key, value in told.items()
            if key.startswith((f"{kind}/", f"{kind}_"))
        }
        if own and np.isfinite(list(own.values())).all():
            rows[row["id"]] = own
    experts = sorted(
        {expert for own in rows.values() for expert in own},
        key=lambda name: (not name[-1:].isdecimal(), len(name), name),
    )
    matrix = np.array([[own.get(expert, 0.0) for expert in experts] for own in rows.values()], np.float64)
    return experts, list(rows), matrix.reshape(len(rows), len(experts))


def expert_name(expert: str, experts: Sequence[str], algorithm: str) -> str:
    """Return what a simulation calls an expert that a device reports by its number alone.

    Args:
        expert: one of `experts`.
        experts: the experts of the gate, as `usage` returns them.
        algorithm: the name of the algorithm.
    """
    if not expert.isdecimal() or list(experts) != [str(index) for index in range(len(experts))]:
        return expert
    has_own = algorithm in WITH_OWN_EXPERT
    if has_own and int(expert) == len(experts) - 1:
        return "local"
    return "global" if has_own and len(experts) == 2 else f"expert{expert}"


def section(folder: Folder) -> Section:
    """Return the gates of a folder."""
    found = [
        part for part in (*(_bars(folder, kind) for kind in KINDS), by_class(folder)) if part is not None
    ]
    if not found:
        where = "" if folder.kind == SIMULATION else ", or its devices did not tell how they use them"
        found = [
            Missing(
                "Gate usage",
                f"{folder.algorithm or 'the algorithm'} has no gate over experts{where}; aem, fedmix, pfl-mf "
                "and pfl-mfe have",
            )
        ]
    return Section("gates", "Gates", tuple(found))


def _bars(folder: Folder, kind: str) -> Part | None:
    numbered, ids, found = usage(folder.clients, kind)
    if not ids:
        return None
    experts = [expert_name(expert, numbered, folder.algorithm) for expert in numbered]
    title = "Gate usage" if kind == "gate" else "Responsibilities"

    def draw(figure: Any) -> None:
        axes = figure.subplots()
        left = np.zeros(len(ids))
        places = np.arange(len(ids))
        for i, expert in enumerate(experts):
            part = 100 * found[:, i]
            name = shortened(expert)
            face = PALETTE[i % len(PALETTE)]
            if len(ids) > 40:
                axes.fill_betweenx(places, left, left + part, step="mid", color=face, label=name, linewidth=0)
            else:
                hatch = HATCHES[i % len(HATCHES)]
                axes.barh(
                    places,
                    part,
                    left=left,
                    color=face,
                    label=name,
                    hatch=hatch,
                    edgecolor=GROUND,
                    linewidth=0.4,
                )
            left = left + 100 * found[:, i]
        if len(ids) <= 30:
            axes.set_yticks(places, [shortened(each, 16) for each in ids], fontsize=7)
        axes.set(
            xlabel="per cent",
            ylabel="" if len(ids) <= 30 else "clients",
            xlim=(0, max(100.0, float(left.max()))),
            ylim=(len(ids) - 0.4, -0.6),
        )
        axes.grid(axis="y", visible=False)
        axes.legend(ncols=4, loc="lower left", bbox_to_anchor=(0, 1.0), borderaxespad=0.2, handlelength=1.2)

    means = ", ".join(f"{expert} {100 * found[:, i].mean():.1f}" for i, expert in enumerate(experts))
    rows: list[Any] = [
        (each, *(round(100 * float(v), 2) for v in row)) for each, row in zip(ids, found, strict=True)
    ]
    return Chart(
        kind,
        title,
        f"Mean over {len(ids)} clients, per cent: {means}.",
        table(("client", *experts), rows, RunFiles.summary.name),
        draw,
        height=min(2.0 + 0.16 * len(ids), 6.0),
        note=f"{KINDS[kind][0].upper()}{KINDS[kind][1:]}.",
    )


def class_weights(clients: Sequence[Row]) -> tuple[list[int], Matrix]:
    """Return (classes, mean gate weight of each expert float64[classes, experts]) over all clients' held-out
    samples.

    Empty where no client tells it. StateError when what one tells is no list of rows [class, samples,
    weights...] of one length.
    """
    told = [row for client in clients for row in _rows(client)]
    if len({len(row) for row in told}) > 1:
        raise StateError(f"{RunFiles.gates.name} holds rows of several lengths; simulate again")
    rows = np.array(told, np.float64).reshape(-1, max(map(len, told), default=2))
    classes = sorted({int(row[0]) for row in rows})
    return classes, np.array(
        [
            np.average(own[:, 2:], axis=0, weights=own[:, 1])
            for c in classes
            if len(own := rows[rows[:, 0] == c])
        ]
    )


def _rows(client: Row) -> list[list[float]]:
    told = client.get("gates")
    if told is None:
        return []
    rows = (
        [[number(value) for value in row] if isinstance(row, list) else [] for row in told]
        if isinstance(told, list)
        else [[]]
    )
    if any(len(row) < 3 or not np.isfinite(row).all() or row[1] <= 0 for row in rows):
        raise StateError(
            f"the gates of {shortened(client['id'])} are no list of [class, samples, weights]; simulate again"
        )
    return rows


def by_class(folder: Folder, name: str = "gate-class", title: str = "Gate by class") -> Chart | None:
    """Return classes by experts, white 0 and black 1; None where the folder does not tell it."""
    classes, found = class_weights(folder.clients)
    if not classes:
        return None
    experts = range(found.shape[1])
    numbers = [str(expert) for expert in experts]
    names = [expert_name(number, numbers, folder.algorithm) for number in numbers]

    def draw(figure: Any) -> None:
        axes = figure.subplots()
        image = grey(axes, found)
        axes.set(xlabel="expert", ylabel="class")
        axes.set_xticks(experts, names)
        if len(classes) <= 20:
            axes.set_yticks(range(len(classes)), classes)
        figure.colorbar(image, ax=axes, label="mean weight", fraction=0.05)

    most = int(found.mean(axis=0).argmax())
    share = 100 * found[:, most].mean()
    least = 100 * found[:, most].min()
    said = (
        f"The expert {names[most]} has {share:.1f} per cent, mean over classes, and {least:.1f} in the class "
        "where it has least."
    )
    rows: list[Any] = [
        (label, *(round(float(v), 4) for v in row)) for label, row in zip(classes, found, strict=True)
    ]
    made = table(("class", *names), rows, RunFiles.gates.name)
    return Chart(
        name,
        title,
        said,
        made,
        draw,
        2.4 + 0.4 * len(experts),
        3.2,
        note="Held-out samples of all clients. In aem and PFL-MoE the last expert is each client's own.",
    )
