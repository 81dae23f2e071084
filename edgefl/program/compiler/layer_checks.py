"""Refuses what a Keras layer carries beside its weights and cannot do in a plan, by the name of the layer."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import keras
import numpy as np

from edgefl.base.errors import PlanError
from edgefl.program.models.failure import explain_failure
from edgefl.program.models.graph import is_graph

SAMPLE_PENALTIES = (keras.regularizers.L1, keras.regularizers.L2, keras.regularizers.L1L2)
"""Penalties of activations that are a sum over the values of each sample."""


def describe_layer(layer: Any) -> str:
    """Return the name and the class of a layer, for errors."""
    return f"layer {layer.name} ({type(layer).__name__})"


def flatten_layers(layers: Sequence[Any]) -> list[Any]:
    """Return the layers, with the layers of a nested model in place of that model."""
    return [
        part for layer in layers for part in (flatten_layers(layer.layers) if is_graph(layer) else [layer])
    ]


def list_sublayers(layer: Any) -> Iterator[Any]:
    """Yield a layer and the layers in its attributes, such as both directions of a Bidirectional."""
    pending = [layer]
    seen = set()
    while pending:
        part = pending.pop(0)
        if id(part) in seen:
            continue
        seen.add(id(part))
        yield part
        for value in vars(part).values():
            values = value.values() if isinstance(value, Mapping) else value
            several = values if isinstance(value, list | tuple | Mapping) else [value]
            pending.extend(child for child in several if isinstance(child, keras.Layer))


def convert_to_float32(model: Any) -> Any:
    """Return the model with layers that compute in float32, and with the same weights.

    Args:
        model: a functional model. It is returned unchanged if its layers compute in float32 already.

    Raises:
        PlanError: a layer has weights that are not floats, or a model of own layers cannot be rebuilt.
    """
    layers = [part for layer in flatten_layers(model.layers) for part in list_sublayers(layer)]
    for layer in layers:
        _check_dtypes(layer)
    others = [layer for layer in layers if _is_other_float(layer.compute_dtype, layer.variable_dtype)]
    if not others and all(tensor.dtype == "float32" for tensor in model.inputs):
        return model
    try:
        converted = type(model).from_config(_with_float32(model.get_config()))
        converted.set_weights(model.get_weights())
    except Exception as error:  # Layers of other packages raise any type
        layer = others[0] if others else model
        raise PlanError(
            f"{describe_layer(layer)} computes in {layer.compute_dtype}, expected float32, and Keras cannot "
            f"rebuild the model in float32 ({explain_failure(error)}); build it with "
            'dtype="float32"'
        ) from error
    return converted


def check_layer_attributes(model: Any, names: Mapping[int, str]) -> None:
    """Check that a plan can do everything that the layers of a model carry.

    Args:
        names: names of the weights by id of their variable.

    Raises:
        PlanError: a weight has a constraint or is not finite, or a layer has another penalty of its
            activations than L1 and L2.
    """
    for layer in flatten_layers(model.layers):
        for part in list_sublayers(layer):
            if isinstance(part, keras.layers.Dropout) and part.rate >= 1:
                raise PlanError(
                    f"{describe_layer(layer)} drops all values (its rate is {part.rate:g}), so no layer "
                    "before it can learn; expected a rate below 1"
                )
            if isinstance(part, keras.layers.BatchNormalization) and getattr(part, "renorm", False):
                raise PlanError(
                    f"{describe_layer(layer)} has renorm=True, whose statistics no exported model contains; "
                    "set renorm=False"
                )
            if isinstance(getattr(part, "activation", None), keras.layers.PReLU):
                raise PlanError(
                    f"{describe_layer(layer)} has the activation PReLU, which has weights; add it as a layer "
                    "behind this one"
                )
            if isinstance(part, keras.layers.Embedding):
                raise PlanError(
                    f"{describe_layer(layer)} looks up whole numbers in a table, which cannot be trained "
                    "on a device; use Dense on one-hot samples, or store the looked up values"
                )
    for layer in flatten_layers(model.layers):
        for variable in layer.weights:
            if "float" in str(variable.dtype) and not np.isfinite(np.asarray(variable)).all():
                raise PlanError(
                    f"{describe_layer(layer)} has a {variable.name} with NaN or infinite values, expected "
                    "numbers in the range of float32; train or adapt the layer again on samples without NaN"
                )
    for variable in model.weights:
        if id(variable) in names and "float" not in str(variable.dtype):
            layer, part = names[id(variable)].rsplit("/", 1)
            raise PlanError(
                f"layer {layer} has the weight {part} of dtype {variable.dtype}, expected float32; replace "
                "the layer"
            )
    for variable in model.trainable_variables:
        constraint = getattr(variable, "constraint", None)
        if constraint is not None:
            layer, part = names[id(variable)].rsplit("/", 1)
            raise PlanError(
                f"layer {layer} has the constraint {type(constraint).__name__} on its {part}, which a "
                "training step of a plan does not apply; remove the constraint, or use a regularizer"
            )
    for layer in flatten_layers(model.layers):
        for part in list_sublayers(layer):
            penalty = part.activity_regularizer
            if penalty is None or (part is layer and type(penalty) in SAMPLE_PENALTIES):
                continue
            raise PlanError(
                f"{describe_layer(layer)} has the activity_regularizer {type(penalty).__name__}, expected "
                "L1, L2 or L1L2 of a layer that is in no other layer; remove it, or add an "
                "ActivityRegularization layer"
            )


def _check_dtypes(layer: Any) -> None:
    if getattr(layer.dtype_policy, "quantization_mode", None) is not None:
        raise PlanError(
            f"{describe_layer(layer)} is quantized ({layer.dtype_policy.name}), expected weights in float32, "
            "because devices train them; save the model before `quantize`"
        )
    if getattr(layer, "lora_enabled", False):
        raise PlanError(
            f"{describe_layer(layer)} has LoRA weights, expected its own weights only; build the model "
            "without `enable_lora`"
        )


def _is_other_float(*dtypes: Any) -> bool:
    return any(str(dtype) != "float32" and "float" in str(dtype) for dtype in dtypes)


def _with_float32(config: Any) -> Any:
    """Return the configuration of a model with float32 in place of each other float type and policy.

    Integer inputs become float32 too.
    """
    if isinstance(config, Mapping):
        is_input = config.get("class_name") == "InputLayer"
        return {
            key: "float32"
            if key == "dtype" and _names_float(value)
            else {**value, "dtype": "float32"}
            if key == "config" and is_input
            else _with_float32(value)
            for key, value in config.items()
        }
    return type(config)(map(_with_float32, config)) if type(config) in (list, tuple) else config


def _names_float(value: Any) -> bool:
    policy = value.get("config", {}).get("name", "") if isinstance(value, Mapping) else value
    return "float" in str(policy)
