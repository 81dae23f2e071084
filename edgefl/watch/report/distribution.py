"""Charts of accuracy over clients: the distribution for each model, and int8 against float.

For another task than classification, the charts show its measure, see `edgefl.base.verdict.MEASURES`.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgefl.base.storage.aggregator_directory import AggregatorFiles
from edgefl.base.storage.run_directory import RunFiles
from edgefl.base.verdict import MEASURES, find_measure
from edgefl.simulation.runs.metrics import compute_cdf
from edgefl.watch.report.chart import Chart, MissingChart, Section, SectionPart, make_table
from edgefl.watch.report.drawing import PALETTE, choose_colour, shorten_name
from edgefl.watch.report.folder import SIMULATION_FOLDER, Folder, JsonObject, read_numbers, to_number
from edgefl.watch.report.outcome import MAX_CLIENT_ROWS, chart_clients, find_verdict
from edgefl.watch.report.plots import draw_cdf

Vector = NDArray[np.float64]
MODEL_KEYS = {"local": "local", "federated": "federated", "shipped": "shipped", "int8": "shipped_int8"}
"""Models that are measured on a client's held-out samples, with the key in the client's row.

The key in the row has the measure as a prefix, such as `accuracy_local`.
"""
LOCAL_BASELINE_HINT = "set baseline = true in [personalization] to train each client alone as well"


def collect_cdfs(clients: Sequence[JsonObject], keys: Mapping[str, str]) -> dict[str, tuple[Vector, Vector]]:
    """Return the distribution of accuracy over clients for each model that was measured.

    Args:
        clients: one row per client.
        keys: the key in a row for each model.

    Returns:
        By model, the sorted accuracies and the share of clients with at most this accuracy, both shape
            (clients,), float64.
    """
    cdfs = {name: compute_cdf(read_numbers(clients, key)) for name, key in keys.items()}
    return {name: curve for name, curve in cdfs.items() if len(curve[0])}


def find_accuracy_keys(clients: Sequence[JsonObject]) -> dict[str, str]:
    """Return the keys of all measured models by name. The four models of the page come first."""
    prefix = f"{find_measure(clients)}_"
    model_keys = {name: f"{prefix}{key}" for name, key in MODEL_KEYS.items()}
    others = sorted(
        {key for row in clients for key in row if key.startswith(prefix)} - set(model_keys.values())
    )
    return {**model_keys, **{key.removeprefix(prefix): key for key in others}}


def read_float_and_int8(clients: Sequence[JsonObject]) -> tuple[list[str], Vector, Vector]:
    """Return the accuracies of the clients that were measured both in float and in int8.

    In runs of older versions clients ship their mixture.

    Returns:
        The client ids, the accuracies in float and those in int8, both shape (clients,), float64.
    """
    measure = find_measure(clients)
    both = [
        (row["id"], *(to_number(row.get(f"{measure}_{kind}{part}")) for part in ("", "_int8")))
        for row in clients
        for kind in ("shipped" if f"{measure}_shipped" in row else "mixture",)
    ]
    measured = [client for client in both if np.isfinite(client[1:]).all()]
    return (
        [client[0] for client in measured],
        np.array([client[1] for client in measured]),
        np.array([client[2] for client in measured]),
    )


def build_section(folder: Folder) -> Section:
    """Return the section on distributions over clients."""
    return Section(
        "clients",
        "Clients",
        (_chart_accuracy(folder), *_explain_missing_local(folder), _chart_int8(folder)),
    )


def _chart_accuracy(folder: Folder) -> SectionPart:
    """Return a row of marks per client, or the distribution if there are many clients."""
    keys = find_accuracy_keys(folder.clients)
    cdfs = collect_cdfs(folder.clients, keys)
    if not cdfs:
        return MissingChart(
            "Accuracy of each client",
            "no client has measured its model yet. Clients do so after the last round",
        )
    rows: list[Any] = [
        (
            row["id"],
            *(None if np.isnan(v := to_number(row.get(keys[name]))) else round(100 * v, 3) for name in cdfs),
        )
        for row in folder.clients
    ]
    data = make_table(("client", *cdfs), rows, RunFiles.summary.name)
    verdict = find_verdict(folder)
    if verdict and len(verdict.rows) <= MAX_CLIENT_ROWS:
        return chart_clients(verdict, data)

    measure = MEASURES[find_measure(folder.clients)]

    def draw(figure: Any) -> None:
        draw_cdf(figure.subplots(), cdfs, measure)

    alt = "; ".join(
        f"{name}: 10th percentile {100 * np.percentile(x, 10):.1f}, median {100 * np.median(x):.1f}, mean "
        f"{100 * x.mean():.1f} per cent of {len(x)} clients"
        for name, (x, _) in cdfs.items()
    )
    return Chart(
        name="cdf",
        title="Distribution over clients",
        alt=f"{alt}.",
        table=data,
        draw=draw,
        height=3.4,
        note=f"Share of clients with at most this {measure}. Further to the right is better.",
    )


def _explain_missing_local(folder: Folder) -> tuple[SectionPart, ...]:
    cdfs = collect_cdfs(folder.clients, find_accuracy_keys(folder.clients))
    if not cdfs or "local" in cdfs:
        return ()
    return (
        MissingChart(
            "Local models", f"no client trained a model on its own data alone; {LOCAL_BASELINE_HINT}"
        ),
    )


def describe_int8_loss(points_lost: Vector) -> str:
    """Return a sentence on the accuracy that int8 costs.

    Args:
        points_lost: percentage points that each client loses, shape (clients,), float64.
    """
    mean, worst = round(float(points_lost.mean()), 2), round(float(points_lost.max()), 2)
    if mean > 0:
        change = f"costs {mean:.2f} points on average and at most {worst:.2f} points"
    else:
        change = f"gains {-mean:.2f} points on average" if mean else "changes nothing on average"
        change += f", but one client loses {worst:.2f}" if worst > 0 else ""
    return (
        f"Over {len(points_lost)} clients, int8 {change}. Clients that lose nothing: "
        f"{int((np.round(points_lost, 2) <= 0).sum())}."
    )


def _chart_int8(folder: Folder) -> SectionPart:
    ids, floats, ints = read_float_and_int8(folder.clients)
    title = "int8 against float"
    if not ids:
        why = (
            "a simulation does not export models. `edgefl demo` and devices export them at the end"
            if folder.kind == SIMULATION_FOLDER
            else "no device has exported its model. See the devices' logs, or run `edgefl export`"
        )
        return MissingChart(title, why)
    order = np.argsort(floats, kind="stable")
    measure = MEASURES[find_measure(folder.clients)]

    def draw(figure: Any) -> None:
        axes = figure.subplots()
        positions = np.arange(len(ids))
        axes.hlines(positions, 100 * floats[order], 100 * ints[order], color=PALETTE[6], linewidth=1)
        axes.plot(100 * floats[order], positions, "o", color=PALETTE[0], label="float")
        axes.plot(100 * ints[order], positions, "v", color=choose_colour("int8", 3), label="int8")
        axes.set(xlabel=f"{measure} on own held-out samples, per cent", ylim=(-0.7, len(ids) - 0.3))
        if len(ids) <= 30:
            axes.set_yticks(positions, [shorten_name(ids[i], 18) for i in order])
        else:
            axes.set(ylabel=f"clients, by {measure} in float")
        axes.legend(loc="upper left")

    points_lost = 100 * (floats - ints)
    alt = describe_int8_loss(points_lost)
    rows: list[Any] = [
        (
            ids[i],
            round(100 * float(floats[i]), 3),
            round(100 * float(ints[i]), 3),
            round(float(points_lost[i]), 3),
        )
        for i in range(len(ids))
    ]
    height = min(2.0 + 0.16 * len(ids), 6.0)
    return Chart(
        name="int8",
        title=title,
        alt=alt,
        table=make_table(
            ("client", "float, per cent", "int8, per cent", "points lost"), rows, AggregatorFiles.result.name
        ),
        draw=draw,
        height=height,
    )
