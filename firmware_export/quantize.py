"""Mixture -> int8 .tflite on the device: template, weights, the device's own calibration samples, measured accuracy.

No TensorFlow. The recipes are tried in order until int8 loses at most one point on the held-out split.
"""

import hashlib
import json
import warnings
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from edgefl.errors import ExportError
from edgefl.files import write_atomic
from edgefl.memory import peak_rss_mb
from edgefl.mixture import fill_template
from edgefl.plan.spec import Plan
from edgefl.rng import rng_for
from edgefl.types import Mixture, Shard
from firmware_export.graph import check_integer, read_graph
from firmware_export.ranges import Observed, check_calibration, observe, ranges
from firmware_export.run import accuracy, load, outputs
from firmware_export.weighted import kernel_ranges

ALLOWED_LOSS = 0.01
ALL = 1 << 30
WITH_WEIGHTS = ("CONV_2D", "DEPTHWISE_CONV_2D", "FULLY_CONNECTED")


@dataclass(frozen=True)
class Recipe:
    """How ranges are chosen and weights are rounded.

    samples: calibration samples used; percentile: of the samples' extremes; margin: how much wider the ranges are made;
    per_channel: one scale for each output channel of a weight; rounding: the quantizer's algorithm for weights,
    its own by extremes when empty.
    """

    name: str
    samples: int = 256
    percentile: float = 100.0
    margin: float = 0.0
    per_channel: bool = True
    rounding: str = ""


RECIPES = (
    Recipe("extremes of 256 samples"),
    Recipe("extremes of all samples", ALL),
    Recipe("99.9th percentile", ALL, 99.9),
    Recipe("99th percentile", ALL, 99.0),
    Recipe("ranges a tenth wider", ALL, margin=0.1),
    Recipe("weights of least squared error", ALL, rounding="MSE"),
    Recipe("one scale a weight tensor", ALL, per_channel=False),
)


@dataclass(frozen=True)
class Attempt:
    """One recipe, what it used, and what it gave; agreement is the share of samples with the float model's answer."""

    recipe: str
    calibration_samples: int
    accuracy_int8: float
    agreement: float


@dataclass(frozen=True)
class ExportReport:
    """What was exported and what was measured. `within_one_point` False: every remedy was tried and this is the best."""

    accuracy_float: float
    accuracy_int8: float
    agreement: float
    within_one_point: bool
    measured_on: str
    num_test: int
    tflite_bytes: int
    float_bytes: int
    sha256: str
    recipe: str
    calibration_samples: int
    tried: tuple[Attempt, ...]
    runtime: str
    quantizer: str
    peak_rss_mb: float
    seed: int
    client_id: str

    def as_dict(self) -> dict[str, Any]:
        """Return it as what JSON holds."""
        return asdict(self)


def quantize(model: bytes, observed: Observed, recipe: Recipe) -> bytes:
    """Return the int8-in, int8-out form of a float .tflite. Raises ExportError when an operator cannot be an integer one."""
    quantizer, recipes, granularity = _quantizer()
    rules = recipes.RecipeManager()
    kind = granularity.CHANNELWISE if recipe.per_channel else granularity.TENSORWISE
    common = {"regex": ".*", "activation_num_bits": 8, "weight_num_bits": 8, "weight_granularity": kind}
    rules.add_static_config(operation_name="*", **common)
    if recipe.rounding:
        for operation in WITH_WEIGHTS:
            rules.add_static_config(operation_name=operation, algorithm_key=recipe.rounding, **common)
    try:
        session = quantizer.Quantizer(model, rules.get_quantization_recipe())
        found = ranges(observed, recipe.samples, recipe.percentile, recipe.margin)
        found |= kernel_ranges(observed.layers, found, recipe.per_channel, 255)
        with warnings.catch_warnings():  # it makes an interpreter that keeps all tensors, which warns of memory
            warnings.simplefilter("ignore")
            result = bytes(session.quantize(found, enable_progress_bar=False, enable_progress_report=False).quantized_model)
    except (ValueError, RuntimeError, KeyError) as error:
        raise ExportError(f"the quantizer refuses the mixture ({recipe.name}): {error}; use layers that `edgefl plan` lists") from error
    check_integer(read_graph(result))
    return result


