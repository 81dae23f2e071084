"""A Keras 3 model as pure functions of its weights, and its split into trunk and head.

Layers are called one by one through `stateless_call`, so that weights, moving statistics and dropout noise
are arguments. A model ends with a chain of Dense, Dropout and activation layers. The head starts at the first
Dense layer of this chain, and the trunk is everything before it. The functions return logits: a softmax at
the end of the model is left out, because loss and mixing need its input. A model for another task than
classification may end with other layers. It then has no head.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from edgefl.compiler.keras_graph import find_producer
from edgefl.compiler.layers import CONSTANT_LAYERS, call_layer, normalize
from edgefl.compiler.recurrent import check_steps, list_recurrent
from edgefl.errors import PlanError
from edgefl.models.input_normalization import LAYER_NAME
from edgefl.plan.spec import TensorSpec
from edgefl.tasks.config import BINARY_LOSS, CLASSIFICATION_TASK, TaskConfig
from edgefl.types import Array

Tensor = Any
Tensors = Mapping[str, Tensor]

_HEAD_LAYERS = (
    keras.layers.Dense,
    keras.layers.Dropout,
    keras.layers.ReLU,
    keras.layers.Activation,
    keras.layers.Softmax,
)
_NORMS = keras.layers.BatchNormalization
_END_ACTIVATIONS = {"cross-entropy": "softmax", BINARY_LOSS: "sigmoid"}
"""The activation that a model may end with, by loss. It is left out, because the loss contains it."""
_CONVOLUTIONAL_RNNS = (keras.layers.ConvLSTM1D, keras.layers.ConvLSTM2D, keras.layers.ConvLSTM3D)
_TRACING_ERRORS = (
    RuntimeError,
    ValueError,
    TypeError,
    NotImplementedError,
    AttributeError,
    tf.errors.OpError,
)


@dataclass
class _Run:
    """One call of the network: the inputs of its layers, their new values, and the noise that they need.

    Attributes:
        weights: the weights by name.
        noise: the noise by name. None creates placeholders.
        training: whether layers run in training mode.
        updates: new values of assigned weights by name.
        noise_specs: specs of the noise by name.
        hidden: input of the last dense layer so far.
    """

    weights: Tensors
    noise: Tensors | None
    training: bool
    updates: dict[str, Tensor] = field(default_factory=dict)
    noise_specs: dict[str, TensorSpec] = field(default_factory=dict)
    hidden: Tensor = None


class Network:
    """A model as pure functions.

    Weights are named `layer/variable`. The trainable weights come first. Both groups have the order of the
    model.

    Args:
        model: the Keras model.
        task: what the model is trained for.
        is_augmented: whether the training changes samples at random.

    Attributes:
        task: what the model is trained for.
        is_augmented: whether the training changes samples at random. Training on features that the trunk
            computed before then misses these changes.
        input_shape: shape of one sample.
        num_classes: number of outputs.
        specs: specs of all weights.
        trainable: names of the weights that gradients train.
        statistics: names of the weights that a training step assigns, which are moving means and variances.
        trunk_names: names of the weights of the trunk.
        head_names: names of the weights of the head.
        features_shape: shape of one sample between trunk and head.
        hidden_width: input size of the last dense layer of the head, 0 without a head.
        epsilons: epsilon of each batch norm layer by name.
        input_normalization: the layer of `mean` and `std` of `[model]`, None without them.

    Raises:
        PlanError: the model has several inputs or outputs, does not end in a dense classifier, or has two
            weights of the same name. Also raised for a layer that cannot be traced.
    """

    def __init__(
        self, model: Any, task: TaskConfig = CLASSIFICATION_TASK, is_augmented: bool = False
    ) -> None:
        self.task = task
        self.is_augmented = is_augmented
        inputs = getattr(model, "inputs", None) or []
        outputs = getattr(model, "outputs", None) or []
        if len(inputs) != 1 or len(outputs) != 1 or len(outputs[0].shape) != 2:
            raise PlanError(
                f"model {model.name} has {len(inputs)} inputs and {len(outputs)} outputs, expected one input "
                "and one output; start a Sequential with keras.Input, and end the model with "
                "Dense(num_classes)"
            )
        functional = keras.Model(model.inputs[0], model.outputs[0], name=model.name)
        self.input_shape = tuple(int(size) for size in model.inputs[0].shape[1:])
        self.num_classes = 2 if task.loss == BINARY_LOSS else int(model.outputs[0].shape[1])
        for layer in _flatten_layers(functional.layers):
            _check_recurrent(layer)
        self.input_normalization = next(
            (
                layer
                for layer in functional.layers
                if layer.name == LAYER_NAME and isinstance(layer, keras.layers.Normalization)
            ),
            None,
        )
        self._names: dict[int, str] = {}
        self._name_weights(functional.layers, "")
        trainable = {id(v) for v in functional.trainable_variables}
        weights = [v for v in functional.weights if id(v) in self._names]  # Without constants
        variables = [v for v in weights if id(v) in trainable] + [
            v for v in weights if id(v) not in trainable
        ]
        self._variables = {self._names[id(v)]: v for v in variables}
        self.specs = tuple(TensorSpec(name, tuple(v.shape)) for name, v in self._variables.items())
        self.trainable = tuple(self._names[id(v)] for v in variables if id(v) in trainable)
        self._head, first = _split(functional, task)
        self._trunk = keras.Model(functional.inputs[0], first) if first is not functional.inputs[0] else None
        self.features_shape = tuple(int(size) for size in first.shape[1:])
        head = {self._names[id(v)] for layer in self._head for v in layer.weights}
        self.head_names = tuple(spec.name for spec in self.specs if spec.name in head)
        self.trunk_names = tuple(spec.name for spec in self.specs if spec.name not in head)
        trace = self._trace_training(1)
        self.statistics = tuple(trace.updates)
        self.hidden_width = 0 if trace.hidden is None else int(trace.hidden.shape[-1])
        self.epsilons = {
            layer.name: float(layer.epsilon)
            for layer in _flatten_layers(functional.layers)
            if isinstance(layer, _NORMS)
        }

    def read_weights(self) -> dict[str, Any]:
        """Return the current weights of the model: float32 arrays by name."""
        return {name: variable.numpy().astype("float32") for name, variable in self._variables.items()}

    def draw_head(self, rng: np.random.Generator) -> dict[str, Any]:
        """Return new initial kernels and biases of the head, from the initializers of its layers.

        Args:
            rng: draws the seeds of the initializers.

        Returns:
            float32 arrays by name.
        """
        weights = {}
        for layer in self._head:
            for part in ("kernel", "bias"):
                variable = getattr(layer, part, None)
                initializer = getattr(layer, f"{part}_initializer", None)
                if variable is not None and initializer is not None:
                    weights[self._names[id(variable)]] = _draw_again(
                        initializer, tuple(variable.shape), int(rng.integers(1 << 31))
                    )
        return weights

    def normalize_input(self, x: Tensor) -> Tensor:
        """Return the samples after `mean` and `std` of `[model]`, or unchanged without them.

        Args:
            x: the samples, float32[batch, *input_shape].
        """
        return x if self.input_normalization is None else normalize(self.input_normalization, x)

    def select(self, names: Sequence[str]) -> tuple[TensorSpec, ...]:
        """Return the specs of some weights, in the network's order.

        Args:
            names: names of the weights.
        """
        return tuple(spec for spec in self.specs if spec.name in names)

    def list_noise(self, batch_size: int) -> tuple[TensorSpec, ...]:
        """Return the specs of the noise of a training pass, with values from [0, 1). Each dropout has one.

        Args:
            batch_size: number of samples.
        """
        return tuple(self._trace_training(batch_size).noise_specs.values())

    def list_head_noise(self, batch_size: int) -> tuple[TensorSpec, ...]:
        """Return the specs of the noise of the head.

        Args:
            batch_size: number of samples.
        """
        head = {layer.name for layer in self._head}
        return tuple(spec for spec in self.list_noise(batch_size) if spec.name in head)

    def apply(
        self, weights: Tensors, x: Tensor, *, training: bool = False, noise: Tensors | None = None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the logits of samples, and the new moving statistics.

        Args:
            weights: the weights by name.
            x: the samples, float32[batch, *input_shape].
            training: whether layers run in training mode.
            noise: the noise of `list_noise` by name, for training.

        Returns:
            The logits, float32[batch, classes], and the assigned weights by name.
        """
        run = _Run(weights, noise, training)
        return self._run_head(self._run_trunk(x, run), run), run.updates

    def apply_hidden(
        self, weights: Tensors, x: Tensor, *, training: bool = False, noise: Tensors | None = None
    ) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """Return the logits of samples, the input of the last dense layer, and the new moving statistics.

        Args:
            weights: the weights by name.
            x: the samples, float32[batch, *input_shape].
            training: whether layers run in training mode.
            noise: the noise of `list_noise` by name, for training.

        Returns:
            The logits, float32[batch, classes], the input of the last dense layer, float32[batch,
            hidden_width], and the assigned weights by name.
        """
        run = _Run(weights, noise, training)
        logits = self._run_head(self._run_trunk(x, run), run)
        return logits, run.hidden, run.updates

    def apply_trunk(self, weights: Tensors, x: Tensor) -> Tensor:
        """Return the features of samples. Layers run in inference mode.

        Args:
            weights: the weights of the trunk by name.
            x: the samples, float32[batch, *input_shape].

        Returns:
            float32[batch, *features_shape].
        """
        return self._run_trunk(x, _Run(weights, None, False))

    def apply_head(
        self, weights: Tensors, features: Tensor, *, training: bool = False, noise: Tensors | None = None
    ) -> Tensor:
        """Return the logits of features.

        Args:
            weights: the weights of the head by name.
            features: float32[batch, *features_shape].
            training: whether layers run in training mode.
            noise: the noise of `list_head_noise` by name, for training.

        Returns:
            float32[batch, classes].
        """
        return self._run_head(features, _Run(weights, noise, training))

    def _name_weights(self, layers: Sequence[Any], prefix: str) -> None:
        for layer in layers:
            if isinstance(layer, keras.Model) and layer.layers:
                self._name_weights(layer.layers, f"{prefix}{layer.name}/")
                continue
            for variable in () if isinstance(layer, CONSTANT_LAYERS) else layer.weights:
                name = f"{prefix}{layer.name}/{variable.path.split(f'{layer.name}/', 1)[-1]}"
                if name in self._names.values() and self._names.get(id(variable)) != name:
                    raise PlanError(
                        f"two weights of the model are named {name}, expected different names; rename a layer"
                    )
                self._names[id(variable)] = name

    def _trace_training(self, batch_size: int) -> _Run:
        """Trace a training pass on placeholders, to find the shapes of the noise and the assigned weights."""
        with tf.Graph().as_default():
            run = _Run(
                {s.name: tf.compat.v1.placeholder(tf.float32, s.shape) for s in self.specs}, None, True
            )
            x = tf.compat.v1.placeholder(tf.float32, (batch_size, *self.input_shape))
            self._run_head(self._run_trunk(x, run), run)
        return run

    def _run_trunk(self, x: Tensor, run: _Run) -> Tensor:
        return x if self._trunk is None else self._run_graph(self._trunk, x, run)

    def _run_head(self, features: Tensor, run: _Run) -> Tensor:
        for index, layer in enumerate(self._head):
            if isinstance(layer, keras.layers.Dense):
                run.hidden = features
            call = self._call_logits if index == len(self._head) - 1 else self._call
            features = call(layer, run, features)
        if self.task.loss == BINARY_LOSS:  # softmax of (0, z) is sigmoid(z)
            features = tf.pad(features, [[0, 0], [1, 0]])
        return features

    def _run_graph(self, model: Any, x: Tensor, run: _Run) -> Tensor:
        functional = (
            model if hasattr(model, "_run_through_graph") else keras.Model(model.inputs[0], model.outputs[0])
        )

        def make_operation(layer: Any) -> Callable[..., Tensor]:
            return lambda *args, **kwargs: self._call(layer, run, *args, **kwargs)

        return functional._run_through_graph(x, operation_fn=make_operation)

    def _call(self, layer: Any, run: _Run, *args: Any, **kwargs: Any) -> Tensor:
        try:
            return self._call_layer(layer, run, *args, **kwargs)
        except _TRACING_ERRORS as error:
            reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
            raise PlanError(
                f"layer {layer.name} ({type(layer).__name__}) cannot be compiled: {reason}; replace it with "
                "a layer that `edgefl plan build --help` lists"
            ) from error

    def _call_layer(self, layer: Any, run: _Run, *args: Any, **kwargs: Any) -> Tensor:
        with tf.name_scope(layer.name):
            if not isinstance(layer, keras.Layer):
                return layer(*args, **kwargs)
            if isinstance(layer, keras.Model) and layer.layers:
                return self._run_graph(layer, args[0], run)
            if type(layer) is keras.layers.Dropout:
                return _apply_dropout(layer, run, args[0])
            if isinstance(layer, CONSTANT_LAYERS):
                return normalize(layer, args[0])
            called = call_layer(layer, lambda v: self._read(v, run), args[0], run.training)
            if called is None:
                return self._call_stateless(layer, run, *args, **kwargs)
            run.updates |= {self._names[id(variable)]: new for variable, new in called[1]}
            return called[0]

    def _read(self, variable: Any, run: _Run) -> Tensor:
        name = self._names[id(variable)]
        return run.updates.get(name, run.weights[name])

    def _call_stateless(self, layer: Any, run: _Run, *args: Any, **kwargs: Any) -> Tensor:
        if run.training and any(
            isinstance(part, keras.random.SeedGenerator) for part in vars(layer).values()
        ):
            raise PlanError(
                f"layer {layer.name} ({type(layer).__name__}) draws random numbers, which only Dropout can "
                "do in a plan; use Dropout"
            )
        values = {id(v): self._read(v, run) for v in layer.weights}
        trained = [values[id(v)] for v in layer.trainable_variables]
        untrained = [values.get(id(v), v.value) for v in layer.non_trainable_variables]
        if "training" in inspect.signature(layer.call).parameters:
            kwargs["training"] = run.training
        out, new = layer.stateless_call(trained, untrained, *args, **kwargs)
        for variable, before, after in zip(layer.non_trainable_variables, untrained, new, strict=True):
            if after is not before and id(variable) in values:
                run.updates[self._names[id(variable)]] = after
        return out

    def _call_logits(self, layer: Any, run: _Run, x: Tensor) -> Tensor:
        if isinstance(layer, keras.layers.Dense):
            with tf.name_scope(layer.name):
                out = tf.matmul(x, run.weights[self._names[id(layer.kernel)]])
                return out + run.weights[self._names[id(layer.bias)]] if layer.use_bias else out
        return self._call(layer, run, x)


