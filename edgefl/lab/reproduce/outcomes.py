"""Benchmark of outcomes: the quality of the models that devices end with, under default settings.

Every algorithm but FedBN runs on federations of real data with 4 to 60 clients each. The sizes were fixed
before the results were known. The first columns of the table are mean accuracies over clients, in per
cent. Each client's models are measured on its own test samples:

- local: the model that a client trains alone, on all of its samples and for at most as many epochs as the
  federation.
- federated: the model of the federation.
- fine-tuned: the federated model after some epochs on the client's samples.
- mixture: the algorithm's personalized model.
- shipped, int8: the model that the client ships, in float and in int8. It is a blend of up to four models.

Where clients differ in their classes only, the models are also measured on the whole test part, weighted to
the classes of each client. Clients have few test samples of their own, so this has a smaller standard error.
"""

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, median, stdev
from typing import Any

from edgefl.base.config import (
    DataConfig,
    FederationConfig,
    ModelConfig,
    PartitionConfig,
    PrivacyConfig,
)
from edgefl.base.errors import ConfigError
from edgefl.base.system.format import NO_VALUE, align_columns
from edgefl.base.verdict import compare_with_local, estimate_chance_level, read_discordant_counts
from edgefl.lab.reproduce.experiment import ExperimentScale
from edgefl.lab.reproduce.report import ExperimentVerdict, Figure, check_limits
from edgefl.lab.reproduce.stage import ExperimentResult, ExperimentStage
from edgefl.learning.algorithms.names import FEDERATED_MODEL, FINE_TUNED_MODEL, MIXTURE_MODEL
from edgefl.learning.algorithms.recommendation import FEW_SAMPLES_ALGORITHM, USUAL_ALGORITHM
from edgefl.learning.algorithms.registry import REGISTRY
from edgefl.learning.client.selection import COMPARED_MODELS, SHIPPED_MODELS

NUM_ROUNDS = 20
PAPER_ALGORITHMS = ("aem", "fedmix", "fedap", "clustered", "pfl-mfe")
"""The algorithms of the five papers. For PFL-MoE it is the variant that `edgefl init` recommends."""
MAIN_ALGORITHMS = (*PAPER_ALGORITHMS, "fedavg", "ditto", "local")
"""The algorithms that run with every seed. Most others run only with the first seed."""
LEFT_OUT_ALGORITHMS = ("fedbn",)
"""Algorithms that need a model with batch norms, which most federations of the benchmark lack."""
GROUP_PARTITION = "group"
"""The partition by people. A client's test samples differ from the others' in more than their classes."""
SMOKE_ALGORITHMS = (USUAL_ALGORITHM, "fedavg", "local")
SHIPPED, INT8 = "shipped", "int8"
METRIC_KEYS: Mapping[str, str] = {
    **{name: f"accuracy_{name}" for name in (*COMPARED_MODELS, SHIPPED)},
    INT8: "accuracy_shipped_int8",
}
"""The client metric for each column of accuracies."""
REGRET = "regret"
BELOW_BEST = "below best kind"
SHIPS_LOCAL = "ships local"
WORSE_THAN_LOCAL = "worse than local"
WORST_CLIENT = "worst client"
MEGABYTES_PER_CLIENT = "MB per client"
SECONDS_PER_CLIENT = "s per client"
MAX_REGRET_POINTS = 1.0
MAX_WORSE_PERCENT = 5.0
MAX_BELOW_LOCAL_POINTS = 0.5
MAX_MIXTURE_BELOW_LOCAL_POINTS = 2.0
MIN_RECOMMENDED_GAIN_POINTS = 2.0
MAX_MASKING_CHANGE_POINTS = 2.0
"""Maximum difference between plain and masked FedAvg, in percentage points.

Masks change a model only by rounding, but training amplifies small differences. The tests of
`edgefl.simulation` with secure aggregation compare the sums themselves.
"""
COLUMN_HEADINGS: Mapping[str, str] = {
    **{name.replace("_", "-"): name for name in METRIC_KEYS},
    WORST_CLIENT: WORST_CLIENT,
    REGRET: REGRET,
    BELOW_BEST: BELOW_BEST,
    "ships local %": SHIPS_LOCAL,
    "worse than local %": WORSE_THAN_LOCAL,
    MEGABYTES_PER_CLIENT: MEGABYTES_PER_CLIENT,
    SECONDS_PER_CLIENT: SECONDS_PER_CLIENT,
}
"""The headings of the table, with the column of each."""
GAIN_COLUMNS = (FEDERATED_MODEL, FINE_TUNED_MODEL, MIXTURE_MODEL, SHIPPED, INT8)
GAIN_HEADINGS = (
    *(name.replace("_", "-") for name in GAIN_COLUMNS),
    "int8, lowest federation",
    "int8, few samples or shared classes",
)
OUTCOME_SCALES = ("smoke", "reduced")
LEGEND = (
    "accuracies in per cent, means over clients and seeds; (22 of 24): number of clients with the model\n"
    "regret: points by which shipped models are below each client's best model in test accuracy; with few\n"
    "test samples, one of four equally good models is points above the others by chance\n"
    "below best kind: points by which shipped models are below the kind of model that is best on average\n"
    "worse than local: clients of all seeds whose shipped model is worse by McNemar's exact test at 5%\n"
    "MB per client: sent and received, with the personalization but without the plan\n"
    "s per client: processor time of all rounds and of the personalization"
)


