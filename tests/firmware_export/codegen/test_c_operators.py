"""Every kernel of the generated C against tflite-micro.

The graphs have one operator with random shapes, scales, zero points and values. Outputs saturate, tie and
round. The graphs respect tflite-micro's own preconditions: a scale below one, or a fixed output scale.
"""

import numpy as np
import pytest

from edgefl.base.errors import ExportError
from firmware_export.codegen.c_convolution import compute_padding
from firmware_export.codegen.c_source import generate_c
from firmware_export.codegen.lookup_tables import LOOKUP_OPERATORS, build_lookup_table
from firmware_export.tflite.quantized_model import read_quantized_model

pytest.importorskip("tflite_micro")
SEEDS = range(6)
CONV = ("CONV_2D", "DEPTHWISE_CONV_2D")


def draw_scale(rng, low=-7.0, high=-2.0):
    return float(np.float32(2.0 ** rng.uniform(low, high)))


def draw_zero_point(rng):
    return int(rng.integers(-128, 128))


def draw_int8(rng, *shape):
    return rng.integers(-128, 128, shape).astype(np.int8)


def check_against_micro(compiled, tmp_path, model, rng, shape, low=-128, samples=30) -> None:
    source = generate_c(model, optimize=str(rng.choice(["ram", "speed"])))
    x = rng.integers(low, 128, (samples, *shape)).astype(np.int8)
    x[0] = 127
    x[1] = low
    expected = compiled.run_micro(model, x)
    received, _ = compiled.run(
        compiled.build(source, tmp_path, "-fsanitize=address,undefined", "-fno-sanitize-recover=all"),
        x,
        expected.shape[1],
    )
    np.testing.assert_array_equal(received, expected)
    assert len(np.unique(expected)) > 1, "the test's values give one output"


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("kind", CONV)
def test_convolutions_match_tflite_micro(compiled, graphs, tmp_path, kind, seed) -> None:
    rng = np.random.default_rng(seed)
    height = int(rng.integers(3, 11))
    width = int(rng.integers(3, 11))
    channels = int(rng.integers(1, 7))
    kh, kw, sh, sw = (int(v) for v in rng.integers(1, 4, 4))
    dh, dw = (2, 2) if seed == 3 and min(height, width) >= 5 else (1, 1)
    same = bool(rng.integers(2)) or kh * dh > height or kw * dw > width
    size = [
        -(-n // s) if same else -(-(n - (k - 1) * d) // s)
        for n, k, s, d in ((height, kh, sh, dh), (width, kw, sw, dw))
    ]
    multiple = int(rng.integers(1, 4))
    out = channels * multiple if kind != "CONV_2D" else int(rng.integers(1, 9))
    weights = draw_int8(rng, out, kh, kw, channels) if kind == "CONV_2D" else draw_int8(rng, 1, kh, kw, out)
    per_channel = seed != 5
    scales = [draw_scale(rng, -9, -5) for _ in range(out)] if per_channel else draw_scale(rng, -9, -5)
    x = draw_scale(rng)
    y = draw_scale(rng, -4, -1)
    bias = rng.integers(-3000, 3000, out).astype(np.int32)
    options = {
        "padding": 0 if same else 1,
        "strideH": sh,
        "strideW": sw,
        "dilationHFactor": dh,
        "dilationWFactor": dw,
    }
    options["fusedActivationFunction"] = (0, 1, 3)[seed % 3]
    if kind != "CONV_2D":
        options["depthMultiplier"] = multiple
    tensors = [
        graphs.T((1, height, width, channels), x, draw_zero_point(rng)),
        graphs.T(
            shape=weights.shape, scales=scales, zero=0, data=weights, axis=0 if kind == "CONV_2D" else 3
        ),
        graphs.T(shape=(out,), scales=[x * float(s) for s in np.atleast_1d(scales)], zero=0, data=bias),
        graphs.T((1, *size, out), y, draw_zero_point(rng)),
    ]
    cls = "Conv2D" if kind == "CONV_2D" else "DepthwiseConv2D"
    model = graphs.make_tflite(
        tensors, [graphs.Op(name=kind, inputs=(0, 1, 2), outputs=(3,), options=options, options_class=cls)]
    )
    check_against_micro(compiled, tmp_path, model, rng, tensors[0].shape[1:])


@pytest.mark.parametrize("seed", range(8))
def test_grouped_convolutions_match_tflite_micro(compiled, graphs, tmp_path, seed) -> None:
    rng = np.random.default_rng(seed)
    groups, inputs, outputs = (int(v) for v in rng.integers((2, 1, 1), (4, 6, 7)))
    height, width = (int(v) for v in rng.integers(3, 9, 2))
    kernel, stride = rng.integers(1, 4, 2), rng.integers(1, 3, 2)
    same = bool(rng.integers(2))
    size = [
        -(-n // s) if same else -(-(n - k + 1) // s)
        for n, k, s in zip((height, width), kernel, stride, strict=True)
    ]
    weights = draw_int8(rng, groups * outputs, *kernel, inputs)
    scales = [draw_scale(rng, -9, -5) for _ in range(groups * outputs)]
    options = {
        "padding": 0 if same else 1,
        "strideH": int(stride[0]),
        "strideW": int(stride[1]),
        "dilationHFactor": 1,
        "dilationWFactor": 1,
        "fusedActivationFunction": (0, 1)[seed % 2],
    }
    tensors = [
        graphs.T((1, height, width, groups * inputs), 0.05, draw_zero_point(rng)),
        graphs.T(shape=weights.shape, scales=scales, zero=0, data=weights),
        graphs.T(
            shape=(len(weights),),
            scales=[0.05 * s for s in scales],
            zero=0,
            data=rng.integers(-900, 900, len(weights), np.int32),
        ),
        graphs.T((1, *size, len(weights)), draw_scale(rng, -4, -1), draw_zero_point(rng)),
    ]
    operator = graphs.Op(
        name="CONV_2D", inputs=(0, 1, 2), outputs=(3,), options=options, options_class="Conv2D", version=6
    )
    model = graphs.make_tflite(tensors, [operator])
    assert f"{groups} groups" in generate_c(model).files["model.c"]
    check_against_micro(compiled, tmp_path, model, rng, tensors[0].shape[1:])


def test_channels_that_are_no_groups_are_refused(graphs) -> None:
    tensors = [
        graphs.T((1, 2, 2, 5)),
        graphs.T((4, 1, 1, 2), data=np.ones((4, 1, 1, 2), np.int8)),
        graphs.T((1, 2, 2, 4)),
    ]
    options = {"padding": 1, "strideH": 1, "strideW": 1, "dilationHFactor": 1, "dilationWFactor": 1}
    operator = graphs.Op(name="CONV_2D", inputs=(0, 1), outputs=(2,), options=options, options_class="Conv2D")
    with pytest.raises(
        ExportError, match=r"5 input and 4 output channels for kernels of 2 channels, expected"
    ):
        generate_c(graphs.make_tflite(tensors, [operator]))


WINDOWS = [
    ((2, 2), (9, 8), False),
    ((2, 2), (8, 8), True),
    ((1, 2), (1, 11), False),
    ((2, 2), (7, 7), True),
    ((3, 3), (9, 9), False),
    ((4, 1), (8, 3), False),
]
MEANS = [
    ((1, 5, 7, 3), (1, 2), (1, 1, 1, 3)),
    ((1, 6, 4), (1,), (1, 1, 4)),
    ((1, 4, 3, 5), (1, 3), (1, 1, 3, 1)),
    ((1, 5, 6), (-1,), (1, 5, 1)),
    ((1, 8, 8, 2), (2, 1), (1, 1, 1, 2)),
]


@pytest.mark.parametrize(("window", "size", "same"), WINDOWS)
def test_pooling_after_a_convolution_matches_tflite_micro(
    compiled, graphs, tmp_path, window, size, same
) -> None:
    rng = np.random.default_rng(sum(size))
    weights = draw_int8(rng, 5, 3, 3, 3)
    pooled = [-(-n // w) if same else n // w for n, w in zip(size, window, strict=True)]
    out = draw_scale(rng, -4, -2), draw_zero_point(rng)
    tensors = [
        graphs.T((1, *size, 3), 0.02, draw_zero_point(rng)),
        graphs.T(
            shape=weights.shape, scales=[draw_scale(rng, -8, -5) for _ in range(5)], zero=0, data=weights
        ),
        graphs.T(shape=(5,), scales=[0.001] * 5, zero=0, data=rng.integers(-3000, 3000, 5).astype(np.int32)),
        graphs.T((1, *size, 5), *out),
        graphs.T((1, *pooled, 5), *out),
    ]
    convolution = {
        "padding": 0,
        "strideH": 1,
        "strideW": 1,
        "dilationHFactor": 1,
        "dilationWFactor": 1,
        "fusedActivationFunction": 1,
    }
    pool = {
        "padding": 0 if same else 1,
        "filterHeight": window[0],
        "filterWidth": window[1],
        "strideH": window[0],
        "strideW": window[1],
    }
    operators = [
        graphs.Op(
            name="CONV_2D", inputs=(0, 1, 2), outputs=(3,), options=convolution, options_class="Conv2D"
        ),
        graphs.Op(name="MAX_POOL_2D", inputs=(3,), outputs=(4,), options=pool, options_class="Pool2D"),
    ]
    model = graphs.make_tflite(tensors, operators)
    fused = window[0] * window[1] in (2, 4) and all(
        p * w <= n for p, w, n in zip(pooled, window, size, strict=True)
    )
    assert [layer.op for layer in generate_c(model).layers] == (
        ["CONV_2D + MAX_POOL_2D"] if fused else ["CONV_2D", "MAX_POOL_2D"]
    )
    check_against_micro(compiled, tmp_path, model, rng, tensors[0].shape[1:])


@pytest.mark.parametrize("seed", SEEDS)
def test_dense_layers_match_tflite_micro(compiled, graphs, tmp_path, seed) -> None:
    rng = np.random.default_rng(seed)
    inputs = int(rng.integers(1, 40))
    outputs = (1, 2, 3, 4, 9, 16)[seed]
    weights = draw_int8(rng, outputs, inputs)
    scales = [draw_scale(rng, -9, -5) for _ in range(outputs)] if seed % 2 else draw_scale(rng, -9, -5)
    x = draw_scale(rng)
    bias = rng.integers(-3000, 3000, outputs).astype(np.int32)
    tensors = [
        graphs.T((1, inputs), x, draw_zero_point(rng)),
        graphs.T(shape=weights.shape, scales=scales, zero=0, data=weights),
        graphs.T(shape=(outputs,), scales=[x * float(s) for s in np.atleast_1d(scales)], zero=0, data=bias),
        graphs.T((1, outputs), draw_scale(rng, -4, -1), draw_zero_point(rng)),
    ]
    has_bias = seed != 4
    operator = graphs.Op(
        name="FULLY_CONNECTED",
        inputs=(0, 1, 2) if has_bias else (0, 1, -1),
        outputs=(3,),
        options={"fusedActivationFunction": seed % 2},
        options_class="FullyConnected",
    )
    check_against_micro(compiled, tmp_path, graphs.make_tflite(tensors, [operator]), rng, (inputs,))


@pytest.mark.parametrize(
    ("scales", "total", "expected"),
    [
        ((0.0635, 0.01727, 0.343), 24552, 79),
        ((0.0922, 0.01057, 0.826), 19917, 23),
        ((0.0362, 0.0194, 0.439), -24066, -39),
    ],
)
def test_scales_of_a_dense_layer_are_multiplied_in_double_precision(
    compiled, graphs, tmp_path, scales, total, expected
) -> None:
    """The product as a 32-bit float gives a multiplier that rounds these sums to the neighbouring integer."""
    source, kernel, output = scales
    tensors = [
        graphs.T((1, 4), source),
        graphs.T(shape=(2, 4), scales=kernel, zero=0, data=np.array([[1, 0, 0, 0], [1, 1, 1, 1]], np.int8)),
        graphs.T(shape=(2,), scales=source * kernel, zero=0, data=np.array([total, 0], np.int32)),
        graphs.T((1, 2), output),
    ]
    operator = graphs.Op(
        name="FULLY_CONNECTED", inputs=(0, 1, 2), outputs=(3,), options={}, options_class="FullyConnected"
    )
    model = graphs.make_tflite(tensors, [operator])
    x = np.zeros((1, 4), np.int8)
    assert compiled.run_micro(model, x)[0, 0] == expected
    program = compiled.build(generate_c(model), tmp_path)
    np.testing.assert_array_equal(compiled.run(program, x, 2)[0], compiled.run_micro(model, x))


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("kind", ["MAX_POOL_2D", "AVERAGE_POOL_2D"])
def test_pooling_matches_tflite_micro(compiled, graphs, tmp_path, kind, seed) -> None:
    rng = np.random.default_rng(seed)
    height, width = (int(v) for v in rng.integers(3, 9, 2))
    window = rng.integers(1, 4, 2)
    stride = rng.integers(1, 4, 2)
    same = bool(seed % 2)
    size = [
        -(-n // int(s)) if same else -(-(n - int(k) + 1) // int(s))
        for n, k, s in zip((height, width), window, stride, strict=True)
    ]
    quantization = draw_scale(rng), draw_zero_point(rng)
    options = {
        "padding": 0 if same else 1,
        "filterHeight": int(window[0]),
        "filterWidth": int(window[1]),
        "strideH": int(stride[0]),
        "strideW": int(stride[1]),
        "fusedActivationFunction": seed % 2,
    }
    tensors = [graphs.T((1, height, width, 3), *quantization), graphs.T((1, *size, 3), *quantization)]
    check_against_micro(
        compiled,
        tmp_path,
        graphs.make_tflite(
            tensors,
            [graphs.Op(name=kind, inputs=(0,), outputs=(1,), options=options, options_class="Pool2D")],
        ),
        rng,
        tensors[0].shape[1:],
    )


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("kind", ["ADD", "SUB", "MUL"])
def test_binary_arithmetic_matches_tflite_micro(compiled, graphs, tmp_path, kind, seed) -> None:
    """The seed chooses the second operand.

    It is a tensor of the same shape, a scalar, one value per channel, a constant, or the first operand.
    """
    rng = np.random.default_rng(seed)
    shape = (1, 3, 4, 5)
    x = draw_scale(rng)
    y = draw_scale(rng)
    out = float(np.float32((x * y * 90) if kind == "MUL" else max(x, y) * rng.uniform(0.6, 3)))
    other = (shape, (), (1, 1, 1, 5), (1, 3, 1, 5), shape, shape)[seed]
    data = draw_int8(rng, *other) // 8 if seed in (1, 2, 3) else None
    tensors = [
        graphs.T(shape, x, 5),
        graphs.T(shape=other, scales=x if seed >= 4 else y, zero=3, data=data),
        graphs.T(shape, out, draw_zero_point(rng) // 4),
    ]
    if data is None:
        # The operands: the input, and the input plus a constant
        tensors[1] = graphs.T(shape=(5,), scales=y, zero=draw_zero_point(rng), data=draw_int8(rng, 5))
        tensors.insert(2, graphs.T(shape, y, draw_zero_point(rng)))
        widen = graphs.Op(
            name="ADD",
            inputs=(0, 1),
            outputs=(2,),
            options={"fusedActivationFunction": 0},
            options_class="Add",
        )
        first, second, result = (0, 2, 3) if seed < 5 or kind == "SUB" else (2, 2, 3)
    else:
        widen, (first, second, result) = None, (1, 0, 2) if seed == 3 else (0, 1, 2)
    operator = graphs.Op(
        name=kind,
        inputs=(first, second),
        outputs=(result,),
        options={"fusedActivationFunction": (0, 1, 3)[seed % 3]},
        options_class=kind.capitalize(),
    )
    check_against_micro(
        compiled,
        tmp_path,
        graphs.make_tflite(tensors, [widen, operator] if widen else [operator]),
        rng,
        shape[1:],
    )


@pytest.mark.parametrize(
    ("size", "out", "kernel", "stride", "dilation", "before"),
    [(5, 5, 3, 1, 1, 1), (5, 5, 4, 1, 1, 1), (6, 3, 3, 2, 1, 0), (5, 5, 3, 1, 2, 2), (6, 3, 1, 2, 1, 0)],
)
def test_padding_matches_hand_computed_values(size, out, kernel, stride, dilation, before) -> None:
    """SAME pads (out - 1) stride + (kernel - 1) dilation + 1 - size, with the smaller half first."""
    padding = compute_padding(size, out, kernel, stride, dilation, same=True)
    assert (type(padding), padding) == (int, before)
    assert compute_padding(size, out, kernel, stride, dilation, same=False) == 0


def make_unary_model(graphs, kind, source, output, options=None, cls=""):
    return graphs.make_tflite(
        [source, output],
        [graphs.Op(name=kind, inputs=(0,), outputs=(1,), options=options or {}, options_class=cls)],
    )


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("kind", LOOKUP_OPERATORS)
def test_lookup_tables_match_tflite_micro_for_every_int8(compiled, graphs, tmp_path, kind, seed) -> None:
    rng = np.random.default_rng(seed)
    shape = (1, 256)
    x = graphs.T(shape, draw_scale(rng, -9, -1), -128 if kind == "RSQRT" else draw_zero_point(rng))
    y = {"LOGISTIC": (1 / 256, -128), "TANH": (1 / 128, 0), "RSQRT": (draw_scale(rng, -7, -3), -128)}.get(
        kind, (draw_scale(rng, -8, -2), draw_zero_point(rng))
    )
    if kind == "RELU6" or (kind == "ABS" and seed == 0):
        y = x.scales, x.zero
    if kind == "HARD_SWISH":  # the interpreter refuses a quotient of 128 or more
        y = max(y[0], x.scales / 100), y[1]
    options = ({"alpha": 0.2}, "LeakyRelu") if kind == "LEAKY_RELU" else ({}, "")
    model = make_unary_model(graphs, kind, x, graphs.T(shape, *y), *options)
    values = np.arange(-128, 128, dtype=np.int8)[None]
    expected = compiled.run_micro(model, values)
    received, _ = compiled.run(compiled.build(generate_c(model), tmp_path), values, 256)
    np.testing.assert_array_equal(received, expected)


@pytest.mark.parametrize("seed", range(10))
def test_softmax_matches_tflite_micro(compiled, graphs, tmp_path, seed) -> None:
    rng = np.random.default_rng(seed)
    classes = (2, 3, 7, 10, 62)[seed % 5]
    model = make_unary_model(
        graphs,
        "SOFTMAX",
        graphs.T((1, classes), draw_scale(rng, -7, 1), draw_zero_point(rng)),
        graphs.T((1, classes), 1 / 256, -128),
        {"beta": (1.0, 0.5)[seed % 2]},
        "Softmax",
    )
    check_against_micro(compiled, tmp_path, model, rng, (classes,), samples=200)


@pytest.mark.parametrize(("shape", "axes", "out"), MEANS)
@pytest.mark.parametrize("same_quantization", [False, True])
def test_mean_matches_tflite_micro(compiled, graphs, tmp_path, shape, axes, out, same_quantization) -> None:
    rng = np.random.default_rng(len(shape) + sum(axes))
    x = draw_scale(rng), draw_zero_point(rng)
    y = x if same_quantization else (draw_scale(rng, -9, -4), draw_zero_point(rng))
    tensors = [graphs.T(shape, *x), graphs.T((len(axes),), data=np.array(axes, np.int32)), graphs.T(out, *y)]
    model = graphs.make_tflite(
        tensors,
        [
            graphs.Op(
                name="MEAN", inputs=(0, 1), outputs=(2,), options={"keepDims": True}, options_class="Reducer"
            )
        ],
    )
    check_against_micro(compiled, tmp_path, model, rng, shape[1:])


def test_hard_swish_of_hand_worked_values(graphs) -> None:
    """With both scales 1/16: x * min(max(x + 3, 0), 6) / 6, in sixteenths."""
    quantization = graphs.T((1, 8), 1 / 16, 0)
    network = read_quantized_model(make_unary_model(graphs, "HARD_SWISH", quantization, quantization))
    table = build_lookup_table(network, network.operators[0])
    expected = {-128: 0, -48: 0, -24: -6, 0: 0, 16: 11, 48: 48, 127: 127}
    assert {value: table[value + 128] for value in expected} == expected


def test_absolute_value_of_hand_worked_values(graphs) -> None:
    source = graphs.T((1, 8), 0.5, -1)
    network = read_quantized_model(make_unary_model(graphs, "ABS", source, graphs.T((1, 8), 1.0, -100)))
    table = build_lookup_table(network, network.operators[0])
    # (-101 + 1) * 0.5 = -50, so 50 above the zero point of the output
    expected = {-101: -50, -1: -100, 99: -50, 127: -36}
    assert {value: table[value + 128] for value in expected} == expected


@pytest.mark.parametrize("kind", ["LOGISTIC", "TANH"])
def test_scale_that_is_nearly_zero_is_named(graphs, kind) -> None:
    output = graphs.T((1, 8), 1 / 256, -128) if kind == "LOGISTIC" else graphs.T((1, 8), 1 / 128, 0)
    with pytest.raises(ExportError, match=r"t1\) has an input whose scale is .*, expected at least 2\^-28"):
        generate_c(make_unary_model(graphs, kind, graphs.T((1, 8), 2.0**-29), output))


@pytest.mark.parametrize("shape", [(4, 5, 3), (1, 1, 3), (4, 1, 1), (3,)])
def test_prelu_matches_tflite_micro(compiled, graphs, tmp_path, shape) -> None:
    rng = np.random.default_rng(sum(shape))
    tensors = [
        graphs.T((1, 4, 5, 3), 0.03, 7),
        graphs.T(shape=shape, scales=0.004, zero=-3, data=draw_int8(rng, *shape)),
        graphs.T((1, 4, 5, 3), 0.02, -11),
    ]
    model = graphs.make_tflite(tensors, [graphs.Op("PRELU", (0, 1), (2,))])
    check_against_micro(compiled, tmp_path, model, rng, (4, 5, 3))


def test_prelu_of_hand_worked_values(compiled, graphs, tmp_path) -> None:
    """With scales 1, the slopes 0.5 and -0.25 apply to negative values only."""
    tensors = [
        graphs.T((1, 2, 2), 1.0, 0),
        graphs.T(shape=(2,), scales=0.25, zero=0, data=np.array([2, -1], np.int8)),
        graphs.T((1, 2, 2), 1.0, 0),
    ]
    model = graphs.make_tflite(tensors, [graphs.Op("PRELU", (0, 1), (2,))])
    x = np.array([[8, 8, -8, -8]], np.int8)
    received, _ = compiled.run(compiled.build(generate_c(model), tmp_path), x, 4)
    np.testing.assert_array_equal(received, [[8, 8, -4, 2]])


@pytest.mark.parametrize("seed", SEEDS)
def test_transposed_convolutions_match_tflite_micro(compiled, graphs, tmp_path, seed) -> None:
    rng = np.random.default_rng(seed)
    height, width, channels, out = (int(v) for v in rng.integers(1, 6, 4))
    kh, kw, sh, sw = (int(v) for v in rng.integers(1, 4, 4))
    same = bool(seed % 2)
    size = [n * s + (0 if same else max(k - s, 0)) for n, s, k in ((height, sh, kh), (width, sw, kw))]
    weights = draw_int8(rng, out, kh, kw, channels)
    scales = [draw_scale(rng, -9, -5) for _ in range(out)] if seed != 5 else draw_scale(rng, -9, -5)
    x = draw_scale(rng)
    bias = rng.integers(-3000, 3000, out).astype(np.int32)
    tensors = [
        graphs.T((1, height, width, channels), x, draw_zero_point(rng)),
        graphs.T((4,), data=np.array([1, *size, out], np.int32)),
        graphs.T(shape=weights.shape, scales=scales, zero=0, data=weights),
        graphs.T(shape=(out,), scales=[x * float(s) for s in np.atleast_1d(scales)], zero=0, data=bias),
        graphs.T((1, *size, out), draw_scale(rng, -4, -1), draw_zero_point(rng) // 2),
    ]
    options = {"padding": 0 if same else 1, "strideH": sh, "strideW": sw}
    inputs = (1, 2, 0, 3) if seed != 4 else (1, 2, 0)
    operator = graphs.Op(
        name="TRANSPOSE_CONV",
        inputs=inputs,
        outputs=(4,),
        options=options,
        options_class="TransposeConv",
        version=3,
    )
    model = graphs.make_tflite(tensors, [operator])
    check_against_micro(compiled, tmp_path, model, rng, tensors[0].shape[1:])


def test_transposed_convolution_of_hand_worked_values(compiled, graphs, tmp_path) -> None:
    """The inputs 3 and 5 spread the kernel (1, 2, 4) with stride 2. They meet in the third output."""
    tensors = [
        graphs.T((1, 1, 2, 1), 1.0, 0),
        graphs.T((4,), data=np.array([1, 1, 5, 1], np.int32)),
        graphs.T(
            shape=(1, 1, 3, 1), scales=1.0, zero=0, data=np.array([1, 2, 4], np.int8).reshape(1, 1, 3, 1)
        ),
        graphs.T((1, 1, 5, 1), 1.0, 0),
    ]
    options = {"padding": 1, "strideH": 1, "strideW": 2}
    operator = graphs.Op(
        name="TRANSPOSE_CONV",
        inputs=(1, 2, 0),
        outputs=(3,),
        options=options,
        options_class="TransposeConv",
        version=3,
    )
    source = generate_c(graphs.make_tflite(tensors, [operator]))
    received, _ = compiled.run(compiled.build(source, tmp_path), np.array([[3, 5]], np.int8), 5)
    np.testing.assert_array_equal(received, [[3, 6, 12 + 5, 10, 20]])


@pytest.mark.parametrize(
    ("shape", "axes", "out"),
    [
        ((1, 5, 7, 3), (1, 2), (1, 3)),
        ((1, 6, 4), (1,), (1, 4)),
        ((1, 5, 6), (-1,), (1, 5)),
        ((1, 4, 3, 5), (2,), (1, 4, 5)),
    ],
)
def test_largest_values_match_numpy_and_tflite_micro(compiled, graphs, tmp_path, shape, axes, out) -> None:
    rng = np.random.default_rng(sum(shape))
    tensors = [
        graphs.T(shape, 0.1, 3),
        graphs.T((len(axes),), data=np.array(axes, np.int32)),
        graphs.T(out, 0.1, 3),
    ]
    operator = graphs.Op(
        name="REDUCE_MAX",
        inputs=(0, 1),
        outputs=(2,),
        options={"keepDims": False},
        options_class="Reducer",
        version=2,
    )
    model = graphs.make_tflite(tensors, [operator])
    check_against_micro(compiled, tmp_path, model, rng, shape[1:])
    x = draw_int8(rng, 20, *shape[1:])
    received, _ = compiled.run(tmp_path / "program", x, int(np.prod(out)))
    np.testing.assert_array_equal(received, x.max(axis=axes).reshape(20, -1))


@pytest.mark.parametrize(
    ("size", "out", "options"),
    [
        ((4, 5), (8, 10), {}),
        ((4, 5), (8, 10), {"halfPixelCenters": True}),
        ((4, 5), (7, 13), {"alignCorners": True}),
        ((9, 7), (4, 3), {"halfPixelCenters": True}),
        ((1, 3), (2, 1), {}),
    ],
)
def test_bilinear_resize_matches_tflite_micro(compiled, graphs, tmp_path, size, out, options) -> None:
    rng = np.random.default_rng(sum(out))
    tensors = [
        graphs.T((1, *size, 3), 0.1, 3),
        graphs.T((2,), data=np.array(out, np.int32)),
        graphs.T((1, *out, 3), 0.1, 3),
    ]
    operator = graphs.Op(
        name="RESIZE_BILINEAR",
        inputs=(0, 1),
        outputs=(2,),
        options=options,
        options_class="ResizeBilinear",
        version=2,
    )
    model = graphs.make_tflite(tensors, [operator])
    check_against_micro(compiled, tmp_path, model, rng, (*size, 3))


def test_bilinear_resize_of_hand_worked_values(compiled, graphs, tmp_path) -> None:
    """Half-pixel centres put the outputs at -0.25, 0.25, 0.75 and 1.25 of the inputs 0 and 8."""
    tensors = [
        graphs.T((1, 1, 2, 1), 1.0),
        graphs.T((2,), data=np.array([1, 4], np.int32)),
        graphs.T((1, 1, 4, 1), 1.0),
    ]
    options = {"halfPixelCenters": True}
    operator = graphs.Op(
        name="RESIZE_BILINEAR",
        inputs=(0, 1),
        outputs=(2,),
        options=options,
        options_class="ResizeBilinear",
        version=2,
    )
    source = generate_c(graphs.make_tflite(tensors, [operator]))
    received, _ = compiled.run(compiled.build(source, tmp_path), np.array([[0, 8]], np.int8), 4)
    np.testing.assert_array_equal(received, [[0, 2, 6, 8]])


@pytest.mark.parametrize(
    ("bias", "message"),
    [
        (np.ones(4, np.float32), r"a bias of type FLOAT32"),
        (
            np.full(4, -(2**63), np.int64),
            r"has a bias of -9223372036854775808 in channel 0: its sum overflows",
        ),
    ],
)
def test_a_bias_beyond_the_range_is_refused(graphs, bias, message) -> None:
    tensors = [
        graphs.T((1, 3)),
        graphs.T((4, 3), data=np.ones((4, 3), np.int8)),
        graphs.T((4,), data=bias),
        graphs.T((1, 4)),
    ]
    operator = graphs.Op(
        name="FULLY_CONNECTED", inputs=(0, 1, 2), outputs=(3,), options={}, options_class="FullyConnected"
    )
    with pytest.raises(ExportError, match=message):
        generate_c(graphs.make_tflite(tensors, [operator]))
