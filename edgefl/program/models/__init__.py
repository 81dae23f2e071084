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
from edgefl.program.models.options import check_model_options

_SOURCES = {
    "lenet5": "LeCun et al. 1998 as in PFL-MoE (arXiv:2012.15589): 61,706 weights at 28x28x1; as in FedMix "
    "with padding valid: 44,426",
    "aem-cnn": "LEAF CNN of Adaptive Expert Models (Isaksson et al. 2022): 942,634 weights at 32x32x3",
    "five-conv": "clustered federated learning on dense layers: five 3x3 convolutions and one dense layer, "
    "130,826 weights at 32x32x3",
    "resnet20": "He et al. 2016 with the group norm of Wu and He 2018, as in FedMix: 269,722 weights at "
    "32x32x3",
    "mobilenetv2": "Sandler et al. 2018, as in FedAP: 2,266,951 weights with seven classes, images from "
    "16x16 up",
    "mobilenetv1": "Howard et al. 2017 at width .25, as in MLPerf Tiny: 219,058 weights with two classes, "
    "images from 16x16 up",
    "resnet8": "He et al. 2016 with batch norm, as in MLPerf Tiny: 78,666 weights at 32x32x3",
    "ds-cnn": "keyword spotting (Zhang et al. 2017), as in MLPerf Tiny: 24,908 weights at 49x10x1 with "
    "twelve classes",
    "vgg16": "Simonyan and Zisserman 2014 as in PFL-MoE: 15,245,130 weights at 32x32x3",
    "cnn1d": "windows of inertial sensors such as UCI HAR (Anguita et al. 2013): 16,326 weights at 128x9 "
    "with six classes",
    "gate-pixels": "linear gate of PFL-MF on the flattened sample, one class per expert: 6,146 weights at "
    "32x32x3 over two",
    "gate-cnn": "gate of Adaptive Expert Models (Isaksson et al. 2022), one class per expert: 6,995 weights "
    "at 32x32x3 over seven",
    "softmax": "multinomial logistic regression: one dense layer on the flattened sample",
    "mlp": "multilayer perceptron of FedMix (Reisser et al. 2021): two hidden layers of 200 units, 199,210 "
    "weights at 28x28x1",
    "autoencoder": "autoencoder of MLPerf Tiny for anomaly detection (Koizumi et al. 2020): 269,992 "
    "weights at 640 values",
    "conv-autoencoder": "convolutional autoencoder for windows of sensors, for anomaly detection: 11,038 "
    "weights at 128x3",
}


MIN_AUTOENCODER_VALUES = 64
"""Minimum number of outputs from which a model with as many outputs as inputs counts as an autoencoder.

A model that ends with softmax never counts as one.
"""


def list_models() -> dict[str, str]:
    """Return the source of each built-in model in one line, by name."""
    return dict(_SOURCES)


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
    if name in _SOURCES:
        function = name.replace("-", "_")
        module = f"edgefl.program.models.{function}"
    elif ":" in name:
        module, function = name.split(":", 1)
    elif explanation := explain_format(name):
        raise ConfigError(explanation)
    else:
        raise ConfigError(
            f"unknown model {name!r}; {suggest_nearest(name, list(_SOURCES))}; a .keras file or "
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
    options = check_model_options(config.name, config.options) if config.name in _SOURCES else config.options
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
            f"model {config.name} returns one value per sample, expected one per class; for yes or no, "
            "end the "
            "model with Dense(2), logits or softmax, and number the labels 0 and 1; to predict a number, set "
            "kind = 'regression' in [task]"
        )
    if len(output_shape) != 1 or (config.name not in _SOURCES and _is_autoencoder(model)):
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
