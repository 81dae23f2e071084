"""Compares a compiled program with the Keras model that it came from, before a plan is written.

The comparison has two parts. The first compares the network, which calls the layers of the model one by one,
with the model itself: outputs, gradients, penalties and moving statistics. The second compares each signature
of the program, run by the TFLite runtime as on a device, with the same function in TensorFlow. Inputs,
weights, biases and statistics are drawn on both sides of 0, so that a lost activation shows. A second draw
has a sample of zeros and biases of 0, where activations bend and maxima are equal, as in black pictures at
the start of a training. A third draw has positive samples, for models that compute logarithms or roots.
Rounding can make a small difference in a signature, so two other seeds of the same draw then decide.
"""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import keras
import numpy as np
import tensorflow as tf

from edgefl.base.errors import PlanError
from edgefl.base.tasks.config import BINARY_LOSS
from edgefl.base.types import Array
from edgefl.program.compiler.compile import compile_program
from edgefl.program.compiler.layer_checks import flatten_layers
from edgefl.program.compiler.layers import normalize
from edgefl.program.compiler.network import Network, collect_penalties
from edgefl.program.compiler.objective import (
    Objective,
    compile_signature,
    list_arguments,
    make_input_spec,
    run_signature,
)
from edgefl.program.compiler.template import convert_objective
from edgefl.program.models.failure import explain_failure
from edgefl.program.models.graph import call_layers_again
from edgefl.program.models.input_normalization import read_constants
from edgefl.program.plan.runtime import load_interpreter
from edgefl.program.plan.spec import SignatureSpec, TensorSpec

Values = Mapping[str, Array]

BATCH = 3
TOLERANCES = {"predict": 1e-4, "train": 2e-3}
"""Largest difference that rounding makes in most models, relative to the largest value of a tensor.

Rounding flips a ReLU or a maximum now and then, which changes a gradient more than an output.
"""
ROUNDING = 1e-6
"""Relative rounding error of a convolution."""
ROUNDING_FACTOR = 10
"""A larger difference is accepted up to this multiple of what errors of `ROUNDING` change in any tensor.

A deep model has millions of ReLUs, and some of them flip. Batch norms of few values amplify errors.
"""
MAX_EXPLAINED = 0.3
"""Largest difference that rounding explains. A lost activation makes a larger one."""
FIRST_SEED = 1
REPEATED_SEEDS = (2, 3)
"""Seeds of the arguments of a signature. The repeated ones decide if the first one gives a small difference.

A flipped ReLU seldom repeats. In DS-CNN, with two million ReLU values, one changed a gradient by a fifth.
"""
SMALL_SHARE = 1e-4
"""Share of the largest gradient. Smaller gradients may be rounding errors of sums that are 0.

A shift in front of a batch norm has such a gradient, because the norm removes the shift.
"""
Draw = Literal["signed", "zeros", "positive"]
BOTH_SIGNS: Draw = "signed"
ZEROS: Draw = "zeros"
POSITIVE: Draw = "positive"
DRAWS = (BOTH_SIGNS, ZEROS, POSITIVE)
"""Samples and weights on both sides of 0; a sample and biases of 0; positive samples and shares."""
_SAMPLES = ("x", "features")
_SIGNED_DATA = ("x", "features", "y")
"""Data that may be negative. Data of algorithms, such as likelihoods, may not."""


@dataclass(frozen=True)
class ComparedValues:
    """Values on which a network and its model are compared.

    Attributes:
        weights: the weights by name.
        x: float32[batch, *input_shape].
        noise: the noise of the network that gives the masks of Keras's dropouts.
        cotangent: factors of the outputs, float32[batch, outputs]. Their weighted sum has the gradients.
    """

    weights: Values
    x: Array
    noise: Values
    cotangent: Array