def _quantizer() -> tuple[Any, Any, Any]:
    try:
        from ai_edge_quantizer import qtyping, quantizer, recipe_manager
    except ImportError as error:
        raise ExportError(f"this device cannot quantize: {error}; ai-edge-quantizer needs a 64-bit system, export on such a one") from error
    return quantizer, recipe_manager, qtyping.QuantGranularity


def export_mixture(
    plan: Plan, mixture: Mixture, shard: Shard, out: Path, *, seed: int = 1, client_id: str = "", recipes: tuple[Recipe, ...] = RECIPES
) -> ExportReport:
    """Write model.tflite (int8), model_float.tflite and report.json into `out`, and return the report.

    The int8 accuracy is that of the reference kernels, as on a microcontroller; float runs on the default ones, which differ
    by rounding only. Both are of the held-out split; of the training split where nothing is held out. `seed` draws the calibration
    samples; it and `client_id` stand in the report, so that `edgefl infer` finds the same split.
    Raises PlanError for a mixture of another plan, ExportError for data that cannot calibrate.
    """
    _quantizer()
    check_calibration(shard.x_train, plan.spec.input_shape)
    held_out = len(shard.y_test) > 0
    x, y = (shard.x_test, shard.y_test) if held_out else (shard.x_train, shard.y_train)
    if not np.isfinite(x).all():
        raise ExportError("the held-out samples hold NaN or infinite values; clean the shard")
    model = fill_template(plan.template, plan.spec.bindings, mixture.weights)
    expected, _ = outputs(load(model), x)
    enough = accuracy(expected, y) - ALLOWED_LOSS - 1e-9
    calibration = shard.x_train[rng_for(seed, 0, "calibration").permutation(len(shard.x_train))]
    observed = observe(model, calibration[: recipes[0].samples])
    tried: list[tuple[Attempt, bytes]] = []
    for recipe in _distinct(recipes, len(calibration)):
        if observed.samples < min(recipe.samples, len(calibration)):
            observed = observe(model, calibration)
        try:
            candidate = quantize(model, observed, recipe)
        except ExportError:
            if not tried:
                raise
            continue
        loaded = load(candidate, reference=True)
        answers, _ = outputs(loaded, x)
        agreement = float((answers.argmax(axis=1) == expected.argmax(axis=1)).mean())
        tried.append((Attempt(recipe.name, min(recipe.samples, observed.samples), accuracy(answers, y), agreement), candidate))
        if tried[-1][0].accuracy_int8 >= enough:
            break
    best, candidate = max(tried, key=lambda pair: (pair[0].accuracy_int8, pair[0].agreement))
    report = ExportReport(
        accuracy(expected, y), best.accuracy_int8, best.agreement, best.accuracy_int8 >= enough, "held-out" if held_out else "training",
        len(y), len(candidate), len(model), hashlib.sha256(candidate).hexdigest(), best.recipe, best.calibration_samples,
        tuple(attempt for attempt, _ in tried), loaded.runtime, f"ai-edge-quantizer {version('ai-edge-quantizer')}", peak_rss_mb(),
        seed, client_id,
    )  # fmt: skip
    _write(out, candidate, model, report)
    return report


def _distinct(recipes: tuple[Recipe, ...], available: int) -> list[Recipe]:
    """Leave out what only adds samples to an earlier recipe where there are no more."""
    found: dict[Recipe, Recipe] = {}
    for recipe in recipes:
        found.setdefault(replace(recipe, name="", samples=min(recipe.samples, available)), recipe)
    return list(found.values())


def _write(out: Path, model: bytes, model_float: bytes, report: ExportReport) -> None:
    try:
        write_atomic(out / "model.tflite", model)
        write_atomic(out / "model_float.tflite", model_float)
        write_atomic(out / "report.json", json.dumps(report.as_dict(), indent=1).encode())
    except OSError as error:
        raise ExportError(f"cannot write the model to {out}: {error}; choose another directory with -o") from error
