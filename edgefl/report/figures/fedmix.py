"""Reisser et al., Federated Mixture of Experts, arXiv:2107.06724: figures 1, 7 and 14."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgefl.errors import ConfigError, StateError
from edgefl.report.chart import Chart, table
from edgefl.report.clusters import responsibilities
from edgefl.report.curves import whole
from edgefl.report.drawing import DASHES, PALETTE, grey, shortened
from edgefl.report.figures.common import options
from edgefl.report.folder import Folder, Row, index, mapping_at, number
from edgefl.report.gates import by_class
from edgefl.storage.run_directory import RunFiles

Matrix = NDArray[np.float64]
WINDOW = 10
"""Rounds that the window of figure 1 is wide; the paper does not say."""
AFTER = 10
"""The round after which figure 7 looks."""
PANELS = 6


def sliding(values: NDArray[np.float64], window: int) -> NDArray[np.float64]:
    """Return the mean of each value and the window - 1 before it, of fewer at the beginning."""
    sums = np.cumsum(np.concatenate([[0.0], values]))
    ends = np.arange(1, len(values) + 1)
    starts = np.maximum(ends - window, 0)
    return np.asarray((sums[ends] - sums[starts]) / (ends - starts))


def divergences(
    records: Sequence[Row], window: int = WINDOW
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return (rounds, sliding mean of the gradient divergence) of the rounds that tell it (equations 16, 17).

    It is summed over a model's tensors, as in the paper, and of several experts the mean, so that it compares
    with that of one model.
    """
    rows = [
        (record["round"], float(np.mean([number(value) for value in own.values()])))
        for record in records
        if (own := mapping_at(record, "measured", "divergence"))
    ]
    known = [(round, value) for round, value in rows if np.isfinite(value)]
    return np.array([r for r, _ in known], np.int64), sliding(
        np.array([v for _, v in known], np.float64), window
    )


def divergence(folders: Sequence[Folder]) -> Chart:
    """Figure 1: a line each run."""
    found = {}
    for folder in folders:
        rounds, values = divergences(folder.records)
        if not len(rounds):
            raise ConfigError(
                f"{folder.path} tells no gradient divergence: it is from before edgefl kept it; simulate "
                "again"
            )
        name = (
            "FedAvg" if folder.algorithm == "fedavg" else f"FedMix (K = {options(folder).get('num_experts')})"
        )
        found[name if name not in found else f"{name}, {folder.name}"] = (rounds, values)

    def draw(figure: Any) -> None:
        axes = figure.subplots()
        for place, (name, (x, y)) in enumerate(found.items()):
            axes.plot(
                x, y, color=PALETTE[place % len(PALETTE)], linestyle=DASHES[place % len(DASHES)], label=name
            )
        axes.set(
            xlabel="communication round",
            ylabel=f"gradient divergence, mean of {WINDOW} rounds",
            ylim=(0, None),
        )
        whole(axes)
        axes.legend()

    said = "; ".join(
        f"{name} from {y[0]:.3f} to {y[-1]:.3f} in round {x[-1]}" for name, (x, y) in found.items()
    )
    rows: list[Any] = [
        (name, int(r), round(float(v), 6))
        for name, (x, y) in found.items()
        for r, v in zip(x, y, strict=True)
    ]
    return Chart(
        "fedmix-1",
        "Gradient divergence",
        f"Gradient divergence, 0 aligned: {said}.",
        table(("run", "round", "divergence"), rows, RunFiles.rounds.name),
        draw,
        4.7,
        3.2,
    )


def truth_and_q(folder: Folder, after: int = AFTER) -> tuple[list[str], Matrix, Matrix, int]:
    """Return (clients, true groups one-hot float64[clients, groups], q(z|s) float64[clients, experts],
    round).

    q is what each client has told last until that round, or until the last one of a shorter run. Clients are
    sorted by group. ConfigError when the run has no true groups or tells no q.
    """
    groups = {row["id"]: index(row.get("truth")) for row in folder.clients if index(row.get("truth")) >= 0}
    told: dict[str, dict[int, float]] = {}
    last = 0
    for record in folder.records:
        if record["round"] <= after:
            last = record["round"]
            for client, own in mapping_at(record, "updates").items():
                q = responsibilities(own) if isinstance(own, dict) else {}
                told |= {client: q} if q else {}
    clients = sorted(groups.keys() & told.keys(), key=lambda client: (groups[client], client))
    if not clients:
        lacks = (
            "tells no q(expert given the client)"
            if groups
            else "has no true groups: simulate with the partition permutation"
        )
        raise ConfigError(f"{folder.path} {lacks}")
    experts = 1 + max(k for client in clients for k in told[client])
    shares = np.array([[told[client].get(k, 0.0) for k in range(experts)] for client in clients])
    return clients, np.eye(max(groups.values()) + 1)[[groups[client] for client in clients]], shares, last


