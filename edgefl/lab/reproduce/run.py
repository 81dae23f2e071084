"""Runs the experiments of the papers and reports their results."""

import math
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

from edgefl.base.errors import ConfigError
from edgefl.lab.reproduce.claims import NO_RUN, OUT_OF_REACH, SeedRows, describe_claim, judge_claim
from edgefl.lab.reproduce.experiment import (
    Experiment,
    digest_stages,
    list_defaults,
    list_sources,
    make_stages,
)
from edgefl.lab.reproduce.measures import SHARE_PREFIXES, extract_curves, measure_rows
from edgefl.lab.reproduce.report import ExperimentReport, ExperimentVerdict, Figure
from edgefl.lab.reproduce.results import SeedResult, read_result, read_results, write_result
from edgefl.lab.reproduce.stage import ExperimentResult, StageRunner

SECONDS_PER_HOUR = 3600


def play_seed(
    experiment: Experiment, scale: str, seed: int, runner: StageRunner, directory: Path
) -> SeedResult:
    """Return the result of one seed. Run its stages first, unless the result exists.

    Args:
        runner: plays the stages. It continues interrupted stages.
        directory: the directory of the result files.

    Raises:
        ConfigError: the experiment has no such scale, or its file is invalid. The file of the model was
            changed while the stages ran.
        StateError: a file is damaged or cannot be written.
        EdgeflError: any other error of `StageRunner.play`.
    """
    before = read_result(directory, experiment, scale, seed)
    if before is not None:
        return before
    digest = digest_stages(experiment, scale, seed)
    results = runner.play_all(make_stages(experiment, scale, seed), f"{experiment.name}, seed {seed}")
    if digest_stages(experiment, scale, seed) != digest:
        raise ConfigError(
            f"{experiment.model_file} was changed while the stages ran; remove the output directory, and run "
            "the command again"
        )
    result = SeedResult(
        experiment=experiment.name,
        scale=scale,
        seed=seed,
        digest=digest,
        rows=measure_rows(experiment, results),
        sources=list_sources(experiment, scale, seed),
        defaults=list_defaults(experiment, scale, seed),
        core_hours=round(sum(map(_sum_seconds, results.values())) / SECONDS_PER_HOUR, 3),
        date=time.strftime("%Y-%m-%d"),
        machine=_join(result["machine"] for result in results.values()),
        versions=_join_versions([result["versions"] for result in results.values()]),
        curves=extract_curves(results),
    )
    write_result(directory, result)
    return result


def _join(values: Iterable[str]) -> str:
    """Return the different values in order, such as the machines that played the stages."""
    return "; ".join(sorted(set(values)))


def _join_versions(versions: Sequence[Mapping[str, str]]) -> dict[str, str]:
    names = dict.fromkeys(name for stage in versions for name in stage)
    return {name: _join(stage[name] for stage in versions if name in stage) for name in names}


def _sum_seconds(result: ExperimentResult) -> float:
    """Return the processor time of a stage in seconds: of its clients, and of the measurements at its end.

    Parts that were not measured count as zero.
    """
    measurements: float = result.get("measurement_seconds", 0.0)
    return measurements + sum(
        client[key] or 0.0
        for client in result["clients"]
        for key in ("round_seconds", "personalization_seconds")
    )


def make_report(
    experiment: Experiment, scale: str, results: Sequence[SeedResult], note: Mapping[str, Any]
) -> ExperimentReport:
    """Return the report of an experiment at one scale.

    Args:
        results: the results of its seeds.
        note: command, versions and machine.
    """
    rows = [result.rows for result in results]
    figures = tuple(
        Figure(row.name, tuple(_read_figure(seed, row.name) for seed in rows), row.paper)
        for row in experiment.rows
        if any(row.name in seed for seed in rows)
    )
    return ExperimentReport(
        experiment=experiment.name,
        scale=scale,
        seeds=tuple(result.seed for result in results),
        figures=figures,
        verdicts=tuple(verdict for verdict in judge_claims(experiment, results) if verdict.outcome != NO_RUN),
        seconds=round(SECONDS_PER_HOUR * sum(result.core_hours for result in results), 1),
        note=note,
        about=_describe_setup(experiment, scale),
    )


def _read_figure(rows: SeedRows, name: str) -> float:
    value = rows.get(name)
    return math.nan if value is None else value


