"""TensorFlow's converter: turns a flat tf-keras clone of the mixture into an integer .tflite.

It is the alternative to the device route.
"""

from collections.abc import Iterator
from typing import Any

from edgefl.base.errors import ExportError
from edgefl.base.system.stderr import suppress_stderr
from edgefl.base.types import Array
from firmware_export.quantize.keras_clone import clone
from firmware_export.tflite.graph import check_integer, read_graph
from firmware_export.tflite.portable import to_portable


def convert_keras(model: Any, x: Array, bits: int = 8) -> bytes:
    """Return the integer .tflite of a tf-keras model, with batch size 1.

    Ranges from quantization-aware training take precedence over the ranges of the samples.

    Args:
        model: a tf-keras model, with or without fake quantization.
        x: calibration samples, shape (n, ...), float32. All of them are used.
        bits: bits of the activations, 8 or 16. Weights have 8.

    Raises:
        ExportError: TensorFlow refuses the model, or an operator has no integer form.
    """
    import tensorflow as tf

    kinds = {
        8: (tf.lite.OpsSet.TFLITE_BUILTINS_INT8, tf.int8),
        16: (tf.lite.OpsSet.EXPERIMENTAL_TFLITE_BUILTINS_ACTIVATIONS_INT16_WEIGHTS_INT8, tf.int16),
    }
    operators, dtype = kinds[bits]

    def iterate_samples() -> Iterator[list[Array]]:
        return ([sample[None]] for sample in x)

    shape = (1, *(int(n) for n in model.input_shape[1:]))
    traced = tf.function(lambda x: model(x, training=False), autograph=False).get_concrete_function(
        tf.TensorSpec(shape, tf.float32)
    )
    converter = tf.lite.TFLiteConverter.from_concrete_functions([traced], model)
    converter.optimizations = [tf.lite.Optimize.DEFAULT]
    converter.representative_dataset = iterate_samples
    converter.target_spec.supported_ops = [operators]
    converter.inference_input_type = converter.inference_output_type = dtype
    try:
        with suppress_stderr():
            made = to_portable(bytes(converter.convert()))
    except Exception as error:  # the converter raises many unrelated types
        raise ExportError(
            f"TensorFlow refuses the mixture: {str(error).splitlines()[0]}; export with --route device"
        ) from error
    check_integer(read_graph(made))
    return made


def convert_float(model: bytes, x: Array, bits: int = 8) -> bytes:
    """Return the integer form of a float .tflite, with batch size 1.

    Args:
        model: the float .tflite.
        x: calibration samples, shape (n, ...), float32. All of them are used.
        bits: bits of the activations, 8 or 16. Weights have 8.

    Raises:
        ExportError: as in `clone` or `convert_keras`, or the model cannot be read.
    """
    return convert_keras(clone(model).model, x, bits)
