"""Curves over rounds: loss, accuracy over clients, bytes, and accuracy against bytes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgefl.report.chart import Chart, Missing, Part, Section, table
from edgefl.report.drawing import DASHES, PALETTE, colour
from edgefl.report.folder import SIMULATION, Folder, Row, mapping_at, number
from edgefl.storage.aggregator_directory import AggregatorFiles
from edgefl.storage.run_directory import RunFiles

Rounds = NDArray[np.int64]
Vector = NDArray[np.float64]
_TOGETHER = "All clients together; MB are 1,000,000 bytes."
_PUBLISHED = (
    "What devices and what the aggregator have published; a model that the broker retains goes out once for "
    "all. MB are 1,000,000 bytes."
)
UNREPORTED = (
    "no client reported an accuracy in a round: `evaluate = false` in [federation], secure aggregation and "
    "[privacy] turn that off. A simulation with --evaluate-every 1 measures every client after each round"
)


@dataclass(frozen=True)
class Band:
    """Accuracy over clients by round: rounds int64[n], the others float64[n]."""

    rounds: Rounds
    mean: Vector
    p10: Vector
    p90: Vector


def losses(records: Sequence[Row]) -> tuple[Rounds, Vector]:
    """Return (rounds int64[n], training loss float64[n]) of the rounds that tell one."""
    told = [(record["round"], number(record.get("loss"))) for record in records]
    known = [(round, loss) for round, loss in told if np.isfinite(loss)]
    return np.array([round for round, _ in known], np.int64), np.array([loss for _, loss in known])


def client_values(record: Row, key: str) -> dict[str, float]:
    """Return what each client measured after a round, by id: what was recorded of it and is a number."""
    found = {
        client: number(mapping_at(record, "measured", "clients", client).get(key))
        for client in mapping_at(record, "measured", "clients")
    }
    return {client: value for client, value in found.items() if np.isfinite(value)}


def accuracies(records: Sequence[Row], key: str = "accuracy_mixture") -> Band:
    """Return mean, 10th and 90th percentile over clients of each round after which a simulation measured
    them.
    """
    rows = []
    for record in records:
        own = list(client_values(record, key).values())
        if own:
            rows.append((record["round"], float(np.mean(own)), *np.percentile(own, (10, 90)).tolist()))
    return _band(rows)


def reported_accuracies(records: Sequence[Row]) -> Band:
    """Return mean, 10th and 90th percentile over clients of each round in which clients reported an
    accuracy.
    """
    rows = [
        (record["round"], *(number(record.get(f"accuracy_{part}")) for part in ("mean", "p10", "p90")))
        for record in records
    ]
    return _band([row for row in rows if np.isfinite(row).all()])


def _band(rows: Sequence[tuple[float, ...]]) -> Band:
    columns = np.array(rows, np.float64).reshape(-1, 4).T
    return Band(columns[0].astype(np.int64), *columns[1:])


def model_lines(records: Sequence[Row], key: str = "accuracy") -> dict[str, tuple[Rounds, Vector]]:
    """Return (rounds, figure on the common test set) of each whole model that the server held, by name."""
    found: dict[str, list[tuple[int, float]]] = {}
    for record in records:
        for name, told in mapping_at(record, "measured", "models").items():
            value = number(told.get(key)) if isinstance(told, dict) else np.nan
            if np.isfinite(value):
                found.setdefault(name, []).append((record["round"], value))
    return {
        n: (np.array([r for r, _ in rows], np.int64), np.array([v for _, v in rows]))
        for n, rows in sorted(found.items())
    }


def cumulated_bytes(records: Sequence[Row]) -> tuple[Rounds, Vector, Vector]:
    """Return (rounds, bytes up, bytes down), both summed over all rounds so far, of the rounds that tell
    them.
    """
    told = [
        (record["round"], number(record.get("bytes_up")), number(record.get("bytes_down")))
        for record in records
    ]
    known = np.array([row for row in told if np.isfinite(row).all()], np.float64).reshape(-1, 3)
    return known[:, 0].astype(np.int64), np.cumsum(known[:, 1]), np.cumsum(known[:, 2])


def accuracy_against_bytes(records: Sequence[Row]) -> tuple[Vector, Band]:
    """Return (bytes up and down until then, accuracy over clients) of the rounds that have an accuracy.

    What a simulation measured comes before what clients reported: the two are of other samples.
    """
    measured = accuracies(records)
    band = measured if len(measured.rounds) else reported_accuracies(records)
    rounds, up, down = cumulated_bytes(records)
    total = dict(zip(rounds.tolist(), (up + down).tolist(), strict=True))
    known = np.array([round in total for round in band.rounds.tolist()], bool)
    kept = Band(*(np.asarray(part)[known] for part in (band.rounds, band.mean, band.p10, band.p90)))
    return np.array([total[round] for round in kept.rounds.tolist()]), kept


def section(folder: Folder) -> Section:
    """Return the curves of a folder."""
    return Section(
        "curves",
        "Over the rounds",
        (*_accuracy(folder), _loss(folder), *_models(folder), _bytes(folder), _against(folder)),
    )


def _loss(folder: Folder) -> Part:
    rounds, loss = losses(folder.records)
    if not len(rounds):
        return Missing(
            "Training loss",
            "no round of this folder tells a loss; a federation with secure aggregation or [privacy] keeps "
            "it to itself",
        )

    def draw(figure: Any) -> None:
        axes = figure.subplots()
        axes.plot(rounds, loss, color=PALETTE[0], marker="o" if len(rounds) == 1 else None)
        axes.set(xlabel="round", ylabel="training loss", ylim=(0, None))
        whole(axes)

    said = (
        f"The training loss is {loss[0]:.4g} in round {rounds[0]} and {loss[-1]:.4g} in round {rounds[-1]}, "
        f"{loss.min():.4g} at its lowest."
    )
    rows: list[Any] = [(int(r), float(v)) for r, v in zip(rounds, loss, strict=True)]
    return Chart(
        "loss",
        "Training loss",
        said,
        table(("round", "loss"), rows, RunFiles.rounds.name),
        draw,
        note="Mean over the samples of the round's clients.",
    )


def _accuracy(folder: Folder) -> tuple[Part, ...]:
    reported = _band_chart(
        "validation",
        "Accuracy while it runs",
        reported_accuracies(folder.records),
        "The model that each client would use at the beginning of the round, on its own validation samples.",
    )
    measured = _band_chart(
        "accuracy",
        "Accuracy over clients",
        accuracies(folder.records),
        "Each client's own model after the round, on its own held-out samples.",
    )
    return (*reported, *measured) or (Missing("Accuracy over clients", UNREPORTED),)


def _band_chart(name: str, title: str, band: Band, note: str) -> tuple[Chart, ...]:
    """Return the chart of an accuracy over clients; none when no round has one."""
    if not len(band.rounds):
        return ()

    def draw(figure: Any) -> None:
        draw_band(figure.subplots(), band.rounds, band, "round")

    summary = (
        f"The mean accuracy over clients is {100 * band.mean[0]:.1f} per cent in round {band.rounds[0]} and "
        f"{100 * band.mean[-1]:.1f} in round {band.rounds[-1]}; then the 10th percentile is "
        f"{100 * band.p10[-1]:.1f} and the 90th {100 * band.p90[-1]:.1f}."
    )
    return (Chart(name, title, summary, _band_table(band), draw, note=note),)


def draw_band(axes: Any, x: NDArray[Any], band: Band, xlabel: str) -> None:
    """Draw mean and 10th to 90th percentile in per cent."""
    axes.fill_between(
        x,
        100 * band.p10,
        100 * band.p90,
        color=PALETTE[0],
        alpha=0.2,
        linewidth=0,
        label="10th to 90th percentile",
    )
    axes.plot(x, 100 * band.mean, color=PALETTE[0], marker="o" if len(x) < 3 else None, label="mean")
    axes.set(xlabel=xlabel, ylabel="accuracy, per cent")
    axes.legend(loc="lower right")
    if xlabel == "round":
        whole(axes)


def _band_table(band: Band) -> Any:
    rows: list[Any] = [
        (int(r), *(round(100 * float(v), 3) for v in each))
        for r, *each in zip(band.rounds, band.mean, band.p10, band.p90, strict=True)
    ]
    return table(
        ("round", "mean, per cent", "10th percentile", "90th percentile"), rows, RunFiles.rounds.name
    )


def _models(folder: Folder) -> tuple[Part, ...]:
    lines = model_lines(folder.records)
    if not lines:
        return ()

    def draw(figure: Any) -> None:
        draw_lines(
            figure.subplots(),
            {name: (x, 100 * y) for name, (x, y) in lines.items()},
            "round",
            "accuracy, per cent",
        )

    last = ", ".join(f"{name} {100 * y[-1]:.1f}" for name, (_, y) in lines.items())
    rows: list[Any] = [
        (name, int(r), round(100 * float(v), 3))
        for name, (x, y) in lines.items()
        for r, v in zip(x, y, strict=True)
    ]
    return (
        Chart(
            "models",
            "The server's models on the common test set",
            f"Accuracy in the last evaluated round, per cent: {last}.",
            table(("model", "round", "accuracy, per cent"), rows, RunFiles.rounds.name),
            draw,
        ),
    )


def _bytes(folder: Folder) -> Part:
    rounds, up, down = cumulated_bytes(folder.records)
    if not len(rounds):
        why = (
            f"the aggregator of this folder wrote no {AggregatorFiles.rounds.name}, which this version of "
            "edgefl does"
            if folder.kind != "simulation"
            else "no round is done"
        )
        return Missing("Traffic", why)
    scale, unit = scaled(float(max(up[-1], down[-1])))

    def draw(figure: Any) -> None:
        axes = figure.subplots()
        draw_lines(
            axes, {"up": (rounds, up / scale), "down": (rounds, down / scale)}, "round", f"{unit} so far"
        )
        axes.set_ylim(0, None)

    said = (
        f"After round {rounds[-1]}, {up[-1] / scale:.3g} {unit} were sent by clients and "
        f"{down[-1] / scale:.3g} {unit} to them."
    )
    rows: list[Any] = [(int(r), int(u), int(d)) for r, u, d in zip(rounds, up, down, strict=True)]
    return Chart(
        "bytes",
        "Traffic",
        said,
        table(("round", "bytes up so far", "bytes down so far"), rows, RunFiles.rounds.name),
        draw,
        note=_TOGETHER if folder.kind == SIMULATION else _PUBLISHED,
    )


def _against(folder: Folder) -> Part:
    title = "Accuracy against bytes"
    total, band = accuracy_against_bytes(folder.records)
    if not len(total):
        return Missing(title, UNREPORTED)
    scale, unit = scaled(float(total[-1]))

    def draw(figure: Any) -> None:
        draw_band(figure.subplots(), total / scale, band, f"{unit} up and down so far")

    said = (
        f"A mean accuracy of {100 * band.mean[-1]:.1f} per cent took {total[-1] / scale:.3g} {unit}, up and "
        "down of all clients together."
    )
    rows: list[Any] = [
        (int(b), int(r), round(100 * float(m), 3))
        for b, r, m in zip(total, band.rounds, band.mean, strict=True)
    ]
    return Chart(
        "against",
        title,
        said,
        table(("bytes so far", "round", "mean accuracy, per cent"), rows, RunFiles.rounds.name),
        draw,
    )


def draw_lines(
    axes: Any, lines: Mapping[str, tuple[NDArray[Any], NDArray[Any]]], xlabel: str, ylabel: str
) -> None:
    """Draw a line a name, each with a colour and dashes of its own, and a legend."""
    for place, (name, (x, y)) in enumerate(lines.items()):
        axes.plot(
            x,
            y,
            color=colour(name, place),
            linestyle=DASHES[place % len(DASHES)],
            marker="o" if len(x) < 3 else None,
            label=name,
        )
    axes.set(xlabel=xlabel, ylabel=ylabel)
    axes.legend(ncols=1 + (len(lines) > 6))
    if xlabel == "round":
        whole(axes)


def whole(axes: Any) -> None:
    """Put ticks of the x axis at whole numbers only."""
    axes.xaxis.get_major_locator().set_params(integer=True)


def scaled(most: float) -> tuple[float, str]:
    """Return the unit for numbers of bytes up to `most`: (bytes in it, its name)."""
    return next(
        ((float(s), u) for s, u in ((10**9, "GB"), (10**6, "MB"), (10**3, "KB")) if most >= s), (1.0, "bytes")
    )