def select_pictured(experiment: Experiment, report: ExperimentReport) -> ExperimentReport:
    """Return a report with only the figures in per cent, or with all figures if there are none."""
    shares = {row.name for row in experiment.rows if row.value.startswith(SHARE_PREFIXES)}
    figures = tuple(figure for figure in report.figures if figure.name in shares)
    return replace(report, figures=figures or report.figures)


def average_curves(
    results: Sequence[SeedResult], key: str = "accuracy_mixture", factor: float = 100
) -> dict[str, tuple[Sequence[float], Sequence[float]]]:
    """Return the curve of each stage over the rounds that all seeds evaluated, as a mean over seeds.

    Args:
        results: the results of the seeds of one scale.
        key: `accuracy_mixture` or `loss_mixture`. Curves without it are left out.
        factor: multiplies the values. 100 makes per cent of accuracies.

    Returns:
        The rounds and the values, by stage.
    """
    curves: dict[str, list[dict[float, float]]] = {}
    for result in results:
        for stage, curve in result.curves.items():
            if key in curve:
                points = zip(curve["rounds"], curve[key], strict=True)
                curves.setdefault(stage, []).append(dict(points))
    averaged: dict[str, tuple[Sequence[float], Sequence[float]]] = {}
    for stage, seeds in curves.items():
        rounds = sorted(set.intersection(*(set(points) for points in seeds)))
        averaged[stage] = (rounds, [factor * fmean(points[r] for points in seeds) for r in rounds])
    return averaged


def _describe_setup(experiment: Experiment, scale: str) -> str:
    replacement = (
        f"{experiment.model_file} in place of any model and first weights of the experiment"
        if experiment.model_file
        else ""
    )
    differs = "; ".join(filter(None, [experiment.scales[scale].differs, replacement]))
    return f"differs from the paper: {differs}" if differs else ""


def judge_claims(experiment: Experiment, results: Sequence[SeedResult]) -> tuple[ExperimentVerdict, ...]:
    """Return the verdicts on all claims of an experiment.

    Args:
        results: the results of the seeds of one scale.
    """
    if experiment.out_of_reach and not results:
        return tuple(
            ExperimentVerdict(
                line=describe_claim(claim), measured="", outcome=OUT_OF_REACH, paper=claim.paper
            )
            for claim in experiment.claims
        )
    rows = [result.rows for result in results]
    return tuple(judge_claim(claim, rows) for claim in experiment.claims)


def list_experiments(experiments: Sequence[Experiment], directory: Path) -> list[dict[str, Any]]:
    """Return one entry per experiment and scale with planned seeds or results, in the order of the queue.

    Args:
        directory: the directory of the result files.

    Returns:
        Entries with `experiment`, `item`, `title`, `command`, `scale`, `seeds` and `planned_seeds`,
            `core_hours` and `planned_core_hours`, `differs`, `out_of_reach` (why no seed is planned), and
            `claims`, each with `claim`, `paper`, `ours` and `verdict`.

    Raises:
        StateError: a result file is damaged.
    """
    entries = []
    for experiment in experiments:
        results = {scale: read_results(directory, experiment, scale) for scale in experiment.scales}
        listed = [s for s in experiment.scale_names if s in experiment.planned_scales or results[s]]
        unplanned = experiment.scale_names[:1] if experiment.out_of_reach else ()
        for scale in listed or unplanned or [""]:
            entries.append(_list_experiment(experiment, scale, results.get(scale, ())))
    return entries


def _list_experiment(experiment: Experiment, scale: str, results: Sequence[SeedResult]) -> dict[str, Any]:
    settings = experiment.scales.get(scale)
    return {
        "experiment": experiment.name,
        "item": experiment.item,
        "title": experiment.title,
        "command": experiment.format_command(scale) if scale else "",
        "scale": scale,
        "seeds": len(results),
        "planned_seeds": settings.seeds if settings else 0,
        "core_hours": round(sum(result.core_hours for result in results), 2),
        "planned_core_hours": settings.seeds * settings.core_hours if settings else 0.0,
        "differs": settings.differs if settings else "",
        "out_of_reach": "" if results else experiment.out_of_reach,
        "claims": [
            {
                "claim": verdict.line,
                "paper": verdict.paper,
                "ours": verdict.measured,
                "verdict": verdict.outcome,
            }
            for verdict in judge_claims(experiment, results)
        ],
    }