@dataclass(frozen=True)
class BenchmarkFederation:
    """One federation of the benchmark.

    Attributes:
        about: describes the data and their partition.
        model: as in a configuration.
        data: as in a configuration.
        partition: as in a configuration.
        is_hard_alone: whether a federation should help, because clients have few samples or share classes.
        recommended: the algorithm that `edgefl init` recommends for these data.
    """

    about: str
    model: ModelConfig
    data: DataConfig
    partition: PartitionConfig
    is_hard_alone: bool = False
    recommended: str = USUAL_ALGORITHM


def _configure_lenet5(channels: int, size: int = 28, classes: int = 10) -> ModelConfig:
    return ModelConfig(name="lenet5", input_shape=(size, size, channels), num_classes=classes)


HAR_MODEL = ModelConfig(name="cnn1d", input_shape=(128, 9), num_classes=6)
FASHION_MNIST = DataConfig(name="fashion-mnist", num_train=2000, num_test=2000)
FEDERATIONS: Mapping[str, BenchmarkFederation] = {
    "har": BenchmarkFederation(
        about="UCI HAR, 8 people with 220 training windows each",
        model=HAR_MODEL,
        data=DataConfig(name="uci-har"),
        partition=PartitionConfig(name="group", num_clients=8),
    ),
    "writers": BenchmarkFederation(
        about="MNIST, 10 writers with 90 digits each",
        model=_configure_lenet5(1),
        data=DataConfig(name="mnist-writers"),
        partition=PartitionConfig(name="group", num_clients=10),
        is_hard_alone=True,
    ),
    "fashion-dirichlet": BenchmarkFederation(
        about="Fashion-MNIST, 8 clients, classes by Dirichlet(.5), 250 pictures each",
        model=_configure_lenet5(1),
        data=FASHION_MNIST,
        partition=PartitionConfig(name="dirichlet", num_clients=8, options={"alpha": 0.5}),
        is_hard_alone=True,
    ),
    "fashion-two": BenchmarkFederation(
        about="Fashion-MNIST, 10 clients of two classes, 200 pictures each",
        model=_configure_lenet5(1),
        data=FASHION_MNIST,
        partition=PartitionConfig(name="shards", num_clients=10),
    ),
    "cifar10-majority": BenchmarkFederation(
        about="CIFAR-10, 8 clients, two classes make 80% of 250 pictures",
        model=_configure_lenet5(3, 32),
        data=DataConfig(name="cifar10"),
        partition=PartitionConfig(
            name="p-majority", num_clients=8, options={"p": 0.8, "samples": 250, "test_samples": 150}
        ),
        is_hard_alone=True,
    ),
    "dermamnist": BenchmarkFederation(
        about="DermaMNIST, 16 clients of two packages of 35 pictures",
        model=_configure_lenet5(3, 28, 7),
        data=DataConfig(name="dermamnist"),
        partition=PartitionConfig(name="packages", num_clients=16),
        is_hard_alone=True,
    ),
    "cifar100-tasks": BenchmarkFederation(
        about="20 classes of CIFAR-100, 8 clients in four groups of like classes, two of 100 pictures each",
        model=_configure_lenet5(3, 32, 20),
        data=DataConfig(name="cifar100", options={"classes": list(range(20))}),
        partition=PartitionConfig(
            name="tasks", num_clients=8, options={"samples": 200, "test_samples": 100, "imbalance": 1.0}
        ),
        is_hard_alone=True,
    ),
    "few": BenchmarkFederation(
        about="Fashion-MNIST, 15 clients, Dirichlet(.5), 40 pictures each",
        model=_configure_lenet5(1),
        data=replace(FASHION_MNIST, num_train=600),
        partition=PartitionConfig(name="dirichlet", num_clients=15, options={"alpha": 0.5}),
        is_hard_alone=True,
        recommended=FEW_SAMPLES_ALGORITHM,
    ),
    "many": BenchmarkFederation(
        about="Fashion-MNIST, 4 clients, Dirichlet(.5), 1,000 pictures each",
        model=_configure_lenet5(1),
        data=replace(FASHION_MNIST, num_train=4000),
        partition=PartitionConfig(name="dirichlet", num_clients=4, options={"alpha": 0.5}),
    ),
    "fashion-60": BenchmarkFederation(
        about="Fashion-MNIST, 60 clients, Dirichlet(.5), 50 pictures each",
        model=_configure_lenet5(1),
        data=replace(FASHION_MNIST, num_train=3000, num_test=6000),
        partition=PartitionConfig(name="dirichlet", num_clients=60, options={"alpha": 0.5}),
        is_hard_alone=True,
        recommended=FEW_SAMPLES_ALGORITHM,
    ),
    "cifar10-40": BenchmarkFederation(
        about="CIFAR-10, 40 clients, two classes make 80% of 60 pictures",
        model=_configure_lenet5(3, 32),
        data=DataConfig(name="cifar10"),
        partition=PartitionConfig(
            name="p-majority", num_clients=40, options={"p": 0.8, "samples": 60, "test_samples": 100}
        ),
        is_hard_alone=True,
        recommended=FEW_SAMPLES_ALGORITHM,
    ),
    "har-20": BenchmarkFederation(
        about="UCI HAR, 20 people with 72 training windows each",
        model=HAR_MODEL,
        data=DataConfig(name="uci-har", num_train=1440),
        partition=PartitionConfig(name="group", num_clients=20),
        is_hard_alone=True,
        recommended=FEW_SAMPLES_ALGORITHM,
    ),
    "shoulder": BenchmarkFederation(
        about="Seven shoulder exercises, 7 people with 160 to 320 training windows each",
        model=ModelConfig(name="cnn1d", input_shape=(128, 6), num_classes=7),
        data=DataConfig(name="shoulder"),
        partition=PartitionConfig(name="group", num_clients=7),
    ),
    "spoken-digits": BenchmarkFederation(
        about="Spoken digits as sounds, 4 speakers with 250 takes each, a model with batch norms",
        model=ModelConfig(
            name="edgefl.lab.reproduce.sound_cnn:build_sound_cnn", input_shape=(4096, 1), num_classes=10
        ),
        data=DataConfig(name="spoken-digits", options={"window": 4096, "takes": 25}),
        partition=PartitionConfig(name="group", num_clients=4),
    ),
}
EXTRA_FEDERATION = "fashion-dirichlet"
"""The federation that also runs with secure aggregation, with differential privacy and with late clients."""
SECURE_STAGE = f"{EXTRA_FEDERATION}-secure-aggregation"
PRIVATE_STAGE = f"{EXTRA_FEDERATION}-differential-privacy"
LATE_STAGE = f"{EXTRA_FEDERATION}-late"
NUM_LATE_CLIENTS = 2
"""Number of clients that join after the last round. They are only personalized."""

