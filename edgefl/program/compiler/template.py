"""Builds the template: the mixture's inference graph as a float `.tflite` file, with the position of each
weight.

Each weight is traced as a constant whose values occur nowhere else. After the conversion, the values of a
constant therefore show which weight it is and how it was transposed. Batch norms get values that make them
the identity. The converter folds a batch norm into the layer before it. With these values the constants of
that layer are still recognized, and the device repeats the folding with its own weights.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import permutations
from typing import Any, Protocol

import numpy as np

from edgefl.base.errors import PlanError
from edgefl.base.types import Array, Weights
from edgefl.program.plan.fill import BIAS_RULE, KERNEL_RULE, SLICE_RULE, fill_template
from edgefl.program.plan.spec import Binding, TensorSpec
from edgefl.program.plan.tflite import read_float_constants, read_subgraph

FIRST_PLACEHOLDER_BITS = 0x53800001
"""Bits of the first placeholder value, a float32 near 2^40. No model contains such constants."""
TOLERANCE = 1e-5


class Inference(Protocol):
    """What a template needs of a predict objective, see `edgefl.program.compiler.objective`."""

    @property
    def data(self) -> tuple[TensorSpec, ...]: ...
    @property
    def frozen(self) -> tuple[TensorSpec, ...]: ...
    @property
    def out(self) -> Callable[[Mapping[str, Any], Mapping[str, Any]], Any] | None: ...


def _make_placeholders(specs: Sequence[TensorSpec]) -> tuple[dict[str, Array], dict[str, int]]:
    """Return for each weight its placeholder float32[shape], and the first of its serial numbers."""
    values = {}
    starts = {}
    start = 0
    for spec in specs:
        count = int(np.prod(spec.shape, dtype=int))
        values[spec.name] = (
            np.arange(FIRST_PLACEHOLDER_BITS + start, FIRST_PLACEHOLDER_BITS + start + count, dtype=np.uint32)
            .view(np.float32)
            .reshape(spec.shape)
        )
        starts[spec.name] = start
        start += count
    return values, starts


def _set_identity_norms(values: dict[str, Array], epsilons: Mapping[str, float]) -> None:
    for norm, epsilon in epsilons.items():
        values[f"{norm}/moving_variance"] = _find_unit_variance(
            norm, epsilon, len(values[f"{norm}/moving_variance"])
        )
        if f"{norm}/gamma" in values:
            values[f"{norm}/gamma"] = np.ones_like(values[f"{norm}/gamma"])
        mean = values[f"{norm}/moving_mean"]
        values[f"{norm}/moving_mean"] = np.zeros_like(mean) if f"{norm}/beta" in values else -mean


def _find_unit_variance(norm: str, epsilon: float, count: int) -> Array:
    """Return variances, float32[count], for which TensorFlow on this processor divides by exactly 1.

    For such a variance v, 1 / sqrt(v + epsilon) is exactly 1. With AVX-512, v + epsilon = 1 gives 1 - 2^-23,
    except in the last incomplete group of eight values.
    """
    import tensorflow as tf

    near = np.float32(1) - np.float32(epsilon)
    step = np.float32(2**-24)
    variances = np.full(count, np.nan, np.float32)
    for steps in (0, -1, -2, 1, 2, -3, 3):
        tried = np.full(count, near + np.float32(steps) * step, np.float32)
        scale = tf.math.rsqrt(tf.constant(tried) + tf.constant(epsilon, tf.float32)).numpy()
        variances = np.where(np.isnan(variances) & (scale == 1), tried, variances)
    if np.isnan(variances).any():
        raise PlanError(
            f"layer {norm}: no variance makes 1 / sqrt(variance + {epsilon}) equal 1; use an epsilon such as "
            "0.001"
        )
    return variances


def _predict(objective: Inference, weights: Mapping[str, Any], x: Any) -> Any:
    if objective.out is None:
        raise PlanError("the objective of the mixture has no `out`, expected the kind predict; set `out`")
    return objective.out(weights, {"x": x})


def convert_objective(objective: Inference, values: Weights) -> bytes:
    """Return an objective as a float `.tflite` file of builtin ops, with batch size 1.

    Args:
        objective: the objective, with one data tensor.
        values: the weights by name, float32. They become constants of the file.

    Raises:
        PlanError: the objective has no `out`, or a layer cannot be converted.
    """
    import tensorflow as tf

    from edgefl.program.compiler.layers import TRACING_EXPORT

    (x,) = (spec for spec in objective.data)
    constants = {name: tf.constant(value) for name, value in values.items()}

    def serve(x: Any) -> Any:
        return {"out": _predict(objective, constants, x)}

    token = TRACING_EXPORT.set(True)
    try:
        traced = tf.function(serve, autograph=False).get_concrete_function(
            tf.TensorSpec((1, *x.shape[1:]), tf.float32, name="x")
        )
        converter = tf.lite.TFLiteConverter.from_concrete_functions([traced], tf.Module())
        converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS]
        return bytes(converter.convert())
    except PlanError:
        raise
    except Exception as error:  # The converter raises several types without a common base class
        raise PlanError(
            f"the mixture cannot be converted: {str(error).splitlines()[0]}; use layers that `edgefl plan "
            "build --help` lists"
        ) from error
    finally:
        TRACING_EXPORT.reset(token)


def _match(
    constant: Array, specs: Sequence[TensorSpec], starts: Mapping[str, int]
) -> tuple[str, tuple[int, ...]] | None:
    """Return the name and the permutation of the weight in a constant, or None for any other constant."""
    serial = np.ascontiguousarray(constant).view(np.uint32).ravel().astype(np.int64) - FIRST_PLACEHOLDER_BITS
    for spec in specs:
        count = int(np.prod(spec.shape, dtype=int))
        if (
            serial.size != count
            or serial.min() != starts[spec.name]
            or serial.max() != starts[spec.name] + count - 1
        ):
            continue
        local = np.arange(starts[spec.name], starts[spec.name] + count).reshape(spec.shape)
        for order in permutations(range(len(spec.shape))):
            if np.array_equal(np.transpose(local, order).ravel(), serial):
                return spec.name, order
    return None


def _match_slice(
    constant: Array, specs: Sequence[TensorSpec], starts: Mapping[str, int]
) -> tuple[str, tuple[int, ...], int] | None:
    """Find the weight of which a constant holds successive elements.

    Returns:
        The name of the weight, its permutation, and the index of the first element in the transposed weight.
            None for any other constant.
    """
    serial = np.ascontiguousarray(constant).view(np.uint32).ravel().astype(np.int64) - FIRST_PLACEHOLDER_BITS
    for spec in specs:
        count = int(np.prod(spec.shape, dtype=int))
        local = serial - starts[spec.name]
        if not local.size or local.min() < 0 or local.max() >= count:
            continue
        for order in permutations(range(len(spec.shape))):
            elements = np.transpose(np.arange(count).reshape(spec.shape), order).ravel()
            start = int(np.flatnonzero(elements == local[0])[0])
            if np.array_equal(elements[start : start + local.size], local):
                return spec.name, order, start
    return None


def _find_incomplete(bindings: Sequence[Binding], specs: Sequence[TensorSpec]) -> set[str]:
    """Return the weights whose slices do not cover all elements."""
    incomplete = set()
    for spec in specs:
        parts = [b for b in bindings if b.weight == spec.name]
        covered = np.zeros(spec.shape, bool)
        for part in parts:
            start = part.derived.get("start", 0)
            elements = np.arange(covered.size).reshape(spec.shape).transpose(part.permutation).ravel()
            covered.ravel()[elements[start : start + int(np.prod(part.shape, dtype=int))]] = True
        if parts and not covered.all():
            incomplete.add(spec.name)
    return incomplete


def _bind(model: bytes, specs: Sequence[TensorSpec], starts: Mapping[str, int]) -> dict[int, Binding]:
    bindings = {}
    for index, constant in read_float_constants(model).items():
        match = _match(constant, specs, starts)
        if match:
            bindings[index] = Binding(
                weight=match[0],
                tensor=index,
                permutation=match[1],
                shape=tuple(int(n) for n in constant.shape),
            )
        elif part := _match_slice(constant, specs, starts):
            name, order, start = part
            shape = tuple(int(n) for n in constant.shape)
            bindings[index] = Binding(
                weight=name,
                tensor=index,
                permutation=order,
                shape=shape,
                derived={"rule": SLICE_RULE, "start": start},
            )
    return bindings


def _find_norm_epsilons(specs: Sequence[TensorSpec], epsilons: Mapping[str, float]) -> dict[str, float]:
    """Return the epsilon of each batch norm among the weights, by the prefix of its weights' names."""
    norm_epsilons = {}
    for spec in specs:
        if spec.name.endswith("/moving_mean"):
            norm = spec.name.removesuffix("/moving_mean")
            layers = [name for name in epsilons if f"/{norm}".endswith(f"/{name}")]
            if not layers:
                raise PlanError(f"`epsilons` lacks the epsilon of the batch norm {norm}; add it")
            norm_epsilons[norm] = epsilons[max(layers, key=len)]
    return norm_epsilons


