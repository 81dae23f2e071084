"""Builds Keras models by name, from a `.keras` file, or with a `module:function`."""

import importlib
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from edgefl.base.config import ModelConfig
from edgefl.base.errors import ConfigError
from edgefl.base.options import suggest_nearest
from edgefl.base.tasks.config import BINARY_LOSS, CLASSIFICATION_TASK, TaskConfig
from edgefl.program.models.failure import explain_failure
from edgefl.program.models.input_normalization import normalize_input
from edgefl.program.models.keras_file import explain_format, load_keras_file
from edgefl.program.models.zoo.catalog import ZOO, check_model_options

MIN_AUTOENCODER_VALUES = 64
"""Minimum number of outputs from which a model with as many outputs as inputs counts as an autoencoder.

A model that ends with softmax never counts as one.
"""


def build_model(config: ModelConfig, task: TaskConfig = CLASSIFICATION_TASK) -> Any:
    """Build the Keras model of a configuration.

    Args:
        config: the table `[model]`. Its `name` is a name of `list_models`, a path that ends in `.keras`, or
            `module:function`. A function is called as `function(input_shape, num_classes, **options)`. With
            `mean` and `std`, the model starts with a Normalization layer.
        task: what the model is trained for.

    Returns:
        The model. It maps samples, shape (batch, *input_shape), float32, to logits or probabilities, shape
        (batch, num_classes), float32.

    Raises:
        ConfigError: the name or an option is unknown, a file cannot be read or contains code, or the model
            has other shapes than the configuration.
    """
    import keras

    # Automatic layer names must not depend on models that were built earlier.
    keras.utils.clear_session(free_memory=False)
    if config.name.endswith(".keras"):
        if config.options:
            raise ConfigError(
                f"[model] options {', '.join(config.options)} have no effect on the file {config.name}; "
                "remove them"
            )
        model = load_keras_file(Path(config.name))
    else:
        model = _call_factory(_find_factory(config.name), config)
    if not isinstance(model, keras.Model):
        raise ConfigError(
            f"model {config.name} returned {type(model).__name__}, expected a keras.Model; return the model "
            "itself"
        )
    _check_shapes(model, config, task)
    return normalize_input(model, config.mean, config.std) if config.mean else model


def _find_factory(name: str) -> Callable[..., Any]:
    if name in ZOO:
        return ZOO[name].build
    if ":" in name:
        module, function = name.split(":", 1)
    elif explanation := explain_format(name):
        raise ConfigError(explanation)
    else:
        raise ConfigError(
            f"unknown model {name!r}; {suggest_nearest(name, list(ZOO))}; a .keras file or "
            "module:function is accepted too"
        )
    try:
        factory = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError) as error:
        raise ConfigError(
            f"cannot import model {name!r}: {error}; is its package installed in this environment?"
        ) from error
    except Exception as error:  # The code of the user's module raises any type
        raise ConfigError(
            f"cannot import model {name!r}: {type(error).__name__}: {explain_failure(error)}; correct the "
            f"module {module}"
        ) from error
    if not callable(factory):
        raise ConfigError(
            f"{name} is not a function; expected function(input_shape, num_classes, **options) that returns "
            "a keras.Model"
        )
    return factory  # type: ignore[no-any-return]


def _call_factory(factory: Callable[..., Any], config: ModelConfig) -> Any:
    options = check_model_options(config.name, config.options) if config.name in ZOO else config.options
    try:
        return factory(tuple(config.input_shape), config.num_classes, **options)
    except ConfigError:
        raise
    except TypeError as error:
        raise ConfigError(
            f"model {config.name} with options {dict(config.options)}: {error}; `edgefl models` lists the "
            "options"
        ) from error
    except Exception as error:  # Keras and functions of users raise any type
        raise ConfigError(
            f"model {config.name} cannot be built for input_shape {tuple(config.input_shape)} and "
            f"num_classes {config.num_classes}: {type(error).__name__}: {explain_failure(error)}; change one "
            "of them, or correct the function"
        ) from error


