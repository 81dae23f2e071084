"""Random int8 models of every kernel in the generated C: chains, residual blocks, norms and gated mixtures.

Weights, scales and zero points are drawn over their whole range. Outputs therefore saturate, and sums are as
large as possible.
"""

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

KINDS = (
    "convolutions",
    "depthwise",
    "dense",
    "pooling",
    "residual",
    "norms",
    "mixture",
    "movement",
    "padding",
)


@dataclass
class Graph:
    """A model under construction.

    Attributes:
        graphs: the module graphs.py.
        rng: draws the kernels, scales and zero points.
        tensors: tensors so far.
        operators: operators so far.
        initial: first values of the variables, by name.
        kind: type of the activations. Those of INT16 have no zero points, and finer scales.
    """

    graphs: Any
    rng: np.random.Generator
    tensors: list[Any] = field(default_factory=list)
    operators: list[Any] = field(default_factory=list)
    initial: dict[str, Any] = field(default_factory=dict)
    kind: str = "INT8"

    def add_tensor(
        self, shape: tuple[int, ...], scale: float | None = None, zero: int | None = None, **values: Any
    ) -> int:
        """Add a tensor. Its quantization is random unless it is passed."""
        values = {"kind": self.kind, **values}
        fine = 2.0**-8 if values["kind"] == "INT16" else 1.0
        scale = float(np.float32(2.0 ** self.rng.uniform(-7, -1) * fine)) if scale is None else scale
        zero = int(np.clip(self.rng.normal(0, 50), -128, 127)) if zero is None else zero
        zero = 0 if values["kind"] == "INT16" else zero
        self.tensors.append(self.graphs.T(shape, scale, zero, **values))
        return len(self.tensors) - 1

    def add_constant(self, data: Any, scales: Any = 0.05, axis: int = 0) -> int:
        """Add a constant."""
        self.tensors.append(self.graphs.T(shape=np.shape(data), scales=scales, zero=0, data=data, axis=axis))
        return len(self.tensors) - 1

    def add_operator(
        self,
        name: str,
        inputs: tuple[int, ...],
        outputs: tuple[int, ...],
        options: dict[str, Any],
        options_class: str,
    ) -> int:
        """Add an operator and return its first output."""
        self.operators.append(
            self.graphs.Op(
                name=name, inputs=inputs, outputs=outputs, options=options, options_class=options_class
            )
        )
        return outputs[0]

    def get_shape(self, index: int) -> tuple[int, ...]:
        """Return a tensor's shape."""
        shape: tuple[int, ...] = self.tensors[index].shape
        return shape

    def add_variable(self, name: str, like: int, rows: int) -> tuple[int, int]:
        """Add a variable with rows like those of a tensor, and read it.

        The first values are random, or all equal.

        Returns:
            The indices of its handle and of its value.
        """
        _, _, *others = self.get_shape(like)
        shape = (1, rows, *others)
        kind = _get_quantization(self, like)
        values = self.rng.integers(-128, 128, shape if self.rng.random() < 0.5 else (1,) * len(shape))
        dtype = np.int16 if self.kind == "INT16" else np.int8
        self.initial[name] = self.graphs.T(shape, *kind, np.broadcast_to(values, shape).astype(dtype))
        self.tensors.append(self.graphs.make_handle())
        handle = len(self.tensors) - 1
        self.operators.append(self.graphs.name_variable(name, handle))
        return handle, self.add_operator("READ_VARIABLE", (handle,), (self.add_tensor(shape, *kind),), {}, "")

    def assign_variable(self, handle: int, value: int) -> None:
        """Set the next value of a variable."""
        self.operators.append(self.graphs.Op("ASSIGN_VARIABLE", (handle, value), ()))

    def add_rows(self, source: int, first: int, count: int) -> int:
        """Add a STRIDED_SLICE of rows, axis 1."""
        shape = self.get_shape(source)
        positions = [
            self.add_constant(np.array(value, np.int32))
            for value in ((0, first, 0, 0), (0, first + count, 0, 0), (1, 1, 1, 1))
        ]
        return self.add_operator(
            "STRIDED_SLICE",
            (source, *positions),
            (self.add_tensor((1, count, *shape[2:]), *_get_quantization(self, source)),),
            {"beginMask": 0b1101, "endMask": 0b1101},
            "StridedSlice",
        )

    def join_rows(self, above: int, below: int) -> int:
        """Add a CONCATENATION along axis 1."""
        _, rows, *others = self.get_shape(above)
        output = self.add_tensor(
            (1, rows + self.get_shape(below)[1], *others), *_get_quantization(self, above)
        )
        return self.add_operator("CONCATENATION", (above, below), (output,), {"axis": 1}, "Concatenation")

    def add_stream(self, source: int) -> int:
        """Add the rows of earlier inferences before those of this one, as a streaming layer does.

        The variable keeps the last rows. It is set before or after the last use of its value, or its new
        value is its old one shifted by the new rows.
        """
        name = f"stream_{len(self.initial)}"
        rows = self.get_shape(source)[1]
        kept = int(self.rng.integers(1, 5)) + rows
        handle, value = self.add_variable(name, source, kept)
        if self.rng.random() < 0.3:
            value = self.add_rows(value, rows, kept - rows)
            joined = self.join_rows(value, source)
            self.assign_variable(handle, joined)
            return joined
        joined = self.join_rows(value, source)
        if self.rng.random() < 0.5:
            self.assign_variable(handle, self.add_rows(joined, rows, kept))
            return self.join_rows(joined, value) if self.rng.random() < 0.5 else joined
        joined = self.join_rows(joined, source)
        self.assign_variable(handle, self.add_rows(joined, 2 * rows, kept))
        return joined

    def add_state(self, size: int, scale: float, zero: int, kind: str = "INT8") -> int:
        """Add a tensor that keeps its values from one inference to the next."""
        return self.add_tensor((1, size), scale, zero, kind=kind, is_variable=True)

    def add_lstm(self, source: int, units: int, *, clip: float = 0.0) -> int:
        """Add UNIDIRECTIONAL_SEQUENCE_LSTM over an input of shape (1, steps, features)."""
        rng = self.rng
        _, steps, features = self.get_shape(source)
        input_scale = float(np.float32(self.tensors[source].scales))
        hidden = 2.0**-7, int(rng.integers(-20, 20))
        scale = float(np.float32(2.0 ** rng.uniform(-9, -6)))
        weights = [self.add_constant(self.draw_weights(units, features), scale) for _ in range(4)]
        recurrent = [self.add_constant(self.draw_weights(units, units), scale) for _ in range(4)]
        reach = 1 / (input_scale * scale)
        biases = [
            self.add_constant(rng.normal(0, reach, units).astype(np.int32), [input_scale * scale])
            for _ in range(4)
        ]
        states = [
            self.add_state(units, *hidden),
            self.add_state(units, 2.0 ** -int(rng.integers(9, 15)), 0, "INT16"),
        ]
        nothing = (-1,) * 4
        inputs = (source, *weights, *recurrent, *nothing[:3], *biases, *nothing[:2], *states, *nothing)
        output = self.add_operator(
            "UNIDIRECTIONAL_SEQUENCE_LSTM",
            inputs,
            (self.add_tensor((1, steps, units), *hidden),),
            {"fusedActivationFunction": 4, "cellClip": clip},
            "UnidirectionalSequenceLSTM",
        )
        self.operators[-1] = replace(self.operators[-1], intermediates=5)  # LiteRT needs them
        return output

    def add_svdf(self, source: int, units: int, memory: int, rank: int, *, wide: bool) -> int:
        """Add SVDF over an input of shape (1, features).

        Its state and weights over time have 8 or 16 bits.
        """
        rng = self.rng
        features = self.get_shape(source)[1]
        filters = units * rank
        input_scale = float(np.float32(self.tensors[source].scales))
        scales = [float(np.float32(2.0 ** rng.uniform(-9, -6))) for _ in range(2)]
        most = 1 << (15 if wide else 7)
        state_scale = float(np.float32(input_scale * scales[0] * 5400 * features**0.5 / (most * 0.3)))
        time = rng.integers(-most, most, (filters, memory)).astype(np.int16 if wide else np.int8)
        bias_scale = float(np.float32(state_scale) * np.float32(scales[1]))
        reach = most * most * 0.1 * (memory * rank) ** 0.5
        inputs = (
            source,
            self.add_constant(self.draw_weights(filters, features), scales[0]),
            self.add_constant(time, scales[1]),
            self.add_constant(rng.normal(0, reach / 2, units).astype(np.int32), [bias_scale]),
            self.add_state(
                filters * memory,
                state_scale,
                0 if wide else int(rng.integers(-9, 9)),
                "INT16" if wide else "INT8",
            ),
        )
        return self.add_operator(
            "SVDF",
            inputs,
            (self.add_tensor((1, units), bias_scale * reach / 60),),
            {"rank": rank, "fusedActivationFunction": 1},
            "SVDF",
        )

    def draw_weights(self, *shape: int) -> Any:
        """Return int8 weights: uniform values, or only the two extremes."""
        if self.rng.random() < 0.2:
            return self.rng.choice(np.array([-128, 127], np.int8), shape)
        return self.rng.integers(-128, 128, shape).astype(np.int8)

    def add_kernel(
        self, source: int, weights: Any, channels: int, axis: int
    ) -> tuple[tuple[int, int, int], float]:
        """Add weights with a scale per channel, and a bias.

        Returns:
            The indices of activation, weights and bias, and a scale that spreads the outputs over their type.
        """
        scales = [float(np.float32(2.0 ** self.rng.uniform(-8, -6))) for _ in range(channels)]
        steps = 256 if self.kind == "INT16" else 1
        reach = 5400 * steps * (weights.size / channels) ** 0.5
        bias = self.rng.normal(0, reach / 2, channels).astype(np.int64 if steps > 1 else np.int32)
        input_scale = float(np.float32(self.tensors[source].scales))
        inputs = (
            source,
            self.add_constant(weights, scales, axis),
            self.add_constant(bias, [input_scale * scale for scale in scales]),
        )
        return inputs, input_scale * 2.0**-7 * reach / steps / float(self.rng.uniform(15, 200))

    def add_convolution(self, source: int, *, depthwise: bool = False, groups: int = 1) -> int:
        """Add CONV_2D or DEPTHWISE_CONV_2D with random kernel, stride, padding, dilation and activation."""
        rng = self.rng
        _, height, width, channels = self.get_shape(source)
        kernel = [int(v) for v in rng.integers(1, 5, 2)]
        stride = [int(v) for v in rng.integers(1, 3, 2)]
        dilation = [2, 2] if rng.random() < 0.15 else [1, 1]
        reach = [(k - 1) * d + 1 for k, d in zip(kernel, dilation, strict=True)]
        same = bool(rng.integers(2)) or reach[0] > height or reach[1] > width
        size = [
            -(-n // s) if same else -(-(n - r + 1) // s)
            for n, r, s in zip((height, width), reach, stride, strict=True)
        ]
        multiple = int(rng.integers(1, 4))
        out = channels * multiple if depthwise else groups * int(rng.integers(1, 12))
        shape = (1, *kernel, out) if depthwise else (out, *kernel, channels // groups)
        weights = self.draw_weights(*shape)
        options = {
            "padding": 0 if same else 1,
            "strideH": stride[0],
            "strideW": stride[1],
            "dilationHFactor": dilation[0],
            "dilationWFactor": dilation[1],
            "fusedActivationFunction": int(rng.choice([0, 1, 3])),
        }
        if depthwise:
            options["depthMultiplier"] = multiple
        inputs, scale = self.add_kernel(source, weights, out, 3 if depthwise else 0)
        name, options_class = ("DEPTHWISE_CONV_2D", "DepthwiseConv2D") if depthwise else ("CONV_2D", "Conv2D")
        return self.add_operator(
            name, inputs, (self.add_tensor((1, *size, out), scale),), options, options_class
        )

    def add_dense(
        self,
        source: int,
        outputs: int,
        scale: float | None = None,
        zero: int | None = None,
        few_values_share: float = 0.3,
    ) -> int:
        """Add FULLY_CONNECTED.

        Some kernels have so few values that the C packs them into three or four bits.
        """
        inputs = self.get_shape(source)[-1]
        weights = self.draw_weights(outputs, inputs)
        if self.rng.random() < few_values_share:
            weights = self.rng.choice(self.draw_weights(int(self.rng.choice([8, 16]))), weights.shape)
        options = {"fusedActivationFunction": int(self.rng.integers(2))}
        operands, fitting = self.add_kernel(source, weights, outputs, 0)
        output = self.add_tensor((*self.get_shape(source)[:-1], outputs), scale or fitting, zero)
        return self.add_operator("FULLY_CONNECTED", operands, (output,), options, "FullyConnected")

    def add_pool(self, source: int, name: str = "", chosen: tuple[int, ...] = ()) -> int:
        """Add MAX_POOL_2D or AVERAGE_POOL_2D."""
        rng = self.rng
        _, height, width, channels = self.get_shape(source)
        name = name or str(rng.choice(["MAX_POOL_2D", "AVERAGE_POOL_2D"]))
        window = chosen or tuple(int(v) for v in rng.integers(1, 4, 2))
        stride = list(window) if chosen or rng.random() < 0.6 else [int(v) for v in rng.integers(1, 4, 2)]
        same = bool(rng.integers(2)) or window[0] > height or window[1] > width
        size = [
            -(-n // s) if same else -(-(n - k + 1) // s)
            for n, k, s in zip((height, width), window, stride, strict=True)
        ]
        options = {
            "padding": 0 if same else 1,
            "filterHeight": window[0],
            "filterWidth": window[1],
            "strideH": stride[0],
            "strideW": stride[1],
            "fusedActivationFunction": int(rng.integers(2)),
        }
        tensor = self.tensors[source]
        output = self.add_tensor((1, *size, channels), tensor.scales, tensor.zero)
        return self.add_operator(name, (source,), (output,), options, "Pool2D")

    def add_table(self, source: int, name: str = "") -> int:
        """Add an operator that the C computes with a table, if its values are int8."""
        name = name or str(self.rng.choice(["LOGISTIC", "TANH", "LEAKY_RELU", "RELU", "QUANTIZE"]))
        scale, zero = {"LOGISTIC": (1 / 256, -128), "TANH": (1 / 128, 0)}.get(name, (None, None))
        scale = 2.0**-15 if scale and self.kind == "INT16" else scale
        options, options_class = ({"alpha": 0.3}, "LeakyRelu") if name == "LEAKY_RELU" else ({}, "")
        return self.add_operator(
            name, (source,), (self.add_tensor(self.get_shape(source), scale, zero),), options, options_class
        )

    def add_binary(self, first: int, second: int, name: str = "") -> int:
        """Add ADD, SUB or MUL of two activations, or of an activation and a constant if `second` is -1."""
        name = name or str(self.rng.choice(["ADD", "SUB", "MUL"]))
        if second < 0:
            values = self.draw_weights(self.get_shape(first)[-1])
            values = values * np.int16(255) if self.kind == "INT16" else values
            second = self.add_constant(values, 2.0**-5)
        a, b = (float(np.float32(self.tensors[i].scales)) for i in (first, second))
        steps = 50 * (256 if self.kind == "INT16" else 1)
        scale = float(np.float32(a * b * steps if name == "MUL" else max(a, b) * self.rng.uniform(0.6, 3)))
        output = self.add_tensor(np.broadcast_shapes(self.get_shape(first), self.get_shape(second)), scale)
        return self.add_operator(
            name,
            (first, second),
            (output,),
            {"fusedActivationFunction": int(self.rng.choice([0, 1]))},
            name.capitalize(),
        )

    def add_maximum_or_minimum(self, source: int, name: str) -> int:
        """Add MAXIMUM or MINIMUM of an activation and a constant for each channel."""
        tensor = self.tensors[source]
        shape = self.get_shape(source)
        self.tensors.append(
            self.graphs.T(
                shape=shape[-1:], scales=tensor.scales, zero=tensor.zero, data=self.draw_weights(shape[-1])
            )
        )
        other = len(self.tensors) - 1
        return self.add_operator(
            name, (source, other), (self.add_tensor(shape, tensor.scales, tensor.zero),), {}, "MaximumMinimum"
        )

    def add_mean(
        self, source: int, axes: tuple[int, ...], scale: float | None = None, zero: int | None = None
    ) -> int:
        """Add MEAN over axes, which remain with length one."""
        shape = tuple(1 if i in axes else n for i, n in enumerate(self.get_shape(source)))
        output = self.add_tensor(shape, scale, zero)
        return self.add_operator(
            "MEAN",
            (source, self.add_constant(np.array(axes, np.int32))),
            (output,),
            {"keepDims": True},
            "Reducer",
        )

    def add_norm(self, source: int) -> int:
        """Add a layer normalization.

        It computes x - mean, the mean of its square, the reciprocal root and the product.
        """
        axes = (len(self.get_shape(source)) - 1,)
        centred = self.add_binary(source, self.add_mean(source, axes), "SUB")
        square = self.add_binary(centred, centred, "MUL")
        variance = self.add_mean(square, axes, zero=-128)
        root = self.add_operator(
            "RSQRT", (variance,), (self.add_tensor(self.get_shape(variance), zero=-128),), {}, ""
        )
        return self.add_binary(centred, root, "MUL")

    def add_reshape(self, source: int, shape: tuple[int, ...]) -> int:
        """Add RESHAPE."""
        tensor = self.tensors[source]
        output = self.add_tensor(shape, tensor.scales, tensor.zero)
        return self.add_operator(
            "RESHAPE",
            (source, self.add_constant(np.array(shape, np.int32))),
            (output,),
            {"newShape": list(shape)},
            "Reshape",
        )

    def flatten(self, source: int) -> int:
        """Return the activation with shape (1, n)."""
        shape = self.get_shape(source)
        return source if len(shape) == 2 else self.add_reshape(source, (1, int(np.prod(shape))))

    def add_movement(self, source: int, kind: int = -1) -> int:
        """Add PAD, TRANSPOSE, or SPLIT and CONCATENATION in another order."""
        tensor = self.tensors[source]
        shape = self.get_shape(source)
        kind = int(self.rng.integers(3)) if kind < 0 else kind
        if kind == 0:
            around = self.rng.integers(0, 3, (4, 2)).astype(np.int32) * np.array(
                [[0], [1], [1], [0]], np.int32
            )
            output = self.add_tensor(
                tuple(int(n) for n in np.array(shape) + around.sum(axis=1)), tensor.scales, tensor.zero
            )
            return self.add_operator("PAD", (source, self.add_constant(around)), (output,), {}, "Pad")
        if kind == 1:
            order = (0, *(int(axis) for axis in self.rng.permutation([1, 2, 3])))
            output = self.add_tensor(tuple(shape[axis] for axis in order), tensor.scales, tensor.zero)
            return self.add_operator(
                "TRANSPOSE",
                (source, self.add_constant(np.array(order, np.int32))),
                (output,),
                {},
                "Transpose",
            )
        axis = int(self.rng.choice([1, 2, 3]))
        if shape[axis] % 2:
            return source
        half = tuple(n // 2 if i == axis else n for i, n in enumerate(shape))
        halves = tuple(self.add_tensor(half, tensor.scales, tensor.zero) for _ in range(2))
        self.add_operator(
            "SPLIT", (self.add_constant(np.array(axis, np.int32)), source), halves, {"numSplits": 2}, "Split"
        )
        output = self.add_tensor(shape, tensor.scales, tensor.zero)
        return self.add_operator("CONCATENATION", halves[::-1], (output,), {"axis": axis}, "Concatenation")

    def add_upsampling(self, source: int) -> int:
        """Add TRANSPOSE_CONV with stride 2, PRELU, and RESIZE_BILINEAR back to the shape of the source."""
        _, height, width, channels = self.get_shape(source)
        shape = (1, 2 * height, 2 * width, channels)
        (_, weights, bias), scale = self.add_kernel(
            source, self.draw_weights(channels, 3, 3, channels), channels, 0
        )
        large = self.add_operator(
            "TRANSPOSE_CONV",
            (self.add_constant(np.array(shape, np.int32)), weights, source, bias),
            (self.add_tensor(shape, scale),),
            {"padding": 0, "strideH": 2, "strideW": 2},
            "TransposeConv",
        )
        slopes = self.add_constant(self.draw_weights(1, 1, channels), 2.0**-7)
        bent = self.add_operator("PRELU", (large, slopes), (self.add_tensor(shape, scale),), {}, "")
        tensor = self.tensors[bent]
        return self.add_operator(
            "RESIZE_BILINEAR",
            (bent, self.add_constant(np.array((height, width), np.int32))),
            (self.add_tensor(self.get_shape(source), tensor.scales, tensor.zero),),
            {"halfPixelCenters": True},
            "ResizeBilinear",
        )

    def add_softmax(self, source: int) -> int:
        """Add SOFTMAX."""
        output = self.add_tensor(self.get_shape(source), 2.0**-15 if self.kind == "INT16" else 1 / 256, -128)
        return self.add_operator(
            "SOFTMAX", (source,), (output,), {"beta": float(self.rng.choice([1.0, 0.5]))}, "Softmax"
        )

    def convert(self, source: int, kind: str, scale: float | None = None) -> int:
        """Add QUANTIZE to another type, which the next tensors have, too."""
        tensor = self.tensors[source]
        bits = {"INT8": 8, "INT16": 16, "INT32": 24}
        scale = scale or float(np.float32(tensor.scales)) * 2.0 ** (bits[tensor.kind] - bits[kind])
        self.kind = kind
        output = self.add_tensor(tensor.shape, [scale] if kind == "INT32" else scale, 0)
        return self.add_operator("QUANTIZE", (source,), (output,), {}, "")

    def add_mixture(self, trunk: int, experts: int, classes: int) -> int:
        """Add experts and their gate behind a trunk of two axes, and the weighted sum."""
        outputs = [
            self.add_dense(self.add_dense(trunk, 7) if self.rng.integers(2) else trunk, classes)
            for _ in range(experts)
        ]
        gate = self.add_softmax(self.add_dense(trunk, experts, 0.3, 0))
        values = tuple(self.add_tensor((1, 1), 1 / 256, -128) for _ in range(experts))
        self.add_operator(
            "SPLIT", (self.add_constant(np.array(1, np.int32)), gate), values, {"numSplits": experts}, "Split"
        )
        products = [
            self.add_binary(output, value, "MUL") for output, value in zip(outputs, values, strict=True)
        ]
        total = products[0]
        for product in products[1:]:
            total = self.add_binary(total, product, "ADD")
        return total


def make_random_model(graphs: Any, seed: int) -> tuple[str, bytes]:
    """Return the kind and the file of the model with this seed.

    Successive seeds go through the kinds. The same seed gives the same bytes.
    """
    rng = np.random.default_rng(seed)
    kind = KINDS[seed % len(KINDS)]
    made = Graph(graphs=graphs, rng=rng)
    tip = made.add_tensor((1, *(int(v) for v in rng.integers(4, 11, 2)), int(rng.integers(1, 7))))
    for _ in range(int(rng.integers(1, 4))):
        tip = _add_block(made, kind, tip)
    tip = (
        made.add_mean(tip, (1, 2), *_get_quantization(made, tip))
        if len(made.get_shape(tip)) == 4 and rng.random() < 0.3
        else tip
    )
    tip = made.flatten(tip)
    classes = int(rng.choice([2, 3, 4, 5, 10]))
    tip = (
        made.add_mixture(tip, int(rng.integers(2, 5)), classes)
        if kind == "mixture"
        else made.add_dense(tip, classes)
    )
    tip = made.add_softmax(made.add_dense(tip, classes, 0.1)) if rng.random() < 0.25 else tip
    model: bytes = graphs.make_tflite(made.tensors, made.operators, outputs=(tip,))
    return kind, model


def make_streaming_model(graphs: Any, seed: int) -> bytes:
    """Return a model that keeps rows of earlier inferences. The same seed gives the same bytes."""
    rng = np.random.default_rng(seed)
    made = Graph(graphs=graphs, rng=rng)
    made.operators.append(
        graphs.Op(
            name="CALL_ONCE",
            inputs=(),
            outputs=(),
            options={"initSubgraphIndex": 1},
            options_class="CallOnce",
        )
    )
    tip = made.add_tensor((1, int(rng.integers(1, 4)), int(rng.integers(1, 5)), int(rng.integers(1, 7))))
    for _ in range(int(rng.integers(1, 4))):
        tip = made.add_convolution(made.add_stream(tip), depthwise=bool(rng.integers(2)))
    tip = made.add_dense(made.flatten(tip), 5)
    model: bytes = graphs.make_tflite(made.tensors, made.operators, outputs=(tip,), initial=made.initial)
    return model


def make_recurrent_model(graphs: Any, seed: int) -> bytes:
    """Return a model with an LSTM and an SVDF. The same seed gives the same bytes."""
    rng = np.random.default_rng(seed)
    made = Graph(graphs=graphs, rng=rng)
    steps, features, units, rank = (int(v) for v in rng.integers((1, 1, 1, 1), (5, 20, 24, 3)))
    tip = made.add_tensor((1, steps, features))
    tip = made.flatten(made.add_lstm(tip, units, clip=float(rng.choice([0, 0.5]))))
    tip = made.add_svdf(tip, int(rng.integers(2, 9)), int(rng.integers(1, 12)), rank, wide=bool(seed % 2))
    tip = made.add_dense(tip, 6)
    model: bytes = graphs.make_tflite(made.tensors, made.operators, outputs=(tip,))
    return model


def make_every_stateful_kernel_model(graphs: Any) -> bytes:
    """Return a model with the kernels that `make_every_kernel_model` does not have."""
    made = Graph(graphs=graphs, rng=np.random.default_rng(8))
    made.operators.append(
        graphs.Op(
            name="CALL_ONCE",
            inputs=(),
            outputs=(),
            options={"initSubgraphIndex": 1},
            options_class="CallOnce",
        )
    )
    tip = made.add_convolution(made.add_stream(made.add_tensor((1, 3, 4, 6), 0.05, 3)), groups=2)
    tip = made.add_lstm(made.add_reshape(tip, (1, 2, int(np.prod(made.get_shape(tip))) // 2)), 9)
    tip = made.add_svdf(made.flatten(tip), 4, 5, 2, wide=True)
    tip = made.add_svdf(tip, 6, 5, 1, wide=False)
    model: bytes = graphs.make_tflite(made.tensors, made.operators, outputs=(tip,), initial=made.initial)
    return model


def make_wide_model(graphs: Any, seed: int) -> bytes:
    """Return a model of 16-bit activations. The same seed gives the same bytes.

    Its input, its output or layers in its middle may have 8 bits. Its output may have 32 bits.
    """
    rng = np.random.default_rng(seed)
    made = Graph(graphs=graphs, rng=rng, kind=str(rng.choice(["INT8", "INT16"])))
    tip = made.add_tensor((1, *(int(v) for v in rng.integers(4, 11, 2)), int(rng.integers(1, 7))))
    tip = made.convert(tip, "INT16") if made.kind == "INT8" else tip
    for _ in range(int(rng.integers(1, 5))):
        kind = str(rng.choice(["convolution", "depthwise", "pooling", "residual", "movement", "eight bits"]))
        if kind == "eight bits":
            tip = made.convert(made.add_convolution(made.convert(tip, "INT8")), "INT16")
        elif kind == "residual":
            tip = made.add_binary(made.add_binary(tip, made.add_table(tip)), -1)
        elif kind == "movement":
            tip = made.add_movement(tip)
        elif kind == "pooling":
            tip = made.add_pool(tip)
        else:
            tip = made.add_convolution(tip, depthwise=kind == "depthwise")
    tip = made.add_mean(tip, (1, 2), *_get_quantization(made, tip)) if rng.random() < 0.3 else tip
    tip = made.flatten(tip)
    if rng.random() < 0.3:
        tip = made.convert(tip, "INT8", 0.05)
        tip = made.convert(made.add_svdf(tip, 5, 3, 1, wide=bool(rng.integers(2))), "INT16")
    tip = made.add_dense(tip, int(rng.integers(2, 11)))
    tip = made.add_softmax(tip) if rng.random() < 0.3 else tip
    last = str(rng.choice(["INT8", "INT16", "INT32"]))
    tip = made.convert(tip, last) if last != "INT16" else tip
    model: bytes = graphs.make_tflite(made.tensors, made.operators, outputs=(tip,))
    return model


def make_every_wide_kernel_model(graphs: Any) -> bytes:
    """Return a model with every kernel of 16-bit activations, and an input of 16 bits."""
    made = Graph(graphs=graphs, rng=np.random.default_rng(29), kind="INT16")
    tip = made.add_convolution(made.add_tensor((1, 12, 10, 4), 2.0**-12))
    tip = made.add_table(made.add_convolution(tip, depthwise=True), "TANH")
    tip = made.add_binary(made.add_binary(tip, made.add_table(tip, "LEAKY_RELU"), "ADD"), -1, "MUL")
    tip = made.add_pool(made.add_pool(tip, "MAX_POOL_2D", (2, 1)), "AVERAGE_POOL_2D", (1, 2))
    tip = made.add_movement(made.add_movement(tip, 1), 0)
    tip = made.flatten(made.add_mean(tip, (1,)))
    tip = made.add_softmax(made.add_dense(tip, 7, 2.0**-11))
    model: bytes = graphs.make_tflite(made.tensors, made.operators, outputs=(tip,))
    return model


def make_model_with_many_ends(graphs: Any, seed: int) -> bytes:
    """Return a model with inputs of the shapes (4, 5, 2), (4, 5, 2) and (3,), and four or five outputs."""
    rng = np.random.default_rng(seed)
    made = Graph(graphs=graphs, rng=rng)
    left, right, extra = (made.add_tensor((1, *shape)) for shape in ((4, 5, 2), (4, 5, 2), (3,)))
    total = made.add_binary(left, right, "ADD")
    first = made.add_convolution(total)
    second = made.add_convolution(first)
    dense = made.add_dense(extra, 4)
    outputs = [second, dense, total, made.flatten(first)][:: 1 - 2 * int(rng.integers(2))]
    outputs += [made.add_dense(made.flatten(second), 3)] if rng.integers(2) else []
    model: bytes = graphs.make_tflite(
        made.tensors, made.operators, inputs=(left, right, extra), outputs=tuple(outputs)
    )
    return model


def make_every_kernel_model(graphs: Any) -> bytes:
    """Return a model with every kernel of the generated C.

    It has two experts. Their trunk has all other kernels.
    """
    made = Graph(graphs=graphs, rng=np.random.default_rng(11))  # its outputs differ from input to input
    tip = made.add_tensor((1, 12, 10, 3), 0.05, 3)
    options = dict.fromkeys(("padding", "fusedActivationFunction"), 0)
    options |= dict.fromkeys(("filterHeight", "filterWidth", "strideH", "strideW"), 1)
    for _ in range(4):  # the largest activations, so that optimizing RAM moves them
        output = made.add_tensor((1, 12, 10, 3), 0.05, 3)
        tip = made.add_operator("MAX_POOL_2D", (tip,), (output,), options, "Pool2D")
    tip = made.add_convolution(tip)
    tip = made.add_pool(made.add_convolution(tip), "MAX_POOL_2D", (2, 2))
    tip = made.add_table(made.add_convolution(tip, depthwise=True))
    tip = made.add_maximum_or_minimum(made.add_binary(tip, made.add_table(tip), "ADD"), "MAXIMUM")
    tip = made.add_upsampling(tip)
    tip = made.add_pool(made.add_pool(tip, "MAX_POOL_2D", (3, 1)), "AVERAGE_POOL_2D", (1, 2))
    tip = made.add_movement(made.add_movement(made.add_norm(tip), 1), 0)
    tip = made.add_dense(made.add_dense(made.flatten(tip), 40, few_values_share=1), 24, few_values_share=0)
    tip = made.add_convolution(made.add_reshape(tip, (1, 4, 6, 1)))  # the only one with room for four columns
    tip = made.add_mixture(made.flatten(tip), 2, 5)
    model: bytes = graphs.make_tflite(made.tensors, made.operators, outputs=(tip,))
    return model


def _get_quantization(made: Graph, tensor: int) -> tuple[float, int]:
    return made.tensors[tensor].scales, made.tensors[tensor].zero


def _add_block(made: Graph, kind: str, tip: int) -> int:
    if kind == "depthwise":
        return made.add_convolution(made.add_convolution(tip, depthwise=True))
    if kind == "pooling":
        return made.add_pool(made.add_convolution(tip))
    if kind == "residual":
        return made.add_maximum_or_minimum(
            made.add_binary(tip, made.add_table(tip)), str(made.rng.choice(["MAXIMUM", "MINIMUM"]))
        )
    if kind == "norms":
        return made.add_binary(made.add_norm(made.add_convolution(tip)), -1)
    if kind == "padding":
        return made.add_convolution(made.add_movement(tip, 0), depthwise=bool(made.rng.integers(2)))
    if kind == "movement":
        return made.add_movement(made.add_convolution(tip))
    if kind == "dense":
        return made.add_dense(made.flatten(tip), int(made.rng.choice([9, 40, 300])))
    return made.add_table(made.add_convolution(tip)) if made.rng.integers(2) else made.add_convolution(tip)
