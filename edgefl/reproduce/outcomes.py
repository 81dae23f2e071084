"""What devices take away: every algorithm with the settings of `edgefl init`, on real data of several kinds.

Each federation is small enough for a desk: 4 to 20 clients. Its size was fixed before its results were known.
The columns are means over clients of the accuracy on the client's own test samples, in per cent. `local` is
the model that a client trains alone, for as many epochs as the federation takes, on all of its samples.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from edgefl.algorithms.registry import REGISTRY
from edgefl.config import (
    DataConfig,
    FederationConfig,
    ModelConfig,
    PartitionConfig,
    PrivacyConfig,
)
from edgefl.reproduce.report import Figure, Verdict, above
from edgefl.reproduce.stage import Result, Scale, Stage
from edgefl.system.format import columns
from edgefl.verdict import sign_test

ROUNDS = 20
PAPERS = ("aem", "fedmix", "fedap", "clustered", "pfl-mfe")
"""The algorithms of the five papers; of PFL-MoE the one that `edgefl init` recommends."""
MAIN = (*PAPERS, "fedavg", "ditto", "local")
"""The algorithms that run with every seed; all others run with the first one."""
COLUMNS = ("local", "federated", "fine_tuned", "mixture", "shipped")
INT8 = "int8"
SIGNIFICANCE = 0.05
REFUSED = {"full": "its sizes are those of --reduced; use that"}
ABOUT: Mapping[str, str] = {"reduced": "paper: none; here: all defaults, and sizes for a desk"}


@dataclass(frozen=True)
class Federation:
    """One federation of the benchmark.

    Attributes:
        about: how the samples lie on the clients.
        model, data, partition: as in a configuration.
        is_hard_alone: whether clients have few samples, or share classes with others, so that a federation
            should help.
    """

    about: str
    model: ModelConfig
    data: DataConfig
    partition: PartitionConfig
    is_hard_alone: bool = False


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
    ),
    "many": Federation(
        "Fashion-MNIST, 4 clients, Dirichlet(.5), 1,000 pictures each",
        _lenet5(1),
        replace(FASHION, num_train=4000),
        PartitionConfig("dirichlet", 4, {"alpha": 0.5}),
    ),
}
EXTRA = "fashion-dirichlet"
"""The federation that also runs with secure aggregation, with noise, and with clients that join late."""
LATE = 2
"""Number of clients that take part in no round."""


def stages(scale: Scale, seed: int) -> tuple[Stage, ...]:
    """Return each federation with each algorithm, then those with privacy and with late clients."""
    federations = ["writers"] if scale == "smoke" else list(FEDERATIONS)
    others = sorted(set(REGISTRY) - set(MAIN)) if seed == 1 and scale != "smoke" else []
    found = [
        Stage(stage_name(name, algorithm), config_of(name, algorithm, scale, seed), int8=algorithm in MAIN)
        for name in federations
        for algorithm in (*MAIN, *others)
    ]
    return (*found, *(_extra(seed) if seed == 1 and scale != "smoke" else ()))


def stage_name(federation: str, algorithm: str) -> str:
    """Return the name of a stage, which is that of its directory."""
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
    yield Stage(f"{EXTRA}-secure-aggregation", replace(config, privacy=secure))
    yield Stage(f"{EXTRA}-differential-privacy", replace(config, privacy=noisy))
    yield Stage(f"{EXTRA}-late", replace(config, algorithm="pfl-mfe"), late=LATE)


def figures(scale: Scale, results: Sequence[Mapping[str, Result]]) -> tuple[Figure, ...]:
    """Return the mean accuracy of each model of each stage, in per cent."""
    return tuple(
        Figure(f"{stage}: {column}", measured)
        for stage in results[0]
        for column in (*COLUMNS, INT8)
        if (measured := measured_of(results, stage, column))
    )


def measured_of(results: Sequence[Mapping[str, Result]], stage: str, column: str) -> tuple[float, ...]:
    """Return the mean over clients of a figure of a stage in each seed, in per cent."""
    key = "accuracy_shipped_int8" if column == INT8 else f"accuracy_{column}"
    runs = [each[stage] for each in results if stage in each]
    return tuple(100 * _mean(run, key) for run in runs if any(key in row for row in run["clients"]))


def _mean(run: Result, key: str) -> float:
    return float(np.mean([row[key] for row in run["clients"] if row.get(key) is not None]))


def regret(run: Result) -> float:
    """Return how far the shipped models are below the best of the same clients' models, in points.

    The best is chosen by test accuracy for each client, which no client can do.
    """
    rows = run["clients"]
    best = [
        max(row[f"accuracy_{name}"] for name in COLUMNS if row.get(f"accuracy_{name}") is not None)
        for row in rows
    ]
    return float(100 * np.mean([top - row["accuracy_shipped"] for top, row in zip(best, rows, strict=True)]))


def share_worse(results: Sequence[Mapping[str, Result]], stage: str) -> float:
    """Return the share of clients whose shipped model is worse than their local one, in per cent.

    McNemar's exact one-sided test at 5%, on the test samples of all seeds of a client.
    """
    counts: dict[str, list[int]] = {}
    for each in results:
        for row in each[stage]["clients"] if stage in each else ():
            pooled = counts.setdefault(row["id"], [0, 0])
            pooled[0] += int(row["test_gained"])
            pooled[1] += int(row["test_lost"])
    worse = [sign_test(lost, gained) <= SIGNIFICANCE for gained, lost in counts.values()]
    return float(100 * np.mean(worse))


def verdicts(scale: Scale, found: Sequence[Figure]) -> tuple[Verdict, ...]:
    """Return whether the shipped models are as good as the local ones, and the mixtures nearly so."""
    if scale == "smoke":
        return ()
    mean = {figure.name: figure.mean for figure in found}
    lines = []
    for algorithm in PAPERS:
        names = [stage_name(federation, algorithm) for federation in FEDERATIONS]
        ahead = {name: mean[f"{name}: {INT8}"] - mean[f"{name}: local"] for name in names}
        worst = min(ahead, key=lambda name: ahead[name])
        lines.append(
            above(f"{algorithm}: int8 is at least local - .5 everywhere (worst: {worst})", ahead[worst], -0.5)
        )
        mixed = float(np.mean([mean[f"{name}: mixture"] - mean[f"{name}: local"] for name in names]))
        lines.append(above(f"{algorithm}: the mixture is at least local - 2 on average", mixed, -2.0))
    return tuple(lines)


def table(results: Sequence[Mapping[str, Result]]) -> str:
    """Return one row per stage: accuracies in per cent, and what was shipped at which cost."""
    heads = (
        "federation and algorithm",
        *(name.replace("_", "-") for name in (*COLUMNS, INT8)),
        "worst client",
        "regret",
        "ships local",
        "worse %",
        "MB a client",
        "s a client",
    )
    rows: list[tuple[str, ...]] = [heads]
    for stage in results[0]:
        runs = [each[stage] for each in results if stage in each]
        rows.append((stage, *_cells(results, stage, runs)))
    return columns(rows)


def _cells(results: Sequence[Mapping[str, Result]], stage: str, runs: Sequence[Result]) -> Iterator[str]:
    for column in (*COLUMNS, INT8):
        measured = measured_of(results, stage, column)
        yield f"{np.mean(measured):.1f}" if measured else "-"
    rows = [row for run in runs for row in run["clients"]]
    yield f"{100 * min(row['accuracy_shipped'] for row in rows):.1f}"
    yield f"{np.mean([regret(run) for run in runs]):.1f}"
    yield f"{100 * np.mean([row['shipped'] == 0 for row in rows]):.0f}%"
    yield f"{share_worse(results, stage):.0f}" if "test_gained" in rows[0] else "-"
    clients = [len(run["clients"]) for run in runs]
    traffic = [(run["bytes_up"] + run["bytes_down"]) / n for run, n in zip(runs, clients, strict=True)]
    yield f"{np.mean(traffic) / 1e6:.1f}"
    yield f"{np.mean([run['client_seconds'] for run in runs]):.1f}"
