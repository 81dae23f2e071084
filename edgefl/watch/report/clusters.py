"""Charts of clusters: the similarity of clients with the cut, and the membership over the rounds."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgefl.base.errors import StateError
from edgefl.base.storage.run_directory import RunFiles
from edgefl.watch.report.chart import Chart, MissingChart, Section, SectionPart, make_table
from edgefl.watch.report.drawing import GROUND, INK, PALETTE, SEQUENTIAL, freeze_colour, shorten_name
from edgefl.watch.report.folder import Folder, JsonObject, find_mapping, to_index, to_number

Matrix = NDArray[np.float64]
ClusterLabels = NDArray[np.int64]
NO_CLUSTER = -1
MAX_VECTOR_STRETCHES = 4000
COMPARING_ALGORITHMS = {"cfl", "clustered", "fedap"}
"""Algorithms that compare clients' models."""


@dataclass(frozen=True)
class ClientSimilarity:
    """The similarity of clients in the round that clustered them.

    Attributes:
        round: the round that clustered the clients.
        layer: the layer that was compared, or empty for whole models.
        clients: ids of the clients.
        matrix: cosine similarity, shape (clients, clients), float64.
        merges: linkage in the form of scipy, shape (clients - 1, 4), float64.
        cut: height at which the linkage is cut, in units of the merges. NaN without a cut.
    """

    round: int
    layer: str
    clients: tuple[str, ...]
    matrix: Matrix
    merges: Matrix
    cut: float


def read_client_similarity(stored: JsonObject) -> ClientSimilarity:
    """Read the content of clusters.json.

    Raises:
        StateError: the parts are damaged or do not fit together.
    """
    try:
        clients = tuple(str(client) for client in stored["clients"])
        matrix = np.array(stored["matrix"], np.float64)
        merges = np.array(stored["linkage"], np.float64).reshape(-1, 4)
        similarity = ClientSimilarity(
            round=int(stored["round"]),
            layer=str(stored.get("layer", "")),
            clients=clients,
            matrix=matrix,
            merges=merges,
            cut=to_number(stored.get("cut")),
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
            f"{RunFiles.clusters.name} is damaged: {error!r}; simulate again, or remove it and make the "
            "report without it"
        ) from error
    return similarity


def order_leaves(merges: Matrix) -> list[int]:
    """Return the clients in the order of the dendrogram, so that no branches cross.

    Args:
        merges: linkage in the form of scipy, shape (clients - 1, 4), float64.
    """
    members: dict[int, list[int]] = {client: [client] for client in range(len(merges) + 1)}
    for row, (left, right) in enumerate(merges[:, :2].astype(int)):
        members[len(merges) + 1 + row] = members.pop(left) + members.pop(right)
    return next(iter(members.values()))


Bracket = tuple[float, float, float, float]


def build_dendrogram(merges: Matrix) -> list[tuple[Bracket, Bracket]]:
    """Return a bracket for each merge: four positions along the leaves, and four heights.

    The feet of the bracket are its first and last points.

    Args:
        merges: linkage in the form of scipy, shape (clients - 1, 4), float64.
    """
    positions = {leaf: float(position) for position, leaf in enumerate(order_leaves(merges))}
    heights = dict.fromkeys(positions, 0.0)
    brackets: list[tuple[Bracket, Bracket]] = []
    for row, (left, right, height, _) in enumerate(merges):
        a = int(left)
        b = int(right)
        brackets.append(
            (
                (positions[a], positions[a], positions[b], positions[b]),
                (heights[a], float(height), float(height), heights[b]),
            )
        )
        positions[len(merges) + 1 + row] = (positions[a] + positions[b]) / 2
        heights[len(merges) + 1 + row] = float(height)
    return brackets


def read_chosen_cluster(update: JsonObject) -> int:
    """Return the cluster of a client from its update, or -1.

    It is the model that the client chose, or the expert with the largest responsibility.
    """
    if "expert" in update:
        return to_index(update["expert"])
    shares = read_responsibilities(update)
    return max(sorted(shares), key=lambda k: shares[k]) if shares else NO_CLUSTER


def read_responsibilities(update: JsonObject) -> dict[int, float]:
    """Return q(expert given the client) of an update by expert. Empty if the update has none."""
    shares = {
        int(key[2:]): to_number(value)
        for key, value in update.items()
        if key.startswith("q/") and key[2:].isascii() and key[2:].isdecimal()
    }
    return {
        expert: value
        for expert, value in shares.items()
        if to_index(expert) != NO_CLUSTER and np.isfinite(value)
    }


