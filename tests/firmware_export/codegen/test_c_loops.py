"""Recurrent layers become loops in C, with the bytes of tflite-micro."""

from typing import Any

import keras
import numpy as np
import pytest

from edgefl.program.compiler import objective as of
from edgefl.program.compiler.network import Network
from edgefl.program.compiler.template import build_template
from edgefl.program.plan.fill import fill_template
from firmware_export.codegen.c_source import generate_c
from firmware_export.quantize.device_route import RECIPES, quantize
from firmware_export.quantize.ranges import record_extremes

pytest.importorskip("tflite_micro")
L = keras.layers
SANITIZERS = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all")
STATE = (1 / 64, 3)
PRODUCT = (1 / 16, -5)


def quantize_model(steps: int, *layers: Any) -> bytes:
    keras.utils.set_random_seed(steps)
    network = Network(
        keras.Sequential([keras.Input((steps, 3)), *layers, L.Flatten(), L.Dense(4, name="fc")])
    )
    template, bindings = build_template(of.predict_logits(network, 4))
    rng = np.random.default_rng(steps)
    weights = {
        name: rng.normal(0, 0.5, value.shape).astype(np.float32)
        for name, value in network.read_weights().items()
    }
    model = fill_template(template, bindings, weights)
    x = rng.normal(size=(20, steps, 3)).astype(np.float32)
    return quantize(model, record_extremes(model, x), RECIPES[0])


def check_against_micro(compiled: Any, tmp_path: Any, model: bytes, shape: tuple[int, ...]) -> Any:
    source = generate_c(model)
    x = np.random.default_rng(0).integers(-128, 128, (30, *shape)).astype(np.int8)
    expected = compiled.run_micro(model, x)
    received, _ = compiled.run(compiled.build(source, tmp_path, *SANITIZERS), x, expected.shape[1])
    np.testing.assert_array_equal(received, expected)
    assert len(np.unique(expected)) > 1
    return source


def make_recurrent_model(
    graphs: Any, steps: int, units: int, *, reads_step: int = -1, changed: int = -1
) -> bytes:
    """Return a graph of `state = add(x[step], dense(state))`.

    Args:
        graphs: the fixture.
        steps: number of steps, with the first one.
        units: number of values of the state.
        reads_step: the output also reads the state of this step.
        changed: the product of this step has another scale.
    """
    rng = np.random.default_rng(units)
    tensors = [
        graphs.T((1, steps, units), *STATE),
        graphs.T((units, units), 1 / 128, 0, rng.integers(-127, 128, (units, units)).astype(np.int8)),
        graphs.T((1, steps, units), *STATE),
    ]
    operators = [graphs.Op("RELU", (0,), (2,))]
    parts = list(range(3, 3 + steps))
    tensors += [graphs.T((1, units), *STATE) for _ in range(steps)]
    operators.append(graphs.Op("UNPACK", (2,), tuple(parts), {"num": steps, "axis": 1}, "Unpack"))

    def add(tensor: Any) -> int:
        tensors.append(tensor)
        return len(tensors) - 1

    states = [add(graphs.T((1, units), *STATE))]
    operators.append(graphs.Op("RELU", (parts[0],), (states[0],)))
    for step in range(1, steps):
        scale = PRODUCT if step != changed else (1 / 8, 0)
        product = add(graphs.T((1, units), *scale))
        dense = graphs.Op("FULLY_CONNECTED", (states[-1], 1, -1), (product,), {}, "FullyConnected")
        states.append(add(graphs.T((1, units), *STATE)))
        operators += [dense, graphs.Op("ADD", (parts[step], product), (states[-1],), {}, "Add")]
    other = states[reads_step]
    output = add(graphs.T((1, units), 1 / 32, 0))
    operators.append(graphs.Op("ADD", (states[-1], other), (output,), {}, "Add"))
    model: bytes = graphs.make_tflite(tensors, operators, outputs=(output,))
    return model


@pytest.mark.parametrize("steps", [3, 4, 9])
def test_handwritten_steps_become_a_loop(compiled: Any, graphs: Any, tmp_path: Any, steps: int) -> None:
    """The calls are a ReLU, the first state, two kernels in the loop, and the output."""
    source = check_against_micro(compiled, tmp_path, make_recurrent_model(graphs, steps, 5), (steps, 5))
    assert [layer.op for layer in source.layers] == ["RELU", "RELU", "FULLY_CONNECTED", "ADD", "ADD"]
    assert f"for (int step = 0; step < {steps - 1}; step++) {{" in source.files["model.c"]
    assert " + step * 5, " in source.files["model.c"]
    assert source.layers[2].macs == 25 * (steps - 1)


def test_state_that_is_read_after_the_loop_is_kept(compiled: Any, graphs: Any, tmp_path: Any) -> None:
    model = make_recurrent_model(graphs, 9, 5, reads_step=4)
    source = check_against_micro(compiled, tmp_path, model, (9, 5))
    assert len(source.layers) == 19 and "step++" not in source.files["model.c"]


def test_step_of_another_scale_is_not_in_the_loop(compiled: Any, graphs: Any, tmp_path: Any) -> None:
    model = make_recurrent_model(graphs, 9, 5, changed=6)
    source = check_against_micro(compiled, tmp_path, model, (9, 5))
    text = source.files["model.c"]
    assert "step < 5;" in text and "step < 2;" in text and len(source.layers) == 9


def test_layout_depends_on_the_number_of_steps(graphs: Any) -> None:
    layouts = {generate_c(make_recurrent_model(graphs, steps, 5)).layout for steps in (4, 4, 5)}
    assert len(layouts) == 2


LAYERS = {
    "LSTM": (lambda: L.LSTM(5), 1),
    "GRU": (lambda: L.GRU(5), 1),
    "GRU with reset before": (lambda: L.GRU(5, reset_after=False), 1),
    "SimpleRNN": (lambda: L.SimpleRNN(5), 1),
    "sequences": (lambda: L.GRU(5, return_sequences=True), 1),
    "backwards": (lambda: L.LSTM(5, go_backwards=True, return_sequences=True), 1),
    "both directions": (lambda: L.Bidirectional(L.GRU(5)), 2),
    "sequences of both directions": (lambda: L.Bidirectional(L.LSTM(5, return_sequences=True)), 2),
}


LONG = ("LSTM", "GRU", "sequences of both directions")
CASES = [(name, 8) for name in LAYERS] + [pytest.param(name, 32, marks=pytest.mark.slow) for name in LONG]


@pytest.mark.parametrize(("name", "steps"), CASES)
def test_recurrent_layers_match_tflite_micro(compiled: Any, tmp_path: Any, name: str, steps: int) -> None:
    make, loops = LAYERS[name]
    source = check_against_micro(compiled, tmp_path, quantize_model(steps, make()), (steps, 3))
    text = source.files["model.c"]
    assert text.count(f"step < {steps - 1};") == loops and text.count("step++") == loops


def test_stacked_layers_have_a_loop_each(compiled: Any, tmp_path: Any) -> None:
    model = quantize_model(8, L.LSTM(4, return_sequences=True), L.GRU(3))
    source = check_against_micro(compiled, tmp_path, model, (8, 3))
    assert source.files["model.c"].count("step < 7;") == 2


def test_two_steps_need_no_loop(compiled: Any, tmp_path: Any) -> None:
    source = check_against_micro(compiled, tmp_path, quantize_model(2, L.GRU(4)), (2, 3))
    assert "step++" not in source.files["model.c"]
