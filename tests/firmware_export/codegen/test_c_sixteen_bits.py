"""Kernels of 16-bit activations and int8 weights against tflite-micro.

The graphs have one operator with random shapes, scales and values. Outputs saturate, tie and round.
"""

import subprocess

import numpy as np
import pytest

from edgefl.base.errors import ExportError
from firmware_export.codegen.c_source import generate_c
from firmware_export.tflite.quantized_model import read_quantized_model

pytest.importorskip("tflite_micro")
SEEDS = range(6)
SANITIZERS = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all")


def draw_scale(rng, low, high):
    return float(np.float32(2.0 ** rng.uniform(low, high)))


def draw_values(rng, shape, dtype=np.int16):
    limits = np.iinfo(dtype)
    return rng.integers(limits.min, limits.max + 1, shape).astype(dtype)


def check_against_micro(compiled, tmp_path, model, rng, shape, dtype=np.int16, samples=30):
    """Check the outputs of random inputs, of which some are small."""
    x = draw_values(rng, (samples, *shape), dtype)
    x[samples // 2 :] //= 64
    x[0], x[1] = np.iinfo(dtype).max, np.iinfo(dtype).min
    expected = compiled.run_micro(model, x)
    program = compiled.build(generate_c(model), tmp_path, *SANITIZERS)
    received, _ = compiled.run(program, x, expected.shape[1], expected.dtype)
    np.testing.assert_array_equal(received, expected)
    assert len(np.unique(expected)) > 1, "the test's values give one output"


def make_one(graphs, tensors, name, options=None, options_class="", inputs=(0,), version=1):
    operator = graphs.Op(
        name=name,
        inputs=inputs,
        outputs=(len(tensors) - 1,),
        options=options or {},
        options_class=options_class,
        version=version,
    )
    return graphs.make_tflite(tensors, [operator])


def make_bias(graphs, rng, scales, wide):
    """Return a bias of 64 or 32 bits, or None for a missing one."""
    if wide is None:
        return []
    values = rng.integers(-1_000_000, 1_000_000, len(scales)).astype(np.int64 if wide else np.int32)
    return [graphs.T(shape=values.shape, scales=scales, zero=0, data=values)]


@pytest.mark.parametrize("wide", [True, False, None])
@pytest.mark.parametrize("per_channel", [True, False])
def test_fully_connected(compiled, graphs, tmp_path, wide, per_channel) -> None:
    rng = np.random.default_rng(3)
    inputs, outputs = 700, 9  # more products than 32 bits hold
    weights = draw_values(rng, (outputs, inputs), np.int8)
    weights[0] = -128
    x = draw_scale(rng, -14, -10)
    scales = [draw_scale(rng, -9, -5) for _ in range(outputs if per_channel else 1)]
    bias = make_bias(graphs, rng, [x * scales[i % len(scales)] for i in range(outputs)], wide)
    if bias and not per_channel:
        bias = [graphs.T(shape=bias[0].shape, scales=[x * scales[0]], zero=0, data=bias[0].data)]
    tensors = [
        graphs.T((1, 2, inputs), x, kind="INT16"),
        graphs.T(shape=weights.shape, scales=scales, zero=0, data=weights),
        *bias,
        graphs.T((1, 2, outputs), x * scales[0] * 2000, kind="INT16"),
    ]
    options = {"fusedActivationFunction": 1 if wide else 0, "keepNumDims": True}
    operands = tuple(range(len(tensors) - 1))
    model = make_one(graphs, tensors, "FULLY_CONNECTED", options, "FullyConnected", operands)
    check_against_micro(compiled, tmp_path, model, rng, (2, inputs))


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("kind", ["CONV_2D", "DEPTHWISE_CONV_2D"])
def test_convolutions(compiled, graphs, tmp_path, kind, seed) -> None:
    rng = np.random.default_rng(seed)
    height, width, channels = (int(v) for v in rng.integers((3, 3, 1), (11, 11, 7)))
    kh, kw, sh, sw = (int(v) for v in rng.integers(1, 4, 4))
    dilation = 2 if seed % 4 == 3 and min(height, width) >= 5 else 1
    same = bool(rng.integers(2)) or kh * dilation > height or kw * dilation > width
    size = [
        -(-n // s) if same else -(-(n - (k - 1) * dilation) // s)
        for n, k, s in ((height, kh, sh), (width, kw, sw))
    ]
    multiple = int(rng.integers(1, 4))
    groups = 2 if kind == "CONV_2D" and channels % 2 == 0 and seed % 2 else 1
    out = channels * multiple if kind != "CONV_2D" else groups * int(rng.integers(1, 9))
    shape = (out, kh, kw, channels // groups) if kind == "CONV_2D" else (1, kh, kw, out)
    weights = draw_values(rng, shape, np.int8)
    x = draw_scale(rng, -14, -10)
    scales = [draw_scale(rng, -9, -5) for _ in range(out)]
    wide = (True, None, False)[seed % 3] if kind == "CONV_2D" else (True, None)[seed % 2]
    options = {
        "padding": 0 if same else 1,
        "strideH": sh,
        "strideW": sw,
        "dilationHFactor": dilation,
        "dilationWFactor": dilation,
        "fusedActivationFunction": (0, 1, 3)[seed % 3],
    }
    if kind != "CONV_2D":
        options["depthMultiplier"] = multiple
    tensors = [
        graphs.T((1, height, width, channels), x, kind="INT16"),
        graphs.T(
            shape=weights.shape, scales=scales, zero=0, data=weights, axis=0 if kind == "CONV_2D" else 3
        ),
        *make_bias(graphs, rng, [x * scale for scale in scales], wide),
        graphs.T((1, *size, out), x * scales[0] * draw_scale(rng, 5, 10), kind="INT16"),
    ]
    options_class = "Conv2D" if kind == "CONV_2D" else "DepthwiseConv2D"
    operands = tuple(range(len(tensors) - 1))
    model = make_one(graphs, tensors, kind, options, options_class, operands)
    check_against_micro(compiled, tmp_path, model, rng, tensors[0].shape[1:])


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", ["MAX_POOL_2D", "AVERAGE_POOL_2D"])
def test_pools(compiled, graphs, tmp_path, name, seed) -> None:
    rng = np.random.default_rng(seed)
    height, width, channels = (int(v) for v in rng.integers((3, 3, 1), (9, 9, 7)))
    window, stride = rng.integers(1, 4, 2), rng.integers(1, 4, 2)
    same = bool(seed % 2)
    size = [
        -(-n // s) if same else -(-(n - k + 1) // s)
        for n, k, s in zip((height, width), window.tolist(), stride.tolist(), strict=True)
    ]
    scale = draw_scale(rng, -13, -10)
    options = {
        "padding": 0 if same else 1,
        "filterHeight": int(window[0]),
        "filterWidth": int(window[1]),
        "strideH": int(stride[0]),
        "strideW": int(stride[1]),
        "fusedActivationFunction": (0, 1, 3)[seed % 3],
    }
    tensors = [
        graphs.T((1, height, width, channels), scale, kind="INT16"),
        graphs.T((1, *size, channels), scale, kind="INT16"),
    ]
    model = make_one(graphs, tensors, name, options, "Pool2D")
    check_against_micro(compiled, tmp_path, model, rng, tensors[0].shape[1:])


@pytest.mark.parametrize("axes", [(1, 2), (1,), (2, 3), (1, 3)])
def test_mean(compiled, graphs, tmp_path, axes) -> None:
    rng = np.random.default_rng(5)
    shape = (1, 5, 7, 6)
    reduced = tuple(1 if i in axes else n for i, n in enumerate(shape))
    tensors = [
        graphs.T(shape, draw_scale(rng, -13, -10), kind="INT16"),
        graphs.T((len(axes),), data=np.array(axes, np.int32)),
        graphs.T(reduced, draw_scale(rng, -15, -11), kind="INT16"),
    ]
    model = make_one(graphs, tensors, "MEAN", {"keepDims": True}, "Reducer", (0, 1))
    check_against_micro(compiled, tmp_path, model, rng, shape[1:])


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("other", ["constant", "broadcast", "itself"])
@pytest.mark.parametrize("name", ["ADD", "SUB", "MUL"])
def test_arithmetic(compiled, graphs, tmp_path, name, other, seed) -> None:
    rng = np.random.default_rng(seed)
    shape = (1, 4, 3, 50)
    a, b = draw_scale(rng, -13, -10), draw_scale(rng, -13, -10)
    b = a if seed == 0 else b
    out = a * b * 30000 * draw_scale(rng, -1, 1) if name == "MUL" else max(a, b) * draw_scale(rng, -1, 1)
    second = {
        "constant": graphs.T(shape, b, data=draw_values(rng, shape)),
        "broadcast": graphs.T((1, 1, 3, 1), b, data=draw_values(rng, (1, 1, 3, 1))),
        "itself": graphs.T(shape[1:], b, data=draw_values(rng, shape[1:])),
    }[other]
    tensors = [graphs.T(shape, a, kind="INT16"), second, graphs.T(shape, out, kind="INT16")]
    options = {"fusedActivationFunction": (0, 1, 3)[seed % 3]}
    order = (1, 0) if seed % 2 else (0, 1)
    if other == "itself":
        order = (0, 0) if name != "SUB" else (0, 1)
    model = make_one(graphs, tensors, name, options, name.capitalize(), order)
    check_against_micro(compiled, tmp_path, model, rng, shape[1:], samples=60)


@pytest.mark.parametrize("scale", [2.0**-12, 2.0**-11, 2.0**-13, 0.00031, 0.0017, 2.0**-20, 0.9])
@pytest.mark.parametrize("name", ["LOGISTIC", "TANH"])
def test_sigmoid_of_every_value(compiled, graphs, tmp_path, name, scale) -> None:
    tensors = [graphs.T((1, 65536), scale, kind="INT16"), graphs.T((1, 65536), 2.0**-15, kind="INT16")]
    model = make_one(graphs, tensors, name)
    x = np.arange(-32768, 32768).astype(np.int16)[None]
    expected = compiled.run_micro(model, x)
    program = compiled.build(generate_c(model), tmp_path, *SANITIZERS)
    np.testing.assert_array_equal(compiled.run(program, x, 65536, np.int16)[0], expected)


def test_softmax_of_every_difference(compiled, graphs, tmp_path) -> None:
    """Rows of two values reach each step of both tables."""
    tensors = [
        graphs.T((1, 65536, 2), 10 / 65535, kind="INT16"),
        graphs.T((1, 65536, 2), 2.0**-15, kind="INT16"),
    ]
    model = make_one(graphs, tensors, "SOFTMAX", {"beta": 1.0}, "Softmax")
    x = np.stack([np.full(65536, 32767), np.arange(-32768, 32768)], axis=1).astype(np.int16)[None]
    expected = compiled.run_micro(model, x)
    assert len(np.unique(expected)) > 29000
    program = compiled.build(generate_c(model), tmp_path, *SANITIZERS)
    np.testing.assert_array_equal(compiled.run(program, x, 2 * 65536, np.int16)[0], expected)


@pytest.mark.parametrize("seed", SEEDS)
def test_softmax(compiled, graphs, tmp_path, seed) -> None:
    rng = np.random.default_rng(seed)
    shape = (1, 4, (4, 2, 3, 10, 62, 300)[seed])
    tensors = [
        graphs.T(shape, draw_scale(rng, -14, -8), kind="INT16"),
        graphs.T(shape, 2.0**-15, kind="INT16"),
    ]
    model = make_one(graphs, tensors, "SOFTMAX", {"beta": (1.0, 0.5)[seed % 2]}, "Softmax")
    check_against_micro(compiled, tmp_path, model, rng, shape[1:])


@pytest.mark.parametrize("scale", [1 / 65536, 1 / 65535])
@pytest.mark.parametrize("classes", [2, 3, 12, 100])
def test_softmax_from_8_to_16_bits(compiled, graphs, tmp_path, classes, scale) -> None:
    rng = np.random.default_rng(classes)
    tensors = [
        graphs.T((1, 3, classes), draw_scale(rng, -5, -3), 9),
        graphs.T((1, 3, classes), scale, -32768, kind="INT16"),
    ]
    model = make_one(graphs, tensors, "SOFTMAX", {"beta": 1.0}, "Softmax")
    check_against_micro(compiled, tmp_path, model, rng, (3, classes), np.int8)


@pytest.mark.parametrize("name", ["RELU", "RELU6", "LEAKY_RELU"])
@pytest.mark.parametrize("seed", SEEDS)
def test_rectifiers(compiled, graphs, tmp_path, name, seed) -> None:
    rng = np.random.default_rng(seed)
    scale = draw_scale(rng, -12, -9)
    tensors = [
        graphs.T((1, 3000), scale, kind="INT16"),
        graphs.T((1, 3000), scale * draw_scale(rng, -1, 2), kind="INT16"),
    ]
    options = ({"alpha": 0.3}, "LeakyRelu") if name == "LEAKY_RELU" else ({}, "")
    model = make_one(graphs, tensors, name, *options)
    check_against_micro(compiled, tmp_path, model, rng, (3000,))


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    ("source", "target"),
    [
        ("INT8", "INT16"),
        ("INT8", "INT32"),
        ("INT16", "INT8"),
        ("INT16", "INT16"),
        ("INT16", "INT32"),
        ("INT8", "INT8"),
    ],
)
def test_quantize(compiled, graphs, tmp_path, source, target, seed) -> None:
    rng = np.random.default_rng(seed)
    bits = {"INT8": 8, "INT16": 16, "INT32": 24}
    scale = draw_scale(rng, -12, -9)
    zero = {"INT8": 17, "INT16": (0, -32768, 900)[seed], "INT32": 0}
    wider = 2.0 ** (bits[source] - bits[target]) * draw_scale(rng, -1, 1)
    tensors = [
        graphs.T((1, 3000), scale, zero[source], kind=source),
        graphs.T((1, 3000), [scale * wider], zero[target], kind=target),
    ]
    model = make_one(graphs, tensors, "QUANTIZE")
    check_against_micro(compiled, tmp_path, model, rng, (3000,), {"INT8": np.int8, "INT16": np.int16}[source])


@pytest.mark.parametrize(
    "seed", [*range(12), *(pytest.param(n, marks=pytest.mark.slow) for n in range(12, 120))]
)
def test_random_models(compiled, graphs, random_models, tmp_path, seed) -> None:
    model = random_models.make_wide_model(graphs, seed)
    x = compiled.draw_inputs(read_quantized_model(model), np.random.default_rng(seed), 40)
    expected = compiled.run_micro(model, x)
    program = compiled.build(generate_c(model), tmp_path, *SANITIZERS)
    received, _ = compiled.run(program, x, expected.shape[1], expected.dtype)
    np.testing.assert_array_equal(received, expected)


def make_movement(graphs, name, shape, out, constants=(), options=None, options_class="", kind="INT16"):
    """Return a model with one operator between equal scales. Constants follow the activation."""
    tensors = [
        graphs.T(shape, 0.001, kind=kind),
        *(graphs.T(np.shape(value), data=np.array(value, np.int32)) for value in constants),
        graphs.T(out, 0.001, kind=kind),
    ]
    operands = tuple(range(len(tensors) - 1))
    return make_one(graphs, tensors, name, options, options_class, operands)


MOVEMENTS = {
    "TRANSPOSE": ((1, 3, 4, 5), (1, 5, 3, 4), ((0, 3, 1, 2),)),
    "PAD": ((1, 3, 4, 5), (1, 4, 7, 5), (((0, 0), (1, 0), (2, 1), (0, 0)),)),
    "SLICE": ((1, 3, 4, 5), (1, 2, 2, 3), ((0, 1, 2, 1), (1, 2, 2, 3))),
    "STRIDED_SLICE": (
        (1, 6, 5, 4),
        (1, 3, 5, 2),
        ((0, 1, 0, 0), (1, 6, 5, 4), (1, 2, 1, 2)),
        {"beginMask": 0, "endMask": 0},
        "StridedSlice",
    ),
    "RESIZE_NEAREST_NEIGHBOR": ((1, 3, 2, 1), (1, 6, 6, 1), ((6, 6),), {}, "ResizeNearestNeighbor"),
}


@pytest.mark.parametrize("name", MOVEMENTS)
def test_movement(compiled, graphs, tmp_path, name) -> None:
    model = make_movement(graphs, name, *MOVEMENTS[name])
    shape = MOVEMENTS[name][0]
    check_against_micro(compiled, tmp_path, model, np.random.default_rng(1), shape[1:])


def test_split_unpack_pack_and_concatenation(compiled, graphs, tmp_path) -> None:
    shapes = [(1, 4, 6), *[(1, 4, 3)] * 2, *[(1, 3)] * 4, (1, 2, 3), (1, 4, 3), (1, 6, 3)]
    tensors = [graphs.T(shape, 0.001, kind="INT16") for shape in shapes]
    tensors.append(graphs.T((), data=np.array(2, np.int32)))
    operators = [
        graphs.Op(
            name="SPLIT", inputs=(10, 0), outputs=(1, 2), options={"numSplits": 2}, options_class="Split"
        ),
        graphs.Op(
            name="UNPACK",
            inputs=(2,),
            outputs=(3, 4, 5, 6),
            options={"axis": 1, "num": 4},
            options_class="Unpack",
        ),
        graphs.Op(
            name="PACK",
            inputs=(6, 3),
            outputs=(7,),
            options={"axis": 1, "valuesCount": 2},
            options_class="Pack",
        ),
        graphs.Op(
            name="ADD",
            inputs=(1, 1),
            outputs=(8,),
            options={"fusedActivationFunction": 0},
            options_class="Add",
        ),
        graphs.Op(
            name="CONCATENATION",
            inputs=(8, 7),
            outputs=(9,),
            options={"axis": 1},
            options_class="Concatenation",
        ),
    ]
    model = graphs.make_tflite(tensors, operators, outputs=(9,))
    check_against_micro(compiled, tmp_path, model, np.random.default_rng(1), (4, 6))


def test_several_inputs_and_outputs(compiled, graphs, tmp_path) -> None:
    """Their values follow one another, and the macros count values."""
    tensors = [graphs.T((1, n), 0.001, kind="INT16") for n in (3, 5, 3, 5)]
    operators = [
        graphs.Op("RELU", (0,), (2,)),
        graphs.Op(
            name="LEAKY_RELU", inputs=(1,), outputs=(3,), options={"alpha": 0.5}, options_class="LeakyRelu"
        ),
    ]
    model = graphs.make_tflite(tensors, operators, inputs=(0, 1), outputs=(3, 2))
    header = generate_c(model).files["model.h"]
    for line in (
        "#define MODEL_INPUT_BYTES 16",
        "#define MODEL_INPUT_VALUES 8",
        "#define MODEL_INPUT1_START 3",
        "#define MODEL_OUTPUT1_START 5",
        "void model_invoke(const int16_t *input, int16_t *output);",
        "static inline int16_t model_quantize_input1(float value)",
        "static inline float model_dequantize_output0(int16_t value)",
    ):
        assert line in header
    check_against_micro(compiled, tmp_path, model, np.random.default_rng(1), (8,))


def test_state_of_16_bits(compiled, graphs, random_models, tmp_path) -> None:
    made = random_models.Graph(graphs=graphs, rng=np.random.default_rng(8), kind="INT16")
    made.operators.append(
        graphs.Op(
            name="CALL_ONCE",
            inputs=(),
            outputs=(),
            options={"initSubgraphIndex": 1},
            options_class="CallOnce",
        )
    )
    tip = made.add_convolution(made.add_stream(made.add_tensor((1, 3, 4, 6), 0.0005)))
    tip = made.add_dense(made.flatten(tip), 5)
    model = graphs.make_tflite(made.tensors, made.operators, outputs=(tip,), initial=made.initial)
    check_against_micro(compiled, tmp_path, model, np.random.default_rng(1), (3, 4, 6))


ENDS = """
#include <stdio.h>
#include "model.h"
int main(void)
{
    int16_t *const input = model_input();
    for (int i = 0; i < MODEL_INPUT_VALUES; i++) {
        input[i] = model_quantize_input(i == 0 ? -1e9f : i == 1 ? 1e9f : (float)i);
    }
    printf("%d %d %d %d", input[0], input[1], input[2], model_classify(input));
    printf(" %g", (double)model_dequantize_output(model_output()[2]));
    return 0;
}
"""


def test_functions_of_a_typed_input_and_output(compiled, graphs, tmp_path) -> None:
    """A real 2 is 2000 steps of 0.001, and the output is a 32-bit integer that begins at 7."""
    tensors = [graphs.T((1, 3), 0.001, kind="INT16"), graphs.T((1, 3), [0.0005], 7, kind="INT32")]
    program = compiled.build(generate_c(make_one(graphs, tensors, "QUANTIZE")), tmp_path, main=ENDS)
    assert subprocess.run([program], capture_output=True, text=True, check=True).stdout == (
        "-32768 32767 2000 1 2"
    )


def check_refused(graphs, tensors, name, message, options=None, options_class="", inputs=(0,)) -> None:
    with pytest.raises(ExportError, match=message):
        generate_c(make_one(graphs, tensors, name, options, options_class, inputs))


def test_refused_models(graphs) -> None:
    def wide(shape=(1, 4), scale=2.0**-15, zero=0, **more):
        return graphs.T(shape, scale, zero, kind="INT16", **more)

    int8 = graphs.T((1, 4))
    check_refused(graphs, [wide(), wide()], "ABS", "its input is INT16, expected INT8; quantize to full int8")
    check_refused(graphs, [wide(), int8], "RELU", "its output is INT8 of INT16, expected INT16")
    check_refused(graphs, [int8, wide()], "RELU", "its output is INT16 of INT8, expected INT8")
    check_refused(graphs, [wide(zero=5), wide()], "RELU", "input has the zero point 5, expected 0 for 16")
    check_refused(graphs, [wide(), wide(zero=5)], "TANH", "output has the zero point 5, expected 0 for 16")
    check_refused(graphs, [wide(), wide(scale=0.01)], "LOGISTIC", r"scale is 0.01, expected 2\^-15")
    check_refused(
        graphs, [wide(scale=3.0), wide()], "TANH", "an input whose scale is 3, expected 1e-9 to 2.67"
    )
    check_refused(graphs, [wide(), wide(scale=0.01)], "SOFTMAX", r"expected 2\^-15", {"beta": 1.0}, "Softmax")
    padding = graphs.T((2, 2), data=np.array([[0, 0], [1, 1]], np.int32))
    value = graphs.T((1,), data=np.array([3], np.int16))
    pad = [wide(), padding, value, wide((1, 6))]
    check_refused(graphs, pad, "PADV2", "pads INT16 with 3, expected 0", inputs=(0, 1, 2))
    constant = graphs.T((4,), data=np.zeros(4, np.int8))
    add = [wide(), constant, wide()]
    check_refused(graphs, add, "ADD", "has an operand of INT8, expected INT16", inputs=(0, 1))
    slope = {"alpha": -1.0}, "LeakyRelu"
    check_refused(graphs, [wide(), wide()], "LEAKY_RELU", "has the slope -1", *slope)
    axes = graphs.T((1,), data=np.array([1], np.int32))
    mean = [wide((1, 70000, 1)), axes, wide((1, 1, 1))]
    check_refused(graphs, mean, "MEAN", "averages 70000 values, expected at most 65535", inputs=(0, 1))


def make_dense(graphs, bias, out=0.01):
    weights = graphs.T((4, 4), 0.01, data=np.full((4, 4), 100, np.int8))
    tensors = [graphs.T((1, 4), 0.001, kind="INT16"), weights, bias, graphs.T((1, 4), out, kind="INT16")]
    return make_one(graphs, tensors, "FULLY_CONNECTED", {}, "FullyConnected", (0, 1, 2))


def test_bias_that_tflite_micro_reads_wrongly_is_refused(graphs) -> None:
    large = graphs.T((4,), [1e-5], data=np.full(4, 1 << 40, np.int64))
    with pytest.raises(ExportError, match="has a bias of 1099511627776 in channel 0"):
        generate_c(make_dense(graphs, large))
    with pytest.raises(ExportError, match=r"a bias of shape \(1,\) for 4 channels"):
        generate_c(make_dense(graphs, graphs.T((1,), [1e-5], data=np.zeros(1, np.int64))))
    with pytest.raises(ExportError, match="has a bias of type INT16, expected constants of INT32 or INT64"):
        generate_c(make_dense(graphs, graphs.T((4,), 0.01, data=np.zeros(4, np.int16))))
    with pytest.raises(ExportError, match="has the multiplier 1e\\+04, expected less than 128"):
        generate_c(make_dense(graphs, graphs.T((4,), [1e-5], data=np.zeros(4, np.int64)), 1e-9))
    tensors = [
        graphs.T((1, 3, 3, 2), 0.001, kind="INT16"),
        graphs.T((1, 1, 1, 2), 0.01, data=np.ones((1, 1, 1, 2), np.int8)),
        graphs.T((2,), [1e-5], data=np.zeros(2, np.int32)),
        graphs.T((1, 3, 3, 2), 0.001, kind="INT16"),
    ]
    options = {"padding": 1, "strideH": 1, "strideW": 1, "dilationHFactor": 1, "dilationWFactor": 1}
    message = "has a bias of type INT32, expected constants of INT64"
    check_refused(
        graphs,
        tensors,
        "DEPTHWISE_CONV_2D",
        message,
        {**options, "depthMultiplier": 1},
        "DepthwiseConv2D",
        (0, 1, 2),
    )


def test_inputs_of_different_types_are_refused(graphs) -> None:
    tensors = [graphs.T((1, 3)), graphs.T((1, 3), kind="INT16"), graphs.T((1, 3)), graphs.T((1, 3))]
    operators = [graphs.Op("RELU", (0,), (2,)), graphs.Op("QUANTIZE", (1,), (3,))]
    with pytest.raises(ExportError, match="they are INT16 and INT8, expected one type for all inputs"):
        generate_c(graphs.make_tflite(tensors, operators, inputs=(0, 1), outputs=(2, 3)))
