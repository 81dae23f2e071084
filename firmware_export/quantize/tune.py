"""Tuning on a host with TensorFlow: magnitude pruning, weight clustering, quantization-aware training.

The steps run in this order. They use tensorflow-model-optimization on the flat tf-keras clone of a mixture.
The client's own training samples tune it, and they do not leave the host. Pruned weights stay zero in the
later steps.

Source: Zhu and Gupta, arXiv:1710.01878, for pruning, at constant sparsity. Han et al., arXiv:1510.00149, for
clustering. Jacob et al., arXiv:1712.05877, for quantization-aware training.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from edgefl.base.errors import ExportError
from edgefl.base.types import Array, Labels
from edgefl.program.plan.tflite import read_float_constants, with_constants
from firmware_export.quantize.convert import convert_float, convert_keras
from firmware_export.quantize.keras_clone import (
    FlatClone,
    clone,
    define_layers,
    import_tf_keras,
    read_tuned_weights,
)

TUNING_LEARNING_RATE = 1e-4
TUNING_BATCH_SIZE = 32


@dataclass(frozen=True)
class Tuning:
    """What to tune before the quantization.

    Attributes:
        prune: share of each kernel's weights that become zero, from 0 to below 1. 0 prunes nothing.
        cluster: number of different values of each kernel, 2 to 256. 0 clusters nothing.
        qat: whether to train with int8 rounding in the graph.
        epochs: epochs over the training samples, for each of the three steps.

    Raises:
        ExportError: a value is out of range, or `cluster` and `qat` are set together.
    """

    prune: float = 0.0
    cluster: int = 0
    qat: bool = False
    epochs: int = 3

    def __post_init__(self) -> None:
        if not 0 <= self.prune < 1:
            raise ExportError(
                f"prune is {self.prune}, expected a share of the weights from 0 to below 1, such as 0.5"
            )
        if self.cluster and not 2 <= self.cluster <= 256:
            raise ExportError(
                f"cluster_weights is {self.cluster}, expected 2 to 256 values per kernel (0: any), such as 16"
            )
        if self.cluster and self.qat:
            raise ExportError(
                "cluster_weights and qat exclude each other: training would split the clusters again; use "
                "one of the two"
            )
        if self.epochs < 1:
            raise ExportError(f"tuning for {self.epochs} epochs, expected at least 1")

    @property
    def name(self) -> str:
        """A description of the steps. Empty if there are none."""
        done = [f"{self.prune:g} of the weights pruned"] * bool(self.prune) + [
            f"{self.cluster} values a kernel"
        ] * bool(self.cluster)
        return ", ".join(done + ["quantization-aware training"] * self.qat)

    @property
    def total_epochs(self) -> int:
        """Epochs of all steps together. The control of a tuning trains for as many."""
        return self.epochs * (bool(self.prune) + bool(self.cluster) + self.qat)


def _import_optimization() -> Any:
    import_tf_keras()
    try:
        import tensorflow_model_optimization
    except ImportError as error:
        raise ExportError(
            f"tuning needs {error.name}, which this environment lacks; pip install -e '.[aggregator]', or "
            "export untuned"
        ) from error
    return tensorflow_model_optimization


def train_control(model: bytes, x: Array, y: Labels, epochs: int, seed: int = 1) -> bytes:
    """Return the float .tflite after further training, the control of a tuning with as many epochs.

    It trains like the tuning, with the same optimizer, learning rate and batch size.

    Args:
        model: a float .tflite.
        x: training samples, shape (n, ...), float32.
        y: labels, shape (n,), int64.
        epochs: epochs over the samples.

    Raises:
        ExportError: the labels have one class only, a library is missing, or training ends in NaN.
    """
    _check_classes(y)
    import_tf_keras().utils.set_random_seed(seed)
    flat = clone(model)
    _fit(flat.model, x, y, epochs)
    return _write_weights(model, flat, flat.model)


def tune_float(model: bytes, x: Array, y: Labels, tuning: Tuning, seed: int = 1) -> bytes:
    """Return the float .tflite with pruned and clustered kernels.

    Args:
        model: a float .tflite. It is returned unchanged if `tuning` neither prunes nor clusters.
        x: training samples, shape (n, ...), float32.
        y: labels, shape (n,), int64.
        tuning: what to tune.

    Raises:
        ExportError: a library is missing, a layer cannot be tuned, or the weights are not finite afterwards.
    """
    optimization = _import_optimization()
    keras = import_tf_keras()
    keras.utils.set_random_seed(seed)
    flat = clone(model)
    if tuning.prune:
        pruning = optimization.sparsity.keras
        schedule = pruning.ConstantSparsity(tuning.prune, 0, frequency=10)
        wrapped = _wrap(flat, lambda layer: pruning.prune_low_magnitude(layer, pruning_schedule=schedule))
        _fit(wrapped, x, y, tuning.epochs, [pruning.UpdatePruningStep()])
        model = _write_weights(model, flat, pruning.strip_pruning(wrapped))
        flat = clone(model)
    if tuning.cluster:
        from tensorflow_model_optimization.python.core.clustering.keras.experimental.cluster import (
            cluster_weights,
        )

        start = optimization.clustering.keras.CentroidInitialization.KMEANS_PLUS_PLUS
        options = {
            "number_of_clusters": tuning.cluster,
            "cluster_centroids_init": start,
            "preserve_sparsity": bool(tuning.prune),
        }
        wrapped = _wrap(flat, lambda layer: cluster_weights(layer, **options))
        _fit(wrapped, x, y, tuning.epochs)
        model = _write_weights(model, flat, optimization.clustering.keras.strip_clustering(wrapped))
    return model


def tune_int8(model: bytes, x: Array, y: Labels, calibration: Array, tuning: Tuning, bits: int = 8) -> bytes:
    """Return the tuned integer form of a float .tflite.

    Args:
        model: a float .tflite.
        x: training samples, shape (n, ...), float32.
        y: labels, shape (n,), int64.
        calibration: samples for the ranges, shape (m, ...), float32.
        tuning: what to tune.
        bits: bits of the activations, 8 or 16. Quantization-aware training ignores it and uses 8.

    Raises:
        ExportError: the labels have one class only, a library is missing, the mixture has a layer that cannot
            be tuned, or tuning ends in NaN.
    """
    _check_classes(y)
    model = tune_float(model, x, y, tuning)
    if not tuning.qat:
        return convert_float(model, calibration, bits)
    return convert_keras(_train_quantization_aware(clone(model), x, y, tuning), calibration)


def _check_classes(y: Labels) -> None:
    if len(np.unique(y)) < 2:
        raise ExportError(
            f"all {len(y)} training labels are {y[0]}, expected two classes or more; tuning would unlearn "
            "the others"
        )


def _train_quantization_aware(flat: FlatClone, x: Array, y: Labels, tuning: Tuning) -> Any:
    keras = import_tf_keras()
    config = _define_output_config()
    layer_classes = define_layers()
    quantization = _import_optimization().quantization.keras

    def annotate(layer: Any) -> Any:
        # These layers take the range of the kernel or of the input
        has_fixed_range = layer.name.startswith("logistic") or isinstance(layer, layer_classes["Slice"])
        if has_fixed_range or isinstance(layer, tuple(layer_classes.values())):
            return quantization.quantize_annotate_layer(layer, config(not has_fixed_range))
        return quantization.quantize_annotate_layer(layer)

    with quantization.quantize_scope({**layer_classes, config.__name__: config}):
        annotated = keras.models.clone_model(flat.model, clone_function=annotate)
        annotated.set_weights(flat.model.get_weights())
        model = quantization.quantize_apply(annotated)
    _initialize_ranges(model, flat, x[:256])
    kernels = [weight for weight in model.trainable_weights if weight.name.endswith("kernel:0")]
    masks = [(weight.numpy() != 0).astype(np.float32) for weight in kernels]

    def keep_zeros(batch: int, logs: Any) -> None:
        for weight, mask in zip(kernels, masks, strict=True):
            weight.assign(weight * mask)

    callbacks = [keras.callbacks.LambdaCallback(on_train_batch_end=keep_zeros)] if tuning.prune else []
    _fit(model, x, y, tuning.epochs, callbacks)
    return model


def _define_output_config() -> Any:
    """Return a class that quantizes only the outputs of a layer, by their observed range."""
    quantizers = _import_optimization().quantization.keras.quantizers
    base = _import_optimization().quantization.keras.QuantizeConfig

    class OutputConfig(base):  # type: ignore[misc, valid-type]
        def __init__(self, watched: bool) -> None:
            self.watched = watched

        def get_weights_and_quantizers(self, layer: Any) -> list[Any]:
            return []

        def get_activations_and_quantizers(self, layer: Any) -> list[Any]:
            return []

        def set_quantize_weights(self, layer: Any, quantize_weights: Any) -> None:
            pass

        def set_quantize_activations(self, layer: Any, quantize_activations: Any) -> None:
            pass

        def get_output_quantizers(self, layer: Any) -> list[Any]:
            one = quantizers.MovingAverageQuantizer(
                num_bits=8, per_axis=False, symmetric=False, narrow_range=False
            )
            return [one] * self.watched

        def get_config(self) -> dict[str, Any]:
            return {"watched": self.watched}

    return OutputConfig


def _initialize_ranges(model: Any, flat: FlatClone, x: Array) -> None:
    """Set the initial ranges for training to the ranges of the layers' values.

    The default is -6 to 6, and training moves it only slowly.
    """
    layers = flat.model.layers[1:]
    values = import_tf_keras().Model(flat.model.input, [layer.output for layer in layers])
    outputs = {layer.name: array for layer, array in zip(layers, values.predict(x, verbose=0), strict=True)}
    before = {layer.name: _find_source(layer) for layer in layers}
    for layer in model.layers:
        name = layer.name.removeprefix("quant_")
        for weight in layer.weights:
            kind = weight.name.split("/")[-1]
            if "kernel" in kind or not kind.endswith(("_min:0", "_max:0")):
                continue
            array = outputs.get(before[name], x) if "pre_activation" in kind else outputs.get(name, x)
            weight.assign(
                min(0.0, float(array.min())) if kind.endswith("_min:0") else max(0.0, float(array.max()))
            )


def _find_source(layer: Any) -> str:
    """Return the name of the layer that feeds a layer with one input."""
    source = layer.input[0] if isinstance(layer.input, list) else layer.input
    return str(source.node.layer.name)


def _wrap(flat: FlatClone, wrapper: Any) -> Any:
    keras = import_tf_keras()
    wrapped = keras.models.clone_model(
        flat.model,
        clone_function=lambda layer: (
            wrapper(_copy(layer)) if layer.name in flat.weight_tensors else _copy(layer)
        ),
    )
    return wrapped


def _copy(layer: Any) -> Any:
    made = layer.__class__.from_config(layer.get_config())
    if layer.weights:
        made.build(layer.input_shape)
        made.set_weights(layer.get_weights())
    return made


def _fit(model: Any, x: Array, y: Labels, epochs: int, callbacks: list[Any] | None = None) -> None:
    keras = import_tf_keras()
    predicted = model.predict(x[:64], verbose=0)
    # A mixture of probabilities has no logits as outputs
    probabilities = bool((predicted >= -0.01).all() and (np.abs(predicted.sum(axis=1) - 1) < 0.1).all())
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=not probabilities)
    model.compile(keras.optimizers.Adam(TUNING_LEARNING_RATE, clipnorm=1.0), loss)
    model.fit(x, y, TUNING_BATCH_SIZE, epochs, verbose=0, callbacks=callbacks or [])


def _write_weights(model: bytes, flat: FlatClone, tuned: Any) -> bytes:
    values: Mapping[int, Array] = read_tuned_weights(flat, tuned, read_float_constants(model))
    if not all(np.isfinite(value).all() for value in values.values()):
        raise ExportError(
            "tuning ended in NaN or infinite weights; prune less, or allow more values per kernel"
        )
    return with_constants(model, values)