def _fold(model: bytes, bindings: dict[int, Binding], names: set[str], norms: Mapping[str, float]) -> None:
    """Replace the bindings of the layers before batch norms by derived bindings, in place."""
    operators = read_subgraph(model).operators
    for norm, epsilon in norms.items():
        beta = f"{norm}/beta" if f"{norm}/beta" in names else ""
        carrier = beta or f"{norm}/moving_mean"
        tensor_index = next((i for i, b in bindings.items() if b.weight == carrier), None)
        before = [
            op
            for op in operators
            if len(op.inputs) == 3 and op.inputs[2] == tensor_index and op.inputs[1] in bindings
        ]
        if tensor_index is None or len(before) != 1:
            raise PlanError(
                f"the batch norm {norm} is not directly after a convolution or dense layer, so it cannot be "
                "folded for export; move it there, before the activation, or use GroupNormalization"
            )
        (layer,) = before
        kernel = bindings[layer.inputs[1]]
        axis = len(kernel.shape) - 1 if layer.name == "DEPTHWISE_CONV_2D" else 0
        bias = f"{kernel.weight.rsplit('/', 1)[0]}/bias"
        gamma = f"{norm}/gamma" if f"{norm}/gamma" in names else ""
        sources = {
            "gamma": gamma,
            "mean": f"{norm}/moving_mean",
            "variance": f"{norm}/moving_variance",
            "epsilon": epsilon,
        }
        bindings[layer.inputs[1]] = Binding(
            weight=kernel.weight,
            tensor=kernel.tensor,
            permutation=kernel.permutation,
            shape=kernel.shape,
            derived={"rule": KERNEL_RULE, "axis": axis, **sources},
        )
        rule = {"rule": BIAS_RULE, "beta": beta, "bias": bias if bias in names else "", **sources}
        bindings[tensor_index] = Binding(
            weight=carrier,
            tensor=tensor_index,
            permutation=(0,),
            shape=bindings[tensor_index].shape,
            derived=rule,
        )


