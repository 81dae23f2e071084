"""FedMix (Reisser et al., 2021), section 4.3 and appendix B: 20 clients, four permutations of the labels, K =
4 and K = 6 experts.

The paper's set-up is CIFAR-10 with LeNet-5; reduced, it is Fashion-MNIST with the 44,426 weights of LeNet-5
without padding. Which permutations share an expert for a while depends on the start, so K = 6, which the
paper does not have, is started three times.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from edgefl.config import MIXTURE_ONLY, DataConfig, FederationConfig, ModelConfig, PartitionConfig
from edgefl.reproduce.report import Figure, Verdict, above
from edgefl.reproduce.stage import Result, Scale, Stage

STARTS = {"smoke": 1, "reduced": 3, "full": 3}
CLIENTS = {"smoke": 8, "reduced": 20, "full": 20}
ROUNDS = {"smoke": 2, "reduced": 12, "full": 50}
REFERENCE = {"K 4: experts used": "3", "K 6: best start, round from which it is exact": "9 / 11"}
ABOUT = {
    "reduced": "paper: CIFAR-10, 50,000 samples, server rate .001; here: Fashion-MNIST, 8,000 samples, "
    "server rate .003, experts pruned",
    "full": "paper: 10 rounds and more; here: 50 rounds of the same set-up",
}


def stages(scale: Scale, seed: int) -> tuple[Stage, ...]:
    """Return one federation with four experts and the starts with six."""
    full = scale == "full"
    small = scale == "smoke"

    def stage(experts: int, start: int) -> Stage:
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
            rounds=ROUNDS[scale],
            algorithm="fedmix-permutation",
            options=options,
            model=ModelConfig("lenet5", (32, 32, 3), 10)
            if full
            else ModelConfig("lenet5", (28, 28, 1), 10, {"padding": "valid"}),
            data=DataConfig("cifar10" if full else "fashion-mnist"),
            partition=PartitionConfig("permutation", CLIENTS[scale], {"permutations": 4, **samples}),
            personalization=MIXTURE_ONLY,
        )
        return Stage(f"k{experts}-start{start}", config)

    return (stage(4, 0), *(stage(6, start) for start in range(STARTS[scale])))


def used(result: Result) -> int:
    """Return how many experts some client prefers."""
    return len({row["cluster"] for row in result["clients"]})


def accuracy(result: Result) -> float:
    """Return the mean accuracy over clients, in per cent."""
    return float(100 * result["figures"]["accuracy_mixture"]["mean"])


def exact_from(result: Result) -> int:
    """Return the first round from which on each permutation has experts of its own and one only; 0 when it
    never has.
    """
    truth = {row["id"]: row["truth"] for row in result["clients"]}
    first = 0
    for record in result["records"]:
        told = {
            c: {k: v for k, v in update.items() if k.startswith("q/")}
            for c, update in record["updates"].items()
        }
        found = {client: max(q, key=lambda key: q[key]) for client, q in told.items()}
        groups = [
            {found[client] for client in found if truth[client] == t} for t in sorted(set(truth.values()))
        ]
        exact = all(len(group) == 1 for group in groups) and len(set.union(*groups)) == len(groups)
        first = (first or record["round"]) if exact else 0
    return first


def figures(scale: Scale, results: Sequence[Mapping[str, Result]]) -> tuple[Figure, ...]:
    """Return counts of experts and rounds, how well clients' experts match their permutations, and accuracies
    in per cent.
    """
    reference = REFERENCE if scale == "reduced" else {}

    def figure(name: str, measured: Sequence[float], paper: str = "") -> Figure:
        return Figure(name, tuple(measured), paper, reference.get(name, ""))

    four = [each["k4-start0"] for each in results]
    six = [[each[f"k6-start{start}"] for start in range(STARTS[scale])] for each in results]
    rounds = [[exact_from(result) for result in starts] for starts in six]
    return (
        figure("K 4: experts used", [used(each) for each in four], "4"),
        figure("K 4: adjusted Rand index", [each["adjusted_rand_index"] for each in four], "1"),
        figure("K 4: round from which it is exact, 0 for never", [exact_from(each) for each in four], "10"),
        figure("K 4: accuracy", [accuracy(each) for each in four]),
        figure(
            "K 6: experts used, mean over starts", [sum(map(used, starts)) / len(starts) for starts in six]
        ),
        figure(
            "K 6: adjusted Rand index, best start",
            [max(each["adjusted_rand_index"] for each in starts) for starts in six],
        ),
        figure(
            "K 6: accuracy, mean over starts", [sum(map(accuracy, starts)) / len(starts) for starts in six]
        ),
        figure("K 6: starts that are exact", [sum(r > 0 for r in starts) for starts in rounds]),
        figure(
            "K 6: best start, round from which it is exact",
            [min([r for r in starts if r] or [0]) for starts in rounds],
        ),
    )


def verdicts(scale: Scale, results: Sequence[Mapping[str, Result]]) -> tuple[Verdict, ...]:
    """Return whether the lines hold, on means over seeds."""
    if scale == "smoke":
        return ()
    mean = {figure.name: figure.mean for figure in figures(scale, results)}
    return (
        above("K 4: the experts are exactly the permutations", mean["K 4: adjusted Rand index"], 1.0),
        above("K 6 is exact in at least one of three starts", mean["K 6: starts that are exact"], 1),
    )
