"""Compares FedAvg with PFL-MFE on 20 clients that have different shares of the classes.

python docs/examples/compare_algorithms.py draws algorithms.png in about a minute.
"""

from dataclasses import replace

import edgefl

CONFIG = edgefl.FederationConfig(
    rounds=10,
    algorithm="fedavg",
    model=edgefl.ModelConfig(name="lenet5", input_shape=(28, 28, 1), num_classes=10),
    data=edgefl.DataConfig(name="digits"),
    partition=edgefl.PartitionConfig(name="dirichlet", num_clients=20, options={"alpha": 0.3}),
)


def main() -> None:
    """Simulate both algorithms, print the mean accuracy of their personal models, and draw it by client."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 4))
    axes = figure.subplots()
    for algorithm in ("fedavg", "pfl-mfe"):
        history = edgefl.simulate(replace(CONFIG, algorithm=algorithm), processes=2)
        accuracies = history.to_client_dataframe()["accuracy_mixture"]
        print(f"{algorithm}: {accuracies.mean():.3f}")
        axes.plot(sorted(accuracies), label=algorithm)
    axes.set(xlabel="clients, sorted", ylabel="accuracy of the personal model")
    axes.legend()
    figure.savefig("algorithms.png")


if __name__ == "__main__":
    main()
