"""`edgefl audit`: measures what an aggregator could learn about a client from its updates."""

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from edgefl.base.config import DataConfig, FederationConfig, ModelConfig, PartitionConfig, load_config
from edgefl.base.system.progress import Progress
from edgefl.watch.audit.scenarios import AuditFinding, Setting, audit_labels, guess
from edgefl.watch.report.drawing import parse_image_format

DEFAULT_AUDIT_CONFIG = FederationConfig(
    name="audit",
    rounds=10,
    algorithm="fedavg",
    options={"epochs": 1, "learning_rate": 0.05, "momentum": 0.0, "batch_size": 16},
    model=ModelConfig(name="lenet5", input_shape=(28, 28, 1), num_classes=10),
    data=DataConfig(name="digits"),
    partition=PartitionConfig(name="dirichlet", num_clients=10, options={"alpha": 0.5}),
)
"""Ten clients with 144 digits each on average, so about nine steps per round."""


@click.group(short_help="Measure what updates reveal about a client.")
def audit() -> None:
    """Measure what an aggregator could learn about a client from its updates.

    Example: edgefl audit labels --out labels.png
    """


@audit.command(short_help="Infer the label counts of clients from their updates.")
@click.option(
    "--config",
    "config_file",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Federation to audit  [default: ten clients with handwritten digits]",
)
@click.option(
    "--rounds",
    type=click.IntRange(0),
    help="Rounds for the accuracy of each defence. 0 measures no accuracy  [default: the configuration's]",
)
@click.option(
    "--noise",
    "noises",
    type=click.FloatRange(0, min_open=True),
    multiple=True,
    default=(0.01, 0.1),
    show_default=True,
    help="Standard deviation of the noise relative to the clipping norm. Can be repeated.",
)
@click.option("--seed", type=click.IntRange(0), help="Random seed  [default: the configuration's]")
@click.option(
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Draw true and inferred class shares into this PNG file.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object with the shares of each client.")
def labels(
    config_file: Path | None,
    rounds: int | None,
    noises: tuple[float, ...],
    seed: int | None,
    out: Path | None,
    as_json: bool,
) -> None:
    """Infer from a client's first update how many samples of each class it has. Show what each defence hides
    and what it costs.

    The update of the output layer's bias, or of its kernel, reveals the shares of the classes (Reisser et
    al., arXiv:2107.06724, appendix C). Each defence is an option of fedavg and of the algorithms based on it:
    clip_update, noise_multiplier, withhold.

    The distance is the share of the samples whose class is inferred wrongly. 0 is a full disclosure. The
    noise comes from the seed of the federation, which the observer is assumed not to know.

    \b
    Example:
      edgefl audit labels --rounds 5 --noise 0.03 --out labels.png
    """
    from edgefl.program.learner.litert import LiteRTLearner
    from edgefl.simulation.measurement import find_learning_rate, normalize_plan
    from edgefl.simulation.runs.pipeline import build_plan_in_subprocess, open_dataset_with_progress

    if out is not None:
        parse_image_format(out)
    config = DEFAULT_AUDIT_CONFIG if config_file is None else load_config(config_file)
    config = replace(
        config, seed=config.seed if seed is None else seed, rounds=rounds or config.rounds, least_rounds=0
    )
    with Progress() as progress, open_dataset_with_progress(config, progress) as shared:
        progress.update(
            f"compiling {config.model.name} for {config.algorithm}; TensorFlow takes some seconds"
        )
        plan, initial = build_plan_in_subprocess(config)
        plan = normalize_plan(plan, shared.shards, config.seed)
        if config.range_test:
            plan = find_learning_rate(plan, initial, shared.shards, config.seed)
        setting = Setting(
            plan=plan, initial=initial, shards=shared.shards, config=config, learner=LiteRTLearner(plan)
        )
        baseline = guess(setting)
        findings = audit_labels(setting, noises, accuracy=rounds != 0, show_scenario=progress.update)
    if out is not None:
        from edgefl.watch.audit.plot import plot_labels

        plot_labels(findings, out)
        click.echo(f"picture  {out}", err=True)
    if as_json:
        click.echo(json.dumps(to_json_report(config, findings, baseline), allow_nan=False))
        return
    click.echo(format_audit(config, findings, baseline, rounds != 0))


def to_json_report(
    config: FederationConfig, findings: Sequence[AuditFinding], baseline: AuditFinding
) -> dict[str, Any]:
    """Return the JSON tree of an audit. Figures that are not finite are None.

    Args:
        findings: one finding per scenario.
        baseline: the finding of a uniform guess.
    """
    rows = [
        {
            "name": finding.scenario.name,
            "options": dict(finding.scenario.options),
            "distance": finding.distance,
            "correlation": _to_json_number(finding.correlation),
            "accuracy": _to_json_number(finding.accuracy),
            "clients": {
                client_id: {
                    "true": leak.truth.tolist(),
                    "read": leak.reading.shares.tolist(),
                    "source": leak.reading.source,
                    "distance": leak.distance,
                    "correlation": _to_json_number(leak.correlation),
                }
                for client_id, leak in finding.clients.items()
            },
        }
        for finding in (*findings, baseline)
    ]
    return {
        "federation": config.name,
        "algorithm": config.algorithm,
        "seed": config.seed,
        "rounds": config.rounds,
        "rows": rows,
    }


def format_audit(
    config: FederationConfig, findings: Sequence[AuditFinding], baseline: AuditFinding, has_accuracy: bool
) -> str:
    """Return the report as text, with one line per scenario.

    Args:
        baseline: the finding of a uniform guess.
        has_accuracy: whether the findings have accuracies.
    """
    width = max(len(finding.scenario.name) for finding in (*findings, baseline))
    lines = [f"{'':{width}}  {'read from':>9}  {'distance':>8}  {'correlation':>11}  {'accuracy':>8}"]
    for finding in (*findings, baseline):
        sources = {leak.reading.source for leak in finding.clients.values()}
        figures = (
            f"{'/'.join(sorted(sources)):>9}  {finding.distance:8.3f}  "
            f"{_format_figure(finding.correlation, 11)}  "
            f"{_format_figure(finding.accuracy, 8)}"
        )
        lines.append(f"{finding.scenario.name:{width}}  {figures}")
    count = len(baseline.clients)
    lines.append(
        f"\nMeans over the first updates of {count} clients. Distance 0 is a full disclosure, the distance "
        "of the guess is none."
    )
    if any("noise_multiplier" in finding.scenario.options for finding in findings):
        lines.append(
            "Noise is drawn from the federation's seed. It hides nothing from an aggregator that knows the "
            "seed."
        )
    if has_accuracy:
        lines.append(
            f"Accuracy of the mixtures on the clients' own held-out samples after {config.rounds} rounds."
        )
    return "\n".join(lines)


def _to_json_number(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _format_figure(value: float, width: int) -> str:
    return f"{value:{width}.3f}" if math.isfinite(value) else f"{'-':>{width}}"