SeedResults = Sequence[Mapping[str, ExperimentResult]]
"""For each seed, the results by stage."""


def stages(scale: ExperimentScale, seed: int) -> tuple[ExperimentStage, ...]:
    """Return each federation with each algorithm, then the ones with privacy and with late clients.

    Only seed 1 has the algorithms outside `MAIN_ALGORITHMS`, and the stages with privacy and with late
    clients. The scale `smoke` has one federation with `SMOKE_ALGORITHMS`.

    Args:
        seed: random seed of the federations.
    """
    if scale == "smoke":
        return tuple(_make_stage("writers", algorithm, scale, seed) for algorithm in SMOKE_ALGORITHMS)
    others = sorted(set(REGISTRY) - {*MAIN_ALGORITHMS, *LEFT_OUT_ALGORITHMS}) if seed == 1 else []
    all_stages = [
        _make_stage(name, algorithm, scale, seed)
        for name in FEDERATIONS
        for algorithm in (*MAIN_ALGORITHMS, *others)
    ]
    return (*all_stages, *(_make_extra_stages(seed) if seed == 1 else ()))


def select_stages(
    scale: ExperimentScale, seed: int, algorithms: Sequence[str]
) -> tuple[ExperimentStage, ...]:
    """Return the stages of some algorithms, or all stages.

    Args:
        seed: random seed of the federations.
        algorithms: names of algorithms. Empty selects all stages.

    Raises:
        ConfigError: this seed has no stage of an algorithm.
    """
    all_stages = stages(scale, seed)
    if not algorithms:
        return all_stages
    names = {name_stage(federation, algorithm) for federation in FEDERATIONS for algorithm in algorithms}
    selected = tuple(stage for stage in all_stages if stage.name in names)
    if missing := set(algorithms) - {stage.config.algorithm for stage in selected}:
        have = ", ".join(sorted({stage.config.algorithm for stage in all_stages}))
        raise ConfigError(
            f"seed {seed} of --{scale} does not run {', '.join(sorted(missing))}, expected some of {have}"
        )
    return selected


