"""Figures 1, 7 and 14 of the paper on federated mixtures of experts.

Source: Reisser et al., Federated Mixture of Experts, arXiv:2107.06724.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgefl.base.errors import ConfigError, StateError
from edgefl.base.storage.run_directory import RunFiles
from edgefl.lab.figures.common import read_options
from edgefl.watch.report.chart import Chart, make_table
from edgefl.watch.report.clusters import read_responsibilities
from edgefl.watch.report.curves import set_integer_ticks
from edgefl.watch.report.drawing import DASHES, PALETTE, draw_grey_matrix, shorten_name
from edgefl.watch.report.folder import Folder, JsonObject, find_mapping, to_index, to_number
from edgefl.watch.report.gates import chart_gate_by_class

Matrix = NDArray[np.float64]
WINDOW_ROUNDS = 10
"""Width of the window in figure 1, in rounds. The paper does not give it."""
PERMUTATION_ROUND = 10
"""Figure 7 shows the state after this round."""
MAX_PANELS = 6


def smooth_values(values: NDArray[np.float64], window: int) -> NDArray[np.float64]:
    """Return the mean of each value and the `window` - 1 values before it, or of fewer at the start.

    Args:
        values: shape (n,), float64.
        window: width of the window.

    Returns:
        Means, shape (n,), float64.
    """
    sums = np.cumsum(np.concatenate([[0.0], values]))
    ends = np.arange(1, len(values) + 1)
    starts = np.maximum(ends - window, 0)
    return np.asarray((sums[ends] - sums[starts]) / (ends - starts))


def read_divergences(
    records: Sequence[JsonObject], window: int = WINDOW_ROUNDS
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return the sliding mean of the gradient divergence.

    The divergence is summed over the tensors of a model, as in the paper. With several experts it is the mean
    over experts, which makes it comparable with one model. Rounds without a divergence are left out.

    Args:
        records: one record per round.
        window: width of the window, in rounds.

    Returns:
        Rounds, shape (n,), int64, and sliding means, shape (n,), float64.

    Source: equations 16 and 17.
    """
    rows = [
        (record["round"], float(np.mean([to_number(value) for value in by_expert.values()])))
        for record in records
        if (by_expert := find_mapping(record, "measured", "divergence"))
    ]
    finite_rows = [(round, value) for round, value in rows if np.isfinite(value)]
    return np.array([r for r, _ in finite_rows], np.int64), smooth_values(
        np.array([v for _, v in finite_rows], np.float64), window
    )


def chart_divergence(folders: Sequence[Folder]) -> Chart:
    """Return figure 1: gradient divergence over rounds, with a line per run.

    Raises:
        ConfigError: a run has no gradient divergence.
    """
    curves = {}
    for folder in folders:
        rounds, values = read_divergences(folder.records)
        if not len(rounds):
            raise ConfigError(
                f"{folder.path} has no gradient divergence, because it is from an older version of edgefl; "
                "simulate again"
            )
        name = (
            "FedAvg"
            if folder.algorithm == "fedavg"
            else f"FedMix (K = {read_options(folder).get('num_experts')})"
        )
        curves[name if name not in curves else f"{name}, {folder.name}"] = (rounds, values)

    def draw(figure: Any) -> None:
        axes = figure.subplots()
        for position, (name, (x, y)) in enumerate(curves.items()):
            axes.plot(
                x,
                y,
                color=PALETTE[position % len(PALETTE)],
                linestyle=DASHES[position % len(DASHES)],
                label=name,
            )
        axes.set(
            xlabel="communication round",
            ylabel=f"gradient divergence, mean of {WINDOW_ROUNDS} rounds",
            ylim=(0, None),
        )
        set_integer_ticks(axes)
        axes.legend()

    alt = "; ".join(
        f"{name} goes from {y[0]:.3f} to {y[-1]:.3f} in round {x[-1]}" for name, (x, y) in curves.items()
    )
    rows: list[Any] = [
        (name, int(r), round(float(v), 6))
        for name, (x, y) in curves.items()
        for r, v in zip(x, y, strict=True)
    ]
    return Chart(
        name="fedmix-1",
        title="Gradient divergence",
        alt=f"Gradient divergence, where 0 means aligned: {alt}.",
        table=make_table(("run", "round", "divergence"), rows, RunFiles.rounds.name),
        draw=draw,
        width=4.7,
        height=3.2,
    )


def read_truth_and_q(
    folder: Folder, until_round: int = PERMUTATION_ROUND
) -> tuple[list[str], Matrix, Matrix, int]:
    """Return the true groups of clients and their q(z|s), sorted by group.

    q is the last value that each client reported up to `until_round`.

    Args:
        until_round: the last round to read.

    Returns:
        The client ids, the true groups one-hot, shape (clients, groups), float64, q(z|s), shape (clients,
            experts), float64, and the last round read.

    Raises:
        ConfigError: the run has no true groups or no q.
    """
    groups = {
        row["id"]: to_index(row.get("truth")) for row in folder.clients if to_index(row.get("truth")) >= 0
    }
    q_by_client: dict[str, dict[int, float]] = {}
    last = 0
    for record in folder.records:
        if record["round"] <= until_round:
            last = record["round"]
            for client, update in find_mapping(record, "updates").items():
                q = read_responsibilities(update) if isinstance(update, dict) else {}
                q_by_client |= {client: q} if q else {}
    clients = sorted(groups.keys() & q_by_client.keys(), key=lambda client: (groups[client], client))
    if not clients:
        lacks = (
            "has no q(expert given the client)"
            if groups
            else "has no true groups; simulate with the partition permutation"
        )
        raise ConfigError(f"{folder.path} {lacks}")
    experts = 1 + max(k for client in clients for k in q_by_client[client])
    shares = np.array([[q_by_client[client].get(k, 0.0) for k in range(experts)] for client in clients])
    return clients, np.eye(max(groups.values()) + 1)[[groups[client] for client in clients]], shares, last


