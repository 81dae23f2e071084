"""A Keras 3 model as pure functions of its weights, and its split into trunk and head.

Layers are called one by one through `stateless_call`, so that weights, moving statistics and dropout noise
are arguments. A model ends with a chain of Dense, Dropout and activation layers. The head starts at the first
Dense layer of this chain, and the trunk is everything before it. The functions return logits: a softmax at
the end of the model is left out, because loss and mixing need its input. A model for another task than
classification may end with other layers. It then has no head.
"""

import contextlib
import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from edgefl.base.errors import PlanError
from edgefl.base.tasks.config import BINARY_LOSS, CLASSIFICATION_TASK, TaskConfig
from edgefl.base.types import Array
from edgefl.program.compiler.activations import replace_activations
from edgefl.program.compiler.keras_graph import find_producer
from edgefl.program.compiler.layer_checks import (
    check_layer_attributes,
    convert_to_float32,
    describe_layer,
    flatten_layers,
    list_sublayers,
)
from edgefl.program.compiler.layers import CONSTANT_LAYERS, call_layer, normalize
from edgefl.program.compiler.recurrent import check_steps, list_recurrent
from edgefl.program.models.failure import explain_failure
from edgefl.program.models.graph import is_graph, run_graph
from edgefl.program.models.input_normalization import LAYER_NAME
from edgefl.program.models.input_scaling import find_input_scaling
from edgefl.program.plan.spec import TensorSpec

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
_PENALTIES: ContextVar[list[Tensor] | None] = ContextVar("PENALTIES", default=None)


