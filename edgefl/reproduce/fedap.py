"""FedAP, table 1: seven classes, 34 clients of two packages with 56 training and 14 test samples each.

FedAvg and FedAP share their rounds up to the server's step, so four federations give all figures. They run
with or without clusters, and with a step of 1 or a step that falls to .46. Each is measured before and after
the clients' local epochs.

The paper uses MobileNetV2 on HAM10000. The reduced set-up uses LeNet-5 on seven classes of Fashion-MNIST. The
clustering round comes after the rounds without clusters and before the rounds with them. It counts as
neither.

Source: Yeganeh et al., 2022.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from edgefl.config import MIXTURE_ONLY, DataConfig, FederationConfig, ModelConfig, PartitionConfig
from edgefl.reproduce.report import ExperimentVerdict, Figure, check_at_least, check_at_most
from edgefl.reproduce.stage import ExperimentResult, ExperimentScale, ExperimentStage

ROUNDS_BY_SCALE = {"smoke": (2, 4), "reduced": (40, 260), "full": (40, 1280)}
STAGE_MODELS: Mapping[str, tuple[str, str]] = {
    "FedAvg": ("fedavg", "federated"),
    "FedAvg + clusters": ("fedavg-hc", "federated"),
    "FedAP": ("fedap", "mixture"),
    "FedAP + clusters": ("fedap-hc", "mixture"),
    "FedAvg + fine-tuning": ("fedavg", "mixture"),
    "Local": ("local", "mixture"),
}
SETUP_NOTES = {
    "reduced": "paper: HAM10000, MobileNetV2 trained on ImageNet, cut at distance 5; here: Fashion-MNIST, "
    "LeNet-5, six clusters",
}
REFUSALS = {
    "full": "the paper starts from MobileNetV2 trained on ImageNet, and edgefl has no such weights. From "
    "random weights it stays at chance for about ten hours, and all clients are in one cluster; use "
    "--reduced, or simulate fedap with your own .keras file",
}
PAPER_RESULTS = {
    "FedAvg": (41.1, 34.3),
    "FedAvg + clusters": (44.1, 20.9),
    "FedAP": (84.1, 14.5),
    "FedAP + clusters": (86.9, 12.8),
}
REFERENCE_RESULTS = {
    "FedAvg": "79.4 / 81.1",
    "FedAvg + clusters": "92.0 / 91.6",
    "FedAP": "93.3 / 94.1",
    "FedAP + clusters": "93.7 / 94.3",
    "FedAvg + fine-tuning": "92.4 / 93.9",
    "Local": "62.8 / 56.3",
}


def stages(scale: ExperimentScale, seed: int) -> tuple[ExperimentStage, ...]:
    """Return the four federations, and the clients' training alone.

    Args:
        scale: the scale of the experiment.
        seed: random seed of the federations.
    """
    before, after = ROUNDS_BY_SCALE[scale]
    full = scale == "full"
    model = (
        ModelConfig("mobilenetv2", (64, 64, 3), 7, {"dropout": 0.8})
        if full
        else ModelConfig("lenet5", (28, 28, 1), 7)
    )
    data = (
        DataConfig("dermamnist", options={"size": 64})
        if full
        else DataConfig("fashion-mnist", options={"classes": list(range(7))})
    )
    rate: dict[str, Any] = {"learning_rate": 0.001} if full else {"learning_rate": 0.05}

    def make_config(algorithm: str, rounds: int, options: dict[str, Any]) -> FederationConfig:
        return FederationConfig(
            name="fedap",
            seed=seed,
            rounds=rounds,
            clients_per_round=5,
            algorithm=algorithm,
            options=options,
            model=model,
            data=data,
            partition=PartitionConfig("packages", 8 if scale == "smoke" else 34),
            personalization=MIXTURE_ONLY,
        )

    def make_stage(name: str, clustering: bool, beta_end: float) -> ExperimentStage:
        options = (
            rate
            | {
                "clustering": clustering,
                "pretrain_rounds": before,
                "cluster_epochs": 3,
                "cut_distance": 5.0,
                "epochs": 1,
                "momentum": 0.0,
                "beta_end": beta_end,
                "personalize_epochs": 7,
                "least_steps": 0,
                "batch_size": 16,
                "decay_rounds": after if clustering else before + after,
            }
            | ({} if full else {"num_clusters": 3 if scale == "smoke" else 6})
        )
        return ExperimentStage(name, make_config("fedap", before + after + clustering, options))

    pairs = (
        ("fedavg", False, 1.0),
        ("fedavg-hc", True, 1.0),
        ("fedap", False, 0.46),
        ("fedap-hc", True, 0.46),
    )
    alone = {**rate, "momentum": 0.0, "batch_size": 16, "epochs": min(50, before + after)}
    return (*(make_stage(*pair) for pair in pairs), ExperimentStage("local", make_config("local", 1, alone)))


def figures(scale: ExperimentScale, results: Sequence[Mapping[str, ExperimentResult]]) -> tuple[Figure, ...]:
    """Return accuracy and its standard deviation over clients, in per cent.

    Args:
        scale: the scale of the experiment.
        results: for each seed, the results by stage.
    """
    rows = []
    for name, (stage, model) in STAGE_MODELS.items():
        for part, column, label in (("mean", 0, name), ("std", 1, f"{name}, std over clients")):
            measured = tuple(
                100 * stage_results[stage]["figures"][f"accuracy_{model}"][part] for stage_results in results
            )
            reference = REFERENCE_RESULTS[name] if scale == "reduced" and part == "mean" else ""
            rows.append(
                Figure(
                    label,
                    measured,
                    f"{PAPER_RESULTS[name][column]}" if name in PAPER_RESULTS else "",
                    reference,
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
    return (
        check_at_least("FedAP is at least FedAvg + 8", mean["FedAP"], mean["FedAvg"] + 8),
        check_at_least(
            "FedAvg in clusters is at least FedAvg + 5", mean["FedAvg + clusters"], mean["FedAvg"] + 5
        ),
        check_at_least(
            "FedAP in clusters is at least FedAP - 2", mean["FedAP + clusters"], mean["FedAP"] - 2
        ),
        check_at_most(
            "FedAP's std is below FedAvg's",
            mean["FedAP, std over clients"],
            mean["FedAvg, std over clients"] - 1e-9,
        ),
    )