def chart_permutations(folders: Sequence[Folder]) -> Chart:
    """Return figure 7: clients by true groups, and clients by experts. White is 0, black is 1.

    Raises:
        ConfigError: there is not exactly one run, or the run has no true groups or no q.
    """
    clients, truth, q, round = read_truth_and_q(_require_single(folders, "fedmix-7"))

    def draw(figure: Any) -> None:
        grid = figure.subplots(1, 2, sharey=True)
        for axes, matrix, title, xlabel in (
            (grid[0], truth, "ground truth", "permutation"),
            (grid[1], q, f"q(z|s) after round {round}", "expert"),
        ):
            image = draw_grey_matrix(axes, matrix)
            axes.set(title=title, xlabel=xlabel, xticks=range(matrix.shape[1]))
        grid[0].set_ylabel("client")
        if len(clients) <= 30:
            grid[0].set_yticks(
                range(len(clients)), [shorten_name(client, 14) for client in clients], fontsize=6.5
            )
        figure.colorbar(image, ax=grid, label="probability", fraction=0.05)

    sure = int((q.max(axis=1) > 0.9).sum())
    used = len(set(q.argmax(axis=1).tolist()))
    alt = (
        f"{sure} of {len(clients)} clients give one expert more than .9. {used} experts are used for "
        f"{truth.shape[1]} permutations."
    )
    rows: list[Any] = [
        (c, int(t.argmax()), *(float(f"{v:.4f}") for v in row))
        for c, t, row in zip(clients, truth, q, strict=True)
    ]
    head = ("client", "permutation", *(f"expert {k}" for k in range(q.shape[1])))
    return Chart(
        name="fedmix-7",
        title="Permutations found",
        alt=alt,
        table=make_table(head, rows, RunFiles.rounds.name),
        draw=draw,
        width=5.0,
        height=1.4 + 0.16 * len(clients),
    )


def read_q_by_round(records: Sequence[JsonObject], max_rounds: int = MAX_PANELS) -> dict[int, Matrix]:
    """Return q(z|y) of some rounds, shape (labels, experts), float64.

    They include the first and the last round. The rounds between them are evenly spaced on a logarithmic
    scale.

    Args:
        records: one record per round.
        max_rounds: maximum number of rounds to return.

    Raises:
        StateError: the records are damaged.
    """
    try:
        matrices = {
            r["round"]: np.array(r["measured"]["q"], np.float64)
            for r in records
            if "q" in find_mapping(r, "measured")
        }
        if any(
            q.ndim != 2 or not q.size or q.shape != next(iter(matrices.values())).shape
            for q in matrices.values()
        ):
            raise ValueError("q of several shapes")
    except (TypeError, ValueError) as error:
        raise StateError(f"{RunFiles.rounds.name} is damaged: {error!r}; simulate again") from error
    if not matrices:
        return {}
    rounds = np.array(sorted(matrices))
    targets = np.geomspace(rounds[0], rounds[-1], min(max_rounds, len(rounds)))
    return {
        int(r): matrices[int(r)]
        for r in sorted({int(rounds[np.abs(rounds - target).argmin()]) for target in targets})
    }


def chart_specialization(folders: Sequence[Folder]) -> Chart:
    """Return figure 14a: labels by experts, with a panel per round. White is 0, black is 1.

    A run with the objective "likelihood" gives figure 14b, the gate by class.

    Raises:
        ConfigError: there is not exactly one run, or the run lacks the data.
        StateError: the records of the run are damaged.
    """
    folder = _require_single(folders, "fedmix-14")
    if read_options(folder).get("objective") == "likelihood":
        chart = chart_gate_by_class(folder, "fedmix-14", "A mixture of experts without q")
        if chart is None:
            raise ConfigError(
                f"{folder.path} has no gate by class, because it is unfinished; continue it with --resume"
            )
        return chart
    matrices = read_q_by_round(folder.records)
    if not matrices:
        raise ConfigError(
            f"{folder.path} has no q(expert given the label), because it is from an older version of edgefl; "
            "simulate again"
        )

    def draw(figure: Any) -> None:
        grid = figure.subplots(1, len(matrices), sharey=True, squeeze=False)[0]
        for axes, (round, q) in zip(grid, matrices.items(), strict=True):
            image = draw_grey_matrix(axes, q)
            axes.set(title=f"t = {round}", xlabel="expert", xticks=range(q.shape[1]))
        labels = next(iter(matrices.values())).shape[0]
        grid[0].set(ylabel="label", **({"yticks": range(labels)} if labels <= 20 else {}))
        figure.colorbar(image, ax=grid, label="q(z|y)", fraction=0.03)

    last, q = max(matrices.items())
    alt = (
        f"In round {last} the largest q(z|y) of a label is {q.max(axis=1).mean():.2f} on average. Equal "
        f"shares would be {1 / q.shape[1]:.2f}."
    )
    rows: list[Any] = [
        (round, label, *(float(v) for v in row))
        for round, matrix in matrices.items()
        for label, row in enumerate(matrix)
    ]
    head = ("round", "label", *(f"expert {k}" for k in range(q.shape[1])))
    return Chart(
        name="fedmix-14",
        title="Experts specialize",
        alt=alt,
        table=make_table(head, rows, RunFiles.rounds.name),
        draw=draw,
        width=1.0 + 1.05 * len(matrices),
        height=3.0,
    )


def _require_single(folders: Sequence[Folder], name: str) -> Folder:
    if len(folders) != 1:
        raise ConfigError(f"{len(folders)} runs, but {name} needs exactly one; give one of them")
    return folders[0]
