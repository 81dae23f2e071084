"""Clusters of clients: how alike they are with the cut that parted them, and who was in which over the
rounds.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgefl.errors import StateError
from edgefl.report.chart import Chart, Missing, Part, Section, table
from edgefl.report.drawing import GROUND, INK, PALETTE, SEQUENTIAL, fixed, shortened
from edgefl.report.folder import Folder, Row, index, mapping_at, number
from edgefl.storage.run_directory import RunFiles

Matrix = NDArray[np.float64]
Labels = NDArray[np.int64]
UNKNOWN = -1
MOST_STRETCHES = 4000
COMPARING = {"clustered", "fedap"}
"""Algorithms that compare clients' models."""


@dataclass(frozen=True)
class Likeness:
    """How alike clients were when they were clustered.

    matrix: cosine similarity float64[n, n]; merges: float64[n - 1, 4] in scipy's form; cut: the height of the
    cut, in units of the merges.
    """

    round: int
    layer: str
    clients: tuple[str, ...]
    matrix: Matrix
    merges: Matrix
    cut: float


def likeness(told: Row) -> Likeness:
    """Read what clusters.json holds; StateError when its parts do not fit together."""
    try:
        clients = tuple(str(client) for client in told["clients"])
        matrix = np.array(told["matrix"], np.float64)
        merges = np.array(told["linkage"], np.float64).reshape(-1, 4)
        found = Likeness(
            int(told["round"]), str(told.get("layer", "")), clients, matrix, merges, number(told.get("cut"))
        )
        fits = matrix.shape == (len(clients), len(clients)) and len(merges) == len(clients) - 1
        joined = sorted(merges[:, :2].ravel().tolist())
        if (
            not fits
            or joined != list(range(2 * len(merges)))
            or not (np.isfinite(matrix).all() and np.isfinite(merges).all())
        ):
            raise ValueError(f"{len(clients)} clients, a matrix of {matrix.shape}, {len(merges)} merges")
    except (KeyError, TypeError, ValueError) as error:
        raise StateError(
            f"{RunFiles.clusters.name} is damaged: {error!r}; simulate again, or remove it for a report "
            "without it"
        ) from error
    return found


def leaves(merges: Matrix) -> list[int]:
    """Return the clients in the order of the dendrogram, so that no branches cross: each merge's first side
    first.
    """
    members: dict[int, list[int]] = {client: [client] for client in range(len(merges) + 1)}
    for row, (left, right) in enumerate(merges[:, :2].astype(int)):
        members[len(merges) + 1 + row] = members.pop(left) + members.pop(right)
    return next(iter(members.values()))


Bracket = tuple[float, float, float, float]


def branches(merges: Matrix) -> list[tuple[Bracket, Bracket]]:
    """Return each merge as a bracket: four places along the leaves and four heights, the foot of either side
    first and last.
    """
    places = {leaf: float(place) for place, leaf in enumerate(leaves(merges))}
    heights = dict.fromkeys(places, 0.0)
    found: list[tuple[Bracket, Bracket]] = []
    for row, (left, right, height, _) in enumerate(merges):
        a = int(left)
        b = int(right)
        found.append(
            (
                (places[a], places[a], places[b], places[b]),
                (heights[a], float(height), float(height), heights[b]),
            )
        )
        places[len(merges) + 1 + row] = (places[a] + places[b]) / 2
        heights[len(merges) + 1 + row] = float(height)
    return found


def own_cluster(told: Row) -> int:
    """Return the cluster that a client's update tells of: the model that it chose, or the expert of its
    largest share; -1 for none.
    """
    if "expert" in told:
        return index(told["expert"])
    shares = responsibilities(told)
    return max(sorted(shares), key=lambda k: shares[k]) if shares else UNKNOWN


def responsibilities(told: Row) -> dict[int, float]:
    """Return q(expert given the client) of an update, by expert; empty where it tells none."""
    found = {
        int(key[2:]): number(value)
        for key, value in told.items()
        if key.startswith("q/") and key[2:].isascii() and key[2:].isdecimal()
    }
    return {
        expert: value for expert, value in found.items() if index(expert) != UNKNOWN and np.isfinite(value)
    }