def check_program(
    network: Network, objectives: Sequence[Objective], signatures: Sequence[SignatureSpec], program: bytes
) -> None:
    """Check that a program computes the same as the Keras model that it came from.

    Args:
        program: the `.tflite` file.

    Raises:
        PlanError: a result differs, or Keras cannot run the model. The error names the first layer whose
            output differs, or else the last layer whose gradient does.
    """
    check_network(network)
    interpreter = load_interpreter(program)
    for objective, signature in zip(objectives, signatures, strict=True):
        error = measure_signature(objective, signature, interpreter, network.num_classes)
        if not error <= TOLERANCES[objective.kind]:
            raise PlanError(
                f"{_blame_program(network)} cannot be compiled: the results of {objective.name} on a device "
                f"differ by {error:.1e} from those of Keras, expected at most {TOLERANCES[objective.kind]}; "
                "replace the layer with a layer that `edgefl plan build --help` lists"
            )


def find_wrong_export_layer(network: Network) -> str:
    """Return the first layer whose output differs after a conversion for the export."""
    values = draw_values(network, 1)
    weights = {name: tf.constant(value) for name, value in values.weights.items()}
    for name, output in network.apply_layers(weights, tf.constant(values.x)).items():
        model = convert_objective(_make_layer_objective(network, name, "output", "layer"), values.weights)
        interpreter = load_interpreter(model)
        received = interpreter.get_signature_runner()(x=values.x)["out"]
        expected = np.reshape(tf.nest.flatten(output)[0], (1, -1))
        if not measure_difference(received, expected) <= TOLERANCES["predict"]:
            return f"layer {name}"
    return f"the model {network.model.name}"


def check_network(network: Network) -> None:
    """Check that the layers of a network, called one by one, compute the same as its model.

    Raises:
        PlanError: outputs, gradients or moving statistics differ, Keras cannot run the model, or the output
            for a sample depends on other samples.
    """
    compared: set[str] = set()
    for draw, training in itertools.product(DRAWS, (False, True)):
        values = draw_values(network, BATCH, draw)
        # In training, deep batch norms amplify the rounding of a normalization
        model = _fold_normalizations(network.model) if training else network.model
        expected = _drop_undefined(_run_keras(network, model, values, training))
        received = _run_network(network, values, training)
        compared |= expected.keys()
        tolerance = TOLERANCES["train" if training else "predict"]
        floor = find_floor(value for name, value in expected.items() if name.endswith(" gradient"))
        floors = {name: floor if name.endswith(" gradient") else 0.0 for name in expected}
        differences = measure_differences(received, expected, floors)
        if not max(differences.values(), default=0.0) <= tolerance:
            rounded = replace(values, x=_add_rounding("d_x", values.x))
            changes = measure_differences(_run_keras(network, model, rounded, training), expected, floors)
            differences = subtract_rounding(differences, changes)
        wrong = [name for name, difference in differences.items() if not difference <= tolerance]
        if wrong:
            last = network.model.layers[-1].name if wrong[-1] == "outputs" else wrong[-1].rsplit("/", 1)[0]
            layer = _find_wrong_layer(network, model, values, training) or last
            raise PlanError(
                f"layer {layer} cannot be compiled: its {'training step' if training else 'output'} in a "
                "plan differs from Keras; replace it with a layer that `edgefl plan build --help` lists"
            )
    if missing := [name for name in network.trainable if f"{name} gradient" not in compared]:
        layer, part = missing[-1].rsplit("/", 1)
        raise PlanError(
            f"layer {layer} cannot be compared with Keras: the gradient of its {part} is NaN or infinite for "
            "samples from about -3 to 3; keep logarithms, roots and divisions away from 0 with "
            "keras.ops.maximum"
        )
    _check_samples_apart(network, draw_values(network, BATCH, POSITIVE))


