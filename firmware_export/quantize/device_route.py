"""The device route: ai-edge-quantizer without TensorFlow, with ranges from `ranges.py`.

A recipe defines how the ranges are chosen.
"""

import warnings
from contextlib import redirect_stderr
from dataclasses import dataclass, replace
from io import StringIO
from typing import Any

from edgefl.base.errors import ExportError
from firmware_export.quantize.ranges import RecordedExtremes, choose_ranges
from firmware_export.quantize.weight_layers import widen_kernel_ranges
from firmware_export.tflite.graph import check_integer, read_graph
from firmware_export.tflite.portable import to_portable

ALL_SAMPLES = 1 << 30
WEIGHT_OPERATORS = ("CONV_2D", "DEPTHWISE_CONV_2D", "FULLY_CONNECTED")


@dataclass(frozen=True)
class Recipe:
    """How ranges are chosen and weights are rounded.

    Attributes:
        name: name in reports.
        samples: number of calibration samples.
        percentile: percentile of the samples' extremes.
        margin: how much wider the ranges become. 0.1 is a tenth.
        per_channel: whether each output channel of a weight has a scale.
        rounding: the quantizer's algorithm for weights. Empty chooses the quantizer's default.
    """

    name: str
    samples: int = 256
    percentile: float = 100.0
    margin: float = 0.0
    per_channel: bool = True
    rounding: str = ""


RECIPES = (
    Recipe(name="extremes of 256 samples"),
    Recipe(name="extremes of all samples", samples=ALL_SAMPLES),
    Recipe(name="99.9th percentile", samples=ALL_SAMPLES, percentile=99.9),
    Recipe(name="99th percentile", samples=ALL_SAMPLES, percentile=99.0),
    Recipe(name="ranges a tenth wider", samples=ALL_SAMPLES, margin=0.1),
    Recipe(name="weights of least squared error", samples=ALL_SAMPLES, rounding="MSE"),
    Recipe(name="one scale a weight tensor", samples=ALL_SAMPLES, per_channel=False),
)


def quantize(model: bytes, observed: RecordedExtremes, recipe: Recipe, bits: int = 8) -> bytes:
    """Return the integer form of a float .tflite, made portable by `to_portable`.

    Args:
        model: the float .tflite.
        observed: extremes of its activations.
        recipe: how to choose ranges and round weights.
        bits: bits of activations, input and output, 8 or 16. Weights have 8.

    Raises:
        ExportError: the quantizer is missing or refuses the model, or an operator has no integer form.
    """
    quantizer, recipes, granularity = load_quantizer()
    rules = recipes.RecipeManager()
    kind = granularity.CHANNELWISE if recipe.per_channel else granularity.TENSORWISE
    common = {"regex": ".*", "activation_num_bits": bits, "weight_num_bits": 8, "weight_granularity": kind}
    rules.add_static_config(operation_name="*", **common)
    if recipe.rounding:
        for operation in WEIGHT_OPERATORS:
            rules.add_static_config(operation_name=operation, algorithm_key=recipe.rounding, **common)
    try:
        session = quantizer.Quantizer(model, rules.get_quantization_recipe())
        tensor_ranges = choose_ranges(observed, recipe.samples, recipe.percentile, recipe.margin)
        tensor_ranges |= widen_kernel_ranges(observed.layers, tensor_ranges, recipe.per_channel, bits)
        # Its interpreter keeps all tensors and warns about the memory. For more than 100 tensors it draws a
        # progress bar, although the bars are turned off
        with warnings.catch_warnings(), redirect_stderr(StringIO()):
            warnings.simplefilter("ignore")
            result = bytes(
                session.quantize(
                    tensor_ranges, enable_progress_bar=False, enable_progress_report=False
                ).quantized_model
            )
    except (ValueError, RuntimeError, KeyError) as error:
        raise ExportError(
            f"the quantizer refuses the mixture ({recipe.name}): {error}; use layers that `edgefl plan` lists"
        ) from error
    result = to_portable(result)
    check_integer(read_graph(result))
    return result


def load_quantizer() -> tuple[Any, Any, Any]:
    """Return the modules `quantizer` and `recipe_manager` of ai-edge-quantizer, and its granularities.

    Raises:
        ExportError: ai-edge-quantizer is not installed. It does not exist for 32-bit systems.
    """
    try:
        from ai_edge_quantizer import qtyping, quantizer, recipe_manager
    except ImportError as error:
        raise ExportError(
            f"this device cannot quantize: {error}; ai-edge-quantizer needs a 64-bit system; export on one "
            "of those"
        ) from error
    return quantizer, recipe_manager, qtyping.QuantGranularity


def dedupe_recipes(recipes: tuple[Recipe, ...], available: int) -> list[Recipe]:
    """Return the recipes without those that only add samples that do not exist.

    Args:
        recipes: recipes in order.
        available: number of calibration samples.
    """
    unique: dict[Recipe, Recipe] = {}
    for recipe in recipes:
        unique.setdefault(replace(recipe, name="", samples=min(recipe.samples, available)), recipe)
    return list(unique.values())
