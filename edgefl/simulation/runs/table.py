"""Formats the summary of a run as text, and compares several runs."""

from collections.abc import Mapping, Sequence
from typing import Any

from edgefl.base.system.format import align_columns, format_bytes, format_percent
from edgefl.base.verdict import from_dict
from edgefl.base.verdict import render_verdict_lines as verdict_lines
from edgefl.simulation.runs.summary import FIGURE_DESCRIPTIONS

_ORDER = ("mixture", "federated", "local")


def list_figures(summaries: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the names of the figures of all runs, sorted by kind and model. The mixture comes first.

    Args:
        summaries: the summary of each run, see `summarize_run`.
    """
    keys = dict.fromkeys(key for summary in summaries for key in summary["figures"])

    def rank_figure(key: str) -> tuple[int, int, str]:
        kind, _, name = key.partition("_")
        return (
            list(FIGURE_DESCRIPTIONS).index(kind),
            _ORDER.index(name) if name in _ORDER else len(_ORDER),
            name,
        )

    return sorted(keys, key=rank_figure)


def format_result(summary: Mapping[str, Any]) -> str:
    """Return the result of a run as text: one line per figure in per cent, details, and the verdict.

    Args:
        summary: the summary of the run, see `summarize_run`.
    """
    rows: list[tuple[str, ...]] = [("per cent", "mean", "weighted", "std", "p10", "clients")]
    for key in list_figures([summary]):
        figure = summary["figures"][key]
        rows.append(
            (
                key.replace("_", " ", 1),
                *(format_percent(figure[part], 2, "") for part in ("mean", "weighted", "std", "p10")),
                str(figure["count"]),
            )
        )
    lines = [
        f"{summary['federation']}: {summary['algorithm']}, {summary['model']}, {summary['data']} by "
        f"{summary['partition']}, seed {summary['seed']}, {summary['rounds']} rounds in "
        f"{summary['seconds']:.0f} s, up {format_bytes(summary['bytes_up'])}, down "
        f"{format_bytes(summary['bytes_down'])}",
        align_columns(rows),
    ]
    if "fleet" in summary:
        lines.append(format_fleet(summary["fleet"]))
    lines += summary.get("clustering", [])
    if spent := summary.get("privacy"):
        lines.append(
            f"privacy: epsilon {spent['epsilon']:.3f} at delta {spent['delta']:g} a client, noise multiplier "
            f"{spent['noise_multiplier']:g}, clip {spent['clip']:g}, against {spent['holds_against']}"
        )
    for key, grouping in (("adjusted_rand_index", "clusters"), ("adjusted_rand_index_experts", "experts")):
        if key in summary:
            lines.append(f"{grouping} against the truth: adjusted Rand index {summary[key]:.3f}")
    used = {key: value for key, value in summary["diagnostics"].items() if value is not None}
    if used:
        lines.append("mean over clients: " + ", ".join(f"{key} {value:.3g}" for key, value in used.items()))
    if "verdict" in summary:
        lines.append("\n".join(verdict_lines(from_dict(summary["verdict"]))))
    return "\n\n".join(lines)


def format_fleet(fleet: Mapping[str, Any]) -> str:
    """Return the events of a simulated fleet as three lines of text.

    Args:
        fleet: the events, see `summarize_fleet`.
    """
    reached = ", ".join(
        f"{format_percent(float(step), 0)} after {hours:g} h"
        for step, hours in fleet["hours_to_accuracy"].items()
    )
    return (
        f"virtual time: {fleet['hours']:.2f} h; {fleet['trained']} trainings, {fleet['accepted']} updates "
        f"accepted ({fleet['late']} late), {fleet['dropped']} missing when their round closed\n"
        f"fleet: {fleet['outages']} times offline, {fleet['lost_clients']} devices lost for good, "
        f"{fleet['lost_messages']} messages lost\n"
        f"time to accuracy: {reached or 'no round reached 50%'}"
    )


def format_comparison(names: Sequence[str], summaries: Sequence[Mapping[str, Any]]) -> str:
    """Return a table with one column per run.

    The rows are mean, standard deviation and 10th percentile of each figure, then bytes, rounds and seconds.

    Args:
        names: the name of each run.
        summaries: the summary of each run, in the same order.
    """
    rows: list[tuple[str, ...]] = [("per cent", *names)]
    for key in list_figures(summaries):
        for part in ("mean", "std", "p10"):
            values = [summary["figures"].get(key, {}).get(part) for summary in summaries]
            rows.append(
                (f"{key.replace('_', ' ', 1)} {part}", *(format_percent(value, 2, "") for value in values))
            )
    for key in ("bytes_up", "bytes_down"):
        rows.append((key.replace("_", " "), *(format_bytes(summary[key]) for summary in summaries)))
    rows.append(("rounds", *(str(summary["rounds"]) for summary in summaries)))
    rows.append(("seconds", *(f"{summary['seconds']:.0f}" for summary in summaries)))
    return align_columns(rows)