def draw_values(network: Network, batch: int, draw: Draw = BOTH_SIGNS) -> ComparedValues:
    """Return weights and samples on both sides of 0.

    Args:
        draw: which values, see DRAWS.
    """
    rng = np.random.default_rng(0)
    weights = {spec.name: draw_tensor(spec, rng, draw) for spec in network.specs}
    x = draw_tensor(TensorSpec("x", (batch, *network.input_shape)), rng, draw)
    mean, std = read_constants(network.input_normalization)
    if mean:
        x = np.asarray(x * std + mean, np.float32)
    for layer in flatten_layers(network.model.layers):
        if isinstance(layer, keras.layers.Masking):
            x[-1, : x.shape[1] // 2] = layer.mask_value
    cotangent = draw_tensor(TensorSpec("cotangent", (batch, int(network.model.outputs[0].shape[1]))), rng)
    return ComparedValues(weights=weights, x=x, noise=_find_noise(network, batch), cotangent=cotangent)


def draw_tensor(spec: TensorSpec, rng: np.random.Generator, draw: Draw = BOTH_SIGNS) -> Array:
    """Return values for a tensor, float32. Variances are positive, and others are on both sides of 0.

    Kernels keep the size of what goes through them.

    Args:
        spec: the tensor. The last part of its name says what it is.
        draw: which values, see DRAWS.
    """
    kind = spec.name.rsplit("/", 1)[-1]
    if "variance" in kind:
        return rng.uniform(0.5, 2.0, spec.shape).astype(np.float32)
    fan_in = int(np.prod(spec.shape[:-1], dtype=int)) if "kernel" in kind else 1
    center = 1.0 if kind == "gamma" else 0.0
    values = np.asarray(center + rng.normal(size=spec.shape) * max(1, fan_in) ** -0.5, np.float32)
    if draw == ZEROS and ("bias" in kind or kind == "beta"):
        values[:] = 0
    elif draw == ZEROS and kind in _SAMPLES:
        values[0] = 0
    elif draw == POSITIVE and (kind in _SAMPLES or values.size == 1):  # One value may be a share
        values = np.abs(values)
    return values


def _drop_undefined(results: Values) -> dict[str, Array]:
    """Return the results with numbers only. A square root, for example, has no gradient at 0."""
    return {name: value for name, value in results.items() if np.isfinite(value).all()}


def find_floor(gradients: Iterable[Array]) -> float:
    """Return the size up to which a gradient counts as small, see `SMALL_SHARE`.

    Args:
        gradients: the gradients of all weights.
    """
    return SMALL_SHARE * max((float(np.abs(values).max(initial=0.0)) for values in gradients), default=0.0)


def measure_difference(received: Array, expected: Array, floor: float = 0.0) -> float:
    """Return the largest difference, relative to the largest expected value.

    Args:
        received: an array. Values that are not finite in both arrays count as equal.
        floor: the difference is relative to this value, if all expected values are smaller.
    """
    received = np.asarray(received, np.float64)
    expected = np.asarray(expected, np.float64)
    if received.shape != expected.shape:
        return np.inf
    if not expected.size:
        return 0.0
    finite = np.isfinite(expected)
    if (np.isfinite(received) != finite).any():
        return np.inf
    scale = max(float(np.abs(expected[finite]).max(initial=0.0)), 1e-3, floor)
    return float(np.abs(received[finite] - expected[finite]).max(initial=0.0)) / scale


def measure_signature(
    objective: Objective, signature: SignatureSpec, interpreter: Any, num_classes: int
) -> float:
    """Return the largest relative difference of a signature's results from the same function in TensorFlow.

    Args:
        interpreter: the interpreter of the program.
        num_classes: number of classes of the labels.
    """
    function = compile_signature(lambda **tensors: run_signature(objective, signature, tensors), signature)

    def subtract_weights(results: Values, args: Values) -> dict[str, Array]:
        """Return the step of each weight, and all other results unchanged."""
        return {name: value - args.get(name, np.float32(0)) for name, value in results.items()}

    def run_tensorflow(args: Values) -> dict[str, Array]:
        tensors = {name: tf.constant(value) for name, value in args.items()}
        return subtract_weights({name: value.numpy() for name, value in function(**tensors).items()}, args)

    def measure_draw(draw: Draw, seed: int) -> tuple[set[str], dict[str, float]]:
        """Return the names of the results, and the differences of those that are numbers."""
        args = draw_arguments(signature, num_classes, draw, seed)
        received = subtract_weights(interpreter.get_signature_runner(objective.name)(**args), args)
        results = run_tensorflow(args)
        expected = _drop_undefined(results)
        floor_by_kind = {
            kind: find_floor(value for name, value in expected.items() if name.startswith(kind))
            for kind in ("t_", "g_")
        }
        floors = {name: floor_by_kind.get(name[:2], 0.0) for name in expected}
        differences = measure_differences(received, expected, floors)
        if not max(differences.values(), default=0.0) <= tolerance:
            changed = run_tensorflow({name: _add_rounding(name, value) for name, value in args.items()})
            differences = subtract_rounding(differences, measure_differences(changed, expected, floors))
        return set(results), differences

    tolerance = TOLERANCES[objective.kind]
    worst: dict[str, float] = {}
    names: set[str] = set()
    for draw in DRAWS:
        results, differences = measure_draw(draw, FIRST_SEED)
        if tolerance < max(differences.values(), default=0.0) <= MAX_EXPLAINED:
            repeated = [measure_draw(draw, seed)[1] for seed in REPEATED_SEEDS]
            if all(max(values.values(), default=np.inf) <= tolerance for values in repeated):
                differences = repeated[0]
        names |= results
        worst |= {name: max(value, worst.get(name, value)) for name, value in differences.items()}
    return max(worst.get(name, np.inf) for name in names)


def measure_differences(received: Values, expected: Values, floors: Mapping[str, float]) -> dict[str, float]:
    """Return the difference of each array by name, see `measure_difference`.

    Args:
        received: arrays by name.
        expected: arrays by name.
    """
    return {name: measure_difference(received[name], value, floors[name]) for name, value in expected.items()}


def subtract_rounding(differences: Mapping[str, float], changes: Mapping[str, float]) -> dict[str, float]:
    """Return by how much each difference exceeds what rounding explains.

    Args:
        differences: the difference of each array by name.
        changes: by how much rounding errors change each array.
    """
    explained = min(ROUNDING_FACTOR * max(changes.values()), MAX_EXPLAINED)
    return {name: value - explained for name, value in differences.items()}


def _add_rounding(name: str, value: Array) -> Array:
    """Return weights or samples with errors of `ROUNDING`, and all other arguments unchanged."""
    if not name.startswith(("t_", "f_", "d_x", "d_features")):
        return value
    signs = np.random.default_rng(2).choice([-1.0, 1.0], np.shape(value))
    return np.asarray(value * (1 + ROUNDING * signs), np.float32)


def draw_arguments(signature: SignatureSpec, num_classes: int, draw: Draw, seed: int) -> dict[str, Any]:
    """Return arguments of a signature by their names in the program.

    The learning rate is 1, so that rounding does not hide a small gradient.

    Args:
        num_classes: number of classes of the labels.
        draw: which values, see DRAWS.
        seed: seed of the values.
    """
    rng = np.random.default_rng(seed)
    args: dict[str, Any] = {}
    for name, spec in list_arguments(signature).items():
        if spec.dtype == "int32":
            args[name] = rng.integers(0, num_classes, spec.shape).astype(np.int32)
        elif name == "d_sample_weight":
            args[name] = np.minimum(np.arange(1, spec.shape[0] + 1) % 4, 1).astype(np.float32)
        elif name.startswith("h_"):
            args[name] = np.float32(1.0 if name == "h_learning_rate" else signature.hyper[name[2:]])
        elif name.startswith("n_"):
            args[name] = rng.random(spec.shape, np.float32)
        elif name.startswith("s_") or (name.startswith("d_") and spec.name not in _SIGNED_DATA):
            args[name] = rng.uniform(0.25, 0.75, spec.shape).astype(np.float32)
        else:
            args[name] = draw_tensor(spec, rng, draw)
    return args


def _fold_normalizations(model: Any) -> Any:
    """Return a model with the same layers that computes each Normalization as a plan does."""
    if not any(isinstance(layer, keras.layers.Normalization) for layer in model.layers):
        return model

    def call(layer: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(layer, keras.layers.Normalization):
            layer = keras.layers.Lambda(lambda x, layer=layer: normalize(layer, x), name=layer.name)
        return layer(*args, **kwargs)

    return call_layers_again(model, call)


def _run_keras(network: Network, model: Any, values: ComparedValues, training: bool) -> dict[str, Array]:
    """Return the outputs of the Keras model, and for training each gradient and new statistic by name."""
    names = {id(variable): name for name, variable in network.variables.items()}
    state = [
        (v, tf.constant(values.weights[names[id(v)]]) if id(v) in names else tf.identity(v.value))
        for v in model.variables
    ]
    try:
        with tf.GradientTape() as tape, keras.StatelessScope(state, collect_losses=True) as scope:
            trained = [scope.get_current_value(variable) for variable in model.trainable_variables]
            tape.watch(trained)
            outputs = model(tf.constant(values.x), training=training)
            total = sum(model.losses, tf.reduce_sum(outputs * values.cotangent))
        gradients = tape.gradient(total, trained, unconnected_gradients=tf.UnconnectedGradients.ZERO)
    except Exception as error:  # Layers raise any type
        raise PlanError(
            f"Keras cannot run the model {model.name} on this machine: {explain_failure(error)}; make sure "
            "that `model(x, training=True)` works"
        ) from error
    results = {"outputs": np.asarray(outputs)}
    if training:
        for variable in model.non_trainable_variables:
            if id(variable) in names:
                results[f"{names[id(variable)]} value"] = np.asarray(scope.get_current_value(variable))
        for variable, gradient in zip(model.trainable_variables, gradients, strict=True):
            results[f"{names[id(variable)]} gradient"] = np.asarray(gradient)
    return results


def _run_network(network: Network, values: ComparedValues, training: bool) -> dict[str, Array]:
    """Return the same as `_run_keras`, computed layer by layer."""
    weights = {name: tf.constant(value) for name, value in values.weights.items()}
    trained = {name: weights[name] for name in network.trainable}
    with tf.GradientTape() as tape, collect_penalties() as penalties:
        tape.watch(trained)
        outputs, updates = network.apply(
            weights, tf.constant(values.x), training=training, noise=values.noise
        )
        if network.end:
            outputs = tf.nn.softmax(outputs)
        if network.task.loss == BINARY_LOSS:  # The logits are those of two classes
            outputs = outputs[:, 1:]
        total = sum(map(tf.reduce_mean, penalties), tf.reduce_sum(outputs * values.cotangent))
    gradients = tape.gradient(total, trained, unconnected_gradients=tf.UnconnectedGradients.ZERO)
    results = {"outputs": np.asarray(outputs)}
    results |= {f"{name} value": np.asarray(updates.get(name, value)) for name, value in weights.items()}
    return results | {f"{name} gradient": np.asarray(value) for name, value in gradients.items()}


def _check_samples_apart(network: Network, values: ComparedValues) -> None:
    """Check that the output for a sample does not depend on the other samples, which may be padding."""
    weights = {name: tf.constant(value) for name, value in values.weights.items()}
    together, alone = (
        network.apply_layers(weights, tf.constant(values.x[:count])) for count in (BATCH, BATCH - 1)
    )
    for name, output in alone.items():
        pairs = zip(tf.nest.flatten(together[name]), tf.nest.flatten(output), strict=True)
        for many, few in ((np.asarray(many), np.asarray(few)) for many, few in pairs):
            if measure_difference(many[: len(few)], few) > TOLERANCES["predict"]:
                raise PlanError(
                    f"layer {name} cannot be compiled: its output for a sample depends on the other samples "
                    "of the batch, and devices fill batches with zeros; compute each sample alone"
                )


def _find_noise(network: Network, batch: int) -> dict[str, Array]:
    """Return noise with which the network drops the same values as the dropouts of the Keras model."""
    noise = {}
    states: dict[int, Any] = {}
    for spec in network.list_noise(batch):
        layer, shape = network.dropouts[spec.name]
        state = states.get(id(layer), [tf.identity(v.value) for v in layer.non_trainable_variables])
        dropped, states[id(layer)] = layer.stateless_call([], state, tf.ones((batch, *shape)), training=True)
        corner = tuple(slice(size) for size in spec.shape)
        noise[spec.name] = np.where(np.asarray(dropped)[corner] > 0, 0.999, 0.0).astype(np.float32)
    return noise


def _find_wrong_layer(network: Network, model: Any, values: ComparedValues, training: bool) -> str:
    """Return the name of the first layer of the network whose output differs from Keras, or ""."""
    weights = {name: tf.constant(value) for name, value in values.weights.items()}
    received = network.apply_layers(weights, tf.constant(values.x), training=training, noise=values.noise)
    state = [(variable, weights[name]) for name, variable in network.variables.items()]
    outputs: dict[str, Any] = {}

    def record_output(layer: Any, *args: Any, **kwargs: Any) -> Any:
        outputs[layer.name] = layer(*args, **kwargs)
        return outputs[layer.name]

    # `layer.output` may be the output in another model, because models can share a layer
    copy = call_layers_again(model, record_output)
    for name, output in list(outputs.items())[:-1]:
        if name not in received:
            continue
        with keras.StatelessScope(state):
            expected = keras.Model(copy.inputs, output)(tf.constant(values.x), training=training)
        pairs = zip(tf.nest.flatten(received[name]), tf.nest.flatten(expected), strict=True)
        if any(measure_difference(np.asarray(a), np.asarray(b)) > TOLERANCES["predict"] for a, b in pairs):
            return name
    return ""


def _blame_program(network: Network) -> str:
    """Return the layer that a compiled program computes wrongly: its output, or else its gradient."""
    names = list(network.list_outputs())
    for kind in ("output", "training output", "gradient", "weights"):
        objectives = [
            _make_layer_objective(network, name, kind, f"layer_{i}") for i, name in enumerate(names)
        ]
        try:
            program, signatures = compile_program(objectives)
            interpreter = load_interpreter(program)
            wrong = [
                name
                for name, objective, signature in zip(names, objectives, signatures, strict=True)
                if measure_signature(objective, signature, interpreter, network.num_classes)
                > TOLERANCES["predict"]
            ]
        except PlanError:
            continue
        if wrong and kind == "gradient":  # The layer behind the last wrong gradient makes it
            wrong = names[names.index(wrong[-1]) + 1 :] or wrong
        if wrong:
            return f"layer {wrong[0]}"
    return f"the model {network.model.name}"


def _make_layer_objective(network: Network, layer: str, kind: str, name: str) -> Objective:
    """Return an objective that predicts the output of a layer, or a gradient of the logits.

    Args:
        layer: name of the layer.
        kind: `output` or `training output` of the layer, `gradient` by this output, or by its `weights`.
        name: name of the signature.
    """
    is_training = kind != "output"
    noise = {spec.name: np.full(spec.shape, 0.999, np.float32) for spec in network.list_noise(BATCH)}

    def compute(weights: Mapping[str, Any], data: Mapping[str, Any]) -> Any:
        outputs = network.apply_layers(
            weights, data["x"], training=is_training, noise={k: tf.constant(v) for k, v in noise.items()}
        )
        out = tf.nest.flatten(outputs[layer])[0]
        if "output" in kind:
            return tf.reshape(out, (1, -1))
        last = list(outputs.values())[-1]
        factors = tf.constant(np.cos(np.arange(last.shape.num_elements())), tf.float32)
        total = tf.reduce_sum(tf.reshape(last, (-1,)) * factors)
        trained = [tensor for name, tensor in weights.items() if f"{layer}/" in name]
        by = trained or [out] if kind == "weights" else [out]
        gradients = tf.gradients(total, by, unconnected_gradients=tf.UnconnectedGradients.ZERO)
        return tf.concat([tf.reshape(gradient, (1, -1)) for gradient in gradients], 1)

    data = (make_input_spec(network, BATCH),)
    return Objective(
        name=name, kind="predict", batch_size=BATCH, data=data, frozen=network.specs, out=compute
    )
