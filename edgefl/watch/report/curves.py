"""Charts over the rounds: loss, accuracy over clients, bytes, and accuracy against bytes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgefl.base.storage.aggregator_directory import AggregatorFiles
from edgefl.base.storage.run_directory import RunFiles
from edgefl.base.verdict import DEFAULT_MEASURE, name_measure, read_round_metric
from edgefl.watch.report.chart import Chart, MissingChart, Section, SectionPart, make_table
from edgefl.watch.report.drawing import DASHES, PALETTE, choose_colour
from edgefl.watch.report.folder import SIMULATION_FOLDER, Folder, JsonObject, find_mapping, to_number

Rounds = NDArray[np.int64]
Vector = NDArray[np.float64]
_SIMULATED_NOTE = "Sum over all clients. 1 MB is 1,000,000 bytes."
_PUBLISHED_NOTE = (
    "Bytes that the devices and the aggregator published. A model that the broker retains counts once for "
    "all devices. 1 MB is 1,000,000 bytes."
)
NO_ACCURACY_REASON = (
    "no client reported an accuracy in a round. `evaluate = false` in [federation], secure aggregation and "
    "[privacy] turn it off. A simulation with --evaluate-every 1 measures every client after each round"
)


@dataclass(frozen=True)
class AccuracyBand:
    """Accuracy over clients by round, as shares of 1.

    Attributes:
        rounds: shape (n,), int64.
        mean: shape (n,), float64.
        p10: 10th percentile over clients, shape (n,), float64.
        p90: 90th percentile over clients, shape (n,), float64.
        measure: name of the measure, one of `edgefl.base.verdict.MEASURES`.
    """

    rounds: Rounds
    mean: Vector
    p10: Vector
    p90: Vector
    measure: str = DEFAULT_MEASURE

    @property
    def title(self) -> str:
        """Name of the measure at the start of a title."""
        return self.measure[0].upper() + self.measure[1:]


def read_losses(records: Sequence[JsonObject]) -> tuple[Rounds, Vector]:
    """Return rounds, shape (n,), int64, and their training losses, shape (n,), float64.

    Rounds without a loss are left out.
    """
    pairs = [(record["round"], to_number(record.get("loss"))) for record in records]
    finite_pairs = [(round, loss) for round, loss in pairs if np.isfinite(loss)]
    return np.array([round for round, _ in finite_pairs], np.int64), np.array(
        [loss for _, loss in finite_pairs]
    )


def read_client_values(record: JsonObject, key: str) -> dict[str, float]:
    """Return a figure that was measured for each client after a round, by client id.

    Clients without a finite number are left out.

    Args:
        key: name of the figure, such as `accuracy_mixture`.
    """
    values = {
        client: to_number(find_mapping(record, "measured", "clients", client).get(key))
        for client in find_mapping(record, "measured", "clients")
    }
    return {client: value for client, value in values.items() if np.isfinite(value)}


def summarize_measured_accuracy(records: Sequence[JsonObject], key: str = "accuracy_mixture") -> AccuracyBand:
    """Return mean, 10th and 90th percentile over clients, for rounds that a simulation evaluated.

    Args:
        records: one record per round. Rounds without a measured client are left out.
        key: name of the figure of each client.
    """
    rows = []
    for record in records:
        values = list(read_client_values(record, key).values())
        if values:
            rows.append((record["round"], float(np.mean(values)), *np.percentile(values, (10, 90)).tolist()))
    return _make_band(rows)


def read_reported_accuracy(records: Sequence[JsonObject]) -> AccuracyBand:
    """Return mean, 10th and 90th percentile over clients, for rounds with reported accuracies."""
    rows = [
        (record["round"], *(to_number(record.get(f"accuracy_{part}")) for part in ("mean", "p10", "p90")))
        for record in records
    ]
    band = _make_band([row for row in rows if np.isfinite(row).all()])
    reported = (
        name_measure(read_round_metric(record))
        for record in records
        if np.isfinite(to_number(record.get("accuracy_mean")))
    )
    return replace(band, measure=next(reported, DEFAULT_MEASURE))


def _make_band(rows: Sequence[tuple[float, ...]]) -> AccuracyBand:
    rounds, mean, p10, p90 = np.array(rows, np.float64).reshape(-1, 4).T
    return AccuracyBand(rounds=rounds.astype(np.int64), mean=mean, p10=p10, p90=p90)


def read_model_curves(
    records: Sequence[JsonObject], key: str = "accuracy"
) -> dict[str, tuple[Rounds, Vector]]:
    """Return a figure on the common test set for each model of the server.

    Args:
        records: one record per round.
        key: name of the figure.

    Returns:
        By model name, the rounds, shape (n,), int64, and the figures, shape (n,), float64.
    """
    points: dict[str, list[tuple[int, float]]] = {}
    for record in records:
        for name, figures in find_mapping(record, "measured", "models").items():
            value = to_number(figures.get(key)) if isinstance(figures, dict) else np.nan
            if np.isfinite(value):
                points.setdefault(name, []).append((record["round"], value))
    return {
        n: (np.array([r for r, _ in rows], np.int64), np.array([v for _, v in rows]))
        for n, rows in sorted(points.items())
    }


def accumulate_bytes(records: Sequence[JsonObject]) -> tuple[Rounds, Vector, Vector]:
    """Return the bytes up and down, summed up to each round.

    Rounds without both counts are left out.

    Returns:
        Rounds, shape (n,), int64, bytes up and bytes down, both shape (n,), float64.
    """
    rows = [
        (record["round"], to_number(record.get("bytes_up")), to_number(record.get("bytes_down")))
        for record in records
    ]
    finite_rows = np.array([row for row in rows if np.isfinite(row).all()], np.float64).reshape(-1, 3)
    return finite_rows[:, 0].astype(np.int64), np.cumsum(finite_rows[:, 1]), np.cumsum(finite_rows[:, 2])


def join_accuracy_with_bytes(records: Sequence[JsonObject]) -> tuple[Vector, AccuracyBand]:
    """Return the bytes up and down until each round that has an accuracy, and the accuracies.

    Accuracies that a simulation measured are preferred. Those that clients reported are on other samples, so
    the two are not mixed.

    Returns:
        Bytes, shape (n,), float64, and the accuracies of the same rounds.
    """
    measured = summarize_measured_accuracy(records)
    band = measured if len(measured.rounds) else read_reported_accuracy(records)
    rounds, up, down = accumulate_bytes(records)
    total = dict(zip(rounds.tolist(), (up + down).tolist(), strict=True))
    has_bytes = np.array([round in total for round in band.rounds.tolist()], bool)
    matched = AccuracyBand(
        rounds=band.rounds[has_bytes],
        mean=band.mean[has_bytes],
        p10=band.p10[has_bytes],
        p90=band.p90[has_bytes],
        measure=band.measure,
    )
    return np.array([total[round] for round in matched.rounds.tolist()]), matched


def build_section(folder: Folder) -> Section:
    """Return the section with curves over the rounds."""
    return Section(
        "curves",
        "Rounds",
        (
            *_chart_accuracy(folder),
            _chart_loss(folder),
            *_chart_models(folder),
            _chart_bytes(folder),
            _chart_accuracy_by_bytes(folder),
        ),
    )


def _chart_loss(folder: Folder) -> SectionPart:
    rounds, loss = read_losses(folder.records)
    if not len(rounds):
        return MissingChart(
            "Training loss",
            "no round of this folder has a loss. A federation with secure aggregation or [privacy] does not "
            "publish it",
        )

    def draw(figure: Any) -> None:
        axes = figure.subplots()
        axes.plot(rounds, loss, color=PALETTE[0], marker="o" if len(rounds) == 1 else None)
        axes.set(xlabel="round", ylabel="training loss", ylim=(0, None))
        set_integer_ticks(axes)

    alt = (
        f"The training loss is {loss[0]:.4g} in round {rounds[0]} and {loss[-1]:.4g} in round {rounds[-1]}. "
        f"The lowest value is {loss.min():.4g}."
    )
    rows: list[Any] = [(int(r), float(v)) for r, v in zip(rounds, loss, strict=True)]
    return Chart(
        name="loss",
        title="Training loss",
        alt=alt,
        table=make_table(("round", "loss"), rows, RunFiles.rounds.name),
        draw=draw,
        note="Mean over the samples of the round's clients.",
    )


def _chart_accuracy(folder: Folder) -> tuple[SectionPart, ...]:
    band = read_reported_accuracy(folder.records)
    reported = _chart_band(
        "validation",
        f"{band.title} during the rounds",
        band,
        "The model that each client would use at the start of the round, on its own validation samples.",
    )
    measured = _chart_band(
        "accuracy",
        "Accuracy over clients",
        summarize_measured_accuracy(folder.records),
        "Each client's own model after the round, on its own held-out samples.",
    )
    return (*reported, *measured) or (MissingChart("Accuracy over clients", NO_ACCURACY_REASON),)


def _chart_band(name: str, title: str, band: AccuracyBand, note: str) -> tuple[Chart, ...]:
    """Return the chart of an accuracy over clients, or no chart if no round has one."""
    if not len(band.rounds):
        return ()

    def draw(figure: Any) -> None:
        draw_band(figure.subplots(), band.rounds, band, "round")

    first, last = (f"{100 * band.mean[at]:.1f}" for at in (0, -1))
    alt = (
        f"The mean {band.measure} over clients is {first} per cent in round {band.rounds[0]} and {last} in "
        f"round {band.rounds[-1]}. In that round, the 10th percentile is {100 * band.p10[-1]:.1f} and the "
        f"90th {100 * band.p90[-1]:.1f}."
    )
    return (Chart(name=name, title=title, alt=alt, table=_make_band_table(band), draw=draw, note=note),)


def draw_band(axes: Any, x: NDArray[Any], band: AccuracyBand, xlabel: str) -> None:
    """Draw the mean and the range from the 10th to the 90th percentile in per cent.

    Args:
        axes: matplotlib axes.
        x: horizontal positions, shape (n,).
        band: the accuracies.
        xlabel: label of the horizontal axis.
    """
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
    axes.set(xlabel=xlabel, ylabel=f"{band.measure}, per cent")
    axes.legend(loc="lower right")
    if xlabel == "round":
        set_integer_ticks(axes)


def _make_band_table(band: AccuracyBand) -> Any:
    rows: list[Any] = [
        (int(r), *(round(100 * float(v), 3) for v in values))
        for r, *values in zip(band.rounds, band.mean, band.p10, band.p90, strict=True)
    ]
    return make_table(
        ("round", "mean, per cent", "10th percentile", "90th percentile"), rows, RunFiles.rounds.name
    )


def _chart_models(folder: Folder) -> tuple[SectionPart, ...]:
    lines = read_model_curves(folder.records)
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
            name="models",
            title="The server's models on the common test set",
            alt=f"Accuracy in the last evaluated round, per cent: {last}.",
            table=make_table(("model", "round", "accuracy, per cent"), rows, RunFiles.rounds.name),
            draw=draw,
        ),
    )


def _chart_bytes(folder: Folder) -> SectionPart:
    rounds, up, down = accumulate_bytes(folder.records)
    if not len(rounds):
        why = (
            f"the aggregator of this folder wrote no {AggregatorFiles.rounds.name}. Newer versions of edgefl "
            "write it"
            if folder.kind != "simulation"
            else "no round is finished"
        )
        return MissingChart("Communication cost", why)
    scale, unit = choose_byte_unit(float(max(up[-1], down[-1])))

    def draw(figure: Any) -> None:
        axes = figure.subplots()
        draw_lines(
            axes, {"up": (rounds, up / scale), "down": (rounds, down / scale)}, "round", f"{unit} so far"
        )
        axes.set_ylim(0, None)

    alt = (
        f"Until the end of round {rounds[-1]}, clients sent {up[-1] / scale:.3g} {unit} and received "
        f"{down[-1] / scale:.3g} {unit}."
    )
    rows: list[Any] = [(int(r), int(u), int(d)) for r, u, d in zip(rounds, up, down, strict=True)]
    return Chart(
        name="bytes",
        title="Communication cost",
        alt=alt,
        table=make_table(("round", "bytes up so far", "bytes down so far"), rows, RunFiles.rounds.name),
        draw=draw,
        note=_SIMULATED_NOTE if folder.kind == SIMULATION_FOLDER else _PUBLISHED_NOTE,
    )


def _chart_accuracy_by_bytes(folder: Folder) -> SectionPart:
    total, band = join_accuracy_with_bytes(folder.records)
    title = f"{band.title} against bytes"
    if not len(total):
        return MissingChart(title, NO_ACCURACY_REASON)
    scale, unit = choose_byte_unit(float(total[-1]))

    def draw(figure: Any) -> None:
        draw_band(figure.subplots(), total / scale, band, f"{unit} up and down so far")

    alt = (
        f"A mean {band.measure} of {100 * band.mean[-1]:.1f} per cent took {total[-1] / scale:.3g} {unit}, "
        "sent and received by all clients together."
    )
    rows: list[Any] = [
        (int(b), int(r), round(100 * float(m), 3))
        for b, r, m in zip(total, band.rounds, band.mean, strict=True)
    ]
    return Chart(
        name="against",
        title=title,
        alt=alt,
        table=make_table(
            ("bytes so far", "round", f"mean {band.measure}, per cent"), rows, RunFiles.rounds.name
        ),
        draw=draw,
    )


def draw_lines(
    axes: Any, lines: Mapping[str, tuple[NDArray[Any], NDArray[Any]]], xlabel: str, ylabel: str
) -> None:
    """Draw a line per name with its own colour and dashes, and a legend.

    Args:
        axes: matplotlib axes.
        lines: by name, horizontal and vertical positions, both shape (n,).
        xlabel: label of the horizontal axis.
        ylabel: label of the vertical axis.
    """
    for index, (name, (x, y)) in enumerate(lines.items()):
        axes.plot(
            x,
            y,
            color=choose_colour(name, index),
            linestyle=DASHES[index % len(DASHES)],
            marker="o" if len(x) < 3 else None,
            label=name,
        )
    axes.set(xlabel=xlabel, ylabel=ylabel)
    axes.legend(ncols=1 + (len(lines) > 6))
    if xlabel == "round":
        set_integer_ticks(axes)


def set_integer_ticks(axes: Any) -> None:
    """Put the ticks of the horizontal axis at integers only."""
    axes.xaxis.get_major_locator().set_params(integer=True)


def choose_byte_unit(max_bytes: float) -> tuple[float, str]:
    """Return the size in bytes and the name of the unit for numbers up to `max_bytes`."""
    return next(
        ((float(s), u) for s, u in ((10**9, "GB"), (10**6, "MB"), (10**3, "KB")) if max_bytes >= s),
        (1.0, "bytes"),
    )
