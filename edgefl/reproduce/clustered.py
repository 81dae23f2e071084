"""Clustered federated learning on dense layers: 16 clients of two or three tasks, with and without clusters.

The paper uses CIFAR-100 with five convolutions. The reduced set-up uses Fashion-MNIST with LeNet-5, and 200
samples per client.

Clients are compared by the algorithm's default, which is deltas with threshold 0. The paper compares weights
with threshold .9. The full size runs 50 rounds, because this network is still at chance after the paper's
ten. It also measures lambda = 0, which is plain averaging.

Source: Filippakopoulos et al., Personalization in Distributed tinyML Applications via Adaptive Clustered
Federated Learning.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from edgefl.config import MIXTURE_ONLY, DataConfig, FederationConfig, ModelConfig, PartitionConfig
from edgefl.reproduce.report import ExperimentVerdict, Figure, check_at_least
from edgefl.reproduce.stage import ExperimentResult, ExperimentScale, ExperimentStage

MIXING_RATES = (0.25, 0.5, 0.75)
ROUNDS_BY_SCALE = {"smoke": 3, "reduced": 10, "full": 50}
REDUCED_TASKS: Mapping[str, Mapping[str, int]] = {
    "2 tasks": {"tasks": 2, "num_tasks": 8, "clusters": 4},
    "3 tasks": {"tasks": 3, "num_tasks": 10, "clusters": 2},
}
FULL_TASKS: Mapping[str, Mapping[str, int]] = {
    "2 tasks": {"tasks": 2, "num_tasks": 16, "clusters": 8},
    "3 tasks": {"tasks": 3, "num_tasks": 20, "clusters": 4},
}
SETUP_NOTES = {
    "reduced": "paper: CIFAR-100, five convolutions, weights compared (.9); here: Fashion-MNIST, LeNet-5, "
    "deltas compared (0)",
    "full": "paper: 10 rounds, weights compared with threshold .9; here: 50 rounds, 20 classes of "
    "CIFAR-100, deltas with threshold 0",
}
PAPER_GAINS = {"2 tasks": "+12", "3 tasks": "+11"}
REFERENCE_RESULTS = {
    "2 tasks, clusters": "98.3 / 97.6",
    "2 tasks, none": "94.3 / 92.5",
    "3 tasks, clusters": "82.6 / 79.8",
    "3 tasks, none": "78.6 / 74.6",
}


def stages(scale: ExperimentScale, seed: int) -> tuple[ExperimentStage, ...]:
    """Return a federation for each number of tasks and lambda, with and without clusters.

    The scale `full` adds plain averaging, which is lambda = 0, for each number of tasks.

    Args:
        scale: the scale of the experiment.
        seed: random seed of the federations.
    """
    full = scale == "full"
    small = scale == "smoke"

    def make_stage(label: str, clustering: bool, mixing: float) -> ExperimentStage:
        options: dict[str, Any] = {
            "clustering": clustering,
            "mixing": mixing,
            "epochs": 2,
            "learning_rate": 0.05,
            "momentum": 0.0,
            "batch_size": 32,
        }
        tasks = {
            **(FULL_TASKS if full else REDUCED_TASKS)[label],
            "samples": 60 if small else 200,
            "test_samples": 50,
        }
        config = FederationConfig(
            name="clustered",
            seed=seed,
            rounds=ROUNDS_BY_SCALE[scale],
            algorithm="clustered",
            options=options,
            model=ModelConfig("five-conv", (32, 32, 3), 20)
            if full
            else ModelConfig("lenet5", (28, 28, 1), 10),
            data=DataConfig("cifar100", options={"classes": list(range(20))})
            if full
            else DataConfig("fashion-mnist"),
            partition=PartitionConfig("tasks", 8 if small else 16, tasks),
            personalization=MIXTURE_ONLY,
        )
        return ExperimentStage(_name_stage(label, clustering, mixing), config)

    paired_stages = [
        make_stage(label, clustering, mixing)
        for label in REDUCED_TASKS
        for clustering in (True, False)
        for mixing in _choose_mixing_rates(scale)
    ]
    return (*paired_stages, *(make_stage(label, False, 0.0) for label in REDUCED_TASKS if full))


def _choose_mixing_rates(scale: ExperimentScale) -> tuple[float, ...]:
    return MIXING_RATES[1:2] if scale == "smoke" else MIXING_RATES


def _name_stage(label: str, clustering: bool, mixing: float) -> str:
    return f"{label.replace(' ', '-')}-{'clusters' if clustering else 'none'}-{mixing:g}"


def figures(scale: ExperimentScale, results: Sequence[Mapping[str, ExperimentResult]]) -> tuple[Figure, ...]:
    """Return accuracies in per cent, the gain of clusters, and how well the clusters match the tasks.

    Accuracies are means over clients and lambdas. The gain is in percentage points.

    Args:
        scale: the scale of the experiment.
        results: for each seed, the results by stage.
    """
    rows = []
    for label in REDUCED_TASKS:
        both = {}
        for clustering, way in ((True, "clusters"), (False, "none")):
            names = [_name_stage(label, clustering, mixing) for mixing in _choose_mixing_rates(scale)]
            means = [
                sum(stage_results[n]["figures"]["accuracy_mixture"]["mean"] for n in names) / len(names)
                for stage_results in results
            ]
            both[way] = tuple(100 * value for value in means)
            reference = REFERENCE_RESULTS[f"{label}, {way}"] if scale == "reduced" else ""
            rows.append(Figure(f"{label}, {way}", both[way], "", reference))
        if scale == "full":
            averaged = tuple(
                100 * stage_results[_name_stage(label, False, 0.0)]["figures"]["accuracy_mixture"]["mean"]
                for stage_results in results
            )
            rows.append(Figure(f"{label}, none, lambda 0", averaged))
        gain = tuple(a - b for a, b in zip(both["clusters"], both["none"], strict=True))
        rows.append(Figure(f"{label}, gain", gain, PAPER_GAINS[label]))
        first = _name_stage(label, True, _choose_mixing_rates(scale)[0])
        rows.append(
            Figure(
                f"{label}, adjusted Rand index",
                tuple(stage_results[first]["adjusted_rand_index"] for stage_results in results),
            )
        )
    return tuple(rows)


def verdicts(
    scale: ExperimentScale, results: Sequence[Mapping[str, ExperimentResult]]
) -> tuple[ExperimentVerdict, ...]:
    """Return whether the claims hold for means over seeds.

    Args:
        scale: the scale of the experiment.
        results: for each seed, the results by stage.

    Returns:
        One verdict per claim. Empty at the scale `smoke`.
    """
    if scale == "smoke":
        return ()
    mean = {figure.name: figure.mean for figure in figures(scale, results)}
    gain = (mean["2 tasks, gain"] + mean["3 tasks, gain"]) / 2
    return (
        check_at_least("clusters gain at least 2.5 on average", gain, 2.5),
        *(
            check_at_least(
                f"{label}: the clusters are exactly the true ones", mean[f"{label}, adjusted Rand index"], 1.0
            )
            for label in REDUCED_TASKS
        ),
    )