def _make_stage(federation: str, algorithm: str, scale: ExperimentScale, seed: int) -> ExperimentStage:
    config = make_stage_config(federation, algorithm, scale, seed)
    return ExperimentStage(
        name=name_stage(federation, algorithm),
        config=config,
        measure_test=config.partition.name != GROUP_PARTITION,
        measure_int8=algorithm in MAIN_ALGORITHMS,
    )


def name_stage(federation: str, algorithm: str) -> str:
    """Return the name of the stage of an algorithm on a federation.

    Args:
        federation: a key of `FEDERATIONS`.
    """
    return f"{federation}-{algorithm}"


def make_stage_config(federation: str, algorithm: str, scale: ExperimentScale, seed: int) -> FederationConfig:
    """Return the configuration of a stage: defaults, and the number of rounds that `edgefl init` sets.

    The scale `smoke` has two rounds and four clients.

    Args:
        federation: a key of `FEDERATIONS`.
        algorithm: name of the algorithm.
        seed: random seed of the federation.
    """
    benchmark = FEDERATIONS[federation]
    return FederationConfig(
        name="outcomes",
        seed=seed,
        rounds=2 if scale == "smoke" else NUM_ROUNDS,
        algorithm=algorithm,
        model=benchmark.model,
        data=benchmark.data,
        partition=replace(benchmark.partition, num_clients=4) if scale == "smoke" else benchmark.partition,
    )


def _make_extra_stages(seed: int) -> Iterator[ExperimentStage]:
    config = make_stage_config(EXTRA_FEDERATION, "fedavg", "reduced", seed)
    secure = PrivacyConfig(secure_aggregation=True)
    noisy = PrivacyConfig(clip=1.0, noise_multiplier=0.5, population=config.partition.num_clients, delta=1e-2)
    yield ExperimentStage(name=SECURE_STAGE, config=replace(config, privacy=secure))
    yield ExperimentStage(name=PRIVATE_STAGE, config=replace(config, privacy=noisy))
    yield ExperimentStage(
        name=LATE_STAGE, config=replace(config, algorithm="pfl-mfe"), num_late=NUM_LATE_CLIENTS
    )


def figures(results: SeedResults) -> tuple[Figure, ...]:
    """Return all columns of all stages, with one value per seed.

    Args:
        results: for each seed, the results by stage.
    """
    results = with_late_clients(results)
    stages = dict.fromkeys(stage for run in results for stage in run)
    return tuple(
        Figure(f"{stage}: {name}", tuple(_read_only(seed.get(name, ())) for seed in seeds))
        for stage in stages
        for seeds in [[measure_columns([run], stage) for run in results]]
        for name in dict.fromkeys(name for seed in seeds for name in seed if seed[name])
    )


def _read_only(values: Sequence[float]) -> float:
    """Return the only value, or NaN without a value."""
    return values[0] if values else math.nan


def choose_plotted_figures(results: SeedResults) -> tuple[Figure, ...]:
    """Return the figures of the picture: gains of the papers' algorithms over local models, in points.

    Stages without measured gains are left out.

    Args:
        results: for each seed, the results by stage.
    """
    stages = [name_stage(name, algorithm) for algorithm in PAPER_ALGORITHMS for name in FEDERATIONS]
    return tuple(
        Figure(
            f"{stage}: int8 against local",
            tuple(_read_only(measure_gains([run], stage, INT8)) for run in results),
        )
        for stage in stages
        if measure_gains(results, stage, INT8)
    )


