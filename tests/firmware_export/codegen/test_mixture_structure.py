"""Trunk and head of a model that is not a mixture. test_c_movement.py has the parts of mixtures."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from firmware_export.codegen.c_source import generate_c
from firmware_export.codegen.mixture_structure import find_parts
from firmware_export.ota.update_package import FirmwarePart, FirmwareParts, make_update, read_update
from firmware_export.tflite.quantized_model import read_quantized_model


def add_cnn(made: Any, source: int) -> int:
    flat = made.flatten(made.add_convolution(made.add_convolution(source), depthwise=True))
    return made.add_softmax(made.add_dense(made.add_table(made.add_dense(flat, 8)), 4))


def add_residual(made: Any, source: int) -> int:
    first = made.add_dense(made.flatten(source), 8)
    return made.add_dense(made.add_binary(first, made.add_dense(first, 8), "ADD"), 4)


def add_autoencoder(made: Any, source: int) -> int:
    return made.add_dense(made.add_dense(made.add_dense(made.flatten(source), 8), 2), 8)


def add_pooled(made: Any, source: int) -> int:
    return made.add_softmax(made.flatten(made.add_convolution(source)))


def add_decoder(made: Any, source: int) -> int:
    """Return a model that ends in a TRANSPOSE_CONV behind a dense layer."""
    dense = made.add_dense(made.add_dense(made.flatten(source), 8), 32)
    return made.add_upsampling(made.add_reshape(dense, (1, 4, 4, 2)))


def add_gated_output(made: Any, source: int) -> int:
    """Return a model that ends like the last step of a GRU, in a product of two activations."""
    flat = made.add_dense(made.flatten(source), 8)
    return made.add_binary(made.add_dense(flat, 4), made.add_dense(flat, 4), "MUL")


MODELS = [
    (add_cnn, ["CONV_2D", "DEPTHWISE_CONV_2D", "RESHAPE"], 4),
    (add_residual, ["RESHAPE", "FULLY_CONNECTED", "FULLY_CONNECTED", "ADD"], 1),
    (add_autoencoder, ["RESHAPE", "FULLY_CONNECTED", "FULLY_CONNECTED"], 1),
    (lambda made, source: made.add_softmax(made.add_dense(made.flatten(source), 4)), [], 0),
    (add_pooled, [], 0),
    (add_decoder, [], 0),
    (add_gated_output, [], 0),
]
IDS = ["cnn", "residual", "autoencoder", "one dense layer", "convolutions", "decoder", "gated output"]


def make_model(graphs: Any, random_models: Any, add: Callable[[Any, int], int]) -> bytes:
    made = random_models.Graph(graphs, np.random.default_rng(1))
    output = add(made, made.add_tensor((1, 6, 6, 2), 0.05, 0))
    model: bytes = graphs.make_tflite(made.tensors, made.operators, outputs=(output,))
    return model


@pytest.mark.parametrize(("add", "trunk", "head"), MODELS, ids=IDS)
def test_head_begins_with_the_last_dense_layers(
    graphs: Any,
    random_models: Any,
    compiled: Any,
    tmp_path: Any,
    add: Callable[[Any, int], int],
    trunk: list[str],
    head: int,
) -> None:
    model = make_model(graphs, random_models, add)
    network = read_quantized_model(model)
    structure = find_parts(network)
    assert structure.names == (("trunk", "head") if head else ("model",))
    names = [operator.name for operator in network.operators]
    assert [name for name, part in zip(names, structure.part_of, strict=True) if part == "trunk"] == trunk
    assert structure.part_of.count("head") == head
    pytest.importorskip("tflite_micro")
    x = np.random.default_rng(2).integers(-128, 128, (20, 6, 6, 2)).astype(np.int8)
    compiled.check_against_micro(model, x, tmp_path)


def test_update_carries_only_a_head_that_changed(graphs: Any, random_models: Any) -> None:
    """Weights, bias, scales and zero point of the last dense layer differ."""
    sources = []
    for seed in (3, 4):
        made = random_models.Graph(graphs, np.random.default_rng(1))
        features = made.flatten(made.add_convolution(made.add_tensor((1, 6, 6, 2), 0.05, 0)))
        made.rng = np.random.default_rng(seed)
        made.add_softmax(made.add_dense(features, 4, few_values_share=0))
        sources.append(generate_c(graphs.make_tflite(made.tensors, made.operators)))
    old, new = (
        FirmwareParts(s.layout, tuple(FirmwarePart(part, s.images[part]) for part in s.parts))
        for s in sources
    )
    assert old.layout == new.layout
    update = make_update(
        old,
        new,
        counter=1,
        sign=lambda message: bytes(64),
        answer=lambda inputs: np.zeros((len(inputs), 4), np.int8),
        inputs=72,
    )
    assert [is_carried for _, is_carried, _ in read_update(update).entries] == [False, True]
    assert update.endswith(sources[1].images["head"])