def read_membership(records: Sequence[JsonObject]) -> tuple[list[int], list[str], ClusterLabels]:
    """Return the cluster of each client in each round.

    Clusters that a server assigns hold until the next assignment. Clusters that clients choose hold only in
    the round of the choice.

    Args:
        records: one record per round.

    Returns:
        The rounds with clusters, the client ids, and the clusters, shape (clients, rounds), int64. The
            cluster is -1 where it is unknown.
    """
    assignment: dict[str, int] = {}
    columns: dict[int, dict[str, int]] = {}
    for record in records:
        assigned = find_mapping(record, "measured", "clusters")
        assignment = (
            {str(client): to_index(cluster) for client, cluster in assigned.items()}
            if assigned
            else assignment
        )
        chosen = {
            str(client): read_chosen_cluster(update)
            for client, update in find_mapping(record, "updates").items()
            if isinstance(update, dict)
        }
        column = assignment or {
            client: cluster for client, cluster in chosen.items() if cluster != NO_CLUSTER
        }
        if column:
            columns[record["round"]] = column
    clients = sorted({client for column in columns.values() for client in column})
    matrix = np.array(
        [[column.get(client, NO_CLUSTER) for column in columns.values()] for client in clients], np.int64
    )
    return list(columns), clients, matrix.reshape(len(clients), len(columns))


def build_section(folder: Folder) -> Section:
    """Return the section on clusters."""
    return Section("clusters", "Clusters", (_chart_similarity(folder), _chart_membership(folder)))


def draw_matrix(
    axes: Any, matrix: Matrix, names: Sequence[str], *, low: float | None = None, high: float = 1.0
) -> Any:
    """Draw a matrix of clients by clients, and return the image for a colour scale.

    Names appear for at most 24 clients.

    Args:
        axes: matplotlib axes.
        matrix: shape (clients, clients), float64.
        low: value of the darkest colour, or None for the smallest value.
        high: value of the brightest colour.
    """
    image = axes.imshow(matrix, cmap=SEQUENTIAL, vmin=low, vmax=high, aspect="equal")
    axes.grid(False)
    axes.spines[:].set_visible(False)
    shown = [shorten_name(name, 14) for name in names] if len(names) <= 24 else []
    axes.set_xticks(range(len(shown)), shown, rotation=90, fontsize=6.5)
    axes.set_yticks(range(len(shown)), shown, fontsize=6.5)
    axes.tick_params(length=0)
    return image


_NO_CLUSTERS = (
    f"the folder has no {RunFiles.clusters.name}: it is from an older version of edgefl, the clustering "
    "round is not finished, or there are more than 100 clients. Simulate again to get it"
)


