"""The benchmark of outcomes: how good the models are that devices take away, with default settings.

Every algorithm runs on nine federations of real data with 4 to 16 clients each. The sizes were fixed before
the results were known. The first columns of the table are mean accuracies over clients, in per cent. Each
client's models are measured on its own test samples:

- local: the model that a client trains alone, on all of its samples and for as many epochs as the federation.
- federated: the model of the federation.
- fine-tuned: the same after some epochs on the client's samples.
- mixture: the algorithm's own personal model.
- shipped, int8: the one of the four that the client chooses on its validation samples, in float and in int8.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

from edgefl.algorithms.recommendation import FEW_SAMPLES_ALGORITHM, USUAL_ALGORITHM
from edgefl.algorithms.registry import REGISTRY
from edgefl.config import (
    DataConfig,
    FederationConfig,
    ModelConfig,
    PartitionConfig,
    PrivacyConfig,
)
from edgefl.reproduce.report import Figure, Verdict, above, below, within
from edgefl.reproduce.stage import Result, Scale, Stage
from edgefl.system.format import columns
from edgefl.verdict import SIGNIFICANCE, chance_level, discordant_counts, sign_test

ROUNDS = 20
PAPERS = ("aem", "fedmix", "fedap", "clustered", "pfl-mfe")
"""The algorithms of the five papers; of PFL-MoE the one that `edgefl init` recommends."""
MAIN = (*PAPERS, "fedavg", "ditto", "local")
"""The algorithms that run with every seed; all others run with the first one."""
IN_SMOKE = (USUAL_ALGORITHM, "fedavg", "local")
CANDIDATES = ("local", "federated", "fine_tuned", "mixture")
"""The models that a client chooses from."""
SHIPPED, INT8 = "shipped", "int8"
METRICS: Mapping[str, str] = {
    **{name: f"accuracy_{name}" for name in (*CANDIDATES, SHIPPED)},
    INT8: "accuracy_shipped_int8",
}
"""The metric of a client for each column of accuracies."""
REGRET = "regret"
BELOW_BEST = "below best kind"
SHIPS_LOCAL = "ships local"
WORSE = "worse than local"
WORST_CLIENT = "worst client"
MEGABYTES = "MB per client"
SECONDS = "s per client"
MAX_REGRET = 1.0
MAX_WORSE = 5.0
MAX_BELOW_LOCAL = 0.5
MAX_MIXTURE_BELOW_LOCAL = 2.0
MIN_GAIN_OF_RECOMMENDED = 2.0
MAX_CHANGE_BY_MASKS = 2.0
"""Points between plain and masked FedAvg. Masks change a model by rounding alone. An accuracy of 75% to 85%
on 2,000 test samples has a standard error of 0.8 to 1.0 points. The limit is two of these.
"""
HEADINGS: Mapping[str, str] = {
    **{name.replace("_", "-"): name for name in METRICS},
    WORST_CLIENT: WORST_CLIENT,
    REGRET: REGRET,
    BELOW_BEST: BELOW_BEST,
    "ships local %": SHIPS_LOCAL,
    "worse than local %": WORSE,
    MEGABYTES: MEGABYTES,
    SECONDS: SECONDS,
}
"""The headings of the table, and the column of each."""
REFUSED = {"full": "its sizes are those of --reduced; use that"}
LEGEND = (
    "accuracies in per cent, means over clients and seeds; (22 of 24): that many clients have the model\n"
    "regret: points that the shipped models are below each client's best model by test accuracy; with few\n"
    "test samples, one of four equally good models is points above the others by chance\n"
    "below best kind: points that the shipped models are below the kind of model that is best on average\n"
    "worse than local: clients whose shipped model is worse by McNemar's exact test at 5%, over all seeds\n"
    "MB per client: sent and received, with the personalization but without the plan\n"
    "s per client: processor time of all rounds and of the personalization"
)
ABOUT: Mapping[str, str] = {"reduced": "paper: none; here: all defaults, and sizes for a desk"}


@dataclass(frozen=True)
class Federation:
    """One federation of the benchmark.

    Attributes:
        about: the data, and how they are dealt to the clients.
        model, data, partition: as in a configuration.
        is_hard_alone: whether clients have few samples, or share classes with others, so that a federation
            should help.
        recommended: the algorithm that `edgefl init` recommends for these data.
    """

    about: str
    model: ModelConfig
    data: DataConfig
    partition: PartitionConfig
    is_hard_alone: bool = False
    recommended: str = USUAL_ALGORITHM


def _lenet5(channels: int, size: int = 28, classes: int = 10) -> ModelConfig:
    return ModelConfig("lenet5", (size, size, channels), classes)


FASHION = DataConfig("fashion-mnist", num_train=2000, num_test=2000)
FEDERATIONS: Mapping[str, Federation] = {
    "har": Federation(
        "UCI HAR, 8 people with 220 training windows each",
        ModelConfig("cnn1d", (128, 9), 6),
        DataConfig("uci-har"),
        PartitionConfig("group", 8),
    ),
    "writers": Federation(
        "MNIST, 10 writers with 90 digits each",
        _lenet5(1),
        DataConfig("mnist-writers"),
        PartitionConfig("group", 10),
        is_hard_alone=True,
    ),
    "fashion-dirichlet": Federation(
        "Fashion-MNIST, 8 clients, classes by Dirichlet(.5), 250 pictures each",
        _lenet5(1),
        FASHION,
        PartitionConfig("dirichlet", 8, {"alpha": 0.5}),
        is_hard_alone=True,
    ),
    "fashion-two": Federation(
        "Fashion-MNIST, 10 clients of two classes, 200 pictures each",
        _lenet5(1),
        FASHION,
        PartitionConfig("shards", 10),
    ),
    "cifar10-majority": Federation(
        "CIFAR-10, 8 clients, two classes make 80% of 250 pictures",
        _lenet5(3, 32),
        DataConfig("cifar10"),
        PartitionConfig("p-majority", 8, {"p": 0.8, "samples": 250, "test_samples": 150}),
        is_hard_alone=True,
    ),
    "dermamnist": Federation(
        "DermaMNIST, 16 clients of two packages of 35 pictures",
        _lenet5(3, 28, 7),
        DataConfig("dermamnist"),
        PartitionConfig("packages", 16),
        is_hard_alone=True,
    ),
    "cifar100-tasks": Federation(
        "20 classes of CIFAR-100, 8 clients in four groups of like classes, 200 pictures each",
        _lenet5(3, 32, 20),
        DataConfig("cifar100", options={"classes": list(range(20))}),
        PartitionConfig("tasks", 8, {"samples": 200, "test_samples": 100}),
        is_hard_alone=True,
    ),
    "few": Federation(
        "Fashion-MNIST, 15 clients, Dirichlet(.5), 40 pictures each",
        _lenet5(1),
        replace(FASHION, num_train=600),
        PartitionConfig("dirichlet", 15, {"alpha": 0.5}),
        is_hard_alone=True,
        recommended=FEW_SAMPLES_ALGORITHM,
    ),
    "many": Federation(
        "Fashion-MNIST, 4 clients, Dirichlet(.5), 1,000 pictures each",
        _lenet5(1),
        replace(FASHION, num_train=4000),
        PartitionConfig("dirichlet", 4, {"alpha": 0.5}),
    ),
}
EXTRA = "fashion-dirichlet"
"""The federation that also runs with secure aggregation, with differential privacy, and with late clients."""
SECURE = f"{EXTRA}-secure-aggregation"
PRIVATE = f"{EXTRA}-differential-privacy"
LATE_STAGE = f"{EXTRA}-late"
LATE = 2
"""Number of clients that join after the last round: they are personalized only."""

Results = Sequence[Mapping[str, Result]]
"""Of each seed, the results by stage."""


def stages(scale: Scale, seed: int) -> tuple[Stage, ...]:
    """Return each federation with each algorithm, then those with privacy and with late clients.

    At the scale `smoke` it is one federation with `IN_SMOKE`.
    """
    if scale == "smoke":
        return tuple(_stage("writers", algorithm, scale, seed) for algorithm in IN_SMOKE)
    others = sorted(set(REGISTRY) - set(MAIN)) if seed == 1 else []
    found = [_stage(name, algorithm, scale, seed) for name in FEDERATIONS for algorithm in (*MAIN, *others)]
    return (*found, *(_extra(seed) if seed == 1 else ()))


def _stage(federation: str, algorithm: str, scale: Scale, seed: int) -> Stage:
    config = config_of(federation, algorithm, scale, seed)
    return Stage(stage_name(federation, algorithm), config, int8=algorithm in MAIN)


def stage_name(federation: str, algorithm: str) -> str:
    """Return the name of the stage of an algorithm on a federation."""
    return f"{federation}-{algorithm}"


def config_of(federation: str, algorithm: str, scale: Scale, seed: int) -> FederationConfig:
    """Return the configuration of a stage: defaults, and the number of rounds that `edgefl init` sets."""
    found = FEDERATIONS[federation]
    return FederationConfig(
        name="outcomes",
        seed=seed,
        rounds=2 if scale == "smoke" else ROUNDS,
        algorithm=algorithm,
        model=found.model,
        data=found.data,
        partition=replace(found.partition, num_clients=4) if scale == "smoke" else found.partition,
    )


def _extra(seed: int) -> Iterator[Stage]:
    config = config_of(EXTRA, "fedavg", "reduced", seed)
    secure = PrivacyConfig(secure_aggregation=True)
    noisy = PrivacyConfig(1.0, 0.5, population=config.partition.num_clients, delta=1e-2)
    yield Stage(SECURE, replace(config, privacy=secure))
    yield Stage(PRIVATE, replace(config, privacy=noisy))
    yield Stage(LATE_STAGE, replace(config, algorithm="pfl-mfe"), late=LATE)


def figures(scale: Scale, results: Results) -> tuple[Figure, ...]:
    """Return all columns of all stages."""
    results = with_late_clients(results)
    return tuple(
        Figure(f"{stage}: {name}", values)
        for stage in results[0]
        for name, values in columns_of(results, stage).items()
        if values
    )


def in_picture(scale: Scale, results: Results) -> tuple[Figure, ...]:
    """Return what the picture shows: the gains over local models of the papers' algorithms, in points."""
    return tuple(
        Figure(f"{stage}: int8 against local", values)
        for algorithm in PAPERS
        for federation in FEDERATIONS
        if (values := gains(results, stage := stage_name(federation, algorithm), INT8))
    )


