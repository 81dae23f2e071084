"""The autoencoder of MLPerf Tiny for anomaly detection.

The sample is flattened. Four dense layers, a narrow dense layer (the code), four dense layers, all with batch
norm and ReLU, and a dense layer with as many outputs as the sample has values. At 640 values it has 269,992
weights, moving statistics included.

Source: the baseline of DCASE 2020 task 2 (Y. Koizumi et al., DCASE Workshop 2020), which MLPerf Tiny uses (C.
Banbury et al., NeurIPS Datasets and Benchmarks 2021, section 3).
"""

from typing import Any


def autoencoder(
    input_shape: tuple[int, ...], num_classes: int, *, hidden: int = 128, code: int = 8, depth: int = 4
) -> Any:
    """Build the model. It maps samples, shape (batch, *input_shape), float32, to their reconstruction.

    Args:
        input_shape: shape of a sample.
        num_classes: number of values of a sample.
        hidden: units of a hidden layer.
        code: units of the narrow layer.
        depth: number of hidden layers before and behind the narrow layer.

    Returns:
        The Keras model. The reconstruction has shape (batch, num_classes), float32.
    """
    import keras

    layers = keras.layers
    widths = [*[hidden] * depth, code, *[hidden] * depth]
    blocks = []
    for number, width in enumerate(widths, 1):
        blocks += [
            layers.Dense(width, name=f"fc{number}"),
            layers.BatchNormalization(name=f"norm{number}"),
            layers.ReLU(name=f"relu{number}"),
        ]
    return keras.Sequential(
        [
            keras.Input(input_shape, name="x"),
            layers.Flatten(name="flatten"),
            *blocks,
            layers.Dense(num_classes, name="reconstruction"),
        ],
        name="autoencoder",
    )