def _draw_again(initializer: Any, shape: tuple[int, ...], seed: int) -> Array:
    """Return a draw of a Keras initializer, float32[shape], with this seed instead of its own."""
    if hasattr(initializer, "get_config"):
        config = initializer.get_config()
        if "seed" in config:
            initializer = type(initializer).from_config({**config, "seed": seed})
    return np.asarray(initializer(shape, dtype="float32"), np.float32)


def _flatten_layers(layers: Sequence[Any]) -> list[Any]:
    return [
        part
        for layer in layers
        for part in (_flatten_layers(layer.layers) if isinstance(layer, keras.Model) else [layer])
    ]


def _check_recurrent(layer: Any) -> None:
    for part in list_recurrent(layer):
        kind = type(part).__name__
        if isinstance(part, _CONVOLUTIONAL_RNNS):
            raise PlanError(
                f"layer {layer.name} ({kind}) cannot run on a device; use LSTM, or Conv layers over time"
            )
        if not part.unroll:
            check_steps(layer, part)
        cells = getattr(part.cell, "cells", (part.cell,))
        if any(getattr(cell, name, 0) for cell in cells for name in ("dropout", "recurrent_dropout")):
            raise PlanError(
                f"layer {layer.name} ({kind}) has its own dropout, which only a Dropout layer can do in a "
                "plan; remove it, and put a Dropout layer before the layer"
            )