def permutations(folders: Sequence[Folder]) -> Chart:
    """Figure 7: clients by true groups, and by experts; white 0, black 1."""
    clients, truth, q, round = truth_and_q(_only(folders, "fedmix-7"))

    def draw(figure: Any) -> None:
        grid = figure.subplots(1, 2, sharey=True)
        for axes, matrix, title, xlabel in (
            (grid[0], truth, "ground truth", "permutation"),
            (grid[1], q, f"q(z|s) after round {round}", "expert"),
        ):
            image = grey(axes, matrix)
            axes.set(title=title, xlabel=xlabel, xticks=range(matrix.shape[1]))
        grid[0].set_ylabel("client")
        if len(clients) <= 30:
            grid[0].set_yticks(
                range(len(clients)), [shortened(client, 14) for client in clients], fontsize=6.5
            )
        figure.colorbar(image, ax=grid, label="probability", fraction=0.05)

    sure = int((q.max(axis=1) > 0.9).sum())
    used = len(set(q.argmax(axis=1).tolist()))
    said = (
        f"{sure} of {len(clients)} clients give one expert more than .9; {used} experts are used for "
        f"{truth.shape[1]} permutations."
    )
    rows: list[Any] = [
        (c, int(t.argmax()), *(float(f"{v:.4f}") for v in row))
        for c, t, row in zip(clients, truth, q, strict=True)
    ]
    head = ("client", "permutation", *(f"expert {k}" for k in range(q.shape[1])))
    return Chart(
        "fedmix-7",
        "Permutations found",
        said,
        table(head, rows, RunFiles.rounds.name),
        draw,
        5.0,
        1.4 + 0.16 * len(clients),
    )


def q_by_round(records: Sequence[Row], most: int = PANELS) -> dict[int, Matrix]:
    """Return q(z|y) float64[labels, experts] by round: the first, the last, and some between, evenly on a
    logarithmic scale.
    """
    try:
        known = {
            r["round"]: np.array(r["measured"]["q"], np.float64)
            for r in records
            if "q" in mapping_at(r, "measured")
        }
        if any(
            q.ndim != 2 or not q.size or q.shape != next(iter(known.values())).shape for q in known.values()
        ):
            raise ValueError("q of several shapes")
    except (TypeError, ValueError) as error:
        raise StateError(f"{RunFiles.rounds.name} is damaged: {error!r}; simulate again") from error
    if not known:
        return {}
    rounds = np.array(sorted(known))
    wanted = np.geomspace(rounds[0], rounds[-1], min(most, len(rounds)))
    return {
        int(r): known[int(r)]
        for r in sorted({int(rounds[np.abs(rounds - each).argmin()]) for each in wanted})
    }


def specialization(folders: Sequence[Folder]) -> Chart:
    """Figure 14a: labels by experts, a panel each round; white 0, black 1.

    Of a run with objective "likelihood" figure 14b, its gate.
    """
    folder = _only(folders, "fedmix-14")
    if options(folder).get("objective") == "likelihood":
        chart = by_class(folder, "fedmix-14", "A mixture of experts without q")
        if chart is None:
            raise ConfigError(f"{folder.path} tells no gate by class: it is not done; go on with --resume")
        return chart
    found = q_by_round(folder.records)
    if not found:
        raise ConfigError(
            f"{folder.path} tells no q(expert given the label): it is from before edgefl kept it; simulate "
            "again"
        )

    def draw(figure: Any) -> None:
        grid = figure.subplots(1, len(found), sharey=True, squeeze=False)[0]
        for axes, (round, q) in zip(grid, found.items(), strict=True):
            image = grey(axes, q)
            axes.set(title=f"t = {round}", xlabel="expert", xticks=range(q.shape[1]))
        labels = next(iter(found.values())).shape[0]
        grid[0].set(ylabel="label", **({"yticks": range(labels)} if labels <= 20 else {}))
        figure.colorbar(image, ax=grid, label="q(z|y)", fraction=0.03)

    last, q = max(found.items())
    said = (
        f"In round {last} the largest q(z|y) of a label is {q.max(axis=1).mean():.2f} on average; even "
        f"shares are {1 / q.shape[1]:.2f}."
    )
    rows: list[Any] = [
        (round, label, *(float(v) for v in row))
        for round, each in found.items()
        for label, row in enumerate(each)
    ]
    head = ("round", "label", *(f"expert {k}" for k in range(q.shape[1])))
    return Chart(
        "fedmix-14",
        "Experts specialize",
        said,
        table(head, rows, RunFiles.rounds.name),
        draw,
        1.0 + 1.05 * len(found),
        3.0,
    )


def _only(folders: Sequence[Folder], name: str) -> Folder:
    if len(folders) != 1:
        raise ConfigError(f"{len(folders)} runs, {name} is of one; give one of them")
    return folders[0]
