"""Every supported layer, alone and in pairs, computes on a device what Keras computes.

Each model is an input, one or two layers of `blocks`, and a Dense layer. Its weights and samples lie on both
sides of 0. A program has the predictions and training steps of many models, because a conversion takes a
second. Predictions, the gradients of the first step and the weights after three steps are compared.
"""

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from edgefl.program.compiler import compare
from edgefl.program.compiler import objective as of
from edgefl.program.compiler.compile import compile_program
from edgefl.program.compiler.network import Network
from edgefl.program.compiler.optimizer import sgd
from edgefl.program.plan.runtime import load_interpreter
from edgefl.program.plan.spec import SignatureSpec
from tests.edgefl.program.compiler.blocks import PAGE, SHAPES, Block, list_blocks, list_pairs, replace_table

BATCH = 4
STEPS = 3
LEARNING_RATE = 0.1
CHUNK = 40
"""Number of models in a program."""
TOLERANCE = 1e-4
BLOCKS = list_blocks()
PAIRS = tuple(list_pairs(BLOCKS))
BENT = tuple(
    next((block,) for block in BLOCKS if text in block.name) for text in ("selu, use_bias=True", "UnitNorm")
)
"""Layers that the converter or a runtime computed wrongly at 0."""
SAMPLE = (*((block,) for block in BLOCKS[:: len(BLOCKS) // 3]), *PAIRS[:: len(PAIRS) // 5], *BENT)


@dataclass(frozen=True)
class Case:
    """A model of some blocks, its network, and its objectives of a program."""

    name: str
    network: Network
    objectives: tuple[of.Objective, of.Objective]


def make_case(blocks: Sequence[Block], number: int) -> Case:
    layers = [block.make() for block in blocks]
    model = keras.Sequential([keras.Input(SHAPES[blocks[0].axes]), *layers])
    if len(model.outputs[0].shape) > 2:
        model.add(keras.layers.Flatten())
    model.add(keras.layers.Dense(3))
    network = Network(model)
    objectives = (
        of.predict_logits(network, BATCH, f"predict_{number}"),
        of.classify(network, BATCH, sgd(LEARNING_RATE), f"train_{number}"),
    )
    return Case(" -> ".join(block.name for block in blocks), network, objectives)


def measure_case(case: Case, signatures: Sequence[SignatureSpec], interpreter: Any) -> dict[str, float]:
    """Return the largest difference of predictions, gradients and weights after three steps."""
    drawn, zeros = (
        measure_values(case, signatures, interpreter, compare.draw_values(case.network, BATCH, draw))
        for draw in (compare.BOTH_SIGNS, compare.ZEROS)
    )
    # Keras has no gradient of a square root at 0, so only the prediction is compared there
    return drawn | {f"{name} with zeros": value for name, value in zeros.items() if not np.isnan(value)}


def measure_values(
    case: Case, signatures: Sequence[SignatureSpec], interpreter: Any, values: compare.ComparedValues
) -> dict[str, float]:
    """Return the differences on some values. A difference from NaN is NaN."""
    network = case.network
    weights = dict(values.weights)
    y = np.arange(BATCH, dtype=np.int32) % 3
    expected_out, *expected = train_keras(network, values, y)
    predict, train = (interpreter.get_signature_runner(objective.name) for objective in case.objectives)
    frozen = {f"f_{i}": weights[spec.name] for i, spec in enumerate(signatures[0].frozen)}
    out = predict(d_x=values.x, **frozen)
    differences = {"prediction": compare.measure_difference(out["out"], expected_out)}
    for step in range(STEPS):
        args = {
            "d_x": values.x,
            "d_y": y,
            "d_sample_weight": np.ones(BATCH, np.float32),
            "h_learning_rate": np.float32(LEARNING_RATE),
        }
        for letter, specs in (("t", signatures[1].trained), ("f", signatures[1].frozen)):
            args |= {f"{letter}_{i}": weights[spec.name] for i, spec in enumerate(specs)}
        args |= {f"n_{i}": values.noise[spec.name] for i, spec in enumerate(signatures[1].noise)}
        results = train(**args)
        before = dict(weights)
        weights |= {spec.name: results[f"t_{i}"] for i, spec in enumerate(signatures[1].trained)}
        if step == 0:
            differences["gradient"] = compare_weights(weights, expected[0], before)
    differences["three steps"] = compare_weights(weights, expected[-1], values.weights)
    return differences


def compare_weights(received: Any, expected: Any, before: Any) -> float:
    """Return the largest difference of a step, relative to the largest step, or NaN if Keras has NaN."""
    if not all(np.isfinite(value).all() for value in expected.values()):
        return np.nan
    largest = max(float(np.abs(expected[name] - before[name]).max(initial=0)) for name in expected)
    return max(float(np.abs(received[name] - expected[name]).max(initial=0)) for name in expected) / largest


def train_keras(network: Network, values: compare.ComparedValues, y: Any) -> list[Any]:
    """Return the predictions of the Keras model, and its weights after each of three steps."""
    model = network.model
    for name, variable in network.variables.items():
        variable.assign(values.weights[name])
    seeds = [(v, v.numpy()) for v in model.non_trainable_variables if "seed" in v.path]
    measure_loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    results: list[Any] = [np.asarray(model(values.x))]
    for _ in range(STEPS):
        for variable, seed in seeds:  # Each step drops the same values
            variable.assign(seed)
        with tf.GradientTape() as tape:
            loss = measure_loss(y, model(values.x, training=True)) + sum(model.losses)
        variables = model.trainable_variables
        gradients = tape.gradient(loss, [variable.value for variable in variables])
        for variable, gradient in zip(variables, gradients, strict=True):
            if gradient is not None:
                variable.assign_sub(LEARNING_RATE * gradient)
        results.append(network.read_weights())
    return results


def measure_chunk(models: Sequence[Sequence[Block]]) -> dict[str, dict[str, float]]:
    """Return the differences of some models by name."""
    cases = [make_case(blocks, number) for number, blocks in enumerate(models)]
    program, signatures = compile_program([objective for case in cases for objective in case.objectives])
    interpreter = load_interpreter(program)
    return {
        case.name: measure_case(case, signatures[2 * i : 2 * i + 2], interpreter)
        for i, case in enumerate(cases)
    }


def check_chunk(models: Sequence[Sequence[Block]]) -> None:
    measured = measure_chunk(models)
    if folder := os.environ.get("EDGEFL_PAIR_REPORT"):
        path = Path(folder) / f"pairs-{os.getpid()}.jsonl"
        with path.open("a") as file:
            file.writelines(json.dumps([name, row]) + "\n" for name, row in measured.items())
    wrong = {
        name: row for name, row in measured.items() if not all(value <= TOLERANCE for value in row.values())
    }
    assert not wrong


def split_chunks(models: Sequence[Sequence[Block]]) -> list[Sequence[Sequence[Block]]]:
    return [models[start : start + CHUNK] for start in range(0, len(models), CHUNK)]


def test_the_page_lists_what_the_pair_test_compiles() -> None:
    text = PAGE.read_text()
    assert replace_table(text) == text, "run python -m tests.edgefl.program.compiler.blocks"


def test_a_sample_of_layers_and_pairs_computes_what_keras_computes() -> None:
    check_chunk(SAMPLE)


@pytest.mark.slow
@pytest.mark.parametrize("models", split_chunks([(block,) for block in BLOCKS]))
def test_every_layer_computes_what_keras_computes(models) -> None:
    check_chunk(models)


@pytest.mark.slow
@pytest.mark.parametrize("models", split_chunks(PAIRS))
def test_every_pair_computes_what_keras_computes(models) -> None:
    check_chunk(models)
