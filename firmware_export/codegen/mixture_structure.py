"""Assigns the operators of a model to its parts, from the data flow alone.

A mixture ends in a sum of expert outputs, each multiplied by one value of the gate. The search goes backwards
from the sum. Operators that several experts need are the trunk. Operators that only the gate's values need
are the gate. The remaining operators of each product are an expert. If the experts have one output, the
gate's value is the factor that follows from a SOFTMAX or LOGISTIC.

A model that is not a mixture has a trunk and a head. The head begins with the first dense layer behind the
last convolution or operator of several activations. In a chain of dense layers alone, it is the last one. A
model without such a dense layer, or without weights before it, has one part, "model".
"""

from collections.abc import Set
from dataclasses import dataclass

from firmware_export.codegen.c_movement import RESHAPE_OPERATORS
from firmware_export.tflite.quantized_model import QuantizedModel

OUTPUT_OPERATORS = (*RESHAPE_OPERATORS, "SOFTMAX", "LOGISTIC", "QUANTIZE", "MUL")
GATE_OPERATORS = ("SOFTMAX", "LOGISTIC")
WEIGHT_OPERATORS = {
    "CONV_2D",
    "DEPTHWISE_CONV_2D",
    "TRANSPOSE_CONV",
    "FULLY_CONNECTED",
    "UNIDIRECTIONAL_SEQUENCE_LSTM",
    "SVDF",
}


@dataclass(frozen=True)
class MixtureStructure:
    """The parts of a model.

    Attributes:
        names: names of the parts in the order of their run.
        part_of: name of each operator's part.
        gate: tensor of each expert's gate value, in the order of the experts. Empty without a gate.
        products: operator that multiplies each expert by its gate value.
        order: operators in the order of their run, the gate first.
    """

    names: tuple[str, ...]
    part_of: tuple[str, ...]
    gate: tuple[int, ...]
    products: tuple[int, ...]
    order: tuple[int, ...]


def find_parts(network: QuantizedModel) -> MixtureStructure:
    """Return the structure of a model.

    A model with variables is no mixture, since an expert that is skipped would not change them.
    """
    maker = {output: i for i, operator in enumerate(network.operators) for output in operator.outputs}
    if network.variables:
        return _split_head(network, maker)
    needs = _collect_dependencies(network, maker)
    leaves = _find_summands(network, maker)
    gate, experts, products = _split(network, maker, leaves)
    if len(leaves) < 2:
        return _split_head(network, maker)
    sets = [needs[maker[i]] if i in maker else frozenset() for i in experts]
    steering = frozenset[int]().union(*(needs[maker[i]] for i in gate))
    everything = frozenset[int]().union(*sets)
    trunk = {i for i in everything if i in steering or sum(i in members for members in sets) > 1}
    expert_operators = [members - trunk for members in sets]
    if not all(
        any(network.operators[i].name in WEIGHT_OPERATORS for i in members) for members in expert_operators
    ):
        return _split_head(network, maker)
    part_of = ["mix"] * len(network.operators)
    for i in trunk:
        part_of[i] = "trunk"
    for i in steering - trunk:
        part_of[i] = "gate"
    for number, members in enumerate(expert_operators):
        for i in (*members, *products[number : number + 1]):
            part_of[i] = f"expert{number}"
    order = _order(network, part_of, len(expert_operators))
    names = [
        name
        for name in ("trunk", "gate", *(f"expert{k}" for k in range(len(expert_operators))), "mix")
        if name in part_of
    ]
    return MixtureStructure(
        names=tuple(names),
        part_of=tuple(part_of),
        gate=tuple(gate),
        products=tuple(products),
        order=tuple(order),
    )


def _split_head(network: QuantizedModel, maker: dict[int, int]) -> MixtureStructure:
    """Return the structure of a model that is not a mixture."""
    dense: list[int] = []
    tensor = network.outputs[0]
    while tensor in maker:
        operator = maker[tensor]
        name = network.operators[operator].name
        activations = _list_activations(network, operator)
        if len(activations) != 1 or name in WEIGHT_OPERATORS - {"FULLY_CONNECTED"} | {"READ_VARIABLE"}:
            break
        if name == "FULLY_CONNECTED":
            dense.append(operator)
        (tensor,) = activations
    else:  # dense layers alone
        dense = dense[:1]
    count = len(network.operators)
    head = dense[-1] if dense else 0
    if any(operator.name in WEIGHT_OPERATORS for operator in network.operators[:head]):
        part_of = ("trunk",) * head + ("head",) * (count - head)
    else:
        part_of = ("model",) * count
    return MixtureStructure(
        names=tuple(dict.fromkeys(part_of)), part_of=part_of, gate=(), products=(), order=tuple(range(count))
    )


