"""The layer that made a tensor is found with private and with public names of Keras."""

import keras
import pytest

from edgefl.base.errors import PlanError
from edgefl.program.compiler.keras_graph import find_producer, find_producer_by_output


def build_model():
    inputs = keras.Input((4,), name="x")
    hidden = keras.layers.Dense(3, name="hidden")(inputs)
    return keras.Model(inputs, keras.layers.Softmax(name="end")(hidden))


@pytest.mark.parametrize("find", [find_producer, find_producer_by_output])
def test_producers_are_found_from_output_to_input(find):
    model = build_model()
    layer, tensor = find(model, model.outputs[0])
    assert layer is model.get_layer("end")
    layer, tensor = find(model, tensor)
    assert layer is model.get_layer("hidden") and tensor is model.inputs[0]
    assert isinstance(find(model, tensor)[0], keras.layers.InputLayer)


def test_layer_called_twice_is_found_only_by_private_names():
    model = build_model()
    hidden = model.get_layer("hidden")
    other = keras.Input((4,))
    second = keras.Model(other, hidden(other))
    layer, tensor = find_producer(second, second.outputs[0])
    assert layer is hidden and tensor is other
    with pytest.raises(PlanError, match="called once"):
        find_producer_by_output(second, second.outputs[0])