def _check(
    objective: Inference,
    template: bytes,
    bindings: Sequence[Binding],
    norms: Mapping[str, float],
    find_wrong_layer: Callable[[], str],
) -> None:
    """Check that the template with random weights computes the same as the objective."""
    import tensorflow as tf

    from edgefl.program.plan.runtime import load_interpreter

    rng = np.random.default_rng(0)
    weights = {}
    for spec in objective.frozen:
        fan_in = max(1, int(np.prod(spec.shape[:-1], dtype=int)))
        weights[spec.name] = rng.normal(0, fan_in**-0.5, spec.shape).astype(np.float32)
    for norm in norms:
        weights[f"{norm}/moving_variance"] = rng.uniform(
            0.5, 2, weights[f"{norm}/moving_variance"].shape
        ).astype(np.float32)
    x = rng.random((1, *objective.data[0].shape[1:]), dtype=np.float32)
    expected = np.asarray(
        _predict(objective, {name: tf.constant(value) for name, value in weights.items()}, tf.constant(x))
    )
    interpreter = load_interpreter(fill_template(template, bindings, weights))
    interpreter.allocate_tensors()
    interpreter.set_tensor(interpreter.get_input_details()[0]["index"], x)
    interpreter.invoke()
    received = interpreter.get_tensor(interpreter.get_output_details()[0]["index"])
    error = float(np.abs(received - expected).max() / max(1.0, float(np.abs(expected).max())))
    if received.shape != expected.shape or not error <= TOLERANCE:
        raise PlanError(
            f"{find_wrong_layer()} cannot be converted for the export: the template differs by {error:.1e} "
            f"from Keras, expected at most {TOLERANCE}; replace the layer with a layer that `edgefl plan "
            "build --help` lists"
        )


def build_template(
    objective: Inference,
    epsilons: Mapping[str, float] | None = None,
    find_wrong_layer: Callable[[], str] = lambda: "the mixture",
) -> tuple[bytes, tuple[Binding, ...]]:
    """Return the float graph of the mixture at batch size 1, and the position of each weight in it.

    Args:
        objective: the objective of `predict_mixture`, with one data tensor `x`.
        epsilons: the epsilon of each batch norm by the end of the prefix of its weights' names.
        find_wrong_layer: names the layer that a converted graph computes wrongly, for an error.

    Raises:
        PlanError: a layer cannot be converted, the converter changed a weight in a way that a device cannot
            repeat, or the filled template differs from Keras by more than 1e-5.
    """
    specs = objective.frozen
    if [spec.name for spec in objective.data] != ["x"]:
        raise PlanError(
            f"the mixture has the inputs {', '.join(s.name for s in objective.data)}, expected only x; "
            "change `data` of the objective"
        )
    norms = _find_norm_epsilons(specs, epsilons or {})
    values, starts = _make_placeholders(specs)
    _set_identity_norms(values, norms)
    template = convert_objective(objective, values)
    bindings = _bind(template, specs, starts)
    layer_specs = tuple(spec for spec in specs if not any(spec.name.startswith(f"{norm}/") for norm in norms))
    hidden = {spec.name for spec in layer_specs} - {b.weight for b in bindings.values()}
    # The converter added these biases to the shift of a norm. With zeros, the shift is recognized
    if norms and hidden:
        template = convert_objective(
            objective, {n: np.zeros_like(v) if n in hidden else v for n, v in values.items()}
        )
        bindings = _bind(template, specs, starts)
    _fold(template, bindings, {spec.name for spec in specs}, norms)
    derived = {str(b.derived.get("bias")) for b in bindings.values() if b.derived}
    lost = sorted(
        ({spec.name for spec in layer_specs} - {b.weight for b in bindings.values()} - derived)
        | _find_incomplete(tuple(bindings.values()), layer_specs)
    )
    if lost:
        raise PlanError(
            f"the converter merged {', '.join(lost)} into other constants, so a device cannot fill them in; "
            "put a ReLU between layers that have no activation between them, remove one of these layers, or "
            "write arithmetic such as x / 255 as a Rescaling layer"
        )
    ordered = tuple(bindings[index] for index in sorted(bindings))
    _check(objective, template, ordered, norms, find_wrong_layer)
    return template, ordered
