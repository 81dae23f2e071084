"""Multilayer perceptron: dense ReLU layers on the flattened sample, then a dense layer of logits.

The experts of FedMix on MNIST have two hidden layers with 200 units each.

Source: M. Reisser et al., Federated Mixture of Experts, arXiv:2107.06724, appendix F.
"""

from typing import Any


def mlp(input_shape: tuple[int, ...], num_classes: int, *, hidden: int = 200, layers: int = 2) -> Any:
    """Build the model. It maps samples, shape (batch, *input_shape), float32, to logits.

    Args:
        input_shape: shape of one sample.
        hidden: units of each hidden layer.
        layers: number of hidden layers.
    """
    import keras

    return keras.Sequential(
        [
            keras.Input(input_shape, name="x"),
            keras.layers.Flatten(name="flatten"),
            *(
                keras.layers.Dense(hidden, activation="relu", name=f"fc{number}")
                for number in range(1, layers + 1)
            ),
            keras.layers.Dense(num_classes, name=f"fc{layers + 1}"),
        ],
        name="mlp",
    )
