"""How accuracy is spread over clients: the distribution of each model, and int8 beside float."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgefl.report.chart import Chart, Missing, Part, Section, table
from edgefl.report.drawing import PALETTE, colour, shortened
from edgefl.report.folder import SIMULATION, Folder, Row, number, values
from edgefl.report.outcome import MAX_ROWS, client_chart, verdict_of
from edgefl.report.plots import draw_cdf
from edgefl.runs.metrics import cdf
from edgefl.storage.aggregator_directory import AggregatorFiles
from edgefl.storage.run_directory import RunFiles

Vector = NDArray[np.float64]
MODELS = {
    "local": "accuracy_local",
    "federated": "accuracy_federated",
    "shipped": "accuracy_shipped",
    "int8": "accuracy_shipped_int8",
}
"""What a client's held-out samples are measured on, with the key of its row."""
NO_LOCAL = "set baseline = true in [personalization] to train each client alone as well"


def distributions(
    clients: Sequence[Row], keys: Mapping[str, str] = MODELS
) -> dict[str, tuple[Vector, Vector]]:
    """Return (sorted accuracy, share of clients with at most that) by model.

    Models that no client was measured with are left out.
    """
    found = {name: cdf(values(clients, key)) for name, key in keys.items()}
    return {name: each for name, each in found.items() if len(each[0])}


def models_of(clients: Sequence[Row]) -> dict[str, str]:
    """Return the keys of all models that clients were measured with, the four of the page first."""
    others = sorted(
        {key for row in clients for key in row if key.startswith("accuracy_")} - set(MODELS.values())
    )
    return {**MODELS, **{key.removeprefix("accuracy_"): key for key in others}}


def float_and_int8(clients: Sequence[Row]) -> tuple[list[str], Vector, Vector]:
    """Return (ids, accuracy in float, accuracy in int8), of the clients that were measured with both.

    Before a client could choose, it shipped its mixture.
    """
    both = [
        (row["id"], *(number(row.get(f"accuracy_{kind}{part}")) for part in ("", "_int8")))
        for row in clients
        for kind in ("shipped" if "accuracy_shipped" in row else "mixture",)
    ]
    known = [each for each in both if np.isfinite(each[1:]).all()]
    return (
        [each[0] for each in known],
        np.array([each[1] for each in known]),
        np.array([each[2] for each in known]),
    )


def section(folder: Folder) -> Section:
    """Return the distributions of a folder."""
    return Section("clients", "Over the clients", (_accuracies(folder), *_lacking(folder), _int8(folder)))


def _accuracies(folder: Folder) -> Part:
    """Return a row of marks for each client, or where there are many the distribution over clients."""
    keys = models_of(folder.clients)
    found = distributions(folder.clients, keys)
    if not found:
        return Missing(
            "Accuracy of each client",
            "no client has measured its model yet: clients do when the rounds are over",
        )
    rows: list[Any] = [
        (
            row["id"],
            *(None if np.isnan(v := number(row.get(keys[name]))) else round(100 * v, 3) for name in found),
        )
        for row in folder.clients
    ]
    data = table(("client", *found), rows, RunFiles.summary.name)
    verdict = verdict_of(folder)
    if verdict and len(verdict.rows) <= MAX_ROWS:
        return client_chart(verdict, data)

    def draw(figure: Any) -> None:
        draw_cdf(figure.subplots(), found)

    said = "; ".join(
        f"{name}: 10th percentile {100 * np.percentile(x, 10):.1f}, median {100 * np.median(x):.1f}, mean "
        f"{100 * x.mean():.1f} per cent of {len(x)} clients"
        for name, (x, _) in found.items()
    )
    return Chart(
        "cdf",
        "Distribution over clients",
        f"{said}.",
        data,
        draw,
        height=3.4,
        note="The share of clients whose accuracy is at most that; further to the right is better.",
    )


def _lacking(folder: Folder) -> tuple[Part, ...]:
    found = distributions(folder.clients, models_of(folder.clients))
    if not found or "local" in found:
        return ()
    return (Missing("Local models", f"no client trained a model of its data alone; {NO_LOCAL}"),)


def int8_sentence(lost: Vector) -> str:
    """Return what int8 changes. lost: the percentage points that each client loses, float64[clients]."""
    mean, worst = round(float(lost.mean()), 2), round(float(lost.max()), 2)
    if mean > 0:
        change = f"costs {mean:.2f} points on average and {worst:.2f} at most"
    else:
        change = f"gains {-mean:.2f} points on average" if mean else "changes nothing on average"
        change += f", and one of them loses {worst:.2f}" if worst > 0 else ""
    return f"Of {len(lost)} clients int8 {change}; {int((np.round(lost, 2) <= 0).sum())} lose nothing."


def _int8(folder: Folder) -> Part:
    ids, floats, ints = float_and_int8(folder.clients)
    title = "int8 against float"
    if not ids:
        why = (
            "a simulation exports nothing; `edgefl demo` and devices that end a federation do"
            if folder.kind == SIMULATION
            else "no device has exported its model; see the devices' logs, or run `edgefl export`"
        )
        return Missing(title, why)
    order = np.argsort(floats, kind="stable")

    def draw(figure: Any) -> None:
        axes = figure.subplots()
        places = np.arange(len(ids))
        axes.hlines(places, 100 * floats[order], 100 * ints[order], color=PALETTE[6], linewidth=1)
        axes.plot(100 * floats[order], places, "o", color=PALETTE[0], label="float")
        axes.plot(100 * ints[order], places, "v", color=colour("int8", 3), label="int8")
        axes.set(xlabel="accuracy on own held-out samples, per cent", ylim=(-0.7, len(ids) - 0.3))
        if len(ids) <= 30:
            axes.set_yticks(places, [shortened(ids[i], 18) for i in order])
        else:
            axes.set(ylabel="clients, by accuracy in float")
        axes.legend(loc="upper left")

    lost = 100 * (floats - ints)
    said = int8_sentence(lost)
    rows: list[Any] = [
        (ids[i], round(100 * float(floats[i]), 3), round(100 * float(ints[i]), 3), round(float(lost[i]), 3))
        for i in range(len(ids))
    ]
    height = min(2.0 + 0.16 * len(ids), 6.0)
    return Chart(
        "int8",
        title,
        said,
        table(
            ("client", "float, per cent", "int8, per cent", "points lost"), rows, AggregatorFiles.result.name
        ),
        draw,
        height=height,
    )