def membership(records: Sequence[Row]) -> tuple[list[int], list[str], Labels]:
    """Return (rounds, clients, cluster int64[clients, rounds]) of the rounds that tell any; -1 where a client
    was in none or told none.

    Where the server assigns clusters, they hold until it assigns others; where clients choose, only in the
    rounds of the choice.
    """
    placed: dict[str, int] = {}
    columns: dict[int, dict[str, int]] = {}
    for record in records:
        told = mapping_at(record, "measured", "clusters")
        placed = {str(client): index(cluster) for client, cluster in told.items()} if told else placed
        chosen = {
            str(client): own_cluster(own)
            for client, own in mapping_at(record, "updates").items()
            if isinstance(own, dict)
        }
        column = placed or {client: cluster for client, cluster in chosen.items() if cluster != UNKNOWN}
        if column:
            columns[record["round"]] = column
    clients = sorted({client for column in columns.values() for client in column})
    matrix = np.array(
        [[column.get(client, UNKNOWN) for column in columns.values()] for client in clients], np.int64
    )
    return list(columns), clients, matrix.reshape(len(clients), len(columns))


def section(folder: Folder) -> Section:
    """Return the clusters of a folder."""
    return Section("clusters", "Clusters", (_heat_map(folder), _membership(folder)))


def draw_matrix(
    axes: Any, matrix: Matrix, names: Sequence[str], *, low: float | None = None, high: float = 1.0
) -> Any:
    """Draw clients by clients, with their names where these are readable; returns the image, for a scale."""
    image = axes.imshow(matrix, cmap=SEQUENTIAL, vmin=low, vmax=high, aspect="equal")
    axes.grid(False)
    axes.spines[:].set_visible(False)
    shown = [shortened(name, 14) for name in names] if len(names) <= 24 else []
    axes.set_xticks(range(len(shown)), shown, rotation=90, fontsize=6.5)
    axes.set_yticks(range(len(shown)), shown, fontsize=6.5)
    axes.tick_params(length=0)
    return image


_NO_CLUSTERS = (
    f"the folder has no {RunFiles.clusters.name}: it is from before edgefl kept it, the clustering round is "
    "not over, or there are more than 100 clients; simulate again"
)


def _heat_map(folder: Folder) -> Part:
    title = "How alike clients are"
    if folder.clusters is None:
        if folder.algorithm not in COMPARING:
            return Missing(
                title,
                f"{folder.algorithm or 'this algorithm'} does not compare clients' models; clustered and "
                "fedap do",
            )
        return Missing(title, _NO_CLUSTERS)
    found = likeness(folder.clusters)
    order = leaves(found.merges)
    names = [found.clients[i] for i in order]
    matrix = found.matrix[np.ix_(order, order)]

    def draw(figure: Any) -> None:
        tree, heat = figure.subplots(2, 1, height_ratios=(1, 3.2), sharex=True)
        for places, heights in branches(found.merges):
            tree.plot(places, heights, color=INK, linewidth=1)
        if np.isfinite(found.cut):
            tree.axhline(found.cut, color=PALETTE[1], linestyle=(0, (4, 2)), linewidth=1.2)
            tree.annotate(
                f"cut at {found.cut:.3g}",
                (1, found.cut),
                xycoords=("axes fraction", "data"),
                ha="right",
                va="bottom",
                fontsize=8,
                color=PALETTE[1],
            )
        tree.set(ylabel="distance", ylim=(0, None))
        tree.tick_params(bottom=False, labelbottom=False)
        tree.grid(False)
        image = draw_matrix(heat, matrix, names)
        heat.set_aspect("auto")  # as wide as the tree, whose leaves it continues
        figure.colorbar(image, ax=(tree, heat), label="cosine similarity", fraction=0.05, pad=0.02)

    apart = matrix[np.triu_indices(len(names), 1)]
    taken = int((found.merges[:, 2] <= found.cut).sum()) if np.isfinite(found.cut) else 0
    said = (
        f"{len(names)} clients, similarities from {apart.min():.3f} to {apart.max():.3f}; "
        if len(apart)
        else "one client; "
    )
    said += (
        f"the dendrogram is cut at a distance of {found.cut:.3g}, which leaves {len(names) - taken} clusters."
    )
    rows: list[Any] = [
        (name, *(round(float(v), 3) for v in row)) for name, row in zip(names, matrix, strict=True)
    ]
    note = (
        f"Cosine similarity of {found.layer or 'the models'} in round {found.round}, in the order of the "
        "dendrogram."
    )
    return Chart(
        "likeness",
        title,
        said,
        table(("client", *names), rows, RunFiles.clusters.name),
        draw,
        height=4.6,
        note=note,
    )


