"""The steps of a recurrent layer share their ranges, and other tensors do not."""

import keras
import numpy as np

from edgefl.base.types import Array
from edgefl.program.compiler import objective as of
from edgefl.program.compiler.network import Network
from edgefl.program.compiler.template import build_template
from edgefl.program.plan.fill import fill_template
from edgefl.program.plan.tflite import read_subgraph
from firmware_export.quantize.device_route import RECIPES, quantize
from firmware_export.quantize.ranges import group_step_tensors, record_extremes
from firmware_export.tflite.graph import read_graph
from firmware_export.tflite.quantized_model import read_quantized_model

L = keras.layers


def fill_model(*layers: object, shape: tuple[int, ...] = (6, 2)) -> bytes:
    keras.utils.set_random_seed(1)
    network = Network(keras.Sequential([keras.Input(shape), *layers, L.Flatten(), L.Dense(3, name="fc")]))
    template, bindings = build_template(of.predict_logits(network, 4))
    return fill_template(template, bindings, network.read_weights())


def draw_samples() -> Array:
    return np.random.default_rng(0).normal(size=(20, 6, 2)).astype(np.float32)


def test_states_and_products_of_a_simple_rnn_are_grouped() -> None:
    """Five of six steps multiply the state: five products, five sums, and six states."""
    model = fill_model(L.SimpleRNN(4))
    assert sorted(len(group) for group in group_step_tensors(read_subgraph(model))) == [5, 5, 6]


def test_steps_have_the_same_scales() -> None:
    model = fill_model(L.LSTM(4))
    network = read_quantized_model(quantize(model, record_extremes(model, draw_samples()), RECIPES[0]))
    products = [
        o
        for o in network.operators
        if o.name == "FULLY_CONNECTED" and network.get_tensor(o.inputs[1]).shape == (16, 4)
    ]
    assert len(products) == 5
    for tensors in ([o.inputs[0] for o in products], [o.outputs[0] for o in products]):
        assert (
            len({(float(network.get_tensor(i).scale[0]), network.get_tensor(i).zero_point) for i in tensors})
            == 1
        )


def test_extremes_of_a_group_are_those_of_all_steps() -> None:
    """The outputs of the six steps and the sequence that joins them are one group."""
    model = fill_model(L.GRU(4, return_sequences=True))
    largest = max(group_step_tensors(read_subgraph(model)), key=len)
    assert len(largest) == 7
    graph = read_graph(model)
    extremes = record_extremes(model, draw_samples()).extremes
    for index in largest:
        np.testing.assert_array_equal(
            extremes[graph.tensors[index].name], extremes[graph.tensors[largest[0]].name]
        )


def test_other_models_have_no_groups() -> None:
    assert group_step_tensors(read_subgraph(fill_model(L.Conv1D(4, 3, activation="relu")))) == []
    dense = fill_model(L.Dense(2, "relu"), L.Dense(2, "relu"), shape=(6, 2))
    assert group_step_tensors(read_subgraph(dense)) == []