def _chart_similarity(folder: Folder) -> SectionPart:
    title = "Similarity of clients"
    if folder.clusters is None:
        if folder.algorithm not in COMPARING_ALGORITHMS:
            return MissingChart(
                title,
                f"{folder.algorithm or 'this algorithm'} does not compare clients' models; cfl, clustered "
                "and fedap do",
            )
        return MissingChart(title, _NO_CLUSTERS)
    similarity = read_client_similarity(folder.clusters)
    order = order_leaves(similarity.merges)
    names = [similarity.clients[i] for i in order]
    matrix = similarity.matrix[np.ix_(order, order)]

    def draw(figure: Any) -> None:
        tree, heat = figure.subplots(2, 1, height_ratios=(1, 3.2), sharex=True)
        for positions, heights in build_dendrogram(similarity.merges):
            tree.plot(positions, heights, color=INK, linewidth=1)
        if np.isfinite(similarity.cut):
            tree.axhline(similarity.cut, color=PALETTE[1], linestyle=(0, (4, 2)), linewidth=1.2)
            tree.annotate(
                f"cut at {similarity.cut:.3g}",
                (1, similarity.cut),
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
        heat.set_aspect("auto")  # columns line up with the leaves of the tree above
        figure.colorbar(image, ax=(tree, heat), label="cosine similarity", fraction=0.05, pad=0.02)

    off_diagonal = matrix[np.triu_indices(len(names), 1)]
    num_merges = int((similarity.merges[:, 2] <= similarity.cut).sum()) if np.isfinite(similarity.cut) else 0
    alt = (
        f"{len(names)} clients, with similarities from {off_diagonal.min():.3f} to {off_diagonal.max():.3f}. "
        if len(off_diagonal)
        else "One client. "
    )
    alt += (
        f"The dendrogram is cut at a distance of {similarity.cut:.3g}, which leaves "
        f"{len(names) - num_merges} clusters."
    )
    rows: list[Any] = [
        (name, *(round(float(v), 3) for v in row)) for name, row in zip(names, matrix, strict=True)
    ]
    note = (
        f"Cosine similarity of {similarity.layer or 'the models'} in round {similarity.round}, in the "
        "order of the dendrogram."
    )
    return Chart(
        name="likeness",
        title=title,
        alt=alt,
        table=make_table(("client", *names), rows, RunFiles.clusters.name),
        draw=draw,
        height=4.6,
        note=note,
    )


def _chart_membership(folder: Folder) -> SectionPart:
    title = "Cluster membership"
    rounds, clients, clusters = read_membership(folder.records)
    if not rounds:
        last = {
            row["id"]: to_index(row.get("cluster"))
            for row in folder.clients
            if to_index(row.get("cluster")) != NO_CLUSTER
        }
        if not last:
            return MissingChart(
                title,
                f"{folder.algorithm or 'the algorithm'} has no clusters, or the folder does not record them "
                "by round",
            )
        rounds = [len(folder.records)]
        clients = list(last)
        clusters = np.array(list(last.values()), np.int64)[:, None]
    count = int(clusters.max()) + 1

    def draw(figure: Any) -> None:
        axes = figure.subplots()
        draw_membership(axes, rounds, clients, clusters)

    used = sorted({int(c) for c in clusters[:, -1]} - {NO_CLUSTER})
    sizes = ", ".join(f"{int((clusters[:, -1] == c).sum())} in {c}" for c in used)
    alt = (
        f"{len(clients)} clients and {count} clusters over {len(rounds)} rounds. In round {rounds[-1]}: "
        f"{sizes or 'none'}."
    )
    rows: list[Any] = [
        (client, *(None if c == NO_CLUSTER else int(c) for c in row))
        for client, row in zip(clients, clusters.tolist(), strict=True)
    ]
    shown_rounds = rounds if len(rounds) <= 60 else rounds[:60]
    shown_rows: list[Any] = [row[: len(shown_rounds) + 1] for row in rows]
    data = make_table(("client", *(f"round {r}" for r in shown_rounds)), shown_rows, RunFiles.rounds.name)
    note = (
        ""
        if shown_rounds is rounds
        else f" The table ends after 60 rounds. All rounds are in {RunFiles.rounds.name}."
    )
    return Chart(
        name="membership",
        title=title,
        alt=alt,
        table=data,
        draw=draw,
        height=min(2.2 + 0.12 * len(clients), 6.0),
        note="Number of the cluster, or of the expert that the client chose. Blank if the client did not "
        f"take part.{note}",
    )


def find_stretches(row: Sequence[int]) -> list[tuple[int, int, int]]:
    """Return the runs of equal clusters in a row as (first index, index after the last, cluster).

    Runs of unknown clusters are left out.
    """
    ends = [i for i in range(1, len(row) + 1) if i == len(row) or row[i] != row[i - 1]]
    return [
        (start, end, int(row[start]))
        for start, end in zip([0, *ends], ends, strict=False)
        if row[start] != NO_CLUSTER
    ]


def draw_membership(
    axes: Any, rounds: Sequence[int], clients: Sequence[str], clusters: ClusterLabels
) -> None:
    """Draw clients by rounds with a colour per cluster, and with its number if there is space.

    Args:
        axes: matplotlib axes.
        clients: the client ids.
        clusters: shape (clients, rounds), int64, with -1 for unknown.
    """
    from matplotlib.patches import Patch, PathPatch
    from matplotlib.path import Path

    edges = np.array([*rounds, rounds[-1] + 1], np.float64) - 0.5
    stretches = [(y, *stretch) for y, row in enumerate(clusters.tolist()) for stretch in find_stretches(row)]
    used = sorted({cluster for *_, cluster in stretches})
    faces = {cluster: PALETTE[cluster % len(PALETTE)] for cluster in used}
    many = len(stretches) > MAX_VECTOR_STRETCHES
    # A rasterized part does not follow the theme of the page, so its legend must not follow it either.
    if many:
        faces = {cluster: freeze_colour(face) for cluster, face in faces.items()}
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
            for y, i, j, stretch_cluster in stretches
            if stretch_cluster == cluster
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
        axes.set_yticks(np.arange(len(clients)), [shorten_name(c, 16) for c in clients], fontsize=7)
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
