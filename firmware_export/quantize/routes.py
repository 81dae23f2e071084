"""Quantization routes from a float .tflite to an integer one, behind one interface.

A route yields candidates. The caller tries them in order until one keeps the accuracy.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from typing import Literal

from edgefl.base.errors import ExportError
from edgefl.base.types import Array, Labels
from firmware_export.quantize.dense_weights import INDEX_BITS, with_few_values
from firmware_export.quantize.device_route import RECIPES, Recipe, dedupe_recipes, load_quantizer, quantize
from firmware_export.quantize.ranges import record_extremes
from firmware_export.quantize.tune import Tuning

DEVICE_ROUTE = "device"
TENSORFLOW_ROUTE = "tensorflow"
CALIBRATION_SAMPLES = 256
CONTROL_NAME = "control: as many epochs in float"


@dataclass(frozen=True)
class QuantizationOptions:
    """How to quantize a model.

    Attributes:
        route: "device" quantizes on the device, "tensorflow" uses TensorFlow's converter on a host.
        bits: bits of the activations, 8 or 16. Weights have 8.
        tuning: tuning before the quantization, for the TensorFlow route.
        dense: bits of a large dense layer's weights in the generated C. With 3 or 4, such a layer has at most
            8 or 16 different values.

    Raises:
        ExportError: a value is out of range, or two options exclude each other.
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
                "--weights is for the generated C, which has 8-bit activations; leave out --weights or "
                "--activations 16"
            )
        if self.tuning.name and self.route == DEVICE_ROUTE:
            raise ExportError(
                f"{self.tuning.name}: the device route cannot tune; use --route tensorflow on a host that "
                "has TensorFlow"
            )
        if self.tuning.qat and self.bits == 16:
            raise ExportError(
                "quantization-aware training needs 8-bit activations; leave out --qat or --activations 16"
            )

    @property
    def quantizer(self) -> str:
        """The name and version of the library that quantizes."""
        package = "ai-edge-quantizer" if self.route == DEVICE_ROUTE else "tensorflow"
        try:
            return f"{package} {version(package)}"
        except PackageNotFoundError:
            return package


@dataclass(frozen=True)
class QuantizationCandidate:
    """One way to quantize a model.

    Attributes:
        name: name of the recipe.
        samples: number of calibration samples.
        make: returns the integer .tflite, or raises ExportError.
        has_control: whether the next candidate is the control of this one. It is then measured too, even if
            this candidate keeps the accuracy.
    """

    name: str
    samples: int
    make: Callable[[], bytes]
    has_control: bool = False


def generate_candidates(
    model: bytes,
    calibration: Array,
    tuning_samples: Callable[[], tuple[Array, Labels]],
    options: QuantizationOptions,
    recipes: tuple[Recipe, ...] = RECIPES,
) -> Iterator[QuantizationCandidate]:
    """Yield the candidates, the most promising first.

    A tuned candidate comes with its control: the same model after as many epochs without pruning, clustering
    or quantization-aware training.

    Args:
        model: the float .tflite.
        calibration: shuffled training samples, shape (n, ...), float32. Every candidate takes its ranges from
            them.
        tuning_samples: returns the shuffled samples and labels that a tuned candidate trains on, shapes (m,
            ...) and (m,), float32 and int64. It must not return samples on which candidates are compared,
            because a tuned model has learned their labels.
        options: route, bits and tuning.
        recipes: recipes of the device route.

    Raises:
        ExportError: the quantizer is missing, or the model fails on the calibration samples.
    """
    for candidate in _generate_route_candidates(model, calibration, tuning_samples, options, recipes):
        yield (
            candidate
            if options.dense == 8
            else _reduce_dense_bits(candidate, calibration[:CALIBRATION_SAMPLES], options.dense)
        )


def _reduce_dense_bits(candidate: QuantizationCandidate, few: Array, bits: int) -> QuantizationCandidate:
    name = f"{candidate.name}, dense weights of {bits} bits"
    return replace(candidate, name=name, make=lambda: with_few_values(candidate.make(), few, bits))


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
    from firmware_export.quantize.tune import train_control, tune_int8

    few = calibration[:CALIBRATION_SAMPLES]
    if options.tuning.name:
        tuning = options.tuning

        def make_tuned() -> bytes:
            return tune_int8(model, *tuning_samples(), few, tuning, options.bits)

        def make_control() -> bytes:
            trained = train_control(model, *tuning_samples(), tuning.total_epochs)
            return convert_float(trained, few, options.bits)

        yield QuantizationCandidate(name=tuning.name, samples=len(few), make=make_tuned, has_control=True)
        yield QuantizationCandidate(name=CONTROL_NAME, samples=len(few), make=make_control)
    yield QuantizationCandidate(
        name=f"converter, extremes of {CALIBRATION_SAMPLES} samples",
        samples=len(few),
        make=lambda: convert_float(model, few, options.bits),
    )
    if len(calibration) > len(few):
        yield QuantizationCandidate(
            name="converter, extremes of all samples",
            samples=len(calibration),
            make=lambda: convert_float(model, calibration, options.bits),
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
            name=recipe.name,
            samples=min(recipe.samples, observed.samples),
            make=partial(quantize, model, observed, recipe, options.bits),
        )