def with_late_clients(results: Results) -> Results:
    """Return the results with a further entry for each stage with late clients: these clients alone."""

    def expanded(stages: Mapping[str, Result]) -> Iterator[tuple[str, Result]]:
        for stage, run in stages.items():
            yield stage, run
            if late := run.get("late"):
                rows = [row for row in run["clients"] if row["id"] in late]
                yield f"{stage}, its {len(late)} late clients", {"clients": rows}

    return [dict(expanded(stages)) for stages in results]


def columns_of(results: Results, stage: str) -> dict[str, tuple[float, ...]]:
    """Return the columns of a stage: one value per seed, or none where nothing was measured.

    `WORSE` has one value for all seeds. A column `clients without MODEL` is there if a model could not be
    made for some clients, most often because its training diverged.
    """
    runs = _runs(results, stage)

    def each(measure: Callable[[Result], float | None]) -> tuple[float, ...]:
        return tuple(value for run in runs if (value := measure(run)) is not None)

    columns = {name: each(lambda run, name=name: mean_accuracy(run, name)) for name in METRICS}  # type: ignore[misc]
    for name in METRICS:
        if columns[name] and (lacking := sum(clients_without(run, name) for run in runs)):
            columns[f"clients without {name}"] = (float(lacking),)
    worse = share_worse(results, [stage])
    return columns | {
        WORST_CLIENT: each(_worst_client),
        REGRET: each(regret),
        BELOW_BEST: each(below_best_kind),
        SHIPS_LOCAL: each(_share_of_local),
        WORSE: () if worse is None else (worse,),
        MEGABYTES: each(_megabytes),
        SECONDS: each(lambda run: run.get("device_seconds")),
    }


