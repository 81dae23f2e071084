"""FedMix, section 4.3 and appendix B: 20 clients, four label permutations, K = 4 and K = 6 experts.

The paper uses CIFAR-10 with LeNet-5. The reduced set-up uses Fashion-MNIST with the 44,426 weights of LeNet-5
without padding.

The random start decides which permutations share an expert for a while. The paper has no K = 6. It is started
three times here.

Source: Reisser et al., Federated Mixture of Experts, 2021, section 4.3 and appendix B.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from edgefl.config import MIXTURE_ONLY, DataConfig, FederationConfig, ModelConfig, PartitionConfig
from edgefl.reproduce.report import ExperimentVerdict, Figure, check_at_least
from edgefl.reproduce.stage import ExperimentResult, ExperimentScale, ExperimentStage

STARTS_BY_SCALE = {"smoke": 1, "reduced": 3, "full": 3}
CLIENTS_BY_SCALE = {"smoke": 8, "reduced": 20, "full": 20}
ROUNDS_BY_SCALE = {"smoke": 2, "reduced": 12, "full": 50}
REFERENCE_RESULTS = {"K 4: experts used": "3", "K 6: best start, round from which it is exact": "9 / 11"}
SETUP_NOTES = {
    "reduced": "paper: CIFAR-10, 50,000 samples, server rate .001; here: Fashion-MNIST, 8,000 samples, "
    "server rate .003, experts pruned",
    "full": "paper: 10 rounds and more; here: 50 rounds of the same set-up",
}


def stages(scale: ExperimentScale, seed: int) -> tuple[ExperimentStage, ...]:
    """Return one federation with four experts, and the federations with six, one for each start.

    Args:
        scale: the scale of the experiment.
        seed: random seed of the first start. The seeds of further starts are derived from it.
    """
    full = scale == "full"
    small = scale == "smoke"

    def make_stage(experts: int, start: int) -> ExperimentStage:
        options: dict[str, Any] = {
            "num_experts": experts,
            "epochs": 3,
            "batch_size": 64,
            "server_learning_rate": 1e-3 if full else 3e-3,
            "prune": 0.0 if full else 0.1,
        }
        samples = {} if full else {"samples": 128 if small else 400, "test_samples": 100}
        config = FederationConfig(
            name="fedmix-permutation",
            seed=seed if start == 0 else 1000 * start + seed,
            rounds=ROUNDS_BY_SCALE[scale],
            algorithm="fedmix-permutation",
            options=options,
            model=ModelConfig("lenet5", (32, 32, 3), 10)
            if full
            else ModelConfig("lenet5", (28, 28, 1), 10, {"padding": "valid"}),
            data=DataConfig("cifar10" if full else "fashion-mnist"),
            partition=PartitionConfig("permutation", CLIENTS_BY_SCALE[scale], {"permutations": 4, **samples}),
            personalization=MIXTURE_ONLY,
        )
        return ExperimentStage(f"k{experts}-start{start}", config)

    return (make_stage(4, 0), *(make_stage(6, start) for start in range(STARTS_BY_SCALE[scale])))


def count_used_experts(result: ExperimentResult) -> int:
    """Return the number of experts that at least one client prefers."""
    return len({row["cluster"] for row in result["clients"]})


def average_mixture_accuracy(result: ExperimentResult) -> float:
    """Return the mean accuracy over clients, in per cent."""
    return float(100 * result["figures"]["accuracy_mixture"]["mean"])


def find_exact_round(result: ExperimentResult) -> int:
    """Return the first round from which the experts match the permutations exactly, or 0.

    In an exact match, all clients of a permutation prefer the same expert, and no other client prefers it.
    """
    truth = {row["id"]: row["truth"] for row in result["clients"]}
    first = 0
    for record in result["records"]:
        q_by_client = {
            c: {k: v for k, v in update.items() if k.startswith("q/")}
            for c, update in record["updates"].items()
        }
        best_experts = {client: max(q, key=lambda key: q[key]) for client, q in q_by_client.items()}
        groups = [
            {best_experts[client] for client in best_experts if truth[client] == t}
            for t in sorted(set(truth.values()))
        ]
        is_exact = all(len(group) == 1 for group in groups) and len(set.union(*groups)) == len(groups)
        first = (first or record["round"]) if is_exact else 0
    return first


def figures(scale: ExperimentScale, results: Sequence[Mapping[str, ExperimentResult]]) -> tuple[Figure, ...]:
    """Return counts of experts and rounds, the match with the permutations, and accuracies in per cent.

    Args:
        scale: the scale of the experiment.
        results: for each seed, the results by stage.
    """
    reference = REFERENCE_RESULTS if scale == "reduced" else {}

    def make_figure(name: str, measured: Sequence[float], paper: str = "") -> Figure:
        return Figure(name, tuple(measured), paper, reference.get(name, ""))

    four = [run["k4-start0"] for run in results]
    six = [[run[f"k6-start{start}"] for start in range(STARTS_BY_SCALE[scale])] for run in results]
    rounds = [[find_exact_round(result) for result in starts] for starts in six]
    return (
        make_figure("K 4: experts used", [count_used_experts(run) for run in four], "4"),
        make_figure("K 4: adjusted Rand index", [run["adjusted_rand_index"] for run in four], "1"),
        make_figure(
            "K 4: round from which it is exact, 0 for never", [find_exact_round(run) for run in four], "10"
        ),
        make_figure("K 4: accuracy", [average_mixture_accuracy(run) for run in four]),
        make_figure(
            "K 6: experts used, mean over starts",
            [sum(map(count_used_experts, starts)) / len(starts) for starts in six],
        ),
        make_figure(
            "K 6: adjusted Rand index, best start",
            [max(run["adjusted_rand_index"] for run in starts) for starts in six],
        ),
        make_figure(
            "K 6: accuracy, mean over starts",
            [sum(map(average_mixture_accuracy, starts)) / len(starts) for starts in six],
        ),
        make_figure("K 6: starts that are exact", [sum(r > 0 for r in starts) for starts in rounds]),
        make_figure(
            "K 6: best start, round from which it is exact",
            [min([r for r in starts if r] or [0]) for starts in rounds],
        ),
    )


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
    return (
        check_at_least(
            "K 4: the experts are exactly the permutations", mean["K 4: adjusted Rand index"], 1.0
        ),
        check_at_least("K 6 is exact in at least one of three starts", mean["K 6: starts that are exact"], 1),
    )
