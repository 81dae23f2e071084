"""Other formulas than the template's for mixing experts, to measure the loss of each in int8.

- The template computes sum_k g_k softmax(l_k) with products and sums of int8, where l_k are the experts'
  logits and g is the gate's softmax.
- `logits` computes sum_k g_k l_k in int8, which is another function even in float.
- `outside` computes the first formula in float from the int8 gate and logits.
"""

from dataclasses import dataclass

import numpy as np

from edgefl.base.errors import ExportError
from edgefl.base.types import Array
from edgefl.program.plan.runtime import load_interpreter
from edgefl.program.plan.tflite import pack_model, unpack_model
from firmware_export.quantize.device_route import RECIPES, quantize
from firmware_export.quantize.ranges import record_extremes
from firmware_export.tflite.graph import read_graph
from firmware_export.tflite.interpreter import load_tflite, quantize_input, run_samples


@dataclass(frozen=True)
class Agreement:
    """Share of the samples where an int8 model gives the same class as the float mixture, by formula."""

    probabilities: float
    logits: float
    outside: float


def _find_softmax_operators(model: bytes) -> tuple[int, list[int]]:
    """Return the positions of the gate's softmax and of the experts' softmax among the operators.

    Raises:
        ExportError: the model mixes by another formula.
    """
    graph = read_graph(model)
    positions = [position for position, (name, _) in enumerate(graph.operators) if name == "SOFTMAX"]
    products = {
        i
        for (name, _), inputs in zip(graph.operators, graph.inputs, strict=True)
        if name == "MUL"
        for i in inputs
    }
    experts = [position for position in positions if graph.operators[position][1][0] in products]
    gates = [position for position in positions if position not in experts]
    if len(gates) != 1 or len(experts) < 2:
        raise ExportError(
            f"the model has {len(gates)} gates and {len(experts)} experts, expected one over two or more "
            "softmax outputs"
        )
    return gates[0], experts


def mix_logits(model: bytes) -> bytes:
    """Return the float .tflite without the experts' softmax, so that it mixes logits."""
    _, experts = _find_softmax_operators(model)
    root = unpack_model(model)
    graph = root.subgraphs[0]
    replacements = {
        graph.operators[position].outputs[0]: graph.operators[position].inputs[0] for position in experts
    }
    graph.operators = [
        operator for position, operator in enumerate(graph.operators) if position not in experts
    ]
    for operator in graph.operators:
        operator.inputs = [replacements.get(int(index), int(index)) for index in operator.inputs]
    return pack_model(root, len(model))


def mix_outside(model: bytes, x: Array) -> Array:
    """Return sum_k g_k softmax(l_k) in float from the gate and logits of an int8 .tflite, float32[n,
    classes].
    """
    gate, experts = _find_softmax_operators(model)
    graph = read_graph(model)
    order = _find_expert_order(model, experts)
    interpreter = load_interpreter(model, reference=True, watch=True)
    interpreter.allocate_tensors()
    details = {each["index"]: each["quantization"] for each in interpreter.get_tensor_details()}
    position = interpreter.get_input_details()[0]["index"]

    def read_value(index: int) -> Array:
        scale, zero = details[index]
        return np.asarray((interpreter.get_tensor(index)[0].astype(np.float32) - zero) * scale, np.float32)

    rows = []
    for sample in quantize_input(load_tflite(model), x):
        interpreter.set_tensor(position, sample[None])
        interpreter.invoke()
        shares = read_value(graph.operators[gate][1][0])
        logits = np.stack([read_value(graph.inputs[each][0]) for each in experts])
        odds = np.exp(logits - logits.max(axis=1, keepdims=True))
        rows.append(shares[order] @ (odds / odds.sum(axis=1, keepdims=True)))
    return np.stack(rows)


def _find_expert_order(model: bytes, experts: list[int]) -> list[int]:
    """Return the index of the gate's value that weighs each expert.

    Slices follow the order of the gate. Products pair them with experts.
    """
    graph = read_graph(model)
    parts = [i for name, made in graph.operators if name in ("STRIDED_SLICE", "SPLIT") for i in made]
    order = []
    for expert in experts:
        out = graph.operators[expert][1][0]
        (product,) = (
            inputs
            for (name, _), inputs in zip(graph.operators, graph.inputs, strict=True)
            if name == "MUL" and out in inputs
        )
        order.append(parts.index(next(i for i in product if i != out)))
    return order


def measure_agreement(model: bytes, calibration: Array, x: Array) -> Agreement:
    """Measure the three formulas with the device route's first recipe.

    Args:
        model: the filled template.
        calibration: calibration samples, float32[m, *shape].
        x: samples to measure, float32[n, *shape].
    """
    expected = run_samples(load_tflite(model), x)[0].argmax(axis=1)

    def quantize_form(form: bytes) -> bytes:
        return quantize(form, record_extremes(form, calibration), RECIPES[0])

    int8_model = quantize_form(model)
    inside, of_logits = (
        run_samples(load_tflite(each, reference=True), x)[0]
        for each in (int8_model, quantize_form(mix_logits(model)))
    )
    return Agreement(
        *(
            float((each.argmax(axis=1) == expected).mean())
            for each in (inside, of_logits, mix_outside(int8_model, x))
        )
    )
