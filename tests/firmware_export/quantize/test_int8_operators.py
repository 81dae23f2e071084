"""The warning about operators without an int8 form agrees with the quantizer of a device."""

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from click.testing import CliRunner

from edgefl.base.errors import ExportError
from edgefl.cli.commands.plan import plan as plan_command
from edgefl.program.compiler import objective as of
from edgefl.program.compiler.network import Network
from edgefl.program.compiler.template import build_template
from edgefl.program.plan.fill import fill_template
from edgefl.program.plan.int8 import describe_missing_int8, list_float_operators
from firmware_export.quantize.device_route import RECIPES, quantize
from firmware_export.quantize.ranges import record_extremes
from tests.edgefl.program.compiler.blocks import SHAPES, Block, list_blocks

L = keras.layers
BLOCKS = tuple(
    block
    for block in list_blocks()
    if block.layer != "BatchNormalization"  # It needs a layer with weights directly before it
    and block.options.get("activation") != "hard_sigmoid"
    and (block.layer, block.axes) != ("PReLU", 3)
    and block.options.get("use_bias", True)
)
SAMPLE = tuple(
    next(block for block in BLOCKS if block.layer == layer and block.options.get("activation") == activation)
    for layer, activation in (("Conv2D", "relu"), ("Dense", "elu"), ("PReLU", None), ("GRU", None))
)
CHUNKS = [BLOCKS[start::8] for start in range(8)]


def build_float(block: Block) -> tuple[bytes, bytes]:
    """Return the template of a model with a block, and the same file with weights."""
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input(SHAPES[block.axes]), block.make()])
    for layer in (L.Flatten(), L.Activation("tanh"), L.Dense(3)):
        model.add(layer)
    network = Network(model)
    template, bindings = build_template(of.predict_logits(network, 4), network.epsilons)
    return template, fill_template(template, bindings, network.read_weights())


def can_quantize(block: Block, model: bytes) -> bool:
    samples = np.random.default_rng(0).normal(size=(16, *SHAPES[block.axes])).astype(np.float32)
    try:
        quantize(model, record_extremes(model, samples), RECIPES[0])
    except ExportError:
        return False
    return True


def check_blocks(blocks: Any) -> None:
    wrong = []
    for block in blocks:
        template, model = build_float(block)
        answers = (block.has_int8, not list_float_operators(template), can_quantize(block, model))
        if len(set(answers)) > 1:
            wrong.append((block.name, answers, list_float_operators(template)))
    assert not wrong


def test_warning_agrees_with_the_quantizer_on_some_layers() -> None:
    check_blocks(SAMPLE)


@pytest.mark.slow
@pytest.mark.parametrize("blocks", CHUNKS)
def test_warning_agrees_with_the_quantizer_on_every_layer(blocks) -> None:
    check_blocks(blocks)


def test_plan_build_warns_of_a_layer_without_an_int8_form(tmp_path: Path) -> None:
    ends = [L.Dense(5, name="h"), L.ELU(name="soft"), L.Dense(3)]
    keras.Sequential([keras.Input((6,)), *ends]).save(tmp_path / "own.keras")
    options = ["--model", str(tmp_path / "own.keras"), "--input-shape", "6", "--num-classes", "3"]
    result = CliRunner().invoke(plan_command, ["build", *options, "-o", str(tmp_path / "plan")])
    assert result.exit_code == 0
    assert "warning: devices can train this model" in result.stderr
    assert "ELU in layer soft cannot be computed in int8" in result.stderr


def test_empty_template_has_no_warning() -> None:
    assert describe_missing_int8(b"") == ""
