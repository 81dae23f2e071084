"""Layers of the flat tf-keras clone that tf-keras itself has not: a slice, a mean, and arithmetic of two
tensors or a constant.
"""

import operator
from functools import cache
from typing import Any

from edgefl.errors import ExportError

COMBINE = {"ADD": operator.add, "SUB": operator.sub, "MUL": operator.mul}


def tf_keras() -> Any:
    """Return tf-keras; ExportError when the host has it not."""
    try:
        import tf_keras as found
    except ImportError as error:
        raise ExportError(
            f"the TensorFlow route needs {error.name}, which this environment lacks; "
            "pip install -e '.[aggregator]', or export with --route device"
        ) from error
    return found


@cache
def own_layers() -> dict[str, Any]:
    """Return the classes by name; they are made here since their base is tf-keras's."""
    keras = tf_keras()
    import tensorflow as tf

    class Slice(keras.layers.Layer):  # type: ignore[misc, name-defined]
        """x[begin : begin + size]; a size of -1 is all that is left."""

        def __init__(self, begin: list[int], size: list[int], **named: Any) -> None:
            super().__init__(**named)
            self.begin = list(begin)
            self.size = list(size)

        def call(self, x: Any) -> Any:
            return tf.slice(x, self.begin, self.size)

        def get_config(self) -> dict[str, Any]:
            return {**super().get_config(), "begin": self.begin, "size": self.size}

    class Mean(keras.layers.Layer):  # type: ignore[misc, name-defined]
        """The mean over `axes`."""

        def __init__(self, axes: list[int], keepdims: bool, **named: Any) -> None:
            super().__init__(**named)
            self.axes = list(axes)
            self.keepdims = keepdims

        def call(self, x: Any) -> Any:
            return tf.reduce_mean(x, self.axes, keepdims=self.keepdims)

        def get_config(self) -> dict[str, Any]:
            return {**super().get_config(), "axes": self.axes, "keepdims": self.keepdims}

    class Combine(keras.layers.Layer):  # type: ignore[misc, name-defined]
        """first + second, first - second or first * second, one of which may be a constant."""

        def __init__(self, kind: str, first: Any = None, second: Any = None, **named: Any) -> None:
            super().__init__(**named)
            self.kind = kind
            self.first = first
            self.second = second

        def call(self, x: Any) -> Any:
            given = list(x) if isinstance(x, list | tuple) else [x]
            pair = [
                given.pop(0) if each is None else tf.constant(each, tf.float32)
                for each in (self.first, self.second)
            ]
            return COMBINE[self.kind](*pair)

        def get_config(self) -> dict[str, Any]:
            return {**super().get_config(), "kind": self.kind, "first": self.first, "second": self.second}

    return {"Slice": Slice, "Mean": Mean, "Combine": Combine}