def with_late_clients(results: SeedResults) -> SeedResults:
    """Return the results with another entry per stage with late clients, which has only these clients."""

    def expand_stages(stages: Mapping[str, ExperimentResult]) -> Iterator[tuple[str, ExperimentResult]]:
        for stage, run in stages.items():
            yield stage, run
            if late := run.get("late"):
                rows = [row for row in run["clients"] if row["id"] in late]
                yield f"{stage}, its {len(late)} late clients", {"clients": rows}

    return [dict(expand_stages(stages)) for stages in results]


def measure_columns(results: SeedResults, stage: str) -> dict[str, tuple[float, ...]]:
    """Return the columns of a stage by name, with one value per seed. An unmeasured column is empty.

    A column `clients without MODEL` exists if some clients lack a model, most often because its training
    diverged. It has one value, the number of such clients in all seeds.

    Args:
        results: for each seed, the results by stage. Seeds without the stage are left out.
    """
    runs = _find_runs(results, stage)

    def measure_seeds(measure: Callable[[ExperimentResult], float | None]) -> tuple[float, ...]:
        return tuple(value for run in runs if (value := measure(run)) is not None)

    columns = {name: measure_seeds(lambda run, name=name: average_column(run, name)) for name in METRIC_KEYS}  # type: ignore[misc]
    for name in METRIC_KEYS:
        if columns[name] and (num_missing := sum(count_clients_without(run, name) for run in runs)):
            columns[f"clients without {name}"] = (float(num_missing),)
    return columns | {
        WORST_CLIENT: measure_seeds(_find_lowest_accuracy),
        REGRET: measure_seeds(measure_regret),
        BELOW_BEST: measure_seeds(compare_with_best_kind),
        SHIPS_LOCAL: measure_seeds(_measure_local_share),
        WORSE_THAN_LOCAL: measure_seeds(lambda run: measure_worse_share([run])),
        MEGABYTES_PER_CLIENT: measure_seeds(_count_megabytes),
        SECONDS_PER_CLIENT: measure_seeds(lambda run: run.get("device_seconds")),
    }


def _find_runs(results: SeedResults, stage: str) -> list[ExperimentResult]:
    return [stages[stage] for stages in results if stage in stages]


def _read_number(row: Mapping[str, Any], key: str) -> float | None:
    value = row.get(key)
    return None if value is None or not math.isfinite(value) else float(value)


def _select_tested(run: ExperimentResult) -> list[Mapping[str, Any]]:
    """Return the rows of the clients with test samples."""
    return [row for row in run["clients"] if _read_number(row, METRIC_KEYS[SHIPPED]) is not None]


def _read_accuracies(run: ExperimentResult, column: str) -> list[float]:
    numbers = (_read_number(row, METRIC_KEYS[column]) for row in _select_tested(run))
    return [value for value in numbers if value is not None]


def average_column(run: ExperimentResult, column: str) -> float | None:
    """Return the mean of a column over the clients that have it in per cent, or None.

    Args:
        run: the result of a stage.
        column: a key of `METRIC_KEYS`.
    """
    values = _read_accuracies(run, column)
    return 100 * fmean(values) if values else None


def count_clients_without(run: ExperimentResult, column: str) -> int:
    """Return the number of clients with test samples that lack the model of a column.

    Args:
        run: the result of a stage.
        column: a key of `METRIC_KEYS`.
    """
    return len(_select_tested(run)) - len(_read_accuracies(run, column))


def measure_gains(results: SeedResults, stage: str, column: str) -> tuple[float, ...]:
    """Return the gain of a model over the local model in each seed, as a mean over clients in points.

    Clients that lack one of the two models are left out. So are seeds without any other client.

    Args:
        results: for each seed, the results by stage.
        stage: name of the stage.
        column: a key of `METRIC_KEYS`.
    """
    return _average_differences(results, stage, lambda row: METRIC_KEYS[column], METRIC_KEYS["local"])


def measure_class_mix_gains(results: SeedResults, stage: str) -> tuple[float, ...]:
    """Return the gain of shipped models over local models on the class mix of each client, in points.

    It is measured on the whole test part of the data set, weighted to the classes of the client. Seeds
    without this measurement are left out.

    Args:
        results: for each seed, the results by stage.
        stage: name of the stage.
    """
    return _average_differences(
        results, stage, lambda row: f"expected_{SHIPPED_MODELS[int(row['shipped'])]}", "expected_local"
    )