def _collect_dependencies(network: QuantizedModel, maker: dict[int, int]) -> list[frozenset[int]]:
    """Return the set of operators that each operator depends on, including itself."""
    needs: list[frozenset[int]] = []
    for i, operator in enumerate(network.operators):
        needs.append(frozenset({i}).union(*(needs[maker[t]] for t in operator.inputs if t in maker)))
    return needs


def _list_activations(network: QuantizedModel, operator: int) -> list[int]:
    return [i for i in network.operators[operator].inputs if i >= 0 and network.get_tensor(i).data is None]


def _find_summands(network: QuantizedModel, maker: dict[int, int]) -> list[int]:
    """Return the summands of the last sum, from left to right."""
    tensor = network.outputs[0]
    while tensor in maker and network.operators[maker[tensor]].name in OUTPUT_OPERATORS:
        activations = _list_activations(network, maker[tensor])
        if len(activations) != 1:
            break
        tensor = activations[0]
    leaves = []
    todo = [tensor]
    while todo:
        tensor = todo.pop()
        operator = maker.get(tensor)
        if (
            operator is not None
            and network.operators[operator].name == "ADD"
            and len(_list_activations(network, operator)) == 2
        ):
            todo += reversed(network.operators[operator].inputs[:2])
        else:
            leaves.append(tensor)
    return leaves


def _split(
    network: QuantizedModel, maker: dict[int, int], leaves: list[int]
) -> tuple[list[int], list[int], list[int]]:
    """Return gate values, expert outputs and products.

    If a summand has no gate value, or has 16 bits, the model has no gate.
    """
    gate = []
    experts = []
    products = []
    for leaf in leaves:
        operator = maker.get(leaf)
        if (
            operator is None
            or network.operators[operator].name != "MUL"
            or len(_list_activations(network, operator)) != 2
            or network.get_tensor(leaf).dtype != "INT8"
        ):
            return [], leaves, []
        inputs = network.operators[operator].inputs[:2]
        values = [i for i in inputs if network.get_tensor(i).size == 1 and i in maker]
        if len(values) == 2:  # experts with one output
            values = [i for i in values if _comes_from_gate(network, maker, i)]
        if len(values) != 1 or network.operators[operator].options.get("fusedActivationFunction", 0):
            return [], leaves, []
        gate.append(values[0])
        experts.append(inputs[0] if inputs[1] == values[0] else inputs[1])
        products.append(operator)
    return gate, experts, products


def _comes_from_gate(network: QuantizedModel, maker: dict[int, int], tensor: int) -> bool:
    """Return whether a value follows from a SOFTMAX or LOGISTIC without weights on the way."""
    while tensor in maker:
        operator = network.operators[maker[tensor]]
        if operator.name in GATE_OPERATORS:
            return True
        activations = _list_activations(network, maker[tensor])
        if operator.name in WEIGHT_OPERATORS or len(activations) != 1:
            return False
        tensor = activations[0]
    return False


def _order(network: QuantizedModel, part_of: list[str], experts: int) -> list[int]:
    """Return the order of the operators.

    The trunk runs first, then the gate, then each expert, followed by the additions that are possible by
    then.
    """
    made: set[int] = set(network.inputs)
    order: list[int] = []

    def is_ready(operator: int, parts: Set[str]) -> bool:
        return (
            part_of[operator] in parts
            and operator not in order
            and all(i in made for i in _list_activations(network, operator))
        )

    for parts in ({"trunk"}, {"trunk", "gate"}, *({f"expert{k}", "mix"} for k in range(experts)), {"mix"}):
        for operator in range(len(network.operators)):
            if is_ready(operator, parts):
                order.append(operator)
                made.update(network.operators[operator].outputs)
    return order
