"""Other ways to mix experts than the template's, for measuring what each costs in int8.

The template's: sum_k g_k softmax(l_k) by products and sums of int8, where l_k are the experts' logits and g
the gate's softmax. `logits`: sum_k g_k l_k likewise, which is another function even in float. `outside`: the
first formula in float, of int8 gate and logits.
"""

from dataclasses import dataclass

import numpy as np

from edgefl.errors import ExportError
from edgefl.plan.runtime import load_interpreter
from edgefl.plan.tflite import pack_model, unpack_model
from edgefl.types import Array
from firmware_export.quantize.device_route import RECIPES, quantize
from firmware_export.quantize.ranges import record_extremes
from firmware_export.tflite.graph import read_graph
from firmware_export.tflite.interpreter import load_tflite, quantize_input, run_samples


@dataclass(frozen=True)
class Agreement:
    """Share of the samples where an int8 model answers as the float mixture does, by formula."""

    probabilities: float
    logits: float
    outside: float


def _experts(model: bytes) -> tuple[int, list[int]]:
    """Return the place of the gate's softmax among the operators, and those of the experts'. ExportError when
    the model mixes otherwise.
    """
    graph = read_graph(model)
    places = [place for place, (name, _) in enumerate(graph.operators) if name == "SOFTMAX"]
    products = {
        i
        for (name, _), inputs in zip(graph.operators, graph.inputs, strict=True)
        if name == "MUL"
        for i in inputs
    }
    experts = [place for place in places if graph.operators[place][1][0] in products]
    gates = [place for place in places if place not in experts]
    if len(gates) != 1 or len(experts) < 2:
        raise ExportError(
            f"the model has {len(gates)} gates and {len(experts)} experts, expected one over two or more "
            "softmax outputs"
        )
    return gates[0], experts


def mix_logits(model: bytes) -> bytes:
    """Return the float .tflite with the experts' softmax left out: what it mixes are logits."""
    _, experts = _experts(model)
    root = unpack_model(model)
    graph = root.subgraphs[0]
    instead = {graph.operators[place].outputs[0]: graph.operators[place].inputs[0] for place in experts}
    graph.operators = [operator for place, operator in enumerate(graph.operators) if place not in experts]
    for operator in graph.operators:
        operator.inputs = [instead.get(int(index), int(index)) for index in operator.inputs]
    return pack_model(root, len(model))


def mixed_outside(model: bytes, x: Array) -> Array:
    """Return sum_k g_k softmax(l_k) in float, of what an int8 .tflite computes for gate and logits:
    float32[n, classes].
    """
    gate, experts = _experts(model)
    graph = read_graph(model)
    order = _weights_order(model, experts)
    interpreter = load_interpreter(model, reference=True, watch=True)
    interpreter.allocate_tensors()
    details = {each["index"]: each["quantization"] for each in interpreter.get_tensor_details()}
    place = interpreter.get_input_details()[0]["index"]

    def value(index: int) -> Array:
        scale, zero = details[index]
        return np.asarray((interpreter.get_tensor(index)[0].astype(np.float32) - zero) * scale, np.float32)

    rows = []
    for sample in quantize_input(load_tflite(model), x):
        interpreter.set_tensor(place, sample[None])
        interpreter.invoke()
        shares = value(graph.operators[gate][1][0])
        logits = np.stack([value(graph.inputs[each][0]) for each in experts])
        odds = np.exp(logits - logits.max(axis=1, keepdims=True))
        rows.append(shares[order] @ (odds / odds.sum(axis=1, keepdims=True)))
    return np.stack(rows)


def _weights_order(model: bytes, experts: list[int]) -> list[int]:
    """Return which of the gate's values weighs each expert: slices are made in the gate's order, products
    pair them with experts.
    """
    graph = read_graph(model)
    parts = [i for name, made in graph.operators if name in ("STRIDED_SLICE", "SPLIT") for i in made]
    found = []
    for expert in experts:
        out = graph.operators[expert][1][0]
        (product,) = (
            inputs
            for (name, _), inputs in zip(graph.operators, graph.inputs, strict=True)
            if name == "MUL" and out in inputs
        )
        found.append(parts.index(next(i for i in product if i != out)))
    return found


def agreement(model: bytes, calibration: Array, x: Array) -> Agreement:
    """Measure the three formulas on x float32[n, *shape], each by the device route's first recipe; `model` is
    the filled template.
    """
    expected = run_samples(load_tflite(model), x)[0].argmax(axis=1)

    def integer(form: bytes) -> bytes:
        return quantize(form, record_extremes(form, calibration), RECIPES[0])

    own = integer(model)
    inside, of_logits = (
        run_samples(load_tflite(each, reference=True), x)[0] for each in (own, integer(mix_logits(model)))
    )
    return Agreement(
        *(
            float((each.argmax(axis=1) == expected).mean())
            for each in (inside, of_logits, mixed_outside(own, x))
        )
    )