def _average_differences(
    results: SeedResults, stage: str, find_key: Callable[[Mapping[str, Any]], str], other: str
) -> tuple[float, ...]:
    """Return the mean difference of two figures over the clients that have both, in points for each seed.

    Args:
        results: for each seed, the results by stage.
        stage: name of the stage.
        find_key: returns the key of the first figure in the row of a client.
        other: key of the second figure.
    """
    means = []
    for run in _find_runs(results, stage):
        pairs = [(_read_number(row, find_key(row)), _read_number(row, other)) for row in _select_tested(run)]
        differences = [one - two for one, two in pairs if one is not None and two is not None]
        if differences:
            means.append(100 * fmean(differences))
    return tuple(means)


def measure_regret(run: ExperimentResult) -> float | None:
    """Return the mean distance of shipped models below the best model of each client, in points.

    The best model is the best by test accuracy, which no client can know. The result is None without test
    samples.
    """
    rows = _select_tested(run)
    best = [
        max(
            value
            for name in (*COMPARED_MODELS, SHIPPED)
            if (value := _read_number(row, METRIC_KEYS[name])) is not None
        )
        for row in rows
    ]
    lost = [top - row[METRIC_KEYS[SHIPPED]] for top, row in zip(best, rows, strict=True)]
    return 100 * fmean(lost) if lost else None


def compare_with_best_kind(run: ExperimentResult) -> float | None:
    """Return how far the shipped models are below the best kind of model, in points of the means.

    The best kind is the candidate with the highest mean test accuracy. The means are over clients that have
    all kinds that occur. The result is None without such clients.
    """
    kinds = [METRIC_KEYS[name] for name in COMPARED_MODELS if _read_accuracies(run, name)]
    rows = [row for row in _select_tested(run) if all(_read_number(row, kind) is not None for kind in kinds)]
    if not kinds or not rows:
        return None
    best = max(fmean(row[kind] for row in rows) for kind in kinds)
    return 100 * (best - fmean(row[METRIC_KEYS[SHIPPED]] for row in rows))


def measure_worse_share(runs: Sequence[ExperimentResult]) -> float | None:
    """Return the share of clients whose shipped model is worse than their local one, in per cent.

    The test is McNemar's exact one-sided test at 5% on the client's test samples. Clients without a local
    model or without test samples are left out. The result is None if no client remains.

    Args:
        runs: results of stages. A client counts once in each: the same name in another seed or federation is
            another client, with other samples.
    """
    counts = [read_discordant_counts(row) for run in runs for row in _select_tested(run)]
    worse = [compare_with_local(*pair) == "worse" for pair in counts if pair is not None]
    return 100 * fmean(worse) if worse else None


def _find_lowest_accuracy(run: ExperimentResult) -> float | None:
    values = _read_accuracies(run, SHIPPED)
    return 100 * min(values) if values else None


def _measure_local_share(run: ExperimentResult) -> float | None:
    kinds = [kind for row in run["clients"] if (kind := _read_number(row, "shipped")) is not None]
    return 100 * fmean(kind == COMPARED_MODELS.index("local") for kind in kinds) if kinds else None


def _count_megabytes(run: ExperimentResult) -> float | None:
    if "bytes_up" not in run:
        return None
    return float((run["bytes_up"] + run["bytes_down"]) / len(run["clients"]) / 1e6)


def verdicts(scale: ExperimentScale, results: SeedResults) -> tuple[ExperimentVerdict, ...]:
    """Return whether the claims of the benchmark hold.

    Args:
        results: for each seed, the results by stage.

    Returns:
        One verdict per claim. Empty at the scale `smoke`.
    """
    if scale == "smoke":
        return ()
    lines = [line for algorithm in PAPER_ALGORITHMS for line in _judge_algorithm(results, algorithm)]
    return (*lines, _judge_recommendation(results), _judge_against_chance(results), _judge_masking(results))


def _average(values: Sequence[float]) -> float:
    """Return the mean, or NaN without values. No claim holds for NaN."""
    return fmean(values) if values else math.nan


def _find_lowest(values: Mapping[str, float]) -> str:
    """Return the name with the lowest value. A missing value counts as the lowest."""
    return min(values, key=lambda name: -math.inf if math.isnan(values[name]) else values[name])