@contextlib.contextmanager
def collect_penalties() -> Iterator[list[Tensor]]:
    """Collect the penalties that the regularizers of models add to the loss of a training pass.

    Each is float32[batch], or a scalar that counts for each sample. Keras adds the same to its loss: the
    penalties of trained weights, and the mean over the batch of the penalties of activations.
    """
    penalties: list[Tensor] = []
    token = _PENALTIES.set(penalties)
    try:
        yield penalties
    finally:
        _PENALTIES.reset(token)


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
        outputs: the last output of each layer by name.
        dropouts: the layer of each noise by name, and the shape of one of its samples.
        penalties: penalties of activations, float32[batch].
    """

    weights: Tensors
    noise: Tensors | None
    training: bool
    updates: dict[str, Tensor] = field(default_factory=dict)
    noise_specs: dict[str, TensorSpec] = field(default_factory=dict)
    hidden: Tensor = None
    outputs: dict[str, Tensor] = field(default_factory=dict)
    dropouts: dict[str, tuple[Any, tuple[int, ...]]] = field(default_factory=dict)
    penalties: list[Tensor] = field(default_factory=list)


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
        model: the functional model in float32.
        variables: the variables of the weights by name.
        end: name of the activation at the end of the model that the outputs leave out, or "".
        input_shape: shape of one sample.
        num_classes: number of outputs.
        specs: specs of all weights.
        trainable: names of the weights that gradients train.
        statistics: names of the weights that a training step assigns, which are moving means and variances.
        dropouts: the layer of each noise of a training pass by name, and the shape of one of its samples.
        trunk_names: names of the weights of the trunk.
        head_names: names of the weights of the head.
        features_shape: shape of one sample between trunk and head.
        hidden_width: input size of the last dense layer of the head, 0 without a head.
        epsilons: epsilon of each batch norm by the prefix of its weights' names.
        input_normalization: the layer of `mean` and `std` of `[model]`, None without them.
        input_scaling: the layer with which the model scales its own input, None without such a layer.

    Raises:
        PlanError: the model has several inputs or outputs, does not end in a dense classifier, has two
            weights of the same name, or no weight that training changes. Also raised for a layer that cannot
            be traced.
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
        functional = convert_to_float32(keras.Model(model.inputs[0], model.outputs[0], name=model.name))
        replace_activations(functional)
        self.model = functional
        self.input_scaling = find_input_scaling(functional)
        self.input_shape = tuple(int(size) for size in functional.inputs[0].shape[1:])
        self.num_classes = 2 if task.loss == BINARY_LOSS else int(functional.outputs[0].shape[1])
        for layer in flatten_layers(functional.layers):
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
        check_layer_attributes(functional, self._names)
        trainable = {id(v) for v in functional.trainable_variables}
        weights = [v for v in functional.weights if id(v) in self._names]  # Without constants
        variables = [v for v in weights if id(v) in trainable] + [
            v for v in weights if id(v) not in trainable
        ]
        self.variables = {self._names[id(v)]: v for v in variables}
        self.specs = tuple(TensorSpec(name, tuple(v.shape)) for name, v in self.variables.items())
        self.trainable = tuple(self._names[id(v)] for v in variables if id(v) in trainable)
        if not self.trainable:
            raise PlanError(
                f"model {model.name} has no weight that training changes, expected at least one; set "
                "trainable=True on its layers, or add a Dense layer"
            )
        self._regularizers = {
            self._names[id(v)]: v.regularizer
            for v in variables
            if id(v) in trainable and getattr(v, "regularizer", None) is not None
        }
        self._seeds = {id(v): v.numpy() for v in functional.variables if id(v) not in self._names}
        self._head, first, self.end = _split(functional, task)
        self._trunk = keras.Model(functional.inputs[0], first) if first is not functional.inputs[0] else None
        self.features_shape = tuple(int(size) for size in first.shape[1:])
        head = {self._names[id(v)] for layer in self._head for v in layer.weights}
        self.head_names = tuple(spec.name for spec in self.specs if spec.name in head)
        self.trunk_names = tuple(spec.name for spec in self.specs if spec.name not in head)
        trace = self._trace_training(1)
        self.statistics = tuple(trace.updates)
        self.dropouts = trace.dropouts
        self.hidden_width = 0 if trace.hidden is None else int(trace.hidden.shape[-1])
        self.epsilons = {
            self._names[id(part.moving_mean)].removesuffix("/moving_mean"): float(part.epsilon)
            for layer in flatten_layers(functional.layers)
            for part in list_sublayers(layer)
            if isinstance(part, _NORMS) and id(getattr(part, "moving_mean", None)) in self._names
        }

    def read_weights(self) -> dict[str, Any]:
        """Return the current weights of the model: float32 arrays by name."""
        return {name: variable.numpy().astype("float32") for name, variable in self.variables.items()}

    def draw_head(self, rng: np.random.Generator) -> dict[str, Any]:
        """Return new initial kernels and biases of the trained head, from the initializers of its layers.

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
                name = self._names.get(id(variable))
                if variable is not None and name in self.trainable and initializer is not None:
                    weights[name] = _draw_again(
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
        """Return the specs of some weights, in the network's order."""
        return tuple(spec for spec in self.specs if spec.name in names)

    def list_noise(self, batch_size: int) -> tuple[TensorSpec, ...]:
        """Return the specs of the noise of a training pass, with values from [0, 1). Each dropout has one."""
        return tuple(self._trace_training(batch_size).noise_specs.values())

    def list_head_noise(self, batch_size: int) -> tuple[TensorSpec, ...]:
        """Return the specs of the noise of the head."""
        with tf.Graph().as_default():
            run = self._make_placeholder_run()
            self._run_head(tf.compat.v1.placeholder(tf.float32, (batch_size, *self.features_shape)), run)
        return tuple(run.noise_specs.values())

    def apply(
        self, weights: Tensors, x: Tensor, *, training: bool = False, noise: Tensors | None = None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the logits of samples, and the new moving statistics.

        Args:
            x: the samples, float32[batch, *input_shape].
            training: whether layers run in training mode.
            noise: the noise of `list_noise` by name, for training.

        Returns:
            The logits, float32[batch, classes], and the assigned weights by name.
        """
        run = _Run(weights=weights, noise=noise, training=training)
        logits = self._run_head(self._run_trunk(x, run), run)
        self._add_penalties(run, self._regularizers)
        return logits, run.updates

    def apply_layers(
        self, weights: Tensors, x: Tensor, *, training: bool = False, noise: Tensors | None = None
    ) -> dict[str, Tensor]:
        """Return the output of each layer by name, in the order of the run.

        Args:
            x: the samples, float32[batch, *input_shape].
            training: whether layers run in training mode.
            noise: the noise of `list_noise` by name, for training.
        """
        run = _Run(weights=weights, noise=noise, training=training)
        self._run_head(self._run_trunk(x, run), run)
        return run.outputs

    def apply_hidden(
        self, weights: Tensors, x: Tensor, *, training: bool = False, noise: Tensors | None = None
    ) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """Return the logits of samples, the input of the last dense layer, and the new moving statistics.

        Args:
            x: the samples, float32[batch, *input_shape].
            training: whether layers run in training mode.
            noise: the noise of `list_noise` by name, for training.

        Returns:
            The logits, float32[batch, classes], the input of the last dense layer, float32[batch,
            hidden_width], and the assigned weights by name.
        """
        run = _Run(weights=weights, noise=noise, training=training)
        logits = self._run_head(self._run_trunk(x, run), run)
        self._add_penalties(run, self._regularizers)
        return logits, run.hidden, run.updates

    def apply_trunk(self, weights: Tensors, x: Tensor) -> Tensor:
        """Return the features of samples. Layers run in inference mode.

        Args:
            weights: the weights of the trunk by name.
            x: the samples, float32[batch, *input_shape].

        Returns:
            float32[batch, *features_shape].
        """
        return self._run_trunk(x, _Run(weights=weights, noise=None, training=False))

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
        run = _Run(weights=weights, noise=noise, training=training)
        logits = self._run_head(features, run)
        self._add_penalties(run, [name for name in self._regularizers if name in self.head_names])
        return logits

    def list_outputs(self) -> tuple[str, ...]:
        """Return the names of the layers in the order of a run."""
        return tuple(self._trace_training(1).outputs)

    def _add_penalties(self, run: _Run, names: Iterable[str]) -> None:
        """Add the penalties of a training pass, with those of these weights, to `collect_penalties`."""
        penalties = _PENALTIES.get()
        if run.training and penalties is not None:
            penalties += [self._regularizers[name](run.weights[name]) for name in names]
            penalties += run.penalties

    def _name_weights(self, layers: Sequence[Any], prefix: str) -> None:
        for layer in layers:
            if is_graph(layer):
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
            run = self._make_placeholder_run()
            x = tf.compat.v1.placeholder(tf.float32, (batch_size, *self.input_shape))
            self._run_head(self._run_trunk(x, run), run)
        return run

    def _make_placeholder_run(self) -> _Run:
        return _Run(
            weights={s.name: tf.compat.v1.placeholder(tf.float32, s.shape) for s in self.specs},
            noise=None,
            training=True,
        )

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
        return run_graph(model, x, lambda layer, *args, **kwargs: self._call(layer, run, *args, **kwargs))

    def _call(self, layer: Any, run: _Run, *args: Any, **kwargs: Any) -> Tensor:
        return self._guard(layer, run, lambda: self._call_layer(layer, run, *args, **kwargs))

    def _guard(self, layer: Any, run: _Run, call: Callable[[], Tensor]) -> Tensor:
        """Return the output of a call of a layer, and keep it in the run."""
        try:
            with tf.name_scope(_make_scope(layer.name)):
                out = call()
                if getattr(layer, "activity_regularizer", None) is not None:
                    run.penalties.append(_penalize_samples(layer.activity_regularizer, out))
        except PlanError:
            raise
        except Exception as error:  # Layers raise any type
            raise PlanError(
                f"{describe_layer(layer)} cannot be compiled: {explain_failure(error)}; replace it with a "
                "layer that `edgefl plan build --help` lists"
            ) from error
        run.outputs[layer.name] = out
        return out

    def _call_layer(self, layer: Any, run: _Run, *args: Any, **kwargs: Any) -> Tensor:
        if not isinstance(layer, keras.Layer):
            return layer(*_free_constants(args), **_free_constants(kwargs))
        if is_graph(layer):
            return self._run_graph(layer, args[0], run)
        if type(layer) is keras.layers.Dropout:
            return _apply_dropout(layer, run, args[0])
        if isinstance(layer, CONSTANT_LAYERS):
            return normalize(layer, args[0])
        others = [value for name, value in kwargs.items() if name != "training" and value is not None]
        if len(args) > 1 or others:  # such as a mask
            return self._call_stateless(layer, run, *args, **kwargs)
        called = call_layer(layer, lambda v: self._read(v, run), args[0], run.training)
        if called is None:
            return self._call_stateless(layer, run, *args, **kwargs)
        run.updates |= {self._names[id(variable)]: new for variable, new in called[1]}
        return called[0]

    def _read(self, variable: Any, run: _Run) -> Tensor:
        name = self._names[id(variable)]
        if name not in run.weights:
            raise PlanError(
                f"the weight {name} is used both before the classifier at the end and in it, so no part "
                "has it alone; use two layers, or an algorithm that shares the whole model, such as fedavg"
            )
        return run.updates.get(name, run.weights[name])

    def _call_stateless(self, layer: Any, run: _Run, *args: Any, **kwargs: Any) -> Tensor:
        values = [
            (v, tf.constant(self._seeds[id(v)]) if id(v) in self._seeds else self._read(v, run))
            for v in layer.variables
        ]
        if "training" in inspect.signature(layer.call).parameters:
            kwargs["training"] = run.training
        with keras.StatelessScope(values, collect_losses=True) as scope:
            before = [scope.get_current_value(v) for v in layer.variables]
            out = layer.call(*args, **kwargs)
            after = [scope.get_current_value(v) for v in layer.variables]
        if scope.losses:
            raise PlanError(
                f"{describe_layer(layer)} adds to the loss with add_loss, which a plan cannot do; use a "
                "regularizer of weights, or an ActivityRegularization layer"
            )
        for variable, old, new in zip(layer.variables, before, after, strict=True):
            if new is old:
                continue
            if id(variable) in self._seeds:
                raise PlanError(
                    f"{describe_layer(layer)} draws random numbers, which only Dropout can do in a plan; use "
                    "Dropout, with noise_shape to drop channels, or [augmentation] to change pictures"
                )
            if variable.trainable:
                raise PlanError(
                    f"{describe_layer(layer)} assigns new values to its trained weight "
                    f"{self._names[id(variable)]}, which a plan cannot do; remove the layer"
                )
            run.updates[self._names[id(variable)]] = new
        return out

    def _call_logits(self, layer: Any, run: _Run, x: Tensor) -> Tensor:
        """Return the output of the last layer of the head, without its activation."""
        if not isinstance(layer, keras.layers.Dense):
            return self._call(layer, run, x)

        def call() -> Tensor:
            out = tf.matmul(x, self._read(layer.kernel, run))
            return out + self._read(layer.bias, run) if layer.use_bias else out

        return self._guard(layer, run, call)


def _free_constants(values: Any) -> Any:
    """Return the arguments of an operator with arrays in place of constants that belong to no graph."""

    def free(value: Any) -> Any:
        return value.numpy() if not tf.executing_eagerly() and hasattr(value, "numpy") else value

    return keras.tree.map_structure(free, values)


def _make_scope(name: str) -> str:
    """Return a scope of ops for the name of a layer, with characters that TensorFlow accepts."""
    return re.sub(r"[^A-Za-z0-9_.-]", "_", re.sub(r"^(?![A-Za-z0-9])", "layer_", name))


def _penalize_samples(regularizer: Any, out: Tensor) -> Tensor:
    """Return the penalty of each sample's activations, float32[batch].

    Args:
        regularizer: an L1, L2 or L1L2.
        out: float32[batch, ...].
    """
    values = tf.reshape(out, (out.shape[0], -1))
    parts = [
        factor * tf.reduce_sum(size(values), 1)
        for factor, size in (
            (float(getattr(regularizer, "l1", 0.0)), tf.abs),
            (float(getattr(regularizer, "l2", 0.0)), tf.square),
        )
        if factor
    ]
    return sum(parts) if parts else tf.zeros(out.shape[0])


def _draw_again(initializer: Any, shape: tuple[int, ...], seed: int) -> Array:
    """Return a draw of a Keras initializer, float32[shape], with this seed instead of its own."""
    if hasattr(initializer, "get_config"):
        config = initializer.get_config()
        if "seed" in config:
            initializer = type(initializer).from_config({**config, "seed": seed})
    return np.asarray(initializer(shape, dtype="float32"), np.float32)


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
    run.dropouts[name] = layer, tuple(x.shape[1:])
    noise = tf.compat.v1.placeholder(tf.float32, shape) if run.noise is None else run.noise[name]
    keep = 1.0 - layer.rate
    return x * (tf.floor(noise + keep) * (1.0 / keep))


def _split(functional: Any, task: TaskConfig) -> tuple[list[Any], Any, str]:
    """Return the layers of the head in order, their symbolic input, and the activation that is left out.

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
        return [], functional.outputs[0], ""
    if start is None:
        layer, _ = find_producer(functional, functional.outputs[0])
        raise PlanError(
            f"model {functional.name} ends with {describe_layer(layer)}, expected a Dense classifier; end "
            "the model itself, and not a model inside of it, with a Dense layer that has one output for each "
            "class"
        )
    head = chain[start:]
    end = _END_ACTIVATIONS.get(task.loss_name, "")
    removed = ""
    last = head[-1]
    if end and not isinstance(last, keras.layers.Dense) and _name_activation(last) == end:
        removed = end
        _check_removed(head.pop())
    last = head[-1]
    activation = _name_activation(last)
    if isinstance(last, keras.layers.Dense) and not removed and end and activation == end:
        removed = end
        _check_removed(last)
    elif isinstance(last, keras.layers.Dense) and activation != "linear":
        expected = f"logits; use activation=None or {end}" if end else "any number; use activation=None"
        raise PlanError(f"layer {last.name} ends the model with {activation}, expected {expected}")
    final = next(layer for layer in reversed(head) if not isinstance(layer, keras.layers.Dropout))
    activation = _name_activation(final)
    is_removed = final is last and isinstance(last, keras.layers.Dense)
    if task.is_classification and not is_removed and ("softmax" in activation or activation == "sigmoid"):
        raise PlanError(
            f"layer {final.name} ends the model with {activation}, expected logits, or one {end} at the end; "
            "remove the layer, or what follows it"
        )
    return head, inputs[start], removed


def _check_removed(layer: Any) -> None:
    """Raise PlanError if an activation at the end that the loss contains has a penalty of its own."""
    if layer.activity_regularizer is not None:
        raise PlanError(
            f"{describe_layer(layer)} has a penalty on its {_name_activation(layer)}, which the loss "
            "contains; remove its activity_regularizer"
        )


def _name_activation(layer: Any) -> str:
    """Return the name of the function that a layer applies to each row, such as softmax.

    It is the class of the layer if it applies another function.
    """
    if isinstance(layer, keras.layers.Softmax):
        axis = layer.axis
        return "softmax" if axis in (-1, len(layer.output.shape) - 1) else f"a softmax over axis {axis}"
    activation = getattr(layer, "activation", keras.activations.linear)
    return str(getattr(activation, "__name__", type(activation).__name__))
