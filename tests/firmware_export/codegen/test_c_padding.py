"""Convolutions that do the padding of a PAD before them, compared with tflite-micro."""

from dataclasses import replace

import numpy as np
import pytest

from edgefl.base.errors import ExportError
from firmware_export.codegen.c_padding import find_padded_inputs
from firmware_export.codegen.c_source import generate_c
from firmware_export.tflite.quantized_model import read_quantized_model

pytest.importorskip("tflite_micro")


def add_pad(made, source, padding, **changes):
    """Add a PAD of a tensor by rows of (before, after), and return its output."""
    tensor = made.tensors[source]
    shape = tuple(int(n + sum(pair)) for n, pair in zip(tensor.shape, padding, strict=True))
    made.tensors.append(replace(tensor, shape=shape, **changes))
    output = len(made.tensors) - 1
    return made.add_operator(
        "PAD", (source, made.add_constant(np.array(padding, np.int32))), (output,), {}, "Pad"
    )


def add_convolution(made, source, kernel, *, stride=(1, 1), dilation=(1, 1), same=False, depthwise=False):
    """Add a convolution, and return its output."""
    _, *size, channels = made.get_shape(source)
    reach = [(k - 1) * d for k, d in zip(kernel, dilation, strict=True)]
    size = [-(-(n - (0 if same else r)) // s) for n, r, s in zip(size, reach, stride, strict=True)]
    options = {
        "padding": 0 if same else 1,
        "strideH": stride[0],
        "strideW": stride[1],
        "dilationHFactor": dilation[0],
        "dilationWFactor": dilation[1],
    }
    weights = (
        made.draw_weights(1, *kernel, channels) if depthwise else made.draw_weights(5, *kernel, channels)
    )
    out = channels if depthwise else 5
    inputs, scale = made.add_kernel(source, weights, out, 3 if depthwise else 0)
    name = "DEPTHWISE_CONV_2D" if depthwise else "CONV_2D"
    if depthwise:
        options["depthMultiplier"] = 1
    kind = "DepthwiseConv2D" if depthwise else "Conv2D"
    return made.add_operator(name, inputs, (made.add_tensor((1, *size, out), scale),), options, kind)


def start(graphs, random_models, seed, shape):
    made = random_models.Graph(graphs=graphs, rng=np.random.default_rng(seed))
    return made, made.add_tensor(shape)


def finish(made, graphs, *outputs):
    return graphs.make_tflite(made.tensors, made.operators, outputs=outputs)


def check_bytes(compiled, tmp_path, model):
    """Check that both forms of the C give tflite-micro's bytes, and return the operators of its layers."""
    (ops,) = {_check_form(compiled, tmp_path / form, model, form) for form in ("speed", "ram")}
    return list(ops)


def _check_form(compiled, tmp_path, model, optimize):
    source = generate_c(model, optimize=optimize)
    shape = read_quantized_model(model).tensors[0].shape[1:]
    x = np.random.default_rng(9).integers(-128, 128, (30, *shape)).astype(np.int8)
    x[0], x[1] = 127, -128
    expected = compiled.run_micro(model, x)
    program = compiled.build(source, tmp_path, "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
    np.testing.assert_array_equal(compiled.run(program, x, expected.shape[1])[0], expected)
    assert len(np.unique(expected)) > 10, "the values of the test say nothing"
    return tuple(layer.op for layer in source.layers)


@pytest.mark.parametrize("depthwise", [False, True])
@pytest.mark.parametrize(
    ("padding", "kernel", "stride", "dilation"),
    [
        (((0, 0), (1, 1), (1, 1), (0, 0)), (3, 3), (1, 1), (1, 1)),
        (((0, 0), (0, 1), (0, 1), (0, 0)), (3, 3), (2, 2), (1, 1)),
        (((0, 0), (4, 0), (0, 3), (0, 0)), (5, 4), (1, 2), (1, 1)),
        (((0, 0), (4, 4), (2, 4), (0, 0)), (3, 3), (1, 1), (2, 2)),
        (((0, 0), (4, 4), (4, 4), (0, 0)), (5, 5), (1, 1), (1, 1)),
        (((0, 0), (3, 3), (3, 3), (0, 0)), (4, 4), (3, 3), (1, 1)),
    ],
)
def test_convolution_does_the_padding_before_it(
    compiled, graphs, random_models, tmp_path, padding, kernel, stride, dilation, depthwise
) -> None:
    made, source = start(graphs, random_models, 3, (1, 6, 5, 3))
    padded = add_pad(made, source, padding)
    output = add_convolution(made, padded, kernel, stride=stride, dilation=dilation, depthwise=depthwise)
    ops = check_bytes(compiled, tmp_path, finish(made, graphs, output))
    assert ops == ["DEPTHWISE_CONV_2D" if depthwise else "CONV_2D"]


def test_padding_before_a_convolution_that_pads_itself_remains(
    compiled, graphs, random_models, tmp_path
) -> None:
    """Both together would lead the kernel of 5 to a window without any input: 4 + 2 rows before it."""
    made, source = start(graphs, random_models, 3, (1, 6, 7, 3))
    padded = add_pad(made, source, ((0, 0), (4, 4), (4, 4), (0, 0)))
    output = add_convolution(made, padded, (5, 5), same=True)
    ops = check_bytes(compiled, tmp_path, finish(made, graphs, output))
    assert ops == ["PAD", "PAD", "CONV_2D"]


def test_one_dimensional_convolution_does_the_padding_behind_a_reshape(
    compiled, graphs, random_models, tmp_path
) -> None:
    """Keras writes a causal Conv1D as PAD, RESHAPE, CONV_2D, RESHAPE."""
    made, source = start(graphs, random_models, 5, (1, 9, 4))
    padded = add_pad(made, source, ((0, 0), (4, 0), (0, 0)))
    image = made.add_reshape(padded, (1, 1, 13, 4))
    output = made.flatten(add_convolution(made, image, (1, 3), dilation=(1, 2)))
    model = finish(made, graphs, output)
    assert check_bytes(compiled, tmp_path, model) == ["CONV_2D"]
    (merged,) = find_padded_inputs(read_quantized_model(model)).values()
    assert (merged.source.shape, merged.padding) == ((1, 1, 9, 4), ((0, 0), (4, 0)))


def test_several_convolutions_and_a_pool_behind_one_padding(
    compiled, graphs, random_models, tmp_path
) -> None:
    made, source = start(graphs, random_models, 8, (1, 6, 6, 3))
    padded = add_pad(made, source, ((0, 0), (1, 1), (1, 1), (0, 0)))
    first = made.flatten(made.add_pool(add_convolution(made, padded, (3, 3)), "MAX_POOL_2D", (2, 2)))
    second = made.flatten(add_convolution(made, padded, (3, 3), stride=(2, 2)))
    both = made.add_binary(made.add_dense(first, 6), made.add_dense(second, 6), "ADD")
    ops = check_bytes(compiled, tmp_path, finish(made, graphs, both))
    assert "PAD" not in ops
    assert "CONV_2D + MAX_POOL_2D" in ops


def test_depthwise_of_one_channel_is_a_convolution(compiled, graphs, random_models, tmp_path) -> None:
    """It has 8 filters of one channel, as the first layer of micro_speech in tflite-micro."""
    made, source = start(graphs, random_models, 6, (1, 12, 10, 1))
    weights = made.draw_weights(1, 5, 4, 8)
    inputs, scale = made.add_kernel(source, weights, 8, 3)
    options = {
        "padding": 0,
        "strideH": 2,
        "strideW": 2,
        "depthMultiplier": 8,
        "dilationHFactor": 1,
        "dilationWFactor": 1,
    }
    large = made.add_operator(
        "DEPTHWISE_CONV_2D", inputs, (made.add_tensor((1, 6, 5, 8), scale),), options, "DepthwiseConv2D"
    )
    model = finish(made, graphs, made.flatten(large))
    assert check_bytes(compiled, tmp_path, model) == ["DEPTHWISE_CONV_2D"]
    assert "depthwise_conv_2d(" not in generate_c(model).files["model.c"]


@pytest.mark.parametrize(
    "kind", ["other value", "channels", "wider than the kernel", "another reader", "output", "other scale"]
)
def test_padding_that_no_convolution_can_do_remains(graphs, random_models, kind) -> None:
    made, source = start(graphs, random_models, 4, (1, 6, 6, 3))
    sides = (3, 3) if kind == "wider than the kernel" else (1, 1)
    padded = add_pad(
        made,
        source,
        ((0, 0), sides, (1, 1), (0, 1) if kind == "channels" else (0, 0)),
        **({"scales": 0.03} if kind == "other scale" else {}),
    )
    if kind == "other value":
        value = np.int8(made.tensors[source].zero + 1)
        made.tensors.append(
            graphs.T(
                shape=(1,), scales=made.tensors[source].scales, zero=made.tensors[source].zero, data=value
            )
        )
        pad = made.operators[-1]
        made.operators[-1] = replace(
            pad, name="PADV2", inputs=(*pad.inputs, len(made.tensors) - 1), options_class="PadV2"
        )
    outputs = [made.flatten(add_convolution(made, padded, (3, 3)))]
    if kind == "another reader":
        made.add_table(padded)
    if kind == "output":
        outputs.append(padded)
    network = read_quantized_model(finish(made, graphs, *outputs))
    assert find_padded_inputs(network) == {}


def test_damaged_convolution_behind_a_padding_is_an_export_error(graphs, random_models) -> None:
    made, source = start(graphs, random_models, 4, (1, 6, 6, 3))
    output = add_convolution(made, add_pad(made, source, ((0, 0), (1, 1), (1, 1), (0, 0))), (3, 3))
    kernel = made.operators[-1].inputs[1]
    made.tensors[kernel] = replace(
        made.tensors[kernel], shape=(5, 27), data=made.tensors[kernel].data.reshape(5, 27)
    )
    with pytest.raises(ExportError, match="lacks what its kernel needs"):
        generate_c(finish(made, graphs, output))
    made.operators[-1] = replace(made.operators[-1], options={}, options_class="")
    with pytest.raises(ExportError, match="lacks what its kernel needs"):
        generate_c(finish(made, graphs, output))
