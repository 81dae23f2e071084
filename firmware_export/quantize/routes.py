"""The ways from a float .tflite to an integer one, behind one interface: candidates to be tried until one
keeps the accuracy.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from typing import Literal

from edgefl.errors import ExportError
from edgefl.types import Array, Labels
from firmware_export.quantize.dense_weights import INDEX_BITS, with_few_values
from firmware_export.quantize.device_route import RECIPES, Recipe, dedupe_recipes, load_quantizer, quantize
from firmware_export.quantize.ranges import record_extremes
from firmware_export.quantize.tune import Tuning

DEVICE_ROUTE = "device"
TENSORFLOW_ROUTE = "tensorflow"
CALIBRATION_SAMPLES = 256


@dataclass(frozen=True)
class QuantizationOptions:
    """route: the device's own, or TensorFlow's converter on a host that has it; bits: of activations, 8 or
    16, where weights have 8.

    dense: bits of a dense layer's weights in the generated C: 8, or 3 or 4 with as many values as they tell
    apart.

    Raises ExportError for a tuning by the device route, or one of 16 bits.
    """

    route: Literal["device", "tensorflow"] = "device"
    bits: Literal[8, 16] = 8
    tuning: Tuning = field(default_factory=Tuning)
    dense: Literal[3, 4, 8] = 8

    def __post_init__(self) -> None:
        if self.route not in (DEVICE_ROUTE, TENSORFLOW_ROUTE) or self.bits not in (8, 16):
            raise ExportError(
                f"route {self.route!r} with {self.bits} bits, expected device or tensorflow, with 8 or 16"
            )
        if self.dense not in (*INDEX_BITS, 8):
            raise ExportError(f"dense weights of {self.dense} bits, expected 3, 4 or 8")
        if self.dense < 8 and self.bits == 16:
            raise ExportError(
                "--weights is of the C, which is of 8-bit activations; leave out --weights, or "
                "--activations 16"
            )
        if self.tuning.name and self.route == DEVICE_ROUTE:
            raise ExportError(
                f"{self.tuning.name}: the device route tunes nothing; use --route tensorflow on a host that "
                "has TensorFlow"
            )
        if self.tuning.qat and self.bits == 16:
            raise ExportError(
                "quantization-aware training is of 8-bit activations; leave out --qat, or --activations 16"
            )

    @property
    def quantizer(self) -> str:
        """The name and version of what quantizes."""
        package = "ai-edge-quantizer" if self.route == DEVICE_ROUTE else "tensorflow"
        try:
            return f"{package} {version(package)}"
        except PackageNotFoundError:
            return package


@dataclass(frozen=True)
class QuantizationCandidate:
    """name: of the recipe; samples: how many calibrate it; make: gives the integer .tflite, or raises
    ExportError.
    """

    name: str
    samples: int
    make: Callable[[], bytes]


def generate_candidates(
    model: bytes,
    calibration: Array,
    tuning_samples: Callable[[], tuple[Array, Labels]],
    options: QuantizationOptions,
    recipes: tuple[Recipe, ...] = RECIPES,
) -> Iterator[QuantizationCandidate]:
    """Give what is to be tried, the likeliest first.

    Args:
        model: the float .tflite.
        calibration: training samples in drawn order, float32[n, *shape]. Every candidate takes its ranges
            from them.
        tuning_samples: returns the samples that a tuned candidate trains on, float32[m, *shape] and int64[m],
            in drawn order. The samples on which candidates are compared must not be among them: a tuned model
            has learned the labels of its samples.
        options: the route, its bits and its tuning.
        recipes: those of the device route.
    """
    for candidate in _generate_route_candidates(model, calibration, tuning_samples, options, recipes):
        yield (
            candidate
            if options.dense == 8
            else _reduce_dense_bits(candidate, calibration[:CALIBRATION_SAMPLES], options.dense)
        )


def _reduce_dense_bits(candidate: QuantizationCandidate, few: Array, bits: int) -> QuantizationCandidate:
    name = f"{candidate.name}, dense weights of {bits} bits"
    return QuantizationCandidate(
        name, candidate.samples, lambda: with_few_values(candidate.make(), few, bits)
    )


def _generate_route_candidates(
    model: bytes,
    calibration: Array,
    tuning_samples: Callable[[], tuple[Array, Labels]],
    options: QuantizationOptions,
    recipes: tuple[Recipe, ...],
) -> Iterator[QuantizationCandidate]:
    if options.route == DEVICE_ROUTE:
        yield from _generate_device_candidates(model, calibration, options, recipes)
        return
    from firmware_export.quantize.convert import convert_float
    from firmware_export.quantize.tune import tune_int8

    few = calibration[:CALIBRATION_SAMPLES]
    if options.tuning.name:
        tuning = options.tuning

        def make_tuned() -> bytes:
            return tune_int8(model, *tuning_samples(), few, tuning, options.bits)

        yield QuantizationCandidate(tuning.name, len(few), make_tuned)
    yield QuantizationCandidate(
        f"converter, extremes of {CALIBRATION_SAMPLES} samples",
        len(few),
        lambda: convert_float(model, few, options.bits),
    )
    if len(calibration) > len(few):
        yield QuantizationCandidate(
            "converter, extremes of all samples",
            len(calibration),
            lambda: convert_float(model, calibration, options.bits),
        )


def _generate_device_candidates(
    model: bytes, calibration: Array, options: QuantizationOptions, recipes: tuple[Recipe, ...]
) -> Iterator[QuantizationCandidate]:
    load_quantizer()
    observed = record_extremes(model, calibration[: recipes[0].samples])
    for recipe in dedupe_recipes(recipes, len(calibration)):
        if observed.samples < min(recipe.samples, len(calibration)):
            observed = record_extremes(model, calibration)
        yield QuantizationCandidate(
            recipe.name,
            min(recipe.samples, observed.samples),
            partial(quantize, model, observed, recipe, options.bits),
        )