def _runs(results: Results, stage: str) -> list[Result]:
    return [stages[stage] for stages in results if stage in stages]


def _number(row: Mapping[str, Any], key: str) -> float | None:
    value = row.get(key)
    return None if value is None or not math.isfinite(value) else float(value)


def _tested(run: Result) -> list[Mapping[str, Any]]:
    """Return the rows of the clients with test samples."""
    return [row for row in run["clients"] if _number(row, METRICS[SHIPPED]) is not None]


def _accuracies(run: Result, column: str) -> list[float]:
    found = (_number(row, METRICS[column]) for row in _tested(run))
    return [value for value in found if value is not None]


def mean_accuracy(run: Result, column: str) -> float | None:
    """Return the mean of a column over the clients that have it, in per cent; None when no client has it."""
    values = _accuracies(run, column)
    return 100 * fmean(values) if values else None


def clients_without(run: Result, column: str) -> int:
    """Return how many clients with test samples lack the model of a column."""
    return len(_tested(run)) - len(_accuracies(run, column))


def gains(results: Results, stage: str, column: str) -> tuple[float, ...]:
    """Return by how many points a model is better than the local one in each seed, as a mean over clients.

    Clients without one of the two models are left out.
    """
    means = []
    for run in _runs(results, stage):
        pairs = [(_number(row, METRICS[column]), _number(row, METRICS["local"])) for row in _tested(run)]
        differences = [one - other for one, other in pairs if one is not None and other is not None]
        if differences:
            means.append(100 * fmean(differences))
    return tuple(means)