def _apply_dropout(layer: Any, run: _Run, x: Tensor) -> Tensor:
    if not run.training or layer.rate == 0:
        return x
    noise_shape = layer.noise_shape or (None,) * len(x.shape)
    shape = tuple(
        int(full if size is None else size) for size, full in zip(noise_shape, x.shape, strict=True)
    )
    name = layer.name if layer.name not in run.noise_specs else f"{layer.name}_{len(run.noise_specs)}"
    run.noise_specs[name] = TensorSpec(name, shape)
    noise = tf.compat.v1.placeholder(tf.float32, shape) if run.noise is None else run.noise[name]
    keep = 1.0 - layer.rate
    return x * (tf.floor(noise + keep) * (1.0 / keep))


def _split(functional: Any, task: TaskConfig) -> tuple[list[Any], Any]:
    """Return the layers of the head in order and their symbolic input.

    A softmax at the end is left out, and so is a sigmoid for the binary loss.
    """
    tensor = functional.outputs[0]
    chain: list[Any] = []
    inputs: list[Any] = []
    while True:
        layer, before = find_producer(functional, tensor)
        if not isinstance(layer, _HEAD_LAYERS):
            break
        tensor = before
        chain.insert(0, layer)
        inputs.insert(0, tensor)
    start = next((i for i, layer in enumerate(chain) if isinstance(layer, keras.layers.Dense)), None)
    if start is None and not task.is_classification:
        return [], functional.outputs[0]
    if start is None:
        raise PlanError(
            f"model {functional.name} does not end in a Dense classifier; end it with a Dense layer that has "
            "one output for each class"
        )
    head = chain[start:]
    end = _END_ACTIVATIONS.get(task.loss_name, "")
    while (end == "softmax" and isinstance(head[-1], keras.layers.Softmax)) or (
        isinstance(head[-1], keras.layers.Activation) and head[-1].activation.__name__ == end
    ):
        head.pop()
    last = head[-1]
    activation = getattr(last, "activation", keras.activations.linear)
    if isinstance(last, keras.layers.Dense) and activation.__name__ not in ("linear", end):
        expected = f"logits; use activation=None or {end}" if end else "any number; use activation=None"
        raise PlanError(f"layer {last.name} ends the model with {activation.__name__}, expected {expected}")
    return head, inputs[start]