def _judge_algorithm(results: SeedResults, algorithm: str) -> Iterator[ExperimentVerdict]:
    stages = [name_stage(federation, algorithm) for federation in FEDERATIONS]
    gain = {stage: _average(measure_gains(results, stage, INT8)) for stage in stages}
    worst = _find_lowest(gain)
    yield _with_missing_clients(
        check_limits(
            f"{algorithm}: int8 is at least local - {MAX_BELOW_LOCAL_POINTS:g} everywhere (lowest: {worst})",
            gain[worst],
            low=-MAX_BELOW_LOCAL_POINTS,
        ),
        results,
        stages,
        INT8,
    )
    yield _with_missing_clients(
        check_limits(
            f"{algorithm}: the mixture is at least local - {MAX_MIXTURE_BELOW_LOCAL_POINTS:g} on average",
            _average([_average(measure_gains(results, stage, "mixture")) for stage in stages]),
            low=-MAX_MIXTURE_BELOW_LOCAL_POINTS,
        ),
        results,
        stages,
        "mixture",
    )
    for column, line in (
        (REGRET, "the regret is"),
        (BELOW_BEST, "the shipped models are below the best kind by"),
    ):
        margins = {stage: -_average(measure_columns(results, stage)[column]) for stage in stages}
        worst = _find_lowest(margins)
        yield check_limits(
            f"{algorithm}: {line} at most {MAX_REGRET_POINTS:g} point everywhere (highest: {worst})",
            -margins[worst],
            high=MAX_REGRET_POINTS,
        )
    worse = measure_worse_share([run for stage in stages for run in _find_runs(results, stage)])
    yield check_limits(
        f"{algorithm}: at most {MAX_WORSE_PERCENT:g}% of the clients are worse than local",
        math.nan if worse is None else worse,
        high=MAX_WORSE_PERCENT,
    )


def _with_missing_clients(
    verdict: ExperimentVerdict, results: SeedResults, stages: Sequence[str], column: str
) -> ExperimentVerdict:
    """Return the verdict with the number of clients that it leaves out."""
    runs = [run for stage in stages for run in _find_runs(results, stage)]
    num_missing = sum(
        max(count_clients_without(run, column), count_clients_without(run, "local")) for run in runs
    )
    if not num_missing:
        return verdict
    return replace(verdict, measured=f"{verdict.measured}; {num_missing} clients without {column} or local")


def _judge_recommendation(results: SeedResults) -> ExperimentVerdict:
    stages = [
        name_stage(name, federation.recommended)
        for name, federation in FEDERATIONS.items()
        if federation.is_hard_alone
    ]
    gain = _average([_average(measure_gains(results, stage, INT8)) for stage in stages])
    return check_limits(
        f"the algorithm that is recommended is at least local + {MIN_RECOMMENDED_GAIN_POINTS:g} on average "
        "where clients have few samples or share classes",
        gain,
        low=MIN_RECOMMENDED_GAIN_POINTS,
    )


def _judge_against_chance(results: SeedResults) -> ExperimentVerdict:
    """Return whether each algorithm's mixture is better than a uniform guess on each federation."""
    ahead = {
        stage: _average(measure_columns(results, stage)["mixture"]) - 100 * _find_chance_level(results, name)
        for name in FEDERATIONS
        for algorithm in REGISTRY
        if _find_runs(results, stage := name_stage(name, algorithm))
    }
    worst = _find_lowest(ahead)
    return check_limits(
        f"each mixture is better than a uniform guess, points above it (lowest: {worst})",
        ahead[worst],
        low=0.0,
    )


def _find_chance_level(results: SeedResults, federation: str) -> float:
    run = results[0][name_stage(federation, PAPER_ALGORITHMS[0])]
    tested = sum(int(row["n_test"]) for row in _select_tested(run))
    return estimate_chance_level(FEDERATIONS[federation].model.num_classes, tested)


def _judge_masking(results: SeedResults) -> ExperimentVerdict:
    plain, masked = (
        measure_columns(results[:1], stage)["federated"]
        for stage in (name_stage(EXTRA_FEDERATION, "fedavg"), SECURE_STAGE)
    )
    return check_limits(
        "FedAvg's federated model has the same accuracy with secure aggregation",
        _average(masked) - _average(plain),
        low=-MAX_MASKING_CHANGE_POINTS,
        high=MAX_MASKING_CHANGE_POINTS,
    )