def regret(run: Result) -> float | None:
    """Return how many points the shipped models are below the best model of each client, as a mean.

    The best model is the best by test accuracy, which no client can know. None without test samples.
    """
    rows = _tested(run)
    best = [
        max(value for name in (*CANDIDATES, SHIPPED) if (value := _number(row, METRICS[name])) is not None)
        for row in rows
    ]
    lost = [top - row[METRICS[SHIPPED]] for top, row in zip(best, rows, strict=True)]
    return 100 * fmean(lost) if lost else None


def below_best_kind(run: Result) -> float | None:
    """Return how many points the shipped models are below the best kind of model, as means over clients.

    The best kind is the candidate of the highest mean test accuracy, over the clients that have all that any
    client has. None without such clients.
    """
    kinds = [METRICS[name] for name in CANDIDATES if _accuracies(run, name)]
    rows = [row for row in _tested(run) if all(_number(row, kind) is not None for kind in kinds)]
    if not kinds or not rows:
        return None
    best = max(fmean(row[kind] for row in rows) for kind in kinds)
    return 100 * (best - fmean(row[METRICS[SHIPPED]] for row in rows))


def share_worse(results: Results, stages: Sequence[str]) -> float | None:
    """Return the share of clients whose shipped model is worse than their local one, in per cent.

    McNemar's exact one-sided test at 5%, on the test samples of all seeds of a client. Clients without a
    local model or without test samples are left out. None when no client is left.
    """
    pooled: dict[tuple[str, str], tuple[int, int]] = {}
    for stage in stages:
        for run in _runs(results, stage):
            for row in _tested(run):
                if (counts := discordant_counts(row)) is not None:
                    gained, lost = pooled.get((stage, row["id"]), (0, 0))
                    pooled[stage, row["id"]] = (gained + counts[0], lost + counts[1])
    worse = [sign_test(lost, gained) <= SIGNIFICANCE for gained, lost in pooled.values()]
    return 100 * fmean(worse) if worse else None


def _worst_client(run: Result) -> float | None:
    values = _accuracies(run, SHIPPED)
    return 100 * min(values) if values else None


def _share_of_local(run: Result) -> float | None:
    kinds = [kind for row in run["clients"] if (kind := _number(row, "shipped")) is not None]
    return 100 * fmean(kind == CANDIDATES.index("local") for kind in kinds) if kinds else None


def _megabytes(run: Result) -> float | None:
    if "bytes_up" not in run:
        return None
    return float((run["bytes_up"] + run["bytes_down"]) / len(run["clients"]) / 1e6)


def verdicts(scale: Scale, results: Results) -> tuple[Verdict, ...]:
    """Return whether the lines hold that the benchmark is for."""
    if scale == "smoke":
        return ()
    lines = [line for algorithm in PAPERS for line in _algorithm_verdicts(results, algorithm)]
    return (*lines, _recommended_verdict(results), _chance_verdict(results), _masks_verdict(results))


def _mean(values: Sequence[float]) -> float:
    """Return the mean; NaN without values, which no line holds for."""
    return fmean(values) if values else math.nan


def _lowest(values: Mapping[str, float]) -> str:
    """Return the name with the lowest value; a value that is missing counts as the lowest."""
    return min(values, key=lambda name: -math.inf if math.isnan(values[name]) else values[name])