def _check_shapes(model: Any, config: ModelConfig, task: TaskConfig) -> None:
    if not model.built or not getattr(model, "inputs", None):
        raise ConfigError(
            f"model {config.name} has no input of known shape, expected one; start a Sequential with "
            "keras.Input"
        )
    if len(model.inputs) != 1:
        raise ConfigError(
            f"model {config.name} has {len(model.inputs)} inputs "
            f"({', '.join(tensor.name for tensor in model.inputs)}), expected one; join the inputs in the "
            "data, and separate them with layers behind one keras.Input"
        )
    if len(model.outputs) != 1:
        raise ConfigError(
            f"model {config.name} has {len(model.outputs)} outputs, expected one, a row of class scores; "
            "pass only the classifier, keras.Model(inputs, scores)"
        )
    received = tuple(model.inputs[0].shape[1:])
    expected = tuple(config.input_shape)
    if None in received and len(received) == len(expected):
        raise ConfigError(
            f"model {config.name} takes samples of any size, {received}, expected a fixed shape; build it "
            f"with keras.Input({expected}), and save it again"
        )
    if received != expected:
        raise ConfigError(
            f"model {config.name} takes samples of shape {received}, the configuration has input_shape "
            f"{expected}; change one of them"
        )
    output_shape = tuple(model.outputs[0].shape[1:])
    if not task.is_classification:
        if output_shape != (config.num_classes,):
            raise ConfigError(
                f"model {config.name} returns {output_shape} for a sample of {received}, expected "
                f"({config.num_classes},) for kind = {task.kind!r} of [task]; end the model with "
                f"Dense({config.num_classes}), or with Flatten"
            )
        return
    if task.loss == BINARY_LOSS and output_shape != (1,):
        raise ConfigError(
            f"model {config.name} returns {output_shape} per sample, expected one value for loss = "
            f"{BINARY_LOSS!r} of [task]; end the model with Dense(1), or leave loss out"
        )
    if task.loss == BINARY_LOSS:
        return
    if output_shape == (1,):
        raise ConfigError(
            f"model {config.name} returns one value per sample, expected one per class; for yes or no, end "
            "the model with Dense(2), logits or softmax, and number the labels 0 and 1; to predict a "
            "number, set kind = 'regression' in [task]"
        )
    if len(output_shape) != 1 or (config.name not in ZOO and _is_autoencoder(model)):
        raise ConfigError(
            f"model {config.name} returns {output_shape} for a sample of {received}, as an autoencoder does, "
            "expected a classifier; set kind = 'anomaly' in [task], or end the model with "
            "Dense(num_classes), logits or softmax (a softmax also marks it as a classifier of "
            f"{output_shape[-1]} classes)"
        )
    if output_shape != (config.num_classes,):
        raise ConfigError(
            f"model {config.name} returns {output_shape} per sample, the configuration has num_classes "
            f"{config.num_classes}; change one of them: the last layer is Dense(num_classes), with logits or "
            "softmax"
        )


def _flatten_layers(model: Any) -> list[Any]:
    return [
        part
        for layer in model.layers
        for part in (_flatten_layers(layer) if hasattr(layer, "layers") else [layer])
    ]


def _is_autoencoder(model: Any) -> bool:
    """Return whether the model seems to reconstruct its input.

    Such a model has as many outputs as inputs and no softmax, and it has many outputs or a narrower layer.
    """
    import keras

    size = math.prod(model.outputs[0].shape[1:])
    layer = model.outputs[0]._keras_history[0]
    softmax = (
        isinstance(layer, keras.layers.Softmax)
        or getattr(layer, "activation", None) is keras.activations.softmax
    )
    if size != math.prod(model.inputs[0].shape[1:]) or softmax:
        return False
    dense = [
        dense_layer for dense_layer in _flatten_layers(model) if isinstance(dense_layer, keras.layers.Dense)
    ]
    return size >= MIN_AUTOENCODER_VALUES or any(dense_layer.units < size for dense_layer in dense)
