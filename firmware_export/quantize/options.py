"""The options by which `edgefl export` is told how to quantize."""

import functools
from collections.abc import Callable
from typing import Any

import click

from firmware_export.quantize.routes import DEVICE, TENSORFLOW, Options
from firmware_export.quantize.tune import Tuning

OPTIONS = ("route", "activations", "weights", "qat", "prune", "cluster_weights", "tune_epochs")


def quantization_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command `--route` and what belongs to it; the command gets `quantization`, an `Options`."""

    @functools.wraps(command)
    def with_options(**given: Any) -> Any:
        own = {name: given.pop(name) for name in OPTIONS}
        tuning = Tuning(own["prune"], own["cluster_weights"], own["qat"], own["tune_epochs"])
        activations: Any = int(own["activations"])
        weights: Any = int(own["weights"])
        return command(quantization=Options(own["route"], activations, tuning, weights), **given)

    options = (
        click.option(
            "--route",
            type=click.Choice([DEVICE, TENSORFLOW]),
            default=DEVICE,
            show_default=True,
            help="What quantizes.",
        ),
        click.option(
            "--activations",
            type=click.Choice(["8", "16"]),
            default="8",
            show_default=True,
            help="Bits; weights have 8.",
        ),
        click.option(
            "--weights",
            type=click.Choice(["8", "4", "3"]),
            default="8",
            show_default=True,
            help="Bits that the C keeps of a large dense layer's weights: 3 takes .4 of their flash.",
        ),
        click.option("--qat", is_flag=True, help="Quantization-aware training first (route tensorflow)."),
        click.option(
            "--prune",
            type=float,
            default=0.0,
            help="Share of the weights that become zero (route tensorflow).",
        ),
        click.option(
            "--cluster-weights",
            type=int,
            default=0,
            help="Values that a kernel may have, such as 16 (route tensorflow).",
        ),
        click.option(
            "--tune-epochs",
            type=int,
            default=3,
            show_default=True,
            help="Over the training samples, for each of these.",
        ),
    )
    for option in reversed(options):
        with_options = option(with_options)
    return with_options