def _algorithm_verdicts(results: Results, algorithm: str) -> Iterator[Verdict]:
    stages = [stage_name(federation, algorithm) for federation in FEDERATIONS]
    gain = {stage: _mean(gains(results, stage, INT8)) for stage in stages}
    worst = _lowest(gain)
    yield _with_lacking(
        above(
            f"{algorithm}: int8 is at least local - {MAX_BELOW_LOCAL:g} everywhere (lowest: {worst})",
            gain[worst],
            -MAX_BELOW_LOCAL,
        ),
        results,
        stages,
        INT8,
    )
    yield _with_lacking(
        above(
            f"{algorithm}: the mixture is at least local - {MAX_MIXTURE_BELOW_LOCAL:g} on average",
            _mean([_mean(gains(results, stage, "mixture")) for stage in stages]),
            -MAX_MIXTURE_BELOW_LOCAL,
        ),
        results,
        stages,
        "mixture",
    )
    for column, line in (
        (REGRET, "the regret is"),
        (BELOW_BEST, "the shipped models are below the best kind by"),
    ):
        kept = {stage: -_mean(columns_of(results, stage)[column]) for stage in stages}
        worst = _lowest(kept)
        yield below(
            f"{algorithm}: {line} at most {MAX_REGRET:g} point everywhere (highest: {worst})",
            -kept[worst],
            MAX_REGRET,
        )
    worse = share_worse(results, stages)
    yield below(
        f"{algorithm}: at most {MAX_WORSE:g}% of the clients are worse than local",
        math.nan if worse is None else worse,
        MAX_WORSE,
    )


def _with_lacking(verdict: Verdict, results: Results, stages: Sequence[str], column: str) -> Verdict:
    """Return the verdict with the number of clients that it leaves out."""
    runs = [run for stage in stages for run in _runs(results, stage)]
    lacking = sum(max(clients_without(run, column), clients_without(run, "local")) for run in runs)
    if not lacking:
        return verdict
    return replace(verdict, measured=f"{verdict.measured}; {lacking} clients without {column} or local")


def _recommended_verdict(results: Results) -> Verdict:
    stages = [stage_name(name, each.recommended) for name, each in FEDERATIONS.items() if each.is_hard_alone]
    gain = _mean([_mean(gains(results, stage, INT8)) for stage in stages])
    return above(
        f"the algorithm that is recommended is at least local + {MIN_GAIN_OF_RECOMMENDED:g} on average "
        "where clients have few samples or share classes",
        gain,
        MIN_GAIN_OF_RECOMMENDED,
    )


def _chance_verdict(results: Results) -> Verdict:
    """Return whether each algorithm's own model is better than guessing on each federation."""
    ahead = {
        stage: _mean(columns_of(results, stage)["mixture"]) - 100 * _chance(results, name)
        for name in FEDERATIONS
        for algorithm in REGISTRY
        if _runs(results, stage := stage_name(name, algorithm))
    }
    worst = _lowest(ahead)
    return above(f"no mixture is at chance, points above it (lowest: {worst})", ahead[worst], 0.0)


def _chance(results: Results, federation: str) -> float:
    run = results[0][stage_name(federation, PAPERS[0])]
    tested = sum(int(row["n_test"]) for row in _tested(run))
    return chance_level(FEDERATIONS[federation].model.num_classes, tested)


def _masks_verdict(results: Results) -> Verdict:
    plain, masked = (
        columns_of(results[:1], stage)["federated"] for stage in (stage_name(EXTRA, "fedavg"), SECURE)
    )
    return within(
        "FedAvg's federated model has the same accuracy with secure aggregation",
        _mean(masked) - _mean(plain),
        -MAX_CHANGE_BY_MASKS,
        MAX_CHANGE_BY_MASKS,
    )


def table(results: Results) -> str:
    """Return one row per stage, and what the columns mean."""
    results = with_late_clients(results)
    rows: list[tuple[str, ...]] = [("federation and algorithm", *HEADINGS)]
    for stage in results[0]:
        rows.append((stage, *_cells(results, stage)))
    return f"{columns(rows)}\n\n{LEGEND}"


def _cells(results: Results, stage: str) -> Iterator[str]:
    measured = columns_of(results, stage)
    clients = sum(len(_tested(run)) for run in _runs(results, stage))
    for name in HEADINGS.values():
        text = f"{fmean(measured[name]):.1f}" if measured[name] else "-"
        lacking = measured.get(f"clients without {name}")
        yield f"{text} ({clients - lacking[0]:.0f} of {clients})" if lacking else text