def _membership(folder: Folder) -> Part:
    title = "Who was in which cluster"
    rounds, clients, found = membership(folder.records)
    if not rounds:
        last = {
            row["id"]: index(row.get("cluster"))
            for row in folder.clients
            if index(row.get("cluster")) != UNKNOWN
        }
        if not last:
            return Missing(
                title,
                f"{folder.algorithm or 'the algorithm'} has no clusters, or the folder does not tell of them "
                "by round",
            )
        rounds = [len(folder.records)]
        clients = list(last)
        found = np.array(list(last.values()), np.int64)[:, None]
    count = int(found.max()) + 1

    def draw(figure: Any) -> None:
        axes = figure.subplots()
        draw_membership(axes, rounds, clients, found)

    used = sorted({int(c) for c in found[:, -1]} - {UNKNOWN})
    sizes = ", ".join(f"{int((found[:, -1] == c).sum())} in {c}" for c in used)
    said = (
        f"{len(clients)} clients and {count} clusters over {len(rounds)} rounds; in round {rounds[-1]}: "
        f"{sizes or 'none'}."
    )
    rows: list[Any] = [
        (client, *(None if c == UNKNOWN else int(c) for c in row))
        for client, row in zip(clients, found.tolist(), strict=True)
    ]
    kept = rounds if len(rounds) <= 60 else rounds[:60]
    cut: list[Any] = [row[: len(kept) + 1] for row in rows]
    made = table(("client", *(f"round {r}" for r in kept)), cut, RunFiles.rounds.name)
    note = "" if kept is rounds else f" The table ends after 60 rounds; all are in {RunFiles.rounds.name}."
    return Chart(
        "membership",
        title,
        said,
        made,
        draw,
        height=min(2.2 + 0.12 * len(clients), 6.0),
        note="The number of the cluster, or of the expert that the client chose; blank where it took no "
        f"part.{note}",
    )


def runs_of(row: Sequence[int]) -> list[tuple[int, int, int]]:
    """Return the longest stretches of one cluster as (first place, place after the last, cluster).

    Where it is unknown there is none.
    """
    ends = [i for i in range(1, len(row) + 1) if i == len(row) or row[i] != row[i - 1]]
    return [
        (start, end, int(row[start]))
        for start, end in zip([0, *ends], ends, strict=False)
        if row[start] != UNKNOWN
    ]


def draw_membership(axes: Any, rounds: Sequence[int], clients: Sequence[str], found: Labels) -> None:
    """Draw clients by rounds, a colour a cluster, with its number where there is room."""
    from matplotlib.patches import Patch, PathPatch
    from matplotlib.path import Path

    edges = np.array([*rounds, rounds[-1] + 1], np.float64) - 0.5
    stretches = [(y, *stretch) for y, row in enumerate(found.tolist()) for stretch in runs_of(row)]
    used = sorted({cluster for *_, cluster in stretches})
    faces = {cluster: PALETTE[cluster % len(PALETTE)] for cluster in used}
    many = len(stretches) > MOST_STRETCHES
    # a picture within the picture does not follow the page's light and dark, so its legend does not either
    if many:
        faces = {cluster: fixed(face) for cluster, face in faces.items()}
    for cluster in used:
        corners = [
            Path(
                [
                    (edges[i], y - 0.5),
                    (edges[j], y - 0.5),
                    (edges[j], y + 0.5),
                    (edges[i], y + 0.5),
                    (edges[i], y - 0.5),
                ],
                closed=True,
            )
            for y, i, j, own in stretches
            if own == cluster
        ]
        axes.add_patch(
            PathPatch(
                Path.make_compound_path(*corners), facecolor=faces[cluster], linewidth=0, rasterized=many
            )
        )
    if len(stretches) <= 150 and len(clients) <= 30:
        for y, i, j, cluster in stretches:
            axes.text(
                (edges[i] + edges[j]) / 2,
                y,
                str(cluster),
                ha="center",
                va="center",
                fontsize=6.5,
                color=GROUND,
            )
    if len(clients) <= 30:
        axes.set_yticks(np.arange(len(clients)), [shortened(c, 16) for c in clients], fontsize=7)
    axes.set(
        xlabel="round",
        ylabel="" if len(clients) <= 30 else "clients",
        xlim=(edges[0], edges[-1]),
        ylim=(len(clients) - 0.5, -0.5),
    )
    axes.grid(False)
    axes.xaxis.get_major_locator().set_params(integer=True)
    if len(rounds) == 1:
        axes.set_xticks(rounds)
    handles = [Patch(facecolor=faces[cluster], label=str(cluster)) for cluster in used[:16]]
    axes.legend(
        handles=handles,
        ncols=8,
        loc="lower left",
        bbox_to_anchor=(0, 1.0),
        handlelength=1,
        columnspacing=1,
        borderaxespad=0.2,
    )