def format_results(results: SeedResults) -> str:
    """Return a table with a row per stage, a legend, the federations, and the gains over local models."""
    all_results = with_late_clients(results)
    rows: list[tuple[str, ...]] = [("federation and algorithm", *COLUMN_HEADINGS)]
    for stage in all_results[0]:
        rows.append((stage, *_format_cells(all_results, stage)))
    return "\n\n".join([align_columns(rows), LEGEND, _describe_federations(), *_format_gains(results)])


def _describe_federations() -> str:
    width = max(map(len, FEDERATIONS))
    lines = [f"{name:{width}}  {federation.about}" for name, federation in FEDERATIONS.items()]
    return "\n".join(["the federations:", *lines])


def _format_gains(results: SeedResults) -> Iterator[str]:
    """Yield tables of the points above local models, with a row per algorithm.

    The algorithms of every seed have their means over seeds. The last table has the first seed of all
    algorithms. Nothing is yielded without an algorithm that all federations have.
    """
    federations = [
        name for name in FEDERATIONS if any(name_stage(name, other) in results[0] for other in REGISTRY)
    ]

    def find_algorithms(seeds: SeedResults) -> list[str]:
        return [
            name
            for name in dict.fromkeys((*MAIN_ALGORITHMS, *sorted(REGISTRY)))
            if name != "local"
            and all(name_stage(federation, name) in run for run in seeds for federation in federations)
        ]

    def measure(algorithm: str, column: str, seeds: SeedResults = results) -> list[float]:
        stages = [name_stage(federation, algorithm) for federation in federations]
        return [_average(measure_gains(seeds, stage, column)) for stage in stages]

    if not federations or not find_algorithms(results):
        return
    int8 = {algorithm: measure(algorithm, INT8) for algorithm in find_algorithms(results)}
    is_hard = [FEDERATIONS[name].is_hard_alone for name in federations]
    yield _align_gains(
        ("points above local", *GAIN_HEADINGS),
        {
            algorithm: [
                *(_average(measure(algorithm, column)) for column in GAIN_COLUMNS),
                _find_lowest_gain(gains),
                _average([*itertools.compress(gains, is_hard)]),
            ]
            for algorithm, gains in int8.items()
        },
    )
    yield _align_gains(("int8 above local", *federations), int8)
    by_class = [name for name in federations if FEDERATIONS[name].partition.name != GROUP_PARTITION]
    class_mix = {
        algorithm: [
            _average(measure_class_mix_gains(results, name_stage(name, algorithm))) for name in by_class
        ]
        for algorithm in int8
    }
    if any(map(math.isfinite, itertools.chain(*class_mix.values()))):
        yield _align_gains(("shipped above local, class mix", *by_class), class_mix)
    errors = [
        stdev(gains) / math.sqrt(len(gains))
        for algorithm in int8
        for name in federations
        if len(gains := measure_gains(results, name_stage(name, algorithm), INT8)) > 1
    ]
    if errors:
        yield (
            f"standard error of int8 above local: {min(errors):.1f} to {max(errors):.1f} points, median "
            f"{median(errors):.1f}"
        )
    first = {name: measure(name, SHIPPED, results[:1]) for name in find_algorithms(results[:1])}
    yield _align_gains(
        ("shipped above local, seed 1", *federations, "mean"),
        {algorithm: [*gains, _average(gains)] for algorithm, gains in first.items()},
    )


def _find_lowest_gain(gains: Sequence[float]) -> float:
    """Return the lowest gain, or NaN if one is missing."""
    return math.nan if any(map(math.isnan, gains)) else min(gains)


def _align_gains(heading: Sequence[str], rows: Mapping[str, Sequence[float]]) -> str:
    """Return a table of points. A missing value is a dash."""
    cells = [
        (name, *(NO_VALUE if math.isnan(value) else f"{value:+.1f}" for value in values))
        for name, values in rows.items()
    ]
    return align_columns([heading, *cells])


def _format_cells(results: SeedResults, stage: str) -> Iterator[str]:
    measured = measure_columns(results, stage)
    clients = sum(len(_select_tested(run)) for run in _find_runs(results, stage))
    for name in COLUMN_HEADINGS.values():
        text = f"{fmean(measured[name]):.1f}" if measured[name] else "-"
        missing = measured.get(f"clients without {name}")
        yield f"{text} ({clients - missing[0]:.0f} of {clients})" if missing else text
